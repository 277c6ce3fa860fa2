"""The packages of `make test-gpu`: `python -m tests.gpu.prepare FOLDER`, run by the Python of .venv.

FOLDER/venv         the CUDA build of torch; every other package is that of .venv, so that versions agree
FOLDER/base-image   packages in the versions of the GPU base image where .venv has others
FOLDER/.ready       both are there
"""

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

from requirements.install import Environment, InstallError
from requirements.pins import Pin, read

CODE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def differing(image: Mapping[str, Pin], present: Mapping[str, str]) -> list[Pin]:
    """The pins of which another version is present. The CUDA build of torch has the same version as the CPU build."""
    return [pin for name, pin in image.items() if name in present and present[name].partition("+")[0] != pin.version]


def install(folder: Path) -> None:
    cuda = Environment(folder / "venv")
    venv.create(cuda.folder, clear=True, with_pip=True, symlinks=True)
    cuda.install(read("torch-cuda.lock").values(), "--no-compile")
    packages = subprocess.run([cuda.python, "-c", CODE], check=True, capture_output=True, text=True).stdout.strip()
    (Path(packages) / "calopd-packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    ours = Environment(Path(sys.prefix))
    overlay = folder / "base-image"
    shutil.rmtree(overlay, ignore_errors=True)
    ours.install(differing(read("gpu.lock"), ours.versions()), "--no-compile", "--target", str(overlay))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ready = folder / ".ready"
    ready.unlink(missing_ok=True)
    print(f"installing the CUDA build of torch into {folder} (4.5 GB, once) ...", flush=True)
    try:
        install(folder.absolute())
    except InstallError as error:
        print(f"{error}\nThe packages of `make test-gpu` cannot be installed here: tests that need them are skipped.")
        return
    ready.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
