"""One small file a method. A file that is put here, or named by method.file, is found by its method's name."""

import importlib
import importlib.util
import pkgutil
from pathlib import Path

from calopd.core.errors import ConfigError
from calopd.core.methods.base import Method, opd_advantage


def _found() -> dict[str, Method]:
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return {module.METHOD.name: module.METHOD for module in modules if hasattr(module, "METHOD")}


METHODS: dict[str, Method] = _found()


def add_method(file: Path) -> Method:
    """Take a method from a Python file of the user's own."""
    spec = importlib.util.spec_from_file_location(f"calopd_method_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigError(f"method.file = {str(file)!r}: no Python file there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    method = getattr(module, "METHOD", None)
    if not isinstance(method, Method):
        raise ConfigError(f"method.file = {str(file)!r}: expected a METHOD = Method(...) in it")
    METHODS[method.name] = method
    return method


__all__ = ["METHODS", "Method", "add_method", "opd_advantage"]
