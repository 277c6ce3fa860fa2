"""What a run needs to be operated: its configuration kept, its models fetched, its metrics named."""

import sys

import pytest

from calopd.cli import main
from calopd.cli.commands import download
from calopd.cli.registry import find_command
from calopd.config import load_config, save_with_run
from calopd.core.errors import ConfigError
from calopd.core.phase import Phase
from calopd.rundir.layout import RunDir
from calopd.tracking.metrics_page import metrics_of_run
from calopd.tracking.prometheus_tracker import PrometheusTracker
from calopd.tracking.tracker import TrackedRun
from services.learner.status import Status
from services.rollout.jobs.solve import solve

TOML = """
[run]
dir = "{root}/runs"
[data]
train = "train.jsonl"
[student]
path = "Qwen/Qwen3-1.7B"
[teacher]
path = "{root}"
"""


@pytest.fixture
def config_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(TOML.format(root=tmp_path))
    return file


def test_a_run_keeps_its_configuration_and_refuses_another(config_file):
    config = load_config(config_file, ["queue.url=redis://user:secret@host/0"], environ={})
    config.run_dir.path.mkdir(parents=True)
    save_with_run(config)
    assert "secret" not in config.run_dir.config.read_text()
    save_with_run(load_config(config_file, ["learner.ranks=4"], environ={}))
    with pytest.raises(ConfigError, match="relaxation"):
        save_with_run(load_config(config_file, ["method.relaxation=2"], environ={}))


def test_policies_may_have_a_volume_of_their_own(config_file, tmp_path):
    config = load_config(config_file, environ={})
    assert config.policies == config.run_dir.policies
    elsewhere = load_config(config_file, environ={"CALOPD__RUN__POLICIES": "/policies"})
    assert str(elsewhere.policies) == "/policies/run"


@pytest.mark.parametrize("words", ["--temperature -1", "--top-p 1.5", "--top-p 0", "--max-tokens 0"])
def test_impossible_sampling_is_refused_before_a_model_is_loaded(words, tmp_path):
    problems, model = tmp_path / "problems.jsonl", tmp_path / "model"
    problems.write_text('{"id": "1", "problem": "1 + 1?", "answer": "2"}\n')
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    key = words.split()[0]
    evaluate = f"eval {model} --benchmark {problems} -o {tmp_path / 'out'} {words}"
    solution = f"data solve {problems} -o {tmp_path / 'solved.jsonl'} --model {model} {words}"
    for line, start in ((evaluate, None), (solution, solve)):
        command, rest = find_command(line.split())
        with pytest.raises(ConfigError, match=f"^{key}: expected"):
            (start or command.module.run)(command.parser().parse_args(rest))


def test_waiting_for_models_ends_when_all_are_there(config_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "models"))
    monkeypatch.setattr(sys, "argv", ["calopd", "download", str(config_file), "--wait"])
    download.marker("Qwen/Qwen3-1.7B").parent.mkdir(parents=True)
    download.marker("Qwen/Qwen3-1.7B").touch()
    main.main()
    assert "a folder, nothing to download" in capsys.readouterr().out


def test_metrics_say_of_which_run_they_are_and_nothing_that_was_not_measured(tmp_path):
    line = {"step": 3, "retained_ratio": 0.6, "region_width": None, "deviation_eval+": 0.25, "tokens": 10,
            "tickets_used": 2, "tickets_missing": 0}  # fmt: skip
    PrometheusTracker(TrackedRun(directory=RunDir(tmp_path), run_id="mine-1", name="mine")).record(line)
    status = Status("mine", steps=5)
    status.enter(Phase.WAITING)
    page = metrics_of_run("mine").decode()
    assert 'calopd_learner_retained_discrepancy_ratio{run="mine"} 0.6' in page
    assert 'calopd_learner_step{run="mine"} 3.0' in page
    assert 'calopd_learner_self_deviation_nats{probe="eval+",run="mine"} 0.25' in page
    assert 'calopd_learner_phase_seconds_total{phase="starting",run="mine"}' in page
    assert "calopd_learner_region_width_nats" not in page
