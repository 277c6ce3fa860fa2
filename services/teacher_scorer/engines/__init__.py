"""Scoring engines by name. To add one, write its file, add a line here and its name to `TeacherSection.engine`."""

from pkgutil import resolve_name

from calopd.config.sections import TeacherSection
from services.teacher_scorer.engines.scoring_engine import ScoringEngine

ENGINES = {
    "torch": "services.teacher_scorer.engines.torch_scorer:TorchScorer",
    "vllm": "services.teacher_scorer.engines.vllm_scorer:VllmScorer",
}


def build_engine(teacher: TeacherSection) -> ScoringEngine:
    """Import the engine that the settings name, and load the teacher."""
    engine: type[ScoringEngine] = resolve_name(ENGINES[teacher.engine])
    return engine.configured(teacher)
