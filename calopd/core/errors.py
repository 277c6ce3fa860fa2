"""The errors a user or a peer can cause. Everything else is a bug and rises as it is."""


class CalopdError(Exception):
    """Base of all: the message says what was given, what was expected and what to do."""


class ConfigError(CalopdError):
    """The configuration, a path in it, or the data behind it is wrong."""


class InvalidRequest(CalopdError):
    """A request that no retry can make right (INVALID_ARGUMENT on the wire)."""


class Overloaded(CalopdError):
    """No room right now; the same request may be sent again later (RESOURCE_EXHAUSTED)."""


class EngineFailed(CalopdError):
    """The engine could not do it this time (INTERNAL): not the request's fault, worth another try."""


class Draining(CalopdError):
    """A replica that ends and takes nothing new (UNAVAILABLE): another one may."""


class UnhealthyTeacher(CalopdError):
    """Scores that must not reach the optimizer: NaN, wrong length, uniform or constant."""


class QueueUnavailable(CalopdError):
    """The server of the queue does not answer."""


class QueueLoginRefused(QueueUnavailable):
    """The server of the queue answers, but does not accept the user or the password."""


class LearnerReplaced(CalopdError):
    """Another learner has taken over the run: this one may change nothing any more."""


class ResultsLost(CalopdError):
    """Results that the queue announced and does not have, or that cannot be read."""

    def __init__(self, batch: str, indices: list[int]) -> None:
        super().__init__(f"{len(indices)} results of {batch} are lost or damaged: tickets {indices[:10]}")
        self.batch, self.indices = batch, indices


class TooFewTrajectories(CalopdError):
    """A step that lacks more trajectories than the configuration allows."""


class StaleTrajectory(CalopdError):
    """A trajectory that was sampled from an older or newer policy than its step allows."""


class CheckpointFailed(CalopdError):
    """The disk refuses a checkpoint."""


class CheckpointDamaged(CalopdError):
    """A checkpoint that does not match its manifest, or holds what no checkpoint holds."""


class VocabularyMismatch(CalopdError):
    """Teacher and student do not share the vocabulary."""


class ScoresRefused(CalopdError):
    """Implausible scores of one response, refused by the replica itself (DATA_LOSS) or, in the end, by its client."""


class PolicyError(CalopdError):
    """A published policy that is missing, incomplete or does not match its manifest."""
