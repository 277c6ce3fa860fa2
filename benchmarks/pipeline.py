"""Benchmark of the pipeline: how much of a step is overlap, with engines that take the time of 8 GPUs.

python -m benchmarks.pipeline   (or `make bench-pipeline`)

Real are the services and their processes, Redis, gRPC, protobuf, micro-batches, metrics and checkpoints. Emulated are
the sampler, the scorer and the learner's passes: they take the seconds that `calopd plan` predicts, scaled so that
minutes become seconds ([emulation] in docs/configuration.md). A step has 256 trajectories under three contexts, with
lengths as the paper's: mean 9,270, median 7,758, a fifth cut at 16,384.

- `step_over_busiest`: seconds of a step over the busy seconds of the busiest role, both as metrics.jsonl has them. Busy
  is a rollout while it samples any response, so that the longest response counts to its last token; a teacher while it
  computes; a rank during its passes and the optimizer step. Busy seconds are means over the processes of a role.
- `vs_phases`: the same engines and split, if all responses are sampled before the first is scored, and all are scored
  before the first gradient, over the step as it is.
- `step_over_busiest_stale_1`: with run.max_staleness = 1.
- `replica_scaling`: sampled tokens per second of n rollouts over n times those of one, each with 128 responses of a
  step. (A step of one size does not get n times faster: its longest response takes the same time on any number.) Time
  is scaled less than elsewhere, because the services of four rollouts use up two cores otherwise.
- `step_over_plan`: seconds of a step over those that the plan predicts for the same lengths.
- `instant`: seconds of a step whose engines take no time. `flow`: 2,000 trajectories of 16,384 tokens pass through
  Redis: bytes of one, and the memory of every process.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.emulated_runs import Run, Split, run
from calopd.config import Config
from calopd.planning.emulation import Emulation
from calopd.rundir.run_id import read_run_id
from calopd.transport.checksums import without_checksum
from calopd.transport.convert import trajectory_from_bytes
from calopd.transport.redis_queue import RedisQueue
from calopd.transport.redis_queue import open_queue as open_redis
from services.learner.tickets import seed_of, step_batch

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
LEARNER_BOUND = Split(pair="30b-to-8b", gpu="h20", teachers=2, rollouts=4, ranks=2, time_scale=0.01)
TEACHER_BOUND = Split(pair="4b-to-1.7b", gpu="h20", teachers=1, rollouts=5, ranks=2, time_scale=0.012)
ROLLOUT_BOUND = Split(pair="30b-to-8b", gpu="h100", teachers=4, rollouts=2, ranks=2, time_scale=0.013)
INSTANT = Split(pair="4b-to-1.7b", gpu="h100", teachers=1, rollouts=2, ranks=1, time_scale=0.0, steps=6)
FLOW = replace(
    INSTANT,
    trajectories=250,
    steps=8,
    settings={"emulation": {"response_tokens": 16_384}, "learner": {"checkpoint_every": 1}},
)
PER_REPLICA = 128


def busiest(found: Run) -> float:
    """Seconds of a step over the busy seconds of its busiest role."""
    return found.mean("seconds") / found.mean("seconds_busiest")


def over_plan(found: Run) -> float:
    """Seconds of the steps over those of the plan for the same lengths."""
    config, model = found.config, found.model()
    emulation = Emulation.of(config)
    assert emulation is not None
    planned = []
    for line in found.lines:
        seeds = (seed_of(config.run.seed, step_batch(line["step"]), i) for i in range(config.learner.trajectories))
        planned.append(model.strict([emulation.response_length(seed) for seed in seeds]).step * emulation.scale)
    return found.mean("seconds") / statistics.mean(planned)


def check_on_policy(found: Run) -> None:
    """Every trajectory of a strict run was used, and sampled from the policy of its step (none can be newer)."""
    for line in found.lines:
        assert line["staleness"] == 0, f"step {line['step']} has trajectories of an older policy"
        assert line["tickets_used"] == found.config.learner.trajectories


def cost(found: Run) -> dict[str, float]:
    """CPU milliseconds of our own code per trajectory, by role, and the share of the machine's two cores."""
    count = len(found.lines) * found.config.learner.trajectories
    roles: dict[str, float] = {}
    for process, seconds in found.cpu_seconds.items():
        role = process.split()[0]
        roles[role] = roles.get(role, 0.0) + seconds
    shown = {role: round(1000 * seconds / count, 2) for role, seconds in roles.items()}
    wall = sum(line["seconds"] for line in found.lines)
    return shown | {"share_of_two_cores": round(sum(roles.values()) / (2 * wall), 3)}


def tokens_per_second(found: Run) -> float:
    return sum(line["tokens"] for line in found.lines) / sum(line["seconds"] for line in found.lines)


def with_replicas(count: int) -> Split:
    scale = 3 * ROLLOUT_BOUND.time_scale
    return replace(ROLLOUT_BOUND, rollouts=count, trajectories=count * PER_REPLICA, time_scale=scale, steps=2)


