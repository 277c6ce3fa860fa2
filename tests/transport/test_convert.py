"""Every field of every type survives the wire: a field that a converter forgets fails here."""

import itertools
import types
import typing
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from calopd.core.errors import UnhealthyTeacher
from calopd.core.types import Sample, Sampling, ScoreOptions, Scores, Ticket, TopK, Trajectory
from calopd.transport import convert
from calopd.transport.v1 import queue_pb2
from calopd.transport.v1 import teacher_scorer_pb2 as pb

IDS, LOGPROBS = np.arange(3, dtype=np.int32), -np.arange(1, 4, dtype=np.float32)
ARRAYS = {
    (Sample, "response_ids"): IDS + 7,
    (Sample, "logprobs"): LOGPROBS,
    (TopK, "ids"): np.array([[1, 2], [3, 4]], np.int32),
    (TopK, "logprobs"): np.array([[-1, -2], [-3, -4]], np.float32),
    (TopK, "positions"): np.array([0, 2], np.int32),
    (Scores, "logprobs"): np.stack([LOGPROBS - 1, LOGPROBS - 2]),
    (Scores, "entropy"): -LOGPROBS,
    (Trajectory, "prompt_ids"): IDS + 20,
}


def filled(cls: Any, numbers: itertools.count) -> Any:
    """An instance whose fields all differ from their defaults and from one another."""
    values: dict[str, Any] = {}
    hints = typing.get_type_hints(cls)
    for field in fields(cls):
        kind, number = hints[field.name], next(numbers)
        if isinstance(kind, types.UnionType):
            kind = next(option for option in kind.__args__ if option is not types.NoneType)
        if is_dataclass(kind):
            values[field.name] = filled(kind, numbers)
        elif kind is np.ndarray:
            values[field.name] = ARRAYS[cls, field.name]
        elif kind is bool:
            values[field.name] = field.default is not True
        elif kind == tuple[str, ...]:
            values[field.name] = (f"a{number}", f"b{number}")
        else:
            values[field.name] = {int: number, float: number / 8, str: f"s{number}"}[kind]
    return cls(**values)


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if is_dataclass(value):
        return {k: v for f in fields(value) for k, v in flat(getattr(value, f.name), f"{prefix}.{f.name}").items()}
    return {prefix: value.tolist() if isinstance(value, np.ndarray) else value}


def over_the_wire(value: Any) -> Any:
    match value:
        case Sampling():
            raw = convert.sampling_to_message(value).SerializeToString()
            return convert.sampling_from_message(queue_pb2.Sampling.FromString(raw))
        case ScoreOptions():
            raw = convert.score_options_to_message(value).SerializeToString()
            return convert.score_options_from_message(pb.ScoreOptions.FromString(raw))
        case Ticket():
            raw = convert.ticket_to_message(value).SerializeToString()
            return convert.ticket_from_message(queue_pb2.Ticket.FromString(raw))
        case Scores():
            raw = convert.scores_to_message("id", value).SerializeToString()
            return convert.scores_from_message(pb.ScoreResponse.FromString(raw))
        case Trajectory():
            return convert.trajectory_from_bytes(convert.trajectory_to_bytes(value))


@pytest.mark.parametrize("cls", [Sampling, ScoreOptions, Ticket, Scores, Trajectory])
def test_every_field_survives_the_wire(cls):
    sent = filled(cls, itertools.count(3))
    assert flat(over_the_wire(sent)) == flat(sent)


def test_options_that_are_not_set_stay_unset():
    assert over_the_wire(ScoreOptions()) == ScoreOptions()
    assert over_the_wire(ScoreOptions(top_k_min_entropy=0.0)).top_k_min_entropy == 0.0


def test_a_request_carries_the_options_whole():
    options = filled(ScoreOptions, itertools.count(3))
    request = convert.score_request("t", IDS, {"c0": IDS}, options)
    assert convert.score_options_from_message(request.options) == options


