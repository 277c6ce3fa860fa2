"""A teacher of a few lines behind a real gRPC server: its scores are a function of the request, and it can go wrong."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np

from calopd.core.types import Scores
from calopd.models.tokenizers import fingerprint
from calopd.transport import convert
from calopd.transport.v1 import teacher_scorer_pb2 as pb
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerServicer, add_TeacherScorerServicer_to_server
from tests.ports import free_port

VOCABULARY = [f"token {i}" for i in range(100)]
CANARY_IDS = np.arange(3, 63, dtype=np.int32)
REVISION = "revision of the run"


def true_scores(prompt: np.ndarray, response: np.ndarray, model: int = 0) -> np.ndarray:
    """float32 [T]: log-probabilities that depend on every token and on the model."""
    seeds = (model, *(int(i) for i in prompt), *(int(i) for i in response))
    return -np.random.default_rng(seeds).gamma(1.0, 1.0, len(response)).astype(np.float32) - 1e-3


class FakeTeacher(TeacherScorerServicer):
    def __init__(self) -> None:
        self.fault = ""
        self.poison = ""
        """End of the trajectory id that gets NaN from a teacher that is otherwise right."""
        self.revision = REVISION
        self._previous: pb.ScoreResponse | None = None
        self.address = f"127.0.0.1:{free_port()}"

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        return convert.description_to_message(
            convert.Description(
                model="fake",
                revision=self.revision,
                engine="fake",
                vocabulary_fingerprint=fingerprint(VOCABULARY),
                vocabulary_size=len(VOCABULARY),
                max_tokens=1_000,
                max_contexts=9,
                max_top_k=4,
                dtype="float32",
            )
        )

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        while self.fault == "frozen":
            await asyncio.sleep(0.01)
        response = np.frombuffer(request.response_ids, convert.IDS)
        prompts = {item.name: np.frombuffer(item.prompt_ids, convert.IDS) for item in request.contexts}
        if self.fault == "another request's scores":
            response = response[::-1] + 1
        rows = np.stack([true_scores(ids, response, int(self.fault == "another model's")) for ids in prompts.values()])
        if self.fault == "NaN" or (self.poison and request.trajectory_id.endswith(self.poison)):
            rows[0, 0] = np.nan
        if self.fault == "-ln V":
            rows[:] = -math.log(len(VOCABULARY))
        if self.fault == "one token too few":
            rows = rows[:, :-1]
        answer = convert.scores_to_message(request.trajectory_id, Scores(tuple(prompts), rows, self.revision, 0.0))
        if self.fault == "one byte too few":
            answer.scores[0].logprobs = answer.scores[0].logprobs[:-1]
        previous, self._previous = self._previous, answer
        if self.fault.startswith("the previous answer") and previous is not None:
            answer = pb.ScoreResponse.FromString(previous.SerializeToString())
            if self.fault.endswith("under this id"):
                answer.trajectory_id = request.trajectory_id
        return answer


@asynccontextmanager
async def serving(*teachers: Any) -> AsyncIterator[None]:
    """Serve services that have an `address`."""
    servers = []
    for teacher in teachers:
        server = grpc.aio.server()
        add_TeacherScorerServicer_to_server(teacher, server)
        server.add_insecure_port(teacher.address)
        await server.start()
        servers.append(server)
    try:
        yield
    finally:
        for server in servers:
            await server.stop(None)
