"""A folder as a new user may have it: models, problems in several states, runs, a study, files that are no run.

Every mistake of test_mistakes.py is made in it, and it must look the same afterwards.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np

from calopd.study.shards import ScoredRollout, Study, StudyRollout
from tests.services.processes import ROOT

DEMO = ROOT / "examples" / "demo"
ROW = {"id": "1", "problem": "1 + 1?", "answer": "2"}
CONFIG = """
[run]
name = "mine"
steps = 2
[data]
train = "train.jsonl"
heldout = "heldout.jsonl"
max_prompt_tokens = 256
max_context_tokens = 512
[student]
path = "student"
[teacher]
path = "teacher"
max_tokens = 1024
[rollout]
max_tokens = 96
[learner]
trajectories = 16
[evaluation]
problems = 8
max_tokens = 96
"""
EXPERIMENT = """
title = "Mine"
dir = "experiment"
seeds = [0, 1]
[recipes]
pair = "run.toml"
[arms.opd]
set.method.name = "opd"
[evaluation]
benchmarks = ["heldout.jsonl"]
max_tokens = 96
max_prompt_tokens = 256
"""
EXPERIMENTS = {
    "price": ("", ""),
    "no-problems": ("max_tokens = 96", "problems = 0"),
    "no-tokens": ("max_prompt_tokens = 256", "max_prompt_tokens = 0"),
    "nothing-at-once": ("max_tokens = 96", "in_flight = 0"),
    "emulated": ("max_tokens = 96", 'engine = "emulated"'),
    "bad-seed": ("seeds = [0, 1]", "seeds = [-1]"),
    "no-rollouts": ("[evaluation]", '[studies.one]\nrecipe = "pair"\nrollouts = 0\n[evaluation]'),
    "no-benchmark": ("heldout", "nowhere"),
    "long-answers": ("max_tokens = 96", "max_tokens = 2000"),
    "long-rollouts": ('"opd"', '"opd"\nset.rollout.max_tokens = 2000'),
    "bad-study": ("[evaluation]", '[studies.one]\nrecipe = "pair"\nset.teacher.max_tokens = 100\n[evaluation]'),
    "taken": ('"experiment"', '"taken"'),
}
"""Name of an experiment -> what is replaced in the file above, and by what."""


def build(folder: Path) -> None:
    for name in ("student", "teacher"):
        shutil.copytree(DEMO / name, folder / name)
    for name in ("train", "heldout"):
        lines = (DEMO / f"{name}.jsonl").read_text().splitlines(keepends=True)
        (folder / f"{name}.jsonl").write_text("".join(lines[:40]))
    (folder / "run.toml").write_text(CONFIG)
    _models(folder)
    _problem_files(folder)
    _configurations(folder)
    _directories(folder)
    _study(folder / "study", rollouts=3)


def _models(folder: Path) -> None:
    broken = shutil.copytree(folder / "teacher", folder / "truncated")
    os.truncate(broken / "model.safetensors", 50_000)
    other = shutil.copytree(folder / "teacher", folder / "other-vocabulary")
    text = json.loads((other / "tokenizer.json").read_text())
    text["model"]["vocab"] = {
        token: number + (1 if number == 600 else 0) for token, number in text["model"]["vocab"].items()
    } | {"swapped": 600}
    (other / "tokenizer.json").write_text(json.dumps(text))
    (folder / "no-model").mkdir()
    (folder / "no-model" / "readme.txt").write_text("nothing")
    bare = shutil.copytree(folder / "student", folder / "no-template")
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    edit_json(bare / "tokenizer_config.json", chat_template=None)


def edit_json(file: Path, **values) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def _problem_files(folder: Path) -> None:
    row = json.dumps(ROW) + "\n"
    files = {
        "latin1.jsonl": json.dumps(ROW | {"problem": "Ist Müllers Zahl 2?"}, ensure_ascii=False).encode("latin-1"),
        "utf16.jsonl": row.encode("utf-16"),
        "empty.jsonl": b"",
        "blank.jsonl": b"\n\n",
        "not-json.jsonl": b"problem: 1 + 1\n",
        "array.jsonl": b"[1, 2]\n",
        "no-answer.jsonl": b'{"id": "1", "problem": "1 + 1?"}\n',
        "doubled.jsonl": (row + row).encode(),
        "without-solutions.jsonl": row.encode(),
        "long.jsonl": (json.dumps(ROW | {"problem": "one " * 3000}) + "\n").encode(),
        "not.parquet": b"no parquet",
        "only-empty.jsonl": b'{"problem": "", "answer": "2"}\n',
        "table.csv": b"problem,answer\n1 + 1?,2\n",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _configurations(folder: Path) -> None:
    (folder / "latin1.toml").write_bytes("# für alle\n[run]\n".encode("latin-1"))
    (folder / "no-toml.toml").write_text("[run\n")
    (folder / "itself.toml").write_text('extends = "itself.toml"\n')
    (folder / "lost-base.toml").write_text('extends = "no-such.toml"\n')
    (folder / "no-teacher.toml").write_text('[data]\ntrain = "train.jsonl"\n[student]\npath = "student"\n')
    (folder / "bad-id.toml").write_text(CONFIG.replace('"student"', '"my models/student"'))
    for name, change in EXPERIMENTS.items():
        (folder / f"{name}.exp.toml").write_text(EXPERIMENT.replace(*change) if change[0] else EXPERIMENT)
    (folder / "method.py").write_text("x = 1\n")
    (folder / "broken_method.py").write_text("def advantage(:\n")
    (folder / "failing_method.py").write_text("import no_such_library\n")


def _directories(folder: Path) -> None:
    thesis = folder / "runs" / "thesis"
    thesis.mkdir(parents=True)
    (thesis / "config.toml").write_text("[book]\n")
    (thesis / "thesis.tex").write_text("Three years of work.")
    (folder / "taken" / "runs" / "pair.opd.s1").mkdir(parents=True)
    (folder / "taken" / "runs" / "pair.opd.s1" / "thesis.tex").write_text("Three years of work.")
    damaged = folder / "runs" / "damaged"
    damaged.mkdir()
    (damaged / "config.toml").write_text("[run\n")
    (damaged / "run.json").write_text('{"id": "damaged-1", "started": 1.0}')
    existing = folder / "runs" / "existing"
    existing.mkdir()
    (existing / "config.toml").write_text(CONFIG.replace('"mine"', '"existing"'))
    (existing / "run.json").write_text('{"id": "existing-1", "started": 1.0}')
    (existing / "logs").mkdir()
    (existing / "logs" / "learner.log").write_text("step 1\n")
    (existing / "metrics.jsonl").write_text('{"step": 0, "retained_ratio": 0.5}\n')
    (folder / "evaluated" / "student").mkdir(parents=True)
    (folder / "evaluated" / "student" / "results.json").write_text('{"format": 99}')
    made_with = {
        "solved": {"model": "student", "weights": "of another model"},
        "newer": {"min_p": 0.1},  # a setting of a later version
        "torch": {"engine": "torch"},
        "old": None,
    }
    for name, settings in made_with.items():
        (folder / f"{name}.jsonl.attempts").write_text('{"id": "1", "correct": true, "solution": "2"}\n')
        if settings is not None:
            (folder / f"{name}.jsonl.settings.json").write_text(json.dumps(settings))


def _study(folder: Path, rollouts: int) -> None:
    """A study with an analysis that lacks the last rollout."""
    study = Study(folder)
    study.begin(student="student", teacher="teacher", contexts=["c0", "eval+", "eval-"], seed=0)
    study.write_tokens(["a", "b"])
    for index in range(rollouts):
        scores = np.full((3, 2), -1.0, np.float32)
        rollout = StudyRollout(index, str(index), 2)
        study.write_shard(0, [ScoredRollout(rollout, np.array([0, 1]), np.array([-1.0, -1.0], np.float32), scores)])
    study.files.analysis.write_text(json.dumps({"rollouts": rollouts - 1}))


def contents(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Size, time and mode of every file and folder."""
    return {
        str(path.relative_to(folder)): (info.st_size if path.is_file() else 0, info.st_mtime_ns, info.st_mode)
        for path in sorted(folder.rglob("*"))
        if (info := path.lstat())
    }
