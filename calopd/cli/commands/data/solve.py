"""Sample one solution per problem from a strong model and keep the correct ones.

Each attempt is saved as soon as it is complete; the same command resumes.
"""

import argparse
import os
import sys
from pathlib import Path

from calopd.cli.gpu_arguments import add_gpu_arguments, replica_gpus
from calopd.cli.sampling_arguments import add_sampling_arguments
from calopd.core.options import DTYPES, PAPER_SOLUTIONS, SAMPLERS

HELP = "sample one solution per problem from a strong model and keep the correct ones"
JOB = "services.rollout.jobs.solve"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", type=Path, help="JSONL of problems")
    add("-o", "--out", type=Path, required=True, help="the JSONL to write")
    add("--model", required=True, help="model directory or hub id")
    add("--engine", choices=SAMPLERS, default="vllm")
    add("--dtype", choices=DTYPES, default="auto", help="auto = bfloat16 on a GPU, float32 on a CPU")
    add("--tensor-parallel-size", type=int, default=1)
    add_sampling_arguments(parser, PAPER_SOLUTIONS)
    add("--max-prompt-tokens", type=int, default=2_048)
    add("--in-flight", type=int, default=256, help="responses sampled at once (default: %(default)s)")
    add("--seed", type=int, default=0)
    add_gpu_arguments(parser)
    add("--replica", type=int, help=argparse.SUPPRESS)  # the number of a process that another one has started


def run(arguments: argparse.Namespace) -> None:
    """Become the sampling job: the engines belong to a service, which this package does not import."""
    from calopd.config.visible_gpus import gpu_environment

    gpus = replica_gpus(arguments)
    if len(gpus) > 1:
        from calopd.local.replicated_job import run_replicas

        # Afterwards no problem is left to attempt, and the job only writes the correct solutions.
        run_replicas(JOB, arguments.words, gpus, arguments.out, arguments.model)
    os.environ.update(gpu_environment(gpus[0]))
    os.execv(sys.executable, [sys.executable, "-m", JOB, *arguments.words])
