"""Problems on disk, and the order in which training meets them."""

import json
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from calopd.core.errors import ConfigError
from calopd.core.types import Problem

FIELDS = ("id", "problem", "answer")


def load_problems(path: Path) -> list[Problem]:
    """Problems of a JSONL file: {id, problem, answer, solution?} a line, ids unique."""
    if not path.is_file():
        raise ConfigError(f"no problems at {path}: expected a JSONL file with a line {{id, problem, answer}} a problem")
    problems: dict[str, Problem] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                fields = {name: str(row[name]) for name in FIELDS}
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{path}, line {number}: expected an object with {', '.join(FIELDS)}; {error!r}"
                ) from None
            if fields["id"] in problems:
                raise ConfigError(f"{path}, line {number}: the id {fields['id']!r} stands there twice")
            problems[fields["id"]] = Problem(**fields, solution=str(row.get("solution") or ""))
    if not problems:
        raise ConfigError(f"{path} holds no problem")
    return list(problems.values())


def load_all(train: Path, heldout: Path | None) -> tuple[list[Problem], list[Problem]]:
    """Training and held-out problems; refused where an id stands in both, for a ticket names a problem by its id."""
    training = load_problems(train)
    held = load_problems(heldout) if heldout is not None else []
    both = {problem.id for problem in training} & {problem.id for problem in held}
    if both:
        raise ConfigError(f"{len(both)} ids stand in both {train} and {heldout}, e.g. {min(both)!r}: make them differ")
    return training, held


@lru_cache(maxsize=4)
def _epoch_order(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(f"epoch/{seed}/{epoch}").shuffle(order)
    return tuple(order)


def training_order(count: int, seed: int, start: int, length: int) -> Iterator[tuple[int, int]]:
    """(epoch, problem number) at the positions start .. start+length of an endless sequence of shuffled epochs.

    A function of the position alone: to resume in mid-epoch is to ask from there.
    """
    for position in range(start, start + length):
        epoch, offset = divmod(position, count)
        yield epoch, _epoch_order(count, seed, epoch)[offset]
