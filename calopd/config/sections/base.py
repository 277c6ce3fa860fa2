"""The base class of all sections and the types that they share."""

from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from calopd.core.options import SEEDS

T = TypeVar("T")

FIXED_IN_RUN: Final = "fixed in a run"
Fixed = Annotated[T, FIXED_IN_RUN]
"""A setting, or a whole section, that all steps of a run share: a run cannot be resumed with another value."""

Port = Annotated[int, Field(ge=1, le=65_535)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]


class Section(BaseModel):
    """Unknown keys are refused, values never change, and the docstring below a field is its meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
