"""What trackers wrote, read back: step -> key -> value."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
from wandb.proto import wandb_internal_pb2

from calopd.core.step_metrics import METRICS, PROBE

Steps = dict[int, dict[str, float]]

BLOCK, HEADER = 32_768, 7
"""A .wandb file is a log of LevelDB: blocks of records, each with checksum (4), length (2) and type (1)."""
FULL, LAST = 1, 4


def tensorboard_steps(folder: Path) -> Steps:
    """As TensorBoard itself reads it: what was purged is not there."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    steps: Steps = {}
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            assert tag not in steps.setdefault(event.step, {}), f"{tag} of step {event.step} is there twice"
            steps[event.step][tag] = tensor_util.make_ndarray(event.tensor_proto).item()
    return steps


def wandb_steps(folder: Path) -> Steps:
    """The history of the only offline run below `folder`."""
    (file,) = folder.glob("offline-run-*/*.wandb")
    steps: Steps = {}
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            row: dict[str, Any] = {}
            for item in record.history.item:
                row["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
            step = row.pop("_step")
            assert step not in steps, f"step {step} is there twice"
            steps[step] = {key: value for key, value in row.items() if not key.startswith("_")}
    return steps


def _records(data: bytes) -> Iterator[bytes]:
    place, parts = HEADER, b""  # the file begins with a header of its own
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # the rest of a block that is too short for a record
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        place += HEADER
        parts += data[place : place + length]
        place += length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def prometheus_values(page: str) -> dict[str, float]:
    """Key of metrics.jsonl -> value, of the gauges of a step on a /metrics page."""
    keys = {metric.prometheus: metric.key for metric in METRICS}
    return {
        keys[sample.name].replace(PROBE, sample.labels.get("probe", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in keys
    }


def report_steps(page: str) -> Steps:
    """Curves of the report's figures; gaps are left out."""
    steps: Steps = {}
    for figure in re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.S):
        for trace in json.loads(figure)["data"]:
            for step, value in zip(trace["x"], trace["y"], strict=True):
                if "meta" in trace and value is not None:
                    steps.setdefault(step, {})[trace["meta"]] = value
    return steps
