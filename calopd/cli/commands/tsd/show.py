"""Print the tables of a study, write its page and open it in a browser."""

import argparse

from calopd.cli.commands.tsd import report

HELP = "print the tables of a study, write its page and open it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    report.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    import webbrowser

    from calopd.study.analyze import read_analysis
    from calopd.study.terminal_tables import print_analysis

    print_analysis(read_analysis(arguments.directory))
    page = report.write(arguments)
    print(page)
    webbrowser.open(page.resolve().as_uri())
