"""Workers with a real queue and engines of a few lines behind the real interface."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from calopd.core.errors import PolicyError
from calopd.core.heartbeat import Heartbeat
from calopd.core.types import Sampling, Ticket
from calopd.rundir.policy_transport import Fetched
from calopd.transport.queue import Queue
from services.rollout.engines.sampling_engine import Finished, SampleRequest
from services.rollout.sampler import SamplingLoop
from services.rollout.worker import Worker

BATCH = "step-000001"


def tickets(count: int, batch: str = BATCH, **settings: Any) -> list[Ticket]:
    """Tickets of policy 1; the seed of a ticket is its index."""
    defaults = {"policy_sha256": "sha of 1", "contexts": ()} | settings
    return [Ticket("r", batch, i, f"p{i}", 0, i, 1, Sampling(1.0, 1.0, 8), **defaults) for i in range(count)]


class FakePrompts:
    """A prompt of one token for every problem."""

    def __init__(self) -> None:
        self.problems = {f"p{i}": SimpleNamespace(id=f"p{i}", answer="1") for i in range(64)}

    def ids(self, problem: Any, name: str = "c0") -> np.ndarray:
        return np.array([3], np.int32)

    def decode(self, ids: np.ndarray) -> str:
        return "no answer"


class FakeReader:
    """Policies of one volume; unreadable until it is mounted."""

    def __init__(self, folder: Path, mounted: bool = True) -> None:
        self.folder, self.mounted = folder, mounted

    def fetch(self, version: int, sha256: str | None = None) -> Fetched:
        if not self.mounted:
            raise PolicyError(f"no policy at {self.folder}: it was not published, or was removed")
        return Fetched(self.folder, sha256 or f"sha of {version}")


class FakeSampler:
    """Completes what it has in every step, except as its faults say."""

    name = "fake"

    def __init__(self, *, poison: int | None = None) -> None:
        self._poison = poison
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self.together: list[int] = []
        """Requests in each step."""
        self._running: dict[int, SampleRequest] = {}

    def add(self, key: int, request: SampleRequest) -> None:
        self._running[key] = request

    def step(self) -> list[Finished]:
        self.together.append(len(self._running))
        if self._poison in {request.seed for request in self._running.values()}:
            raise RuntimeError("CUDA error: device-side assert triggered")
        if self.hangs.is_set():
            self.goes_on.wait(60)
        running, self._running = self._running, {}
        logprobs = np.full(4, -1.0, np.float32)
        return [Finished(key, np.full(4, 9 + r.seed, np.int32), logprobs, True) for key, r in running.items()]

    def abort(self, keys: set[int]) -> None: ...

    def load(self, directory: Path) -> None: ...


def fake_worker(
    queue: Queue, engine: Any, reader: Any, *, name: str = "w", heartbeat: Heartbeat | None = None, **settings: Any
) -> Worker:
    """A worker of this engine; stop `worker.sampler` at the end."""
    defaults = {"max_in_flight": 16, "lease_seconds": 10.0, "max_failures": 20, "teacher": cast(Any, None)}
    sampler = SamplingLoop(engine, name, heartbeat)
    prompts: Any = FakePrompts()
    return Worker(name, queue=queue, sampler=sampler, prompts=prompts, reader=reader, **(defaults | settings))
