"""`calopd tsd ...`: its arguments, and what the commands print."""

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError


def add_commands(commands: Any) -> None:
    """The parsers of `calopd tsd`; nothing heavy is imported here."""
    tsd = commands.add_parser(
        "tsd", help="the TSD study: where a teacher wobbles, which probes and relaxation to train with"
    ).add_subparsers(dest="tsd_command", required=True)
    collect = tsd.add_parser("collect", help="rollouts, rescored under every context; run it again to go on")
    collect.add_argument("config", type=Path, nargs="?", help="the pair's TOML, as for calopd run")
    collect.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="the study's directory")
    collect.add_argument("--contexts", help="groups or contexts, e.g. inst,eval,sol+ (default: all)")
    collect.add_argument("--from", dest="recorded", type=Path, metavar="PATH", help="rollouts: a JSONL or a study")
    collect.add_argument("--scored", type=Path, metavar="JSONL", help="rollouts that somebody scored; needs no CONFIG")
    collect.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")
    collect.add_argument("--tokens", type=int, help="response tokens wanted (default: the paper's 60 million)")
    collect.add_argument("--rollouts", type=int, help="responses wanted")
    collect.add_argument("--shard-tokens", type=int, default=2**20, help="tokens of a shard (default: %(default)s)")
    collect.add_argument(
        "--flush-seconds", type=float, default=60.0, help="a kill loses no more (default: %(default)s)"
    )
    analyze = tsd.add_parser("analyze", help="all numbers of a study: analysis.json and tables/*.csv")
    analyze.add_argument("directory", type=Path)
    analyze.add_argument("--tau", type=_numbers, default=None, help="thresholds (default: 0.01,0.05,0.1)")
    analyze.add_argument(
        "--min-count", type=int, help="list forms that occur more often (default: 20000 in 60 million)"
    )
    analyze.add_argument("--probes", action="append", default=[], help="also the union of these groups: inst,eval")
    analyze.add_argument("--processes", type=int, help="default: one a core")
    for name, text in (("show", "print the tables, write the page and open it"), ("report", "write the page")):
        page = tsd.add_parser(name, help=text)
        page.add_argument("directory", type=Path)
        page.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: DIR/tsd.html")
        page.add_argument("--rollout", type=int, action="append", default=[], help="show this one (several: repeat)")
        page.add_argument("--trajectories", type=int, default=24, help="rollouts on the page (default: %(default)s)")
    compare = tsd.add_parser("compare", help="two studies, or two thresholds of one, side by side on a page")
    compare.add_argument("first", type=Path)
    compare.add_argument("second", type=Path)
    compare.add_argument("--tau", type=_numbers, default=None, help="one threshold, or one for each: 0.01,0.05")
    compare.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: FIRST/compare.html")
    advise = tsd.add_parser("advise", help="which probes and which relaxation to train with, and why")
    advise.add_argument("directory", type=Path)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers like 0.01,0.05") from None
    if not all(0 < value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: thresholds are above 0")
    return values


def run(arguments: argparse.Namespace) -> None:
    {
        "collect": _collect,
        "analyze": _analyze,
        "show": _show,
        "report": _report,
        "compare": _compare,
        "advise": _advise,
    }[arguments.tsd_command](arguments)


def _collect(arguments: argparse.Namespace) -> None:
    from calopd.study.shards import Study

    study = Study(arguments.out)
    if (arguments.config is None) == (arguments.scored is None):
        raise ConfigError("give either a CONFIG to collect with, or --scored JSONL")
    if arguments.scored is not None:
        from calopd.study.recorded_rollouts import import_scored

        import_scored(arguments.scored, study)
    else:
        from calopd.config import load_config
        from calopd.local.services import Stopped
        from calopd.study.collection import Goal, collect

        config = load_config(arguments.config, arguments.set)
        try:
            collect(config, arguments.out, Goal.of(arguments), chosen=arguments.contexts, recorded=arguments.recorded)
        except Stopped:
            print("stopped; the same command goes on from here", file=sys.stderr)
            sys.exit(130)
    lengths = [rollout.tokens for _, _, rollout in study.rollouts()]
    print(
        f"{sum(lengths)} tokens in {len(lengths)} rollouts: {arguments.out}; next: calopd tsd analyze {arguments.out}"
    )


def _analyze(arguments: argparse.Namespace) -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from calopd.core.tsd.deviation_sums import TAUS
    from calopd.study.analyze import analyze
    from calopd.study.layout import StudyDir
    from calopd.study.terminal_tables import print_analysis

    with Progress(TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=None)
        analysis = analyze(
            arguments.directory,
            taus=arguments.tau or TAUS,
            min_count=arguments.min_count,
            unions=[entry.split(",") for entry in arguments.probes],
            processes=arguments.processes,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    print_analysis(analysis)
    print(f"{StudyDir(arguments.directory).analysis}, tables in {StudyDir(arguments.directory).tables}")


def _show(arguments: argparse.Namespace) -> None:
    from calopd.study.analyze import read_analysis
    from calopd.study.terminal_tables import print_analysis

    print_analysis(read_analysis(arguments.directory))
    webbrowser.open(_report(arguments).resolve().as_uri())


def _report(arguments: argparse.Namespace) -> Path:
    from calopd.study.study_page import write_page

    page = write_page(arguments.directory, arguments.out, chosen=arguments.rollout, count=arguments.trajectories)
    print(page)
    return page


def _compare(arguments: argparse.Namespace) -> None:
    from calopd.study.comparison_page import write_comparison

    taus = arguments.tau or ()
    if len(taus) > 2:
        raise ConfigError(f"--tau {taus}: one threshold for both studies, or one for each")
    print(write_comparison(arguments.first, arguments.second, taus, arguments.out))


def _advise(arguments: argparse.Namespace) -> None:
    from calopd.rundir.files import write_json
    from calopd.study.advise import advise
    from calopd.study.analyze import read_analysis
    from calopd.study.layout import StudyDir

    advice = advise(read_analysis(arguments.directory))
    write_json(StudyDir(arguments.directory).advice, advice.as_json())
    print(advice.text())
