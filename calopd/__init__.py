"""calopd: on-policy distillation that learns only from what the teacher's own prompt sensitivity does not explain.

The public names below are imported when they are first used, so that `import calopd` stays instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calopd.core.calibration import Region, calibrated_advantage, retained_ratio, tsd_region, zero_ratio
    from calopd.core.methods import METHODS
    from calopd.data.answers import is_correct

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Region",
    "calibrated_advantage",
    "is_correct",
    "retained_ratio",
    "tsd_region",
    "zero_ratio",
]

_HOMES = dict.fromkeys(__all__, "calopd.core.calibration") | {
    "METHODS": "calopd.core.methods",
    "is_correct": "calopd.data.answers",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'calopd' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
