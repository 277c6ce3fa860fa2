"""`calopd run` with several teachers, rollouts and ranks: each process sees its own GPUs, and all of them work."""

import signal
import subprocess
import urllib.request

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from calopd.config import Config, load_config
from calopd.rundir.files import read_lines
from tests.e2e.runs import check_finished, finish, settings_of, start, wait_for_lines
from tests.ports import free_ports
from tests.sockets import family, listeners

pytestmark = pytest.mark.slow
SERVICES = ("services.teacher_scorer", "services.rollout", "services.learner")
PLACED = ["resources.teacher=[0, 1]", "resources.rollout=[2, 3]", "resources.learner=[4, 5]"]
ON_CPU = ["teacher.device=cpu", "rollout.device=cpu", "learner.device=cpu"]
"""Without it the checks before a run ask for the GPUs."""


def visible_gpus(launcher: "subprocess.Popen[str]") -> list[tuple[str, str, str | None]]:
    """Service, GPUs and local rank of every process of a service; the launcher of the ranks counts as the learner."""
    found = []
    for child in psutil.Process(launcher.pid).children(recursive=True):
        module = next((word for word in child.cmdline() if word in SERVICES), None)
        if module:
            environment = child.environ()
            found.append((module, environment.get("CUDA_VISIBLE_DEVICES", "all"), environment.get("LOCAL_RANK")))
    return sorted(found, key=str)


def scored_tokens(port: int) -> float:
    """Tokens that the teacher with metrics at `port` has scored for rollouts."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "calopd_teacher_tokens_total" and sample.labels["context"].startswith("eval")
    )


def test_every_process_of_a_run_has_its_gpus(tiny, monkeypatch):
    """On a machine without GPUs the variable changes nothing, and the run is the same."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    teacher, _, metrics, *_ = free_ports(4)
    settings = [*PLACED, *ON_CPU, f"teacher.port={teacher}", f"teacher.metrics_port={metrics}"]
    file = tiny.write_config("placed", steps=100)
    config: Config = load_config(file, settings, {})
    process = start(str(file), *settings_of(settings))
    wait_for_lines(config, 1, process)
    assert visible_gpus(process) == [
        ("services.learner", "4,5", "0"),
        ("services.learner", "4,5", "1"),
        ("services.learner", "4,5", None),
        ("services.rollout", "2", None),
        ("services.rollout", "3", None),
        ("services.teacher_scorer", "0", None),
        ("services.teacher_scorer", "1", None),
    ]
    beyond = [listener for listener in listeners(family(process.pid)) if not listener.is_loopback]
    assert not beyond
    assert all(scored_tokens(port) > 0 for port in (metrics, metrics + 1))
    process.send_signal(signal.SIGINT)
    said = finish(process, code=130)
    assert "starting 2 teachers on GPU 0, 1, 2 rollouts on GPU 2, 3, 2 learner ranks on GPU 4, 5" in said

    # A placement may change when a run is resumed: the last step on one GPU of each role.
    last = len(read_lines(config.run_dir.metrics)) + 1
    elsewhere = ["resources.teacher=1", "resources.rollout=1", "resources.learner=1", f"run.steps={last}"]
    said = finish(start("--resume", str(config.run_dir), *settings_of(elsewhere)))
    assert "starting 1 teacher on GPU 0, 1 rollout on GPU 1, 1 learner rank on GPU 2" in said
    check_finished(load_config(config.run_dir.config, environ={}))
