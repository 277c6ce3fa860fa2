"""Conversion between the library's types and protobuf messages. Each type is converted here and nowhere else."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import numpy as np

from calopd.core.activity import Activity
from calopd.core.errors import InvalidRequest, UnhealthyTeacher
from calopd.core.score_checks import check_scores
from calopd.core.types import LOGPROBS_ONLY, Sample, Sampling, ScoreOptions, Scores, Ticket, TopK, Trajectory
from calopd.transport.v1 import queue_pb2, teacher_scorer_pb2

IDS = np.dtype("<i4")
LOGPROBS = np.dtype("<f4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A teacher replica, as it describes itself; the fields of DescribeResponse."""

    model: str
    revision: str
    engine: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    max_tokens: int
    max_contexts: int
    max_top_k: int
    dtype: str = ""
    vocabulary: tuple[str, ...] = ()


def description_to_message(description: Description) -> teacher_scorer_pb2.DescribeResponse:
    return teacher_scorer_pb2.DescribeResponse(**asdict(description))


def description_from_message(message: teacher_scorer_pb2.DescribeResponse) -> Description:
    values = {field.name: getattr(message, field.name) for field in fields(Description)}
    return Description(**(values | {"vocabulary": tuple(message.vocabulary)}))


def to_bytes(values: np.ndarray, dtype: np.dtype) -> bytes:
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def from_bytes(raw: bytes, dtype: np.dtype, what: str) -> np.ndarray:
    if len(raw) % dtype.itemsize:
        raise InvalidRequest(
            f"{what} has {len(raw)} bytes, expected a multiple of {dtype.itemsize} (little-endian {dtype})"
        )
    return np.frombuffer(raw, dtype=dtype)


def sampling_to_message(sampling: Sampling) -> queue_pb2.Sampling:
    return queue_pb2.Sampling(**asdict(sampling))


def sampling_from_message(message: queue_pb2.Sampling) -> Sampling:
    return Sampling.of(message)


def activity_to_message(activity: Activity) -> teacher_scorer_pb2.Activity:
    return teacher_scorer_pb2.Activity(
        process=activity.process,
        started=activity.started,
        busy_seconds=activity.busy,
        waiting_seconds=activity.waiting,
    )


def activity_from_message(message: teacher_scorer_pb2.Activity) -> Activity:
    return Activity(message.process, message.started, message.busy_seconds, message.waiting_seconds)


def score_options_to_message(options: ScoreOptions) -> teacher_scorer_pb2.ScoreOptions:
    return teacher_scorer_pb2.ScoreOptions(
        top_k=options.top_k, want_entropy=options.want_entropy, top_k_min_entropy=options.top_k_min_entropy
    )


def score_options_from_message(message: teacher_scorer_pb2.ScoreOptions) -> ScoreOptions:
    return ScoreOptions(
        top_k=message.top_k,
        want_entropy=message.want_entropy,
        top_k_min_entropy=message.top_k_min_entropy if message.HasField("top_k_min_entropy") else None,
    )


def score_request(
    trajectory_id: str,
    response_ids: np.ndarray,
    contexts: Mapping[str, np.ndarray],
    options: ScoreOptions = LOGPROBS_ONLY,
) -> teacher_scorer_pb2.ScoreRequest:
    return teacher_scorer_pb2.ScoreRequest(
        trajectory_id=trajectory_id,
        response_ids=to_bytes(response_ids, IDS),
        contexts=[
            teacher_scorer_pb2.Context(name=name, prompt_ids=to_bytes(ids, IDS)) for name, ids in contexts.items()
        ],
        options=score_options_to_message(options),
    )


def scores_to_message(trajectory_id: str, scores: Scores) -> teacher_scorer_pb2.ScoreResponse:
    message = teacher_scorer_pb2.ScoreResponse(
        trajectory_id=trajectory_id,
        scores=[
            teacher_scorer_pb2.ContextScore(name=name, logprobs=to_bytes(row, LOGPROBS))
            for name, row in zip(scores.names, scores.logprobs, strict=True)
        ],
        teacher_revision=scores.teacher_revision,
        seconds=scores.seconds,
    )
    if scores.top_k is not None:
        message.top_k.k = scores.top_k.ids.shape[1]
        message.top_k.ids = to_bytes(scores.top_k.ids, IDS)
        message.top_k.logprobs = to_bytes(scores.top_k.logprobs, LOGPROBS)
        if scores.top_k.positions is not None:
            message.top_k.positions = to_bytes(scores.top_k.positions, IDS)
    if scores.entropy is not None:
        message.entropy = to_bytes(scores.entropy, LOGPROBS)
    if scores.activity is not None:
        message.activity.CopyFrom(activity_to_message(scores.activity))
    return message


