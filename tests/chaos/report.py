"""The outcome of a run under fire as a table and as JSON."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from tests.chaos.driver import Outcome


def role_of(process: str) -> str:
    """`rollout` of rollout-1."""
    return process.split("-")[0]


def recovery(outcome: Outcome) -> list[dict[str, Any]]:
    """Seconds to recover per role and fault."""
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for item in outcome.recovered:
        seconds[role_of(item.role), item.fault].append(item.seconds)
    return [
        {"role": role, "fault": fault, "count": len(own), "p50": statistics.median(own), "max": max(own)}
        for (role, fault), own in sorted(seconds.items())
    ]


def as_json(outcome: Outcome, checked: Mapping[str, int], problems: list[str], **facts: Any) -> dict[str, Any]:
    faults: Counter[tuple[str, str]] = Counter()
    for (kind, process), number in outcome.struck.items():
        faults[kind, role_of(process)] += number
    return {
        **facts,
        "kills": outcome.kills,
        "seconds": outcome.seconds,
        "faults": [{"fault": kind, "role": role, "count": n} for (kind, role), n in sorted(faults.items())],
        "launcher_resumed": outcome.resumes,
        "launcher_asked_for_a_person": outcome.given_up,
        "counts": outcome.counts,
        "recovery_seconds": recovery(outcome),
        "hit_again_before_recovery": outcome.overlapped,
        "audited": dict(checked),
        "problems": problems,
    }


def table(result: dict[str, Any]) -> str:
    """The same for a person."""
    waits = {(row["role"], row["fault"]): row for row in result["recovery_seconds"]}
    lines = [f"{'fault':20}{'role':10}{'count':>6}{'recovery p50':>15}{'max':>9}"]
    for row in result["faults"]:
        wait = waits.get((row["role"], row["fault"]))
        times = f"{wait['p50']:13.1f} s{wait['max']:7.1f} s" if wait else f"{'-':>15}{'-':>9}"
        lines.append(f"{row['fault']:20}{row['role']:10}{row['count']:6}{times}")
    lines += [f"{what}: {number}" for what, number in result["counts"].items()]
    lines.append(f"launcher resumed: {result['launcher_resumed']}")
    lines.append(f"{result['kills']} kills in {result['seconds']:.0f} s, {result['steps']} steps")
    audited = ", ".join(f"{number} {what}" for what, number in result["audited"].items())
    lines.append(f"audited: {audited}")
    lines += [f"PROBLEM: {problem}" for problem in result["problems"]] or ["audit: clean, weights bit-identical"]
    return "\n".join(lines)