def received() -> tuple[pb.ScoreRequest, convert.ReceivedScores]:
    scores = replace(filled(Scores, itertools.count(3)), names=("c0", "eval+"))
    options = ScoreOptions(top_k=2, want_entropy=True, top_k_min_entropy=0.5)
    request = convert.score_request("t", IDS, {"c0": IDS, "eval+": IDS + 1}, options)
    return request, convert.ReceivedScores(convert.scores_to_message("t", scores))


def test_the_teachers_message_reaches_the_learner_byte_for_byte():
    """Also fields that this version does not know."""
    unknown = b"\xfa\x3f\x03new"  # field 1023, bytes
    raw = received()[1].message.SerializeToString() + unknown
    message = convert.ReceivedScores(pb.ScoreResponse.FromString(raw))
    trajectory = replace(filled(Trajectory, itertools.count(3)), scores=None)
    sent = convert.trajectory_to_bytes(trajectory, message)
    assert raw in sent
    assert queue_pb2.Trajectory.FromString(sent).scores.SerializeToString() == raw
    assert flat(convert.trajectory_from_bytes(sent).scores) == flat(message.decode())


def test_an_answer_to_its_request_passes():
    request, answer = received()
    answer.check(request, vocabulary_size=400)


@pytest.mark.parametrize(
    ("options", "top_k"),
    [
        (ScoreOptions(), None),
        (ScoreOptions(top_k=1), TopK(IDS[:, None], LOGPROBS[:, None])),
        (
            ScoreOptions(top_k=2, top_k_min_entropy=9.0),
            TopK(IDS[:0].reshape(0, 2), LOGPROBS[:0].reshape(0, 2), IDS[:0]),
        ),
        (ScoreOptions(top_k=1, top_k_min_entropy=0.0), TopK(IDS[:, None], LOGPROBS[:, None], IDS)),
    ],
)
def test_a_top_k_of_all_tokens_or_of_some_passes(options, top_k):
    scores = Scores(("c0",), LOGPROBS[None], "r", 0.0, top_k)
    answer = convert.ReceivedScores(convert.scores_to_message("t", scores))
    answer.check(convert.score_request("t", IDS, {"c0": IDS}, options), vocabulary_size=400)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda m: setattr(m, "trajectory_id", "other"), "an answer to 'other'"),
        (lambda m: m.scores.reverse(), r"with contexts \['eval\+', 'c0'\], expected 't' with \['c0', 'eval\+'\]"),
        (lambda m: m.scores.pop(), "with contexts"),
        (lambda m: setattr(m.scores[1], "logprobs", m.scores[1].logprobs[:-4]), "wrong length"),
        (lambda m: setattr(m.scores[1], "logprobs", m.scores[1].logprobs[:-1]), "11 bytes .* wrong length"),
        (lambda m: setattr(m.scores[1], "logprobs", np.full(3, np.nan, "<f4").tobytes()), "NaN"),
        (lambda m: m.ClearField("entropy"), "0 bytes of entropy, expected 12"),
        (lambda m: setattr(m, "entropy", np.full(3, np.nan, "<f4").tobytes()), "entropy is NaN"),
        (lambda m: m.ClearField("top_k"), "the top 0 tokens, expected the top 2"),
        (lambda m: setattr(m.top_k, "ids", m.top_k.ids[:-4]), "wrong length"),
        (lambda m: m.top_k.ClearField("positions"), "wrong length"),
        (lambda m: setattr(m.top_k, "positions", np.array([0, 3], "<i4").tobytes()), "positions of the top-k"),
        (lambda m: setattr(m.top_k, "positions", np.array([2, 0], "<i4").tobytes()), "positions of the top-k"),
        (lambda m: setattr(m.top_k, "ids", np.array([1, 2, 3, 400], "<i4").tobytes()), "outside the vocabulary"),
        (lambda m: setattr(m.top_k, "logprobs", np.full(4, np.nan, "<f4").tobytes()), "top-k has log-probabilities"),
    ],
)
def test_any_other_answer_is_refused(spoil, reason):
    request, answer = received()
    spoil(answer.message)
    with pytest.raises(UnhealthyTeacher, match=reason):
        answer.check(request, vocabulary_size=400)
