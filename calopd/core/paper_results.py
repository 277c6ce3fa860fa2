"""The paper's numbers, to compare a run with; and which of its runs has the settings of a given one.

They are shown only beside a run whose settings are the paper's: see `paper_arm`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import PurePath
from typing import Any

from calopd.core.methods import METHODS
from calopd.core.options import is_emulated

SMALL = ("Qwen3-1.7B", "Qwen3-4B-Thinking-2507")
MIDDLE = ("Qwen3-4B", "Qwen3-30B-A3B-Thinking-2507")
LARGE = ("Qwen3-8B", "Qwen3-30B-A3B-Thinking-2507")
Pair = tuple[str, str]
"""Names of student and teacher."""

BENCHMARKS = ("AMC23", "AIME24", "AIME25", "AIME26", "HMMT26", "MATH500")
BENCHMARK_SIZES = dict(zip(BENCHMARKS, (40, 30, 30, 30, 33, 500), strict=True))
TRAINING_SET = "dapo-math-solved.jsonl"
"""Name of the file with the solved part of DAPO (docs/reproduce.md), on which all methods of the paper train."""

TRAINING_PROBLEMS, SIZE_TOLERANCE = 15_560, 0.02
"""Problems that the paper's solver solved; sampled again, it solves a few more or less."""
OVERLAP_TOP_K = 16

STUDENT, TEACHER = "student", "teacher"
CAL_OPD = "cal_opd/eval/5"
"""The arm of Cal-OPD with the paper's probes and relaxation."""

ACCURACY: dict[Pair, dict[str, tuple[float, ...]]] = {
    SMALL: {
        STUDENT: (80.8, 40.6, 32.5, 29.2, 21.8, 90.2, 49.2),
        TEACHER: (94.8, 56.5, 53.1, 54.2, 25.2, 95.4, 63.2),
        "opd": (82.0, 39.6, 35.0, 34.6, 22.9, 90.6, 50.8),
        "exopd": (81.7, 43.1, 35.4, 34.2, 25.6, 90.6, 51.8),
        "eopd": (81.6, 44.0, 36.7, 38.8, 19.7, 90.6, 51.9),
        "uni_opd": (81.4, 42.1, 34.4, 32.7, 22.5, 89.8, 50.5),
        "privileged_opd": (83.3, 39.8, 30.4, 31.0, 21.8, 89.4, 49.3),
        CAL_OPD: (84.5, 45.0, 37.1, 36.3, 24.8, 90.8, 53.1),
    },
    MIDDLE: {
        STUDENT: (95.2, 64.8, 56.3, 57.9, 30.1, 95.4, 66.6),
        TEACHER: (97.8, 74.8, 65.4, 66.0, 33.9, 96.9, 72.5),
        "opd": (94.2, 62.1, 57.5, 55.2, 31.1, 95.0, 65.9),
        "exopd": (92.0, 66.9, 59.4, 56.3, 33.7, 95.6, 67.3),
        "eopd": (95.3, 62.7, 54.6, 60.0, 33.5, 96.7, 67.1),
        "uni_opd": (93.4, 67.9, 59.8, 57.9, 31.4, 95.4, 67.6),
        "privileged_opd": (93.4, 58.8, 52.1, 54.0, 31.3, 94.4, 64.0),
        CAL_OPD: (96.3, 67.1, 61.3, 60.2, 33.3, 95.8, 69.0),
    },
}
"""Avg@16 in percent: the six benchmarks and their mean."""

MEAN_ACCURACY: dict[Pair, dict[str, float]] = {
    SMALL: {
        "cal_opd/inst/5": 51.5, "cal_opd/ans/5": 52.0, "cal_opd/sol/5": 49.0, "advantage_sync": 50.8,
        "token_sync": 50.1, "tsd_filter/0.1": 52.7, "tsd_filter/0.05": 51.1, "tsd_filter/0.01": 49.4,
    },
}  # fmt: skip
"""Arms of which only the mean is used here."""

MINUTES: dict[Pair, dict[str, float]] = {
    SMALL: {CAL_OPD: 14.90, "opd": 18.80},
    MIDDLE: {CAL_OPD: 48.76, "opd": 31.26},
    LARGE: {CAL_OPD: 50.05, "opd": 35.19},
}
"""Minutes per step by arm, on 8 H20."""

RETAINED, ZERO = (0.65, 0.52), (0.27, 0.34)
"""First and last value of Cal-OPD's run."""

TRAINING: dict[Pair, dict[str, dict[str, float]]] = {
    SMALL: {
        "retained_ratio": {
            CAL_OPD: RETAINED[1], "cal_opd/inst/5": 0.70, "cal_opd/sol/5": 0.20, "cal_opd/eval/80": 0.20,
        },
        "zero_ratio": {CAL_OPD: ZERO[1]},
        "response_length_mean": {"opd": 11_800, CAL_OPD: 9_300, "cal_opd/sol/5": 5_500},
        "entropy": {"opd": 0.20, "cal_opd/inst/5": 0.20, "cal_opd/sol/5": 0.36, "privileged_opd": 0.25},
        "top16_token_overlap": {CAL_OPD: 0.693, "cal_opd/sol/5": 0.688, "cal_opd/inst/5": 0.684},
        "top16_mass_overlap": {"opd": 0.886, "cal_opd/inst/5": 0.886, "privileged_opd": 0.880, "cal_opd/sol/5": 0.860},
        "grad_norm": {"opd": 35},
    },
    MIDDLE: {"grad_norm": {"opd": 15}},
}  # fmt: skip
"""Metric -> arm -> value at the end of training. The paper does not define its overlaps."""

