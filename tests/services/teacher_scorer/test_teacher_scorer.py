"""The teacher as a service: its numbers against plain transformers, its refusals, its health."""

import asyncio
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import HealthCheck, given, settings
from transformers import AutoModelForCausalLM

from calopd.config import Config, load_config
from calopd.core.errors import InvalidRequest, VocabularyMismatch
from calopd.core.types import LOGPROBS_ONLY, ScoreOptions, Scores
from calopd.models.tokenizers import load_tokenizer, vocabulary
from calopd.transport import convert
from calopd.transport.teacher_client import TeacherClient
from calopd.transport.v1 import teacher_scorer_pb2 as pb
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerStub
from tests.services.processes import service, wait_until_serving

pytestmark = pytest.mark.slow
TOKEN = "token-of-the-test"


@dataclass(frozen=True)
class Running:
    config: Config
    log: Path
    pid: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.config.teacher.port}"

    def client(self) -> TeacherClient:
        return TeacherClient([self.address], token=TOKEN, deadline_seconds=300)

    def metric(self, name: str) -> float:
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.config.teacher.metrics_port}/metrics").read().decode()
        values = [float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name)]
        return sum(values)


@contextmanager
def serving(tiny, name: str, **settings: str) -> Iterator[Running]:
    file = tiny.write_config(name)
    config = load_config(file, environ={})
    log = tiny.root / f"{name}.log"
    environment = {**os.environ, "CALOPD_TOKEN": TOKEN}
    environment |= {f"CALOPD__TEACHER__{key.upper()}": value for key, value in settings.items()}
    with service("services.teacher_scorer", file, log, environment) as process:
        wait_until_serving(config.teacher.port, process, log)
        yield Running(config, log, process.pid)


@pytest.fixture(scope="module")
def teacher(tiny):
    with serving(tiny, "teacher") as running:
        yield running


@pytest.fixture(scope="module")
def vllm_teacher(tiny):
    with serving(tiny, "vllm-teacher", engine="vllm") as running:
        yield running


