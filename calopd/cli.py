"""The `calopd` command. Arguments are parsed before anything heavy is imported, so that --help is instant."""

import argparse
import os
import sys
from pathlib import Path

from calopd.entry import guarded
from calopd.tsd import commands as tsd_commands


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="calopd", description="On-policy distillation that learns what is worth learning."
    )
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train on this machine: starts, watches and stops all services")
    run.add_argument("config", type=Path, nargs="?", help="the run's TOML, e.g. configs/demo.toml")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in this directory")
    run.add_argument("--overwrite", action="store_true", help="start anew where a run of this name exists")
    run.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")
    data = commands.add_parser("data", help="problems: clean them, solve them, draw negatives").add_subparsers(
        dest="data_command", required=True
    )
    prepare = data.add_parser("prepare", help="a parquet, JSONL or hub data set -> one clean JSONL")
    prepare.add_argument("source", help="file, or owner/name of a data set on the hub")
    prepare.add_argument("-o", "--out", type=Path, required=True)
    data.add_parser("solve", add_help=False, help="one solution a problem from a strong model; the right ones are kept")
    negatives = data.add_parser("negatives", help="the wrong answer and the unrelated solution of every problem")
    negatives.add_argument("source", type=Path)
    negatives.add_argument("-o", "--out", type=Path, required=True)
    negatives.add_argument("--tokenizer", required=True, help="model directory or hub id: lengths are its tokens")
    negatives.add_argument("--seed", type=int, default=0, help="the run's seed: the teacher sees the same negatives")
    tsd_commands.add_commands(commands)
    report = commands.add_parser("report", help="write a run's report.html again")
    report.add_argument("directory", type=Path)
    return top


def main() -> None:
    if sys.argv[1:3] == ["data", "solve"]:
        # A service's engine does it, and the library knows no service: its own module takes over.
        os.execv(sys.executable, [sys.executable, "-m", "services.rollout.solve", *sys.argv[3:]])
    arguments = parser().parse_args()
    if arguments.command == "data":
        from calopd import data_commands

        guarded(lambda: getattr(data_commands, arguments.data_command)(arguments))
        return
    actions = {"run": _run, "report": _report, "tsd": tsd_commands.run}
    guarded(lambda: actions[arguments.command](arguments))


def _run(arguments: argparse.Namespace) -> None:
    from calopd.config import check_resumable, load_config
    from calopd.errors import ConfigError
    from calopd.launch import Stopped, run

    if (arguments.config is None) == (arguments.resume is None):
        raise ConfigError("give either a configuration or --resume DIR")
    file = arguments.resume / "config.toml" if arguments.resume else arguments.config
    config = load_config(file, arguments.set)
    if arguments.resume:
        check_resumable(load_config(file, environ={}), config)
        if config.run_dir.resolve() != arguments.resume.resolve():
            raise ConfigError(f"{file} is of the run {config.run_dir}: resume it from the directory where it began")
    try:
        run(config, resume=arguments.resume is not None, overwrite=arguments.overwrite)
    except Stopped:
        print(f"stopped; go on with: calopd run --resume {config.run_dir}", file=sys.stderr)
        sys.exit(130)


def _report(arguments: argparse.Namespace) -> None:
    from calopd.report import write_report

    print(write_report(arguments.directory))


if __name__ == "__main__":
    main()
