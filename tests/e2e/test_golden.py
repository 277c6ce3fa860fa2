"""A seeded run of three steps through the real services gives the committed numbers (golden.jsonl).

It guards against a change of the mathematics, the sampler's draws, the order of problems or the optimizer that no other
test was written for. One machine repeats the run bit for bit; another CPU or BLAS rounds differently. Hence:

- The first step samples from the committed student with fixed seeds. A last bit changes a token only if its draw lies
  within about 1e-6 of a boundary, so lengths and counts must be equal, and means agree to 2e-3. Where both models are
  certain, the region is as narrow as rounding: the share of tokens in it differs by a few of 779 between CPUs.
- AdamW's first update is close to the sign of the gradient, and the sign of a gradient near zero is rounding. While the
  later steps have the same responses, their means agree to 5 %. If a response differs, only coarse bounds hold.

`make golden` (CALOPD_GOLDEN=exact) runs it twice and compares all but the times bit for bit. To compare two versions of
the code on one machine, set CALOPD_GOLDEN to the metrics.jsonl of the other version's run.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from calopd.rundir.files import read_lines
from tests.e2e.runs import finish, settings_of, start
from tests.ports import free_ports
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
MODE = os.environ.get("CALOPD_GOLDEN", "")
GOLDEN: list[dict[str, Any]] = [json.loads(line) for line in (HERE / "golden.jsonl").read_text().splitlines()]
Line = dict[str, Any]

ALWAYS_EQUAL = (
    "step", "epoch", "lr", "sign_flip_share", "staleness", "policy_version", "tickets_used", "tickets_missing",
    "trajectories_kept",
)  # fmt: skip
RESPONSES = ("tokens", "tokens_kept", "response_length_mean", "response_length_p50", "response_length_p95")
SHARES = ("zero_ratio", "clamped_share", "accuracy", "answered_after_think_share", "truncated_share")
MEANS = (
    "retained_ratio", "entropy", "region_width", "top16_token_overlap", "top16_mass_overlap", "deviation_eval+",
    "deviation_eval-", "loss", "grad_norm",
)  # fmt: skip
ON_THE_EDGE = 0.012
"""The zero ratio of the first step may differ by this much: 9 tokens (4 were seen between two CPUs)."""
COARSE = {"tokens": 0.3, "entropy": 0.5, "retained_ratio": 0.5, "top16_token_overlap": 0.2, "top16_mass_overlap": 0.1}
"""Relative bounds for a later step whose responses are not the golden ones."""


def golden_run(directory: Path) -> list[Line]:
    """The lines of one run, without the times."""
    keys = ("teacher.port", "teacher.metrics_port", "learner.port", "queue.port", "rollout.port")
    settings = [f"{key}={port}" for key, port in zip(keys, free_ports(len(keys)), strict=True)]
    finish(start(str(HERE / "golden.toml"), *settings_of([f'run.dir="{directory}"', *settings])))
    lines = read_lines(directory / "golden" / "metrics.jsonl")
    return [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in lines]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    return golden_run(tmp_path_factory.mktemp("golden"))


def check_line(line: Line, golden: Line) -> None:
    assert not golden.keys() - line.keys(), "a metric has disappeared"
    exact = {key: golden[key] for key in ALWAYS_EQUAL}
    assert {key: line[key] for key in exact} == exact
    assert line["logprob_mismatch"] < 1e-4
    same_responses = all(line[key] == golden[key] for key in RESPONSES)
    first = golden["step"] == 0
    assert same_responses or not first, "the first step has other responses"
    if same_responses:
        for key in SHARES:
            bound = (ON_THE_EDGE if key == "zero_ratio" else 0.005) if first else 0.02
            assert line[key] == pytest.approx(golden[key], abs=bound), key
        for key in MEANS:
            assert line[key] == pytest.approx(golden[key], rel=0.002 if first else 0.05, abs=1e-4), key
    else:
        for key, bound in COARSE.items():
            assert line[key] == pytest.approx(golden[key], rel=bound), key


def test_every_golden_key_is_compared() -> None:
    compared = {*ALWAYS_EQUAL, *RESPONSES, *SHARES, *MEANS, "logprob_mismatch"}
    assert all(line.keys() == compared for line in GOLDEN)


def test_the_run_gives_the_committed_numbers(lines: list[Line]) -> None:
    assert len(lines) == len(GOLDEN)
    for line, golden in zip(lines, GOLDEN, strict=True):
        check_line(line, golden)


@pytest.mark.skipif(not MODE, reason="CALOPD_GOLDEN is not set: see `make golden`")
def test_two_runs_agree_bit_for_bit(lines: list[Line], tmp_path: Path) -> None:
    other = golden_run(tmp_path) if MODE == "exact" else read_lines(ROOT / MODE)
    for line, expected in zip(lines, other, strict=True):
        known = {key: value for key, value in expected.items() if not key.startswith("seconds")}
        assert {key: line.get(key) for key in known} == known


@pytest.mark.parametrize("key", [*MEANS, *RESPONSES, *SHARES])
def test_a_changed_number_is_noticed(key: str) -> None:
    """The check itself: a first step that differs by two per cent in any one number fails."""
    golden = GOLDEN[0]
    check_line(golden, golden)
    with pytest.raises(AssertionError):
        check_line({**golden, key: golden[key] * 1.02 + 0.01}, golden)
