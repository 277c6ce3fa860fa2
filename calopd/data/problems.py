"""Problem files, and the order in which training uses the problems."""

import hashlib
import json
import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError
from calopd.core.types import Problem

FIELDS = ("id", "problem", "answer")
HALF_OF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that is no character unless it is followed by its other half."""


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Line number and value of each line that is not blank; a mistake is a ConfigError that names the line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                value = json.loads(text) if text.strip() else None
                if HALF_OF_A_PAIR.search(text):
                    json.dumps(value, ensure_ascii=False).encode()
            except UnicodeError:
                raise ConfigError(f"{path}, line {number}: not UTF-8 text; save it with the encoding UTF-8") from None
            except json.JSONDecodeError as error:
                raise ConfigError(f"{path}, line {number}: not JSON ({error.msg} at column {error.colno})") from None
            except (ValueError, RecursionError) as error:  # a number or a nesting that Python refuses
                raise ConfigError(f"{path}, line {number}: JSON that cannot be read ({error})") from None
            if text.strip():
                yield number, value


def check_not_source(out: Path, source: Path) -> None:
    """Refuse to write over the file that is read."""
    if out.exists() and source.exists() and out.samefile(source):
        raise ConfigError(f"--out {out} is the source itself: choose another file")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: expected the name of a file")


def load_problems(path: Path) -> list[Problem]:
    """Problems of a JSONL file: one {id, problem, answer, solution?} per line, with unique ids."""
    if not path.is_file():
        raise ConfigError(f"no problems at {path}: expected a JSONL file with one {{id, problem, answer}} per line")
    problems: dict[str, Problem] = {}
    for number, row in json_lines(path):
        if not isinstance(row, dict) or not set(FIELDS) <= row.keys():
            lacking = [name for name in FIELDS if not isinstance(row, dict) or name not in row]
            raise ConfigError(
                f"{path}, line {number}: expected an object with {', '.join(FIELDS)}; {', '.join(lacking)} is missing. "
                "`calopd data prepare` converts other formats"
            )
        fields = {name: str(row[name]) for name in FIELDS}
        if fields["id"] in problems:
            raise ConfigError(f"{path}, line {number}: duplicate id {fields['id']!r}; ids must be unique")
        problems[fields["id"]] = Problem(**fields, solution=str(row.get("solution") or ""))
    if not problems:
        raise ConfigError(f"{path} contains no problems: expected one {{id, problem, answer}} per line")
    return list(problems.values())


def load_all(train: Path, heldout: Path | None) -> tuple[list[Problem], list[Problem]]:
    """Training and held-out problems. Tickets name problems by id, so an id in both files is an error."""
    training = load_problems(train)
    held = load_problems(heldout) if heldout is not None else []
    both = {problem.id for problem in training} & {problem.id for problem in held}
    if both:
        raise ConfigError(f"{len(both)} ids are in both {train} and {heldout}, e.g. {min(both)!r}: rename one of each")
    return training, held


@lru_cache(maxsize=4)
def _epoch_order(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(f"epoch/{seed}/{epoch}").shuffle(order)
    return tuple(order)


def training_order(count: int, seed: int, start: int, length: int) -> Iterator[tuple[int, int]]:
    """(epoch, problem number) at positions start .. start+length of an endless sequence of shuffled epochs.

    Depends only on the position, so training can resume in the middle of an epoch.
    """
    for position in range(start, start + length):
        epoch, offset = divmod(position, count)
        yield epoch, _epoch_order(count, seed, epoch)[offset]


def step_problems(problems: Sequence[Problem], seed: int, step: int, count: int) -> list[Problem]:
    """The problems of an optimizer step with `count` of them."""
    return [problems[number] for _, number in training_order(len(problems), seed, step * count, count)]


def problem_seed(seed: int, problem_id: str) -> int:
    """Seed of the response to a problem, whatever the order of the problems, the batch or an earlier stop."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem_id}".encode()).digest()[:4], "big")
