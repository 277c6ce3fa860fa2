"""One replica of `calopd eval`: sample its part of a job, check each answer and save it immediately."""

from collections.abc import Iterator
from pathlib import Path

from calopd.config.sections import RolloutSection
from calopd.core.one_line_parser import OneLineParser
from calopd.core.types import Problem
from calopd.data.answers import answered_after_think, equal, last_boxed
from calopd.evaluation.checkpoint_export import export_checkpoint
from calopd.evaluation.job import Task, load_job, read_samples
from calopd.evaluation.layout import EvaluationDir
from calopd.rundir.files import Journal
from calopd.rundir.policies import MANIFEST
from calopd.rundir.policy_reader import FileReader
from services.rollout.jobs.offline import OfflineSampler


def evaluate(directory: EvaluationDir, replica: int, replicas: int) -> None:
    job = load_job(directory)
    settings = job.settings
    done = read_samples(directory)
    # Split all tasks, done or not, so that the split does not depend on the progress of other replicas.
    mine = [task for number, task in enumerate(job.tasks()) if number % replicas == replica and task.key not in done]
    if not mine:
        return
    weights = Path(settings.weights) if settings.weights else None
    if weights is not None and (weights / MANIFEST).exists():
        reader = FileReader(weights.parent, directory.weights(replica))
        weights = reader.fetch(int(weights.name)).directory
    elif weights is not None:
        weights = export_checkpoint(weights, directory.weights(replica))
    sampler = OfflineSampler(
        settings.path,
        RolloutSection.model_validate(
            {
                "engine": settings.engine,
                "dtype": settings.dtype,
                "max_in_flight": settings.in_flight,
                "tensor_parallel_size": settings.tensor_parallel_size,
                "cpu_kv_cache_gib": settings.cpu_kv_cache_gib,
            }
        ),
        settings.sampling,
        max_prompt_tokens=settings.max_prompt_tokens,
        seed=settings.seed,
        weights=weights,
        thinking=settings.thinking,
    )

    def wanted() -> Iterator[tuple[Task, Problem, int]]:
        for task in mine:
            yield task, task.problem, task.seed

    journal = Journal(directory.journal(replica))
    for task, sample, text in sampler.sample(wanted()):
        answer = last_boxed(text)
        journal.add(
            {
                "benchmark": task.benchmark,
                "problem_id": task.problem.id,
                "sample": task.sample,
                "seed": task.seed,
                "correct": answer is not None and equal(task.problem.answer, answer),
                "answer": answer,
                "after_think": answered_after_think(text),
                "length": len(sample.response_ids),
                "truncated": sample.truncated,
                "seconds": sample.seconds,
                "sampler": sampler.name,
                "text": text,
                "response_ids": sample.response_ids.tolist(),
            }
        )
    journal.close()
    sampler.close()


def main() -> None:
    parser = OneLineParser(prog="python -m services.rollout.jobs.evaluate", description=__doc__)
    parser.add_argument("directory", type=Path, help="directory with job.json; samples/ is written there")
    parser.add_argument("--replica", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=1)
    arguments = parser.parse_args()
    evaluate(EvaluationDir(arguments.directory), arguments.replica, arguments.replicas)


if __name__ == "__main__":
    from calopd.local.entry_point import guarded

    guarded(main)
