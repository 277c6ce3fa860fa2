"""Jobs that sample without a queue: `calopd eval`, `calopd data solve` and `calopd tsd collect`."""
