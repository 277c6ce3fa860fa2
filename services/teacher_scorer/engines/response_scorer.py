"""Scoring of response rows inside vLLM's workers, for its Model Runners V1 (CPU) and V2 (GPU).

Stock `prompt_logprobs` runs the LM head on prompt rows too, holds [scheduled tokens, V], builds one dict per token, and
never reads the prefix cache. Here the hidden states of response rows are scored where vLLM would compute prompt
log-probabilities, and the scores are fetched once per batch.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from safetensors.numpy import load, save

from calopd.core.errors import ConfigError
from calopd.core.head_tiles import tile_shape
from calopd.core.lm_head import HeadScores, score_logits, score_sharded
from calopd.core.types import ScoreOptions
from calopd.models import vllm_interface
from calopd.models.vllm_interface import require
from services.teacher_scorer.engines.scoring_engine import SequenceScores, SequenceToScore

TASK = "calopd"
"""Our key among the extra arguments of a request."""

Head = Callable[[torch.Tensor, torch.Tensor, ScoreOptions], HeadScores | None]


@dataclass(frozen=True, slots=True)
class ScoringTask:
    """The response of a request that is to be scored; it travels to the workers as plain values."""

    key: int
    prompt_tokens: int
    response_ids: bytes
    """int32."""
    options: dict[str, Any]

    @classmethod
    def of(cls, key: int, sequence: SequenceToScore) -> Self:
        ids = sequence.response_ids.astype(np.int32).tobytes()
        return cls(key, len(sequence.prompt_ids), ids, asdict(sequence.options))

    def to_extra_args(self) -> dict[str, Any]:
        return {TASK: asdict(self)}

    @classmethod
    def from_sampling(cls, parameters: Any) -> Self | None:
        values = (parameters.extra_args or {}).get(TASK) if parameters is not None else None
        return cls(**{field.name: values[field.name] for field in fields(cls)}) if values else None


class RowScorer:
    """Scores rows of hidden states and keeps the results until they are fetched."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._parts: dict[int, dict[int, HeadScores]] = defaultdict(dict)
        """Of each sequence: the scores from a response token on, in order."""

    def add(self, task: ScoringTask, start: int, hidden_TH: torch.Tensor) -> None:
        """Score those of the rows from position `start` on that precede a response token."""
        targets = np.frombuffer(task.response_ids, np.int32)
        before = task.prompt_tokens - 1 - start
        """Rows of the prompt: the last one predicts the first response token."""
        rows = hidden_TH[max(before, 0) :]
        first = max(-before, 0)
        wanted = torch.tensor(targets[first : first + len(rows)], dtype=torch.long, device=hidden_TH.device)
        if not len(wanted):
            return
        scores = self._head(rows[: len(wanted)], wanted, ScoreOptions(**task.options))
        if scores is None:
            return
        # A preempted request is computed again from its beginning.
        own = self._parts[task.key]
        self._parts[task.key] = {at: part for at, part in own.items() if at < first} | {first: scores}

    def take(self) -> bytes:
        """Return and forget all scores, as safetensors: arrays do not survive vLLM's serialization, bytes do."""
        parts, self._parts = self._parts, defaultdict(dict)
        arrays = {
            f"{key}.{first}.{name}": np.ascontiguousarray(array)
            for key, own in parts.items()
            for first, scores in own.items()
            for name, array in SequenceScores.of(scores).arrays().items()
        }
        return save(arrays)


def joined_scores(taken: bytes) -> dict[int, SequenceScores]:
    """The scores of each sequence by key; parts that leave a gap are left out, and so the sequence is too short."""
    parts: dict[int, dict[int, dict[str, np.ndarray]]] = defaultdict(lambda: defaultdict(dict))
    for name, array in load(taken).items():
        key, first, field = name.split(".")
        parts[int(key)][int(first)][field] = array
    found = {}
    for key, own in parts.items():
        ordered: list[SequenceScores] = []
        for first in sorted(own):
            if first == sum(len(part.logprobs) for part in ordered):
                ordered.append(SequenceScores(**own[first]))
        if ordered:
            found[key] = SequenceScores.joined(ordered)
    return found


def attach_v1(runner: Any, rows: RowScorer) -> None:
    """Score in the step that computes prompt log-probabilities, which Model Runner V1 makes for every batch."""
    require(runner, vllm_interface.RUNNER_V1)
    require(runner.input_batch, vllm_interface.BATCH_V1)
    stock = runner._get_prompt_logprobs_dict

    def score_first(hidden_states: torch.Tensor, scheduled: Mapping[str, int]) -> Any:
        for name, count in scheduled.items():
            request = runner.requests[name]
            if task := ScoringTask.from_sampling(request.sampling_params):
                row = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]])
                rows.add(task, request.num_computed_tokens, hidden_states[row : row + count])
        return stock(hidden_states, scheduled)

    runner._get_prompt_logprobs_dict = score_first


