"""The short form of `make fuzz`."""

import pytest

from tests.fuzz.__main__ import fuzz_all

pytestmark = pytest.mark.slow
INPUTS = 2_000


def test_spoiled_inputs_are_accepted_or_refused(tiny, tmp_path):
    results = list(fuzz_all(tmp_path, tiny, INPUTS, seed=0))
    assert sum(result.inputs for result in results) >= INPUTS
    assert not {result.surface: dict(result.bugs) for result in results if result.bugs}
    # An input that is refused too early tests nothing behind it.
    assert all(len(result.answers) > 1 for result in results)
