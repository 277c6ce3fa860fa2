"""A method from a Python file of the user."""

import importlib.util
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError
from calopd.core.methods import METHODS, Method
from calopd.core.methods.base import RecordedSettings
from calopd.rundir.digests import sha256

DIGEST = "file_sha256"
"""Key of a saved configuration beside `method.file`: the sha256 of the file with which the run began."""


def load_method_file(file: Path, digest: object = None) -> Method[Any]:
    """Run the file and register its METHOD under its name; a file with another digest than the given one is not run."""
    spec = importlib.util.spec_from_file_location(f"calopd_method_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigError(f"method.file = {str(file)!r}: no Python file there")
    if digest is not None and sha256(file) != digest:
        raise ConfigError(
            f"method.file = {str(file)!r} has changed since the run began and was not executed: restore it, or start a "
            "new run"
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(f"method.file = {str(file)!r}: {type(error).__name__}: {error}; correct the file") from error
    method = getattr(module, "METHOD", None)
    if not isinstance(method, Method):
        raise ConfigError(f"method.file = {str(file)!r}: expected a METHOD = Method(...) in it")
    if bool(method.recorded) != issubclass(method.settings, RecordedSettings):
        raise ConfigError(
            f"method.file = {str(file)!r}: a method with `recorded` needs settings derived from RecordedSettings, "
            "and only such a method may have them"
        )
    METHODS[method.name] = method
    return method
