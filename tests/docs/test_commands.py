"""Every command of README and docs: those of this machine are executed at a small size, the others are checked.

A documented command first runs as it is written up to the point where its processes would start: a wrong flag, a
missing file or lengths that do not fit fail there. Then one command of each kind runs to its end. `make` runs dry.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest

from calopd.cli.main import main
from calopd.cli.registry import find_command
from calopd.config import load_config
from calopd.evaluation import run_jobs
from calopd.local import replicated_job, training
from calopd.study import collection
from tests.docs.commands import PROGRAMS, Documented, documented, in_page
from tests.services.processes import ROOT

COMMANDS = documented()
NOT_EXECUTED = {
    ("kubectl",): "needs a cluster; what it changes is in the manifests",
    ("deploy/k8s/cluster.sh",): "needs a cluster; the script has the command",
    ("docker",): "needs the images; it names one that is built, and its command is read",
    ("vllm",): "needs 8 GPUs",
    ("curl",): "needs a run that is active; tests/services/rollout send the same request",
    ("tensorboard",): "serves until it is stopped",
    ("source",): "changes the shell",
    ("python", "-m", "services"): "needs several machines; its settings are read, tests/services start it",
    ("calopd", "run", "configs/qwen3-4b-to-1.7b.toml"): "needs 8 GPUs; the file is loaded",
    ("calopd", "download"): "needs the hub; the file is loaded",
    ("calopd", "experiment", "run"): "takes hours; tests/e2e/test_experiment.py runs a small one",
    ("calopd", "doctor", "configs/qwen3-4b-to-1.7b.toml"): "needs 8 GPUs; the file is loaded",
    ("calopd", "data", "prepare", "BytedTsinghua-SIA/DAPO-Math-17k"): "needs the hub; its options are read",
    ("calopd", "data", "solve", "data/dapo-math-17k.jsonl"): "needs the file of the step before; its options are read",
    ("calopd", "data", "negatives", "data/dapo-math-solved.jsonl"): "needs the file of the step before",
    ("calopd", "eval", "Qwen/Qwen3-1.7B"): "needs the hub and a GPU; its options are read",
}
SHORT = ["--max-tokens", "96", "--max-prompt-tokens", "256"]
"""Lengths that fit the demo's models."""
DRY = {"make": ["make", "-n"], "deploy/docker/build.sh": ["env", "DOCKER=true", "deploy/docker/build.sh"]}
"""Commands that take minutes or install packages, as they are executed instead."""
SHELL = ("export", "head", "mkdir", "tail")
PLACEHOLDERS = {
    "CONFIG": ["configs/demo.toml"], "SOURCE": ["four.jsonl"], "M": ["examples/demo/teacher"], "STUDY": ["runs/tsd"],
    "OTHER": ["runs/tsd"], "[LABEL=]MODEL": ["examples/demo/student"], "…": [], "RESULTS": ["runs/demo/eval/student"],
    "OTHERS": ["runs/demo/eval/cal_opd"], "NAMES": ["examples/demo/heldout.jsonl", *SHORT],
}  # fmt: skip
"""Words of a command that stand for something of the reader's."""
TORCH = ("rollout.engine=torch", "teacher.threads=1", "rollout.threads=1")
SMALL_RUN = (
    *TORCH, "run.steps=1", "learner.trajectories=4", "evaluation.problems=2", "rollout.max_tokens=16",
    "evaluation.max_tokens=16",
)  # fmt: skip


