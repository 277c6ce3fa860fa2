"""Load test of the teacher with four times the admitted requests: python -m benchmarks.teacher_load

`make load-teacher` runs it: 64 clients on two replicas of the demo's teacher with 16 slots each. Half of the clients
cancel at random; halfway through, one replica gets SIGTERM. Every answer is compared with the first answer to the same
request. Fails if an answer is lost or wrong, a call ends with an unexpected status, a slot is not released, or memory
grows.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field

import grpc
import numpy as np

from benchmarks.teacher_service import ROOT, Service, Work, serving
from calopd.transport import convert
from calopd.transport.teacher_replica import CHANNEL_OPTIONS
from calopd.transport.v1 import teacher_scorer_pb2 as pb
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerStub

CLIENTS, MAX_WAITING = 64, 16
VOCABULARY = 803
DEMO_TEACHER = ROOT / "examples" / "demo" / "teacher"
CALL_SECONDS = 300.0
PATIENCE = 240.0
"""How long a slow machine may take to show each outcome; one that did not come by then is an error."""
GROWTH_MIB = 300
"""Allowed growth: batches of new sizes still allocate memory, while a leak under this load would be gigabytes."""
EXPECTED = {"OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED", "own cancellation"}
"""A server that shuts down answers CANCELLED to a call that it has received but not accepted."""


@dataclass
class Load:
    requests: list[pb.ScoreRequest]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    outcomes: Counter[str] = field(default_factory=Counter)
    answers: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    wrong: int = 0
    unanswered: int = 0

    async def client(self, number: int, addresses: list[str]) -> None:
        """Send requests one after another, each until it is answered; switch replicas on an error."""
        draw = random.Random(number)
        channels = [grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) for address in addresses]
        stubs = [TeacherScorerStub(channel) for channel in channels]
        turn = number
        while not self.over.is_set():
            which = draw.randrange(len(self.requests))
            self.unanswered += 1
            while True:
                call = stubs[turn % len(stubs)].Score(self.requests[which], timeout=CALL_SECONDS)
                if number % 2 and draw.random() < 0.5:
                    await asyncio.sleep(draw.uniform(0, 0.3))
                    if call.cancel():
                        self.outcomes["own cancellation"] += 1
                        break
                try:
                    self._check(which, await call)
                    self.outcomes["OK"] += 1
                    break
                except grpc.aio.AioRpcError as error:
                    self.outcomes[error.code().name] += 1
                    turn += 1
                    await asyncio.sleep(draw.uniform(0.02, 0.1))
            self.unanswered -= 1
        for channel in channels:
            await channel.close()

    def _check(self, which: int, answer: pb.ScoreResponse) -> None:
        rows = tuple(score.logprobs for score in answer.scores)
        first = self.answers.setdefault(which, rows)
        pairs = zip(first, rows, strict=True)
        close = (np.allclose(np.frombuffer(a, "<f4"), np.frombuffer(b, "<f4"), atol=1e-4) for a, b in pairs)
        self.wrong += not all(close)


def draw_requests(count: int, vocabulary: int) -> list[pb.ScoreRequest]:
    draw = np.random.default_rng(0)
    work: Work = [
        (
            draw.integers(0, vocabulary, draw.integers(1, 400), np.int32),
            {name: draw.integers(0, vocabulary, draw.integers(1, 200), np.int32) for name in ("c0", "eval+", "eval-")},
        )
        for _ in range(count)
    ]
    return [convert.score_request(str(i), ids, contexts) for i, (ids, contexts) in enumerate(work)]


async def watch(service: Service, over: asyncio.Event) -> list[float]:
    """Resident memory in MiB, sampled every half second."""
    found = []
    while not over.is_set() and service.process.is_running() and service.process.status() != "zombie":
        found.append(service.process.memory_info().rss / 2**20)
        await asyncio.sleep(0.5)
    return found


async def run(
    first: Service, second: Service, seconds: float, clients: int, vocabulary: int
) -> tuple[Load, list[list[float]]]:
    """At least `seconds`, one half before the SIGTERM and one after, and until each half saw enough of all outcomes."""
    load = Load(draw_requests(50, vocabulary))
    addresses = [f"127.0.0.1:{service.port}" for service in (first, second)]

    async def half(wanted: Counter[str]) -> None:
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds / 2 or (
            not wanted <= load.outcomes and elapsed < PATIENCE
        ):
            await asyncio.sleep(0.05)

    async def both_halves() -> None:
        await half(Counter({"OK": 50, "own cancellation": 10, "RESOURCE_EXHAUSTED": 1}))
        first.process.terminate()
        await half(Counter({"OK": load.outcomes["OK"] + 20, "UNAVAILABLE": 1}))
        load.over.set()

    memory = [asyncio.create_task(watch(service, load.over)) for service in (first, second)]
    await asyncio.gather(both_halves(), *(load.client(i, addresses) for i in range(clients)))
    return load, [await task for task in memory]


def verdict(load: Load, memory: list[list[float]], second: Service, exit_code: int | None) -> list[str]:
    """Descriptions of all failures; empty if there are none."""
    growth = [max(samples) - max(samples[: max(1, len(samples) // 4)]) for samples in memory]
    checks = {
        f"{load.wrong} answers differ": load.wrong == 0,
        f"{load.unanswered} requests have no answer": load.unanswered == 0,
        f"calls ended as {set(load.outcomes) - EXPECTED}": set(load.outcomes) <= EXPECTED,
        "no request was refused, so the load was too low": load.outcomes["RESOURCE_EXHAUSTED"] > 0,
        "no client had to switch to the other replica": load.outcomes["UNAVAILABLE"] > 0,
        f"the replica that got SIGTERM exited with code {exit_code}": exit_code == 0,
        "slots were not released": second.metric("calopd_teacher_waiting_requests") == 0,
        f"memory grew by {growth} MiB": max(growth) < GROWTH_MIB,
    }
    return [text for text, fine in checks.items() if not fine]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        first, second = (stack.enter_context(serving(DEMO_TEACHER, max_waiting=MAX_WAITING)) for _ in range(2))
        print(f"{arguments.clients} clients, {MAX_WAITING} slots per replica, {arguments.seconds:g} s ...", flush=True)
        load, memory = asyncio.run(run(first, second, arguments.seconds, arguments.clients, VOCABULARY))
        wrong = verdict(load, memory, second, first.exit_code(120))
    for name, count in sorted(load.outcomes.items()):
        print(f"{name:>20} {count:8,}")
    for name, samples in zip(("first", "second"), memory, strict=True):
        print(f"{name} replica: {samples[0]:.0f} MiB at the start, {max(samples):.0f} MiB at the peak")
    raise SystemExit("error: " + "; ".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
