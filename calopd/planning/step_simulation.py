"""Simulation of a step: rollouts sample, teachers score and the learner learns as soon as a response is complete."""

import functools
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calopd.planning.decode_batch import DecodeBatch, RolloutReplica


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step, and the busy seconds of the busiest process of each role."""

    step: float
    rollout: float
    teacher: float
    learner: float
    """Optimizer step included."""
    publish: float
    """From the optimizer step to the first token of the new policy."""

    @property
    def busiest(self) -> float:
        return max(self.rollout, self.teacher, self.learner)


@functools.lru_cache(maxsize=256)
def sample_times(replica: RolloutReplica, lengths: tuple[int, ...]) -> tuple[list[float], int]:
    """When each response of one rollout is complete, and how often one was preempted for want of KV cache."""
    batch = DecodeBatch(replica)
    for index, length in enumerate(lengths):
        batch.add(index, length)
    finished = [0.0] * len(lengths)
    clock = 0.0
    while batch:
        seconds, done = batch.advance()
        clock += seconds
        for index in done:
            finished[index] = clock
    return finished, batch.preempted


def serve(arrivals: Sequence[tuple[float, float]], servers: int) -> tuple[list[float], float]:
    """First come, first served: (arrival, seconds) -> when each is done, and the busy seconds of the busiest server."""
    free = [(0.0, server) for server in range(servers)]
    busy = [0.0] * servers
    done = [0.0] * len(arrivals)
    for index in sorted(range(len(arrivals)), key=lambda i: arrivals[i][0]):
        arrival, seconds = arrivals[index]
        available, server = heapq.heappop(free)
        done[index] = max(available, arrival) + seconds
        busy[server] += seconds
        heapq.heappush(free, (done[index], server))
    return done, max(busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """All that a step's time depends on."""

    replica: RolloutReplica
    rollouts: int
    teachers: int
    ranks: int
    scoring: Callable[[int], float]
    """Response tokens -> seconds of a teacher, all contexts."""
    learning: Callable[[int], float]
    """Response tokens -> seconds of a rank."""
    optimizer: float
    publish: float

    def strict(self, lengths: Sequence[int]) -> StepTimes:
        """Strictly on-policy: the next step begins when the new policy is loaded."""
        sampled = self._sampled(lengths)
        scored, teacher = serve([(at, self.scoring(n)) for at, n in zip(sampled, lengths, strict=True)], self.teachers)
        learned, learner = serve([(at, self.learning(n)) for at, n in zip(scored, lengths, strict=True)], self.ranks)
        end = max(learned) + self.optimizer + self.publish
        return StepTimes(end, max(sampled), teacher, learner + self.optimizer, self.publish)

    def stale(self, lengths: Sequence[int]) -> StepTimes:
        """Staleness 1, in the long run: rollouts never wait, so the busiest role sets the pace."""
        times = self.strict(lengths)
        # One more step behind the first: the sequences of the next step fill the places of those that ended.
        rollout = max(self._sampled([*lengths] * 2)) - max(self._sampled(lengths))
        pace = max(rollout, times.teacher, times.learner + self.publish)
        return StepTimes(pace, rollout, times.teacher, times.learner, self.publish)

    def phases(self, lengths: Sequence[int]) -> float:
        """The same roles one after the other: all responses, then all scores, then all gradients."""
        _, teacher = serve([(0.0, self.scoring(n)) for n in lengths], self.teachers)
        _, learner = serve([(0.0, self.learning(n)) for n in lengths], self.ranks)
        return max(self._sampled(lengths)) + teacher + learner + self.optimizer + self.publish

    def _sampled(self, lengths: Sequence[int]) -> list[float]:
        out = [0.0] * len(lengths)
        for replica in range(self.rollouts):
            share = range(replica, len(lengths), self.rollouts)
            for index, at in zip(share, sample_times(self.replica, tuple(lengths[i] for i in share))[0], strict=True):
                out[index] = at
        return out
