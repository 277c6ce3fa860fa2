"""Settings as tables: key, type in plain words, default and meaning. From pydantic models and from dataclasses."""

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from calopd.config.sections.base import FIXED_IN_RUN
from docs.generators.markdown import code, table

HEADER = ("Key", "Type", "Default", "Meaning")
WORDS: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}


def settings_of_section(section: type[BaseModel]) -> str:
    """The table of a section of the configuration."""
    return table(HEADER, _section_rows(section))


def settings_of_dataclass(settings: type) -> str:
    """The table of a dataclass whose fields have a docstring below them; '' if it has no fields."""
    rows = list(_dataclass_rows(settings))
    return table(HEADER, rows) if rows else ""


def _section_rows(section: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    for key, field in section.model_fields.items():
        meaning = field.description or ""
        if FIXED_IN_RUN in field.metadata:
            meaning += " *Fixed in a run.*"
        default = "required" if field.is_required() else shown_default(field.get_default(call_default_factory=True))
        yield code(key), in_words(field.annotation, field.metadata), default, meaning


def _dataclass_rows(settings: type) -> Iterator[tuple[str, str, str, str]]:
    hints, meanings = get_type_hints(settings, include_extras=True), docstrings(settings)
    for field in dataclasses.fields(settings):
        if field.default_factory is not dataclasses.MISSING:
            default = shown_default(field.default_factory())
        elif field.default is not dataclasses.MISSING:
            default = shown_default(field.default)
        else:
            default = "required"
        yield code(field.name), in_words(hints[field.name]), default, meanings.get(field.name, "")


def docstrings(settings: type) -> dict[str, str]:
    """The docstring below each field of a class and of the classes that it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(settings.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, below in zip(definition.body, definition.body[1:], strict=False):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[statement.target.id] = inspect.cleandoc(str(below.value.value))
    return found


def in_words(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    """A type in plain words, with its limits: `integer ≥ 1`, `"torch" or "vllm"`."""
    if get_origin(annotation) is Annotated:
        inner, *own = get_args(annotation)
        return in_words(inner, [*own, *metadata])
    words, limits = _base_words(annotation), dict(_limits(metadata))
    if limits.keys() == {"≥", "≤"}:
        return f"{words} from {limits['≥']} to {limits['≤']}"
    return f"{words} {' and '.join(f'{sign} {limit}' for sign, limit in limits.items())}".strip()


def _base_words(annotation: Any) -> str:
    arguments = get_args(annotation)
    match get_origin(annotation):
        case None:
            return WORDS[annotation]
        case origin if origin is Literal:
            return " or ".join(code(shown_value(value)) for value in arguments)
        case origin if origin in (Union, types.UnionType):
            return " or ".join(in_words(argument) for argument in arguments if argument is not type(None))
        case origin if origin is tuple and arguments[-1] is Ellipsis:
            return f"list of {in_words(arguments[0])}"
        case origin if origin is tuple:
            return f"list of {len(arguments)} {in_words(arguments[0])}s"
        case origin if origin is dict:
            return f"table of {in_words(arguments[1])}"
    raise TypeError(f"no words for the type {annotation}: add them to {__name__}")


def _limits(metadata: list[Any] | tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for entry in metadata:
        own = entry.metadata if isinstance(entry, FieldInfo) else [entry]
        for limit in own:
            for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
                if getattr(limit, name, None) is not None:
                    yield sign, getattr(limit, name)


def shown_default(value: Any) -> str:
    return "unset" if value is None else code(shown_value(value))


def shown_value(value: Any) -> str:
    """A value as it is written in TOML, on one line."""
    text = tomli_w.dumps({"v": to_jsonable_python(value)}, multiline_strings=False)
    return "{}" if value == {} else " ".join(text.removeprefix("v = ").split()).replace("[ ", "[").replace(", ]", "]")
