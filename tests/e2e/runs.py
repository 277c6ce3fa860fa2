"""`calopd run` as a user types it, and what must be true of a run that has ended."""

import json
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from calopd.config import Config, load_config
from calopd.config.ports import local_ports
from calopd.rundir import checkpoints
from calopd.rundir.files import read_lines
from calopd.rundir.policies import load_policy
from calopd.rundir.policy_reader import FileReader
from tests.services.processes import ROOT
from tests.sockets import family


def start(*arguments: str) -> "subprocess.Popen[str]":
    return start_command("run", *arguments)


def start_command(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "calopd.cli", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: "subprocess.Popen[str]", code: int = 0, seconds: float = 900) -> str:
    out, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, out
    return out


def wait_for_lines(config: Config, count: int, process: "subprocess.Popen[str]", seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while len(read_lines(config.run_dir.metrics)) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(launcher: "subprocess.Popen[str]", module: str) -> None:
    """kill -9 of the processes of a service."""
    victims = [child for child in family(launcher.pid) if module in child.cmdline()]
    assert victims
    for victim in victims:
        victim.kill()


def run_with_a_kill(file: Path, settings: list[str], role: str, *, after: int) -> Config:
    """A run to its end, without evaluations, in which a role is killed after that many steps; it comes back."""
    settings = ["evaluation.problems=0", *settings]
    config = load_config(file, settings, {})
    process = start(str(file), *settings_of(settings))
    wait_for_lines(config, after, process)
    kill(process, f"services.{role}")
    assert f"{role} died" in finish(process)
    check_finished(config)
    return config


def newest_record(config: Config) -> checkpoints.Record:
    newest = checkpoints.latest(config.run_dir)
    assert newest is not None
    return checkpoints.read_record(newest)


def check_finished(config: Config) -> dict:
    """Every ticket was used once, every step has its line, everything that was started is gone."""
    steps, count = config.run.steps, config.learner.trajectories
    record = newest_record(config)
    assert record.step == steps
    assert sorted(record.used) == [f"step-{step:06d}" for step in range(steps)]
    assert all(Counter(used) == Counter(range(count)) for used in record.used.values())
    assert [line["step"] for line in read_lines(config.run_dir.metrics)] == list(range(steps))
    summary = json.loads(config.run_dir.summary.read_text())
    assert summary["tickets_issued"] == summary["trajectories_used"] == steps * count
    assert config.run_dir.report.stat().st_size > 100_000
    for port in local_ports(config).values():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)), f"something still listens at port {port}"
    return summary


def check_model(config: Config) -> None:
    """The exported student loads by path and is not the one it was."""
    model = AutoModelForCausalLM.from_pretrained(config.run_dir.model, dtype=torch.float32)
    AutoTokenizer.from_pretrained(config.run_dir.model)
    initial = AutoModelForCausalLM.from_pretrained(config.student.path, dtype=torch.float32)
    assert not torch.equal(model.model.embed_tokens.weight, initial.model.embed_tokens.weight)
    reader = FileReader(config.policies)
    last = load_policy(reader.fetch(config.run.steps).directory)
    assert torch.equal(model.model.embed_tokens.weight, last["model.embed_tokens.weight"])


def settings_of(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]
