"""How to sample a response and what to score: options that travel whole from the configuration to the engines."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Self, get_args

EMULATED: Final = "emulated"
"""Name of the engines that take the time of a GPU and compute nothing."""


def is_emulated(config: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a run with this resolved configuration trains nothing: all of its engines are emulated, or none."""
    return config.get("learner", {}).get("engine") == EMULATED


Sampler = Literal["vllm", "torch", "emulated"]
SAMPLERS: tuple[str, ...] = tuple(name for name in get_args(Sampler) if name != EMULATED)
"""Names of the sampling engines that have a model."""

SEEDS: Final = 2**32
"""Seeds are below it: numpy, which vLLM seeds, takes no others."""

Dtype = Literal["auto", "float32", "bfloat16"]
"""A data type; `auto` = bfloat16 on a GPU, float32 on a CPU."""
DTYPES: tuple[str, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The parameters of sampling one response."""

    temperature: float = 1.0
    top_p: float = 1.0
    """Sample from the smallest set of tokens with this probability."""
    max_tokens: int = 16_384

    @classmethod
    def of(cls, source: object) -> Self:
        """Read each parameter from the attribute of the same name: of a configuration section, parsed arguments."""
        return cls(**{field.name: getattr(source, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Scores to compute in addition to the log-probabilities of the response tokens, for the first context."""

    top_k: int = 0
    """Most likely tokens to return per position; 0 = none."""
    want_entropy: bool = False
    """Return the teacher's entropy at each position."""
    top_k_min_entropy: float | None = None
    """Return the top-k only for positions whose entropy, in nats, exceeds this; None = for all."""


LOGPROBS_ONLY = ScoreOptions()
PAPER_EVALUATION = Sampling(temperature=0.6, top_p=0.95, max_tokens=20_480)
PAPER_SOLUTIONS = Sampling(temperature=1.0, top_p=1.0, max_tokens=12_288)
