"""The runs whose keys a Redis server holds, and their removal."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import redis

PREFIX = "calopd:"
STREAMS = ("tickets", "evaluations", "policies", "dead", "malformed")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The keys of one run on a server."""

    run: str
    keys: int
    idle_seconds: float
    """Since a learner or a worker of the run was last seen, or anything was added."""


def stored_runs(client: Any) -> list[StoredRun]:
    """All runs, by name."""
    keys: defaultdict[str, int] = defaultdict(int)
    for key in client.scan_iter(f"{PREFIX}*", count=1_000):
        run = key.decode().removeprefix(PREFIX).partition(":")[0]
        keys[run] += 1
    return [StoredRun(run, count, _idle_seconds(client, run)) for run, count in sorted(keys.items())]


def _idle_seconds(client: Any, run: str) -> float:
    seconds, microseconds = client.time()
    now = 1_000 * seconds + microseconds // 1_000
    seen = [int(client.hget(f"{PREFIX}{run}:learner", "seen") or 0)]
    for stream in STREAMS:
        try:
            seen.append(int(client.xinfo_stream(f"{PREFIX}{run}:{stream}")["last-generated-id"].split(b"-")[0]))
            groups = client.xinfo_groups(f"{PREFIX}{run}:{stream}")
            for group in groups:
                consumers = client.xinfo_consumers(f"{PREFIX}{run}:{stream}", group["name"])
                seen += [now - int(consumer["idle"]) for consumer in consumers]
        except redis.ResponseError:  # no such stream
            continue
    return max(0.0, (now - max(seen)) / 1_000)


def delete_run(client: Any, run: str) -> int:
    """Delete all keys of a run; returns their number."""
    found = list(client.scan_iter(f"{PREFIX}{run}:*", count=1_000))
    return int(client.unlink(*found)) if found else 0
