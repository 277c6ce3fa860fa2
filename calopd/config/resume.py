"""Rules of resuming: the configuration saved with a run, and the settings that may not change in it."""

from calopd.config.load import load_config
from calopd.config.schema import Config
from calopd.config.sections.base import FIXED_IN_RUN
from calopd.core.errors import ConfigError
from calopd.rundir.files import write_text


def is_fixed(section: str, key: str) -> bool:
    """Whether all steps of a run share this setting. The others (ports, replicas, steps) may change on resuming."""
    whole = Config.model_fields[section]
    own = getattr(whole.annotation, "model_fields", {}).get(key)
    return FIXED_IN_RUN in whole.metadata or (own is not None and FIXED_IN_RUN in own.metadata)


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
        check_resumable(load_config(file, environ={}), config)
        return
    write_text(file, config.to_toml())
