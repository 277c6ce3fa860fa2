"""Rules of resuming: the configuration saved with a run, and the settings that may not change in it."""

import os
from pathlib import Path

from calopd.config.extends import read_files
from calopd.config.load import ENV_PREFIX, load_config
from calopd.config.schema import Config
from calopd.config.sections.base import FIXED_IN_RUN
from calopd.core.errors import ConfigError
from calopd.rundir.files import write_text
from calopd.rundir.layout import RunDir


def is_fixed(section: str, key: str) -> bool:
    """Whether all steps of a run share this setting. The others (ports, replicas, steps) may change on resuming."""
    whole = Config.model_fields[section]
    own = getattr(whole.annotation, "model_fields", {}).get(key)
    return FIXED_IN_RUN in whole.metadata or (own is not None and FIXED_IN_RUN in own.metadata)


def check_owner(run_dir: RunDir, named: object = None) -> None:
    """Refuse to execute the `method.file` of a run that belongs to somebody else, unless the user has named that file.

    Call it before the saved configuration is loaded. It belongs to all who own a file that it extends.
    """
    try:
        layers = read_files(run_dir.config)
        owners = {path.stat().st_uid for path in (run_dir.path, *(file for file, _ in layers))}
    except (OSError, ConfigError):
        return  # reported when the configuration is loaded
    methods = [values["method"] for _, values in layers if isinstance(values.get("method"), dict)]
    file = next((method["file"] for method in reversed(methods) if "file" in method), None)
    if file and owners != {os.getuid()} and (named is None or Path(str(named)) != Path(str(file))):
        raise ConfigError(
            f"{run_dir} belongs to another user, and its method.file = {str(file)!r} would be executed: "
            f"if you trust it, set {ENV_PREFIX}METHOD__FILE={file}"
        )


def check_resumable(saved: Config, wanted: Config) -> None:
    """Refuse to resume a run with a different value of a fixed setting."""
    new = wanted.model_dump(mode="json")
    for section, values in saved.model_dump(mode="json").items():
        for key in {**values, **new[section]}:
            old_value, new_value = values.get(key), new[section].get(key)
            if old_value != new_value and is_fixed(section, key):
                raise ConfigError(
                    f"the run was started with {section}.{key} = {old_value}, not {new_value}: "
                    "start a new run to change it"
                )


def save_with_run(config: Config) -> None:
    """Save the resolved configuration in the run's directory, or check it against the one saved there."""
    file = config.run_dir.config
    if file.exists():
        check_owner(config.run_dir, config.method.file)
        check_resumable(load_config(file, environ={}), config)
        return
    write_text(file, config.to_toml())
