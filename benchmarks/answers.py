"""The table of answers (tests/data/answers.tsv) under our checker and math-verify alone; writes docs/answers.md."""

import multiprocessing as mp
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.progress import track

from calopd.data.answers import is_correct

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "data" / "answers.tsv"
LIMIT_SECONDS = 15.0

WHY = {
    "integer": "spaces and full-width digits are no algebra; `1e2` is a number; a list is not one of its parts",
    "decimal": "numbers are compared exactly, or to all of the (six or more) places that are shown",
    "fraction": "mixed numbers and `½` are read as such; a division by zero equals nothing",
    "latex": "the right side of `x = …` counts, and one name is taken for all of a symbol's",
    "interval": "a relation and its interval are equal in either order",
    "set": "a set is no tuple and no interval; `and`, `or` separate parts",
    "tuple": "a tuple is no set; parts are compared one by one",
    "unit": "a unit may be left out, but not be another one; a lone letter is a variable",
    "percent": "50 % is 50 and 0.5, and neither 5 nor 5,000",
    "degree": "degrees are no radians",
    "thousands": "all separators that are in use; `1,23` is a list",
    "label": "a label with or without its text; words are compared as words, not as products of letters",
    "box": "only the last balanced box counts, and no box is wrong",
    "hostile": "ended by the kernel at the limit, and wrong",
}


def rows() -> list[tuple[str, bool, str, str]]:
    """(class, verdict, gold, response) of the hand-made cases."""
    cells = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    return [(kind, verdict == "right", gold, response) for kind, verdict, gold, response in cells]


def alone(gold: str, response: str) -> bool:
    """math-verify as its manual has it: gold as LaTeX, the whole response, its own time limits."""
    from math_verify import parse, verify

    return bool(verify(parse(f"${gold}$"), parse(response)))


def _limited(check: Callable[[str, str], bool], gold: str, response: str) -> bool | None:
    """The verdict, or None where there is none after the limit."""
    ours, theirs = mp.get_context("fork").Pipe(duplex=False)
    process = mp.get_context("fork").Process(target=lambda: theirs.send(check(gold, response)))
    process.start()
    verdict = ours.recv() if ours.poll(LIMIT_SECONDS) else None
    process.kill()
    process.join()
    return verdict


def main() -> None:
    import math_verify  # noqa: F401  before the forks, so that each of them does not pay for it

    table = rows()
    right: Counter[tuple[str, str]] = Counter()
    differ = []
    seconds = {"calopd": 0.0, "math-verify": 0.0}
    for kind, verdict, gold, response in track(table, "comparing"):
        start = time.monotonic()
        ours = is_correct(response, gold)
        seconds["calopd"] += time.monotonic() - start
        start = time.monotonic()
        theirs = _limited(alone, gold, response)
        seconds["math-verify"] += time.monotonic() - start
        right[kind, "calopd"] += ours == verdict
        right[kind, "math-verify"] += theirs == verdict
        if ours != theirs:
            said = "no end" if theirs is None else _word(theirs)
            differ.append((kind, gold, response, _word(verdict), _word(ours), said))
    counts = Counter(kind for kind, *_ in table)
    lines = [
        "# Answers: our checker beside math-verify alone",
        "",
        "Written by `make bench-answers` from `tests/data/answers.tsv`: hand-made cases, each a gold answer, "
        "a response and the verdict that a careful reader gives. math-verify alone is "
        "`verify(parse(gold), parse(response))`; "
        f"one that has not ended after {LIMIT_SECONDS:.0f} s counts as no end.",
        "",
        "| class | cases | calopd right | math-verify alone right | what we do about it |",
        "|---|---|---|---|---|",
    ]
    for kind, count in counts.items():
        lines.append(f"| {kind} | {count} | {right[kind, 'calopd']} | {right[kind, 'math-verify']} | {WHY[kind]} |")
    totals = [sum(right[kind, who] for kind in counts) for who in ("calopd", "math-verify")]
    lines += [
        f"| **all** | **{len(table)}** | **{totals[0]}** | **{totals[1]}** | |",
        "",
        "## Where the two differ",
        "",
    ]
    lines += ["| class | gold | response | should be | calopd | math-verify alone |", "|---|---|---|---|---|---|"]
    lines += [f"| {k} | {_code(g)} | {_code(r)} | {v} | {o} | {t} |" for k, g, r, v, o, t in differ]
    target = ROOT / "docs" / "answers.md"
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(table)} cases: calopd {totals[0]} right, math-verify alone {totals[1]}; they differ in {len(differ)}")
    print("seconds: " + ", ".join(f"{who} {spent:.1f}" for who, spent in seconds.items()))
    print(target)


def _word(verdict: bool) -> str:
    return "right" if verdict else "wrong"


def _code(text: str) -> str:
    return f"`{text[:80]}`".replace("|", "\\|") if text else "(nothing)"


if __name__ == "__main__":
    main()
