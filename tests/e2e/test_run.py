"""`calopd run` as a user types it: whole runs on tiny models, killed, stopped and taken up again."""

import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from calopd.config import Config, load_config
from calopd.core.environment import TOKEN
from calopd.rundir.files import read_lines
from tests.e2e.conftest import STEPS
from tests.e2e.runs import check_finished, check_model, finish, kill, settings_of, start, wait_for_lines
from tests.services.processes import ROOT, service, wait_until_serving
from tests.sockets import family, listeners

pytestmark = pytest.mark.slow


def test_a_run_leaves_what_it_promises(undisturbed):
    summary = check_finished(undisturbed)
    check_model(undisturbed)
    assert summary["sampler"].startswith("torch")
    assert summary["evaluation_problems"] == undisturbed.evaluation.problems
    evaluated = [int(file.stem) for file in sorted(undisturbed.run_dir.evaluations.iterdir())]
    assert {0, STEPS} <= set(evaluated) <= set(range(0, STEPS + 1, 2))
    for line in read_lines(undisturbed.run_dir.metrics):
        assert 0 < line["retained_ratio"] < 1
        assert 0 < line["zero_ratio"] < 1
        assert line["logprob_mismatch"] < 1e-4
        assert line["staleness"] == 0
        assert 0 <= line["top16_mass_overlap"] <= 1
        assert line["sign_flip_share"] == 0
    assert "exists" in finish(start(str(undisturbed.run_dir.config)), code=78)


def test_the_trace_of_a_run_shows_the_work_of_all_roles(undisturbed):
    events = json.loads(gzip.decompress(undisturbed.run_dir.trace.read_bytes()))["traceEvents"]
    roles = {e["pid"]: e["args"]["name"].partition("-")[0] for e in events if e["name"] == "process_name"}
    assert set(roles.values()) == {"rollout", "teacher", "learner"}
    spans = Counter((roles[e["pid"]], e["name"]) for e in events if e["ph"] in ("X", "b"))
    assert spans["rollout", "sample"] >= STEPS * undisturbed.learner.trajectories
    assert spans["learner", "optimizer step"] == STEPS
    assert spans["learner", "checkpoint: write"] == STEPS // undisturbed.learner.checkpoint_every
    for name in (("teacher", "score batch"), ("learner", "learn"), ("learner", "publish policy")):
        assert spans[name] >= STEPS, name
    assert spans["rollout", "load policy"] > 0


def test_two_ranks_take_the_same_first_step_as_one(tiny, undisturbed):
    """The same tickets, seeds and policy: loss and gradient norm must agree, and so must AdamW's first update."""
    file = tiny.write_config("two-ranks", steps=STEPS)
    settings = ["learner.ranks=2", "learner.micro_batch_tokens=512", f"run.steps={STEPS}"]
    process = start(str(file), *settings_of(settings))
    finish(process)
    config = load_config(file, settings, {})
    check_finished(config)
    check_model(config)
    one, two = (read_lines(c.run_dir.metrics)[0] for c in (undisturbed, config))
    for name in ("tokens", "loss", "grad_norm", "retained_ratio", "zero_ratio", "entropy"):
        assert two[name] == pytest.approx(one[name], rel=1e-4), name


def test_vllm_trains(tiny):
    file = tiny.write_config("vllm")
    config = load_config(file, ['rollout.engine="vllm"'], {})
    process = start(str(file), "--set", 'rollout.engine="vllm"')
    wait_for_lines(config, 1, process)
    assert not [listener for listener in listeners(family(process.pid)) if not listener.is_loopback]
    finish(process)
    assert check_finished(config)["sampler"].startswith("vllm ")
    check_model(config)
    assert all(line["logprob_mismatch"] < 1e-4 for line in read_lines(config.run_dir.metrics))


def test_a_teacher_equal_to_the_student_teaches_nothing(tiny):
    file = tiny.write_config("equal", steps=1)
    settings = [f'teacher.path="{tiny.student}"', "evaluation.problems=0"]
    finish(start(str(file), *settings_of(settings)))
    (line,) = read_lines(load_config(file, settings, {}).run_dir.metrics)
    assert abs(line["loss"]) < 1e-5
    assert line["grad_norm"] < 1e-5
    assert 0 <= line["retained_ratio"] <= 1
    # The rest are last bits: teacher and learner add up the same numbers in another order.
    assert line["zero_ratio"] > 0.6


def update(config: Config) -> torch.Tensor:
    """What training changed, as one vector."""
    initial, final = (
        load_file(path / "model.safetensors") for path in (Path(config.student.path), config.run_dir.model)
    )
    return torch.cat([(final[name] - initial[name]).flatten().double() for name in sorted(final)])


