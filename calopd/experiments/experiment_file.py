"""An experiment as a TOML file: recipes, arms, seeds, evaluation, tables and figures."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from calopd.config.explain import sentence
from calopd.config.extends import merge, read_files
from calopd.config.nearest import nearest
from calopd.config.sections.base import Seed
from calopd.config.sections.sampling import GreedySamplingKeys
from calopd.core.errors import ConfigError
from calopd.core.options import PAPER_EVALUATION
from calopd.core.paper_results import STUDENT
from calopd.core.step_metrics import METRICS
from calopd.pages.comparison.step_figures import COMPARED

Name = str
NAME = r"^[A-Za-z0-9_-]+$"


class Part(BaseModel):
    """A table of the file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(Part):
    """A method with its settings; with a grid, one variation per combination of its values."""

    label: str = ""
    """Name in tables and figures; `{key}` is the value of a grid's key. Default: the arm's name and values."""
    set: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings, by section."""
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """`section.key` -> values."""
    follows: str = "cal_opd"
    """The arm that a control follows step by step, with the same seed; for methods with a recorded run only."""


class EvaluationPart(GreedySamplingKeys):
    """The evaluation of every trained student. The defaults are the paper's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    benchmarks: tuple[str, ...] = ()
    """Names or files; none = no evaluation."""
    n: int = Field(default=16, ge=1)
    problems: int | None = Field(default=None, ge=1)
    """Only the first problems of each benchmark."""
    temperature: float = Field(default=PAPER_EVALUATION.temperature, ge=0)
    top_p: float = Field(default=PAPER_EVALUATION.top_p, gt=0, le=1)
    max_tokens: int = Field(default=PAPER_EVALUATION.max_tokens, ge=1)
    max_prompt_tokens: int = Field(default=2_048, ge=1)
    in_flight: int = Field(default=256, ge=1)
    engine: Literal["vllm", "torch"] = "vllm"
    seed: Seed = 0
    baselines: tuple[Literal["student", "teacher"], ...] = ("student", "teacher")
    """Models of a pair that are evaluated too."""


class DiscrepancyPart(Part):
    """Responses of every trained student to held-out problems, scored by the teacher."""

    problems: Path
    rollouts: int = Field(ge=1)
    probes: str = "eval"


class TablePart(Part):
    key: str = Field(pattern=NAME)
    title: str
    arms: tuple[str, ...]
    against: str = STUDENT
    """The arm, or the student, that differences are taken from."""


class FigurePart(Part):
    key: str = Field(pattern=NAME)
    title: str
    arms: tuple[str, ...]
    kind: Literal["steps", "sweep"] = "steps"
    metrics: tuple[str, ...] = COMPARED
    """Metrics over steps."""
    x: str = ""
    """The key of a grid that a sweep is drawn against."""


class StudyPart(Part):
    """A study of teacher self-deviation."""

    recipe: str
    set: dict[str, dict[str, Any]] = Field(default_factory=dict)
    tokens: int | None = Field(default=None, ge=1)
    rollouts: int | None = Field(default=None, ge=1)
    contexts: str = ""
    rollouts_of: str = ""
    """Another study of the file, whose rollouts are scored instead of new ones."""


class EstimatePart(Part):
    """Measured times for machines that the planner does not know."""

    seconds_per_step: float = Field(gt=0, allow_inf_nan=False)
    seconds_per_run: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Start and end of a run, its evaluation included."""
    source: str = ""


class Experiment(Part):
    """The whole file."""

    title: str
    dir: Path
    note: str = ""
    """The limits of what the experiment can show; stands at the top of its page."""
    seeds: tuple[Seed, ...] = (0,)
    recipes: dict[str, Path]
    """Name of a pair -> TOML of its runs, relative to this file."""
    set: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of all runs and studies."""
    arms: dict[str, Arm] = Field(default_factory=dict)
    evaluation: EvaluationPart = EvaluationPart()
    discrepancy: DiscrepancyPart | None = None
    tables: tuple[TablePart, ...] = ()
    figures: tuple[FigurePart, ...] = ()
    studies: dict[str, StudyPart] = Field(default_factory=dict)
    estimate: EstimatePart | None = None
    keep_checkpoints: bool = False
    """Keep checkpoints and policies of finished runs."""

    @model_validator(mode="after")
    def _names(self) -> "Experiment":
        for kind, names in (("arms", self.arms), ("recipes", self.recipes), ("studies", self.studies)):
            for name in names:
                if not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
                    raise ValueError(f"{kind}.{name}: a name is letters, digits, '.', '_' and '-'")
        wanted = [(table.key, table.arms) for table in self.tables] + [(one.key, one.arms) for one in self.figures]
        for key, arms in wanted:
            for arm in arms:
                self._require(arm, self.arms, f"{key}.arms")
        for table in self.tables:
            self._require(table.against, [*table.arms, STUDENT], f"{table.key}.against")
        known = {metric.key for metric in METRICS}
        for figure in self.figures:
            for metric in figure.metrics:
                self._require(metric, known, f"{figure.key}.metrics")
            if figure.kind == "sweep" and not any(figure.x in self.arms[arm].grid for arm in figure.arms):
                raise ValueError(f"{figure.key}.x is {figure.x!r}, expected a key of the grid of one of its arms")
            for value in (value for arm in figure.arms for value in self.arms[arm].grid.get(figure.x, ())):
                if figure.kind == "sweep" and (not isinstance(value, int | float) or value <= 0):
                    raise ValueError(f"{figure.key}.x is {figure.x!r} with {value!r}: a sweep needs numbers above 0")
        for name, study in self.studies.items():
            self._require(study.recipe, self.recipes, f"studies.{name}.recipe")
            if study.rollouts_of:
                self._require(study.rollouts_of, self.studies, f"studies.{name}.rollouts_of")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds is {list(self.seeds)}, expected different numbers, at least one")
        return self

    @staticmethod
    def _require(name: str, known: Any, where: str) -> None:
        if name not in known:
            raise ValueError(f"{where}: unknown name {name!r}{nearest(name, known)}")


def load_experiment(file: Path) -> Experiment:
    """Read the file and the files that it extends; recipes become paths relative to the working directory."""
    values: dict[str, Any] = {}
    for source, layer in read_files(file):
        values = merge(values, _with_paths_from(source.parent, layer))
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{file}: " + "; ".join(map(sentence, error.errors()))) from None


def _with_paths_from(folder: Path, layer: dict[str, Any]) -> dict[str, Any]:
    """The values of one file; its recipes are relative to its folder."""
    recipes = layer.get("recipes")
    if not isinstance(recipes, dict):
        return layer
    found = {name: str(folder / path) if isinstance(path, str) else path for name, path in recipes.items()}
    return layer | {"recipes": found}
