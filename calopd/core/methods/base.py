"""A method: pure functions from log-probabilities to advantages, its settings, and what it needs from the services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from calopd.core.contexts import BASE
from calopd.core.losses import LossAggMode
from calopd.core.method_inputs import StepFacts, StepPlan, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """Base of the settings of a method: a frozen dataclass whose fields are keys of `[method]`.

    The text below a field is its meaning in the documentation. `__post_init__` refuses values with `require`.
    """

    def require(self, key: str, valid: bool, expected: str) -> None:
        """Refuse the value of a field."""
        if not valid:
            raise ValueError(f"{key} is {getattr(self, key)}, expected {expected}")


@dataclass(frozen=True, kw_only=True)
class ProbeSettings(MethodSettings):
    """Settings of a method that measures the teacher's self-deviation."""

    probes: tuple[str, ...] = ("eval",)
    """Context groups (`eval` = both of its contexts) or single contexts (`inst+`) that span the region."""
    relaxation: float = 5.0
    """The paper's lambda >= 1: how many times the measured deviation the region spans."""

    def __post_init__(self) -> None:
        self.require("probes", bool(self.probes), "at least one context group")
        self.require("relaxation", self.relaxation >= 1, "a number greater than or equal to 1")


@dataclass(frozen=True, kw_only=True)
class RecordedSettings(MethodSettings):
    """Settings of a control that follows a recorded Cal-OPD run step by step."""

    recorded_run: str
    """Directory of the Cal-OPD run whose ratios are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The paper's settings for a method; they apply to every key that the configuration does not set."""

    clamp: float | None = 10.0
    """Bound of the advantage on both sides; None = unbounded."""
    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    learner: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `[learner]`."""


@dataclass(frozen=True, slots=True)
class ForwardKLOptions:
    """Adds weight * FKL to the teacher's top-k for tokens whose teacher entropy exceeds a threshold."""

    top_k: int
    min_entropy: float
    weight: float


S = TypeVar("S", bound=MethodSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Generic[S]):
    name: str
    advantage: Callable[[TokenBatch, S], Tensor]
    """[T] advantages before the clamp. Each token by itself: the learner calls it on chunks. No gradient flows."""
    settings: type[S] = MethodSettings  # type: ignore[assignment]
    """A subclass of MethodSettings; of ProbeSettings for a method that uses probes."""
    recipe: Recipe = Recipe()
    privileged: str = ""
    """A context that replaces c0 in the advantage."""
    mask: Callable[[TokenBatch, S], Tensor] | None = None
    """[T] of bool: tokens to keep; the others leave the loss and its denominator. It may not read the student."""
    plan: Callable[[StepFacts, S], StepPlan] | None = None
    """Plans the whole step before the first gradient; the learner waits for all trajectories."""
    plans_each_alone: bool = False
    """The plan of a trajectory depends on no other one: it is made when the trajectory arrives, and nobody waits."""
    plan_reads_student: bool = False
    """The plan reads R_i, which takes one more forward pass of all trajectories."""
    uses_reference: bool = False
    """The frozen initial student scores the tokens too."""
    forward_kl: Callable[[S], ForwardKLOptions] | None = None
    compares_samples: bool = False
    """Needs several responses per problem."""
    recorded: str = ""
    """The metric of a recorded run that is read at the same step; the settings are RecordedSettings."""

    def __post_init__(self) -> None:
        assert not (self.plans_each_alone and self.plan_reads_student), "the pass over the student is one of all ranks"

    @property
    def plans_whole_step(self) -> bool:
        """Whether the first gradient of a step waits for its last trajectory."""
        return self.plan is not None and not self.plans_each_alone

    @property
    def uses_probes(self) -> bool:
        return issubclass(self.settings, ProbeSettings)

    def contexts(self, probes: tuple[str, ...], *, measured: bool = False) -> tuple[str, ...]:
        """Contexts that the teacher scores a response under; c0 also if only the overlap is measured with it."""
        if self.privileged:
            return (BASE, self.privileged) if measured else (self.privileged,)
        return (BASE, *probes) if self.uses_probes else (BASE,)


def opd_advantage(tokens: TokenBatch) -> Tensor:
    """A_OPD = lT - lS (Eq. 2), the raw discrepancy that every method is measured against."""
    return tokens.teacher_logprobs - tokens.student_logprobs
