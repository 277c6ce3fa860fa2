"""Simulation of a step: rollouts sample, teachers score and the learner learns as soon as a response is complete."""

import functools
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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


class Servers:
    """The processes of a role: first come, first served."""

    def __init__(self, count: int) -> None:
        self._free = [(0.0, server) for server in range(count)]
        """(time, server): when each has nothing more to do."""
        self._busy = [0.0] * count

    def serve(self, arrivals: Sequence[tuple[float, float]]) -> list[float]:
        """(Arrival, seconds) of each piece of work -> when it is done."""
        done = [0.0] * len(arrivals)
        for index in sorted(range(len(arrivals)), key=lambda i: arrivals[i][0]):
            arrival, seconds = arrivals[index]
            available, server = heapq.heappop(self._free)
            done[index] = max(available, arrival) + seconds
            self._busy[server] += seconds
            heapq.heappush(self._free, (done[index], server))
        return done

    @property
    def busy(self) -> float:
        """Seconds of the busiest one."""
        return max(self._busy)


STALE_STEPS, FIRST_STEPS = 9, 3
"""Steps that are simulated with staleness, and how many of them do not count yet."""


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
    looking: Callable[[int], float] | None = None
    """Response tokens -> seconds of a rank before the plan of the step; None if the method learns as results arrive."""
    optimizer: float
    publish: float
    load: float
    """Of a policy by a rollout, which samples nothing meanwhile."""

    def strict(self, lengths: Sequence[int]) -> StepTimes:
        """Strictly on-policy: the next step begins when the new policy is loaded."""
        teachers, ranks = Servers(self.teachers), Servers(self.ranks)
        sampled = self._sampled(lengths, [0.0] * self.rollouts)
        end = self._learned(self._scored(sampled, lengths, teachers), lengths, ranks) + self.load
        return StepTimes(end, max(sampled), teachers.busy, ranks.busy + self.optimizer, self.publish + self.load)

    def stale(self, lengths: Sequence[int]) -> StepTimes:
        """Staleness 1, in the long run: a step is sampled while the one before it is learned from.

        A rollout completes its responses before it loads a policy, so it samples one step at a time. A step is sampled
        from the policy of the step before it: two steps last at least from that policy to the one that learned from it.
        """
        teachers, ranks = Servers(self.teachers), Servers(self.ranks)
        drained, published = [0.0] * self.rollouts, [0.0]
        for step in range(STALE_STEPS):
            starts = [max(published[max(0, step - 1)], at) + self.load for at in drained]
            sampled = self._sampled(lengths, starts)
            drained = [max(sampled[replica :: self.rollouts], default=at) for replica, at in enumerate(starts)]
            ready = [max(at, published[step]) for at in self._scored(sampled, lengths, teachers)]
            published.append(self._learned(ready, lengths, ranks))
        pace = (published[-1] - published[FIRST_STEPS]) / (STALE_STEPS - FIRST_STEPS)
        return replace(self.strict(lengths), step=pace)

    def phases(self, lengths: Sequence[int]) -> float:
        """The same roles one after the other: all responses, then all scores, then all gradients."""
        sampled = max(self._sampled(lengths, [0.0] * self.rollouts))
        scored = max(self._scored([sampled] * len(lengths), lengths, Servers(self.teachers)))
        return self._learned([scored] * len(lengths), lengths, Servers(self.ranks)) + self.load

    def _scored(self, sampled: Sequence[float], lengths: Sequence[int], teachers: Servers) -> list[float]:
        return teachers.serve([(at, self.scoring(n)) for at, n in zip(sampled, lengths, strict=True)])

    def _learned(self, scored: Sequence[float], lengths: Sequence[int], ranks: Servers) -> float:
        """When the policy that has learned from these responses is published."""
        if self.looking is not None:
            looked = ranks.serve([(at, self.looking(n)) for at, n in zip(scored, lengths, strict=True)])
            scored = [max(looked)] * len(lengths)
        learned = ranks.serve([(at, self.learning(n)) for at, n in zip(scored, lengths, strict=True)])
        return max(learned) + self.optimizer + self.publish

    def _sampled(self, lengths: Sequence[int], starts: Sequence[float]) -> list[float]:
        """When each response is complete; each rollout starts at its time."""
        out = [0.0] * len(lengths)
        for replica, start in enumerate(starts):
            share = range(replica, len(lengths), self.rollouts)
            for index, at in zip(share, sample_times(self.replica, tuple(lengths[i] for i in share))[0], strict=True):
                out[index] = start + at
        return out
