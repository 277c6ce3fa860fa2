"""Finds commands by their place: `calopd data prepare` is the module `commands/data/prepare.py`.

A command module has HELP (one line), `add_arguments(parser)` and `run(arguments)`. A package is a group of commands;
with `run` it is a command as well. Modules import heavy libraries inside `run` only, so that --help is instant.
"""

import argparse
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from calopd.core.one_line_parser import OneLineParser

ROOT = "calopd.cli.commands"


@dataclass(frozen=True, slots=True)
class Command:
    """A command or a group of commands."""

    words: tuple[str, ...]
    """The words that name it on the command line, after `calopd`."""

    @property
    def module(self) -> ModuleType:
        return import_module(".".join((ROOT, *self.words)))

    @property
    def children(self) -> list["Command"]:
        """The commands of a group, by name."""
        found = pkgutil.iter_modules(getattr(self.module, "__path__", []))
        return [Command((*self.words, module.name)) for module in sorted(found, key=lambda module: module.name)]

    def parser(self) -> argparse.ArgumentParser:
        module, prog = self.module, " ".join(("calopd", *self.words))
        parser = OneLineParser(
            prog=prog, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if add_arguments := getattr(module, "add_arguments", None):
            add_arguments(parser)
        if callable(getattr(module, "run", None)):  # in a group it may be the module of a command of that name
            lines = [f"  {prog} {child.words[-1]} ...  {child.module.HELP}" for child in self.children]
            parser.epilog = "\n".join(["further commands:", *lines]) if lines else None
        else:
            commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
            for child in self.children:
                commands.add_parser(child.words[-1], help=child.module.HELP)
        return parser


def find_command(words: Sequence[str]) -> tuple[Command, list[str]]:
    """The command that the first words name, as many as name one, and the words after them."""
    command, rest = Command(()), list(words)
    while rest and (child := Command((*command.words, rest[0]))) in command.children:
        command = child
        del rest[0]
    return command, rest
