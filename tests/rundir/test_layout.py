"""The paths of a run, and that nobody else spells them."""

import re

from calopd.evaluation.layout import EvaluationDir
from calopd.rundir import checkpoints
from calopd.rundir.layout import RunDir, numbered, numbers
from calopd.rundir.run_id import ensure_run_id
from calopd.study.layout import StudyDir
from tests.services.processes import ROOT

NAMES = (
    "config.toml", "run.json", "metrics.jsonl", "trajectories.jsonl", "summary.json", "report.html", "record.json",
    "manifest.json", "digests.json", "study.json", "tokens.json", "analysis.json", "advice.json", "tsd.html",
    "job.json", "results.json", "evaluation.html", "checkpoints", "policies", "logs", ".lock", ".learner.lock",
    ".collectors",
)  # fmt: skip
FORMATS = {
    "calopd/rundir/checkpoints.py": {"record.json", "digests.json"},
    "calopd/rundir/policies.py": {"manifest.json"},
}
"""The files inside a numbered folder belong to the module that defines the folder's format."""


def test_no_path_is_spelled_outside_the_layouts():
    """A literal in an expression like `run_dir / "config.toml"`; prose and other names may say what they like."""
    spelled = re.compile(r"""/ (f?["'])(""" + "|".join(map(re.escape, NAMES)) + r")\1")
    found = []
    for folder in ("calopd", "services"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if file.name != "layout.py":
                found += [(name, match[2]) for match in spelled.finditer(file.read_text())]
    assert found == []


def test_each_name_is_a_constant_once():
    constants = re.compile(r"""["'](""" + "|".join(re.escape(name) for name in NAMES if "." in name) + r""")["']""")
    found: dict[str, list[str]] = {}
    for folder in ("calopd", "services"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for match in constants.finditer(file.read_text()):
                found.setdefault(match[1], []).append(file.relative_to(ROOT).as_posix())
    for name, files in found.items():
        allowed = {"calopd/rundir/layout.py", "calopd/study/layout.py", "calopd/evaluation/layout.py"}
        allowed |= {file for file, names in FORMATS.items() if name in names}
        assert set(files) <= allowed, name
        assert len(files) == len(set(files)), name


def test_the_names_on_disk_stay_as_they_are(tmp_path):
    """Runs, studies and evaluations of earlier versions are read with these names."""
    run, study, evaluation = RunDir(tmp_path), StudyDir(tmp_path), EvaluationDir(tmp_path)
    paths = [
        run.config, run.run_id, run.metrics, run.trajectories, run.summary, run.report, run.model, run.checkpoint(12),
        run.policies, run.evaluation(3), run.logs, run.redis, study.facts, study.tokens, study.next_shard(1),
        study.analysis, study.tables, evaluation.job, evaluation.results, evaluation.journal(0),
    ]  # fmt: skip
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "config.toml", "run.json", "metrics.jsonl", "trajectories.jsonl", "summary.json", "report.html", "model",
        "checkpoints/000012", "policies", "evaluations/000003.json", "logs", "redis", "study.json", "tokens.json",
        "shards/001-000000.parquet", "analysis.json", "tables", "job.json", "results.json", "samples/0.jsonl",
    ]  # fmt: skip


def test_a_run_is_usable_as_a_path(tmp_path):
    run = RunDir(tmp_path / "mine")
    assert f"{run}" == str(tmp_path / "mine")
    assert run.name == "mine"
    assert not run.is_run
    run.path.mkdir()
    run.launcher_lock.touch()
    assert run.contents == []
    run.config.touch()
    assert not run.is_run
    run.config.unlink()
    ensure_run_id(run)
    assert run.is_run
    assert run.contents == [run.run_id]


def test_only_complete_folders_count(tmp_path):
    for number in (2, 10):
        numbered(tmp_path, number).mkdir()
        (numbered(tmp_path, number) / "done").touch()
    numbered(tmp_path, 11).mkdir()
    (tmp_path / "000012.tmp").mkdir()
    (tmp_path / "000012.tmp" / "done").touch()
    assert numbers(tmp_path, "done") == [2, 10]


def test_the_newest_checkpoint_is_the_last_complete_one(tmp_path):
    run = RunDir(tmp_path)
    assert checkpoints.latest(run) is None
    for step in (4, 8, 12):
        run.checkpoint(step).mkdir(parents=True)
        checkpoints.write_record(run.checkpoint(step), checkpoints.Record(step=step, used={"step-000000": [0, 1, 1]}))
    run.checkpoint(16).mkdir()
    assert checkpoints.latest(run) == run.checkpoint(12)
    record = checkpoints.read_record(run.checkpoint(12))
    assert (record.step, record.trajectories_used) == (12, 3)
    checkpoints.prune(run, keep=2)
    assert checkpoints.steps(run) == [8, 12]
    assert checkpoints.run_of(run.checkpoint(12)) == run


def test_a_checkpoint_that_was_not_finished_is_removed_when_the_next_learner_starts(tmp_path):
    run = RunDir(tmp_path)
    run.checkpoint(4).mkdir(parents=True)
    checkpoints.write_record(run.checkpoint(4), checkpoints.Record(step=4))
    (run.checkpoints / "000008.tmp").mkdir()
    (run.checkpoints / "000008.tmp" / "__0_0.distcp").write_bytes(b"half")
    checkpoints.remove_incomplete(run)
    assert [folder.name for folder in run.checkpoints.iterdir()] == ["000004"]
