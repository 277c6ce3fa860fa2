"""Existing rollouts as input: a JSONL of responses, another study, or a JSONL of responses with scores.

docs/tsd.md documents both JSONL formats.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calopd.core.contexts import BASE
from calopd.core.errors import ConfigError
from calopd.core.types import Problem
from calopd.study.shards import ScoredRollout, Study, StudyRollout, check_contexts

SHARD_TOKENS = 2**20


@dataclass(frozen=True, slots=True)
class Response:
    """A sampled or recorded response to a problem."""

    problem: Problem
    token_ids: np.ndarray
    student_logprobs: np.ndarray | None
    """None if the student still has to score the response."""
    correct: bool | None
    """None if the answer still has to be checked."""
    truncated: bool


class RecordedFile:
    """Responses of a JSONL file: per line a problem (inline or by id) and `response_ids` or `response`."""

    def __init__(self, file: Path, problems: Sequence[Problem], tokenizer: Any) -> None:
        self._file, self._tokenizer = file, tokenizer
        self._known = {problem.id: problem for problem in problems}
        self._offsets = []
        with file.open("rb") as lines:
            while line := lines.readline():
                if line.strip():
                    self._offsets.append(lines.tell() - len(line))
        if not self._offsets:
            raise ConfigError(f"{file} contains no rollouts")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def problems(self) -> list[Problem]:
        """The problems of all rollouts, including those defined only in the file."""
        return list({problem.id: problem for problem in map(self._problem, range(len(self)))}.values())

    def _row(self, number: int) -> dict[str, Any]:
        with self._file.open("rb") as lines:
            lines.seek(self._offsets[number])
            return parse_line(self._file, number + 1, lines.readline())

    def _problem(self, number: int, row: dict[str, Any] | None = None) -> Problem:
        row = row or self._row(number)
        name = str(row.get("problem_id", f"line-{number + 1}"))
        if "problem" in row and "answer" in row:
            return Problem(name, str(row["problem"]), str(row["answer"]), str(row.get("solution") or ""))
        if name not in self._known:
            raise ConfigError(
                f"{self._file}, rollout {number + 1}: expected `problem` and `answer`, or a `problem_id` of data.train"
            )
        return self._known[name]

    def get(self, number: int) -> Response:
        row = self._row(number)
        if "response_ids" in row:
            ids = np.asarray(row["response_ids"], np.int32)
        elif "response" in row:
            ids = np.asarray(self._tokenizer.encode(row["response"], add_special_tokens=False), np.int32)
        else:
            raise ConfigError(f"{self._file}, rollout {number + 1}: expected `response_ids` or `response`")
        own = row.get("student_logprobs")
        return Response(
            problem=self._problem(number, row),
            token_ids=ids,
            student_logprobs=None if own is None else logprobs(self._file, number + 1, "student", own, len(ids)),
            correct=row.get("correct"),
            truncated=bool(row.get("truncated", False)),
        )


class RecordedStudy:
    """The rollouts of another study, to score the same responses with another teacher."""

    def __init__(self, study: Study, problems: Sequence[Problem]) -> None:
        self._study = study
        self._places = sorted(study.rollouts(), key=lambda place: place[2].index)
        self._known = {problem.id: problem for problem in problems}
        self.problems = list(problems)
        if unknown := [p[2].problem_id for p in self._places if p[2].problem_id not in self._known]:
            raise ConfigError(
                f"{study.directory}: its rollouts use problem {unknown[0]!r}, which is not in data.train: "
                "set data.train to the problems of that study"
            )

    def __len__(self) -> int:
        return len(self._places)

    def get(self, number: int) -> Response:
        scored = self._study.read(*self._places[number])
        rollout = scored.rollout
        problem = self._known[rollout.problem_id]
        return Response(problem, scored.token_ids, scored.student_logprobs, rollout.correct, rollout.truncated)


def open_recorded(source: Path, problems: Sequence[Problem], tokenizer: Any) -> RecordedFile | RecordedStudy:
    return RecordedStudy(Study(source), problems) if source.is_dir() else RecordedFile(source, problems, tokenizer)


def count_recorded(source: Path) -> int:
    if not source.exists():
        raise ConfigError(f"no rollouts at {source}: expected a JSONL file or the directory of a study")
    if source.is_dir():
        return sum(1 for _ in Study(source).rollouts())
    with source.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def lacks_student(source: Path) -> bool:
    """Whether any response lacks the student's log-probabilities."""
    if not source.is_file():
        return False
    with source.open("rb") as lines:
        return any(b'"student_logprobs"' not in line for line in lines if line.strip())


