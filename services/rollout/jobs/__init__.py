"""Sampling without a queue: `calopd eval`, `calopd data solve` and `calopd tsd collect`."""
