"""Sampling engines by name. To add one, write its file, add a line here and its name to `core/options.py`."""

from pkgutil import resolve_name
from typing import Any

from calopd.config.sections import RolloutSection
from calopd.planning.emulation import Emulation
from calopd.planning.rollout_limits import MOST_BATCHED_TOKENS, MOST_SEQUENCES
from services.rollout.engines.sampling_engine import SamplingEngine

ENGINES = {
    "emulated": "services.rollout.engines.emulated_sampler:EmulatedSampler",
    "torch": "services.rollout.engines.torch_sampler:TorchSampler",
    "vllm": "services.rollout.engines.vllm_sampler:VllmSampler",
}


def build_engine(
    path: str,
    rollout: RolloutSection,
    *,
    stop_ids: list[int],
    max_model_len: int,
    seed: int,
    deterministic: bool = False,
    emulation: Emulation | None = None,
) -> SamplingEngine:
    """Import the engine that the settings name, and load the model at `path`; only an emulated one has `emulation`."""
    engine: type[SamplingEngine] = resolve_name(ENGINES[rollout.engine])
    rollout = rollout.model_copy(
        update={
            "max_in_flight": rollout.max_in_flight or MOST_SEQUENCES,
            "max_num_batched_tokens": rollout.max_num_batched_tokens or MOST_BATCHED_TOKENS,
        }
    )
    extra: dict[str, Any] = {} if emulation is None else {"emulation": emulation}
    return engine.configured(
        path,
        rollout,
        stop_ids=stop_ids,
        max_model_len=max_model_len,
        seed=seed,
        deterministic=deterministic,
        **extra,
    )
