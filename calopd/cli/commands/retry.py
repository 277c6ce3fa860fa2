"""Issue dead letters of a run again, after their cause was fixed.

Works while the run is going on, as long as the step of the ticket is not complete. A run that was stopped by its dead
letters issues all of them again when it is resumed.
"""

import argparse
from pathlib import Path

HELP = "issue dead letters of a run again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run's directory, for example runs/demo")
    parser.add_argument("tickets", nargs="*", metavar="TICKET", help="such as step-000012/7; none = all dead letters")


def run(arguments: argparse.Namespace) -> None:
    from calopd.config import load_config
    from calopd.config.load import given_settings
    from calopd.config.resume import check_owner
    from calopd.core.errors import ConfigError
    from calopd.rundir.layout import RunDir
    from calopd.rundir.run_id import ensure_run_id
    from calopd.transport.queue import open_queue

    run_dir = RunDir(arguments.run)
    if not run_dir.is_run:
        raise ConfigError(f"{run_dir}: no run there; expected a directory like runs/demo")
    check_owner(run_dir, given_settings().get("method.file"))
    config = load_config(run_dir.config)
    if not config.queue.url:
        raise ConfigError(
            f"the run has a Redis server of its own: `calopd run --resume {run_dir}` issues all dead letters again"
        )
    name = ensure_run_id(run_dir)
    queue = open_queue(config.queue.url, name, timeout_seconds=30.0)
    queue.ping()
    letters = {ticket.id: (ticket, reason) for ticket, reason in queue.dead_letters()}
    wanted = [ticket if ticket.startswith(f"{name}/") else f"{name}/{ticket}" for ticket in arguments.tickets]
    for ticket in wanted:
        if ticket not in letters:
            raise ConfigError(
                f"{ticket} is no dead letter of {run_dir}: expected one of {', '.join(letters) or 'none'}"
            )
    issued = {ticket.id for ticket in queue.retry_dead_letters(wanted or None)}
    for ticket, (_, reason) in letters.items():
        if ticket in issued:
            print(f"{ticket}: issued again (it had: {reason})")
        elif not wanted or ticket in wanted:
            print(f"{ticket}: not issued, its step is complete or was dropped (it had: {reason})")
    if not letters:
        print(f"{run_dir} has no dead letters")
