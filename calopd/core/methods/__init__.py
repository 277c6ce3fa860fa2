"""The methods, one file each. A file added here is found by its METHOD; a user's file by `method.file`."""

import importlib
import pkgutil
from typing import Any

from calopd.core.methods.base import Method, MethodSettings, ProbeSettings, Recipe, opd_advantage


def _found() -> dict[str, Method[Any]]:
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return {module.METHOD.name: module.METHOD for module in modules if hasattr(module, "METHOD")}


METHODS: dict[str, Method[Any]] = _found()

__all__ = ["METHODS", "Method", "MethodSettings", "ProbeSettings", "Recipe", "opd_advantage"]
