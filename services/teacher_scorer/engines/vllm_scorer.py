"""Scoring with vLLM: tensor and expert parallel, quantised. The log-probabilities are computed inside the worker.

Stock `prompt_logprobs` runs the LM head on prompt rows too, holds [scheduled tokens, V], builds one dict per token, and
never reads the prefix cache. Here a worker extension scores the response rows in place and returns arrays.
"""

import itertools
import logging
import time
from collections import defaultdict
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import torch

from calopd.config.sections import TeacherSection
from calopd.core.errors import ConfigError
from calopd.core.lm_head import HeadScores, score_logits, score_targets
from calopd.core.types import ScoreOptions
from calopd.models.devices import choose_device, choose_dtype, dtype_name, set_vllm_environment
from calopd.models.loading import revision
from services.teacher_scorer.engines.scoring_engine import BatchScores, SequenceScores, SequenceToScore

log = logging.getLogger(__name__)

TASK = "calopd"
"""Our key among the extra arguments of a request."""


class ResponseScorer:
    """Worker extension: runs inside vLLM's worker, which is `self`."""

    def install_scorer(self) -> None:
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        stock = runner._get_prompt_logprobs_dict
        self._parts: dict[int, list[dict[str, np.ndarray]]] = defaultdict(list)

        def score_prompt_rows(hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]) -> Any:
            self._score_rows(runner, hidden_states, num_scheduled_tokens)
            return stock(hidden_states, num_scheduled_tokens)

        runner._get_prompt_logprobs_dict = score_prompt_rows

    def take_scores(self) -> dict[int, list[dict[str, np.ndarray]]]:
        """Return what was scored since the last call: the parts of each sequence in order, as dicts of arrays.

        vLLM serializes results between processes: dicts pass, classes do not.
        """
        parts, self._parts = dict(self._parts), defaultdict(list)
        return parts

    def _score_rows(self, runner: Any, hidden_states: torch.Tensor, scheduled: dict[str, int]) -> None:
        """The rows of this step that precede response tokens."""
        for name, count in scheduled.items():
            request = runner.requests[name]
            task = (request.sampling_params.extra_args or {}).get(TASK) if request.sampling_params else None
            if task is None:
                continue
            start = request.num_computed_tokens
            first = max(start, task["prompt_tokens"] - 1)
            last = min(start + count, len(request.prompt_token_ids))
            if first >= last:
                continue
            offset = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]]) - start
            targets = [*request.prompt_token_ids, task["last_id"]][first + 1 : last + 1]
            scores = _head(
                runner.model,
                hidden_states[offset + first : offset + last],
                torch.tensor(targets, device=hidden_states.device),
                ScoreOptions(**task["options"]),
            )
            if scores is not None:
                self._parts[task["key"]].append(SequenceScores.of(scores).arrays())


def _head(model: Any, hidden_TH: torch.Tensor, targets_T: torch.Tensor, options: ScoreOptions) -> HeadScores | None:
    """Scores from the head's weight if this worker has all of it, unquantized; else from the model's own logits."""
    from vllm.distributed import get_tensor_model_parallel_world_size
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    head = model.lm_head
    processor = model.logits_processor
    plain = isinstance(head.quant_method, UnquantizedEmbeddingMethod) and head.weight.ndim == 2
    if (
        plain
        and get_tensor_model_parallel_world_size() == 1
        and processor.scale == 1.0
        and processor.soft_cap is None
        and getattr(head, "bias", None) is None
    ):
        return score_targets(hidden_TH, head.weight[: processor.org_vocab_size], targets_T, options)
    # With tensor parallelism only the first rank has the logits.
    return score_logits(lambda rows: model.compute_logits(hidden_TH[rows]), targets_T, options)


