"""A teacher as the process it is, and requests for it."""

import asyncio
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calopd.config import Config, load_config
from calopd.core.types import LOGPROBS_ONLY, ScoreOptions, Scores
from calopd.transport.teacher_client import TeacherClient
from tests.services.processes import service, wait_until_serving

TOKEN = "token-of-the-test"


@dataclass(frozen=True)
class Running:
    config: Config
    log: Path
    pid: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.config.teacher.port}"

    def client(self) -> TeacherClient:
        return TeacherClient([self.address], token=TOKEN, deadline_seconds=300)

    def metric(self, name: str) -> float:
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.config.teacher.metrics_port}/metrics").read().decode()
        values = [float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name)]
        return sum(values)


@contextmanager
def serving(tiny, name: str, **settings: str) -> Iterator[Running]:
    file = tiny.write_config(name)
    config = load_config(file, environ={})
    log = tiny.root / f"{name}.log"
    environment = {**os.environ, "CALOPD_TOKEN": TOKEN}
    environment |= {f"CALOPD__TEACHER__{key.upper()}": value for key, value in settings.items()}
    with service("services.teacher_scorer", file, log, environment) as process:
        wait_until_serving(config.teacher.port, process, log)
        yield Running(config, log, process.pid)


def ragged(seed: int, count: int) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    draw = np.random.default_rng(seed)
    requests = []
    for _ in range(count):
        contexts = {name: draw.integers(3, 390, draw.integers(1, 90), np.int32) for name in ("c0", "eval+", "eval-")}
        requests.append((contexts, draw.integers(0, 390, draw.integers(1, 120), np.int32)))
    return requests


def score_all(teacher: Running, requests, options: ScoreOptions = LOGPROBS_ONLY) -> list[Scores]:
    async def run() -> list[Scores]:
        client = teacher.client()
        try:
            calls = (client.score(str(i), ids, contexts, options) for i, (contexts, ids) in enumerate(requests))
            return await asyncio.gather(*calls)
        finally:
            await client.close()

    return asyncio.run(run())