@pytest.fixture(params=["teacher", "vllm_teacher"])
def any_teacher(request):
    """Both engines behind the same service."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def model(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny.teacher, dtype=torch.float32).eval()


def plain(model, prompt: np.ndarray, response: np.ndarray) -> torch.Tensor:
    """[T, V] log-probabilities at the rows before the response tokens, by a plain forward pass."""
    ids = torch.from_numpy(np.concatenate((prompt, response)).astype(np.int64))
    with torch.no_grad():
        return model(ids[None]).logits[0].double().log_softmax(-1)[len(prompt) - 1 : -1]


def ragged(seed: int, count: int) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    draw = np.random.default_rng(seed)
    requests = []
    for _ in range(count):
        contexts = {name: draw.integers(3, 390, draw.integers(1, 90), np.int32) for name in ("c0", "eval+", "eval-")}
        requests.append((contexts, draw.integers(0, 390, draw.integers(1, 120), np.int32)))
    return requests


def score_all(teacher: Running, requests, options: ScoreOptions = LOGPROBS_ONLY) -> list[Scores]:
    async def run() -> list[Scores]:
        client = teacher.client()
        try:
            calls = (client.score(str(i), ids, contexts, options) for i, (contexts, ids) in enumerate(requests))
            return await asyncio.gather(*calls)
        finally:
            await client.close()

    return asyncio.run(run())


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


IDS = convert.to_bytes(np.array([5, 6, 7]), convert.IDS)


def context(name: str = "c0", ids: bytes = IDS) -> pb.Context:
    return pb.Context(name=name, prompt_ids=ids)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pb.ScoreRequest(response_ids=IDS), "0 contexts given, expected 1 to 16"),
        (pb.ScoreRequest(response_ids=IDS, contexts=[context(str(i)) for i in range(17)]), "17 contexts"),
        (pb.ScoreRequest(response_ids=IDS, contexts=[context(), context()]), "not unique"),
        (pb.ScoreRequest(response_ids=b"", contexts=[context()]), "response_ids is empty"),
        (pb.ScoreRequest(response_ids=IDS, contexts=[context(ids=b"")]), "prompt_ids of context 'c0' is empty"),
        (pb.ScoreRequest(response_ids=IDS[:-1], contexts=[context()]), "has 11 bytes, expected a multiple of 4"),
        (
            pb.ScoreRequest(response_ids=convert.to_bytes(np.array([400]), convert.IDS), contexts=[context()]),
            "the id 400",
        ),
        (
            pb.ScoreRequest(response_ids=convert.to_bytes(np.array([-1]), convert.IDS), contexts=[context()]),
            "the id -1",
        ),
        (pb.ScoreRequest(response_ids=IDS * 400, contexts=[context()]), "the limit is 1024"),
        (pb.ScoreRequest(response_ids=IDS, contexts=[context()], options=pb.ScoreOptions(top_k=65)), "the limit is 64"),
    ],
)
def test_malformed_requests_are_told_what_is_wrong(teacher, request_, message):
    with grpc.insecure_channel(teacher.address) as channel, pytest.raises(grpc.RpcError) as refused:
        TeacherScorerStub(channel).Score(request_, metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=120)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert message in refused.value.details()


BYTES = st.one_of(
    st.binary(max_size=24),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6).map(lambda ids: np.array(ids, "<i4").tobytes()),
    st.lists(st.integers(0, 390), min_size=1, max_size=6).map(lambda ids: np.array(ids, "<i4").tobytes()),
)
REQUESTS = st.builds(
    pb.ScoreRequest,
    trajectory_id=st.text(max_size=300),
    response_ids=BYTES,
    contexts=st.lists(st.builds(pb.Context, name=st.text(max_size=4), prompt_ids=BYTES), max_size=18),
    options=st.builds(
        pb.ScoreOptions,
        top_k=st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1)),
        want_entropy=st.booleans(),
        top_k_min_entropy=st.one_of(st.none(), st.floats()),
    ),
)


def test_whatever_is_sent_the_server_answers_and_lives(teacher):
    """Scores of the right size, or INVALID_ARGUMENT with a reason: nothing else."""
    seen = set()
    with grpc.insecure_channel(teacher.address) as channel:
        stub = TeacherScorerStub(channel)

        @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
        @given(REQUESTS)
        def ask(request_):
            error = None
            try:
                answer = stub.Score(request_, metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=120)
            except grpc.RpcError as caught:
                error = caught
            if error is None:
                assert {len(score.logprobs) for score in answer.scores} == {len(request_.response_ids)}
            else:
                assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
                assert len(error.details()) > 10
            seen.add("refused" if error else "scored")

        ask()
        garbage = channel.unary_unary("/calopd.v1.TeacherScorer/Score")
        with pytest.raises(grpc.RpcError):
            garbage(b"\xff" * 100, metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=120)
    assert seen == {"scored", "refused"}
    assert score_all(teacher, ragged(9, 1))[0].names == ("c0", "eval+", "eval-")


def test_the_client_does_not_repeat_a_malformed_request(teacher):
    with pytest.raises(InvalidRequest, match="the id 400"):
        score_all(teacher, [({"c0": np.array([1], np.int32)}, np.array([400], np.int32))])


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)])
def test_nobody_gets_in_without_the_token(teacher, metadata):
    with grpc.insecure_channel(teacher.address) as channel, pytest.raises(grpc.RpcError) as refused:
        TeacherScorerStub(channel).Describe(pb.DescribeRequest(), metadata=metadata, timeout=120)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_reflection_names_the_service(teacher):
    with grpc.insecure_channel(teacher.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = stub.ServerReflectionInfo(iter([request]))
    assert "calopd.v1.TeacherScorer" in {service.name for service in answer.list_services_response.service}


def test_a_student_of_another_vocabulary_is_refused(teacher, tiny):
    ours = vocabulary(load_tokenizer(tiny.student))

    async def check(tokens: list[str]) -> None:
        client = teacher.client()
        try:
            await client.check_vocabulary(tokens)
        finally:
            await client.close()

    asyncio.run(check(ours))
    with pytest.raises(VocabularyMismatch, match="id 100: student 'changed'"):
        asyncio.run(check([*ours[:100], "changed", *ours[101:]]))


def test_the_canary_is_healthy(teacher):
    assert teacher.metric("calopd_teacher_canary_healthy") == 1
    assert teacher.metric("calopd_teacher_canary_deviation_nats") < 1e-4
