"""Checks of the Redis server of the queue: version, durability, eviction, rights."""

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import redis

from calopd.core.options import Sampling
from calopd.core.types import Ticket
from calopd.doctor.case import Case
from calopd.doctor.outcome import Outcome, failed, not_checked, passed
from calopd.transport.redis_queue import RedisQueue, open_queue
from calopd.transport.redis_runs import delete_run

TIMEOUT_SECONDS = 5.0
OLDEST = (6, 2)
"""The first version with XAUTOCLAIM, which takes over the tickets of a dead worker."""
SCHEMES = ("redis", "rediss", "unix")
EMBEDDED = "queue.url is empty: `calopd run` starts a durable server of its own"


def _not_ours(case: Case) -> Outcome | None:
    url = case.config.queue.url
    if not url:
        return not_checked(EMBEDDED)
    scheme = urlsplit(url).scheme
    return None if scheme in SCHEMES else not_checked(f"the queue is no Redis server but {scheme}://")


def _open(case: Case) -> RedisQueue:
    """The queue of a run of its own, which no real run shares."""
    return open_queue(case.config.queue.url, f"doctor-{secrets.token_hex(8)}", timeout_seconds=TIMEOUT_SECONDS)


def server(case: Case) -> Outcome:
    """The server answers, lets us in, and is new enough."""
    if (outcome := _not_ours(case)) is not None:
        return outcome
    client = _open(case).client
    try:
        client.ping()
        facts = _by_name(client.execute_command("HELLO"))
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        return failed(
            f"the Redis server refuses the login: {error}", "correct the user and password: CALOPD__QUEUE__URL"
        )
    except redis.RedisError as error:
        return failed(f"no Redis server at queue.url: {error}", "start the server, or correct queue.url")
    version = str(facts.get("version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return failed(f"Redis {version} is too old", f"install Redis {wanted} or newer, or leave queue.url empty")
    if facts.get("mode") == "cluster":
        return failed("the Redis server is a cluster: a commit spans several keys", "use a single server")
    return passed(f"{facts.get('server', 'redis')} {version}")


def _by_name(reply: Any) -> dict[str, Any]:
    """HELLO's reply: a mapping in RESP3, a list of names and values in RESP2."""
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def durability(case: Case) -> Outcome:
    """An append-only file, and no eviction: tickets and trajectories must survive a restart and a full memory."""
    if (outcome := _not_ours(case)) is not None:
        return outcome
    client = _open(case).client
    try:
        facts = {**client.info("persistence"), **client.info("memory")}
    except redis.exceptions.NoPermissionError:
        return not_checked(
            "the user may not run INFO",
            "grant it with `ACL SETUSER ... +info`, or check on the server that appendonly is yes and "
            "maxmemory-policy is noeviction",
        )
    return judge_durability(bool(facts.get("aof_enabled")), str(facts.get("maxmemory_policy", "")))


def judge_durability(append_only: bool, policy: str) -> Outcome:
    if not append_only:
        return failed(
            "the Redis server keeps no append-only file: a restart loses the trajectories of the current step",
            "start it with `--appendonly yes --appendfsync always`",
        )
    if policy != "noeviction":
        return failed(
            f"maxmemory-policy is {policy}: a full server would delete tickets and trajectories",
            "set `maxmemory-policy noeviction`",
        )
    return passed("append-only file on, nothing is evicted")


def rights(case: Case) -> Outcome:
    """One ticket through the queue, with the commands and keys of a run."""
    if (outcome := _not_ours(case)) is not None:
        return outcome
    queue = _open(case)
    batch = "step-000000"
    ticket = Ticket(queue.run, batch, 0, "doctor", 0, 0, 0, Sampling(1.0, 1.0, 1))
    try:
        queue.open_batch(batch, [ticket])
        queue.join()
        claims = queue.claim("doctor", 1, block_seconds=0.001)
        queue.renew("doctor", claims)
        queue.claim_abandoned("doctor", 1, 1e6)
        queue.dead_letter(claims[0], "a check of `calopd doctor`")
        queue.announce_policy(0, "")
        queue.depth()
        queue.release_batch(batch)
        delete_run(queue.client, queue.run)
    except redis.RedisError as error:
        return failed(
            f"the user of queue.url lacks a right: {error}",
            "allow it keys and commands: `ACL SETUSER ... ~calopd:* +@all -@admin -@dangerous`",
        )
    return passed("tickets can be written, claimed, completed and deleted under calopd:*")
