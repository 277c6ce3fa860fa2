"""A context is stated once, in calopd/core/contexts.py, and reaches everything from there."""

from pathlib import Path

import pytest

from calopd.config import load_config
from calopd.core.contexts import BASE, CONTEXTS, Context, groups
from calopd.core.tsd.deviation_sums import StudyPlan
from calopd.core.types import Problem
from calopd.models.prompts import Prompts
from calopd.study.collection import contexts_of
from services.teacher_scorer.servicer import context_label
from tests.tiny import make_tokenizer

ROOT = Path(__file__).parents[2]
MINIMAL = "[data]\ntrain='t'\n[student]\npath='s'\n[teacher]\npath='t'\n"


def test_a_new_group_reaches_prompts_probes_study_and_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("calm+", "calm-"):
        monkeypatch.setitem(CONTEXTS, name, Context.named(name, "Stay calm: {answer}."))
    file = tmp_path / "c.toml"
    file.write_text(MINIMAL)
    config = load_config(file, ['method.probes=["calm"]'], {})
    assert config.method.scored_contexts() == (BASE, "calm+", "calm-")
    assert contexts_of(config, None)[-2:] == ["calm+", "calm-"]
    assert StudyPlan.of(list(CONTEXTS)).pairs["calm"] == (8, 9)
    prompts = Prompts(make_tokenizer(), [], seed=0, max_prompt_tokens=500, max_context_tokens=500)
    problem = Problem("a", "How much is 1+2?", "3")
    assert prompts.intervention(problem, "calm+") == "Stay calm: 3."
    assert prompts.intervention(problem, "calm-") != "Stay calm: 3."
    assert (context_label("calm+"), context_label("unheard-of")) == ("calm+", "other")


def test_every_group_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    missing = [group for group in groups() if f"| `{group}` |" not in page]
    assert not missing, f"docs/methods.md: add a row for the context group {missing[0]!r} to the table of contexts"