def scores_from_message(message: teacher_scorer_pb2.ScoreResponse) -> Scores:
    logprobs = np.stack([from_bytes(score.logprobs, LOGPROBS, score.name) for score in message.scores])
    top_k = None
    if message.top_k.k:
        shape = (-1, message.top_k.k)
        ids = from_bytes(message.top_k.ids, IDS, "top_k.ids").reshape(shape)
        positions = from_bytes(message.top_k.positions, IDS, "top_k.positions")
        top_k = TopK(
            ids=ids,
            logprobs=from_bytes(message.top_k.logprobs, LOGPROBS, "top_k.logprobs").reshape(shape),
            positions=positions if len(ids) < logprobs.shape[1] else None,
        )
    return Scores(
        names=tuple(score.name for score in message.scores),
        logprobs=logprobs,
        teacher_revision=message.teacher_revision,
        seconds=message.seconds,
        top_k=top_k,
        entropy=from_bytes(message.entropy, LOGPROBS, "entropy") if message.entropy else None,
        activity=activity_from_message(message.activity) if message.HasField("activity") else None,
    )


@dataclass(frozen=True, slots=True)
class ReceivedScores:
    """The teacher's answer as received: checked in place, passed on unchanged, decoded only to read its numbers."""

    message: teacher_scorer_pb2.ScoreResponse

    def check(self, request: teacher_scorer_pb2.ScoreRequest, vocabulary_size: int, revision: str = "") -> None:
        """Raise UnhealthyTeacher if this is not an answer to `request`, or if its scores are implausible.

        `revision` is that of the teacher; empty = any.
        """
        if revision and self.message.teacher_revision != revision:
            raise UnhealthyTeacher(f"scores of the revision {self.message.teacher_revision!r}, expected {revision!r}")
        names, expected = ([item.name for item in part] for part in (self.message.scores, request.contexts))
        if (self.message.trajectory_id, names) != (request.trajectory_id, expected):
            raise UnhealthyTeacher(
                f"an answer to {self.message.trajectory_id!r} with contexts {names}, "
                f"expected {request.trajectory_id!r} with {expected}"
            )
        tokens = len(request.response_ids) // IDS.itemsize
        for score in self.message.scores:
            if len(score.logprobs) != tokens * LOGPROBS.itemsize:
                raise UnhealthyTeacher(f"{len(score.logprobs)} bytes of scores for {tokens} tokens: wrong length")
            check_scores(np.frombuffer(score.logprobs, LOGPROBS), tokens, vocabulary_size)
        self._check_entropy(request.options, tokens)
        self._check_top_k(request.options, tokens, vocabulary_size)

    def _check_entropy(self, options: teacher_scorer_pb2.ScoreOptions, tokens: int) -> None:
        expected = tokens * LOGPROBS.itemsize if options.want_entropy else 0
        if len(self.message.entropy) != expected:
            raise UnhealthyTeacher(f"{len(self.message.entropy)} bytes of entropy, expected {expected}")
        if not np.isfinite(np.frombuffer(self.message.entropy, LOGPROBS)).all():
            raise UnhealthyTeacher("the entropy is NaN or infinite")

    def _check_top_k(self, options: teacher_scorer_pb2.ScoreOptions, tokens: int, vocabulary_size: int) -> None:
        top = self.message.top_k
        if top.k != options.top_k:
            raise UnhealthyTeacher(f"the top {top.k} tokens, expected the top {options.top_k}")
        if not top.k:
            return
        gated = options.HasField("top_k_min_entropy")
        rows = len(top.positions) // IDS.itemsize if gated else tokens
        sizes = len(top.positions), len(top.ids), len(top.logprobs)
        values = rows * top.k
        if sizes != (rows * IDS.itemsize * gated, values * IDS.itemsize, values * LOGPROBS.itemsize):
            raise UnhealthyTeacher(f"positions, ids and logprobs of the top-k have {sizes} bytes: wrong length")
        positions, ids = np.frombuffer(top.positions, IDS), np.frombuffer(top.ids, IDS)
        if rows > tokens or (np.diff(positions, prepend=-1, append=tokens) < 1).any():
            raise UnhealthyTeacher(f"the positions of the top-k are not those of {tokens} response tokens, in order")
        if ((ids < 0) | (ids >= vocabulary_size)).any():
            raise UnhealthyTeacher("the top-k has ids outside the vocabulary")
        logprobs = np.frombuffer(top.logprobs, LOGPROBS)
        if not np.isfinite(logprobs).all() or (logprobs > 1e-4).any():
            raise UnhealthyTeacher("the top-k has log-probabilities that are NaN, infinite or above 0")

    def decode(self) -> Scores:
        return scores_from_message(self.message)


