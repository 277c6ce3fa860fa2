"""What a method is: pure functions from log-probabilities to advantages, and what it asks of the services."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from calopd.core.contexts import BASE
from calopd.core.losses import LossAggMode
from calopd.core.types import MethodSettings, Plan, StepFacts, TokenBatch


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    advantage: Callable[[TokenBatch, MethodSettings], Tensor]
    """[T] advantages, before the clamp, each token by itself; no gradient flows through them."""
    uses_probes: bool = False
    privileged: str = ""
    """A context that stands for c0 in the advantage."""
    mask: Callable[[TokenBatch, MethodSettings], Tensor] | None = None
    """[T] of bool: tokens that stay; the others leave the loss and its denominator. It may not read the student."""
    plan: Callable[[StepFacts, MethodSettings], Plan] | None = None
    """Looks at the whole step before the first gradient; the learner waits for all trajectories."""
    plan_reads_student: bool = False
    """The plan reads R_i, so that all trajectories are passed through the student once before."""
    uses_reference: bool = False
    """The frozen initial student scores the tokens too."""
    uses_forward_kl: bool = False
    """Adds weight * FKL to the teacher's top-k where its entropy exceeds the threshold."""
    compares_samples: bool = False
    """Several responses to one problem are needed."""
    recorded: str = ""
    """The metric of a recorded run that is read at the same step."""
    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    """The paper's, where the configuration does not say otherwise; so is the clamp."""
    clamp: float | None = 10.0

    def contexts(self, settings: MethodSettings, *, measured: bool = False) -> tuple[str, ...]:
        """What the teacher scores a response under; c0 first, also where only the overlap is measured with it."""
        if self.privileged:
            return (BASE, self.privileged) if measured else (self.privileged,)
        return (BASE, *settings.probes) if self.uses_probes else (BASE,)


def opd_advantage(tokens: TokenBatch) -> Tensor:
    """A_OPD = lT - lS (Eq. 2): what every method is measured against."""
    return tokens.teacher_logprobs - tokens.student_logprobs
