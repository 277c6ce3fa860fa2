"""Ids of models and data sets on the hub: what can be one, and how long the hub may take to answer."""

import re

HUB_SECONDS = 3.0
"""Time that the hub has to answer."""

_ID = re.compile(r"\w([\w.-]*\w)?/\w([\w.-]{0,94}\w)?", re.ASCII)


def is_hub_id(text: str) -> bool:
    """Whether a text can be an id on the hub (`owner/name`); the hub's client fails on any other."""
    return bool(_ID.fullmatch(text)) and "--" not in text and ".." not in text and not text.endswith(".git")
