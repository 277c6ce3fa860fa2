"""Evaluate models on benchmarks, one after the other, and compare them. The defaults are the paper's evaluation."""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from calopd.cli.argument_types import positive, seed
from calopd.cli.gpu_arguments import add_gpu_arguments, replica_gpus
from calopd.cli.sampling_arguments import add_sampling_arguments
from calopd.core.options import DTYPES, PAPER_EVALUATION, SAMPLERS
from calopd.evaluation.benchmark_table import HUB

if TYPE_CHECKING:
    from calopd.evaluation.evaluated_models import Model
    from calopd.evaluation.job import Settings

HELP = "accuracy of models on benchmarks, with confidence intervals"
SETTINGS = (
    "n", "seed", "max_prompt_tokens", "thinking", "engine", "in_flight", "tensor_parallel_size",
    "cpu_kv_cache_gib",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", nargs="+", metavar="[LABEL=]MODEL", help="model directory or hub id, run (RUN, RUN@STEP), checkpoint")
    add("--benchmark", required=True, help=f"{','.join(HUB)} or files {{id, problem, answer}}")
    add("-n", type=positive, default=16, help="samples per problem (default: %(default)s)")
    add("-o", "--out", type=Path, help="directory for samples, results and page (default: evaluations/LABELS)")
    add("--problems", type=positive, metavar="K", help="only the first K problems of each benchmark")
    add_gpu_arguments(parser)
    add("--overwrite", action="store_true", help="discard existing samples and sample again")
    add("--student", metavar="LABEL", help="the model that the others are compared with (default: the first)")
    add("--teacher", metavar="LABEL", help="not a method: listed below the student (default: the label `teacher`)")
    add("--seed", type=seed, default=0)
    add_sampling_arguments(parser, PAPER_EVALUATION)
    add("--max-prompt-tokens", type=positive, default=2_048)
    add("--no-thinking", dest="thinking", action="store_false", help="chat template with enable_thinking=False")
    add("--engine", choices=SAMPLERS, default="vllm")
    add("--dtype", choices=DTYPES, default="auto", help="auto = bfloat16 on a GPU, float32 on a CPU")
    add(
        "--in-flight",
        type=positive,
        default=256,
        help="responses that a replica samples at once (default: %(default)s)",
    )
    add("--tensor-parallel-size", type=positive, default=1)
    add("--cpu-kv-cache-gib", type=positive, default=1)


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from calopd.config.nearest import nearest
    from calopd.config.sections.sampling import sampling_of
    from calopd.core.errors import ConfigError
    from calopd.doctor.sampled_model import require_gpu_memory, require_sampled_model
    from calopd.evaluation import accuracy_tables
    from calopd.evaluation.benchmarks import load_benchmarks
    from calopd.evaluation.evaluated_models import resolve
    from calopd.evaluation.evaluation_page import write_page
    from calopd.evaluation.job import Job
    from calopd.evaluation.layout import EvaluationDir, page_file
    from calopd.evaluation.paired_comparison import compare
    from calopd.evaluation.run_jobs import run_job
    from calopd.local.services import REPEAT, resumable
    from calopd.rundir.locks import exclusive

    console = Console(soft_wrap=True)
    gpus = replica_gpus(arguments)
    models = [resolve(text) for text in arguments.models]
    if len({m.label for m in models}) < len(models):
        raise ConfigError(f"two models have the same label: {', '.join(m.label for m in models)}; use LABEL=MODEL")
    sampling = sampling_of(arguments)
    benchmarks = load_benchmarks(arguments.benchmark, arguments.problems)
    if not benchmarks:
        raise ConfigError("--benchmark is empty: give names or files, separated by commas")
    labels = [m.label for m in models]
    for option, label in (("--student", arguments.student), ("--teacher", arguments.teacher)):
        if label is not None and label not in labels:
            raise ConfigError(f"{option} {label}: no model has this label{nearest(label, labels)}")
    problems = [problem for benchmark in benchmarks for problem in benchmark.problems]
    for model in models:
        require_sampled_model("MODEL", model.path, sampling, arguments.max_prompt_tokens, problems)
        require_gpu_memory("MODEL", model.path, arguments, gpus)
    out = arguments.out or Path("evaluations") / "-".join(labels)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file: expected a directory for samples, results and page")
    directories = [EvaluationDir(out / label) for label in labels]
    for directory in directories:
        if directory.contents and not directory.is_evaluation:
            raise ConfigError(f"{directory} is not empty and not an evaluation: choose another --out")
    console.print(f"samples, results and page go to {out}", highlight=False)
    how = "repeat the command without --overwrite to resume" if arguments.overwrite else REPEAT
    results = []
    with ExitStack() as locks:
        for directory in directories:
            directory.path.mkdir(parents=True, exist_ok=True)
            busy = f"{directory} is being evaluated by another process: choose another --out"
            locks.enter_context(exclusive(directory.lock, busy))
        jobs = [Job(_settings(arguments, model), benchmarks) for model in models]
        for job, directory in zip(jobs, directories, strict=True):
            if arguments.overwrite:
                directory.remove_samples()
            job.save(directory)
        for job, directory in zip(jobs, directories, strict=True):
            with resumable(how):
                results.append(run_job(job, directory, gpus, console, how=how))
    for result in results:
        console.print(accuracy_tables.summary_table(result))
    for note in accuracy_tables.size_notes(results[0]):
        console.print(f"note: {note}", highlight=False)
    comparison = compare(results, student=arguments.student, teacher=arguments.teacher) if len(results) > 1 else None
    if comparison:
        console.print(accuracy_tables.comparison_table(comparison))
        console.print(accuracy_tables.difference_table(comparison))
    console.print(f"page: {write_page(page_file(out), results, comparison)}", highlight=False)


def _settings(arguments: argparse.Namespace, model: "Model") -> "Settings":
    from calopd.config.sections.sampling import sampling_of
    from calopd.evaluation.job import Settings
    from calopd.evaluation.model_weights import local_path, weights_digest
    from calopd.models.devices import chosen_dtype

    return Settings(
        label=model.label,
        path=local_path(model.path),
        weights=str(model.weights) if model.weights else None,
        weights_sha256=weights_digest(model),
        version=model.version,
        dtype=chosen_dtype(arguments.dtype),
        sampling=sampling_of(arguments),
        **{name: getattr(arguments, name) for name in SETTINGS},
    )
