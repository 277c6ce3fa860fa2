"""`calopd tsd analyze` on a synthetic study of the paper's size, against reading the same shards with pyarrow alone.

python -m benchmarks.tsd   (or `make bench-tsd`): 60 million tokens x 9 contexts, 2.6 GB in a temporary directory;
seconds and CPU seconds of the whole command (sums, forms, JSON and CSV), GB/s, and the peak of the resident
memory of all its processes together. --tokens for less.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq

from calopd.core.contexts import BASE, CONTEXTS
from calopd.study.shards import ScoredRollout, Study, StudyRollout

RESULTS = Path(__file__).parent / "results" / "tsd.json"
VOCABULARY = 151_936
SHARD_TOKENS = 2**20
MOVING = 0.3
"""Share of the tokens that move, as in the paper at tau = 0.01."""
REPEATS = 2


def make_study(directory: Path, tokens: int) -> Study:
    """A study with Zipf-distributed token ids, in which about a third of the tokens moves under all contexts."""
    study = Study(directory)
    study.begin(teacher="synthetic", student="synthetic", contexts=[BASE, *CONTEXTS])
    study.write_tokens([f"w{number}" for number in range(VOCABULARY)])
    noise = np.random.default_rng(0)
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    ranks = noise.choice(VOCABULARY, SHARD_TOKENS, p=frequency / frequency.sum()).astype(np.int32)
    for number, start in enumerate(range(0, tokens, SHARD_TOKENS)):
        count = min(SHARD_TOKENS, tokens - start)
        base = -noise.standard_exponential(count, np.float32)
        moves = noise.random(count, np.float32) < MOVING
        common = noise.standard_normal(count, np.float32) * 0.1
        probes = [
            base + np.where(moves, common + noise.standard_normal(count, np.float32) * 0.05, np.float32(0.001))
            for _ in CONTEXTS
        ]
        student = base + noise.standard_normal(count, np.float32) * 0.3
        rollout = StudyRollout(number, f"p{number}", count, correct=bool(number % 2))
        study.write_shard(
            0, [ScoredRollout(rollout, noise.permutation(ranks)[:count], student, np.stack([base, *probes]))]
        )
        print(f"\rmaking the study: {start + count:,} of {tokens:,} tokens", end="", flush=True)
    print()
    return study


def read_alone(study: Study) -> tuple[float, float]:
    """Seconds and CPU seconds to read all columns of all shards with pyarrow, using its default threads."""
    start, cpu = time.monotonic(), time.process_time()
    for shard in study.shards:
        pq.read_table(shard)
    return time.monotonic() - start, time.process_time() - cpu


def analyze(study: Study) -> tuple[float, float, float]:
    """Seconds and CPU seconds of the command, and its peak resident memory in MiB."""
    start, cpu = time.monotonic(), children_cpu()
    command = [sys.executable, "-m", "calopd.cli", "tsd", "analyze", str(study.directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        family = psutil.Process(process.pid)
        while not done.wait(0.05):
            try:
                members = [family, *family.children(recursive=True)]
                peak = max(peak, sum(member.memory_info().rss for member in members) / 2**20)
            except psutil.NoSuchProcess:
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds = time.monotonic() - start
    done.set()
    watcher.join()
    if code:
        raise SystemExit(f"calopd tsd analyze failed with exit code {code}")
    return seconds, children_cpu() - cpu, peak


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=60_000_000)
    parser.add_argument("--directory", type=Path, help="where to keep the study; reused if it exists")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary) / "study"
        study = Study(directory) if directory.exists() else make_study(directory, arguments.tokens)
        size = sum(shard.stat().st_size for shard in study.shards) / 1e9
        # The first read fills the page cache; then both run in turn, under the same load of the machine.
        read_alone(study)
        runs = [(*read_alone(study), *analyze(study)) for _ in range(REPEATS)]
    read, read_cpu, seconds, cpu = (min(run[i] for run in runs) for i in range(4))
    results = {
        "tokens": arguments.tokens,
        "contexts": len(CONTEXTS) + 1,
        "gigabytes": round(size, 2),
        "seconds": round(seconds, 2),
        "seconds_pyarrow_alone": round(read, 2),
        "times_pyarrow_alone": round(seconds / read, 2),
        "cpu_seconds": round(cpu, 2),
        "cpu_seconds_pyarrow_alone": round(read_cpu, 2),
        "times_cpu_of_pyarrow_alone": round(cpu / read_cpu, 2),
        "gigabytes_per_second": round(size / seconds, 2),
        "gigabytes_per_second_pyarrow_alone": round(size / read, 2),
        "peak_mebibytes": round(max(run[4] for run in runs)),
    }
    for name, value in results.items():
        print(f"{name:36} {value}")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
