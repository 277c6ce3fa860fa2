"""Responses that one rollout samples together: the time of their next tokens, with a KV cache that may be full."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

CHUNK = 128
"""Tokens that are simulated at once while nothing else changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReplica:
    """One rollout: its limits, and the times of its engine."""

    max_sequences: int
    capacity_tokens: int
    """Tokens that the KV cache holds."""
    prompt_tokens: int
    token_seconds: Callable[[int, float], float]
    """(running sequences, cached tokens) -> seconds until each has one more token."""
    prefill_seconds: Callable[[int], float]


@dataclass(slots=True)
class _Sequence:
    key: int
    length: int
    done: int = 0


class DecodeBatch:
    """The responses of one replica, as vLLM schedules them: first come, first served; the last one is preempted."""

    def __init__(self, replica: RolloutReplica) -> None:
        self._replica = replica
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self.preempted = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def add(self, key: int, length: int) -> None:
        """A response that will have `length` tokens."""
        self._waiting.append(_Sequence(key, length))

    def remove(self, keys: Collection[int]) -> None:
        self._waiting = deque(s for s in self._waiting if s.key not in keys)
        self._running = [s for s in self._running if s.key not in keys]

    def token_seconds(self) -> float:
        """Seconds until each running response has one more token."""
        cached = sum(self._replica.prompt_tokens + s.done for s in self._running)
        return self._replica.token_seconds(max(1, len(self._running)), cached)

    def advance(self, most: int = CHUNK) -> tuple[float, list[int]]:
        """Sample up to `most` tokens of each running response; the seconds, and the keys of what is complete."""
        replica, prompt, running = self._replica, self._replica.prompt_tokens, self._running
        seconds = 0.0
        while True:
            cached = sum(prompt + s.done for s in running)
            while (
                self._waiting
                and len(running) < replica.max_sequences
                and (not running or cached + prompt + self._waiting[0].done + len(running) < replica.capacity_tokens)
            ):
                sequence = self._waiting.popleft()
                seconds += replica.prefill_seconds(prompt + sequence.done)
                cached += prompt + sequence.done
                running.append(sequence)
            room = (replica.capacity_tokens - cached) // len(running)
            tokens = min(most, room, *(s.length - s.done for s in running))
            if tokens >= 1 or len(running) == 1:
                break
            self._waiting.appendleft(running.pop())
            self.preempted += 1
        tokens = max(1, tokens)
        seconds += tokens * replica.token_seconds(len(running), cached + tokens * len(running) / 2)
        for sequence in running:
            sequence.done += tokens
        done = [s.key for s in running if s.done >= s.length]
        self._running = [s for s in running if s.done < s.length]
        return seconds, done
