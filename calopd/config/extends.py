"""Read a TOML file and the files that it extends."""

import tomllib
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError

KEY = "extends"


def read_layers(file: Path) -> list[dict[str, Any]]:
    """The values of the files that `file` extends, the first base first, then its own; without the `extends` keys."""
    return [values for _, values in read_files(file)]


def read_files(file: Path) -> list[tuple[Path, dict[str, Any]]]:
    """As `read_layers`, each with the file that it is from."""
    return _read(file, ())


def _read(file: Path, extending: tuple[Path, ...]) -> list[tuple[Path, dict[str, Any]]]:
    """`extending` is the chain of files that led to this one."""
    chain = (*extending, file)
    if file.resolve() in {other.resolve() for other in extending}:
        raise ConfigError(f"{_shown(chain)}: a configuration cannot extend itself")
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        context = f" ({_shown(chain)})" if extending else ""
        raise ConfigError(f"cannot read the configuration {file}: {error.strerror}{context}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text: save it with the encoding UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    except (ValueError, RecursionError) as error:  # a number or a nesting that Python refuses
        raise ConfigError(f"{file} is TOML that cannot be read: {error}") from None
    base = values.pop(KEY, None)
    if base is None:
        return [(file, values)]
    if not isinstance(base, str) or "\0" in base:
        raise ConfigError(f"{file}: {KEY} must be the path of one TOML file, not {base!r}")
    return [*_read(file.parent / base, chain), (file, values)]


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; every other value, lists included, is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _shown(chain: tuple[Path, ...]) -> str:
    return " extends ".join(str(file) for file in chain)
