"""Checks of a run before it starts: everything that can be known before a GPU hour is spent."""
