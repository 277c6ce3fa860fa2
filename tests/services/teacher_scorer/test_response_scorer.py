"""The scorer inside vLLM's workers: which rows it scores, for both model runners, and how its results travel."""

import ast
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

from calopd.core.errors import ConfigError
from calopd.core.lm_head import score_targets
from calopd.core.types import ScoreOptions
from calopd.models.vllm_interface import BATCH_V2, TOUCHED, Touched, require
from services.teacher_scorer.engines.response_scorer import (
    ResponseScorer,
    RowScorer,
    ScoringTask,
    attach_v1,
    attach_v2,
    joined_scores,
)
from services.teacher_scorer.engines.scoring_engine import SequenceToScore
from tests.gpu.vllm_source import defined_names, names_of_class

H, V = 8, 50
WEIGHT = torch.randn(V, H, generator=torch.Generator().manual_seed(0))
PROMPT, RESPONSE = 5, 9
SEQUENCE = SequenceToScore(
    np.arange(PROMPT, dtype=np.int32), np.arange(30, 30 + RESPONSE, dtype=np.int32), ScoreOptions(3, True)
)
HIDDEN = torch.randn(SEQUENCE.tokens, H, generator=torch.Generator().manual_seed(1))
EXPECTED = score_targets(
    HIDDEN[PROMPT - 1 :], WEIGHT, torch.from_numpy(SEQUENCE.response_ids.astype(np.int64)), SEQUENCE.options
)


def scorer() -> RowScorer:
    return RowScorer(lambda hidden, targets, options: score_targets(hidden, WEIGHT, targets, options))


def parameters(key: int = 7) -> SamplingParams:
    return SamplingParams(max_tokens=1, extra_args=ScoringTask.of(key, SEQUENCE).to_extra_args())


def check(rows: RowScorer, key: int = 7) -> None:
    scores = joined_scores(rows.take())[key]
    assert np.allclose(scores.logprobs, EXPECTED.logprobs, atol=1e-6)
    assert np.allclose(scores.entropy, EXPECTED.entropy, atol=1e-6)
    assert np.array_equal(scores.top_ids, EXPECTED.top_ids)
    assert not joined_scores(rows.take())


@pytest.mark.parametrize("cuts", [[], [4], [5], [1, 5, 6], [3, 9]])
def test_the_rows_before_response_tokens_are_scored_however_the_prefill_is_cut(cuts):
    rows, task = scorer(), ScoringTask.of(7, SEQUENCE)
    for start, end in zip([0, *cuts], [*cuts, len(HIDDEN)], strict=True):
        rows.add(task, start, HIDDEN[start:end])
    check(rows)


def test_a_prompt_from_the_prefix_cache_is_no_loss_and_response_rows_from_it_show():
    rows, task = scorer(), ScoringTask.of(7, SEQUENCE)
    rows.add(task, PROMPT - 1, HIDDEN[PROMPT - 1 :])
    check(rows)
    rows.add(task, PROMPT + 2, HIDDEN[PROMPT + 2 :])
    assert 7 not in joined_scores(rows.take())


def test_a_preempted_request_is_scored_again_and_counted_once():
    rows, task = scorer(), ScoringTask.of(7, SEQUENCE)
    for start, end in ((0, 6), (6, 8), (0, 7), (7, len(HIDDEN))):
        rows.add(task, start, HIDDEN[start:end])
    check(rows)


def runner_v2():
    """Model Runner V2's real worker for prompt log-probabilities, in a runner that has only what we may touch."""
    worker = PromptLogprobsWorker(4, torch.device("cpu"))
    return SimpleNamespace(get_model=None, reload_weights=None, prompt_logprobs_worker=worker)


def batch_v2(names, start, counts):
    """A batch that has only what we may touch, and what the stock worker reads."""
    values = {
        "req_ids": names,
        "num_scheduled_tokens": np.asarray(counts),
        "num_computed_prefill_tokens_np": np.asarray(start),
        "query_start_loc_np": np.cumsum([0, *counts]),
    }
    assert set(values) == set(BATCH_V2.names)
    return SimpleNamespace(**values, idx_mapping_np=np.arange(len(names)))