_RECIPE: dict[str, dict[str, Any]] = {
    "run": {"steps": 100, "max_staleness": 0},
    "data": {"max_prompt_tokens": 2_048, "max_context_tokens": 12_288},
    "teacher": {"quantization": ""},
    "rollout": {"max_tokens": 16_384, "temperature": 1.0, "top_p": 1.0},
    "learner": {
        "trajectories": 256, "samples": 1, "lora_rank": 0, "learning_rate": 1e-6, "warmup_steps": 0,
        "betas": [0.9, 0.999], "weight_decay": 0.01, "gradient_clip": 1.0,
    },
    "method": {
        "file": None, "contexts": {}, "placement": "after", "student_logprobs": "learner", "selection_ratio": 1.0,
    },
}  # fmt: skip
"""Settings of all runs of the paper; those of a method are added, see `_wanted`."""
_STEPS = ("run", "steps")
_VARIED = {"cal_opd": ("probes", "relaxation"), "tsd_filter": ("deviation_threshold",)}
"""Settings of a method that the paper varies: they are part of the arm's name."""

Settings = Mapping[str, Mapping[str, Any]]
"""A resolved configuration: section -> key -> value."""


def pair_of(config: Settings) -> Pair:
    """Names of student and teacher, without the organisation."""
    student, teacher = (str(config.get(role, {}).get("path", "")) for role in ("student", "teacher"))
    return student.rpartition("/")[2], teacher.rpartition("/")[2]


def arm_of(config: Settings) -> str:
    """The method with the settings that the paper varies: `opd`, `cal_opd/eval/5`, `tsd_filter/0.1`."""
    method = config.get("method", {})
    name = str(method.get("name", ""))
    if name == "cal_opd":
        return f"{name}/{'+'.join(method.get('probes', ()))}/{method.get('relaxation', 0):g}"
    return f"{name}/{method.get('deviation_threshold', 0):g}" if name == "tsd_filter" else name


def paper_arm(config: Settings, *, timing: bool = False) -> tuple[Pair, str] | None:
    """The pair and arm of the paper with these settings; None if a run with them is not in the paper.

    Besides a configuration they may have what it refers to: `data.problems`, a count, and `followed`, the settings of
    the run that a control follows, which must be there. With `timing`, the number of steps may differ.
    """
    pair, name = pair_of(config), str(config.get("method", {}).get("name", ""))
    if pair not in (SMALL, MIDDLE, LARGE) or name not in METHODS or is_emulated(config):
        return None
    if not _trains_as_paper(config) or not _follows_as_paper(config, pair):
        return None
    for section, wanted in _wanted(name).items():
        given = config.get(section, {})
        if any(given.get(k) != value for k, value in wanted.items() if not (timing and (section, k) == _STEPS)):
            return None
    return pair, arm_of(config)


def size_note(benchmark: str, problems: int) -> str:
    """A sentence if a benchmark of the paper has another number of problems than in the paper, else nothing."""
    wanted = BENCHMARK_SIZES.get(benchmark, problems)
    if problems == wanted:
        return ""
    return f"{benchmark} has {problems} problems here, {wanted} in the paper: the numbers do not compare."


def _trains_as_paper(config: Settings) -> bool:
    """Whether the file is the solved set, and not of another size, as far as that is known (`data.problems`)."""
    data = config.get("data", {})
    count = data.get("problems")
    same_size = count is None or abs(count - TRAINING_PROBLEMS) <= SIZE_TOLERANCE * TRAINING_PROBLEMS
    return PurePath(str(data.get("train"))).name == TRAINING_SET and same_size


def _follows_as_paper(config: Settings, pair: Pair) -> bool:
    """Whether a control follows the paper's Cal-OPD (`followed`, its configuration); True for other methods."""
    followed = METHODS[str(config["method"]["name"])].recorded
    return not followed or paper_arm(config.get("followed", {})) == (pair, CAL_OPD)


def _wanted(name: str) -> dict[str, dict[str, Any]]:
    """The paper's settings of a run with this method, without those that it varies."""
    method = METHODS[name]
    own = {
        field.name: list(field.default) if isinstance(field.default, tuple) else field.default
        for field in fields(method.settings)
        if field.default is not MISSING and field.name not in _VARIED.get(name, ())
    }
    clamp = "none" if method.recipe.clamp is None else method.recipe.clamp
    return _RECIPE | {
        "learner": {**_RECIPE["learner"], **method.recipe.learner},
        "method": {**_RECIPE["method"], "clamp": clamp, "loss_agg_mode": method.recipe.loss_agg_mode, **own},
    }


def paper_minutes(config: Settings) -> float | None:
    """The paper's minutes per step on 8 H20; None if it has none for this pair, method and settings."""
    found = paper_arm(config, timing=True)
    return None if found is None else MINUTES.get(found[0], {}).get(found[1])


def paper_at_end(config: Settings, metric: str) -> float | None:
    """The paper's value of a metric at the end of training; None if it has none for this pair, arm and settings."""
    found = paper_arm(config)
    if "overlap" in metric and config["method"].get("overlap_top_k") != OVERLAP_TOP_K:
        return None
    return None if found is None else TRAINING.get(found[0], {}).get(metric, {}).get(found[1])


def paper_accuracy(pair: Pair, arm: str) -> dict[str, float]:
    """Benchmark -> Avg@16 as a share, with the mean of the six under `mean`; empty if the paper has none."""
    if values := ACCURACY.get(pair, {}).get(arm):
        return {name: value / 100 for name, value in zip((*BENCHMARKS, "mean"), values, strict=True)}
    mean = MEAN_ACCURACY.get(pair, {}).get(arm)
    return {} if mean is None else {"mean": mean / 100}
