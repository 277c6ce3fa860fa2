"""Peak memory of every role of every recipe, counted with fake tensors and by the formula, side by side.

python -m benchmarks.memory [NAME ...]   (or `make bench-memory`): writes benchmarks/results/memory.json. With names of
recipes, only those are counted again. A count takes one to three minutes of a CPU core and no GPU.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calopd.config import Config
from calopd.config.load import load_config
from calopd.planning import SPARE, RoleFit, role_fits
from calopd.planning.gpus import GIB
from calopd.planning.inference_memory import CUDA_GRAPHS_GIB

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "memory.json"
TOLERANCE = 0.10
"""Largest difference between formula and count."""


def recipes() -> dict[str, Config]:
    """Name -> configuration of every shipped file that places its roles on GPUs."""
    found = {}
    for file in sorted((ROOT / "configs").glob("*.toml")):
        if file.stem == "paper":
            continue  # not a run of its own
        config = load_config(file, environ={})
        if config.resources.gpu:
            found[file.stem] = config
    return found


def first_of_each_role(config: Config) -> Iterator[RoleFit]:
    """One process per role: replicas and ranks need the same."""
    seen = set()
    for fit in role_fits(config):
        if fit.role not in seen:
            seen.add(fit.role)
            yield fit


def formula_row(config: Config, fit: RoleFit) -> dict[str, Any]:
    """All that the formula says about a process."""
    assert fit.needed_gib is not None
    assert fit.usable_gib is not None
    assert fit.spare is not None
    return {
        "gpu": config.resources.gpu,
        "gpus": len(fit.gpus) if fit.role != "learner" else len(config.placement.learner),
        "formula_gib": round(fit.needed_gib, 2),
        "usable_gib": round(fit.usable_gib, 2),
        "spare": round(fit.spare, 3),
    }


def count_gib(config: Config, role: str) -> float | None:
    """The counted peak of a role; None for a vLLM teacher, which no code here can run without a GPU."""
    from benchmarks.counted_roles import count_learner, count_rollout, count_teacher

    if role == "learner":
        return count_learner(config, len(config.placement.learner)).peak / GIB
    if role == "rollout":
        return count_rollout(config).peak / GIB + CUDA_GRAPHS_GIB
    return count_teacher(config).peak / GIB if config.teacher.engine == "torch" else None


def line(name: str, role: str, row: dict[str, Any]) -> str:
    counted = row["counted_gib"]
    difference = "" if counted is None else f"{row['formula_gib'] / counted - 1:+.1%}"
    return (
        f"{name:20} {role:8} {row['gpus']} x {row['gpu']:8} counted {counted or 0:6.2f} "
        f"formula {row['formula_gib']:6.2f} GiB {difference:>6}; usable {row['usable_gib']:6.2f}, "
        f"{row['spare']:.0%} to spare{'' if row['spare'] >= SPARE else ' TOO LITTLE'}"
    )


def main() -> int:
    configs = recipes()
    chosen = sys.argv[1:] or list(configs)
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results = {name: known[name] for name in configs if name in known}
    for name, config in configs.items():
        rows = {}
        for fit in first_of_each_role(config):
            row = formula_row(config, fit)
            counted = count_gib(config, fit.role) if name in chosen else known[name][fit.role]["counted_gib"]
            rows[fit.role] = row | {"counted_gib": None if counted is None else round(counted, 2)}
            print(line(name, fit.role, rows[fit.role]), flush=True)
        results[name] = rows
        RESULTS.write_text(json.dumps({n: results[n] for n in configs if n in results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