class VllmScorer:
    """vLLM's synchronous engine, one batch at a time."""

    def __init__(
        self,
        path: str,
        *,
        dtype: str,
        batch_tokens: int,
        max_tokens: int,
        tensor_parallel_size: int,
        expert_parallel: bool,
        gpu_memory_utilization: float,
    ) -> None:
        import vllm
        from transformers import AutoConfig
        from vllm import EngineArgs, LLMEngine

        self.name = f"vllm {vllm.__version__}"
        self.model = path
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        self.vocabulary_size = int(config.vocab_size)
        self.max_positions = min(max_tokens, int(config.max_position_embeddings))
        self.revision = revision(path, config.to_json_string())
        settings: dict[str, Any] = {"enforce_eager": True}
        device = choose_device("auto")
        self.dtype = choose_dtype(dtype, device)
        if device.type == "cuda":
            settings = {"gpu_memory_utilization": gpu_memory_utilization}
        try:
            self._engine = LLMEngine.from_engine_args(
                EngineArgs(
                    model=path,
                    skip_tokenizer_init=True,
                    trust_remote_code=False,
                    dtype=dtype_name(self.dtype),
                    max_model_len=self.max_positions,
                    max_num_batched_tokens=batch_tokens,
                    enable_chunked_prefill=True,
                    enable_prefix_caching=True,
                    tensor_parallel_size=tensor_parallel_size,
                    enable_expert_parallel=expert_parallel,
                    worker_extension_cls=f"{__name__}.ResponseScorer",
                    **settings,
                )
            )
        except ValueError as error:
            raise ConfigError(f"teacher.path = {path!r}: vLLM cannot run it ({str(error).splitlines()[0]})") from None
        self._engine.collective_rpc("install_scorer")
        self._keys = itertools.count()

    @classmethod
    def configured(cls, teacher: TeacherSection) -> Self:
        set_vllm_environment(teacher.cpu_kv_cache_gib, teacher.threads)
        return cls(
            teacher.path,
            dtype=teacher.dtype,
            batch_tokens=teacher.batch_tokens,
            max_tokens=teacher.max_tokens,
            tensor_parallel_size=teacher.tensor_parallel_size,
            expert_parallel=teacher.expert_parallel,
            gpu_memory_utilization=teacher.gpu_memory_utilization,
        )

    def score(self, sequences: list[SequenceToScore]) -> BatchScores:
        start = time.perf_counter()
        salt = f"{next(self._keys)}"
        scores = self._pass(sequences, [salt] * len(sequences))
        # Response rows found in the prefix cache were not computed: repeat these sequences without sharing.
        lacking = [i for i, (own, s) in enumerate(zip(scores, sequences, strict=True)) if own is None]
        again = self._pass([sequences[i] for i in lacking], [f"{salt}/{i}" for i in lacking]) if lacking else []
        for i, own in zip(lacking, again, strict=True):
            scores[i] = own
        assert all(own is not None for own in scores), "vLLM finished requests without computing their rows"
        return BatchScores(
            [own for own in scores if own is not None],
            sum(sequence.tokens for sequence in sequences) - self._cached,
            forward_seconds=time.perf_counter() - start,
        )

    def _pass(self, sequences: list[SequenceToScore], salts: list[str]) -> list[SequenceScores | None]:
        """Scores of all sequences; None for those of which some rows were not computed."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        keys = [next(self._keys) for _ in sequences]
        for key, salt, sequence in zip(keys, salts, sequences, strict=True):
            task = {
                "key": key,
                "prompt_tokens": len(sequence.prompt_ids),
                "last_id": int(sequence.response_ids[-1]),
                "options": asdict(sequence.options),
            }
            self._engine.add_request(
                str(key),
                {"prompt_token_ids": sequence.read_ids.tolist(), "cache_salt": salt},
                SamplingParams(
                    max_tokens=1,
                    temperature=0,
                    detokenize=False,
                    extra_args={TASK: task},
                    output_kind=RequestOutputKind.FINAL_ONLY,
                ),
            )
        self._cached = self._run()
        parts: dict[int, list[dict[str, np.ndarray]]] = {}
        for rank in self._engine.collective_rpc("take_scores"):
            parts |= rank
        return [_joined(parts.get(key, []), len(s.response_ids)) for key, s in zip(keys, sequences, strict=True)]

    def _run(self) -> int:
        """Step until all requests are complete; return the tokens found in the prefix cache."""
        cached = 0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                cached += output.num_cached_tokens or 0
        return cached

    def reference(self, sequence: SequenceToScore) -> np.ndarray:
        """Stock prompt_logprobs."""
        from vllm import SamplingParams

        ids = np.concatenate((sequence.prompt_ids, sequence.response_ids)).tolist()
        parameters = SamplingParams(max_tokens=1, temperature=0, detokenize=False, prompt_logprobs=0)
        self._engine.add_request(str(next(self._keys)), {"prompt_token_ids": ids}, parameters)
        rows: Any = None
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                rows = output.prompt_logprobs or rows
        start = len(sequence.prompt_ids)
        values = [row[token].logprob for row, token in zip(rows[start:], ids[start:], strict=True)]
        return np.asarray(values, dtype=np.float32)


def _joined(parts: list[dict[str, np.ndarray]], tokens: int) -> SequenceScores | None:
    if sum(len(part["logprobs"]) for part in parts) != tokens:
        return None
    return SequenceScores.joined([SequenceScores(**part) for part in parts])
