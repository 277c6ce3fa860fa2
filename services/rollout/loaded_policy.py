"""The policy that the engine has loaded, and how it is replaced."""

import asyncio
import itertools
import logging

from calopd.core.errors import PolicyError
from calopd.rundir.policy_transport import PolicyReader
from calopd.transport.queue import Queue
from services.rollout import prometheus
from services.rollout.sampler import SamplingLoop

log = logging.getLogger(__name__)

ATTEMPTS = 20
PAUSE_SECONDS = 0.25
REQUEST_AFTER = 4
"""Attempts after which the learner is asked to publish a policy again."""


class LoadedPolicy:
    def __init__(self, queue: Queue, sampler: SamplingLoop, reader: PolicyReader) -> None:
        self._queue, self._sampler, self._reader = queue, sampler, reader
        self._lock = asyncio.Lock()
        self._loading: set[asyncio.Task[None]] = set()
        self._failures = 0
        self.unreadable: PolicyError | None = None
        """Why the last load failed; None after one that succeeded."""
        self._wanted: tuple[int, str | None] = (0, None)
        """The policy whose load failed."""

    async def ensure(self, version: int, sha256: str | None = None) -> None:
        """Load this version if it is not loaded. `sha256` tells a policy that was published again after a restart.

        Raises PolicyError if it cannot be loaded: then `unreadable` says why until another load succeeds.
        """
        if not self._lock.locked() and self._is_loaded(version, sha256):
            return
        # An evaluation that is preempted must not end a load: the reader's files belong to it until it is complete.
        task = asyncio.create_task(self._ensure(version, sha256, self._failures))
        self._loading.add(task)
        task.add_done_callback(self._forget)
        await asyncio.shield(task)

    async def recover(self) -> None:
        """Try to load a policy: the newest one that was announced, else the one that failed."""
        newest = await asyncio.to_thread(self._queue.wait_for_policy, "0-0", 0.0)
        try:
            if newest is not None:
                await self.ensure(newest.version, newest.sha256)
                self.unreadable = None  # it may have been loaded all the time, and an older one is lost
                return
        except PolicyError as error:
            log.warning("announced policy %d: %s", newest.version if newest else -1, error)
        if self.unreadable is not None and (newest is None or newest.version != self._wanted[0]):
            await self.ensure(*self._wanted)

    def _is_loaded(self, version: int, sha256: str | None) -> bool:
        return self._sampler.policy_version == version and sha256 in (None, self._sampler.policy_sha256)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._loading.discard(task)
        if not task.cancelled():
            task.exception()  # also if nobody waits for it any more

    async def _ensure(self, version: int, sha256: str | None, failures: int) -> None:
        async with self._lock:
            if self._failures > failures and self.unreadable is not None and self._wanted == (version, sha256):
                raise PolicyError(str(self.unreadable))  # another ticket has just tried
            try:
                await self._load(version, sha256)
            except PolicyError as error:
                self._failures, self._wanted, self.unreadable = self._failures + 1, (version, sha256), error
                raise
            self.unreadable = None

    async def _load(self, version: int, sha256: str | None) -> None:
        for attempt in itertools.count(1):
            if self._is_loaded(version, sha256):
                return
            try:
                with self._sampler.heartbeat.work(f"reading policy {version}"):
                    fetched = await asyncio.to_thread(self._reader.fetch, version, sha256)
                break
            except PolicyError as error:
                # On a shared volume the policy may become visible after its ticket.
                if attempt == ATTEMPTS:
                    raise
                if attempt == REQUEST_AFTER:
                    log.warning("asking the learner for policy %d: %s", version, error)
                    prometheus.policy_requests.inc()
                    await asyncio.to_thread(self._queue.request_policy, version)
                await asyncio.sleep(PAUSE_SECONDS)
        loading = self._sampler.load_policy(fetched.directory, version, fetched.sha256)
        try:
            await asyncio.wrap_future(loading)
        except Exception as error:  # of the engine
            raise PolicyError(f"policy {version} cannot be loaded: {error!r}") from error
