"""The trace of a run: spans of several processes, merged into one file."""

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from calopd.rundir.layout import RunDir
from calopd.tracking import trace


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDir]:
    yield RunDir(tmp_path)
    trace.stop_trace()


def events(run_dir: RunDir) -> list[dict]:
    file = trace.write_trace(run_dir)
    assert file is not None
    return json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


def test_nothing_is_written_unless_asked_for(run_dir: RunDir) -> None:
    with trace.span("learn"):
        trace.record("sample", 1.0)
    assert trace.write_trace(run_dir) is None
    assert not list(run_dir.path.iterdir())


def _write() -> None:
    with trace.span("write"):
        pass


def test_processes_and_threads_have_rows_of_their_own(run_dir: RunDir) -> None:
    trace.start_trace(run_dir, "learner-rank-0")
    with trace.span("learn", tokens=7), trace.span("head"):
        pass
    thread = threading.Thread(target=_write, name="checkpoint")
    thread.start()
    thread.join()
    trace.start_trace(run_dir, "rollout-a")
    with trace.span("load policy", version=3):
        pass
    found = events(run_dir)
    names = {(e["pid"], e["args"]["name"]) for e in found if e["name"] == "process_name"}
    assert names == {(1, "rollout-a"), (2, "learner-rank-0")}, "rollouts come first"
    spans = {e["name"]: e for e in found if e["ph"] == "X"}
    assert set(spans) == {"learn", "head", "write", "load policy"}
    assert spans["write"]["tid"] != spans["learn"]["tid"]
    learn, head = spans["learn"], spans["head"]
    assert learn["args"] == {"tokens": 7}
    assert (learn["pid"], learn["tid"]) == (head["pid"], head["tid"]) != (spans["load policy"]["pid"], learn["tid"])
    assert learn["ts"] <= head["ts"] <= head["ts"] + head["dur"] <= learn["ts"] + learn["dur"] + 1


def test_what_overlaps_is_a_pair_of_asynchronous_events(run_dir: RunDir) -> None:
    trace.start_trace(run_dir, "rollout-a")
    trace.record("sample", 2.0, tokens=5)
    trace.record("sample", 1.0)
    pairs = [e for e in events(run_dir) if e["ph"] in "be"]
    assert [e["ph"] for e in pairs] == ["b", "e", "b", "e"]
    assert len({e["id2"]["local"] for e in pairs}) == 2
    assert pairs[1]["ts"] - pairs[0]["ts"] == 2_000_000
    assert pairs[0]["args"] == {"tokens": 5}


def test_a_restarted_process_appends_and_an_incomplete_line_is_left_out(run_dir: RunDir) -> None:
    trace.start_trace(run_dir, "teacher-a")
    trace.record("one", 1.0)
    with (run_dir.trace_parts / "teacher-a.jsonl").open("a") as file:
        file.write('["killed","",12\n')
    trace.start_trace(run_dir, "teacher-a")
    trace.record("two", 1.0)
    assert [e["name"] for e in events(run_dir) if e["ph"] == "b"] == ["one", "two"]


def test_a_trace_is_bounded(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_SPANS", 3)
    trace.start_trace(run_dir, "teacher-a")
    for _ in range(5):
        trace.record("score", 1.0)
    assert [e["name"] for e in events(run_dir) if e["ph"] == "b"] == ["score", "score", trace.FULL]


def test_a_process_that_cannot_write_works_without_a_trace(run_dir: RunDir) -> None:
    run_dir.trace_parts.write_text("in the way")
    trace.start_trace(run_dir, "teacher-a")
    with trace.span("score"):
        pass
