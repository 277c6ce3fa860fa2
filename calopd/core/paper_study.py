"""The paper's numbers on teacher self-deviation, and which study they may stand beside: see `paper_study`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from calopd.core.contexts import BASE, CONTEXTS
from calopd.core.options import is_emulated
from calopd.core.paper_results import TRAINING_SET, Settings, pair_of

STUDENT_NAME = "Qwen3-1.7B"
FORMS_CONTEXT = "sol+"
"""The context of the listed token forms."""

Form = tuple[str, float]
"""A token form and its rho."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperStudy:
    """Numbers of one teacher by threshold, as shares. A measure is named as in the tables of an experiment."""

    tokens: int = 60_000_000
    """About as many."""
    rollouts: int = 6_528
    mean_length: int = 9_270
    median_length: int = 7_758
    measures: Mapping[str, Mapping[str, float]]
    at_least: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Measures of which the paper gives a bound only."""
    forms: Mapping[str, Mapping[str, Sequence[Form]]] = field(default_factory=dict)
    """The forms with the highest (`top`) and the lowest (`bottom`) rho."""


STUDIES = {
    "Qwen3-8B": PaperStudy(
        measures={
            "0.01": {
                "inst+": 0.202, "inst-": 0.258, "inst union": 0.298, "eval union": 0.291, "ans union": 0.294,
                "sol union": 0.396, "inst → sol": 0.983, "eval → sol": 0.986, "ans → sol": 0.982, "sol → inst": 0.742,
                "sol → eval": 0.726, "sol → ans": 0.729, "ans agreement": 0.887, "ans SDR": 0.747,
                "sol overlap": 0.803, "sol SDR": 0.661,
            },
            "0.1": {"inst union": 0.101, "eval union": 0.092, "ans agreement": 0.936, "ans SDR": 0.769},
        },
        at_least={"0.1": {"inst → sol": 0.934, "eval → sol": 0.934, "ans → sol": 0.934}},
        forms={
            "0.01": {
                "top": (("maybe", 0.974), ("however", 0.974), ("therefore", 0.959)),
                "bottom": (("}{", 0.028), ("###", 0.032), ("0", 0.050)),
            }
        },
    ),
    "Qwen3-4B-Thinking-2507": PaperStudy(
        measures={"0.1": {"ans agreement": 0.945, "ans SDR": 0.796}},
        at_least={"0.1": {"inst → sol": 0.943, "eval → sol": 0.943, "ans → sol": 0.943}},
    ),
}  # fmt: skip
"""Teacher -> the paper's numbers."""

_SCORING: dict[str, dict[str, Any]] = {
    "teacher": {"quantization": ""},
    "method": {"contexts": {}, "placement": "after"},
}
_SAMPLING: dict[str, dict[str, Any]] = {"rollout": {"max_tokens": 16_384, "temperature": 1.0, "top_p": 1.0}}


def paper_study(config: Settings, contexts: Sequence[str], sampled: Settings | None = None) -> PaperStudy | None:
    """The paper's numbers for a study with this configuration and these contexts; None if it is not the paper's.

    `sampled` is the configuration of the study that the rollouts were sampled in, if it is another one.
    """
    source = config if sampled is None else sampled
    student, teacher = pair_of(config)
    of_paper = (
        student == pair_of(source)[0] == STUDENT_NAME
        and PurePath(str(source.get("data", {}).get("train"))).name == TRAINING_SET
        and set(contexts) == {BASE, *CONTEXTS}
        and _has(config, _SCORING)
        and _has(source, _SAMPLING)
        and not is_emulated(config)
    )
    return STUDIES.get(teacher) if of_paper else None


def _has(config: Settings, wanted: Settings) -> bool:
    return all(config.get(s, {}).get(key) == value for s, keys in wanted.items() for key, value in keys.items())
