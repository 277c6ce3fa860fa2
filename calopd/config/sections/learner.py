"""[learner]"""

from typing import Literal

from pydantic import Field, model_validator

from calopd.config.sections.base import Dtype, Port, Section


class LearnerSection(Section):
    ranks: int = Field(default=1, ge=1)
    port: Port = 8_082
    device: str = "auto"
    trajectories: int = Field(default=256, ge=1)
    """Trajectories of one optimizer step."""
    samples: int = Field(default=1, ge=1)
    """Responses to each problem of a step."""
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(default=0.01, ge=0)
    gradient_clip: float = Field(default=1.0, gt=0)
    micro_batch_tokens: int = Field(default=32_768, ge=1)
    """Tokens, padding included, in one forward and backward pass of a rank."""
    chunk: int = Field(default=1_024, ge=1)
    """Rows in one projection by the LM head."""
    lora_rank: int = Field(default=0, ge=0)
    """0 = all parameters are trained; the paper's ExOPD has 64. Policies and the exported model are merged."""
    lora_alpha: float = Field(default=128, gt=0)
    lora_targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    recompute_activations: bool = True
    compute_dtype: Dtype = "float32"
    """Parameters and optimizer are float32; this is what the passes compute in."""
    checkpoint_every: int = Field(default=1, ge=1)
    max_missing_ratio: float = Field(default=0.1, gt=0, le=1)
    """A step that lacks this share of its trajectories or more (dead letters) stops the run."""
    keep_checkpoints: int = Field(default=2, ge=1)
    keep_policies: int = Field(default=2, ge=1)
    threads: int = Field(default=0, ge=0)
    show_trajectories: int = Field(default=4, ge=0)
    """Trajectories of the first, middle and last step that are kept for the report."""

    @model_validator(mode="after")
    def _groups(self) -> "LearnerSection":
        if self.trajectories % self.samples:
            raise ValueError(f"{self.trajectories} trajectories are no multiple of {self.samples} samples a problem")
        return self
