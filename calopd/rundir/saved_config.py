"""The resolved configuration of a run as its directory holds it."""

import tomllib
from typing import Any

from calopd.core.errors import ConfigError
from calopd.rundir.layout import RunDir


def read_config(run_dir: RunDir) -> dict[str, Any]:
    """The values of config.toml, by section. A folder without one, or with a damaged one, is a ConfigError."""
    try:
        return tomllib.loads(run_dir.config.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(
            f"no run at {run_dir}: expected a directory like runs/demo, which `calopd run` wrote"
        ) from None
    except ValueError as error:  # no UTF-8 text, or no TOML
        raise ConfigError(f"{run_dir.config} is not valid TOML ({error}): restore it from a backup") from None
