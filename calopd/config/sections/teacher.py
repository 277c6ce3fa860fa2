"""[teacher]: the model that scores the responses, and its service."""

from typing import Literal

from pydantic import Field, model_validator

from calopd.config.sections.base import Fixed, Port, Section
from calopd.core.options import Dtype


class TeacherSection(Section):
    """The model that scores the responses, and its service."""

    path: Fixed[str]
    """Directory of the model or its id on the Hugging Face hub. Its vocabulary must be the student's."""
    engine: Literal["torch", "vllm", "emulated"] = "torch"
    """`"torch"` packs batches without padding and computes shared prefixes once, on one device. Use `"vllm"` for a
    model that is quantized or split over several GPUs; `"emulated"` scores nothing, see `[emulation]`."""
    addresses: tuple[str, ...] = ()
    """`host:port` of the teacher replicas, used in turn; empty = `calopd run` starts `replicas` of them."""
    replicas: int = Field(default=1, ge=1)
    """Number of teacher processes that `calopd run` starts, at `port`, `port` + 1 and so on. It follows from
    `resources.teacher` if that is set."""
    port: Port = 50_051
    """gRPC port of the first replica."""
    metrics_port: Port = 9_101
    """HTTP port of the first replica's Prometheus metrics; `metrics_port` + 1 is the second replica's, and so on."""
    dtype: Dtype = "auto"
    """Data type of the weights and of the forward pass; `"auto"` = bfloat16 on a GPU, float32 on a CPU."""
    device: str = "auto"
    """Torch device, for example `"cuda:1"`; `"auto"` = a GPU if there is one, else the CPU. Torch engine only."""
    batch_tokens: int = Field(default=8_192, ge=1)
    """Maximum number of tokens in one forward pass. Raise it to use a GPU better, lower it if memory runs out."""
    chunk: int = Field(default=0, ge=0)
    """Tokens that the LM head projects at once; 0 = a value that suits the device. It affects memory and speed, not the
    scores. Torch engine only."""
    tile: int = Field(default=0, ge=0)
    """Vocabulary entries that the LM head projects at once; 0 = a value that suits the device. Torch engine only."""
    share_prefixes: bool = True
    """Compute a prefix that several sequences of a batch share only once. Torch engine only."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Number of GPUs that the model is split over. vLLM engine only."""
    expert_parallel: bool = False
    """Place whole experts on each of these GPUs instead of splitting every expert. vLLM engine only."""
    quantization: str = ""
    """Quantisation of the weights while they are loaded, such as `"fp8"`; a name of vLLM. Empty = as the model's files
    are: models that are stored quantised (AWQ, GPTQ, FP8) need no setting. vLLM engine only."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    """Share of a GPU's memory that vLLM may use. Lower it if another process uses the same GPU."""
    kv_cache_gib: float = Field(default=0.0, ge=0)
    """Size of vLLM's KV cache on each GPU, in GiB; 0 = what `gpu_memory_utilization` leaves. On a GPU that another role
    uses too, 0 = what remains of that share by arithmetic."""
    cpu_kv_cache_gib: int = Field(default=1, ge=1)
    """Size of vLLM's KV cache when it runs on a CPU, in GiB."""
    max_tokens: int = Field(default=32_768, ge=2)
    """Maximum length of prompt and response together, in tokens. A longer request is refused: set it to at least
    `data.max_context_tokens` + `rollout.max_tokens`."""
    max_contexts: int = Field(default=16, ge=1)
    """Maximum number of contexts in one request. Raise it for a study with more contexts."""
    max_top_k: int = Field(default=64, ge=0)
    """Maximum number of most likely tokens that a request may ask for at each position."""
    max_waiting: int = Field(default=1_024, ge=1)
    """Maximum number of waiting requests. Further ones are refused with RESOURCE_EXHAUSTED; the client retries."""
    canary_seconds: float = Field(default=60.0, gt=0)
    """Seconds between two checks of the teacher on a known text. A teacher that fails refuses requests until it
    passes again. A check fails, too, if it takes longer than this and than 30 seconds: it waits for the batch that is
    being scored, so a teacher whose batches (`batch_tokens`) take longer needs more seconds."""
    drain_seconds: float = Field(default=60.0, gt=0)
    """Seconds that accepted requests may take after SIGTERM before the process exits."""
    deadline_seconds: float = Field(default=600.0, gt=0)
    """Seconds that a client waits for one answer. Raise it if long responses time out on a slow teacher."""
    threads: int = Field(default=0, ge=0)
    """CPU threads of the process; 0 = the default of torch."""

    @model_validator(mode="after")
    def _split(self) -> "TeacherSection":
        if self.engine == "torch" and (self.tensor_parallel_size > 1 or self.expert_parallel):
            raise ValueError('the torch engine computes on one device: set teacher.engine = "vllm" to split a model')
        if self.engine == "torch" and self.quantization:
            raise ValueError(f'the torch engine has no {self.quantization}: set teacher.engine = "vllm" to quantise')
        return self
