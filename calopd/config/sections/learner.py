"""[learner]: the optimizer, its batches and its checkpoints."""

from typing import Literal

from pydantic import Field, model_validator

from calopd.config.sections.base import Fixed, Port, Section
from calopd.core.options import Dtype

ShardGroup = Literal["node", "all"]


class LearnerSection(Section):
    """The optimizer, its batches and its checkpoints."""

    engine: Literal["torch", "emulated"] = "torch"
    """`"torch"` trains; `"emulated"` trains nothing, see `[emulation]`."""
    ranks: int = Field(default=1, ge=1)
    """Number of learner processes that `calopd run` starts; the student is sharded over them (FSDP2). It follows from
    `resources.learner` if that is set."""
    shard: ShardGroup = "node"
    """Ranks that the student is sharded over if there are several nodes: `"node"` = those of one node, and every node
    has a copy (HSDP), so that only gradients cross the network; `"all"` = all ranks, if it does not fit one node."""
    port: Port = 8_080
    """HTTP port of the first rank: health, status and metrics."""
    device: str = "auto"
    """Torch device; `"auto"` = the GPU of the rank if there is one, else the CPU."""
    trajectories: Fixed[int] = Field(default=256, ge=1)
    """Number of trajectories in one optimizer step: problems times `samples`."""
    samples: Fixed[int] = Field(default=1, ge=1)
    """Responses per problem of a step. It must divide `trajectories`. Methods that compare responses need 2 or more."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Peak learning rate of AdamW. It falls along half a cosine to 0 at the end of the run."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up before the peak."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the two moments."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's weight decay."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Maximum norm of the gradient. A larger gradient is scaled down to it."""
    micro_batch_tokens: int = Field(default=32_768, ge=1)
    """Maximum number of tokens (prompts and responses) in one forward and backward pass of a rank, without padding. A
    longer trajectory has a pass of its own. Lower it if memory runs out; the gradient stays the same up to rounding."""
    chunk: int = Field(default=1_024, ge=1)
    """Tokens that the LM head projects at once. It affects memory and speed only."""
    lora_rank: Fixed[int] = Field(default=0, ge=0)
    """Rank of the LoRA adapters; 0 = all parameters are trained. The paper's ExOPD uses 64. Policies and the exported
    model contain the merged weights."""
    lora_alpha: Fixed[float] = Field(default=128, gt=0)
    """LoRA's alpha: adapters are scaled by alpha / rank. Used if `lora_rank` > 0."""
    lora_targets: Fixed[tuple[str, ...] | Literal["all-linear"]] = "all-linear"
    """Names of the modules with adapters, such as `["q_proj", "v_proj"]`; `"all-linear"` = every linear layer but the
    LM head. Used if `lora_rank` > 0."""
    recompute_activations: bool | Literal["auto"] = "auto"
    """Recompute activations in the backward pass instead of storing them: much less memory, about a third more compute.
    `"auto"` = on GPUs and with several ranks; on a CPU, only in micro-batches whose activations would need more than a
    quarter of its memory, or 4 GiB."""
    compute_dtype: Dtype = "auto"
    """Data type of the forward and backward passes. Parameters, gradient sums and optimizer state stay float32.
    `"auto"` = bfloat16 on a GPU, float32 on a CPU."""
    compile: bool = False
    """Compile the decoder layers with `torch.compile`: faster steps on GPUs after some minutes of compilation. Needs a
    C++ compiler."""
    offload_optimizer: bool = False
    """Keep parameters, gradients and optimizer state in the memory of the host and move each layer to the GPU when it
    is needed. Fits larger students, and is much slower."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Steps between two checkpoints. After a crash at most this many steps are repeated. A checkpoint is written in the
    background, but it has 12 bytes per parameter: with large students and long steps, 10 spares the disk."""
    collective_minutes: float = Field(default=30.0, gt=0)
    """Minutes after which a rank that waits for another one gives up, and the learner is restarted. No rank waits that
    long for trajectories. Raise it if checkpoints take longer to write."""
    max_missing_ratio: float = Field(default=0.1, gt=0, le=1)
    """Stop the run if a step lacks this share of its trajectories or more because they were dead-lettered."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of latest checkpoints to keep on disk."""
    keep_policies: int = Field(default=2, ge=1)
    """Number of latest policies to keep, besides those that wait for their evaluation."""
    snapshot_every: int = Field(default=10, ge=1)
    """Versions between two policies that are published whole. Those between are published as what changed since the
    version before, which in bfloat16 is a few percent of the bytes; one that changed too much is published whole. 1 =
    all are whole: choose it if a policy is only ever read on this host, through memory."""
    threads: int = Field(default=0, ge=0)
    """CPU threads of each rank; 0 = 1 when started by `calopd run`, else the default of torch."""
    show_trajectories: int = Field(default=4, ge=0)
    """Trajectories of the first, the middle and the last step that are saved for the report."""

    @model_validator(mode="after")
    def _groups(self) -> "LearnerSection":
        if self.trajectories % self.samples:
            raise ValueError(f"{self.trajectories} trajectories cannot be divided by {self.samples} samples")
        return self
