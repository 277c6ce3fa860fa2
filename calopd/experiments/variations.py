"""The variations of an arm, and the settings of a run as overrides of its recipe."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from calopd.config.extends import merge
from calopd.experiments.experiment_file import Arm


@dataclass(frozen=True, slots=True)
class Variation:
    """An arm with one combination of its grid's values."""

    arm: str
    label: str
    settings: dict[str, Any]
    """Section -> key -> value."""
    values: dict[str, Any]
    """`section.key` of the grid -> value."""


def variations(name: str, arm: Arm) -> list[Variation]:
    """All combinations of the grid, in the order of the file; one without a grid."""
    found = []
    for combination in itertools.product(*arm.grid.values()):
        values = dict(zip(arm.grid, combination, strict=True))
        settings: dict[str, Any] = {}
        for key, value in values.items():
            section, _, rest = key.partition(".")
            settings = merge(settings, {section: {rest: value}})
        texts = {key.rpartition(".")[2]: shown(value) for key, value in values.items()}
        label = arm.label or ", ".join([name, *(f"{key} {value}" for key, value in texts.items())])
        for key, value in texts.items():
            label = label.replace(f"{{{key}}}", value)
        found.append(Variation(name, label, merge(arm.set, settings), values))
    return found


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """`section.key=value` for every setting, as `--set` takes them."""
    found = []
    for section, values in settings.items():
        for key, value in values.items():
            if isinstance(value, Mapping):
                found += [f"{section}.{key}.{name}={_literal(inner)}" for name, inner in value.items()]
            else:
                found.append(f"{section}.{key}={_literal(value)}")
    return found


def _literal(value: Any) -> str:
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def shown(value: Any) -> str:
    """A value as labels and names of runs show it."""
    if isinstance(value, list):
        return "+".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
