"""The thread that drives a sampling engine: requests are added and removed between two of its steps."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from calopd.core.activity import ActivityClock
from calopd.core.errors import EngineFailed
from calopd.core.heartbeat import Heartbeat
from calopd.core.types import Sample
from calopd.tracking.trace import record, span
from services.rollout import prometheus
from services.rollout.engines.sampling_engine import SampleRequest, SamplingEngine

log = logging.getLogger(__name__)


UNUSABLE = -1
"""Policy version after an update that failed."""


class WrongPolicy(Exception):
    """The engine holds another policy: load the right one and retry."""


class Preempted(Exception):
    """The response was dropped before it was complete: retry later."""


@dataclass(slots=True)
class _Job:
    request: SampleRequest
    future: "Future[Sample]" = field(default_factory=Future)
    seconds: float = 0.0
    since: float = 0.0
    """When the engine took it."""


@dataclass(slots=True)
class _Load:
    directory: Path
    version: int
    sha256: str
    future: "Future[None]" = field(default_factory=Future)


_Item = TypeVar("_Item", _Job, _Load)


class SamplingLoop:
    """Steps an engine in a thread of its own. All methods may be called from any thread."""

    def __init__(self, engine: SamplingEngine, process: str = "", heartbeat: Heartbeat | None = None) -> None:
        self.name = engine.name
        self.heartbeat = heartbeat or Heartbeat()
        self.clock = ActivityClock(process)
        """Busy while a response is being sampled."""
        self.policy_version, self.policy_sha256 = 0, ""
        self._engine = engine
        self._inbox: deque[_Job | _Load] = deque()
        self._running: dict[int, _Job] = {}
        self._changed = threading.Condition()
        self._stopped = self._preempting = False
        self.failure = ""
        """Why the engine failed, in one line; its log has the rest."""
        self._unwanted: set[Future[Sample]] = set()
        self._next_key = 0
        self._first_token_time: float | None = None
        """Unix time of the first token that was sampled from the loaded policy."""
        self._thread = threading.Thread(target=self._run, name="sampling-loop", daemon=True)
        self._thread.start()

    def sample(self, request: SampleRequest) -> "Future[Sample]":
        return self._put(_Job(request)).future

    def load_policy(self, directory: Path, version: int, sha256: str = "") -> "Future[None]":
        """Load a policy when the running requests are complete; later requests wait for it."""
        return self._put(_Load(directory, version, sha256)).future

    def preempt(self) -> None:
        """Drop all preemptible requests before the next step."""
        with self._changed:
            self._preempting = True
            self._changed.notify()

    def abort(self, sampled: "Future[Sample]") -> None:
        """Drop a request before the next step: nobody waits for it any more."""
        with self._changed:
            self._unwanted.add(sampled)
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
            self.heartbeat.leave(self)
            with self._changed:
                while not (self._inbox or self._running or self._stopped or self._preempting or self._unwanted):
                    with span("wait"):
                        self._changed.wait()
                if self._stopped:
                    return
                self.heartbeat.enter(self, f"a step of the sampling engine with {len(self._running)} responses")
                preempting, self._preempting = self._preempting, False
                if preempting:
                    self._drop(lambda job: job.request.preemptible, "preempted by a more urgent request")
                if self._unwanted:
                    self._drop(lambda job: job.future in self._unwanted, "nobody waits for it any more")
                    self._unwanted.clear()
                admitted = self._admit()
            for item in admitted:
                self._load(item) if isinstance(item, _Load) else self._add(item)
            if self._running:
                with self.clock.computing():
                    self._step()
            prometheus.sampling.set(len(self._running))

    def _drop(self, chosen: Callable[[_Job], bool], reason: str) -> None:
        dropped = {key: job for key, job in self._running.items() if chosen(job)}
        self._engine.abort(set(dropped))
        waiting = [job for job in self._inbox if isinstance(job, _Job) and chosen(job)]
        for key in dropped:
            del self._running[key]
        for job in waiting:
            self._inbox.remove(job)
        for job in (*dropped.values(), *waiting):
            if job.future.running() or job.future.set_running_or_notify_cancel():
                job.future.set_exception(Preempted(reason))

    def _admit(self) -> list[_Job | _Load]:
        """Take the requests before the next policy to load, or that policy if nothing is running."""
        admitted: list[_Job | _Load] = []
        while self._inbox:
            if isinstance(self._inbox[0], _Load) and (self._running or admitted):
                break
            admitted.append(self._inbox.popleft())
            if isinstance(admitted[-1], _Load):
                break
        return admitted

    def _add(self, job: _Job) -> None:
        wanted, sha256 = job.request.policy_version, job.request.policy_sha256
        if not job.future.set_running_or_notify_cancel():
            return
        if wanted not in (None, self.policy_version) or sha256 not in (None, self.policy_sha256):
            job.future.set_exception(WrongPolicy(f"policy {wanted} wanted, {self.policy_version} loaded"))
            return
        if self.policy_version == UNUSABLE:
            job.future.set_exception(WrongPolicy("the last policy could not be loaded: load one first"))
            return
        key, self._next_key = self._next_key, self._next_key + 1
        try:
            self._engine.add(key, job.request)
        except Exception as error:  # the caller handles a request that the engine refuses
            job.future.set_exception(error)
            return
        self._running[key], job.since = job, time.monotonic()

    def _load(self, load: _Load) -> None:
        # Not cancellable from here on: the evaluation that asked for it may be preempted.
        if not load.future.set_running_or_notify_cancel():
            return
        start = time.monotonic()
        self.heartbeat.enter(self, f"loading policy {load.version}")
        try:
            with span("load policy", version=load.version):
                self._engine.load(load.directory)
        except Exception as error:  # the caller handles it; partly loaded weights are never sampled from
            self.policy_version = UNUSABLE
            load.future.set_exception(error)
            return
        self.policy_version, self.policy_sha256, self._first_token_time = load.version, load.sha256, None
        seconds = time.monotonic() - start
        prometheus.policy_version.set(load.version)
        prometheus.policy_seconds.observe(seconds)
        log.info("policy %d loaded in %.2f s", load.version, seconds)
        load.future.set_result(None)

    def _step(self) -> None:
        start = time.monotonic()
        try:
            finished = self._engine.step()
        except Exception as error:  # the state of the engine is unknown: fail all requests; the process is restarted
            log.exception("the sampling engine failed")
            reason = (str(error).strip().splitlines() or [""])[0]
            self.failure = f"the sampling engine failed: {type(error).__name__}: {reason}"
            self._stopped = True
            for job in self._running.values():
                job.future.set_exception(EngineFailed(self.failure))
            self._running.clear()
            return
        elapsed = time.monotonic() - start
        self._first_token_time = self._first_token_time or time.time()
        prometheus.busy_seconds.inc(elapsed)
        for job in self._running.values():
            job.seconds += elapsed / len(self._running)
        for done in finished:
            job = self._running.pop(done.key)
            prometheus.tokens.inc(len(done.response_ids))
            seconds = time.monotonic() - job.since
            record("sample", seconds, tokens=len(done.response_ids), policy=self.policy_version)
            job.future.set_result(
                Sample(
                    done.response_ids,
                    done.logprobs,
                    done.truncated,
                    self.policy_version,
                    job.seconds,
                    self._first_token_time,
                    self.policy_sha256,
                )
            )

    @property
    def failed(self) -> bool:
        return bool(self.failure) or not self._thread.is_alive()
