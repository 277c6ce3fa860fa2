"""Code that Triton compiles can be loaded from the /tmp of the containers."""

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

from tests.gpu.environments import cuda_python
from tests.services.processes import ROOT

ROLES = ("teacher", "rollout", "learner")
DOCKERS = ("noexec", "nosuid", "nodev")
"""Flags that Docker puts before those of the compose file; a later flag replaces its opposite."""


def tmp_options(role: str) -> str:
    """The options of the mount at /tmp that the compose file asks for."""
    services = yaml.safe_load((ROOT / "deploy" / "docker" / "roles.yml").read_text())["services"]
    (found,) = (entry for entry in services[role]["tmpfs"] if entry.partition(":")[0] == "/tmp")
    return str(found.partition(":")[2])


def as_docker_mounts(options: str) -> str:
    given = options.split(",")
    return ",".join([flag for flag in DOCKERS if flag.removeprefix("no") not in given] + given)


def test_flags_replace_their_opposites():
    assert as_docker_mounts("size=4g,mode=1777") == "noexec,nosuid,nodev,size=4g,mode=1777"
    assert as_docker_mounts("exec,size=4g") == "nosuid,nodev,exec,size=4g"


def load_from(folder: Path, options: str) -> str:
    """What Triton says of a module that it compiled in a tmpfs with these options; the mount ends with the process."""
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists() or not shutil.which("gcc"):
        pytest.skip("no C compiler, or no headers of Python")
    python = cuda_python()
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    inside = ["unshare", *as_root, "--mount", "sh", "-c"]
    if subprocess.run([*inside, 'mount -t tmpfs tmpfs "$0"', str(folder)], capture_output=True).returncode:
        pytest.skip("this machine does not let these tests mount a tmpfs")
    # In the images HOME is /tmp, and Triton's cache is in HOME.
    environment = os.environ | {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_CACHE_DIR", None)
    script = f'mount -t tmpfs -o {as_docker_mounts(options)} tmpfs "$0" && "$1" -m tests.gpu.compiled_code'
    done = subprocess.run(
        [*inside, script, str(folder), str(python)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout))


@pytest.mark.parametrize("role", ROLES)
def test_every_role_may_run_code_in_tmp(role):
    assert "exec" in tmp_options(role).split(",")


def test_triton_loads_what_it_compiles(tmp_path):
    assert load_from(tmp_path, tmp_options("teacher")) == "loaded launcher"


def test_without_exec_it_does_not(tmp_path):
    options = ",".join(option for option in tmp_options("teacher").split(",") if option != "exec")
    assert "failed to map segment from shared object" in load_from(tmp_path, options)
