"""Recommend the probes and the relaxation to train with, with the reasons."""

import argparse
from pathlib import Path

HELP = "recommend probes and relaxation to train with"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="the study's directory")


def run(arguments: argparse.Namespace) -> None:
    from calopd.rundir.files import write_json
    from calopd.study.advise import advise
    from calopd.study.analyze import read_analysis
    from calopd.study.layout import StudyDir

    advice = advise(read_analysis(arguments.directory))
    write_json(StudyDir(arguments.directory).advice, advice.as_json())
    print(advice.text())
