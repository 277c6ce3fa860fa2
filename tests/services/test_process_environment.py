"""What processes of the services set before torch is imported, and what they leave behind when they are stopped."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from calopd.config import load_config
from calopd.doctor import model_jobs
from calopd.doctor.model_jobs import LEARN, SAMPLE, SCORE
from tests.services.processes import ROOT

ALLOCATOR = "PYTORCH_ALLOC_CONF"
DEMO = ROOT / "configs" / "demo.toml"
TEACHER = """
import os, runpy, sys, types

async def serve(config):
    print(os.environ.get("PYTORCH_ALLOC_CONF"), "torch" in sys.modules)

sys.modules["services.teacher_scorer.server"] = types.SimpleNamespace(serve=serve)
runpy.run_module("services.teacher_scorer", run_name="__main__")
"""
STOPPED = """
import os, signal, subprocess, sys, time
from services.rollout.jobs.solve import _stop

code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
engine.stdout.readline()
print(engine.pid, flush=True)
signal.signal(signal.SIGTERM, _stop)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
"""


def said(code: str, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != ALLOCATOR} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize(("engine", "expected"), [("torch", "expandable_segments:True"), ("vllm", "None")])
def test_the_allocator_of_a_torch_teacher_is_configured_before_torch_is_imported(engine, expected):
    assert said(TEACHER, "--config", str(DEMO), "--set", f"teacher.engine={engine}") == f"{expected} False"


@pytest.mark.parametrize(
    ("module", "engine", "expected"),
    [(LEARN, "torch", True), (SCORE, "torch", True), (SCORE, "vllm", False), (SAMPLE, "torch", False)],
)
def test_jobs_of_the_doctor_have_the_allocator_of_their_service(monkeypatch, module, engine, expected):
    monkeypatch.delenv(ALLOCATOR, raising=False)
    given = {}

    def run(command, env, **_):
        given.update(env)
        return SimpleNamespace(returncode=1, stderr="")

    monkeypatch.setattr(model_jobs.subprocess, "run", run)
    with pytest.raises(model_jobs.JobFailed):
        model_jobs.run_job(module, load_config(DEMO, [f"teacher.engine={engine}"], environ={}), {})
    assert (given.get(ALLOCATOR) == "expandable_segments:True") == expected


def test_a_stopped_data_solve_leaves_no_engine():
    engine = int(said(STOPPED))
    try:
        process = psutil.Process(engine)
    except psutil.NoSuchProcess:
        return
    process.kill()
    assert process.status() == psutil.STATUS_ZOMBIE, "the engine has outlived its parent"
