"""Sample one solution per problem from a strong model and keep the correct ones.

Each attempt is saved as soon as it is complete; the same command resumes.
"""

import argparse
import os
from pathlib import Path

from calopd.cli.argument_types import positive, seed, whole
from calopd.cli.gpu_arguments import add_gpu_arguments, replica_gpus
from calopd.cli.sampling_arguments import add_sampling_arguments
from calopd.core.options import DTYPES, PAPER_SOLUTIONS, SAMPLERS

HELP = "sample one solution per problem from a strong model and keep the correct ones"
JOB = "services.rollout.jobs.solve"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", type=Path, help="JSONL of problems")
    add("-o", "--out", type=Path, required=True, help="the JSONL to write")
    add("--model", required=True, help="model directory or hub id; with --endpoint, the name that it serves")
    add("--endpoint", metavar="URL", help="an OpenAI-compatible server instead; OPENAI_API_KEY is its key")
    add("--engine", choices=SAMPLERS, default="vllm")
    add("--dtype", choices=DTYPES, default="auto", help="auto = bfloat16 on a GPU, float32 on a CPU")
    add("--tensor-parallel-size", type=positive, default=1)
    add_sampling_arguments(parser, PAPER_SOLUTIONS)
    add("--max-prompt-tokens", type=positive, default=2_048)
    add("--in-flight", type=positive, default=256, help="responses sampled at once (default: %(default)s)")
    add("--seed", type=seed, default=0)
    add_gpu_arguments(parser)
    add("--replica", type=whole, help=argparse.SUPPRESS)  # the number of a process that another one has started


def run(arguments: argparse.Namespace) -> None:
    """Become the sampling job: the engines belong to a service, which this package does not import."""
    from calopd.config.sections.sampling import sampling_of
    from calopd.config.visible_gpus import gpu_environment
    from calopd.data.problems import check_not_source, load_problems
    from calopd.doctor.sampled_model import require_gpu_memory, require_sampled_model
    from calopd.local.entry_point import become
    from calopd.local.replicated_job import attempt_settings, attempts_file, keep_settings, run_replicas
    from calopd.rundir.locks import exclusive

    gpus = replica_gpus(arguments)
    check_not_source(arguments.out, arguments.source)
    problems = load_problems(arguments.source)
    sampling = sampling_of(arguments)
    if not arguments.endpoint:  # which has the model itself
        require_sampled_model("--model", arguments.model, sampling, arguments.max_prompt_tokens, problems)
        require_gpu_memory("--model", arguments.model, arguments, gpus)
    # Its warnings are about its own start; errors are still shown.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    busy = f"{arguments.out} is being written by another process: choose another --out"
    with exclusive(attempts_file(arguments.out), busy, keep_in_exec=True):
        keep_settings(arguments.out, attempt_settings(arguments, sampling))
        if len(gpus) > 1:
            # Afterwards no problem is left to attempt, and the job only writes the correct solutions.
            run_replicas(JOB, arguments.words, gpus, arguments.out, arguments.model)
        os.environ.update(gpu_environment(gpus[0]))
        become(JOB, arguments.words)
