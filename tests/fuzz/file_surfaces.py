"""Files that a user or a disk may spoil: configurations, problems, policies, deltas."""

import json
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from calopd.config import load_config
from calopd.core.errors import CalopdError, PolicyError
from calopd.data.prepare import prepare
from calopd.data.problems import load_problems
from calopd.rundir.digests import file_digest
from calopd.rundir.policies import DELTA, MANIFEST, WEIGHTS, publish_policy
from calopd.rundir.policy_publisher import FilePublisher
from calopd.rundir.policy_reader import FileReader
from calopd.rundir.tensor_files import TensorStream
from tests.fuzz.mutations import NUMBERS, TEXTS, any_value, damaged, varied
from tests.fuzz.surface import Surface
from tests.services.processes import ROOT

CONFIGS = ("configs/demo.toml", "configs/single-gpu.toml", "tests/e2e/golden.toml", "examples/smollm2/run.toml")
ROWS = [
    {"id": "a", "problem": "What is 1 plus 1?", "answer": "2", "solution": "1 + 1 = \\boxed{2}"},
    {"id": "b", "problem": "What is 2 plus 2?", "answer": 4},
]
NESTED = [
    {
        "prompt": [{"role": "user", "content": "What is 1 plus 1?"}],
        "reward_model": {"ground_truth": "2", "style": "rule"},
        "extra_info": {"index": "7"},
    }
]


def lines(rows: list[object]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode("utf-8", "surrogatepass")


class Toml(Surface):
    name, share = "TOML configurations", 2

    def __init__(self, folder: Path) -> None:
        self._file = folder / "fuzzed.toml"
        shutil.copy(ROOT / "configs" / "paper.toml", folder)  # which some of them extend
        self._valid = [(ROOT / file).read_bytes() for file in CONFIGS]
        self._texts = [data.decode().splitlines(keepends=True) for data in self._valid]

    def try_one(self, draw: random.Random) -> str:
        overrides = []
        if draw.random() < 0.5:
            text = list(draw.choice(self._texts))
            for _ in range(draw.choice((1, 2, 4))):
                at = draw.randrange(len(text))
                key = text[at].split("=")[0]
                value = draw.choice(
                    (*map(str, NUMBERS[:8]), "nan", "inf", '""', "[]", "{}", "[[]]", '"\\u0000"', "1979-05-27")
                )
                text[at] = draw.choice((f"{key}={value}\n", text[draw.randrange(len(text))], "", f"[{key.strip()}]\n"))
            data = "".join(text).encode()
        else:
            data = damaged(draw.choice(self._valid), draw)
        if draw.random() < 0.2:
            overrides = [
                draw.choice(("run.steps", "rollout", "a.b.c", "method.name", "")) + "=" + draw.choice(TEXTS[:7])
            ]
        self._file.write_bytes(data)
        try:
            load_config(self._file, overrides, {})
        except CalopdError:
            return "refused"
        return "accepted"

    def close(self) -> None:
        for data in self._valid:
            self._file.write_bytes(data)
            load_config(self._file, (), {})


class Problems(Surface):
    """JSONL and parquet, read as problems and by `calopd data prepare`."""

    name, share = "JSONL and parquet", 2

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "problems"
        self._folder.mkdir()
        table = self._folder / "valid.parquet"
        pq.write_table(pa.Table.from_pylist(NESTED * 3), table)
        self._parquet = table.read_bytes()

    def try_one(self, draw: random.Random) -> str:
        rows = draw.choice((ROWS, NESTED))
        kind = draw.randrange(4)
        if kind == 0:
            name, data = "some.jsonl", damaged(lines(list(rows)), draw)
        elif kind == 1:
            name, data = "some.jsonl", lines([varied(row, draw) for row in rows])
        elif kind == 2:
            name, data = "some.jsonl", lines([any_value(draw)])
        else:
            name, data = "some.parquet", damaged(self._parquet, draw)
        file = self._folder / name
        file.write_bytes(data)
        refused = 0
        for read in (lambda: load_problems(file), lambda: prepare(str(file), self._folder / "out.jsonl")):
            try:
                read()
            except CalopdError:
                refused += 1
        return f"refused by {refused} of 2"

    def close(self) -> None:
        file = self._folder / "valid.jsonl"
        file.write_bytes(lines(list(ROWS)))
        assert len(load_problems(file)) == len(ROWS)


class Policies(Surface):
    """Policies, whole and as deltas: a reader gets the right bytes or refuses."""

    name, share = "policies and deltas", 2

    def __init__(self, folder: Path) -> None:
        self._valid, self._spoiled, self._cache = folder / "valid", folder / "spoiled", folder / "cache"
        torch.manual_seed(0)
        weights = {"a": torch.randn(64, 32), "b": torch.randn(200)}
        publish_policy(self._valid, 0, weights, "run")
        publisher = FilePublisher(self._valid, "run", 10)
        for version in (0, 1, 2):
            weights["a"][version] += 1
            publisher.publish(version, TensorStream.of(weights))
        whole = FileReader(self._valid, folder / "own")
        self._right = {version: whole.fetch(version).sha256 for version in (0, 1, 2)}
        self._files = sorted(path.relative_to(self._valid) for path in self._valid.rglob("*") if path.is_file())
        shutil.copytree(self._valid, self._spoiled)
        self._changed: list[Path] = []
        assert {path.name for path in self._files} == {MANIFEST, WEIGHTS, DELTA}

    def try_one(self, draw: random.Random) -> str:
        for file in self._changed:
            shutil.copyfile(self._valid / file, self._spoiled / file)
        self._changed = draw.sample(self._files, draw.choice((1, 1, 2)))
        for file in self._changed:
            path = self._spoiled / file
            if file.name == MANIFEST and draw.random() < 0.7:
                path.write_bytes(json.dumps(varied(json.loads(path.read_text()), draw)).encode("utf-8", "replace"))
            else:
                path.write_bytes(damaged(path.read_bytes(), draw))
        version = draw.choice((0, 1, 2))
        reader = FileReader(self._spoiled, self._cache)
        try:
            fetched = reader.fetch(version, self._right[version])
            assert file_digest(fetched.directory / WEIGHTS) == self._right[version], "other bytes were accepted"
        except PolicyError:
            return "refused"
        finally:
            reader._folder.cleanup()
        return "accepted"

    def close(self) -> None:
        FileReader(self._valid, self._cache).fetch(2, self._right[2])
