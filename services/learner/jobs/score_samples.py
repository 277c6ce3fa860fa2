"""A job of `calopd doctor`: one forward and backward pass of the learner over sampled responses.

Runs as the learner does, with all its ranks.
"""

import time

import numpy as np
import torch

from calopd.config import Config
from calopd.config.sections import MethodSection
from calopd.core.contexts import BASE
from calopd.core.types import Sample, Scores, Ticket, Trajectory
from calopd.doctor.model_jobs import Answer, Request, answer_request
from calopd.local.entry_point import die_with_launcher, guarded
from calopd.models.devices import choose_dtype, dtype_name, set_threads
from services.learner.ranks import Ranks
from services.learner.trainer import Trainer


def score_samples(config: Config, request: Request) -> Answer | None:
    """The learner's log-probabilities of each sample, and on a GPU the peak memory of a full micro-batch."""
    samples = request["samples"]
    set_threads(config.learner.threads)
    learner = config.learner.model_copy(update={"show_trajectories": len(samples)})
    # Plain OPD needs no probes, no plan and no recorded run; the pass over the student is the same.
    config = config.model_copy(update={"learner": learner, "method": MethodSection(name="opd", overlap_top_k=0)})
    ranks = Ranks(learner)
    trainer = Trainer(config, ranks)
    trainer.begin(0)
    for index, fields in enumerate(samples):
        trainer.learn([_trajectory(config, index, fields)], None)
    shown = {row["index"]: row["student_logprobs"] for row in trainer.result.shown}
    answer: Answer = {
        "logprobs": [shown[index] for index in range(len(samples))],
        "dtype": dtype_name(choose_dtype(learner.compute_dtype, ranks.device)),
        "device": str(ranks.device),
    }
    if ranks.device.type == "cuda" or request.get("fill"):
        answer |= _measure_full_batch(config, trainer, ranks, samples[0])
    rank = ranks.rank
    ranks.close()
    return answer if rank == 0 else None


def _measure_full_batch(config: Config, trainer: Trainer, ranks: Ranks, sample: Request) -> Answer:
    """Seconds and peak memory of one micro-batch of the largest size, with its optimizer step."""
    length = config.data.max_prompt_tokens + config.rollout.max_tokens
    count = max(1, config.learner.micro_batch_tokens // length)
    long = {key: (sample[key] * (length // len(sample[key]) + 1)) for key in ("response_ids", "logprobs")}
    fields = {
        "prompt_ids": (sample["prompt_ids"] * length)[: config.data.max_prompt_tokens],
        "response_ids": long["response_ids"][: config.rollout.max_tokens],
        "logprobs": long["logprobs"][: config.rollout.max_tokens],
    }
    on_gpu = ranks.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    trainer.begin(0)
    trainer.learn([_trajectory(config, index, fields) for index in range(count)], None)
    trainer.optimizer_step(trainer.result.sums)
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    seconds = time.perf_counter() - start
    return {"full_batch_tokens": count * length, "full_batch_seconds": seconds, "peak_gib": peak / 2**30}


def _trajectory(config: Config, index: int, fields: Request) -> Trajectory:
    """A sample as a trajectory whose teacher agrees with the sampler: the pass is real, the gradient is small."""
    ticket = Ticket("doctor", "step-000000", index, f"doctor-{index}", 0, 0, 0, config.rollout.sampling, (BASE,))
    logprobs = np.asarray(fields["logprobs"], dtype=np.float32)
    ids = np.asarray(fields["response_ids"], dtype=np.int32)
    return Trajectory(
        ticket=ticket,
        prompt_ids=np.asarray(fields["prompt_ids"], dtype=np.int32),
        sample=Sample(ids, logprobs, truncated=False, policy_version=0, seconds=0.0),
        scores=Scores((BASE,), logprobs[None], "", 0.0),
        correct=False,
        answered_after_think=False,
        sampler="doctor",
        worker="doctor",
    )


if __name__ == "__main__":
    die_with_launcher()
    guarded(lambda: answer_request(score_samples))
