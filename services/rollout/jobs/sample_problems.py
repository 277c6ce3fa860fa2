"""A job of `calopd doctor`: sample one response to each of a few problems from the student or the teacher."""

import time

from calopd.config import Config
from calopd.core.types import Problem
from calopd.data.answers import is_correct
from calopd.doctor.model_jobs import Answer, Request, answer_request
from calopd.local.entry_point import die_with_launcher, guarded
from calopd.models.devices import set_threads
from services.rollout.jobs.offline import OfflineSampler


def sample_problems(config: Config, request: Request) -> Answer:
    rollout, path = config.rollout, config.student.path
    if request["role"] == "teacher":
        path = config.teacher.path
        keys = ("dtype", "tensor_parallel_size", "gpu_memory_utilization", "cpu_kv_cache_gib")
        rollout = rollout.model_copy(update={key: getattr(config.teacher, key) for key in keys})
    set_threads(rollout.threads)
    problems = [Problem(**fields) for fields in request["problems"]]
    sampler = OfflineSampler(
        path, rollout, rollout.sampling, max_prompt_tokens=config.data.max_prompt_tokens, seed=config.run.seed
    )
    start, samples = time.monotonic(), []
    wanted = ((problem, problem, config.run.seed + number) for number, problem in enumerate(problems))
    for problem, sample, text in sampler.sample(wanted):
        samples.append(
            {
                "problem_id": problem.id,
                "prompt_ids": sampler.prompts.ids(problem).tolist(),
                "response_ids": sample.response_ids.tolist(),
                "logprobs": sample.logprobs.tolist(),
                "truncated": sample.truncated,
                "correct": is_correct(text, problem.answer),
            }
        )
    seconds = time.monotonic() - start
    sampler.close()
    return {"sampler": sampler.name, "seconds": seconds, "samples": samples}


if __name__ == "__main__":
    die_with_launcher()
    guarded(lambda: answer_request(sample_problems))
