"""What a sampling engine is, and the thread that drives one: requests come and go between two of its steps."""

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from calopd.core.types import Sample, Sampling
from services.rollout import prometheus

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    prompt_ids: np.ndarray
    sampling: Sampling
    seed: int
    policy_version: int | None = None
    """Sample from this policy or not at all; None = from whichever is loaded."""
    preemptible: bool = False
    """May be dropped half-written when something more urgent comes."""


@dataclass(frozen=True, slots=True)
class Finished:
    key: int
    response_ids: np.ndarray
    logprobs: np.ndarray
    truncated: bool


class WrongPolicy(Exception):
    """The engine holds another policy by now; load the right one and ask again."""


class Preempted(Exception):
    """The response was dropped half-written: ask again when there is time."""


class SamplingBackend(Protocol):
    """A model that writes many responses at once, a token of each a step."""

    name: str

    def add(self, key: int, request: SampleRequest) -> None: ...

    def step(self) -> list[Finished]:
        """Go on by one token; the responses that this completed."""
        ...

    def abort(self, keys: set[int]) -> None:
        """Forget these responses."""
        ...

    def load(self, directory: Path) -> None:
        """Take the weights of a verified policy; nothing is being sampled meanwhile."""
        ...


@dataclass(slots=True)
class _Job:
    request: SampleRequest
    future: "Future[Sample]" = field(default_factory=Future)
    seconds: float = 0.0


@dataclass(slots=True)
class _Load:
    directory: Path
    version: int
    future: "Future[None]" = field(default_factory=Future)


_Item = TypeVar("_Item", _Job, _Load)


class SamplingEngine:
    """A backend with its thread. All methods may be called from any thread."""

    def __init__(self, backend: SamplingBackend) -> None:
        self.name = backend.name
        self.policy_version = 0
        self._backend = backend
        self._inbox: deque[_Job | _Load] = deque()
        self._running: dict[int, _Job] = {}
        self._changed = threading.Condition()
        self._stopped = self._preempting = False
        self._next_key = 0
        self._thread = threading.Thread(target=self._run, name="sampling-engine", daemon=True)
        self._thread.start()

    def sample(self, request: SampleRequest) -> "Future[Sample]":
        return self._put(_Job(request)).future

    def load_policy(self, directory: Path, version: int) -> "Future[None]":
        """Load a policy once what is being sampled is complete; later requests wait for it."""
        return self._put(_Load(directory, version)).future

    def preempt(self) -> None:
        """Drop what is preemptible, before the next token is sampled."""
        with self._changed:
            self._preempting = True
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _put(self, item: _Item) -> _Item:
        with self._changed:
            self._inbox.append(item)
            self._changed.notify()
        return item

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._inbox or self._running or self._stopped or self._preempting):
                    self._changed.wait()
                if self._stopped:
                    return
                preempting, self._preempting = self._preempting, False
                if preempting:
                    self._drop()
                admitted = self._admit()
            for item in admitted:
                self._load(item) if isinstance(item, _Load) else self._add(item)
            if self._running:
                self._step()
            prometheus.sampling.set(len(self._running))

    def _drop(self) -> None:
        dropped = {key: job for key, job in self._running.items() if job.request.preemptible}
        self._backend.abort(set(dropped))
        waiting = [job for job in self._inbox if isinstance(job, _Job) and job.request.preemptible]
        for key in dropped:
            del self._running[key]
        for job in waiting:
            self._inbox.remove(job)
        for job in (*dropped.values(), *waiting):
            if job.future.running() or job.future.set_running_or_notify_cancel():
                job.future.set_exception(Preempted("something more urgent came"))

    def _admit(self) -> list[_Job | _Load]:
        """Whatever may enter now: all up to a policy to load, which waits until nothing runs."""
        admitted: list[_Job | _Load] = []
        while self._inbox:
            if isinstance(self._inbox[0], _Load) and (self._running or admitted):
                break
            admitted.append(self._inbox.popleft())
            if isinstance(admitted[-1], _Load):
                break
        return admitted

    def _add(self, job: _Job) -> None:
        wanted = job.request.policy_version
        if not job.future.set_running_or_notify_cancel():
            return
        if wanted is not None and wanted != self.policy_version:
            job.future.set_exception(WrongPolicy(f"policy {wanted} wanted, {self.policy_version} loaded"))
            return
        key, self._next_key = self._next_key, self._next_key + 1
        try:
            self._backend.add(key, job.request)
        except Exception as error:  # a request the backend refuses is its caller's concern
            job.future.set_exception(error)
            return
        self._running[key] = job

    def _load(self, load: _Load) -> None:
        # From here on nobody can cancel it: an evaluation that is given up may have asked for it.
        if not load.future.set_running_or_notify_cancel():
            return
        start = time.monotonic()
        try:
            self._backend.load(load.directory)
        except Exception as error:  # the caller decides; half-loaded weights are never sampled from
            self.policy_version = -1
            load.future.set_exception(error)
            return
        self.policy_version = load.version
        seconds = time.monotonic() - start
        prometheus.policy_version.set(load.version)
        prometheus.policy_seconds.observe(seconds)
        log.info("policy %d loaded in %.2f s", load.version, seconds)
        load.future.set_result(None)

    def _step(self) -> None:
        start = time.monotonic()
        try:
            finished = self._backend.step()
        except Exception as error:  # the engine is in an unknown state: fail all, and let the process be restarted
            log.exception("the sampling engine failed")
            for job in self._running.values():
                job.future.set_exception(error)
            self._stopped = True
            self._running.clear()
            return
        elapsed = time.monotonic() - start
        prometheus.busy_seconds.inc(elapsed)
        for job in self._running.values():
            job.seconds += elapsed / len(self._running)
        for done in finished:
            job = self._running.pop(done.key)
            prometheus.tokens.inc(len(done.response_ids))
            job.future.set_result(
                Sample(done.response_ids, done.logprobs, done.truncated, self.policy_version, job.seconds)
            )

    @property
    def failed(self) -> bool:
        return not self._thread.is_alive()
