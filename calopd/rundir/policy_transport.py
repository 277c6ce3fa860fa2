"""How weights pass from the learner to the rollouts: a publisher on one side, a reader on the other.

The implementations here pass them through files (`FilePublisher`, `FileReader`). A transport between GPUs, such as
vLLM's own weight transfer over NCCL, is another pair: the coordinator of the learner creates the publisher, the server
of the rollout creates the reader, and `SamplingEngine.load` takes what the reader returns. Versions, digests,
announcements and tickets stay as they are.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from calopd.rundir.tensor_files import TensorStream


@dataclass(frozen=True, slots=True)
class Published:
    sha256: str
    """Digest of the whole policy."""
    bytes: int
    """Bytes that were written for it."""
    is_delta: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    directory: Path
    """A folder with the whole policy, verified. It stays as it is until the next call of the reader."""
    sha256: str


class PolicyPublisher(Protocol):
    """The learner's side; exists on rank 0 only."""

    def publish(self, version: int, weights: TensorStream) -> Published:
        """Make a policy available to all readers."""
        ...

    def publish_whole(self, version: int) -> bool:
        """Publish the newest policy again, for a reader that cannot rebuild it; False if it is another one."""
        ...


class PolicyReader(Protocol):
    """A rollout's side. Used by one thread at a time."""

    def fetch(self, version: int, sha256: str | None = None) -> Fetched:
        """A published policy, verified; raises PolicyError if it is missing, damaged or has another digest."""
        ...
