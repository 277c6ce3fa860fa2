"""One TOML file per run: its sections, loading, and checks before anything starts."""

from calopd.config.load import Config, check_resumable, keep_with_run, load_config

__all__ = ["Config", "check_resumable", "keep_with_run", "load_config"]
