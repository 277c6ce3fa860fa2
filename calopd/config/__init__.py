"""One TOML file per run: its sections, their checks, loading, resuming."""

from calopd.config.load import load_config
from calopd.config.resume import check_resumable, save_with_run
from calopd.config.schema import Config

__all__ = ["Config", "check_resumable", "load_config", "save_with_run"]
