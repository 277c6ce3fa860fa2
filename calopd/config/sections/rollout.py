"""[rollout]"""

from typing import Literal

from pydantic import Field

from calopd.config.sections.base import Dtype, Port, Section
from calopd.core.types import Sampling


class RolloutSection(Section):
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
