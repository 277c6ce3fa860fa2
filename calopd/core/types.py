"""What passes between the parts, and the words for it.

problem       a question with its gold answer (and, where there is one, a worked solution)
context       a prompt the teacher alone sees: c0 is the bare problem, c+ and c- add an intervention
response      the tokens the student wrote; never decoded and re-encoded on the way to the teacher
probe         a context other than c0 whose only use is to measure how far the teacher moves
region        [L, U], the interval of log-probabilities that the teacher's own wobble explains
relaxation    the paper's lambda: how many times the measured wobble the region spans
advantage     what the student learns from, per token
ticket        the right and duty to write one response: counted once, whoever dies
batch         the tickets of one optimizer step (`step-000012`) or of one evaluation (`eval-000010`)
policy        the student's weights after a number of optimizer steps, its version

Axis suffixes: _B trajectories, _T tokens, _C contexts, _V vocabulary, _K top-k, _H hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Problem:
    id: str
    problem: str
    answer: str
    solution: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 16_384


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Scores to compute in addition to the log-probabilities of the response tokens, for the first context."""

    top_k: int = 0
    """Most likely tokens to return per position; 0 = none."""
    want_entropy: bool = False
    """Return the teacher's entropy at each position."""
    top_k_min_entropy: float | None = None
    """Return the top-k only for positions whose entropy, in nats, exceeds this; None = for all."""


LOGPROBS_ONLY = ScoreOptions()


EVALUATION = "eval-"
"""Prefix of the batch name of an evaluation."""


@dataclass(frozen=True, slots=True)
class Ticket:
    run: str
    batch: str
    index: int
    problem_id: str
    sample: int
    """Which of several responses to the same problem."""
    seed: int
    policy_version: int
    sampling: Sampling
    contexts: tuple[str, ...] = ()
    """Contexts the teacher scores; empty for an evaluation ticket."""
    score_options: ScoreOptions = LOGPROBS_ONLY

    @property
    def id(self) -> str:
        return f"{self.run}/{self.batch}/{self.index}"

    @property
    def is_evaluation(self) -> bool:
        """Whether it may wait until nothing is to be written for a step."""
        return self.batch.startswith(EVALUATION)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a sampling engine gives back for one prompt."""

    response_ids: np.ndarray
    """int32 [T], with the end-of-turn token when it was generated."""
    logprobs: np.ndarray
    """float32 [T], at temperature 1."""
    truncated: bool
    policy_version: int
    seconds: float
    """This response's share of the engine's busy time."""


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
    """What a teacher says of one response."""

    names: tuple[str, ...]
    logprobs: np.ndarray
    """float32 [C, T], in the order of `names`; c0 first."""
    teacher_revision: str
    seconds: float
    top_k: TopK | None = None
    entropy: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A scored response: what a ticket becomes."""

    ticket: Ticket
    prompt_ids: np.ndarray
    sample: Sample
    scores: Scores | None
    correct: bool
    answered_after_think: bool
    sampler: str
    worker: str


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The response tokens of some trajectories, concatenated: what a method sees."""

    student_logprobs: torch.Tensor
    """[T], detached."""
    teacher_logprobs: torch.Tensor
    """[T], under c0; under the privileged context where the method learns from that."""
    probe_logprobs: torch.Tensor
    """[C, T], under the probes; C = 0 where the method has none."""
    reference_logprobs: torch.Tensor | None = None
    """[T], of the frozen initial student, where the method asks for it."""
    planned: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """[T] tensors by name: what the method's own plan of the whole step says of these tokens."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What is known of all trajectories of a step, in the order of their tickets."""

    indices: list[int]
    problem_ids: list[str]
    lengths: list[int]
    correct: list[bool]
    mean_gaps: list[float]
    """R_i = mean_t(lT - lS); empty if the method does not ask for it."""

    @classmethod
    def merge(cls, parts: Sequence["StepFacts"]) -> "StepFacts":
        """Join the facts of several micro-batches, in the order of their tickets."""
        joined = {f.name: [value for part in parts for value in getattr(part, f.name)] for f in fields(cls)}
        order = sorted(range(len(joined["indices"])), key=joined["indices"].__getitem__)
        return cls(**{name: [column[i] for i in order] if column else [] for name, column in joined.items()})


Plan = Mapping[int, Mapping[str, torch.Tensor] | None]
"""Ticket index -> named values of its tokens ([T], or a scalar for all), None for a trajectory that is dropped."""


@dataclass(frozen=True, slots=True)
class MethodSettings:
    """The numbers of the paper that a method may read."""

    relaxation: float = 5.0
    probes: tuple[str, ...] = ("eval+", "eval-")
    extrapolation: float = 1.25
    """ExOPD's lambda."""
    entropy_threshold: float = 0.8
    """EOPD's tau, in nats."""
    forward_kl_weight: float = 1.0
    """EOPD's alpha."""
    margin_delta: float = 0.4
    target_correct_ratio: float = 0.5
    margin_mode: str = "broadcast"
    deviation_threshold: float = 0.1
    """TSD-Filter's tau, in nats."""
    recorded_ratio: float = 1.0
    """r_k or z_k of the recorded run at this step."""
    seed: int = 0
    step: int = 0
