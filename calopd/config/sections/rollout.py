"""[rollout]: how the student's responses are sampled."""

from pathlib import Path

from pydantic import Field

from calopd.config.sections.base import Port
from calopd.config.sections.sampling import SamplingKeys
from calopd.core.options import Dtype, Sampler


class RolloutSection(SamplingKeys):
    """How responses are sampled, and the replicas that do it."""

    engine: Sampler = "vllm"
    """Sampler: `"vllm"`, or `"torch"` for a machine without vLLM (slow; for tests); `"emulated"` samples nothing, see
    `[emulation]`."""
    replicas: int = Field(default=1, ge=1)
    """Number of rollout processes that `calopd run` starts, at `port`, `port` + 1 and so on. It follows from
    `resources.rollout` if that is set."""
    port: Port = 8_081
    """HTTP port of the first replica: health, status and metrics."""
    dtype: Dtype = "auto"
    """Data type of the weights while sampling; `"auto"` = bfloat16 on a GPU, float32 on a CPU."""
    device: str = "auto"
    """Torch device; `"auto"` = a GPU if there is one, else the CPU. Torch engine only."""
    max_in_flight: int = Field(default=0, ge=0)
    """Responses that a replica samples at once; it claims no more, and no more than its share of a step. Raise it if
    the GPU is not busy, lower it if responses are preempted; 0 = as many as the KV cache of `resources.gpu` holds at
    their mean length, at most 256."""
    max_num_batched_tokens: int = Field(default=0, ge=0)
    """Tokens that vLLM processes in one step, prompts and one per response; a longer prompt is split. Raise it if
    prompts are long and the GPU has memory left; on a CPU it is at least the longest prompt and response. 0 = 8,192, or
    less on a small GPU."""
    lease_seconds: float = Field(default=30.0, gt=0)
    """Seconds without a sign of life from a worker after which its tickets go to another one."""
    max_failures: int = Field(default=20, ge=1)
    """Number of attempts at a ticket that may end with an error before it is dead-lettered. A ticket that was handed
    out twice without a result is sampled alone from then on; one whose process ends three times while it is alone is
    dead-lettered, too."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    """Share of a GPU's memory that vLLM may use. Lower it if another process uses the same GPU."""
    kv_cache_gib: float = Field(default=0.0, ge=0)
    """Size of vLLM's KV cache on each GPU, in GiB; 0 = what `gpu_memory_utilization` leaves, as vLLM measures it. If
    another role uses the same GPU, that would count as vLLM's what the other allocates meanwhile: then 0 = what
    remains of the share of `resources.gpu` by arithmetic."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Number of GPUs that one replica splits the student over. vLLM engine only."""
    cpu_kv_cache_gib: int = Field(default=1, ge=1)
    """Size of vLLM's KV cache when it runs on a CPU, in GiB."""
    policy_cache: Path | None = None
    """Folder for a replica's own copy of the policy, if policies are published as changes; unset = the temporary folder
    of the system. A tmpfs spares the disk."""
    threads: int = Field(default=0, ge=0)
    """CPU threads of each replica; 0 = the default of torch, and all cores with vLLM on a CPU."""
