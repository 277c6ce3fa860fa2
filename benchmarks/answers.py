"""Compare the answer checker with math-verify alone on tests/data/answers.tsv; writes docs/answers.md."""

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
    "integer": "spaces and full-width digits are normalised; `1e2` is a number; a list does not equal one of its parts",
    "decimal": "numbers are compared exactly, or, with six or more decimal places, to all places shown",
    "fraction": "mixed numbers and `½` are parsed; a division by zero equals nothing",
    "latex": "the right side of `x = …` counts; synonyms of a symbol are equal",
    "interval": "a relation and its interval are equal in either order",
    "set": "a set differs from a tuple and an interval; `and`, `or` separate parts",
    "tuple": "a tuple differs from a set; parts are compared one by one",
    "list": "`and`, `or` and commas separate parts, also after a comma or a bracket; repetitions count",
    "symbolic": "an expression with a variable equals no number, also if the letter is upright",
    "relation": "a relation, an implication or a divisibility equals no number",
    "qualified": "a sign or words that change a number, as in `5+` and `5 or more`, are no unit",
    "unit": "a unit may be missing, but two units must agree; a single letter is a variable",
    "percent": "50 % equals 50 and 0.5, but neither 5 nor 5,000",
    "degree": "degrees differ from radians",
    "thousands": "all common thousands separators are accepted; `1,23` is a list",
    "label": "a label matches with or without its text; words are compared as words, not as products of letters",
    "box": "only the last balanced box counts; a response without a box is wrong",
    "hostile": "killed by the kernel at the limit, and wrong",
}


def rows() -> list[tuple[str, bool, str, str]]:
    """(class, verdict, gold, response) of the handwritten cases."""
    cells = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    return [(kind, verdict == "right", gold, response) for kind, verdict, gold, response in cells]


def alone(gold: str, response: str) -> bool:
    """math-verify as documented: gold as LaTeX, the whole response, its own timeouts."""
    from math_verify import parse, verify

    return bool(verify(parse(f"${gold}$"), parse(response)))


def _limited(check: Callable[[str, str], bool], gold: str, response: str) -> bool | None:
    """The verdict, or None if there is none within the limit."""
    ours, theirs = mp.get_context("fork").Pipe(duplex=False)
    process = mp.get_context("fork").Process(target=lambda: theirs.send(check(gold, response)))
    process.start()
    verdict = ours.recv() if ours.poll(LIMIT_SECONDS) else None
    process.kill()
    process.join()
    return verdict


def main() -> None:
    import math_verify  # noqa: F401  imported once, before the forks

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
            said = "timeout" if theirs is None else _word(theirs)
            differ.append((kind, gold, response, _word(verdict), _word(ours), said))
    counts = Counter(kind for kind, *_ in table)
    lines = [
        "# Answers: our checker compared with math-verify alone",
        "",
        "Written by `make bench-answers` from `tests/data/answers.tsv`: handwritten cases, each with a gold "
        "answer, a response and the expected verdict. math-verify alone is "
        "`verify(parse(gold), parse(response))`, "
        f"with a timeout of {LIMIT_SECONDS:.0f} s.",
        "",
        "| class | cases | calopd correct | math-verify alone correct | how calopd handles it |",
        "|---|---|---|---|---|",
    ]
    for kind, count in counts.items():
        lines.append(f"| {kind} | {count} | {right[kind, 'calopd']} | {right[kind, 'math-verify']} | {WHY[kind]} |")
    totals = [sum(right[kind, who] for kind in counts) for who in ("calopd", "math-verify")]
    lines += [
        f"| **all** | **{len(table)}** | **{totals[0]}** | **{totals[1]}** | |",
        "",
        "## Differences",
        "",
    ]
    lines += ["| class | gold | response | expected | calopd | math-verify alone |", "|---|---|---|---|---|---|"]
    lines += [f"| {k} | {_code(g)} | {_code(r)} | {v} | {o} | {t} |" for k, g, r, v, o, t in differ]
    target = ROOT / "docs" / "answers.md"
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(table)} cases: calopd {totals[0]} correct, math-verify alone {totals[1]}; {len(differ)} differ")
    print("seconds: " + ", ".join(f"{who} {spent:.1f}" for who, spent in seconds.items()))
    print(target)


def _word(verdict: bool) -> str:
    return "correct" if verdict else "wrong"


def _code(text: str) -> str:
    return f"`{text[:80]}`".replace("|", "\\|") if text else "(empty)"


if __name__ == "__main__":
    main()
