"""Checks that load the models on this machine: scores, sampling and accuracy."""

import json
from dataclasses import asdict
from math import comb
from typing import Any

import numpy as np

from calopd.doctor.case import Case, Role
from calopd.doctor.model_jobs import LAUNCHER, LEARN, SAMPLE, SCORE, Answer, run_job
from calopd.doctor.outcome import Outcome, failed, not_checked, passed
from calopd.doctor.score_comparison import compare_scores

MISMATCH = {"float32": 5e-3, "bfloat16": 0.05}
"""Mean difference between sampler and learner, in nats per token, from which they do not compute the same model."""
OWN_CANARY = "the teacher compares its scores with those of vLLM when it starts: see the canary's line in its log"
COMPARE = "compare both with `calopd eval`"
SIGNIFICANT = 0.1
"""One-sided error probability from which a teacher counts as worse than the student."""


def _samples(case: Case, role: Role) -> Answer:
    """One response to each of a few problems, sampled once for all checks."""
    if role not in case.answers:
        config = case.config
        placed = config.placement.rollouts if role == "student" else config.placement.teachers
        problems = [asdict(problem) for problem in case.handful]
        case.answers[role] = run_job(
            SAMPLE,
            config,
            {"role": role, "problems": problems},
            gpus=placed[0] if placed else (),
            threads=config.rollout.threads,
        )
    return case.answers[role]


def teacher_against_model(case: Case) -> Outcome:
    """Scores of a running teacher, or of its engine, against a plain forward pass over the model's files."""
    config = case.config
    if case.folder("teacher") is None:
        return not_checked("the teacher's files are not on this machine", "run it where the teacher runs")
    if quantised := _quantised(case):
        return not_checked(f"{quantised}: a plain forward pass computes other scores", OWN_CANARY)
    if config.teacher.tensor_parallel_size > 1:
        size = config.teacher.tensor_parallel_size
        return not_checked(
            f"the teacher is split over {size} GPUs, and a plain forward pass needs it on one", OWN_CANARY
        )
    names, prompts = list(case.sequences), [ids.tolist() for ids in case.sequences.values()]
    request = {"prompts": prompts, "response_ids": case.scored_ids.tolist(), "engine": not case.teacher_is_remote}
    placed = config.placement.teachers
    found = run_job(SCORE, config, request, gpus=placed[0] if placed else (), threads=config.teacher.threads)
    expected = {name: np.asarray(values) for name, values in found["expected"].items()}
    if not case.teacher_is_remote:
        return _named(
            compare_scores(np.asarray(found["scores"]), expected, found["dtype"]), f"engine {found['engine']}"
        )
    dtype = found["dtype"] if config.teacher.dtype == "auto" else config.teacher.dtype
    outcome = passed("")
    for replica, described in zip(case.replicas, case.descriptions, strict=True):
        scores = replica.score(case.scored_ids, case.sequences, described.vocabulary_size)
        assert list(scores.names) == names
        outcome = _named(compare_scores(scores.logprobs, expected, dtype), replica.address)
        if outcome.advice:
            return outcome
    return outcome


def _quantised(case: Case) -> str:
    """How the teacher is quantised; empty if it is not."""
    folder, chosen = case.folder("teacher"), case.config.teacher.quantization
    if chosen:
        return f'teacher.quantization is "{chosen}"'
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else {}
    return "the teacher's files are quantised" if stored.get("quantization_config") else ""


def _named(outcome: Outcome, source: str) -> Outcome:
    return Outcome(outcome.verdict, f"{source}: {outcome.message}", outcome.advice)


def sampler_against_learner(case: Case) -> Outcome:
    """The log-probabilities of sampled tokens, by the rollout engine and by the learner's own pass."""
    config = case.config
    sampled = _samples(case, "student")
    launcher = ("-m", LAUNCHER, f"--nproc-per-node={config.learner.ranks}")
    keys = ("prompt_ids", "response_ids", "logprobs")
    request = {"samples": [{key: sample[key] for key in keys} for sample in sampled["samples"]]}
    learned = run_job(
        LEARN, config, request, gpus=config.placement.learner, threads=config.learner.threads or 1, launcher=launcher
    )
    case.answers["learner"] = learned
    return judge_mismatch(sampled, learned)


def judge_mismatch(sampled: Answer, learned: Answer) -> Outcome:
    theirs = [np.asarray(sample["logprobs"]) for sample in sampled["samples"]]
    ours = [np.asarray(row) for row in learned["logprobs"]]
    apart = np.abs(np.concatenate(theirs) - np.concatenate(ours))
    limit = MISMATCH[learned["dtype"]]
    figures = f"{len(apart):,} sampled tokens: mean difference {apart.mean():.2g} nats, largest {apart.max():.2g}"
    if not apart.mean() <= limit:
        return failed(
            f"{figures}, more than {limit:g} in {learned['dtype']}",
            "sampler and learner do not compute the same model: compare rollout.dtype with learner.compute_dtype, and "
            'try rollout.engine = "torch"',
        )
    return passed(f"{figures} ({sampled['sampler']} against the learner in {learned['dtype']})")


def teacher_better(case: Case) -> Outcome:
    """The teacher solves more of a few problems than the student."""
    if case.folder("teacher") is None:
        return not_checked("the teacher's files are not on this machine", COMPARE)
    if quantisation := case.config.teacher.quantization:
        return not_checked(f'the sampler cannot quantise (teacher.quantization = "{quantisation}")', COMPARE)
    right = [_right(_samples(case, role)) for role in ("student", "teacher")]  # type: ignore[arg-type]
    return judge_accuracy(*right)


def _right(answer: Answer) -> dict[str, bool]:
    samples: list[dict[str, Any]] = answer["samples"]
    return {sample["problem_id"]: bool(sample["correct"]) for sample in samples}


def judge_accuracy(student: dict[str, bool], teacher: dict[str, bool]) -> Outcome:
    """Compare problem by problem; a worse teacher must be worse by more than chance (sign test)."""
    total = len(student)
    figures = f"the teacher solves {sum(teacher.values())} of {total} problems, the student {sum(student.values())}"
    losses = sum(student[name] and not teacher[name] for name in student)
    wins = sum(teacher[name] and not student[name] for name in student)
    if losses <= wins:
        return passed(figures)
    chance = sum(comb(losses + wins, k) for k in range(losses, losses + wins + 1)) / 2 ** (losses + wins)
    if chance <= SIGNIFICANT:
        return failed(
            figures,
            "there is nothing to learn from this teacher: check its chat template and thinking mode, or choose another",
        )
    return not_checked(f"{figures}: too few to tell", "compare both on more problems with `calopd eval`")
