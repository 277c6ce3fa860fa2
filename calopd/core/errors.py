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


class TooFewTrajectories(CalopdError):
    """A step that lacks more trajectories than the configuration allows."""


class StaleTrajectory(CalopdError):
    """A trajectory that was sampled from an older or newer policy than its step allows."""


class CheckpointFailed(CalopdError):
    """The disk refuses a checkpoint."""


class VocabularyMismatch(CalopdError):
    """Teacher and student do not share the vocabulary."""


class PolicyError(CalopdError):
    """A published policy that is missing, incomplete or does not match its manifest."""
