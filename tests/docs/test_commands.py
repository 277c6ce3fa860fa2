"""Every command of README and docs: those of this machine are executed at a small size, the others are checked.

A documented command first runs as it is written up to the point where its processes would start: a wrong flag, a
missing file or lengths that do not fit fail there. Then one command of each kind runs to its end.
"""

import json
import os
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from calopd.cli.main import main
from calopd.cli.registry import find_command
from calopd.config import load_config
from calopd.evaluation import run_jobs
from calopd.local import replicated_job, training
from calopd.study import collection
from tests.docs.commands import Documented, documented, make_targets
from tests.services.processes import ROOT

COMMANDS = documented()
NOT_EXECUTED = {
    ("make",): "installs packages or runs this test; its target exists",
    ("kubectl",): "needs a cluster; the folder of -k exists",
    ("curl",): "needs a run that is active; tests/services/rollout send the same request",
    ("tensorboard",): "serves until it is stopped",
    ("export",): "sets variables of other machines",
    ("source",): "changes the shell",
    ("python", "-m", "services"): "needs several machines; tests/services start it",
    ("torchrun",): "needs several machines; tests/services/learner start it",
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
ORDER = ("run", "report", "eval", "eval compare", "data prepare", "data solve", "data negatives", "tsd collect",
         "tsd analyze")  # fmt: skip


class Started(Exception):
    """The point where a command would start its processes."""


def reason_not_executed(command: Documented) -> str:
    joined = " ".join(command.words)
    return next((reason for words, reason in NOT_EXECUTED.items() if joined.startswith(" ".join(words))), "")


def test_blocks_are_found() -> None:
    assert len(COMMANDS) > 45
    assert {command.page for command in COMMANDS} >= {
        "README.md",
        "docs/evaluation.md",
        "docs/tsd.md",
        "docs/doctor.md",
    }


@pytest.mark.parametrize("command", [c for c in COMMANDS if reason_not_executed(c)], ids=str)
def test_a_command_that_is_not_executed_names_what_exists(command: Documented) -> None:
    words = list(command.words)
    match words[0]:
        case "make":
            assert words[1] in make_targets()
        case "kubectl":
            assert "-k" not in words or (ROOT / words[words.index("-k") + 1] / "kustomization.yaml").is_file()
        case "curl":
            assert json.loads(words[words.index("-d") + 1])["problem"]
        case "python" | "torchrun":
            module = words[words.index("-m") + 1]
            assert (ROOT / module.replace(".", "/") / "__main__.py").is_file()
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
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    method = next(block for block in tutorial.split("```python\n")[1:] if "METHOD = Method(" in block)
    (tmp_path / "my_method.py").write_text(method.partition("```")[0])
    problems = (ROOT / "examples" / "demo" / "heldout.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "four.jsonl").write_text("".join(problems[:4]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    for name in [name for name in os.environ if name.startswith("CALOPD")]:
        monkeypatch.delenv(name)
    return tmp_path


def replaced(words: Sequence[str]) -> list[str]:
    return [word for given in words for word in PLACEHOLDERS.get(given, [given])]


def key(command: Documented) -> int:
    name = " ".join(find_command(list(command.words[1:]))[0].words)
    return ORDER.index(name) if name in ORDER else len(ORDER)


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
        if found.words in (("run",), ("tsd", "collect")) and found.words in finished:
            if target != finished[found.words]:  # one run and one study stand for all
                shutil.copytree(finished[found.words], target, dirs_exist_ok=True)
        elif found.words in SMALL:
            assert execute([*words, *SMALL[found.words]], monkeypatch) == 0, (command, capfd.readouterr())
        finished.setdefault(found.words, target)
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
