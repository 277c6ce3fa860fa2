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
        self._sha256: str | None = None
        self._lock = asyncio.Lock()
        self._loading: set[asyncio.Task[None]] = set()

    async def ensure(self, version: int, sha256: str | None = None) -> None:
        """Load this version if it is not loaded. `sha256` tells a policy that was published again after a restart."""
        if not self._lock.locked() and self._is_loaded(version, sha256):
            return
        # An evaluation that is preempted must not end a load: the reader's files belong to it until it is complete.
        task = asyncio.create_task(self._ensure(version, sha256))
        self._loading.add(task)
        task.add_done_callback(self._forget)
        await asyncio.shield(task)

    def _is_loaded(self, version: int, sha256: str | None) -> bool:
        return self._sampler.policy_version == version and sha256 in (None, self._sha256)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._loading.discard(task)
        if not task.cancelled():
            task.exception()  # also if nobody waits for it any more

    async def _ensure(self, version: int, sha256: str | None) -> None:
        async with self._lock:
            for attempt in itertools.count(1):
                if self._is_loaded(version, sha256):
                    return
                try:
                    fetched = await asyncio.to_thread(self._reader.fetch, version, sha256)
                except PolicyError as error:
                    # On a shared volume the policy may become visible after its ticket.
                    if attempt == ATTEMPTS:
                        raise
                    if attempt == REQUEST_AFTER:
                        log.warning("asking the learner for policy %d: %s", version, error)
                        prometheus.policy_requests.inc()
                        await asyncio.to_thread(self._queue.request_policy, version)
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                await asyncio.wrap_future(self._sampler.load_policy(fetched.directory, version))
                self._sha256 = fetched.sha256
