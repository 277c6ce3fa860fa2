"""A surface that takes input from outside, and the rules of fuzzing it."""

import random
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

HANG_SECONDS = 20


class Hang(BaseException):
    """One input took longer than HANG_SECONDS."""


class Surface(ABC):
    """One kind of input. It is accepted or refused with an error of its own; anything else is a bug."""

    name: str
    share: int = 1
    """Inputs of a round, relative to the other surfaces."""

    @abstractmethod
    def try_one(self, draw: random.Random) -> str:
        """Make an input and feed it; returns `accepted` or the reason of the refusal, raises for a bug."""

    @abstractmethod
    def close(self) -> None:
        """Check that the surface still works after all inputs, and end it."""


@dataclass
class Result:
    surface: str
    inputs: int = 0
    seconds: float = 0.0
    answers: "Counter[str]" = field(default_factory=Counter)
    bugs: "Counter[str]" = field(default_factory=Counter)
    """Innermost line of our code and error -> number."""
    seeds: dict[str, str] = field(default_factory=dict)
    """The first input of each bug: its seed."""


def fuzz(surface: Surface, inputs: int, seed: int) -> Result:
    """Feed `inputs` inputs, each from a seed of its own, so that any of them can be repeated alone."""
    result, start = Result(surface.name), time.monotonic()
    for number in range(inputs):
        key = f"{surface.name}/{seed}/{number}"
        try:
            with _alarm():
                result.answers[surface.try_one(random.Random(key))] += 1
        except (Exception, Hang) as error:
            bug = _place(error)
            result.bugs[bug] += 1
            result.seeds.setdefault(bug, key)
        result.inputs += 1
    result.seconds = time.monotonic() - start
    return result


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    frames = [f for f in frames if "/calopd/" in f.filename or "/services/" in f.filename] or frames
    text = " ".join(str(error).split())[:150]
    where = f"{frames[-1].filename.rsplit('/', 2)[-1]}:{frames[-1].lineno}" if frames else "?"
    return f"{where} {type(error).__name__}: {text}"


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no answer within {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
