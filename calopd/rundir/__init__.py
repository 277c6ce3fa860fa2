"""A run on disk: every path of its directory, atomic files and folders, policies, checkpoints."""
