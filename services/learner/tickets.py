"""The tickets of a step or an evaluation, as a function of the configuration."""

import hashlib
import random

from calopd.config import Config
from calopd.config.sections import MethodSection
from calopd.core.types import EVALUATION, Problem, ScoreOptions, Ticket
from calopd.data.problems import step_problems
from calopd.evaluation.job import sample_seed


def step_batch(step: int) -> str:
    return f"step-{step:06d}"


def seed_of(run_seed: int, batch: str, index: int) -> int:
    digest = hashlib.sha256(f"{run_seed}/{batch}/{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def step_tickets(config: Config, problems: list[Problem], run: str, step: int) -> list[Ticket]:
    """The tickets of an optimizer step: the next problems of the seeded order, `samples` responses to each."""
    staleness = config.run.max_staleness
    learner, method = config.learner, config.method
    count = learner.trajectories // learner.samples
    chosen = step_problems(problems, config.run.seed, step, count)
    measured = random.Random(f"overlap/{config.run.seed}/{step}")
    batch = step_batch(step)
    tickets = []
    for index in range(learner.trajectories):
        number, sample = divmod(index, learner.samples)
        overlap = bool(method.overlap_top_k) and measured.random() < method.overlap_share
        tickets.append(
            Ticket(
                run=run,
                batch=batch,
                index=index,
                problem_id=chosen[number].id,
                sample=sample,
                seed=seed_of(config.run.seed, batch, index),
                policy_version=max(0, step - staleness),
                sampling=config.rollout.sampling,
                contexts=method.scored_contexts(measured=overlap),
                score_options=_score_options(method, overlap),
                newer_policy=staleness > 0 and not config.run.deterministic,
            )
        )
    return tickets


def _score_options(method: MethodSection, overlap: bool) -> ScoreOptions:
    """Only the scores that the method or the overlap metrics use."""
    overlap_top_k = method.overlap_top_k if overlap else 0
    if method.method.forward_kl is None:
        return ScoreOptions(top_k=overlap_top_k)
    options = method.method.forward_kl(method.settings)
    # The forward KL uses the top-k of positions above the entropy threshold, the overlap that of all positions.
    gate = None if overlap else options.min_entropy
    return ScoreOptions(max(options.top_k, overlap_top_k), want_entropy=True, top_k_min_entropy=gate)


def evaluation_batch(version: int) -> str:
    return f"{EVALUATION}{version:06d}"


def evaluation_tickets(
    config: Config, problems: list[Problem], run: str, version: int, sha256: str = ""
) -> list[Ticket]:
    """The first held-out problems, `samples` responses to each; no teacher.

    The noise is that of `calopd eval` on the same file, whatever the policy: what differs is the student.
    """
    evaluation, heldout = config.evaluation, config.data.heldout
    assert heldout is not None
    return [
        Ticket(
            run=run,
            batch=evaluation_batch(version),
            index=number * evaluation.samples + sample,
            problem_id=problem.id,
            sample=sample,
            seed=sample_seed(config.run.seed, heldout.stem, problem.id, sample),
            policy_version=version,
            sampling=evaluation.sampling,
            policy_sha256=sha256,
        )
        for number, problem in enumerate(problems[: evaluation.problems])
        for sample in range(evaluation.samples)
    ]
