"""[teacher]"""

from typing import Literal

from pydantic import Field, model_validator

from calopd.config.sections.base import Dtype, Port, Section


class TeacherSection(Section):
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
    def _split(self) -> "TeacherSection":
        if self.engine == "torch" and (self.tensor_parallel_size > 1 or self.expert_parallel):
            raise ValueError('the torch engine computes on one device: set teacher.engine = "vllm" to split a model')
        return self
