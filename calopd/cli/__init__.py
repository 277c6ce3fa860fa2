"""The `calopd` command: one file per command."""
