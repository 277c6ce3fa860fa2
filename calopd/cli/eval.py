"""`calopd eval` and `calopd eval compare`: what they print and write."""

import argparse
import shutil
from pathlib import Path

from rich.console import Console

from calopd.core.errors import ConfigError
from calopd.core.types import Sampling
from calopd.evaluation import accuracy_tables
from calopd.evaluation.benchmarks import load_benchmarks
from calopd.evaluation.evaluated_models import Model, resolve
from calopd.evaluation.evaluation_page import write_page
from calopd.evaluation.job import Job, Settings
from calopd.evaluation.layout import EvaluationDir, page_file
from calopd.evaluation.paired_comparison import Comparison, compare
from calopd.evaluation.results import Results, read_results
from calopd.evaluation.run_jobs import run_job
from calopd.rundir.files import write_text
from calopd.rundir.policies import sha256


def evaluate(arguments: argparse.Namespace) -> None:
    """Evaluate every model, one after the other; then compare them, where there are several."""
    console = Console(soft_wrap=True)
    models = [resolve(text) for text in arguments.models]
    if len({m.label for m in models}) < len(models):
        raise ConfigError(f"two models are labelled alike: {', '.join(m.label for m in models)}; write LABEL=MODEL")
    benchmarks = load_benchmarks(arguments.benchmark, arguments.problems)
    if not benchmarks:
        raise ConfigError("--benchmark names nothing: give names or files, with commas between")
    out = arguments.out or Path("evaluations") / "-".join(m.label for m in models)
    console.print(f"samples, results and page go to {out}", highlight=False)
    results = []
    for model in models:
        job = Job(_settings(arguments, model), benchmarks)
        directory = EvaluationDir(out / model.label)
        if arguments.overwrite and directory.job.exists():
            shutil.rmtree(directory.path)
        job.save(directory)
        results.append(run_job(job, directory, arguments.replicas, console))
    for result in results:
        console.print(accuracy_tables.summary_table(result))
    comparison = compare(results, student=arguments.student, teacher=arguments.teacher) if len(results) > 1 else None
    if comparison:
        _print_comparison(console, comparison)
    console.print(f"page: {write_page(page_file(out), results, comparison)}", highlight=False)


def _settings(arguments: argparse.Namespace, model: Model) -> Settings:
    names = ["n", "seed", "max_prompt_tokens", "thinking", "engine", "dtype"]
    names += ["in_flight", "tensor_parallel_size", "cpu_kv_cache_gib"]
    return Settings(
        label=model.label,
        path=_local(model.path),
        weights=str(model.weights) if model.weights else None,
        weights_sha256=_digest(model),
        version=model.version,
        sampling=Sampling.of(arguments),
        **{name: getattr(arguments, name) for name in names},
    )


def _local(path: str) -> str:
    """A hub id becomes the directory of its snapshot: what is evaluated is then named by its bytes."""
    if Path(path).is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(path, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"])
    except Exception as error:  # the hub's client raises many kinds; all mean that it cannot be had
        raise ConfigError(f"{path} cannot be had from the hub: {str(error).splitlines()[0]}") from None


def _digest(model: Model) -> str:
    """sha256 of the weights: of one file itself, of several together."""
    if model.is_checkpoint:
        assert model.weights is not None
        files = sorted(file for file in model.weights.rglob("*") if file.is_file())
    else:
        files = sorted((model.weights or Path(_local(model.path))).glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{model.weights or model.path}: no safetensors there")
    digests = [sha256(file) for file in files]
    return digests[0] if len(digests) == 1 else "+".join(digest[:16] for digest in digests)


def compare_results(arguments: argparse.Namespace) -> None:
    """Compare results that are there."""
    results: list[Results] = [read_results(path) for path in arguments.results]
    comparison = compare(results, student=arguments.student, teacher=arguments.teacher)
    if arguments.format != "text":
        text = accuracy_tables.EXPORTS[arguments.format](comparison)
        if arguments.out is None:
            print(text, end="")
            return
        write_text(arguments.out, text)
        print(arguments.out)
        return
    _print_comparison(Console(soft_wrap=True), comparison)
    if arguments.out is not None:
        print(write_page(arguments.out, results, comparison))


def _print_comparison(console: Console, comparison: Comparison) -> None:
    console.print(accuracy_tables.comparison_table(comparison))
    console.print(accuracy_tables.difference_table(comparison))
