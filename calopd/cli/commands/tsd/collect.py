"""Collect rollouts and score them under every context; the same command resumes."""

import argparse
from pathlib import Path

from calopd.cli.argument_types import above_zero, at_least, positive

HELP = "collect rollouts and score them under every context; repeat the command to resume"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", type=Path, nargs="?", help="TOML of the pair of models, as for calopd run")
    add("-o", "--out", type=Path, required=True, metavar="DIR", help="the study's directory")
    add("--contexts", help="groups or contexts, for example inst,eval,sol+ (default: all)")
    add("--from", dest="recorded", type=Path, metavar="PATH", help="recorded rollouts: a JSONL or another study")
    add("--scored", type=Path, metavar="JSONL", help="rollouts that are scored already; needs no CONFIG")
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")
    add("--tokens", type=positive, help="response tokens to collect (default: the paper's 60 million)")
    add("--rollouts", type=positive, help="responses to collect")
    add("--shard-tokens", type=positive, default=2**20, help="tokens per shard (default: %(default)s)")
    add("--flush-seconds", type=above_zero, default=60.0, help="most work that a kill loses (default: %(default)s)")
    add("--noise-rollouts", type=at_least(0), default=64,
        help="score c0 of the first rollouts twice, to measure numerical noise (default: %(default)s)")  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    from calopd.core.errors import ConfigError
    from calopd.study.shards import Study

    study = Study(arguments.out)
    if (arguments.config is None) == (arguments.scored is None):
        raise ConfigError("give either a CONFIG to collect with, or --scored JSONL")
    if arguments.scored is not None:
        from calopd.study.recorded_rollouts import import_scored

        import_scored(arguments.scored, study)
    else:
        _sample_and_score(arguments)
    lengths = [rollout.tokens for _, _, rollout in study.rollouts()]
    if not lengths:
        raise ConfigError(f"no rollout could be scored: {study.files.refused(0)} has the reasons")
    print(
        f"{sum(lengths)} tokens in {len(lengths)} rollouts: {arguments.out}; next: calopd tsd analyze {arguments.out}"
    )


def _sample_and_score(arguments: argparse.Namespace) -> None:
    from calopd.config import load_config
    from calopd.local.services import resumable
    from calopd.study.collection import Goal, collect

    config = load_config(arguments.config, arguments.set)
    with resumable():
        collect(config, arguments.out, Goal.of(arguments), chosen=arguments.contexts, recorded=arguments.recorded)
