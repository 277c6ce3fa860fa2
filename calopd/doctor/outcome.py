"""The outcome of a check."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a check passed, what it found, and what to do about it."""

    verdict: Verdict
    message: str
    advice: str = ""
    """The thing to do; empty if there is nothing to do."""
    detail: str = ""
    """A longer text that is shown below the table, such as the rendered prompt."""

    @property
    def sentence(self) -> str:
        """Message and advice as one line."""
        return f"{self.message}: {self.advice}" if self.advice else self.message


def passed(message: str, detail: str = "") -> Outcome:
    return Outcome(Verdict.PASSED, message, detail=detail)


def failed(message: str, advice: str, detail: str = "") -> Outcome:
    return Outcome(Verdict.FAILED, message, advice, detail)


def not_checked(message: str, advice: str = "") -> Outcome:
    return Outcome(Verdict.NOT_CHECKED, message, advice)