def attach_v2(runner: Any, rows: RowScorer) -> None:
    """The same for Model Runner V2, whose worker for prompt log-probabilities learns of every request."""
    worker = require(runner, vllm_interface.RUNNER_V2).prompt_logprobs_worker
    require(worker, vllm_interface.PROMPT_LOGPROBS_V2)
    tasks: dict[str, ScoringTask] = {}
    stock_add, stock_remove, stock_compute = worker.add_request, worker.remove_request, worker.compute_prompt_logprobs

    def add_request(name: str, index: int, parameters: Any) -> None:
        stock_add(name, index, parameters)
        if task := ScoringTask.from_sampling(parameters):
            tasks[name] = task

    def remove_request(name: str) -> None:
        stock_remove(name)
        tasks.pop(name, None)

    def score_first(logits: Any, hidden_states: torch.Tensor, batch: Any, *rest: Any) -> Any:
        for i, name in enumerate(batch.req_ids):
            if task := tasks.get(name):
                row, count = int(batch.query_start_loc_np[i]), int(batch.num_scheduled_tokens[i])
                rows.add(task, int(batch.num_computed_prefill_tokens_np[i]), hidden_states[row : row + count])
        return stock_compute(logits, hidden_states, batch, *rest)

    worker.add_request, worker.remove_request, worker.compute_prompt_logprobs = add_request, remove_request, score_first


def choose_head(model: Any) -> tuple[Head, bool]:
    """The way from hidden states to scores, and whether its logits are float32.

    A plain head, split over GPUs or not, is projected in float32 from its weight. Any other (quantised, scaled, capped)
    gives the logits of the model, in the data type of the model.
    """
    from vllm.distributed import tensor_model_parallel_all_gather
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    lm_head = require(model.lm_head, vllm_interface.HEAD)
    shard = require(lm_head.shard_indices, vllm_interface.SHARD)
    processor = require(model.logits_processor, vllm_interface.LOGITS_PROCESSOR)

    def from_weight(hidden_TH: torch.Tensor, targets_T: torch.Tensor, options: ScoreOptions) -> HeadScores | None:
        rows, tile = tile_shape(on_cuda=hidden_TH.is_cuda)
        scores = score_sharded(
            hidden_TH,
            lm_head.weight[: shard.num_org_elements],
            targets_T,
            options,
            first=shard.org_vocab_start_index,
            all_gather=tensor_model_parallel_all_gather if lm_head.tp_size > 1 else lambda columns: columns,
            rows=rows,
            tile=tile,
        )
        return scores if lm_head.tp_rank == 0 else None

    def from_logits(hidden_TH: torch.Tensor, targets_T: torch.Tensor, options: ScoreOptions) -> HeadScores | None:
        # With tensor parallelism only the first rank may have the logits, and its scores are enough.
        scores = score_logits(lambda rows: model.compute_logits(hidden_TH[rows]), targets_T, options)
        return scores if lm_head.tp_rank == 0 else None

    plain = isinstance(lm_head.quant_method, UnquantizedEmbeddingMethod | UnquantizedLinearMethod)
    unchanged = processor.scale == 1.0 and processor.soft_cap is None and getattr(lm_head, "bias", None) is None
    if plain and unchanged and lm_head.weight.ndim == 2:
        return from_weight, True
    return from_logits, False


class ResponseScorer:
    """Worker extension: vLLM adds these methods to its worker, which is `self`."""

    def install_scorer(self) -> dict[str, Any]:
        """Attach the scorer to this worker's model runner, and say to which."""
        runner: Any = require(self, vllm_interface.WORKER).model_runner
        head, float32_logits = choose_head(runner.get_model())
        self._response_rows = RowScorer(head)
        if hasattr(runner, "prompt_logprobs_worker"):
            attach_v2(runner, self._response_rows)
            return {"runner": "V2", "float32_logits": float32_logits}
        if hasattr(runner, "_get_prompt_logprobs_dict"):
            attach_v1(runner, self._response_rows)
            return {"runner": "V1", "float32_logits": float32_logits}
        raise ConfigError(
            f"vLLM's {type(runner).__qualname__} is neither Model Runner V1 nor V2: see vllm_interface.py"
        )

    def take_scores(self) -> bytes:
        return self._response_rows.take()
