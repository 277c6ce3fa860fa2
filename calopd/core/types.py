"""The data that passes between the services, and the glossary.

problem       a question with its gold answer and, if there is one, a worked solution
context       a prompt that only the teacher sees: c0 is the bare problem, c+ and c- add an intervention
response      the tokens the student wrote; never decoded and re-encoded on the way to the teacher
probe         a context other than c0 that measures the teacher's self-deviation
region        [L, U], the interval of log-probabilities within the teacher's self-deviation
relaxation    the paper's lambda: how many times the measured deviation the region spans
advantage     the learning signal of a token
ticket        the task to write one response; it counts once, whichever process dies
batch         the tickets of one optimizer step (`step-000012`) or of one evaluation (`eval-000010`)
policy        the student's weights after a number of optimizer steps, which is its version

Axis suffixes: _B trajectories, _T tokens, _C contexts, _V vocabulary, _K top-k, _H hidden.
"""

from dataclasses import dataclass

import numpy as np

from calopd.core.activity import Activity
from calopd.core.options import LOGPROBS_ONLY, Sampling, ScoreOptions


@dataclass(frozen=True, slots=True)
class Problem:
    id: str
    problem: str
    answer: str
    solution: str = ""


EVALUATION = "eval-"
"""Prefix of the batch name of an evaluation."""


@dataclass(frozen=True, slots=True)
class Ticket:
    run: str
    batch: str
    index: int
    problem_id: str
    sample: int
    """Number of this response among those to the same problem."""
    seed: int
    policy_version: int
    """The policy to sample from; with `newer_policy`, the oldest one to sample from."""
    sampling: Sampling
    contexts: tuple[str, ...] = ()
    """Contexts that the teacher scores under; empty for an evaluation."""
    score_options: ScoreOptions = LOGPROBS_ONLY
    policy_sha256: str = ""
    """Digest of the weights of `policy_version`, which may be published again after a crash; empty = any weights."""
    newer_policy: bool = False
    """Sample from the newest policy that was announced."""
    epoch: int = 0
    """Of the batch: a batch that was released and is issued again has a later one."""

    @property
    def id(self) -> str:
        return f"{self.run}/{self.batch}/{self.index}"

    @property
    def step(self) -> int:
        """The step that the ticket is for, or the policy that it evaluates."""
        return int(self.batch.rpartition("-")[2])

    @property
    def is_evaluation(self) -> bool:
        """Whether tickets of steps take precedence over it."""
        return self.batch.startswith(EVALUATION)


@dataclass(frozen=True, slots=True)
class Sample:
    """The response of a sampling engine to one prompt."""

    response_ids: np.ndarray
    """int32 [T], with the end-of-turn token when it was generated."""
    logprobs: np.ndarray
    """float32 [T], at temperature 1."""
    truncated: bool
    policy_version: int
    seconds: float
    """This response's share of the time in which the engine was busy."""
    first_token_time: float = 0.0
    """Unix time of the first token that the engine sampled from this policy; 0 = not known."""
    policy_sha256: str = ""
    """Digest of the weights that it was sampled from; empty = those that the engine started with."""


@dataclass(frozen=True, slots=True)
class TopK:
    ids: np.ndarray
    """int32 [P, K], most likely first."""
    logprobs: np.ndarray
    """float32 [P, K]."""
    positions: np.ndarray | None = None
    """int32 [P]: the response tokens of these rows; None = all of them."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A teacher's scores of one response, decoded."""

    names: tuple[str, ...]
    logprobs: np.ndarray
    """float32 [C, T], in the order of `names`; c0 first."""
    teacher_revision: str
    seconds: float
    top_k: TopK | None = None
    entropy: np.ndarray | None = None
    activity: Activity | None = None
    """The replica that scored."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A scored response: the result of a ticket."""

    ticket: Ticket
    prompt_ids: np.ndarray
    sample: Sample
    scores: Scores | None
    """None for an evaluation, and in the rollout, which passes the teacher's message on without decoding it."""
    correct: bool
    answered_after_think: bool
    sampler: str
    worker: str
    activity: Activity | None = None
    """The worker, when the trajectory was complete."""
