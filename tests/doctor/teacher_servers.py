"""Real teacher servers in this process, whose engines a test can spoil, and servers that are no teachers."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np

from calopd.core.types import ScoreOptions
from calopd.models.tokenizers import load_tokenizer, vocabulary
from calopd.transport.v1.teacher_scorer_pb2_grpc import add_TeacherScorerServicer_to_server
from services.teacher_scorer.engines.scoring_engine import BatchScores, SequenceToScore
from services.teacher_scorer.engines.torch_scorer import TorchScorer
from services.teacher_scorer.scheduler import Scheduler
from services.teacher_scorer.servicer import Limits, Servicer, TokenInterceptor

Fault = Callable[[TorchScorer, SequenceToScore], np.ndarray]


class SpoiledEngine:
    """A real engine; `fault` replaces the log-probabilities of every sequence."""

    def __init__(self, engine: TorchScorer) -> None:
        self._engine = engine
        self.name, self.model, self.revision, self.dtype = engine.name, engine.model, engine.revision, engine.dtype
        self.vocabulary_size, self.max_positions = engine.vocabulary_size, engine.max_positions
        self.fault: Fault | None = None

    def score(self, sequences: list[SequenceToScore]) -> BatchScores:
        batch = self._engine.score(sequences)
        if self.fault is None:
            return batch
        spoiled = [
            replace(scores, logprobs=self.fault(self._engine, sequence).astype(np.float32))
            for scores, sequence in zip(batch.scores, sequences, strict=True)
        ]
        return replace(batch, scores=spoiled)


def _whole(engine: TorchScorer, sequence: SequenceToScore) -> np.ndarray:
    """[T, V]: the log-probability of every token at every position."""
    options = ScoreOptions(top_k=engine.vocabulary_size)
    (scores,) = engine.score([replace(sequence, options=options)]).scores
    out = np.empty_like(scores.top_logprobs)
    np.put_along_axis(out, scores.top_ids.astype(np.int64), scores.top_logprobs, axis=1)
    return out


def _chosen(logprobs_TV: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return np.take_along_axis(logprobs_TV, ids.astype(np.int64)[:, None], axis=1)[:, 0]


def one_position_late(engine: TorchScorer, sequence: SequenceToScore) -> np.ndarray:
    """Token t at the row after it, which has seen the token."""
    prompt, response = sequence.prompt_ids, sequence.response_ids
    shifted = [
        SequenceToScore(np.concatenate((prompt, response[: t + 1])), response[t : t + 1]) for t in range(len(response))
    ]
    return np.concatenate([scores.logprobs for scores in engine.score(shifted).scores])


def temperature_two(engine: TorchScorer, sequence: SequenceToScore) -> np.ndarray:
    halved = _whole(engine, sequence) / 2
    return _chosen(halved - np.log(np.exp(halved).sum(axis=1, keepdims=True)), sequence.response_ids)


def next_ids(engine: TorchScorer, sequence: SequenceToScore) -> np.ndarray:
    return _chosen(_whole(engine, sequence), (sequence.response_ids + 1) % engine.vocabulary_size)


def other_tokenizer(engine: TorchScorer, sequence: SequenceToScore) -> np.ndarray:
    """All ids replaced by those of another vocabulary."""
    order = np.random.default_rng(0).permutation(engine.vocabulary_size).astype(np.int32)
    return engine.score([SequenceToScore(order[sequence.prompt_ids], order[sequence.response_ids])]).scores[0].logprobs


def nan(engine: TorchScorer, sequence: SequenceToScore) -> np.ndarray:
    return np.full(len(sequence.response_ids), np.nan)


def constant(engine: TorchScorer, sequence: SequenceToScore) -> np.ndarray:
    return np.full(len(sequence.response_ids), -1.5)


def without_prompt(engine: TorchScorer, sequence: SequenceToScore) -> np.ndarray:
    return engine.score([replace(sequence, prompt_ids=sequence.prompt_ids[:1])]).scores[0].logprobs


@dataclass
class Teacher:
    """A running server; `engine` and `limits` may be changed while it runs."""

    address: str
    engine: SpoiledEngine
    servicer: Servicer

    def restore(self) -> None:
        self.engine.fault = None
        self.engine.revision = self.engine._engine.revision
        self.engine.vocabulary_size = self.engine._engine.vocabulary_size
        self.servicer._limits = LIMITS


LIMITS = Limits(max_tokens=1024, max_contexts=16, max_top_k=64)


class Loop:
    """An event loop in a thread, in which servers live."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=120)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


@contextmanager
def listening(prepare: Callable[[grpc.aio.Server], None], token: str = "") -> Iterator[str]:
    """The address of a gRPC server at a port that the system chooses."""
    loop = Loop()

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(interceptors=[TokenInterceptor(token)] if token else [])
        prepare(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    server, port = loop.run(start())
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop.run(server.stop(0))
        loop.stop()


@contextmanager
def teacher_server(engine: TorchScorer, tokens: list[str], token: str = "") -> Iterator[Teacher]:
    spoiled: Any = SpoiledEngine(engine)
    scheduler = Scheduler(spoiled, batch_tokens=4096, max_waiting=64)
    servicer = Servicer(spoiled, scheduler, tokens, LIMITS)
    with listening(lambda server: add_TeacherScorerServicer_to_server(servicer, server), token) as address:
        yield Teacher(address, spoiled, servicer)
    scheduler.stop()


@contextmanager
def no_teacher(code: grpc.StatusCode) -> Iterator[str]:
    """A server that answers every call with an error."""

    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(code, "no such service here")

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(refuse)

    with listening(lambda server: server.add_generic_rpc_handlers((Handler(),))) as address:
        yield address


def load_engine(path: str) -> tuple[TorchScorer, list[str]]:
    return TorchScorer(path, dtype="float32", device="cpu"), vocabulary(load_tokenizer(path))
