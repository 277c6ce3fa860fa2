"""Sampling with vLLM: continuous batching, one seed per request, live weight updates."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from calopd.config.sections import RolloutSection
from calopd.core.errors import EngineFailed
from calopd.core.types import Sampling
from calopd.models import vllm_interface
from calopd.models.devices import choose_device, choose_dtype, dtype_name, set_batch_invariant, set_vllm_environment
from calopd.models.vllm_interface import float32_logits, require
from services.rollout.engines.sampling_engine import Finished, SampleRequest

log = logging.getLogger(__name__)


class PolicyLoader:
    """Worker extension: runs inside vLLM's worker, which is `self`."""

    def check_runner(self) -> None:
        runner: Any = require(self, vllm_interface.WORKER).model_runner
        v2 = hasattr(runner, "prompt_logprobs_worker")
        require(runner, vllm_interface.RUNNER_V2 if v2 else vllm_interface.RUNNER_V1)

    def load_policy(self, directory: str) -> None:
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        runner: Any = require(self, vllm_interface.WORKER).model_runner
        with _expected_warnings_hidden(runner.get_model()):
            runner.reload_weights(weights_path=directory)
        # On CPU the LM head is a packed copy. With tied embeddings no tensor of a checkpoint has its name, so that
        # without this the old head would be used without any error.
        for module in runner.get_model().modules():
            if isinstance(module, ParallelLMHead) and hasattr(module, "quant_method"):
                module.quant_method.process_weights_after_loading(module)


@contextmanager
def _expected_warnings_hidden(model: Any) -> Iterator[None]:
    """Hide "Failed to load weights" of layers without tensors in a policy: tables of positions, a tied LM head."""
    tied = bool(getattr(getattr(model, "config", None), "tie_word_embeddings", False))

    def unexpected(record: logging.LogRecord) -> bool:
        layer = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        expected = layer.endswith("RotaryEmbedding") or (tied and layer == "ParallelLMHead")
        return not (expected and "Failed to load weights" in record.msg)

    reload_log = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    reload_log.addFilter(unexpected)
    try:
        yield
    finally:
        reload_log.removeFilter(unexpected)


class VllmSampler:
    """vLLM's synchronous engine."""

    def __init__(
        self,
        path: str,
        *,
        stop_ids: list[int],
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        dtype: str,
        seed: int,
        tensor_parallel_size: int,
        gpu_memory_utilization: float,
        kv_cache_gib: float = 0.0,
    ) -> None:
        import vllm
        from transformers import AutoConfig
        from vllm import EngineArgs, LLMEngine

        device = choose_device("auto")
        settings: dict[str, Any] = {}
        if device.type == "cpu":
            # A seeded request crashes the CPU engine if its prefill is split.
            settings |= {"enforce_eager": True, "enable_chunked_prefill": False}
            max_num_batched_tokens = max(max_num_batched_tokens, max_model_len)
        else:
            settings |= {"gpu_memory_utilization": gpu_memory_utilization}
            if kv_cache_gib:
                settings |= {"kv_cache_memory_bytes": int(kv_cache_gib * 2**30)}
            # As the learner computes them: in bfloat16 a logit near 24 is off by up to 0.06.
            settings |= float32_logits(AutoConfig.from_pretrained(path, trust_remote_code=False))
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=path,
                skip_tokenizer_init=True,
                load_format="safetensors",
                trust_remote_code=False,
                dtype=dtype_name(choose_dtype(dtype, device)),
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                seed=seed,
                tensor_parallel_size=tensor_parallel_size,
                worker_extension_cls=f"{__name__}.PolicyLoader",
                **settings,
            )
        )
        self._engine.collective_rpc("check_runner")
        self._stop_ids = stop_ids
        self.name = f"vllm {vllm.__version__}"

    @classmethod
    def configured(
        cls,
        path: str,
        rollout: RolloutSection,
        *,
        stop_ids: list[int],
        max_model_len: int,
        seed: int,
        deterministic: bool = False,
    ) -> Self:
        if deterministic:
            set_batch_invariant("rollout.engine")
        set_vllm_environment(rollout.cpu_kv_cache_gib, rollout.threads)
        return cls(
            path,
            stop_ids=stop_ids,
            max_model_len=max_model_len,
            max_num_seqs=rollout.max_in_flight,
            max_num_batched_tokens=rollout.max_num_batched_tokens,
            dtype=rollout.dtype,
            seed=seed,
            tensor_parallel_size=rollout.tensor_parallel_size,
            gpu_memory_utilization=rollout.gpu_memory_utilization,
            kv_cache_gib=rollout.kv_cache_gib,
        )

    def add(self, key: int, request: SampleRequest) -> None:
        prompt = {"prompt_token_ids": request.prompt_ids.tolist()}
        self._engine.add_request(str(key), prompt, sampling_params(request.sampling, request.seed, self._stop_ids))

    def step(self) -> list[Finished]:
        finished = []
        for output in self._engine.step():
            if not output.finished:
                continue
            completion = output.outputs[0]
            ids = np.asarray(completion.token_ids, dtype=np.int32)
            logprobs = [
                row[token].logprob for row, token in zip(completion.logprobs, completion.token_ids, strict=True)
            ]
            finished.append(
                Finished(
                    int(output.request_id),
                    ids,
                    np.asarray(logprobs, dtype=np.float32),
                    truncated=completion.finish_reason == "length",
                )
            )
        return finished

    def abort(self, keys: set[int]) -> None:
        if keys:
            self._engine.abort_request([str(key) for key in keys])

    def load(self, directory: Path) -> None:
        self._engine.collective_rpc("load_policy", args=(str(directory.resolve()),))
        reset_prefix_cache(self._engine)


def reset_prefix_cache(engine: Any) -> None:
    """Forget the keys and values of the old weights; raise if vLLM keeps them, since they would be sampled from.

    vLLM refuses while a block is in use. No request of ours is left, but an aborted one may still be in its last step:
    the second attempt preempts whatever runs.
    """
    if engine.reset_prefix_cache():
        return
    log.warning("vLLM did not reset its prefix cache; retrying after preempting what still runs")
    if not engine.reset_prefix_cache(reset_running_requests=True):
        raise EngineFailed("vLLM did not reset its prefix cache after a policy update: the policy is loaded again")


def sampling_params(sampling: Sampling, seed: int, stop_ids: list[int]) -> Any:
    """Return vLLM's SamplingParams."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        seed=seed,
        logprobs=0,
        detokenize=False,
        stop_token_ids=stop_ids,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
