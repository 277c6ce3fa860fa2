"""The environment of `make test-gpu` with the CUDA build of torch, and processes in it that see a pretended GPU."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services.processes import ROOT

VARIABLE = "CALOPD_TEST_GPU"
"""Folder that `tests.gpu.prepare` filled."""
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


def cuda_python() -> Path:
    """Python with the CUDA build of torch."""
    folder = ROOT / os.environ[VARIABLE]
    if not (folder / ".ready").exists():
        pytest.skip(f"the CUDA build of torch could not be installed into {folder}")
    return folder / "venv" / "bin" / "python"


def base_image_packages() -> Path:
    """Packages in the versions of the GPU base image, to be found before those of .venv."""
    cuda_python()
    return ROOT / os.environ[VARIABLE] / "base-image"


def build_pretended_gpu(python: Path, folder: Path) -> None:
    """Compile tests/gpu/pretended_gpu.c under the names that torch opens."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    (headers,) = python.parents[1].glob("lib/python3.*/site-packages/triton/backends/nvidia/include")
    for name in LIBRARIES:
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", f"-I{headers}", "-o", str(folder / name)]
        subprocess.run([*command, str(ROOT / "tests" / "gpu" / "pretended_gpu.c")], check=True)


@dataclass(frozen=True)
class GpuProcesses:
    python: Path
    folder: Path
    """Holds the libraries of the pretended GPU."""

    def answer(self, module: str, *arguments: str) -> Any:
        """Run a module of tests/gpu; the JSON of the last line that it prints."""
        ours = {"PYTHONPATH": str(ROOT), "LD_PRELOAD": str(self.folder / LIBRARIES[0])}
        ours["LD_LIBRARY_PATH"] = str(self.folder)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTORCH_"))}
        done = subprocess.run(
            [str(self.python), "-m", f"tests.gpu.{module}", *arguments],
            cwd=ROOT, env=inherited | ours, text=True, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-6000:]
        return json.loads(done.stdout.splitlines()[-1])
