"""python -m tests.fuzz --inputs N --seed S: spoiled inputs for everything that reads some; 0 crashes, 0 hangs."""

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calopd.rundir.files import write_json
from tests.fuzz.checkpoint_surface import Checkpoints
from tests.fuzz.file_surfaces import Policies, Problems, Toml
from tests.fuzz.queue_surfaces import QueueEntries, Trajectories, redis_server
from tests.fuzz.surface import Result, Surface, fuzz
from tests.fuzz.wire_surfaces import Grpc, Http
from tests.tiny import Tiny


@contextmanager
def surfaces(folder: Path, tiny: Tiny) -> Iterator[list[Surface]]:
    """All surfaces, each with the real thing behind it."""
    with redis_server(folder / "redis").running() as server:
        yield [
            Toml(folder),
            Problems(folder),
            Policies(folder),
            Checkpoints(folder),
            Trajectories(),
            QueueEntries(server),
            Grpc(tiny),
            Http(tiny, server),
        ]


def fuzz_all(folder: Path, tiny: Tiny, inputs: int, seed: int) -> Iterator[Result]:
    """About `inputs` inputs, shared by the surfaces."""
    logging.disable(logging.ERROR)
    try:
        with surfaces(folder, tiny) as found:
            shares = sum(surface.share for surface in found)
            for surface in found:
                result = fuzz(surface, -(-inputs * surface.share // shares), seed)
                try:
                    surface.close()
                except Exception as error:  # it does not work any more: that is a bug as well
                    result.bugs[f"does not work afterwards: {error!r}"] += 1
                yield result
    finally:
        logging.disable(logging.NOTSET)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz.json"))
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="calopd-fuzz-") as name:
        folder = Path(name)
        for result in fuzz_all(folder, Tiny.make(folder / "models"), given.inputs, given.seed):
            results.append(result)
            answers = ", ".join(f"{number} {answer}" for answer, number in result.answers.most_common(5))
            print(f"{result.surface:22}{result.inputs:8} inputs {result.seconds:7.1f} s  {answers}", flush=True)
            for bug, number in result.bugs.most_common():
                print(f"  BUG x {number}: {bug} (input {result.seeds.get(bug, '')})", flush=True)
    total, bugs = sum(r.inputs for r in results), sum(sum(r.bugs.values()) for r in results)
    print(f"{total} inputs, {bugs} crashes or hangs")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, [vars(result) for result in results])
    sys.exit(1 if bugs else 0)


if __name__ == "__main__":
    main()
