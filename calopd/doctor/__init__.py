"""Checks of a configuration, its models, data and machine before a run."""
