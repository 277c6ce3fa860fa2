"""Every module can be imported with the package versions of the GPU base image."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gpu.environments import base_image_packages, cuda_python
from tests.services.processes import ROOT

STUBS = "calopd/transport/v1/teacher_scorer_pb2_grpc.py"


def run_in_image(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Python as in the image: CUDA torch, the base image's versions before those of .venv."""
    path = os.pathsep.join((str(root), str(base_image_packages())))
    command = [str(cuda_python()), *arguments]
    return subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)


def test_every_service_can_be_imported():
    done = run_in_image(ROOT, "-c", "import grpc; print(grpc.__version__)")
    assert f"grpcio=={done.stdout.strip()}" in (ROOT / "requirements" / "base-image.txt").read_text().split()
    done = run_in_image(ROOT, "-m", "services.import_check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("generated_with", "said"), [("1.82.1", ""), ("1.85.1", "RuntimeError: The grpc package")])
def test_stubs_of_a_newer_generator_fail(tmp_path, generated_with, said):
    for package in ("calopd", "services"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    stubs = tmp_path / STUBS
    text, count = re.subn(r"(GRPC_GENERATED_VERSION = )'[^']*'", rf"\1'{generated_with}'", stubs.read_text())
    assert count == 1
    stubs.write_text(text)
    done = run_in_image(tmp_path, "-c", "import services.teacher_scorer.server")
    assert said in done.stderr
    assert bool(done.returncode) == bool(said)
