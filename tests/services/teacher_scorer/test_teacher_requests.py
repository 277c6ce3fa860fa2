"""Requests that the teacher refuses: it says why, and lives."""

import asyncio

import grpc
import hypothesis.strategies as st
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import HealthCheck, given, settings

from calopd.core.errors import InvalidRequest, VocabularyMismatch
from calopd.models.tokenizers import load_tokenizer, vocabulary
from calopd.transport import convert
from calopd.transport.v1 import teacher_scorer_pb2 as pb
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerStub
from tests.services.teacher_scorer.running_teacher import TOKEN, ragged, score_all

pytestmark = pytest.mark.slow
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
