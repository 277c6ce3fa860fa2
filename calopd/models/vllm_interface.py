"""The parts of vLLM outside its public interface that the engines touch, listed in one place.

vLLM may rename any of them in any release. The engines check them when they start, and a test compares them with vLLM's
source, including the code that runs on GPUs only.
"""

from dataclasses import dataclass
from typing import Any

from calopd.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Touched:
    """Attributes and methods of a class of vLLM."""

    file: str
    """Relative to the package."""
    owner: str
    """Name of the class."""
    names: tuple[str, ...]
    checked: bool = True
    """Whether an object is there to check at the start; else the source alone is compared."""


WORKER = Touched("v1/worker/worker_base.py", "WorkerBase", ("model_runner",))
RUNNER_V1 = Touched(
    "v1/worker/gpu_model_runner.py",
    "GPUModelRunner",
    ("_get_prompt_logprobs_dict", "get_model", "input_batch", "query_start_loc", "reload_weights", "requests"),
)
BATCH_V1 = Touched("v1/worker/gpu_input_batch.py", "InputBatch", ("req_id_to_index",))
REQUEST_V1 = Touched(
    "v1/worker/gpu_input_batch.py", "CachedRequestState", ("num_computed_tokens", "sampling_params"), checked=False
)
RUNNER_V2 = Touched(
    "v1/worker/gpu/model_runner.py", "GPUModelRunner", ("get_model", "prompt_logprobs_worker", "reload_weights")
)
PROMPT_LOGPROBS_V2 = Touched(
    "v1/worker/gpu/sample/prompt_logprob.py",
    "PromptLogprobsWorker",
    ("add_request", "compute_prompt_logprobs", "remove_request"),
)
BATCH_V2 = Touched(
    "v1/worker/gpu/input_batch.py",
    "InputBatch",
    ("num_computed_prefill_tokens_np", "num_scheduled_tokens", "query_start_loc_np", "req_ids"),
    checked=False,
)
HEAD = Touched(
    "model_executor/layers/vocab_parallel_embedding.py",
    "VocabParallelEmbedding",
    ("quant_method", "shard_indices", "tp_rank", "tp_size"),
)
SHARD = Touched(
    "model_executor/layers/vocab_parallel_embedding.py",
    "VocabParallelEmbeddingShardIndices",
    ("num_org_elements", "org_vocab_start_index"),
)
LOGITS_PROCESSOR = Touched("model_executor/layers/logits_processor.py", "LogitsProcessor", ("scale", "soft_cap"))

TOUCHED = (
    WORKER, RUNNER_V1, BATCH_V1, REQUEST_V1, RUNNER_V2, PROMPT_LOGPROBS_V2, BATCH_V2, HEAD, SHARD, LOGITS_PROCESSOR,
)  # fmt: skip


def require(owner: Any, touched: Touched) -> Any:
    """Return `owner`; raise if it lacks an attribute that the engines need."""
    missing = [name for name in touched.names if not hasattr(owner, name)]
    if missing:
        raise ConfigError(
            f"{type(owner).__name__} of the installed vLLM has no {', '.join(missing)} (expected of {touched.owner} in "
            f'vllm/{touched.file}): install the version of vLLM that pyproject.toml names, or use engine = "torch"'
        )
    return owner


def float32_logits(config: Any) -> dict[str, Any]:
    """Settings of an engine whose LM head computes in float32; none for a quantised model, where vLLM refuses it."""
    if getattr(config, "quantization_config", None):
        return {}
    return {"hf_overrides": {"head_dtype": "float32"}}
