"""Create a virtual environment and install a lock file into it: `make setup`, `make setup-gpu`, the images.

    python3 -m requirements.install cpu --venv .venv
    python3 -m requirements.install gpu --venv .venv [--force]      # --force: without an NVIDIA driver
    python3 -m requirements.install image --venv /opt/calopd        # on top of the packages of a base image

pip installs, because it is part of Python and reads this machine's settings (pip.conf, PIP_INDEX_URL, certificates);
uv reads none of them. Every file is checked against its hash. The standard library is enough to run this.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from requirements.pins import HERE, Pin, for_image, minimums, normalized, read

TORCH_INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
"""An index with the CPU build of torch, asked beside the configured ones. Empty: only those."""
PYTHONS = {"cpu": ((3, 11),), "gpu": ((3, 11), (3, 12))}
OLDEST_DRIVER = 580
"""Series of NVIDIA's driver for Linux that CUDA 13 needs."""
NOT_FOUND = "No matching distribution found"
NO_COMPILE = "--no-compile"
"""Python compiles what is imported on its first import; compiling every file takes pip longer than copying them."""


class InstallError(Exception):
    """The environment cannot be installed; the message says why and what to do."""


class Environment:
    """A virtual environment and its pip."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "bin" / "python")

    def create(self, kind: str) -> None:
        """Create it, or keep it if it is of this kind: the two vLLM packages write the same files."""
        ready = self.folder / ".ready"
        other = ready.exists() and ready.read_text().strip() not in ("", kind)
        if other or not Path(self.python).exists():
            image = kind == "image"
            if not image and not importlib.util.find_spec("ensurepip"):
                raise InstallError(f"{sys.executable} has no ensurepip: on Debian, apt-get install python3-venv")
            venv.create(self.folder, clear=other, with_pip=not image, system_site_packages=image, symlinks=True)

    def pip_install(self, *arguments: str) -> None:
        options = ["--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [self.python, "-m", "pip", "install", *options, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=HERE.parent,
        )  # fmt: skip
        if done.returncode:
            raise InstallError(f"pip install failed:\n{done.stdout.strip()[-4000:]}")

    def install(self, pins: Iterable[Pin], *arguments: str) -> None:
        """Install pins, each file checked against its hashes."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.writelines(f"{pin.text}\n" for pin in pins)
            file.flush()
            self.pip_install("--require-hashes", "-r", file.name, *arguments)

    def versions(self) -> dict[str, str]:
        """The packages that Python finds there, those of a base image included."""
        code = (
            "import json, importlib.metadata as m;"
            "print(json.dumps([(p.metadata['Name'], p.version) for p in m.distributions()]))"
        )
        found = subprocess.run([self.python, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
        # The first found is the one that is imported.
        return {normalized(name): version for name, version in reversed(json.loads(found.stdout))}


def install_torch(environment: Environment, cpu_build: Pin) -> None:
    """The CPU build of torch; if it cannot be found, PyPI's CUDA build with its libraries, which works on a CPU too."""
    try:
        environment.install([cpu_build], NO_COMPILE, *index_options())
    except InstallError as error:
        if NOT_FOUND not in str(error):
            raise
        print(
            f"note: torch {cpu_build.version} is neither on {TORCH_INDEX or 'TORCH_INDEX (not set)'} nor on the"
            " configured index. Installing the CUDA build, which works too and is 4 GB larger. To avoid it, set"
            " TORCH_INDEX to an index with the CPU build.",
            flush=True,
        )
        environment.install(read("torch-cuda.lock").values(), NO_COMPILE)


def index_options() -> list[str]:
    if not TORCH_INDEX:
        return []
    # A host behind a firewall must not hold up the installation; a user's own settings are kept.
    patience = [] if {"PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"} & set(os.environ) else ["--timeout", "15"]
    return ["--extra-index-url", TORCH_INDEX, *patience, *([] if "PIP_RETRIES" in os.environ else ["--retries", "2"])]


def check_driver(versions: str | None) -> None:
    """Refuse a host whose NVIDIA driver cannot run CUDA 13."""
    why = None
    if versions is None:
        why = "nvidia-smi was not found: this host has no NVIDIA driver"
    elif not re.match(r"\d+\.", versions):
        why = f"nvidia-smi failed: {versions.strip() or 'no output'}"
    elif int(versions.partition(".")[0]) < OLDEST_DRIVER:
        why = f"the NVIDIA driver is {versions.split()[0]}"
    if why:
        raise InstallError(
            f"{why}. CUDA 13 needs a driver of the {OLDEST_DRIVER} series or later. Without a GPU use `make setup`;"
            " to install the GPU packages anyway, `make setup-gpu FORCE=1`."
        )


def driver_versions() -> str | None:
    """The driver's version, one line per GPU; None if there is no nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    except FileNotFoundError:
        return None


def install_environment(kind: str, environment: Environment) -> None:
    """All pins of a kind, the project and a check that every service can be imported."""
    pins = read(f"{kind}.lock")
    # Two pips use two cores. Each writes files of its own.
    with ThreadPoolExecutor(1) as aside:
        torch = aside.submit(install_torch, environment, pins.pop("torch")) if kind == "cpu" else None
        environment.install(pins.values(), NO_COMPILE)
        if torch is not None:
            torch.result()
    environment.pip_install("--no-build-isolation", "--editable", ".")
    subprocess.run([environment.python, "-m", "services.import_check"], check=True, cwd=HERE.parent)


def install_image(environment: Environment) -> None:
    """Install the packages that the services need and the base image lacks."""
    base = environment.versions()
    lock = read("gpu.lock" if "vllm" in base else "cpu.lock")
    pins = {pin.name: pin for pin in for_image(lock, base, minimums((HERE.parent / "pyproject.toml").read_text()))}
    for name in sorted(base.keys() & lock.keys() - pins.keys()):
        if base[name].partition("+")[0] != lock[name].version.partition("+")[0]:
            print(f"note: the base image has {name} {base[name]}, gpu.lock {lock[name].version}", flush=True)
    if "vllm" not in base:
        install_torch(environment, pins.pop("torch"))
    environment.install(pins.values())


def check_library(name: str) -> None:
    """Refuse a machine without a library that vLLM's CPU build loads: no Python package has it."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise InstallError(
            f"{error}. vLLM for CPUs needs it: apt-get install libnuma1 (Debian), dnf install numactl-libs (Fedora)"
        ) from None


def check_python(kind: str, version: tuple[int, int]) -> None:
    accepted = PYTHONS.get(kind)
    if accepted and version not in accepted:
        names = " or ".join(".".join(map(str, entry)) for entry in accepted)
        raise InstallError(
            f"Python {names} is needed, {sys.executable} is {version[0]}.{version[1]}: set PYTHON=/path/to/python3.11"
        )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python3 -m requirements.install")
    parser.add_argument("kind", choices=("cpu", "gpu", "image"))
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--force", action="store_true", help="install GPU packages without an NVIDIA driver")
    options = parser.parse_args(arguments)
    check_python(options.kind, sys.version_info[:2])
    if options.kind == "cpu":
        check_library("libnuma.so.1")
    if options.kind == "gpu" and not options.force:
        check_driver(driver_versions())
    environment = Environment(options.venv.absolute())
    environment.create(options.kind)
    print(f"installing the pinned packages into {options.venv} (a few minutes, once) ...", flush=True)
    start = time.monotonic()
    if options.kind == "image":
        install_image(environment)
    else:
        install_environment(options.kind, environment)
        (environment.folder / ".ready").write_text(f"{options.kind}\n")
    print(f"installed in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InstallError as error:
        sys.exit(f"error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(error.cmd[1:])} failed with exit code {error.returncode}; its output is above")