def test_model_runner_v2_scores_marked_requests_among_others():
    runner, rows = runner_v2(), scorer()
    attach_v2(runner, rows)
    worker = runner.prompt_logprobs_worker
    worker.add_request("other", 0, SamplingParams(max_tokens=1))
    worker.add_request("ours", 1, parameters())
    noise = torch.randn(3, H)
    for start, end in ((0, 6), (6, len(HIDDEN))):
        batch = batch_v2(["other", "ours"], [0, start], [3, end - start])
        found = worker.compute_prompt_logprobs(None, torch.cat((noise, HIDDEN[start:end])), batch, None, None, None)
        assert found == {}
    check(rows)
    worker.remove_request("ours")
    worker.compute_prompt_logprobs(None, HIDDEN, batch_v2(["ours"], [0], [len(HIDDEN)]), None, None, None)
    assert not joined_scores(rows.take())


def test_model_runner_v1_scores_marked_requests_among_others():
    requests = {
        "other": SimpleNamespace(sampling_params=SamplingParams(max_tokens=1), num_computed_tokens=0),
        "pooling": SimpleNamespace(sampling_params=None, num_computed_tokens=0),
        "ours": SimpleNamespace(sampling_params=parameters(), num_computed_tokens=2),
    }
    runner = SimpleNamespace(
        _get_prompt_logprobs_dict=lambda hidden, scheduled: "stock",
        get_model=None,
        reload_weights=None,
        requests=requests,
        query_start_loc=SimpleNamespace(np=np.array([0, 1, 2])),
        input_batch=SimpleNamespace(req_id_to_index={"other": 0, "pooling": 1, "ours": 2}),
    )
    rows = scorer()
    attach_v1(runner, rows)
    hidden = torch.cat((torch.randn(2, H), HIDDEN[2:]))
    assert runner._get_prompt_logprobs_dict(hidden, {"other": 1, "pooling": 1, "ours": len(HIDDEN) - 2}) == "stock"
    check(rows)


@pytest.mark.parametrize("missing", ["add_request", "compute_prompt_logprobs", "remove_request"])
def test_a_vllm_without_what_the_engine_touches_is_refused_at_the_start(missing):
    runner = runner_v2()
    names = {"add_request", "compute_prompt_logprobs", "remove_request"} - {missing}
    runner.prompt_logprobs_worker = SimpleNamespace(**dict.fromkeys(names))
    with pytest.raises(ConfigError, match=rf"has no {missing} .*PromptLogprobsWorker in vllm/v1/worker/gpu/sample"):
        attach_v2(runner, scorer())


def test_a_worker_without_a_known_runner_is_refused(monkeypatch):
    module = "services.teacher_scorer.engines.response_scorer"
    monkeypatch.setattr(f"{module}.choose_head", lambda model: (None, True))
    worker: Any = ResponseScorer()
    worker.model_runner = SimpleNamespace(get_model=lambda: None)
    with pytest.raises(ConfigError, match="neither Model Runner V1 nor V2"):
        worker.install_scorer()


@pytest.mark.parametrize("touched", TOUCHED, ids=lambda touched: f"{touched.file}:{touched.owner}")
def test_everything_that_we_touch_is_in_the_installed_source(touched):
    assert set(touched.names) <= defined_names(vllm, touched)


def test_a_renamed_attribute_would_be_found():
    """The check itself: the same class without one of its names."""
    source = "class A:\n    b: int\n    def __init__(self):\n        self.c = 1\n    @property\n    def d(self): ...\n"
    (owner,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    assert names_of_class(owner) == {"b", "c", "d", "__init__"}
    with pytest.raises(ConfigError, match="has no e"):
        require(SimpleNamespace(b=1), Touched("a.py", "A", ("b", "e")))
