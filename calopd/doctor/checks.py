"""The table of checks, and the ways to run them: all of them for a table, or the quick ones before a run."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module

from calopd.config import Config
from calopd.config.placement import ROLES as PLACED
from calopd.core.errors import CalopdError, ConfigError
from calopd.doctor import (
    disk_checks,
    full_checks,
    gpu_checks,
    machine_checks,
    model_checks,
    problem_checks,
    prompt_checks,
)
from calopd.doctor.case import Case
from calopd.doctor.outcome import Outcome, Verdict, failed, not_checked


class Level(IntEnum):
    """How much a check costs. A level includes those below it."""

    QUICK = 0
    """Seconds, no model is loaded, no service is contacted: also run at the start of `calopd run`."""
    SERVICES = 1
    """Contacts the services that are running; starts none."""
    FULL = 2
    """Loads the models on this machine."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    run: Callable[[Case], Outcome]
    advice: str
    """The thing to do if the check ends with an error of its own."""
    level: Level = Level.QUICK
    needs: tuple[str, ...] = ()
    """Checks without whose success this one says nothing new."""


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    outcome: Outcome


def _later(module: str, name: str) -> Callable[[Case], Outcome]:
    """A check whose module is imported when the check is made: clients of servers take long to import."""
    return lambda case: getattr(import_module(f"calopd.doctor.{module}"), name)(case)


MODELS = ("student model", "teacher model")

CHECKS: tuple[Check, ...] = (
    Check("trackers", machine_checks.trackers, "install the tracker, or remove it from tracking.trackers"),
    Check("GPUs", gpu_checks.gpus, "place the roles on GPUs that this host has"),
    Check("student model", model_checks.student_model, "download the model again, or correct student.path"),
    Check("teacher model", model_checks.teacher_model, "download the model again, or correct teacher.path"),
    Check("problems", problem_checks.problems, "write the problems with `calopd data prepare`"),
    Check("solutions", problem_checks.solutions, "choose other probes", needs=("problems",)),
    Check(
        "prompts",
        problem_checks.prompts,
        "raise data.max_prompt_tokens or data.max_context_tokens, or remove the problem",
        needs=("student model", "problems", "solutions"),
    ),
    Check(
        "vocabulary",
        model_checks.vocabularies,
        "choose a teacher and a student of one family; use the tokenizer files that came with each model",
        needs=MODELS,
    ),
    Check("positions", model_checks.positions, "correct the config.json of the model", needs=MODELS),
    Check("recorded run", problem_checks.recorded_run, "record a longer run, or lower run.steps"),
    Check("ports", machine_checks.ports, "choose other ports"),
    # The checks below import torch, which takes seconds: what is known without it is said first.
    Check("driver", gpu_checks.driver, "install NVIDIA's driver", needs=("GPUs",)),
    Check("GPU memory", gpu_checks.role_memory, "correct resources.gpu"),
    Check("attention heads", model_checks.split_heads, "correct the config.json of the model"),
    Check("memory", machine_checks.memory, "use a machine with more memory", needs=MODELS),
    Check("temporary folders", machine_checks.temporary_folders, "set TMPDIR to another folder"),
    Check("disk", disk_checks.disk, "set run.dir to a larger volume", needs=("student model",)),
    Check(
        "answers",
        problem_checks.answers,
        "correct the answers, or remove the problems",
        Level.SERVICES,
        needs=("problems",),
    ),
    Check(
        "chat template",
        prompt_checks.chat_template,
        "correct the chat template of the tokenizer",
        Level.SERVICES,
        needs=("prompts", "vocabulary"),
    ),
    Check("thinking", prompt_checks.thinking, "correct the chat template", Level.SERVICES, needs=("prompts",)),
    Check(
        "end of turn",
        prompt_checks.end_of_turn,
        "correct generation_config.json",
        Level.SERVICES,
        needs=("prompts", "vocabulary"),
    ),
    Check("first token", prompt_checks.first_token, "correct the chat template", Level.SERVICES, needs=("prompts",)),
    Check("Redis", _later("redis_checks", "server"), "correct queue.url", Level.SERVICES),
    Check(
        "Redis durability",
        _later("redis_checks", "durability"),
        "start the server with an append-only file",
        Level.SERVICES,
        needs=("Redis",),
    ),
    Check(
        "Redis rights",
        _later("redis_checks", "rights"),
        "allow the user the keys calopd:*",
        Level.SERVICES,
        needs=("Redis",),
    ),
    Check("teachers", _later("teacher_checks", "reachable"), "correct teacher.addresses", Level.SERVICES),
    Check(
        "teacher revisions",
        _later("teacher_checks", "revisions"),
        "restart the replica",
        Level.SERVICES,
        needs=("teachers",),
    ),
    Check(
        "teacher vocabulary",
        _later("teacher_checks", "replica_vocabulary"),
        "choose a teacher of the student's family",
        Level.SERVICES,
        needs=("student model", "teachers"),
    ),
    Check(
        "teacher limits", _later("teacher_checks", "limits"), "raise the limits", Level.SERVICES, needs=("teachers",)
    ),
    Check(
        "teacher scores",
        _later("teacher_checks", "scores"),
        "look at the log of the teacher",
        Level.SERVICES,
        needs=("prompts", "teachers", "teacher vocabulary"),
    ),
    Check(
        "scores against model",
        full_checks.teacher_against_model,
        "look at the error: the teacher cannot be loaded or does not score",
        Level.FULL,
        needs=("GPUs", "prompts", "vocabulary", "teachers", "teacher vocabulary"),
    ),
    Check(
        "sampler against learner",
        full_checks.sampler_against_learner,
        "look at the error: the student cannot be sampled or trained on this machine",
        Level.FULL,
        needs=("GPUs", "prompts"),
    ),
    Check(
        "teacher against student",
        full_checks.teacher_better,
        "look at the error: one of the models cannot be sampled on this machine",
        Level.FULL,
        needs=("GPUs", "prompts", "teacher model"),
    ),
)