def settings(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


SMALL = {
    ("run",): settings(*SMALL_RUN),
    ("eval",): ["--engine", "torch", "--problems", "2", "-n", "1", "--max-tokens", "16"],
    ("data", "solve"): ["--engine", "torch"],
    ("tsd", "collect"): ["--rollouts", "4", *settings(*TORCH)],
}
"""Options that make a command small; a later option replaces an earlier one."""
COPIED = (("run",), ("tsd", "collect"))
"""One run and one study stand for all: later commands need their folders."""
ORDER = ("run", "report", "eval", "eval compare", "data prepare", "data solve", "data negatives", "tsd collect",
         "tsd analyze")  # fmt: skip


class Started(Exception):
    """The point where a command would start its processes."""


def reason_not_executed(command: Documented) -> str:
    joined = " ".join(command.words)
    return next((reason for words, reason in NOT_EXECUTED.items() if joined.startswith(" ".join(words))), "")


def test_blocks_are_found() -> None:
    assert len(COMMANDS) > 85
    assert {command.page for command in COMMANDS} >= {
        "README.md",
        "docs/evaluation.md",
        "docs/tsd.md",
        "docs/doctor.md",
    }


def test_commands_are_found_in_every_kind_of_block() -> None:
    page = """
1. Build:

   ```
   make one && make two \\
     --with three   # a comment
   ```

Then:

    calopd four

```text
calopd shown
```

```
$ calopd five
error: six
```
"""
    found = [(command.line, command.text, command.shown) for command in in_page("page", page)]
    assert found == [
        (5, "make one", ""), (5, "make two  --with three", ""), (18, "calopd five", "error: six"),
        (11, "calopd four", ""),
    ]  # fmt: skip


def test_a_block_without_a_language_has_known_programs() -> None:
    unknown = [str(command) for command in COMMANDS if command.words[0] not in PROGRAMS]
    assert not unknown, "write ```text above a block of other text, or say here how the program is executed"


@pytest.mark.parametrize("text", dict.fromkeys(c.text for c in COMMANDS if c.words[0] in DRY))
def test_a_dry_run_succeeds(text: str) -> None:
    program, *words = shlex.split(text)
    done = subprocess.run([*DRY[program], *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [c for c in COMMANDS if reason_not_executed(c)], ids=str)
def test_a_command_that_is_not_executed_names_what_exists(command: Documented) -> None:
    words = list(command.words)
    match words[0]:
        case "kubectl":
            assert words[:3] == ["kubectl", "-n", "calopd"]
            manifests = [file.read_text() for file in (ROOT / "deploy" / "k8s" / "base").glob("*.yaml")]
            if "-l" in words:
                label = words[words.index("-l") + 1].replace("=", ": ")
                assert any(label in file for file in manifests)
            else:
                named = words[4:6] if words[3] == "patch" else words[4].split("/")
                kind, name = {"job": "Job", "deploy": "Deployment"}[named[0]], named[1]
                parts = [part for file in manifests for part in file.split("\n---\n")]
                assert any(re.search(rf"^kind: {kind}$.*?\bname: {name}\b", part, re.M | re.S) for part in parts)
        case "deploy/k8s/cluster.sh":
            script = (ROOT / words[0]).read_text(encoding="utf-8")
            known = re.findall(r"^  ([a-z |]+)\) ", script, re.MULTILINE)
            assert words[1] in " ".join(known).split()
        case "docker":
            image = next(number for number, word in enumerate(words) if word.startswith("calopd/"))
            assert words[image].removeprefix("calopd/").removesuffix(":local") in ("teacher", "rollout", "learner")
            if words[image + 1 : image + 4] == ["python", "-m", "calopd.cli"]:
                found, rest = find_command(words[image + 4 :])
                found.parser().parse_args(rest)
        case "curl":
            assert json.loads(words[words.index("-d") + 1])["problem"]
        case "python":
            path = ROOT / words[words.index("-m") + 1].replace(".", "/")
            assert (path / "__main__.py").is_file() or path.with_suffix(".py").is_file()
            overrides = [after for word, after in pairwise(words) if word == "--set"]
            (file,) = PLACEHOLDERS[words[words.index("--config") + 1]]
            load_config(ROOT / file, overrides, environ={})
        case "calopd":
            found, rest = find_command(words[1:])
            arguments = found.parser().parse_args(rest)
            if getattr(arguments, "config", None):
                load_config(ROOT / arguments.config, environ={})


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of a clone that the pages name."""
    for name in ("configs", "examples"):
        os.symlink(ROOT / name, tmp_path / name)
    for page in ("tutorial", "methods"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        before, _, after = text.partition("```python\n")
        name = re.findall(r"`(\w+\.py)`", before)[-1]
        (tmp_path / name).write_text(after.partition("```")[0])
    problems = (ROOT / "examples" / "demo" / "heldout.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "four.jsonl").write_text("".join(problems[:4]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    for name in [name for name in os.environ if name.startswith("CALOPD")]:
        monkeypatch.delenv(name)
    return tmp_path


def replaced(words: Sequence[str]) -> list[str]:
    return [word for given in words for word in PLACEHOLDERS.get(given, [given])]


def key(command: Documented) -> tuple[int, int]:
    """A command comes after those whose files it needs; the evaluation with the most models is the first."""
    name = " ".join(find_command(list(command.words[1:]))[0].words)
    return ORDER.index(name) if name in ORDER else len(ORDER), -len(command.words) if name == "eval" else 0


def execute(words: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["calopd", *words])
    try:
        main()
    except SystemExit as ended:
        return ended.code
    return 0


def to_the_start(words: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a command until it would start its processes."""

    def start(*arguments: object, **options: object) -> NoReturn:
        raise Started

    with monkeypatch.context() as patched:
        for module, name in ((training, "_train"), (run_jobs, "_sample"), (collection, "_collect"), (os, "execv")):
            patched.setattr(module, name, start)
        patched.setattr(replicated_job, "run_replicas", start)
        try:
            return execute(words, monkeypatch)
        except Started:
            return 0


def as_process(program: str, words: list[str]) -> None:
    sys.exit(subprocess.run(words).returncode)


@pytest.mark.slow
def test_documented_commands_do_what_the_page_says(workspace, monkeypatch, capfd):
    commands = [c for c in COMMANDS if c.words[0] == "calopd" and not reason_not_executed(c)]
    monkeypatch.setattr(os, "execv", as_process)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    finished: dict[tuple[str, ...], Path] = {}
    for command in sorted(commands, key=key):
        found, rest = find_command(replaced(command.words[1:]))
        words = [*found.words, *rest, *(SHORT if found.words == ("data", "solve") else [])]
        if command.shown:
            assert execute(words, monkeypatch) == 78, command
            assert capfd.readouterr().err.splitlines()[-1] == command.shown, command
            continue
        if "--full" in words:  # loads the models: tests/doctor does that
            words[words.index("--full")] = "--quick"
        assert to_the_start(words, monkeypatch) == 0, (command, capfd.readouterr())
        remove_runs_that_only_began(workspace / "runs")
        target = folder_of(found.words, words)
        if found.words in COPIED and found.words in finished:
            if target != finished[found.words]:
                shutil.copytree(finished[found.words], target, dirs_exist_ok=True)
        elif found.words in SMALL and found.words not in finished:
            assert execute([*words, *SMALL[found.words]], monkeypatch) == 0, (command, capfd.readouterr())
        finished.setdefault(found.words, target)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for command in COMMANDS:
        if command.words[0] in SHELL:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", command.text], capture_output=True, text=True)
            assert done.returncode == 0, (command, done.stderr)
    assert {("run",), ("eval",), ("data", "solve"), ("tsd", "collect"), ("tsd", "compare"), ("report",)} <= set(
        finished
    )


def remove_runs_that_only_began(runs: Path) -> None:
    for folder in runs.glob("*"):
        if (folder / "run.json").exists() and not (folder / "summary.json").exists():
            shutil.rmtree(folder)


def folder_of(command: tuple[str, ...], words: list[str]) -> Path:
    """The folder that a run or a study writes."""
    if command != ("run",):
        return Path(words[words.index("-o") + 1]) if "-o" in words else Path()
    named = [word.partition("=")[2] for word in words if word.startswith("run.name=")]
    return Path("runs") / (named[0] if named else "demo")
