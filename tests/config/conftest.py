"""Configurations that several tests load."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MINIMAL = """
[data]
train = "t.jsonl"
[student]
path = "s"
[teacher]
path = "t"
"""
"""All that a configuration must name."""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    file = tmp_path / "c.toml"
    file.write_text(MINIMAL)
    return file
