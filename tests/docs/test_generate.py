"""Pages of docs/ that are generated from the code."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from calopd.config import Config
from calopd.config.sections.base import Port
from calopd.core.environment import VARIABLES
from calopd.core.methods import METHODS, Method
from docs import generate
from docs.generators import configuration
from docs.generators.settings import docstrings, in_words, settings_of_dataclass

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "text"), generate.PAGES, ids=[name for name, _ in generate.PAGES])
def test_a_page_is_as_the_code_says(name: str, text: Callable[[], str]) -> None:
    assert (generate.DOCS / name).read_text() == text(), f"docs/{name} differs from the code: run make docs"


def test_a_difference_is_reported_with_the_page_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    monkeypatch.setattr("sys.argv", ["generate"])
    assert generate.main() == 0
    monkeypatch.setattr("sys.argv", ["generate", "--check"])
    assert generate.main() == 0
    page = tmp_path / "configuration.md"
    page.write_text(page.read_text().replace("`steps`", "`stops`"))
    assert generate.main() == 1
    assert capsys.readouterr().err == "error: docs/configuration.md differs from the code: run make docs\n"


def test_every_setting_is_on_the_page() -> None:
    parts = re.split(r"^## ", configuration.page(), flags=re.MULTILINE)
    for name, field in Config.model_fields.items():
        (part,) = (part for part in parts if part.startswith(f"[{name}]"))
        for key in getattr(field.annotation, "model_fields", {}):
            assert f"| `{key}` |" in part


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_setting_of_a_method_has_a_meaning_and_is_on_the_page(method: Method[Any]) -> None:
    meanings, page = docstrings(method.settings), configuration.page()
    for field in fields(method.settings):
        assert meanings.get(field.name), f"write a docstring below {method.settings.__name__}.{field.name}"
        assert f"| `{field.name}` |" in page


def test_a_users_method_is_not_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = configuration.page()
    monkeypatch.setitem(METHODS, "mine", replace(METHODS["opd"], name="mine", advantage=lambda tokens, settings: None))
    assert configuration.page() == before


def test_every_environment_variable_of_the_code_has_a_meaning() -> None:
    files = [file for folder in ("calopd", "services") for file in (ROOT / folder).rglob("*.py")]
    used = {name for file in files for name in re.findall(r"\bCALOPD_[A-Z][A-Z_]*\b", file.read_text())}
    assert used == {variable.name for variable in VARIABLES}


@dataclass(frozen=True)
class Base:
    inherited: Annotated[float, Field(ge=0)] = 0.5
    """A number
    on two lines."""


@dataclass(frozen=True)
class Settings(Base):
    mode: Literal["one", "two"] = "one"
    """`one` | `two`."""
    names: tuple[str, ...] = ()
    undocumented: int = 3


def test_settings_of_a_dataclass() -> None:
    assert settings_of_dataclass(Settings).splitlines()[2:] == [
        "| `inherited` | number ≥ 0 | `0.5` | A number on two lines. |",
        '| `mode` | `"one"` or `"two"` | `"one"` | `one` \\| `two`. |',
        "| `names` | list of text | `[]` |  |",
        "| `undocumented` | integer | `3` |  |",
    ]


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Port, "integer from 1 to 65535"),
        (Path | None, "path"),
        (tuple[float, float], "list of 2 numbers"),
        (dict[str, str], "table of text"),
        (Annotated[float, Field(gt=0)] | Literal["none"], 'number > 0 or `"none"`'),
    ],
)
def test_types_in_words(annotation: object, words: str) -> None:
    assert in_words(annotation) == words
