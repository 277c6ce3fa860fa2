"""Rules that keep the tree easy to find one's way in: sizes, names, docstrings, words."""

import ast
import re
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.services.processes import ROOT

MOST_ENTRIES = 17
MOST_LINES = 300
GENERATED = "calopd/transport/v1/"
CONVENTIONAL_MODULES = {"__init__", "__main__", "base", "layout", "prometheus", "server"}
"""One of each per package or service, with the same role in each."""
USERS_NAMES = ("calopd/config/sections/", "calopd/cli/")
"""Files named as the section or the command that the user types."""
CONVENTIONAL_CLASSES: set[str] = set()
REPLACED_WORDS = (
    r"wobbl\w*", r"a (line|row|file) a (step|run|ticket)", r"a process a core", r"anew", r"taken? up", r"takes up",
    r"set(s|ting)? aside", r"bur(y|ied|ies)", r"what it came to", r"what was kept", r"mend(s|ed|ing)?", r"wishes",
    r"is well(?! maintained)", r"rules of the house",
)  # fmt: skip
"""Idiom of ours that readers from elsewhere stumble over; CONTRIBUTING has the usual words."""


@cache
def tracked() -> tuple[str, ...]:
    """The files of the repository, and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git clone")
    return tuple(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def sources(*roots: str) -> list[Path]:
    return [Path(n) for n in tracked() if n.endswith(".py") and n.startswith(roots) and not n.startswith(GENERATED)]


def tree(file: Path) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def doubled(names: dict[str, list[str]], conventional: set[str]) -> dict[str, list[str]]:
    return {name: places for name, places in names.items() if len(places) > 1 and name not in conventional}


def test_calopd_has_few_entries() -> None:
    entries = {name.split("/")[1] for name in tracked() if name.startswith("calopd/")}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_no_environment_is_committed() -> None:
    """A link named .venv in a commit replaces the folder of that name in every clone that pulls it."""
    command = ["git", "ls-files", ".venv", "build", "runs"]
    committed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    assert committed == [], f"remove them from the commit: git rm -r --cached {' '.join(committed)}"


def test_no_source_file_is_long() -> None:
    files = sources("calopd/", "services/", "benchmarks/", "examples/", "tests/", "deploy/", "requirements/")
    long = {str(file): count for file in files if (count := len((ROOT / file).read_text().splitlines())) > MOST_LINES}
    assert not long


def test_no_two_modules_share_a_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in sources("calopd/", "services/"):
        if not str(file).startswith(USERS_NAMES):
            places[file.stem].append(str(file))
    assert not doubled(places, CONVENTIONAL_MODULES)


def test_no_two_classes_share_a_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in sources("calopd/", "services/"):
        for node in tree(file).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file))
    assert not doubled(places, CONVENTIONAL_CLASSES)


def test_every_module_has_a_docstring() -> None:
    lacking = [
        str(file)
        for file in sources("calopd/", "services/", "benchmarks/", "examples/", "deploy/")
        if (ROOT / file).read_text().strip() and ast.get_docstring(tree(file)) is None
    ]
    assert not lacking


def test_no_docstring_begins_with_what() -> None:
    """A noun phrase or an imperative says it shorter."""
    found = []
    for file in sources("calopd/", "services/", "benchmarks/", "examples/", "deploy/"):
        for node in ast.walk(tree(file)):
            # A string that stands alone: of a module, a class, a function, or of the attribute above it.
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = str(node.value.value)
                found += [f"{file}: {text.splitlines()[0]}"] if re.match(r"\s*What ", text) else []
    assert not found, "\n".join(found)


def test_words_are_the_usual_ones() -> None:
    roots = (
        "calopd/",
        "services/",
        "docs/",
        "examples/",
        "benchmarks/",
        "deploy/",
        "configs/",
        "README",
        "CONTRIBUTING",
        "SECURITY",
        "CHANGELOG",
        "pyproject",
    )
    endings = (".py", ".md", ".toml", ".yml", ".yaml", ".proto", ".html", ".js", ".css")
    pattern = re.compile(rf"\b({'|'.join(REPLACED_WORDS)})\b", re.IGNORECASE)
    found = []
    for name in tracked():
        if name.startswith(roots) and name.endswith(endings) and not name.startswith((GENERATED, "examples/demo/")):
            for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
                # The table in CONTRIBUTING that names a word and the one to use instead is no use of it.
                if (match := pattern.search(line)) and not re.match(r"^\| .* \|$", line):
                    found.append(f"{name}:{number}: {match[0]}")
    assert not found, "\n".join(found)
