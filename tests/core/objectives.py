"""Objectives of methods with the paper's recipe."""

from dataclasses import fields
from typing import Any

from calopd.core.methods import METHODS
from calopd.core.methods.base import RecordedSettings
from calopd.core.objective import Objective


def objective_of(name: str, **settings: Any) -> Objective:
    """The objective of a method; `settings` are its own, or fields of the objective."""
    method = METHODS[name]
    recipe = {"clamp": method.recipe.clamp, "loss_agg_mode": method.recipe.loss_agg_mode}
    rule = {key: settings.pop(key, value) for key, value in recipe.items()}
    if issubclass(method.settings, RecordedSettings):
        settings.setdefault("recorded_run", "unused")
    assert settings.keys() <= {field.name for field in fields(method.settings)}
    return Objective(method=method, settings=method.settings(**settings), **rule)
