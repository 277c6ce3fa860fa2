"""The sections of a configuration: every setting, its default (the paper's recipe) and its meaning."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from calopd.config.nearest import nearest
from calopd.core.contexts import INTERVENTIONS, check_intervention, group_probes
from calopd.core.losses import LossAggMode
from calopd.core.methods import METHODS, Method, add_method
from calopd.core.token_selection import Selection
from calopd.core.types import MethodSettings, Sampling

Port = Annotated[int, Field(ge=1, le=65_535)]
Dtype = Literal["float32", "bfloat16"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Run(Section):
    name: str = Field(default="run", pattern=r"^[A-Za-z0-9._-]+$")
    dir: Path = Path("runs")
    """The run lives in `dir`/`name`."""
    policies: Path | None = None
    """Policies pass from learner to rollouts in `policies`/`name` (a tmpfs); unset = in the run's directory."""
    steps: int = Field(default=100, ge=1)
    seed: int = 0
    deterministic: bool = False
    """Trajectories enter the gradient in the order of their tickets, in fixed micro-batches, not as they arrive."""


class Data(Section):
    train: Path
    heldout: Path | None = None
    max_prompt_tokens: int = Field(default=2_048, ge=1)
    max_context_tokens: int = Field(default=12_288, ge=1)
    """Limit of the teacher's prompts, which carry an intervention; a longer solution in one loses its beginning."""


class MethodSection(Section):
    name: str = "cal_opd"
    file: Path | None = None
    """A method of your own: a Python file with a METHOD, found by its name."""
    relaxation: float = Field(default=5.0, ge=1)
    """The paper's lambda of Cal-OPD."""
    probes: tuple[str, ...] = ("eval",)
    """Groups (`eval` = both of its contexts) or single contexts (`inst+`); several = their union."""
    contexts: dict[str, str] = {}
    """Contexts of your own: name (`hint+`, `hint-`) = text with {problem}, {answer}, {solution}; they may be probes."""
    placement: Literal["after", "before"] = "after"
    """Where the intervention stands: after or before the problem."""
    loss_agg_mode: LossAggMode | Literal["method"] = "method"
    """`"method"` = what the paper uses for this method."""
    clamp: Annotated[float, Field(gt=0)] | Literal["none", "method"] = "method"
    """Bound of the advantage on both sides; `"none"` = unbounded, `"method"` = the paper's."""
    student_logprobs: Literal["learner", "rollout"] = "learner"
    """Whose log-probabilities stand for the student in the advantage."""
    selection: Selection = "random"
    selection_ratio: float = Field(default=1.0, gt=0, le=1)
    """Share of each response's tokens that is learnt from."""
    extrapolation: float = Field(default=1.25, ge=0)
    """ExOPD's lambda."""
    entropy_threshold: float = Field(default=0.8, ge=0)
    """EOPD's tau, in nats."""
    forward_kl_weight: float = Field(default=1.0, ge=0)
    """EOPD's alpha."""
    forward_kl_top_k: int = Field(default=16, ge=1)
    margin_delta: float = 0.4
    """Uni-OPD: the margin between right and wrong responses to a problem."""
    margin_mode: Literal["broadcast", "shift"] = "broadcast"
    target_correct_ratio: float = Field(default=0.5, gt=0, lt=1)
    deviation_threshold: float = Field(default=0.1, ge=0)
    """TSD-Filter's tau, in nats."""
    recorded_run: Path | None = None
    """Advantage-Sync and Token-Sync: the directory of a Cal-OPD run whose ratios are followed step by step."""
    overlap_top_k: int = Field(default=16, ge=0)
    """Tokens compared for the overlap metrics; 0 = not measured."""
    overlap_share: float = Field(default=1.0, ge=0, le=1)
    """Share of a step's trajectories that the overlap is measured on, drawn from the seed."""

    @model_validator(mode="after")
    def _known(self) -> "MethodSection":
        for name, text in self.contexts.items():
            check_intervention(name, text)
        if self.file is not None:
            add_method(self.file)
        if self.name not in METHODS:
            raise ValueError(f"unknown method {self.name!r}{nearest(self.name, METHODS)}")
        if self.method.recorded and self.recorded_run is None:
            raise ValueError(f"{self.name} follows a recorded Cal-OPD run: name its directory in method.recorded_run")
        _ = self.settings
        return self

    @property
    def method(self) -> Method:
        return METHODS[self.name]

    @property
    def interventions(self) -> dict[str, str]:
        """The paper's eight contexts and the user's own."""
        return INTERVENTIONS | self.contexts

    @property
    def aggregation(self) -> LossAggMode:
        return self.method.loss_agg_mode if self.loss_agg_mode == "method" else self.loss_agg_mode

    @property
    def bound(self) -> float | None:
        if self.clamp == "method":
            return self.method.clamp
        return None if self.clamp == "none" else self.clamp

    @property
    def settings(self) -> MethodSettings:
        probes = (name for entry in self.probes for name in group_probes(entry, self.interventions))
        return MethodSettings(
            relaxation=self.relaxation,
            probes=tuple(dict.fromkeys(probes)),
            extrapolation=self.extrapolation,
            entropy_threshold=self.entropy_threshold,
            forward_kl_weight=self.forward_kl_weight,
            margin_delta=self.margin_delta,
            margin_mode=self.margin_mode,
            target_correct_ratio=self.target_correct_ratio,
            deviation_threshold=self.deviation_threshold,
        )