LEFT_OUT = {
    Level.SERVICES: not_checked("no quick check", "run `calopd doctor CONFIG`"),
    Level.FULL: not_checked("loads the models", "run `calopd doctor CONFIG --full`"),
}


def examine(case: Case, level: Level, checks: tuple[Check, ...] = CHECKS) -> Iterator[Result]:
    """Run the checks up to a level, each as soon as the one before is known; the others are listed as not checked."""
    unsuccessful: set[str] = set()
    for check in checks:
        blocked = next((name for name in check.needs if name in unsuccessful), None)
        if check.level > level:
            outcome = LEFT_OUT[check.level]
        elif blocked is not None:
            outcome = not_checked(f"needs the check {blocked!r} to pass")
        else:
            outcome = _outcome(check, case)
        if outcome.verdict is Verdict.FAILED or blocked is not None:
            unsuccessful.add(check.name)
        yield Result(check.name, outcome)


def _outcome(check: Check, case: Case) -> Outcome:
    try:
        return check.run(case)
    except CalopdError as error:
        return failed(str(error), check.advice)


STUDY = (
    "student model", "teacher model", "problems", "solutions", "prompts", "vocabulary", "positions", "GPU memory",
    "attention heads",
)  # fmt: skip
"""The quick checks that concern `calopd tsd collect`."""
LIMITS = "teacher limits"
"""A check of the services that needs none of them if the run starts the teacher itself."""


def require(
    config: Config, *, besides: Collection[str] = (), study: Sequence[str] = (), placed: Sequence[str] = PLACED
) -> None:
    """Raise the error of the first quick check that fails: the start would fail too, later and less clearly.

    Checks in `besides` are not made. For a study, `study` are its contexts, c0 first. `placed` are the roles that use
    their GPUs.
    """
    case = Case(config, study=study, placed=placed)
    known = {check.name: check for check in CHECKS}
    quick = [check.name for check in CHECKS if check.level is Level.QUICK and check.name not in besides]
    names = [name for name in quick if not study or name in STUDY]
    if not case.teacher_is_remote:
        names.insert(names.index("positions") + 1, LIMITS)
    for name in names:
        if (outcome := known[name].run(case)).verdict is Verdict.FAILED:
            raise ConfigError(outcome.sentence)
