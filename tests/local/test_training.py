"""The start of a run: what is replaced, what is resumed, what is refused; nothing is started here."""

import fcntl
import json
import sys
from pathlib import Path

import pytest

from calopd.cli.main import main
from calopd.config import Config, load_config
from calopd.local import training
from calopd.rundir.run_id import ensure_run_id


class Begun(Exception):
    """The point where the processes would start."""


@pytest.fixture
def config(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    def begin(*arguments: object) -> None:
        raise Begun

    monkeypatch.setattr(training, "_train", begin)
    file = tmp_path / "run.toml"
    file.write_text(tiny.config("again").replace(f'dir = "{tiny.root / "runs"}"', f'dir = "{tmp_path}"'))
    return load_config(file, environ={})


def run(monkeypatch: pytest.MonkeyPatch, config: Config, *words: str) -> None:
    file = config.run.dir / "run.toml"
    monkeypatch.setattr(sys, "argv", ["calopd", "run", *(words or [str(file)])])
    main()


def test_the_name_of_a_run_that_failed_at_its_start_is_free(config, monkeypatch):
    for _ in range(2):
        with pytest.raises(Begun):
            run(monkeypatch, config)
    assert config.run_dir.is_run


@pytest.mark.parametrize("folder", ["policies", "checkpoints"])
def test_a_run_that_has_begun_is_not_replaced(config, monkeypatch, capsys, folder):
    with pytest.raises(Begun):
        run(monkeypatch, config)
    (config.run_dir.path / folder / "000000").mkdir(parents=True)
    with pytest.raises(SystemExit):
        run(monkeypatch, config)
    assert "exists: resume it with" in capsys.readouterr().err


def test_a_run_that_another_process_works_on_is_named_before_its_ports(config, monkeypatch, capsys):
    config.run_dir.path.mkdir()
    with config.run_dir.launcher_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit):
            run(monkeypatch, config)
    assert "is being run by another process: wait for its end" in capsys.readouterr().err


def test_a_finished_run_is_not_started_again(config, monkeypatch, capsys):
    with pytest.raises(Begun):
        run(monkeypatch, config)
    config.run_dir.summary.write_text(json.dumps({"steps": config.run.steps}))
    run(monkeypatch, config, "--resume", str(config.run_dir))
    assert "is complete: 2 steps. To train on, add --set run.steps=N" in capsys.readouterr().out
    with pytest.raises(Begun):
        run(monkeypatch, config, "--resume", str(config.run_dir), "--set", "run.steps=3")


def test_resuming_finds_free_ports_instead_of_the_saved_ones(config, monkeypatch):
    with pytest.raises(Begun):
        run(monkeypatch, config)
    used = load_config(config.run_dir.config, environ={}).learner.port
    with training.reserved_ports(config, ()), pytest.raises(Begun):
        run(monkeypatch, config, "--resume", str(config.run_dir))
    assert load_config(config.run_dir.config, environ={}).learner.port != used


def test_only_what_calopd_made_is_replaced(config, monkeypatch):
    config.run_dir.path.mkdir()
    (config.run_dir.path / "notes.txt").write_text("mine")
    ensure_run_id(config.run_dir)
    with pytest.raises(Begun):
        run(monkeypatch, config, str(config.run.dir / "run.toml"), "--overwrite")
    assert not (config.run_dir.path / "notes.txt").exists()
