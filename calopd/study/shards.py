"""A study on disk: study.json, tokens.json, shards/*.parquet. Files are written atomically, so none is ever partial.

A shard has one row per response token (id, the student's log-probability, the teacher's under every context) and lists
its rollouts, in order, in its metadata. Columns are plain float32, neither compressed nor dictionary-encoded:
compression saves a sixth of the size at best and makes reading three times slower.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calopd.core.contexts import BASE
from calopd.core.errors import ConfigError
from calopd.rundir.files import atomic_file, write_json
from calopd.study.layout import StudyDir

FORMAT = 1
ROW_GROUP = 2**19
"""Rows read at a time."""
SETTINGS = {"compression": "none", "use_dictionary": False, "write_statistics": False, "row_group_size": ROW_GROUP}
ROLLOUTS = b"rollouts"
TOKEN_ID, STUDENT, TEACHER = "token_id", "student", "teacher:"


@dataclass(frozen=True, slots=True)
class StudyRollout:
    """Metadata of a response in a study."""

    index: int
    problem_id: str
    tokens: int
    problem: str = ""
    answer: str = ""
    correct: bool | None = None
    """None if the answer was not checked."""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with its tokens and their scores."""

    rollout: StudyRollout
    token_ids: np.ndarray
    student_logprobs: np.ndarray
    teacher_logprobs: np.ndarray
    """[C, T], c0 first."""


class Study:
    """The directory of a study."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = StudyDir(directory)

    @property
    def facts(self) -> dict[str, Any]:
        if not self.files.facts.exists():
            raise ConfigError(f"no study at {self.directory} (no study.json): create one with `calopd tsd collect`")
        facts: dict[str, Any] = json.loads(self.files.facts.read_text(encoding="utf-8"))
        return facts

    @property
    def contexts(self) -> list[str]:
        """Names of the contexts, c0 first."""
        return list(self.facts["contexts"])

    def begin(self, **facts: Any) -> None:
        """Write study.json; raise ConfigError if the study exists with other settings."""
        self.check(**facts)
        if self.files.facts.exists():
            return
        if self.directory.exists() and any(path != self.files.launcher_lock for path in self.directory.iterdir()):
            raise ConfigError(f"{self.directory} is not empty and not a study: choose another directory")
        write_json(self.files.facts, {"format": FORMAT, **facts})

    def check(self, **facts: Any) -> None:
        """Raise ConfigError if the study exists with other settings."""
        facts = {"format": FORMAT, **facts}
        for key, value in self.facts.items() if self.files.facts.exists() else ():
            if facts.get(key) != value:
                raise ConfigError(
                    f"the study in {self.directory} has {key} = {value!r}, but {facts.get(key)!r} was given: "
                    "use the same settings to resume it, or choose another directory"
                )

    def write_tokens(self, texts: Sequence[str]) -> None:
        """Write tokens.json: the text of every token id."""
        write_json(self.files.tokens, list(texts))

    def token_texts(self) -> list[str]:
        texts: list[str] = json.loads(self.files.tokens.read_text(encoding="utf-8"))
        return texts

    @property
    def shards(self) -> list[Path]:
        return self.files.shards

    def rollouts(self) -> Iterator[tuple[Path, int, StudyRollout]]:
        """All rollouts, each with its shard and its first row."""
        for shard in self.shards:
            start = 0
            for rollout in rollouts_of(shard):
                yield shard, start, rollout
                start += rollout.tokens

    def read(self, shard: Path, start: int, rollout: StudyRollout) -> ScoredRollout:
        """Read the tokens and scores of one rollout."""
        table = pq.read_table(shard, memory_map=True).slice(start, rollout.tokens)
        column = {name: table[name].to_numpy() for name in table.column_names}
        teacher = np.stack([column[TEACHER + name] for name in self.contexts])
        return ScoredRollout(rollout, column[TOKEN_ID], column[STUDENT], teacher)

    def write_shard(self, worker: int, scored: Sequence[ScoredRollout]) -> Path:
        """Write the next shard of a worker."""
        target = self.files.next_shard(worker)
        with atomic_file(target) as temporary:
            _write(temporary, self.contexts, scored)
        return target


def _write(file: Path, contexts: Sequence[str], scored: Sequence[ScoredRollout]) -> None:
    teacher = np.concatenate([part.teacher_logprobs for part in scored], axis=1)
    columns: dict[str, np.ndarray] = {
        TOKEN_ID: np.concatenate([part.token_ids for part in scored]).astype(np.int32),
        STUDENT: np.concatenate([part.student_logprobs for part in scored]),
    } | {TEACHER + name: row for name, row in zip(contexts, teacher, strict=True)}
    fields = [pa.field(name, pa.int32() if name == TOKEN_ID else pa.float32(), nullable=False) for name in columns]
    rollouts = json.dumps([asdict(part.rollout) for part in scored])
    schema = pa.schema(fields, metadata={ROLLOUTS: rollouts.encode()})
    arrays = [pa.array(values, field.type) for values, field in zip(columns.values(), fields, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), file, **SETTINGS)


def rollouts_of(shard: Path) -> list[StudyRollout]:
    metadata = pq.read_schema(shard).metadata or {}
    if ROLLOUTS not in metadata:
        raise ConfigError(f"{shard} is not a shard of a study: its metadata lists no rollouts")
    return [StudyRollout(**row) for row in json.loads(metadata[ROLLOUTS])]


def row_groups(shard: Path, contexts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray, list[np.ndarray]]]:
    """(token ids, student's log-probabilities, teacher's by context) of a shard, one row group at a time."""
    file = pq.ParquetFile(shard, memory_map=True)
    names = [TOKEN_ID, STUDENT, *(TEACHER + name for name in contexts)]
    for number in range(file.num_row_groups):
        table = file.read_row_group(number, columns=names, use_threads=False)
        ids, student, *teacher = (table[name].chunk(0).to_numpy() for name in names)
        yield ids, student, teacher


def check_contexts(names: Sequence[str]) -> None:
    if not names or names[0] != BASE or len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"contexts {list(names)}: expected {BASE} first, then at least one other, without duplicates")
