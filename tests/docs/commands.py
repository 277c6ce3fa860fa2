"""Commands in the fenced blocks of README and docs, with what a block shows as their output."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import ROOT

PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")))
FIRST_WORDS = ("calopd", "make", "python", "torchrun", "kubectl", "curl", "tensorboard", "export", "source")


@dataclass(frozen=True)
class Documented:
    """A command, where it stands, and the line that the page shows below it."""

    page: str
    line: int
    words: tuple[str, ...]
    shown: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {' '.join(self.words)}"


def documented() -> list[Documented]:
    return [command for page in PAGES for command in _in_page(page)]


def _in_page(page: str) -> list[Documented]:
    found = []
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.finditer(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        number = text[: block.start(1)].count("\n") + 1
        lines = re.sub(r"\\\n\s*", " ", block[1]).splitlines()  # lines that go on
        for place, line in enumerate(lines):
            below = lines[place + 1] if place + 1 < len(lines) else ""
            for part in re.sub(r"\s#\s.*", "", line).removeprefix("$ ").split("&&"):
                if part.split()[:1] and part.split()[0] in FIRST_WORDS:
                    shown = below if line.startswith("$ ") else ""
                    found.append(Documented(page, number + place, tuple(shlex.split(part)), shown))
    return found


def is_tree(command: Documented) -> bool:
    """A line of the table of folders, which begins like a command."""
    return command.words[0].endswith("/")


def make_targets() -> set[str]:
    makefile = Path(ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
