"""The short form of `make chaos`: a few kills of a small real run, audited."""

import pytest

from tests.chaos.__main__ import survive

pytestmark = pytest.mark.slow
FIRST = ("freeze", "cut", "damaged checkpoint", "damaged policy")


def test_a_run_survives_kills_and_ends_with_the_same_bits(tmp_path):
    result = survive(tmp_path, kills=4, seed=0, kinds=("kill",), first=FIRST, steps=8, seconds=900)
    assert not result["problems"]
    assert result["kills"] == 4
    assert result["audited"]["numbers of steps"] > 100
