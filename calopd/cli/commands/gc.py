"""List the runs whose tickets and trajectories a shared Redis server holds, and delete abandoned ones.

Nothing is deleted without --delete. A run that is deleted while its directory exists can still be resumed: the steps
that its checkpoint does not contain are sampled again.
"""

import argparse
from pathlib import Path

HELP = "list the runs in a shared Redis server, and delete abandoned ones"
DAY = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from calopd.cli.argument_types import above_zero

    parser.add_argument("config", type=Path, help="a TOML whose queue.url names the server")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="ids of runs, as listed; none = all")
    parser.add_argument(
        "--idle-days", type=above_zero, default=7.0, metavar="N", help="only runs that nobody used for N days (7)"
    )
    parser.add_argument("--delete", action="store_true", help="delete them")


def run(arguments: argparse.Namespace) -> None:
    from calopd.config import load_config
    from calopd.core.errors import ConfigError
    from calopd.transport.queue import open_queue
    from calopd.transport.redis_queue import RedisQueue
    from calopd.transport.redis_runs import delete_run, stored_runs

    config = load_config(arguments.config)
    if not config.queue.url:
        raise ConfigError("queue.url is empty: a server that `calopd run` starts holds its own run only")
    queue = open_queue(config.queue.url, "gc", timeout_seconds=30.0)
    queue.ping()
    if not isinstance(queue, RedisQueue):
        raise ConfigError(f"queue.url names no Redis server but {config.queue.url.partition('://')[0]}://")
    found = {stored.run: stored for stored in stored_runs(queue.client)}
    if unknown := set(arguments.runs) - found.keys():
        raise ConfigError(f"the server has no run {sorted(unknown)[0]}: expected one of {', '.join(found) or 'none'}")
    for stored in found.values():
        if arguments.runs and stored.run not in arguments.runs:
            continue
        days = stored.idle_seconds / DAY
        line = f"{stored.run}: {stored.keys} keys, idle for {days:.1f} days"
        if days < arguments.idle_days:
            print(f"{line}: kept")
        elif arguments.delete:
            print(f"{line}: {delete_run(queue.client, stored.run)} keys deleted")
        else:
            print(f"{line}: would be deleted with --delete")
