"""The `calopd` command: one file per command in `commands/`, found by the registry."""
