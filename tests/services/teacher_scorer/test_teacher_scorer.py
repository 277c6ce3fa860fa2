"""The teacher as a service: its numbers against plain transformers, its streams, its health."""

import asyncio

import grpc
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from calopd.core.types import ScoreOptions
from calopd.transport import convert
from calopd.transport.v1 import teacher_scorer_pb2 as pb
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerStub
from tests.services.teacher_scorer.running_teacher import TOKEN, ragged, score_all

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny.teacher, dtype=torch.float32).eval()


def plain(model, prompt: np.ndarray, response: np.ndarray) -> torch.Tensor:
    """[T, V] log-probabilities at the rows before the response tokens, by a plain forward pass."""
    ids = torch.from_numpy(np.concatenate((prompt, response)).astype(np.int64))
    with torch.no_grad():
        return model(ids[None]).logits[0].double().log_softmax(-1)[len(prompt) - 1 : -1]


def test_scores_equal_transformers_on_ragged_batches(any_teacher, model):
    requests = ragged(0, 24)
    names = [f"calopd_teacher_{kind}_tokens_total" for kind in ("padding", "forward", "reused")]
    before = [any_teacher.metric(name) for name in names]
    for scores, (contexts, response) in zip(score_all(any_teacher, requests), requests, strict=True):
        assert scores.names == ("c0", "eval+", "eval-")
        assert scores.top_k is None
        assert scores.entropy is None
        for name, row in zip(scores.names, scores.logprobs, strict=True):
            expected = plain(model, contexts[name], response)[torch.arange(len(response)), response.astype(np.int64)]
            assert np.abs(row - expected.numpy()).max() < 1e-4
    padding, computed, reused = (any_teacher.metric(name) - was for name, was in zip(names, before, strict=True))
    tokens = sum(len(ids) + len(response) - 1 for contexts, response in requests for ids in contexts.values())
    assert computed + reused == tokens
    assert padding <= 0.1 * (tokens + padding)


def test_top_k_and_entropy_are_those_of_the_first_context(any_teacher, model):
    requests = ragged(1, 8)
    for scores, (contexts, response) in zip(
        score_all(any_teacher, requests, ScoreOptions(top_k=16, want_entropy=True)), requests, strict=True
    ):
        full = plain(model, contexts["c0"], response)
        best = full.topk(16)
        assert np.array_equal(scores.top_k.ids, best.indices.numpy())
        assert np.abs(scores.top_k.logprobs - best.values.numpy()).max() < 1e-4
        assert np.abs(scores.entropy - -(full.exp() * full).sum(1).numpy()).max() < 1e-4


def test_a_gate_brings_the_top_k_only_of_undecided_positions(any_teacher, model):
    requests = ragged(5, 8)
    fulls = [plain(model, contexts["c0"], response) for contexts, response in requests]
    entropies = [-(full.exp() * full).sum(1).numpy() for full in fulls]
    gate = float(np.median(np.concatenate(entropies))) + 1e-3
    options = ScoreOptions(top_k=4, want_entropy=True, top_k_min_entropy=gate)
    for scores, full, entropy in zip(score_all(any_teacher, requests, options), fulls, entropies, strict=True):
        (opened,) = np.nonzero(entropy > gate)
        positions = scores.top_k.positions if scores.top_k.positions is not None else np.arange(len(entropy))
        assert np.array_equal(positions, opened)
        assert np.array_equal(scores.top_k.ids, full[opened].topk(4).indices.numpy())
        assert len(scores.entropy) == len(entropy)
    assert sum((entropy > gate).any() and (entropy < gate).any() for entropy in entropies) > 1


def test_the_stream_answers_each_request_and_survives_a_bad_one(teacher):
    requests = [convert.score_request(str(i), ids, contexts) for i, (contexts, ids) in enumerate(ragged(2, 10))]
    requests[4].response_ids = b""

    with grpc.insecure_channel(teacher.address) as channel:
        answers = list(
            TeacherScorerStub(channel).ScoreStream(iter(requests), metadata=(("authorization", f"Bearer {TOKEN}"),))
        )
    assert sorted(answer.trajectory_id for answer in answers) == [str(i) for i in range(10)]
    refused = {answer.trajectory_id: answer.error for answer in answers if answer.error}
    assert refused == {"4": "response_ids is empty, expected at least one id"}


def test_the_stream_answers_a_client_that_waits_for_each_answer(teacher):
    requests = [convert.score_request(str(i), ids, contexts) for i, (contexts, ids) in enumerate(ragged(4, 3))]

    async def converse() -> list[str]:
        seen = []
        async with grpc.aio.insecure_channel(teacher.address) as channel:
            call = TeacherScorerStub(channel).ScoreStream(metadata=(("authorization", f"Bearer {TOKEN}"),))
            for request in requests:
                await call.write(request)
                seen.append((await asyncio.wait_for(call.read(), 120)).trajectory_id)
            await call.done_writing()
        return seen

    assert asyncio.run(converse()) == ["0", "1", "2"]


def test_bytes_that_are_no_request_end_the_stream_after_the_answers_before_them(teacher):
    ((contexts, ids),) = ragged(6, 1)
    valid = convert.score_request("0", ids, contexts).SerializeToString()
    answers: list[bytes] = []
    with grpc.insecure_channel(teacher.address) as channel:
        path = f"/{pb.DESCRIPTOR.services_by_name['TeacherScorer'].full_name}/ScoreStream"
        sent = iter([valid, b"\xff\xff", valid])
        call = channel.stream_stream(path)(sent, metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=120)
        with pytest.raises(grpc.RpcError) as refused:
            answers.extend(call)  # keeps those before the error
    assert [pb.ScoreResponse.FromString(answer).trajectory_id for answer in answers] == ["0"]
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be read" in refused.value.details()


def test_the_canary_is_healthy(teacher):
    assert teacher.metric("calopd_teacher_canary_healthy") == 1
    assert teacher.metric("calopd_teacher_canary_deviation_nats") < 1e-4
