"""Scoring with vLLM: tensor and expert parallel, quantised. Its workers score the rows (`response_scorer`)."""

import itertools
import logging
import time
from typing import Any, Self

import numpy as np

from calopd.config.sections import TeacherSection
from calopd.core.errors import ConfigError
from calopd.models.devices import choose_device, choose_dtype, dtype_name, set_batch_invariant, set_vllm_environment
from calopd.models.loading import revision
from calopd.models.vllm_interface import float32_logits
from services.teacher_scorer.engines.response_scorer import ResponseScorer, ScoringTask, joined_scores
from services.teacher_scorer.engines.scoring_engine import BatchScores, SequenceScores, SequenceToScore

log = logging.getLogger(__name__)


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
        kv_cache_gib: float = 0.0,
        quantization: str = "",
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
            if kv_cache_gib:
                settings |= {"kv_cache_memory_bytes": int(kv_cache_gib * 2**30)}
            # Stock logits, which the canary compares with.
            settings |= {} if quantization else float32_logits(config)
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
                    quantization=quantization or None,
                    worker_extension_cls=f"{ResponseScorer.__module__}.{ResponseScorer.__qualname__}",
                    **settings,
                )
            )
        except ValueError as error:
            raise ConfigError(f"teacher.path = {path!r}: vLLM cannot run it ({str(error).splitlines()[0]})") from None
        installed = self._engine.collective_rpc("install_scorer")[0]
        self.runner, self.float32_logits = str(installed["runner"]), bool(installed["float32_logits"])
        logits = "float32" if self.float32_logits else dtype_name(self.dtype)
        log.info("teacher %s: Model Runner %s, logits in %s", path, self.runner, logits)
        self._keys = itertools.count()

    @classmethod
    def configured(cls, teacher: TeacherSection, *, deterministic: bool = False) -> Self:
        if deterministic:
            set_batch_invariant("teacher.engine")
        set_vllm_environment(teacher.cpu_kv_cache_gib, teacher.threads)
        return cls(
            teacher.path,
            dtype=teacher.dtype,
            batch_tokens=teacher.batch_tokens,
            max_tokens=teacher.max_tokens,
            tensor_parallel_size=teacher.tensor_parallel_size,
            expert_parallel=teacher.expert_parallel,
            gpu_memory_utilization=teacher.gpu_memory_utilization,
            kv_cache_gib=teacher.kv_cache_gib,
            quantization=teacher.quantization,
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
            self._engine.add_request(
                str(key),
                {"prompt_token_ids": sequence.read_ids.tolist(), "cache_salt": salt},
                SamplingParams(
                    max_tokens=1,
                    temperature=0,
                    detokenize=False,
                    extra_args=ScoringTask.of(key, sequence).to_extra_args(),
                    output_kind=RequestOutputKind.FINAL_ONLY,
                ),
            )
        self._cached = self._run()
        scores: dict[int, SequenceScores] = {}
        for taken in self._engine.collective_rpc("take_scores"):
            scores |= joined_scores(taken)
        found = (scores.get(key) for key in keys)
        return [
            own if own is not None and len(own.logprobs) == len(sequence.response_ids) else None
            for own, sequence in zip(found, sequences, strict=True)
        ]

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