def ticket_to_message(ticket: Ticket) -> queue_pb2.Ticket:
    return queue_pb2.Ticket(
        run=ticket.run,
        batch=ticket.batch,
        index=ticket.index,
        problem_id=ticket.problem_id,
        sample=ticket.sample,
        seed=ticket.seed,
        policy_version=ticket.policy_version,
        sampling=sampling_to_message(ticket.sampling),
        contexts=ticket.contexts,
        score_options=score_options_to_message(ticket.score_options),
        policy_sha256=ticket.policy_sha256,
        newer_policy=ticket.newer_policy,
        epoch=ticket.epoch,
    )


def ticket_from_message(message: queue_pb2.Ticket) -> Ticket:
    return Ticket(
        run=message.run,
        batch=message.batch,
        index=message.index,
        problem_id=message.problem_id,
        sample=message.sample,
        seed=message.seed,
        policy_version=message.policy_version,
        sampling=sampling_from_message(message.sampling),
        contexts=tuple(message.contexts),
        score_options=score_options_from_message(message.score_options),
        policy_sha256=message.policy_sha256,
        newer_policy=message.newer_policy,
        epoch=message.epoch,
    )


def trajectory_to_bytes(trajectory: Trajectory, received: ReceivedScores | None = None) -> bytes:
    """Encode a trajectory; `received` takes the place of its scores and is not decoded."""
    sample = trajectory.sample
    message = queue_pb2.Trajectory(
        ticket=ticket_to_message(trajectory.ticket),
        prompt_ids=to_bytes(trajectory.prompt_ids, IDS),
        response_ids=to_bytes(sample.response_ids, IDS),
        rollout_logprobs=to_bytes(sample.logprobs, LOGPROBS),
        truncated=sample.truncated,
        policy_version=sample.policy_version,
        correct=trajectory.correct,
        answered_after_think=trajectory.answered_after_think,
        sampler=trajectory.sampler,
        worker=trajectory.worker,
        sampling_seconds=sample.seconds,
        activity=None if trajectory.activity is None else activity_to_message(trajectory.activity),
        first_token_time=sample.first_token_time,
        policy_sha256=sample.policy_sha256,
    )
    if received is not None:
        message.scores.CopyFrom(received.message)
    elif trajectory.scores is not None:
        message.scores.CopyFrom(scores_to_message(trajectory.ticket.id, trajectory.scores))
    return message.SerializeToString()


def trajectory_from_bytes(raw: bytes) -> Trajectory:
    return trajectory_from_message(queue_pb2.Trajectory.FromString(raw))


def trajectory_from_message(message: queue_pb2.Trajectory) -> Trajectory:
    return Trajectory(
        ticket=ticket_from_message(message.ticket),
        prompt_ids=from_bytes(message.prompt_ids, IDS, "prompt_ids"),
        sample=Sample(
            response_ids=from_bytes(message.response_ids, IDS, "response_ids"),
            logprobs=from_bytes(message.rollout_logprobs, LOGPROBS, "rollout_logprobs"),
            truncated=message.truncated,
            policy_version=message.policy_version,
            seconds=message.sampling_seconds,
            first_token_time=message.first_token_time,
            policy_sha256=message.policy_sha256,
        ),
        scores=scores_from_message(message.scores) if message.HasField("scores") else None,
        correct=message.correct,
        answered_after_think=message.answered_after_think,
        sampler=message.sampler,
        worker=message.worker,
        activity=activity_from_message(message.activity) if message.HasField("activity") else None,
    )