class Student(Section):
    path: str
    """Model directory or hub id."""


class Teacher(Section):
    path: str
    engine: Literal["torch", "vllm"] = "torch"
    """torch packs batches without padding and shares prefixes; vllm is for models that are split or quantised."""
    addresses: tuple[str, ...] = ()
    """host:port of the replicas; empty = the local one at `port`."""
    port: Port = 50_051
    metrics_port: Port = 9_101
    dtype: Dtype = "float32"
    device: str = "auto"
    batch_tokens: int = Field(default=8_192, ge=1)
    """Tokens in one forward pass."""
    chunk: int = Field(default=0, ge=0)
    """Rows in one projection by the LM head; 0 = what suits the device. The scores do not depend on it."""
    tile: int = Field(default=0, ge=0)
    """Vocabulary entries in one projection by the LM head; 0 = what suits the device."""
    share_prefixes: bool = True
    """What several sequences of a batch begin with is computed once."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs that the model is split over; with the vllm engine."""
    expert_parallel: bool = False
    """Whole experts to each of these GPUs; with the vllm engine."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    cpu_kv_cache_gib: int = Field(default=1, ge=1)
    max_tokens: int = Field(default=32_768, ge=2)
    """Longest prompt + response."""
    max_contexts: int = Field(default=16, ge=1)
    max_top_k: int = Field(default=64, ge=0)
    max_waiting: int = Field(default=1_024, ge=1)
    """Requests that may wait; one more is refused with RESOURCE_EXHAUSTED."""
    canary_seconds: float = Field(default=60.0, gt=0)
    drain_seconds: float = Field(default=60.0, gt=0)
    """On SIGTERM, what accepted requests may take until they are answered."""
    deadline_seconds: float = Field(default=600.0, gt=0)
    """What a client waits for one answer."""
    threads: int = Field(default=0, ge=0)
    """CPU threads; 0 = torch's choice."""

    @model_validator(mode="after")
    def _split(self) -> "Teacher":
        if self.engine == "torch" and (self.tensor_parallel_size > 1 or self.expert_parallel):
            raise ValueError('the torch engine computes on one device: set teacher.engine = "vllm" to split a model')
        return self


class Rollout(Section):
    engine: Literal["vllm", "torch"] = "vllm"
    replicas: int = Field(default=1, ge=1)
    """Local processes that `calopd run` starts, at `port`, `port`+1, ..."""
    port: Port = 8_081
    dtype: Dtype = "float32"
    device: str = "auto"
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=16_384, ge=1)
    max_in_flight: int = Field(default=256, ge=1)
    """Tickets a replica works on at once."""
    lease_seconds: float = Field(default=30.0, gt=0)
    """A ticket whose worker has been silent for so long goes to another one."""
    max_deliveries: int = Field(default=20, ge=1)
    """A ticket that was taken up so often without a result is set aside as a dead letter."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    cpu_kv_cache_gib: int = Field(default=1, ge=1)
    threads: int = Field(default=0, ge=0)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.max_tokens)


class Learner(Section):
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
    def _groups(self) -> "Learner":
        if self.trajectories % self.samples:
            raise ValueError(f"{self.trajectories} trajectories are no multiple of {self.samples} samples a problem")
        return self


class Evaluation(Section):
    problems: int = Field(default=0, ge=0)
    """Held-out problems answered by the first and the last policy, and by every `every`-th; 0 = no evaluation."""
    every: int = Field(default=0, ge=0)
    """Steps between two evaluated policies, answered while the replicas are idle; 0 = the first and the last only."""
    samples: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.6, gt=0)
    top_p: float = Field(default=0.95, gt=0, le=1)
    max_tokens: int = Field(default=20_480, ge=1)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.max_tokens)


class Queue(Section):
    url: str = ""
    """redis://user:password@host:port/0; empty = `calopd run` starts an embedded server at `port`."""
    port: Port = 6_399
