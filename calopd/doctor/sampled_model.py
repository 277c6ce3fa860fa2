"""The checks of `calopd eval` and `calopd data solve` before a sampling process starts."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from calopd.config.placement import Group
from calopd.config.sections import RolloutSection
from calopd.core.errors import ConfigError
from calopd.core.options import Sampling
from calopd.core.types import Problem
from calopd.doctor.gpu_checks import usable_gpus
from calopd.doctor.model_checks import can_be_split
from calopd.models.model_files import check_model, check_positions, count_parameters, model_folder
from calopd.models.prompts import Prompts
from calopd.models.tokenizer_files import FileTokenizer, has_tokenizer_files

LONGEST = 64
"""Number of problems whose prompts are rendered, the longest first."""


def require_sampled_model(
    key: str,
    path: str,
    sampling: Sampling,
    max_prompt_tokens: int,
    problems: Iterable[Problem],
    *,
    named: tuple[str, str] = ("--max-prompt-tokens", "--max-tokens"),
) -> None:
    """Refuse a model that is not there or incomplete, and prompts and responses that do not fit it.

    `named` are the names of the two limits for the user.
    """
    check_model(key, path)
    folder = model_folder(path)
    if folder is None:
        return  # on the hub; its files are read once they are downloaded
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{key} = {path!r}: no config.json in {folder}")
    count_parameters(folder)
    check_positions(key, path, max_prompt_tokens + sampling.max_tokens, " + ".join(named))
    if has_tokenizer_files(folder):
        _check_prompts(folder, max_prompt_tokens, problems, named[0])


def _check_prompts(folder: Path, limit: int, problems: Iterable[Problem], named: str) -> None:
    tokenizer = FileTokenizer(folder)
    prompts = Prompts(tokenizer, [], seed=0, max_prompt_tokens=limit, max_context_tokens=limit)
    for problem in sorted(problems, key=lambda problem: len(problem.problem), reverse=True)[:LONGEST]:
        tokens = len(tokenizer.encode(prompts.text(problem), add_special_tokens=False))
        if tokens > limit:
            raise ConfigError(
                f"problem {problem.id} has a prompt of {tokens} tokens, more than {named} {limit}: "
                "raise it, or remove the problem"
            )


def require_gpu_memory(key: str, path: str, arguments: argparse.Namespace, gpus: Sequence[Group]) -> None:
    """Refuse a model that vLLM cannot hold on the GPUs of a process, by the arithmetic of the planner.

    `arguments` are those of the sampling commands, `gpus` the GPUs of each process.
    """
    found = usable_gpus() if arguments.engine == "vllm" else []
    placed = {gpu for group in gpus for gpu in group} or set(range(arguments.tensor_parallel_size))
    memory = min((gpu.memory_gib for gpu in found if gpu.index in placed), default=None)
    if memory is None:
        return
    import torch

    from calopd.planning.gpus import CONTEXT_GIB
    from calopd.planning.inference_memory import EngineWork, vllm_memory
    from calopd.planning.memory_terms import dtype_bytes
    from calopd.planning.model_shapes import load_shape
    from calopd.planning.rollout_limits import MOST_BATCHED_TOKENS

    shape = load_shape(path)
    if shape is None or torch.version.cuda is None:
        return
    longest = arguments.max_prompt_tokens + arguments.max_tokens + 1
    usable = RolloutSection().gpu_memory_utilization * memory - CONTEXT_GIB

    def needed(size: int) -> float:
        work = EngineWork(gpus=size, tokens=MOST_BATCHED_TOKENS, longest=longest, logits_rows=arguments.in_flight)
        return vllm_memory(shape, work, dtype_bytes(arguments.dtype)).gib

    size = arguments.tensor_parallel_size
    if needed(size) <= usable:
        return
    larger = [n for n in range(size + 1, len(found) + 1) if can_be_split(shape, n) and needed(n) <= usable]
    advice = f"use --tensor-parallel-size {larger[0]}" if larger else "use larger GPUs or a smaller model"
    raise ConfigError(
        f"{key} {path}: vLLM needs {needed(size):.1f} GiB on each GPU, and {usable:.1f} are usable: {advice}"
    )