def test_a_stopped_run_is_taken_up(tiny, undisturbed):
    """A service is killed, then the run is stopped in mid-step and resumed: it ends with the same bits.

    tests/chaos kills every role.
    """
    file = tiny.write_config("stopped", steps=STEPS)
    config = load_config(file, environ={})
    process = start(str(file), "--set", "run.deterministic=true")
    wait_for_lines(config, 1, process)
    kill(process, "services.teacher_scorer")
    wait_for_lines(config, 3, process)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    out = finish(process, code=130, seconds=300)
    assert time.monotonic() - asked < 60
    assert "teacher died" in out
    assert f"calopd run --resume {config.run_dir}" in out
    finish(start("--resume", str(config.run_dir)))
    check_finished(config)
    assert torch.equal(update(config), update(undisturbed))
    first, again = (json.loads(c.run_dir.evaluation(0).read_text()) for c in (undisturbed, config))
    assert first == again


def test_a_prompt_that_is_too_long_is_told_before_anything_starts(tiny, tmp_path):
    problems = tmp_path / "long.jsonl"
    rows = [{"id": f"l{i}", "problem": "long " * (400 if i == 7 else 1), "answer": "1"} for i in range(24)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tiny.write_config("too-long-a-prompt")
    line = one_line(finish(start(str(file), "--set", f'data.train="{problems}"'), code=78))
    assert "problem l7 under c0 has a prompt of" in line
    assert "more than data.max_prompt_tokens = 256" in line


def test_a_step_that_lacks_too_much_stops_the_run_with_the_reason(tiny, tmp_path, monkeypatch):
    """A teacher elsewhere, whose limits the start does not know, takes less than the prompts and responses have."""
    monkeypatch.setenv(TOKEN.name, "secret")
    file = tiny.write_config("lacking")
    low, log = tmp_path / "low.toml", tmp_path / "teacher.log"
    low.write_text(file.read_text().replace("max_tokens = 1024", "max_tokens = 200"))
    port = load_config(file, environ={}).teacher.port
    settings = [f'teacher.addresses=["127.0.0.1:{port}"]', "evaluation.problems=0", "rollout.max_tokens=48"]
    with service("services.teacher_scorer", low, log, dict(os.environ)) as teacher:
        wait_until_serving(port, teacher, log)
        last = finish(start(str(file), *settings_of(settings)), code=78).strip().splitlines()[-1]
    assert "step 1 lacks" in last
    assert "tokens, the limit is 200" in last


def test_a_killed_learner_and_launcher_are_taken_up(tiny):
    """kill -9 of everything at once, Redis included, in mid-step."""
    file = tiny.write_config("all-killed", steps=6)
    config = load_config(file, environ={})
    process = start(str(file))
    wait_for_lines(config, 2, process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in family:
        child.kill()
    process.communicate()
    psutil.wait_procs(family, timeout=120)
    done = len(read_lines(config.run_dir.metrics))
    assert done < 6
    finish(start("--resume", str(config.run_dir)))
    check_finished(config)


def test_services_end_with_a_killed_launcher(tiny):
    file = tiny.write_config("orphans", steps=50)
    process = start(str(file))
    wait_for_lines(load_config(file, environ={}), 1, process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive


def one_line(out: str) -> str:
    lines = out.strip().splitlines()
    assert len(lines) == 1, out
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('student.path="no/such/model"', "student.path = 'no/such/model': no folder there"),
        ('data.train="no.jsonl"', "no problems at no.jsonl"),
        ("learner.tajectories=3", "unknown key learner.tajectories: did you mean trajectories?"),
        ("rollout.cpu_kv_cache_gib=4000", "not enough memory: about"),
        ("evaluation.problems=17", "holds 16"),
    ],
)
def test_what_cannot_work_is_one_clear_line(tiny, setting, message):
    file = tiny.write_config("errors")
    extra = ["--set", 'rollout.engine="vllm"'] if "cache" in setting else []
    assert message in one_line(finish(start(str(file), "--set", setting, *extra), code=78))


def test_a_port_in_use_is_one_clear_line(tiny):
    file = tiny.write_config("port")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", load_config(file, environ={}).rollout.port))
        taken.listen()
        line = one_line(finish(start(str(file)), code=78))
    assert "(rollout.port) is in use" in line


def test_an_error_of_a_service_ends_the_run_with_its_line(tiny, tmp_path):
    """A model that only its service can find to be broken."""
    broken = shutil.copytree(tiny.teacher, tmp_path / "broken")
    settings = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(settings | {"model_type": "of-the-future"}))
    file = tiny.write_config("broken")
    out = finish(start(str(file), "--set", f'teacher.path="{broken}"'), code=78)
    assert out.strip().splitlines()[-1].startswith("error: teacher: ")


def test_help_is_instant_and_imports_nothing_heavy():
    code = """
import sys
import calopd.cli.main
sys.argv = ["calopd", "--help"]
try:
    calopd.cli.main.main()
finally:
    assert "torch" not in sys.modules and "grpc" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "run" in done.stdout


def test_every_service_explains_itself():
    for name in ("teacher_scorer", "rollout", "learner"):
        command = [sys.executable, "-m", f"services.{name}", "--help"]
        assert "--config" in subprocess.run(command, cwd=Path(ROOT), capture_output=True, text=True, check=True).stdout
