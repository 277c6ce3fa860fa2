"""python -m tests.chaos --kills N --seed S: a small real run under fire, audited, compared with an undisturbed one."""

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from calopd.rundir.files import write_json
from tests.chaos.audit import Audit
from tests.chaos.driver import Driver
from tests.chaos.faults import KINDS
from tests.chaos.report import as_json, table
from tests.chaos.stage import Undisturbed, run_undisturbed, stage
from tests.services.processes import ROOT
from tests.tiny import Tiny

STEPS_PER_KILL = 2
LEAST_STEPS = 8


def code_digest() -> str:
    """A digest of the code that decides about bits: another version may round differently."""
    files = sorted(file for room in ("calopd", "services") for file in (ROOT / room).rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def survive(
    out: Path,
    *,
    kills: int,
    seed: int,
    kinds: tuple[str, ...] = (),
    first: tuple[str, ...] = (),
    steps: int = 0,
    seconds: float = 3_600,
) -> dict[str, Any]:
    """Run undisturbed (once per folder, length and code), then under fire; return the outcome and what was found."""
    steps = steps or max(LEAST_STEPS, STEPS_PER_KILL * kills)
    models, quiet, loud = out / "models", out / f"undisturbed-{steps}", out / f"seed-{seed}"
    done, code = quiet / "done.json", code_digest()
    known = json.loads(done.read_text()) if done.exists() else {}
    if known.pop("code", None) != code:
        known = {}
        for folder in (models, quiet):
            shutil.rmtree(folder, ignore_errors=True)
        models.mkdir(parents=True)
    shutil.rmtree(loud, ignore_errors=True)
    tiny = Tiny.make(models)
    if not known:
        print(f"the undisturbed run: {steps} steps", flush=True)
        known = asdict(run_undisturbed(quiet, tiny, steps, seconds))
        write_json(done, {"code": code, **known})
    chosen = [kind for kind in KINDS if not kinds or kind.name in kinds]
    with stage(loud, tiny, steps) as found:
        driver = Driver(
            found,
            seed=seed,
            kills=kills,
            kinds=chosen,
            first=[kind for kind in KINDS if kind.name in first],
            show=lambda line: print(line, flush=True),
            seconds=seconds,
        )
        outcome = driver.run()
        found.note_policies()
        audit = Audit(found, Undisturbed(**known))
        audit.run()
    problems = audit.process_table()
    facts = {"seed": seed, "steps": steps, "trajectories": steps * found.config.learner.trajectories}
    return as_json(outcome, audit.checked, problems, **facts, cores=os.cpu_count())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help=f"default: {STEPS_PER_KILL} per kill")
    parser.add_argument("--first", default="", help="faults that come once before the others")
    parser.add_argument("--faults", default="", help=f"comma-separated; default: {', '.join(k.name for k in KINDS)}")
    parser.add_argument("--out", type=Path, default=Path("build/chaos"))
    given = parser.parse_args()
    kinds, first = (tuple(filter(None, names.split(","))) for names in (given.faults, given.first))
    out = given.out.resolve()
    result = survive(out, kills=given.kills, seed=given.seed, kinds=kinds, first=first, steps=given.steps)
    file = out / f"seed-{given.seed}.json"
    write_json(file, result)
    print(table(result))
    print(f"written to {file}")
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
