"""Results as they come out of the queue: what one lacks must be known before anything is learned from it."""

from calopd.core.errors import UnhealthyTeacher
from calopd.core.types import Trajectory
from calopd.transport import convert
from calopd.transport.v1 import queue_pb2, teacher_scorer_pb2

ANY_VOCABULARY = 2**31


def read_result(raw: bytes) -> Trajectory:
    """Decode a result; raises UnhealthyTeacher if it does not hold what its ticket asks for, token by token."""
    message = queue_pb2.Trajectory.FromString(raw)
    if len(message.rollout_logprobs) // convert.LOGPROBS.itemsize != len(message.response_ids) // convert.IDS.itemsize:
        raise UnhealthyTeacher("the sampler's log-probabilities are not as many as the tokens of the response")
    if message.ticket.contexts:
        asked = teacher_scorer_pb2.ScoreRequest(
            trajectory_id=convert.ticket_from_message(message.ticket).id,
            response_ids=message.response_ids,
            contexts=[teacher_scorer_pb2.Context(name=name) for name in message.ticket.contexts],
            options=message.ticket.score_options,
        )
        convert.ReceivedScores(message.scores).check(asked, ANY_VOCABULARY)
    return convert.trajectory_from_message(message)
