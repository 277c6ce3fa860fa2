"""`calopd data prepare`: convert a published problem set to a clean JSONL file and count each change."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError
from calopd.core.hub_ids import HUB_SECONDS, is_hub_id
from calopd.data.problems import check_not_source, json_lines
from calopd.rundir.files import write_lines

PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem."
)
SUFFIX = 'Remember to put your answer on its own line after "Answer:".'
FILES = (".jsonl", ".json", ".parquet", ".csv", ".txt")
"""Endings of a file's name: a source with one of them is no data set on the hub."""
FORM_FEED = "\x0c"
FINAL_ANSWER = "####"
"""GSM8K: between the solution and the final answer."""
CALCULATION = re.compile(r"<<[^<>]*>>")
"""GSM8K: a calculator's mark inside a solution."""


@dataclass(slots=True)
class PreparationCounts:
    """Counts of the rows that were read, changed and dropped."""

    rows: int = 0
    wrappers_stripped: int = 0
    without_wrapper: int = 0
    half_wrapped: int = 0
    """Rows with only one end of the wrapper; left unchanged."""
    repaired: int = 0
    empty: int = 0
    duplicates: int = 0
    conflicting_problems: int = 0
    problems: int = 0
    with_solution: int = 0
    conflicts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ProblemRow:
    problem: str
    answer: str
    solution: str


def prepare(source: str, out: Path) -> PreparationCounts:
    """Read a parquet or JSONL file or a hub data set, clean it and write {id, problem, answer, solution} lines.

    Problems keep the order of their first occurrence and ids are digests of the text, so that the same source yields
    the same bytes on every machine.
    """
    check_not_source(out, Path(source))
    counts = PreparationCounts()
    answers: dict[str, set[str]] = {}
    first: dict[str, ProblemRow] = {}
    for row in _read(source):
        counts.rows += 1
        problem = _clean(row.problem, counts)
        if not problem or not row.answer:
            counts.empty += 1
            continue
        answers.setdefault(problem, set()).add(row.answer)
        if problem in first:
            counts.duplicates += 1
            if row.solution and not first[problem].solution:
                first[problem].solution = row.solution
        else:
            first[problem] = ProblemRow(problem, row.answer, row.solution)
    lines = []
    for problem, row in first.items():
        if len(answers[problem]) > 1:
            counts.conflicting_problems += 1
            counts.conflicts.append(f"{problem[:60]!r}: {', '.join(sorted(answers[problem]))}")
            continue
        counts.with_solution += bool(row.solution)
        number = hashlib.sha256(problem.encode()).hexdigest()[:16]
        lines.append({"id": number, "problem": problem, "answer": row.answer, "solution": row.solution})
    counts.problems = len(lines)
    if not lines:
        raise ConfigError(
            f"{source}: no problem is left of {counts.rows} rows, so {out} is not written: check the rows"
        )
    write_lines(out, lines)
    return counts


def _clean(text: str, counts: PreparationCounts) -> str:
    """The problem without the prompt wrapper, and with form feeds restored to the `\\f` of `\\frac`."""
    text = text.strip()
    begins, ends = text.startswith(PREFIX), text.endswith(SUFFIX)
    if begins and ends:
        counts.wrappers_stripped += 1
        text = text[len(PREFIX) : -len(SUFFIX)].strip()
    elif begins or ends:
        counts.half_wrapped += 1
    else:
        counts.without_wrapper += 1
    if FORM_FEED in text:
        counts.repaired += 1
        text = text.replace(FORM_FEED, "\\f")
    return text


def _read(source: str) -> Iterator[ProblemRow]:
    path = Path(source)
    if path.suffix == ".parquet" and path.is_file():
        yield from _read_parquet(path)
    elif path.is_file():
        yield from _read_jsonl(path)
    elif is_hub_id(source) and path.suffix not in FILES and not path.exists():
        yield from read_hub(source)
    else:
        what = "a folder" if path.is_dir() else "no file there"
        raise ConfigError(f"{source}: {what}; expected a parquet or JSONL file, or a data set id (owner/name)")


def _read_parquet(path: Path) -> Iterator[ProblemRow]:
    """Rows with `prompt[0].content` and `reward_model.ground_truth`, or with the columns of the JSONL format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=4_096):
            for row in batch.to_pylist():
                yield _row(row, str(path))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a parquet file, or is damaged: {str(error).splitlines()[0]}") from None


def _read_jsonl(path: Path) -> Iterator[ProblemRow]:
    for number, row in json_lines(path):
        yield _row(row, f"{path}, line {number}")


def _row(row: dict[str, Any], where: str) -> ProblemRow:
    try:
        if "prompt" in row and "reward_model" in row:
            problem, answer = row["prompt"][0]["content"], row["reward_model"]["ground_truth"]
        else:
            problem, answer = row["problem" if "problem" in row else "question"], row["answer"]
    except (KeyError, IndexError, TypeError, AttributeError):
        given = f"keys {', '.join(map(str, row))}" if isinstance(row, dict) else repr(row)[:60]
        raise ConfigError(
            f"{where}: expected problem (or question) and answer, or prompt[0].content and reward_model.ground_truth "
            f"(given: {given})"
        ) from None
    answer, solution = str(answer).strip(), str(row.get("solution") or "")
    if FINAL_ANSWER in answer:
        solution, _, answer = answer.rpartition(FINAL_ANSWER)
    # Every copy of a solution is a text that a teacher reads: it must not show the marks of a data set.
    solution = CALCULATION.sub("", solution).rpartition(FINAL_ANSWER)[0] or CALCULATION.sub("", solution)
    return ProblemRow(str(problem), answer.strip(), solution.strip())


def read_hub(repository: str) -> Iterator[ProblemRow]:
    """Download a hub data set and read its rows from its parquet files, or from its JSONL files if it has none."""
    for file in _download(repository):
        yield from _read_parquet(file) if file.suffix == ".parquet" else _read_jsonl(file)


def _download(repository: str) -> list[Path]:
    from huggingface_hub import HfApi, constants, hf_hub_download

    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"cannot download the data set {repository} from the hub: HF_HUB_OFFLINE is set")
    try:
        listed = HfApi().dataset_info(repository, timeout=HUB_SECONDS).siblings  # one request, which is not repeated
        found = sorted(file.rfilename for file in listed or ())
        names = [n for n in found if n.endswith(".parquet")] or [n for n in found if n.endswith(".jsonl")]
        files = [Path(hf_hub_download(repository, name, repo_type="dataset")) for name in names]
    except Exception as error:  # the hub client raises many types; all mean that the download failed
        raise ConfigError(
            f"cannot download the data set {repository} from the hub: {str(error).splitlines()[0]}"
        ) from None
    if not files:
        raise ConfigError(f"the data set {repository} contains no parquet or JSONL file")
    return files
