"""python -m tests.soak --steps N: a long small run; memory, open files, files on disk and Redis keys must stay flat."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil
import redis

from calopd.config import Config, load_config
from calopd.local import embedded_redis
from calopd.local.entry_point import ends_with_this_process
from calopd.rundir.files import read_lines, write_json
from tests.conftest import Server
from tests.ports import free_port
from tests.services.processes import ROOT
from tests.soak.growth import Growth, Series
from tests.tiny import Tiny

ALLOWED = {"MB": (0.05, 8.0), "files open": (0.0, 3.0), "threads": (0.0, 2.0), "files": (0.0, 2.0), "keys": (0.0, 2.0)}
"""Unit -> growth that counts as flat: share of the early value, or an absolute amount."""
EVERY_SECONDS = 1.0


def role(process: psutil.Process) -> str:
    """The service of a process, with its parent's share of it apart."""
    words = process.cmdline()
    names = [word for word in words if word.startswith("services.")]
    return " < ".join(dict.fromkeys(names)) or ("launcher" if "calopd.cli" in words else "")


def measure(series: Series, step: int, launcher: psutil.Process, client: "redis.Redis", config: Config) -> None:
    for process in (launcher, *launcher.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            if name := role(process):
                series.add(name, "MB", step, process.memory_info().rss / 1e6)
                series.add(name, "files open", step, process.num_fds())
                series.add(name, "threads", step, process.num_threads())
    series.add("Redis", "keys", step, client.dbsize())
    series.add("Redis", "MB", step, client.info("memory")["used_memory"] / 1e6)
    # Checkpoints and policies are replaced one by one: the number of their files moves within what is kept.
    series.add("run directory", "files", step, sum(1 for path in config.run_dir.path.rglob("*") if path.is_file()))


def soak(folder: Path, steps: int) -> list[Growth]:
    """Run to the end and measure every second."""
    (folder / "models").mkdir(parents=True)
    tiny = Tiny.make(folder / "models")
    file = tiny.write_config("soak", steps=steps)
    settings = [
        f'run.dir="{folder / "runs"}"',
        "evaluation.every=50",
        "learner.trajectories=8",
        "rollout.max_tokens=16",
    ]
    config = load_config(file, settings, {})
    port = free_port()
    server = Server(embedded_redis.server_command(folder / "redis", port, "x"), embedded_redis.server_url(port, "x"))
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "calopd.cli", "run", str(file), *words]
    series = Series()
    with server.running(), (folder / "launcher.log").open("wb") as log:
        environment = {**os.environ, "CALOPD__QUEUE__URL": server.url}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=ends_with_this_process(),
        )
        launcher, client = psutil.Process(process.pid), redis.Redis.from_url(server.url)
        for step in progress(process, config, steps):
            # A folder may be replaced while it is looked at, and Redis may be busy with its disk: left out.
            with suppress(psutil.NoSuchProcess, FileNotFoundError, redis.RedisError):
                measure(series, step, launcher, client, config)
        if process.returncode:
            raise SystemExit((folder / "launcher.log").read_text())
    return series.growth(steps, ALLOWED)


def progress(process: "subprocess.Popen[bytes]", config: Config, steps: int) -> Iterator[int]:
    """The step that the run is in, every second, until it ends; prints it with the time left."""
    start, shown = time.monotonic(), 0.0
    while process.poll() is None:
        step = len(read_lines(config.run_dir.metrics))
        yield step
        elapsed = time.monotonic() - start
        if elapsed - shown > 10:
            shown = elapsed
            left = f", ETA {elapsed / step * (steps - step):.0f} s" if step else ""
            print(f"{elapsed:6.0f} s  step {step}/{steps}{left}", flush=True)
        time.sleep(EVERY_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("build/soak"))
    given = parser.parse_args()
    out = given.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    found = soak(out, given.steps)
    print(f"{'quantity':45}{'early':>10}{'late':>10}  unit")
    for row in found:
        verdict = "" if row.is_flat else f"  GROWS by more than {row.allowed:.1f}"
        print(f"{row.name:45}{row.early:10.1f}{row.late:10.1f}  {row.unit}{verdict}")
    file = out / "soak.json"
    write_json(file, {"steps": given.steps, "growth": [asdict(row) | {"flat": row.is_flat} for row in found]})
    print(f"written to {file}")
    sys.exit(0 if all(row.is_flat for row in found) else 1)


if __name__ == "__main__":
    main()
