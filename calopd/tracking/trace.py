"""A trace of a run: what every process did when, for Perfetto or Chromium's viewer.

Each process appends its spans to a file of its own in the run's directory, one JSON line per span, so that a killed
process loses nothing but its last line. `write_trace` merges them into one file in the trace event format. Times are
the wall clock of each host: rows of one host are exact, those of different hosts as far apart as their clocks.
"""

import gzip
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from calopd.rundir.files import atomic_file
from calopd.rundir.layout import RunDir

log = logging.getLogger(__name__)

MAX_SPANS = 500_000
"""Spans that a process writes at most, about 60 MB; later ones are dropped."""
ORDER = ("rollout", "teacher", "learner")
"""Roles from top to bottom."""
FULL = "the trace is full"

_NOTHING = nullcontext()


class _Writer:
    """Appends spans to the file of this process. It may be used from any thread."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._left = MAX_SPANS

    def write(self, name: str, track: str, start: float, seconds: float, details: dict[str, Any]) -> None:
        self._left -= 1
        if self._left < 0:
            return
        if not self._left:
            log.warning("%s: it has %d spans, further ones are dropped", FULL, MAX_SPANS)
            name, details = FULL, {}
        line = json.dumps((name, track, round(start * 1e6), round(seconds * 1e6), details), separators=(",", ":"))
        try:
            os.write(self._file, f"{line}\n".encode())
        except OSError as error:  # a trace never stops a run
            log.warning("the trace ends here: %s", error)
            self._left = 0


_writer: _Writer | None = None


def start_trace(run_dir: RunDir, process: str) -> None:
    """Trace this process from now on; its name begins with its role."""
    global _writer
    try:
        _writer = _Writer(run_dir.trace_parts / f"{process}.jsonl")
    except OSError as error:
        log.warning("this process is not traced, it cannot write to the run's directory: %s", error)


def stop_trace() -> None:
    global _writer
    _writer = None


def span(name: str, **details: Any) -> AbstractContextManager[None]:
    """Trace the block as a span of this thread."""
    return _NOTHING if _writer is None else _span(name, threading.current_thread().name, details)


def task_span(name: str, **details: Any) -> AbstractContextManager[None]:
    """Trace the block as one that overlaps with others of its thread: a task of an event loop."""
    return _NOTHING if _writer is None else _span(name, "", details)


@contextmanager
def _span(name: str, track: str, details: dict[str, Any]) -> Iterator[None]:
    start, clock = time.time(), time.perf_counter()
    try:
        yield
    finally:
        if _writer is not None:
            _writer.write(name, track, start, time.perf_counter() - clock, details)


def record(name: str, seconds: float, **details: Any) -> None:
    """Trace something that took `seconds` and ended now; it may overlap with others of the same name."""
    if _writer is not None:
        _writer.write(name, "", time.time() - seconds, seconds, details)


def write_trace(run_dir: RunDir) -> Path | None:
    """Merge what the processes wrote into `trace.json.gz`; None if nothing was traced."""
    files = sorted(run_dir.trace_parts.glob("*.jsonl"), key=_place)
    if not files:
        return None
    with atomic_file(run_dir.trace) as aside, gzip.open(aside, "wt", encoding="utf-8", compresslevel=5) as out:
        out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        comma = ""
        for number, file in enumerate(files, start=1):
            for event in _events(file, number):
                out.write(comma + json.dumps(event, separators=(",", ":")))
                comma = ",\n"
        out.write("\n]}\n")
    return run_dir.trace


def _place(file: Path) -> tuple[int, str]:
    role = file.name.partition("-")[0]
    return ORDER.index(role) if role in ORDER else len(ORDER), file.name


def _events(file: Path, process: int) -> Iterator[dict[str, Any]]:
    """The trace events of one process."""
    yield _named("process_name", process, 0, {"name": file.stem})
    yield _named("process_sort_index", process, 0, {"sort_index": process})
    tracks: dict[str, int] = {}
    for number, (name, track, start, duration, details) in enumerate(_spans(file)):
        if not track:  # spans of any number of tasks: an asynchronous event has a row of its own while it lasts
            common = {"name": name, "cat": name, "pid": process, "tid": 0, "id2": {"local": f"{number:#x}"}}
            yield {**common, "ph": "b", "ts": start, "args": details}
            yield {**common, "ph": "e", "ts": start + duration}
            continue
        if track not in tracks:
            tracks[track] = len(tracks) + 1
            yield _named("thread_name", process, tracks[track], {"name": track})
        yield {
            "name": name, "ph": "X", "ts": start, "dur": duration, "pid": process, "tid": tracks[track], "args": details
        }  # fmt: skip


def _named(kind: str, process: int, track: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": values}


def _spans(file: Path) -> Iterator[tuple[str, str, int, int, dict[str, Any]]]:
    """The spans of a file, without lines that a killed process or a full disk left incomplete."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                name, track, start, duration, details = json.loads(line)
            except ValueError:
                continue
            yield name, track, start, duration, details
