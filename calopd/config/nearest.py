"""Suggestions for a name that is not known."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean X?` with the most similar known name, or the list of known names if none is similar."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f": did you mean {close[0]}?" if close else f"; expected one of {', '.join(names)}"
