"""`calopd eval` at its start; nothing is sampled here."""

import fcntl
import json
import shutil
import sys
from typing import Any

import pytest
from rich.console import Console

from calopd.cli.main import main
from calopd.core.options import Sampling
from calopd.evaluation import run_jobs
from calopd.evaluation.benchmarks import load_benchmark
from calopd.evaluation.job import Job, Settings
from calopd.evaluation.layout import EvaluationDir
from calopd.local.services import Stopped
from calopd.local.supervisor import ProcessFailed
from calopd.rundir.files import Journal


def test_two_evaluations_cannot_share_a_folder(tiny, tmp_path, monkeypatch, capsys):
    words = f"eval s={tiny.student} --benchmark {tiny.heldout} --max-tokens 8 --max-prompt-tokens 256 -o {tmp_path}"
    monkeypatch.setattr(sys, "argv", ["calopd", *words.split()])
    directory = EvaluationDir(tmp_path / "s")
    directory.path.mkdir()
    with directory.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit):
            main()
    assert "is being evaluated by another process: choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "how"), [("", "the command"), ("--overwrite", "the command without --overwrite")])
def test_a_stopped_evaluation_says_how_to_resume(tiny, tmp_path, monkeypatch, capsys, option, how):
    """With --overwrite, the samples of all models are removed before the first one is sampled."""

    def stop(*_: object) -> None:
        raise Stopped

    models = f"s={tiny.student} t={tiny.teacher}"
    words = f"eval {models} --benchmark {tiny.heldout} --max-tokens 8 --max-prompt-tokens 256 -o {tmp_path} {option}"
    job_of(tiny).save(EvaluationDir(tmp_path / "t"))
    add_samples(EvaluationDir(tmp_path / "t"), range(2), correct=False)
    if not option:
        shutil.rmtree(tmp_path / "t")
    monkeypatch.setattr(sys, "argv", ["calopd", *words.split()])
    monkeypatch.setattr(run_jobs, "_sample", stop)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == f"stopped; repeat {how} to resume\n"
    assert not EvaluationDir(tmp_path / "t").journals


class StoppedServices:
    """Processes that wrote three samples and then failed."""

    def __init__(self, directory: EvaluationDir, error: ProcessFailed | None) -> None:
        self._directory, self._error = directory, error

    def __enter__(self) -> "StoppedServices":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start_replicas(self, *_: object, gpus: object) -> list[Any]:
        return []

    def watch(self, *_: object, poll_seconds: float) -> Any:
        add_samples(self._directory, range(2, 4), correct=True)
        yield []
        if self._error is not None:
            raise self._error


def add_samples(directory: EvaluationDir, numbers: range, correct: bool) -> None:
    journal = Journal(directory.journal(0))
    for number in numbers:
        row = {"benchmark": "heldout", "problem_id": "p1-0", "sample": number, "correct": correct, "length": 1}
        journal.add(row)
    journal.close()


@pytest.mark.parametrize(("repeats", "resumable"), [(False, True), (True, False)])
def test_a_failure_says_whether_the_same_command_helps(tiny, tmp_path, monkeypatch, repeats, resumable):
    job, directory = job_of(tiny), EvaluationDir(tmp_path)
    error = ProcessFailed("replica-0 died", repeats=repeats)
    monkeypatch.setattr(run_jobs, "LocalServices", lambda *_: StoppedServices(directory, error))
    with pytest.raises(run_jobs.EvaluationFailed) as failed:
        run_jobs.run_job(job, directory, [()], Console(quiet=True))
    assert ("repeat the command to resume" in str(failed.value)) is resumable


def test_progress_counts_the_samples_of_earlier_starts(tiny, tmp_path, monkeypatch):
    job, directory = job_of(tiny), EvaluationDir(tmp_path)
    shown: list[dict[str, object]] = []
    add_samples(directory, range(2), correct=False)
    monkeypatch.setattr(run_jobs, "LocalServices", lambda *_: StoppedServices(directory, None))
    monkeypatch.setattr(run_jobs.Progress, "update", lambda self, task, **values: shown.append(values))
    run_jobs._sample(job, directory, [()], Console(quiet=True), (2, 0), 4)
    assert shown[-1] == {"completed": 4, "description": "s 0.500 correct"}


def job_of(tiny) -> Job:
    settings = Settings("s", str(tiny.student), None, "digest", None, n=4, sampling=Sampling(max_tokens=8))
    assert json.loads(tiny.heldout.read_text().splitlines()[0])["id"]
    return Job(settings, [load_benchmark(str(tiny.heldout), 1)])
