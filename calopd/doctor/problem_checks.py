"""Checks of the problems: loadable, enough, answerable, with the solutions that contexts show."""

from collections.abc import Sequence
from pathlib import Path

from calopd.core.methods.base import RecordedSettings
from calopd.core.types import Problem
from calopd.doctor.case import Case
from calopd.doctor.outcome import Outcome, failed, passed
from calopd.rundir.recorded_ratios import recorded_ratios

LONGEST = 64
"""Number of problems whose prompts are rendered, the longest first; the others are checked when they are used."""


def problems(case: Case) -> Outcome:
    config = case.config
    training, held, wanted = len(case.training), len(case.heldout), config.evaluation.problems
    if held < wanted:
        return failed(
            f"evaluation.problems is {wanted}, but {config.data.heldout} holds {held}",
            f"add problems to the file, or set evaluation.problems to {held} or less",
        )
    return passed(f"{training:,} training problems, {held:,} held out")


def solutions(case: Case) -> Outcome:
    """Contexts that show a solution need one of every problem."""
    known = case.config.method.known_contexts
    needing = [name for name in case.contexts if name in known and "solution" in known[name].needs]
    lacking = [problem.id for problem in case.training if not problem.solution]
    if not needing:
        return passed("no context shows a solution")
    if lacking:
        return failed(
            f"problem {lacking[0]} has no solution, which the context {needing[0]!r} needs "
            f"({len(lacking):,} of {len(case.training):,} problems lack one)",
            "sample solutions with `calopd data solve`, or choose other probes",
        )
    return passed(f"every problem has the solution that {', '.join(needing)} show")


def prompts(case: Case) -> Outcome:
    """The longest problems fit the limits: those to train on under every context, those held out under c0.

    A solution needs no check: its beginning is cut if the prompt would be too long.
    """
    rendered = case.file_prompts.ids
    tokens = max(len(rendered(problem, context)) for problem in _longest(case.training) for context in case.contexts)
    held = case.heldout[: 0 if case.study else case.config.evaluation.problems]
    for problem in _longest(held):
        rendered(problem)
    return passed(f"the longest prompt of {', '.join(case.contexts)} has {tokens:,} tokens")


def _longest(problems: Sequence[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: len(problem.problem), reverse=True)[:LONGEST]


def answers(case: Case) -> Outcome:
    """A response that boxes the gold answer must count as correct."""
    from calopd.data.answers import is_correct  # imports sympy

    every = [*case.training, *case.heldout]
    bad = [p for p in every if not p.answer.strip() or not is_correct(f"\\boxed{{{p.answer}}}", p.answer)]
    if bad:
        return failed(
            f"{len(bad):,} of {len(every):,} gold answers cannot be checked, e.g. {bad[0].answer!r} of problem "
            f"{bad[0].id}",
            "no response to such a problem counts as correct: correct these answers, or remove the problems",
        )
    return passed(f"{len(every):,} gold answers equal themselves")


def recorded_run(case: Case) -> Outcome:
    method = case.config.method
    if not isinstance(method.settings, RecordedSettings):
        return passed(f"{method.name} follows no recorded run")
    recorded_ratios(Path(method.settings.recorded_run), method.method.recorded, case.config.run.steps)
    return passed(f"{method.settings.recorded_run} has all {case.config.run.steps} steps")
