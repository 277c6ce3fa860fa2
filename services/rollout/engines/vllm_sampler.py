"""Sampling with vLLM: continuous batching, a seed a request, live weight updates."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.rollout.sampler import Finished, SampleRequest

log = logging.getLogger(__name__)


class PolicyLoader:
    """Worker extension: runs inside vLLM's worker, which is `self`."""

    def load_policy(self, directory: str) -> None:
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        runner: Any = self.model_runner  # type: ignore[attr-defined]
        runner.reload_weights(weights_path=directory)
        # On CPU the LM head is a packed copy, and with tied embeddings no tensor of a checkpoint bears its name:
        # without this the old head would stay, off by nats and with no error.
        for module in runner.model.modules():
            if isinstance(module, ParallelLMHead) and hasattr(module, "quant_method"):
                module.quant_method.process_weights_after_loading(module)


class VllmBackend:
    """vLLM's synchronous engine, stepped by our thread."""

    def __init__(
        self,
        path: str,
        *,
        stop_ids: list[int],
        max_model_len: int,
        max_num_seqs: int,
        dtype: str,
        seed: int,
        tensor_parallel_size: int,
        gpu_memory_utilization: float,
    ) -> None:
        import vllm
        from vllm import EngineArgs, LLMEngine

        on_cpu = not torch.cuda.is_available()
        settings: dict[str, Any] = {}
        if on_cpu:
            # A seeded request crashes the CPU engine when its prefill is cut in two.
            settings |= {"enforce_eager": True, "enable_chunked_prefill": False}
            settings |= {"max_num_batched_tokens": max(8_192, max_model_len)}
        else:
            settings |= {"gpu_memory_utilization": gpu_memory_utilization}
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=path,
                skip_tokenizer_init=True,
                load_format="safetensors",
                trust_remote_code=False,
                dtype=dtype,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                seed=seed,
                tensor_parallel_size=tensor_parallel_size,
                worker_extension_cls=f"{__name__}.PolicyLoader",
                **settings,
            )
        )
        self._stop_ids = stop_ids
        self.name = f"vllm {vllm.__version__}"

    def add(self, key: int, request: SampleRequest) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        self._engine.add_request(
            str(key),
            {"prompt_token_ids": request.prompt_ids.tolist()},
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=request.seed,
                logprobs=0,
                detokenize=False,
                stop_token_ids=self._stop_ids,
                output_kind=RequestOutputKind.FINAL_ONLY,
            ),
        )

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
        # Without this, generation goes on from key-value pairs of the old weights.
        self._engine.reset_prefix_cache()
