"""[method]"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr, TypeAdapter, ValidationError, model_validator

from calopd.config.explain import expectation
from calopd.config.nearest import nearest
from calopd.config.sections.base import Section
from calopd.core.contexts import CONTEXTS, Context, probe_names
from calopd.core.losses import LossAggMode
from calopd.core.methods import METHODS, Method, MethodSettings, ProbeSettings
from calopd.core.token_selection import Selection

if TYPE_CHECKING:
    from calopd.core.objective import Objective


class MethodSection(Section):
    """Keys that all methods have. The settings of the named method are further keys of the same section."""

    model_config = ConfigDict(extra="allow")

    name: str = "cal_opd"
    """The method to train with: one of docs/methods.md, or that of `file`."""
    file: Path | None = None
    """A Python file with a method of your own: METHOD = Method(...)."""
    contexts: dict[str, str] = Field(default_factory=dict)
    """Contexts of your own: name (`hint+`, `hint-`) = text with {problem}, {answer}, {solution}; they may be probes."""
    placement: Literal["after", "before"] = "after"
    """Whether the intervention stands after or before the problem."""
    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    """How token losses become the loss of a step. Default: what the paper uses for the method."""
    clamp: Annotated[float, Field(gt=0)] | Literal["none"] = 10.0
    """Bound of the advantage on both sides; `"none"` = unbounded. Default: what the paper uses for the method."""
    student_logprobs: Literal["learner", "rollout"] = "learner"
    """Whose log-probabilities stand for the student in the advantage: of the learner's own pass, or of the sampler."""
    importance_limit: Annotated[float, Field(ge=1)] | Literal["off"] = 2.0
    """Upper bound C of the importance ratio min(πS / πrollout, C), which multiplies the advantage of a token that was
    sampled from an older policy; `"off"` = no ratio. Used if `run.max_staleness` > 0."""
    selection: Selection = "random"
    """How the tokens to learn from are chosen, if `selection_ratio` is below 1."""
    selection_ratio: float = Field(default=1.0, gt=0, le=1)
    """Share of each response's tokens to learn from."""
    overlap_top_k: int = Field(default=16, ge=0)
    """Most likely tokens that the overlap metrics compare; 0 = not measured."""
    overlap_share: float = Field(default=1.0, ge=0, le=1)
    """Share of a step's trajectories that the overlap is measured on; the metrics include its standard error. Lower it
    for long responses."""

    _settings: MethodSettings = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _of_the_method(cls, values: Any) -> Any:
        """Add the paper's recipe and all settings of the named method: the resolved configuration shows them."""
        name = values.get("name", cls.model_fields["name"].default)
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}{nearest(str(name), METHODS)}")
        recipe, settings = METHODS[name].recipe, method_settings(name, values)
        clamp = "none" if recipe.clamp is None else recipe.clamp
        resolved = TypeAdapter(type(settings)).dump_python(settings, mode="json")
        return {"clamp": clamp, "loss_agg_mode": recipe.loss_agg_mode, **values, **resolved}

    @model_validator(mode="after")
    def _contexts(self) -> "MethodSection":
        self._settings = method_settings(self.name, self.model_extra or {})
        _ = self.probe_contexts
        return self

    @property
    def method(self) -> Method[Any]:
        return METHODS[self.name]

    @property
    def settings(self) -> MethodSettings:
        """The settings of the named method."""
        return self._settings

    @property
    def known_contexts(self) -> dict[str, Context]:
        """The paper's eight contexts and the user's own, by name."""
        return CONTEXTS | {name: Context.named(name, text) for name, text in self.contexts.items()}

    @property
    def probe_contexts(self) -> tuple[str, ...]:
        """Names of the probe contexts; () for a method without probes."""
        if not isinstance(self._settings, ProbeSettings):
            return ()
        return probe_names(self._settings.probes, self.known_contexts)

    def scored_contexts(self, *, measured: bool = False) -> tuple[str, ...]:
        """Contexts that the teacher scores a response under; `measured`: the overlap is measured on this response."""
        return self.method.contexts(self.probe_contexts, measured=measured)

    @property
    def objective(self) -> "Objective":
        from calopd.core.objective import Objective

        return Objective(
            method=self.method,
            settings=self.settings,
            loss_agg_mode=self.loss_agg_mode,
            clamp=None if self.clamp == "none" else self.clamp,
            importance_limit=None if self.importance_limit == "off" else self.importance_limit,
            selection=self.selection,
            selection_ratio=self.selection_ratio,
        )


def method_settings(name: str, values: Mapping[str, Any]) -> MethodSettings:
    """The settings of a method from the keys of `[method]`; keys of neither the section nor the method are refused."""
    method = METHODS[name]
    own = {field.name for field in fields(method.settings)}
    given = {key: value for key, value in values.items() if key not in MethodSection.model_fields}
    for key in given.keys() - own:
        others = [n for n, m in METHODS.items() if key in {field.name for field in fields(m.settings)}]
        has = "has" if len(others) == 1 else "have"
        hint = f"; {', '.join(others)} {has} it" if others else nearest(key, own | MethodSection.model_fields.keys())
        raise ValueError(f"unknown key method.{key} for the method {name}{hint}")
    try:
        settings: MethodSettings = TypeAdapter(method.settings).validate_python(given)
    except ValidationError as error:
        raise ValueError("; ".join(_explain(name, entry) for entry in error.errors())) from None
    return settings


def _explain(name: str, error: Any) -> str:
    where = ".".join(["method", *map(str, error["loc"])])
    if error["type"] == "missing":
        return f"{where} is missing, which {name} needs"
    if error["type"] == "value_error":  # of the settings' own checks, which name the key
        return "method." + error["msg"].removeprefix("Value error, ")
    return f"{where}: {expectation(error)}"


def without_foreign_settings(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The keys of `[method]` without settings of other methods, because a later layer chooses the method `name`."""
    settings = {key: {field.name for field in fields(method.settings)} for key, method in METHODS.items()}
    foreign = set().union(*settings.values()) - settings.get(name, set())
    return {key: value for key, value in values.items() if key not in foreign}
