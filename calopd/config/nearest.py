"""What the user probably meant."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean X?`, or the names there are."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f": did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
