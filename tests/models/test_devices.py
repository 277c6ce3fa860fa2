"""Data types by device, and an environment in which vLLM's processes can use CUDA."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from calopd.cli.registry import find_command
from calopd.config.sections import LearnerSection, RolloutSection, TeacherSection
from calopd.core.options import DTYPES
from calopd.models import devices
from calopd.models.devices import FORK_SAFETY, choose_device, choose_dtype, dtype_name, set_process_environment
from tests.services.processes import ROOT

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("setting", "device", "chosen"),
    [
        ("auto", CPU, torch.float32),
        ("auto", GPU, torch.bfloat16),
        ("bfloat16", CPU, torch.bfloat16),
        ("float32", GPU, torch.float32),
    ],
)
def test_auto_is_bfloat16_on_a_gpu_and_float32_on_a_cpu(setting, device, chosen):
    assert choose_dtype(setting, device) is chosen
    assert dtype_name(chosen) in DTYPES


def test_auto_is_the_default_of_every_dtype_and_all_have_the_same_values():
    for section, name in ((TeacherSection, "dtype"), (RolloutSection, "dtype"), (LearnerSection, "compute_dtype")):
        field = section.model_fields[name]
        assert (field.default, get_args(field.annotation)) == ("auto", DTYPES)
    for words in (["eval", "m", "--benchmark", "b"], ["data", "solve", "s", "-o", "o", "--model", "m"]):
        command, rest = find_command(words)
        assert command.parser().parse_args(rest).dtype == "auto"


def test_auto_is_the_gpu_of_the_rank_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("auto") == torch.device("cuda", 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU


def test_a_query_for_gpus_is_made_in_the_safe_environment(monkeypatch):
    for name in FORK_SAFETY:
        monkeypatch.delenv(name, raising=False)
    seen = {}

    def is_available() -> bool:
        seen.update({name: os.environ.get(name) for name in FORK_SAFETY})
        return False

    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=is_available))
    assert not devices.cuda_available()
    assert seen == FORK_SAFETY


def test_what_the_user_set_is_kept(monkeypatch):
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "forkserver")
    set_process_environment()
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "forkserver"


def test_nothing_else_asks_whether_there_is_a_gpu():
    """`torch.cuda.is_available()` elsewhere would initialise CUDA before vLLM starts its processes."""
    found = []
    for file in [*ROOT.glob("calopd/**/*.py"), *ROOT.glob("services/**/*.py")]:
        if file.relative_to(ROOT) == Path("calopd/models/devices.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("is_available", "init", "current_device"):
                found += [f"{file}:{node.lineno}"] if "cuda" in ast.unparse(node) else []
    assert not found


def test_every_entry_point_sets_the_environment_before_torch_is_imported():
    code = (
        "import os, sys\n"
        "from calopd.local.entry_point import guarded\n"
        "def main():\n"
        "    assert 'torch' not in sys.modules\n"
        f"    assert {{name: os.environ[name] for name in {list(FORK_SAFETY)}}} == {FORK_SAFETY}\n"
        "guarded(main)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    entries = [*ROOT.glob("services/*/__main__.py"), *ROOT.glob("services/*/jobs/*.py")]
    started = [file for file in entries if "__main__" in file.read_text()]
    assert len(started) >= 6
    assert all(re.search(r"^    guarded\(", file.read_text(), re.MULTILINE) for file in started)
