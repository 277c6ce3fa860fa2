"""Load a configuration: the file and the files that it extends, then the environment, then `--set`."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from calopd.config.explain import sentence
from calopd.config.extends import merge, read_layers
from calopd.config.method_file import DIGEST, load_method_file
from calopd.config.nearest import nearest
from calopd.config.schema import Config
from calopd.config.sections.method import without_foreign_settings
from calopd.core.errors import ConfigError

ENV_PREFIX = "CALOPD__"


def load_config(path: Path, overrides: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration at `path`, with `CALOPD__SECTION__KEY` variables and `section.key=value` overrides applied."""
    layers = [*read_layers(path), *_given_layers(overrides, environ)]
    for layer in layers:
        _check_sections(path, layer)
    values = _resolve(layers)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_explain(e) for e in error.errors())) from None


def given_settings(overrides: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The settings that the environment or `--set` gives, by `section.key`."""
    sections = [(name, keys) for layer in _given_layers(overrides, environ) for name, keys in layer.items()]
    return {f"{name}.{key}": keys[key] for name, keys in sections if isinstance(keys, dict) for key in keys}


def _given_layers(overrides: Iterable[str], environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    variables: dict[str, Any] = {}
    for name, value in sorted(environ.items()):
        if name.startswith(ENV_PREFIX):
            _set(variables, name.removeprefix(ENV_PREFIX).lower().split("__"), value, name)
    options: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {override}: expected section.key=value")
        _set(options, key.strip().split("."), value, f"--set {key}")
    return variables, options


def _check_sections(path: Path, layer: Mapping[str, Any]) -> None:
    """Refuse a value where a section is expected, and a method that is not named by a string."""
    for key, value in layer.items():
        if key in Config.model_fields and not isinstance(value, Mapping):
            raise ConfigError(f"{path}: {key} is a section, expected [{key}] with keys (given: {value!r})")
    for key in ("name", "file"):
        if not isinstance(value := layer.get("method", {}).get(key, ""), str):
            raise ConfigError(f"{path}: method.{key} must be a string (given: {value!r})")


def _resolve(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the layers, later ones over earlier ones; the file of a user's method is run first."""
    methods = [layer["method"] for layer in layers if "method" in layer]
    if file := next((method["file"] for method in reversed(methods) if "file" in method), None):
        load_method_file(Path(file), next((method[DIGEST] for method in methods if DIGEST in method), None))
    for method in methods:
        method.pop(DIGEST, None)
    values: dict[str, Any] = {}
    for layer in layers:
        if "method" in values and "name" in (chosen := layer.get("method", {})):
            values["method"] = without_foreign_settings(values["method"], chosen["name"])
        values = merge(values, layer)
    return values


def _set(values: dict[str, Any], keys: list[str], text: str, source: str) -> None:
    """Set a nested key to `text` parsed as a TOML value, or to `text` itself if it is none."""
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        value = text
    for key in keys[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{source}: {key} is a value, not a section")
    values[keys[-1]] = value


def _explain(error: Any) -> str:
    """A validation error in one sentence: the key, what is wrong and what was given."""
    if error["type"] == "extra_forbidden":
        key = ".".join(map(str, error["loc"]))
        section: Any = Config
        for part in error["loc"][:-1]:
            section = section.model_fields[part].annotation
        return f"unknown key {key}{_homes(key) or nearest(str(error['loc'][-1]), section.model_fields)}"
    return sentence(error)


def _homes(key: str) -> str:
    """`: did you mean run.steps?` for a key without its section."""
    sections = {name: getattr(field.annotation, "model_fields", {}) for name, field in Config.model_fields.items()}
    found = [f"{section}.{key}" for section, keys in sections.items() if key in keys]
    return f": did you mean {' or '.join(found)}?" if found else ""
