"""Held-out problems, answered through the same queue by the same rollout replicas."""

import json
import math
from pathlib import Path
from typing import Any

from calopd.config import Config
from calopd.data import load_problems
from calopd.queue import Queue
from calopd.rundir import write_json
from services.learner.status import Status
from services.learner.tickets import evaluation_tickets


def evaluation_file(run_dir: Path, label: str) -> Path:
    return run_dir / "evaluations" / f"{label}.json"


def evaluate(config: Config, queue: Queue, run_dir: Path, label: str, version: int, status: Status) -> dict[str, Any]:
    """Accuracy of a policy: the mean over problems of the mean over samples, and each problem's score.

    The result is kept in a file of its own: what was evaluated before a restart is not evaluated again.
    """
    file = evaluation_file(run_dir, label)
    if file.exists() and (known := json.loads(file.read_text()))["policy_version"] == version:
        return known
    assert config.data.heldout is not None
    tickets = evaluation_tickets(config, load_problems(config.data.heldout), queue.run, label, version)
    batch = tickets[0].batch
    queue.open_batch(batch, tickets)
    scores: dict[str, list[bool]] = {}
    lengths: list[int] = []
    last, arrived = "0-0", 0
    while arrived < len(tickets):
        arrivals = queue.arrivals(batch, after=last)
        if not arrivals:
            continue
        last, arrived = arrivals[-1].entry, arrived + len(arrivals)
        for trajectory in queue.results(batch, [arrival.index for arrival in arrivals if arrival.tokens]):
            scores.setdefault(trajectory.ticket.problem_id, []).append(trajectory.correct)
            lengths.append(len(trajectory.sample.response_ids))
        status.progress = f"{arrived}/{len(tickets)}"
    by_problem = {problem: sum(flags) / len(flags) for problem, flags in sorted(scores.items())}
    result = {
        "policy_version": version,
        "accuracy": sum(by_problem.values()) / max(1, len(by_problem)),
        "problems": len(by_problem),
        "missing": len(tickets) - len(lengths),
        "response_length_mean": sum(lengths) / max(1, len(lengths)),
        "by_problem": by_problem,
    }
    write_json(file, result)
    queue.release_batch(batch)
    return result


def gain_interval(before: dict[str, Any], after: dict[str, Any]) -> tuple[float, float]:
    """95 % interval of the gain, from the paired differences by problem."""
    problems = before["by_problem"].keys() & after["by_problem"].keys()
    gains = [after["by_problem"][p] - before["by_problem"][p] for p in problems]
    mean = sum(gains) / len(gains)
    variance = sum((gain - mean) ** 2 for gain in gains) / max(1, len(gains) - 1)
    half = 1.96 * math.sqrt(variance / len(gains))
    return mean - half, mean + half
