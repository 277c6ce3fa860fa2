"""Limits of the rollout's engine, from the plan."""

from calopd.config import load_config
from calopd.planning.rollout_limits import MOST_BATCHED_TOKENS, MOST_SEQUENCES, limited_rollout, rollout_limits
from tests.services.processes import ROOT

DERIVED = ["rollout.max_in_flight=0"]
PAIR = ROOT / "configs" / "qwen3-30b-to-8b.toml"


def test_an_engine_samples_what_its_cache_holds() -> None:
    small, large = (
        rollout_limits(load_config(PAIR, [*DERIVED, f"resources.gpu={gpu}"], {})) for gpu in ("a100-40", "h200")
    )
    assert 1 <= small.max_in_flight < large.max_in_flight <= MOST_SEQUENCES
    short = rollout_limits(load_config(PAIR, [*DERIVED, "resources.gpu=a100-40", "rollout.max_tokens=2048"], {}))
    assert short.max_in_flight > small.max_in_flight, "more short responses fit"


def test_settings_come_first() -> None:
    config = load_config(PAIR, ["rollout.max_in_flight=7", "rollout.max_num_batched_tokens=3000"], {})
    section = limited_rollout(config)
    assert (section.max_in_flight, section.max_num_batched_tokens) == (7, 3_000)


def test_without_a_gpu_there_are_defaults() -> None:
    limits = rollout_limits(load_config(PAIR, [*DERIVED, "resources.gpu="], {}))
    assert (limits.max_in_flight, limits.max_num_batched_tokens) == (MOST_SEQUENCES, MOST_BATCHED_TOKENS)
