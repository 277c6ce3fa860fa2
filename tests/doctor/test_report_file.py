"""The report that a user pastes into an issue, the table, and the facts that a GPU host measures."""

import io
import json
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from calopd.config import load_config
from calopd.doctor import gpu_facts, report_file
from calopd.doctor.case import Case
from calopd.doctor.checks import CHECKS, Level, Result, examine
from calopd.doctor.gpu_facts import FACTS, measure
from calopd.doctor.outcome import failed, not_checked, passed
from calopd.doctor.report_file import redacted, write_report
from calopd.doctor.results_table import show
from tests.ports import free_ports
from tests.services.processes import ROOT

RESULTS = [
    Result("first", passed("all is good", detail="a longer text")),
    Result(
        "second", failed("the thing at some.host:1 is broken in a way that takes many words " * 2, "repair the thing")
    ),
    Result("third", not_checked("no thing here")),
    Result("fourth", not_checked("no thing here")),
]


def shown(terminal: bool) -> str:
    out = io.StringIO()
    show(Console(file=out, force_terminal=terminal, width=80, color_system=None), RESULTS)
    return out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_results_say_what_was_found_and_what_to_do(terminal):
    text = shown(terminal)
    for part in ("first", "passed", "failed", "not checked", "repair the thing", "a longer text"):
        assert part in text
    assert "1 passed, 1 failed, 2 not checked" in text


def test_checks_that_were_not_made_for_one_reason_share_a_row_of_the_table():
    (row,) = (line.split() for line in shown(terminal=True).splitlines() if "no thing here" in line)
    assert " ".join(row) == "2 checks not checked no thing here: third, fourth"


def test_the_table_fits_into_80_columns():
    assert max(map(len, shown(terminal=True).splitlines())) <= 80


def test_plain_text_has_no_control_characters():
    assert "\x1b" not in shown(terminal=False)


def test_a_report_has_everything_but_secrets(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("CALOPD_TOKEN", "the-bearer-token")
    monkeypatch.setenv("HF_TOKEN", "hf_0123")
    settings = ['queue.url="redis://user:p%40ssword@127.0.0.1:1/0"']
    case = Case(load_config(tiny.write_config("report"), settings, environ={}))
    leaking = [Result("leak", failed("login with p@ssword and the-bearer-token failed", "say hf_0123"))]
    for name in ("report.md", "report.json"):
        write_report(case, [*examine(case, Level.QUICK), *leaking], tmp_path / name)
        text = (tmp_path / name).read_text()
        for secret in ("p@ssword", "p%40ssword", "the-bearer-token", "hf_0123"):
            assert secret not in text
        for part in (
            torch.__version__,
            "student model",
            "login with [secret] and [secret] failed",
            "max_prompt_tokens",
        ):
            assert part in text
    found = json.loads((tmp_path / "report.json").read_text())
    assert [check["check"] for check in found["checks"][:-1]] == [check.name for check in CHECKS]
    assert found["gpu facts"] is None


def test_a_secret_is_hidden_in_json_too():
    assert redacted(json.dumps({"a": 'quo"te'}), ['quo"te']) == '{"a": "[secret]"}'


def test_the_facts_of_a_gpu_can_be_measured_on_a_cpu_too(monkeypatch):
    """The same code as on a GPU, at a smaller size: packed attention equals plain attention, the head is exact."""
    monkeypatch.setattr(gpu_facts, "VOCABULARY", 2_048)
    monkeypatch.setattr(gpu_facts, "LENGTHS", (70, 190, 6))
    found = measure(torch.device("cpu"))
    assert found.keys() == FACTS.keys()
    assert not [value for value in found.values() if str(value).startswith("error")]
    assert found["packed_attention"]["max_error"] < 1e-5
    assert found["packed_attention"]["max_gradient_error"] < 1e-4
    precision = found["head_precision"]
    assert 100 * precision["mean_error_nats"] < precision["mean_error_of_bfloat16_logits_nats"]


def test_a_fact_that_fails_is_reported_and_the_others_follow(monkeypatch):
    def broken(device):
        raise RuntimeError("no kernel image is available\nfor this GPU")

    monkeypatch.setattr(gpu_facts, "FACTS", {"broken": broken, "fused_adamw": FACTS["fused_adamw"]})
    expected = {"broken": "error: RuntimeError: no kernel image is available", "fused_adamw": "works"}
    assert measure(torch.device("cpu")) == expected


def test_facts_come_from_a_process_of_their_own(monkeypatch):
    """CUDA is never initialised in the process that reports."""
    monkeypatch.setattr(report_file, "query_gpus", lambda: [object()])
    done = subprocess.CompletedProcess([], 0, 'a warning\n{"device": {"name": "some GPU"}}\n', "")
    monkeypatch.setattr(report_file.subprocess, "run", lambda *args, **options: done)
    assert report_file.measured_gpu_facts() == {"device": {"name": "some GPU"}}
    done.returncode, done.stderr = 1, "Traceback\nRuntimeError: no driver\n"
    assert report_file.measured_gpu_facts() == {"error": "RuntimeError: no driver"}


@pytest.mark.slow
def test_the_demo_is_all_green_with_its_models_loaded(tmp_path):
    """The real jobs as real processes. The sampler is the one of torch, which starts faster than vLLM."""
    ports = dict(zip(("learner", "teacher", "rollout", "queue"), free_ports(4), strict=True))
    settings = ["rollout.engine=torch", *(f"{section}.port={port}" for section, port in ports.items())]
    settings += [f"teacher.metrics_port={free_ports(1)[0]}"]
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "calopd.cli", "doctor", "configs/demo.toml", "--full", "--problems", "8"]
    command += ["--report", str(report), *(word for setting in settings for word in ("--set", setting))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    results = {row["check"]: row["result"] for row in found["checks"]}
    for name in ("scores against model", "sampler against learner", "teacher against student"):
        assert results[name] == "passed", done.stdout
    assert found["measured"]["student sampled"]["tokens_per_s"] > 0
    assert found["measured"]["learner"]["dtype"] == "float32"
