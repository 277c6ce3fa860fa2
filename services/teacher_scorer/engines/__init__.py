"""Scoring engines by name. To add one, write its file, add a line here and its name to `TeacherSection.engine`."""

from pkgutil import resolve_name
from typing import Any

from calopd.config.sections import TeacherSection
from calopd.planning.emulation import Emulation
from services.teacher_scorer.engines.scoring_engine import ScoringEngine

ENGINES = {
    "emulated": "services.teacher_scorer.engines.emulated_scorer:EmulatedScorer",
    "torch": "services.teacher_scorer.engines.torch_scorer:TorchScorer",
    "vllm": "services.teacher_scorer.engines.vllm_scorer:VllmScorer",
}


def build_engine(
    teacher: TeacherSection, emulation: Emulation | None = None, *, deterministic: bool = False
) -> ScoringEngine:
    """Import the engine that the settings name, and load the teacher; only an emulated one has `emulation`."""
    engine: type[ScoringEngine] = resolve_name(ENGINES[teacher.engine])
    extra: dict[str, Any] = {} if emulation is None else {"emulation": emulation}
    return engine.configured(teacher, deterministic=deterministic, **extra)