def import_scored(file: Path, study: Study) -> int:
    """Create a study from a JSONL of scored responses; return the number of rollouts.

    An interrupted import starts again from the beginning.
    """
    contexts: list[str] = []
    texts: dict[int, str] = {}
    waiting: list[ScoredRollout] = []
    count = tokens = highest = 0
    for scored, names in _scored(file, texts):
        if not contexts:
            contexts = names
            check_contexts(contexts)
            study.begin(source=str(file), contexts=contexts)
            for shard in study.shards:
                shard.unlink()
        elif names != contexts:
            raise ConfigError(
                f"{file}, rollout {count + 1}: contexts {names}, expected those of the first rollout, {contexts}"
            )
        waiting.append(scored)
        highest = max(highest, int(scored.token_ids.max(initial=0)))
        count, tokens = count + 1, tokens + scored.rollout.tokens
        if tokens >= SHARD_TOKENS:
            study.write_shard(0, waiting)
            waiting, tokens = [], 0
    if not count:
        raise ConfigError(f"{file} contains no scored rollouts: docs/tsd.md describes the format")
    if waiting:
        study.write_shard(0, waiting)
    study.write_tokens([texts.get(number, f"<{number}>") for number in range(max([highest, *texts]) + 1)])
    return count


def _scored(file: Path, texts: dict[int, str]) -> Iterator[tuple[ScoredRollout, list[str]]]:
    """Scored rollouts and their contexts; token texts are added to `texts` along the way."""
    if not file.is_file():
        raise ConfigError(f"no scored rollouts at {file}: expected a JSONL file")
    index = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = parse_line(file, number, line)
            texts.update({int(key): str(text) for key, text in row.get("surface_forms", {}).items()})
            if "response_ids" not in row:
                continue
            teacher: Mapping[str, Any] = row.get("teacher_logprobs") or {}
            if BASE not in teacher or "student_logprobs" not in row:
                raise ConfigError(
                    f"{file}, line {number}: expected student_logprobs, and teacher_logprobs with {BASE!r}"
                )
            names = [BASE, *(name for name in teacher if name != BASE)]
            ids = np.asarray(row["response_ids"], np.int32)
            texts.update(zip(ids.tolist(), row.get("tokens", ()), strict=False))
            rollout = StudyRollout(
                index=index,
                problem_id=str(row.get("problem_id", f"line-{number}")),
                tokens=len(ids),
                problem=str(row.get("problem", "")),
                answer=str(row.get("answer", "")),
                correct=row.get("correct"),
                truncated=bool(row.get("truncated", False)),
            )
            own = logprobs(file, number, "student", row["student_logprobs"], len(ids))
            rows = [logprobs(file, number, name, teacher[name], len(ids)) for name in names]
            yield ScoredRollout(rollout, ids, own, np.stack(rows)), names
            index += 1


def parse_line(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}, line {number} is not valid JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{file}, line {number}: expected a JSON object")
    return row


def logprobs(file: Path, number: int, whose: str, values: Any, length: int) -> np.ndarray:
    """Log-probabilities as float32 [T]; a wrong length or a number that is not finite is an error."""
    out = np.asarray(values, np.float32)
    if out.shape != (length,) or not np.isfinite(out).all():
        raise ConfigError(
            f"{file}, line {number}: log-probabilities of {whose!r} must be {length} finite numbers, "
            "one per response id"
        )
    return out
