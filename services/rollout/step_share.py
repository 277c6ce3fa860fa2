"""The share of a step that one of several rollouts takes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepShare:
    """How many tickets of a step one of its workers samples at once."""

    tickets: int
    """Tickets that are open at once."""
    replicas: int = 1
    """Workers that are expected, also while they have not started yet."""

    def of(self, workers: int) -> int:
        """An equal share: the first worker to claim leaves work for the others."""
        return -(-self.tickets // max(workers, self.replicas, 1))


WHOLE_STEP = StepShare(2**31)
