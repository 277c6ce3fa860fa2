"""Train on this machine: start, supervise and stop all services, then write the report."""

import argparse
from pathlib import Path

HELP = "train on this machine: start, supervise and stop all services"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, nargs="?", help="the run's TOML, for example configs/demo.toml")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="resume the run in this directory")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing run of this name")
    parser.add_argument("--trace", action="store_true", help="trace all processes: trace.json.gz, for Perfetto")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")


def run(arguments: argparse.Namespace) -> None:
    from calopd.config import check_resumable, load_config
    from calopd.config.load import given_settings
    from calopd.config.ports import chosen_ports
    from calopd.config.resume import check_owner
    from calopd.core.errors import ConfigError
    from calopd.local.services import resumable
    from calopd.local.training import run as train
    from calopd.rundir.layout import RunDir
    from calopd.rundir.training_problems import check_problems

    if (arguments.config is None) == (arguments.resume is None):
        raise ConfigError("give either a configuration or --resume DIR")
    if arguments.resume and arguments.overwrite:
        raise ConfigError("--resume continues a run and --overwrite replaces it: give one of them")
    if arguments.resume and not RunDir(arguments.resume).is_run:
        raise ConfigError(f"--resume {arguments.resume}: no run there; expected a directory like runs/demo")
    if arguments.resume:
        check_owner(RunDir(arguments.resume), given_settings(arguments.set).get("method.file"))
    file = RunDir(arguments.resume).config if arguments.resume else arguments.config
    config = load_config(file, [*arguments.set, *(["run.trace=true"] if arguments.trace else [])])
    # The ports of a saved configuration are those that were free when the run was started.
    ports = set(given_settings(arguments.set)) if arguments.resume else chosen_ports(config)
    if arguments.resume:
        check_resumable(load_config(file, environ={}), config)
        check_problems(config.run_dir, config.data.train)
        if config.run_dir.path.resolve() != arguments.resume.resolve():
            raise ConfigError(f"{file} belongs to the run {config.run_dir}: resume it from the directory it began in")
    with resumable(f"resume with: calopd run --resume {config.run_dir}"):
        train(config, resume=arguments.resume is not None, overwrite=arguments.overwrite, chosen_ports=ports)
