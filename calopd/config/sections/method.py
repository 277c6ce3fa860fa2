"""[method]"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from calopd.config.nearest import nearest
from calopd.config.sections.base import Section
from calopd.core.contexts import INTERVENTIONS, check_intervention, group_probes
from calopd.core.losses import LossAggMode
from calopd.core.methods import METHODS, Method, add_method
from calopd.core.token_selection import Selection
from calopd.core.types import MethodSettings


class MethodSection(Section):
    name: str = "cal_opd"
    file: Path | None = None
    """A method of your own: a Python file with a METHOD, found by its name."""
    relaxation: float = Field(default=5.0, ge=1)
    """The paper's lambda of Cal-OPD."""
    probes: tuple[str, ...] = ("eval",)
    """Groups (`eval` = both of its contexts) or single contexts (`inst+`); several = their union."""
    contexts: dict[str, str] = Field(default_factory=dict)
    """Contexts of your own: name (`hint+`, `hint-`) = text with {problem}, {answer}, {solution}; they may be probes."""
    placement: Literal["after", "before"] = "after"
    """Where the intervention stands: after or before the problem."""
    loss_agg_mode: LossAggMode | Literal["method"] = "method"
    """`"method"` = what the paper uses for this method."""
    clamp: Annotated[float, Field(gt=0)] | Literal["none", "method"] = "method"
    """Bound of the advantage on both sides; `"none"` = unbounded, `"method"` = the paper's."""
    student_logprobs: Literal["learner", "rollout"] = "learner"
    """Whose log-probabilities stand for the student in the advantage."""
    selection: Selection = "random"
    selection_ratio: float = Field(default=1.0, gt=0, le=1)
    """Share of each response's tokens that is learnt from."""
    extrapolation: float = Field(default=1.25, ge=0)
    """ExOPD's lambda."""
    entropy_threshold: float = Field(default=0.8, ge=0)
    """EOPD's tau, in nats."""
    forward_kl_weight: float = Field(default=1.0, ge=0)
    """EOPD's alpha."""
    forward_kl_top_k: int = Field(default=16, ge=1)
    margin_delta: float = 0.4
    """Uni-OPD: the margin between right and wrong responses to a problem."""
    margin_mode: Literal["broadcast", "shift"] = "broadcast"
    target_correct_ratio: float = Field(default=0.5, gt=0, lt=1)
    deviation_threshold: float = Field(default=0.1, ge=0)
    """TSD-Filter's tau, in nats."""
    recorded_run: Path | None = None
    """Advantage-Sync and Token-Sync: the directory of a Cal-OPD run whose ratios are followed step by step."""
    overlap_top_k: int = Field(default=16, ge=0)
    """Tokens compared for the overlap metrics; 0 = not measured."""
    overlap_share: float = Field(default=1.0, ge=0, le=1)
    """Share of a step's trajectories that the overlap is measured on, drawn from the seed."""

    @model_validator(mode="after")
    def _known(self) -> "MethodSection":
        for name, text in self.contexts.items():
            check_intervention(name, text)
        if self.file is not None:
            add_method(self.file)
        if self.name not in METHODS:
            raise ValueError(f"unknown method {self.name!r}{nearest(self.name, METHODS)}")
        if self.method.recorded and self.recorded_run is None:
            raise ValueError(f"{self.name} follows a recorded Cal-OPD run: name its directory in method.recorded_run")
        _ = self.settings
        return self

    @property
    def method(self) -> Method:
        return METHODS[self.name]

    @property
    def interventions(self) -> dict[str, str]:
        """The paper's eight contexts and the user's own."""
        return INTERVENTIONS | self.contexts

    @property
    def aggregation(self) -> LossAggMode:
        return self.method.loss_agg_mode if self.loss_agg_mode == "method" else self.loss_agg_mode

    @property
    def bound(self) -> float | None:
        if self.clamp == "method":
            return self.method.clamp
        return None if self.clamp == "none" else self.clamp

    @property
    def settings(self) -> MethodSettings:
        probes = (name for entry in self.probes for name in group_probes(entry, self.interventions))
        return MethodSettings(
            relaxation=self.relaxation,
            probes=tuple(dict.fromkeys(probes)),
            extrapolation=self.extrapolation,
            entropy_threshold=self.entropy_threshold,
            forward_kl_weight=self.forward_kl_weight,
            margin_delta=self.margin_delta,
            margin_mode=self.margin_mode,
            target_correct_ratio=self.target_correct_ratio,
            deviation_threshold=self.deviation_threshold,
        )