class Audit:
    """Reads trajectories from Redis while a run is under way: their sizes, and the policies that they are from."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._seen: set[tuple[str, int]] = set()

    def __call__(self, config: Config, url: str) -> None:
        queue: RedisQueue = open_redis(url, read_run_id(config.run_dir))
        for batch in queue.open_batches():
            arrived = {arrival.index for arrival in queue.arrivals(batch, block_seconds=0.001)}
            fresh = [index for index in sorted(arrived) if (batch, index) not in self._seen][:20]
            self._seen |= {(batch, index) for index in fresh}
            for index in fresh:
                raw = queue.client.hget(f"calopd:{queue.run}:results:{batch}", str(index))
                if not raw:  # released meanwhile
                    continue
                self.sizes.append(len(raw))
                trajectory = trajectory_from_bytes(without_checksum(raw))
                assert trajectory.sample.policy_version == trajectory.ticket.policy_version == int(batch[5:])


def flow(folder: Path) -> dict[str, Any]:
    """2,000 long trajectories: bytes of one in Redis, and the memory of every process in both halves of the run."""
    audit = Audit()
    found = run("flow", FLOW, folder, audit)
    check_on_policy(found)
    halves = {}
    for process, samples in found.memory_mib.items():
        middle = len(samples) // 2
        if middle:
            halves[process] = [round(max(samples[:middle])), round(max(samples[middle:]))]
    growth = max(second / first for first, second in halves.values())
    return {
        "trajectories": FLOW.trajectories * FLOW.steps,
        "bytes_per_trajectory": round(statistics.mean(audit.sizes)),
        "audited": len(audit.sizes),
        "seconds_per_step": round(found.mean("seconds"), 2),
        "peak_mib_first_and_second_half": halves,
        "growth": round(growth, 3),
    }


def instant(folder: Path) -> dict[str, Any]:
    found = run("instant", INSTANT, folder)
    check_on_policy(found)
    seconds = [round(line["seconds"], 2) for line in found.lines]
    return {"seconds": round(statistics.median(seconds), 2), "all": seconds, "cpu_ms_per_trajectory": cost(found)}


def bound(folder: Path, results: dict[str, Any], name: str, split: Split) -> Run:
    """One split in strict mode."""
    found = run(name, split, folder)
    check_on_policy(found)
    busy = {role: round(found.mean(f"seconds_{role}_busy"), 2) for role in ("rollout", "teacher", "learner")}
    role = name.split("_")[0]
    results.setdefault("step_over_busiest", {})[name] = round(busiest(found), 3)
    results.setdefault("step_over_plan", {})[name] = round(over_plan(found), 3)
    results.setdefault("runs", {})[name] = {
        "seconds": round(found.mean("seconds"), 2),
        "busy": busy,
        "busiest": max(busy, key=busy.__getitem__),
        "response_length_mean": round(found.mean("response_length_mean")),
        "response_length_p50": round(found.mean("response_length_p50")),
        "time_scale": split.time_scale,
        "cpu_ms_per_trajectory": cost(found),
    }
    assert results["runs"][name]["busiest"] == role, results["runs"][name]
    return found


def measure(folder: Path, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """The results so far, after every part."""
    results: dict[str, Any] = {}
    learner = bound(folder, results, "learner_bound", LEARNER_BOUND) if wanted("learner_bound") else None
    yield results
    if wanted("teacher_bound"):
        bound(folder, results, "teacher_bound", TEACHER_BOUND)
        yield results
    if wanted("rollout_bound"):
        bound(folder, results, "rollout_bound", ROLLOUT_BOUND)
        yield results
    if learner is not None and wanted("phases"):
        phases = replace(LEARNER_BOUND, steps=2, settings={"emulation": {"phases": True}})
        (same,) = run("phases", phases, folder).lines
        assert same["step"] == learner.lines[0]["step"], "steps with the same lengths"
        results["vs_phases"] = round(same["seconds"] / learner.lines[0]["seconds"], 3)
        yield results
    if wanted("instant"):
        results["instant"] = instant(folder)
        yield results
    if wanted("replicas"):
        one, two, four = (
            tokens_per_second(run(f"replicas_{count}", with_replicas(count), folder)) / count for count in (1, 2, 4)
        )
        results["replica_scaling"] = {"2": round(two / one, 3), "4": round(four / one, 3)}
        yield results
    if wanted("stale_1"):
        stale = replace(LEARNER_BOUND, time_scale=2 * LEARNER_BOUND.time_scale, settings={"run": {"max_staleness": 1}})
        results["step_over_busiest_stale_1"] = round(busiest(run("stale_1", stale, folder)), 3)
        yield results
    if wanted("flow"):
        results["flow"] = flow(folder)
        yield results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="measure a part again, for example stale_1")
    arguments = parser.parse_args()
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if arguments.only and RESULTS.exists() else {}
    with TemporaryDirectory() as folder:
        for results in measure(Path(folder), lambda part: not arguments.only or part in arguments.only):
            for key, value in results.items():
                merges = isinstance(value, dict) and isinstance(known.get(key), dict)
                known[key] = {**known[key], **value} if merges else value
            RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps(known, indent=1))


if __name__ == "__main__":
    main()
