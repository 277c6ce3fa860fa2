"""What a method is: a pure function from log-probabilities to advantages, and what it asks of the teacher."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from calopd.contexts import BASE
from calopd.types import MethodSettings, TokenBatch


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    advantage: Callable[[TokenBatch, MethodSettings], Tensor]
    """[T] advantages, before the clamp; no gradient flows through them."""
    uses_probes: bool = False

    def contexts(self, settings: MethodSettings) -> tuple[str, ...]:
        """The contexts the teacher scores each response under; c0 first."""
        return (BASE, *settings.probes) if self.uses_probes else (BASE,)


def opd_advantage(tokens: TokenBatch) -> Tensor:
    """A_OPD = lT - lS (Eq. 2): what every method is measured against."""
    return tokens.teacher_logprobs - tokens.student_logprobs
