"""`make test-gpu` runs these tests and names the CUDA environment in CALOPD_TEST_GPU; `make test` leaves them out."""

import os
from pathlib import Path

import pytest

from tests.gpu.environments import VARIABLE, GpuProcesses, build_pretended_gpu, cuda_python

collect_ignore_glob = [] if os.environ.get(VARIABLE) else ["test_*.py"]


@pytest.fixture(scope="session")
def pretended_gpu(tmp_path_factory: pytest.TempPathFactory) -> GpuProcesses:
    """Processes with the CUDA build of torch, and a GPU that computes nothing."""
    python = cuda_python()
    folder: Path = tmp_path_factory.mktemp("pretended_gpu")
    build_pretended_gpu(python, folder)
    return GpuProcesses(python, folder)
