"""Commands in the blocks of README and docs, with what a block shows as their output.

A fenced block without a language contains commands; any other text has a language, for example `text`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.services.processes import ROOT

PAGES = (
    "README.md", "CONTRIBUTING.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
)  # fmt: skip
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S.*\n)+")
"""Lines after an empty one that begin with four spaces: a block of code, or the rest of an item of a list."""
PROGRAMS = {
    "calopd", "curl", "deploy/docker/build.sh", "deploy/k8s/cluster.sh", "docker", "export", "head", "kubectl", "make",
    "mkdir", "python", "source", "tail", "tensorboard", "vllm",
}  # fmt: skip


@dataclass(frozen=True)
class Documented:
    """A command, where it stands, and the line that the page shows below it."""

    page: str
    line: int
    text: str
    shown: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.text))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def documented() -> list[Documented]:
    return [command for page in PAGES for command in in_page(page, (ROOT / page).read_text(encoding="utf-8"))]


def in_page(page: str, text: str) -> Iterator[Documented]:
    for fence in FENCE.finditer(text):
        if not fence[2]:
            yield from _in_block(page, text[: fence.start(3)].count("\n") + 1, fence[3])
    rest = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    for block in INDENTED.finditer(rest):
        if block[0].split()[0] in PROGRAMS:
            yield from _in_block(page, rest[: block.start()].count("\n") + 1, block[0])


def _in_block(page: str, number: int, block: str) -> Iterator[Documented]:
    lines = re.sub(r"\\\n\s*", " ", block).splitlines()  # lines that go on
    shows_output = any(line.startswith("$ ") for line in lines)
    for place, line in enumerate(lines):
        if not line.strip() or (shows_output and not line.startswith("$ ")):
            continue
        below = lines[place + 1] if shows_output and place + 1 < len(lines) else ""
        for part in re.sub(r"\s#\s.*", "", line).removeprefix("$ ").split("&&"):
            yield Documented(page, number + place, part.strip(), below)


def docker_commands() -> list[Documented]:
    """Every `docker` command of the pages, in a block or in back ticks; a bare name (`docker kill`) is none."""
    pattern = re.compile(r"`([^`\n]*\bdocker (?:compose [a-z]|[a-z]+ [^`\n])[^`\n]*)`")
    found = [command for command in documented() if command.words[0] == "docker"]
    for page in PAGES:
        text = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), (ROOT / page).read_text(encoding="utf-8"))
        for command in pattern.finditer(text):
            found.append(Documented(page, text[: command.start()].count("\n") + 1, command[1]))
    return found
