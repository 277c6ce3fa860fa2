"""The checks of `calopd eval` and `calopd data solve` before a sampling process starts."""

from collections.abc import Iterable
from pathlib import Path

from calopd.core.errors import ConfigError
from calopd.core.options import Sampling
from calopd.core.types import Problem
from calopd.models.model_files import check_model, check_positions, count_parameters, model_folder
from calopd.models.prompts import Prompts
from calopd.models.tokenizer_files import FileTokenizer, has_tokenizer_files

LONGEST = 64
"""Number of problems whose prompts are rendered, the longest first."""


def require_sampled_model(
    key: str, path: str, sampling: Sampling, max_prompt_tokens: int, problems: Iterable[Problem]
) -> None:
    """Refuse a model that is not there or incomplete, and prompts and responses that do not fit it."""
    check_model(key, path)
    folder = model_folder(path)
    if folder is None:
        return  # on the hub; its files are read once they are downloaded
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{key} = {path!r}: no config.json in {folder}")
    count_parameters(folder)
    check_positions(key, path, max_prompt_tokens + sampling.max_tokens, "--max-prompt-tokens + --max-tokens")
    if has_tokenizer_files(folder):
        _check_prompts(folder, max_prompt_tokens, problems)


def _check_prompts(folder: Path, limit: int, problems: Iterable[Problem]) -> None:
    tokenizer = FileTokenizer(folder)
    prompts = Prompts(tokenizer, [], seed=0, max_prompt_tokens=limit, max_context_tokens=limit)
    for problem in sorted(problems, key=lambda problem: len(problem.problem), reverse=True)[:LONGEST]:
        tokens = len(tokenizer.encode(prompts.text(problem), add_special_tokens=False))
        if tokens > limit:
            raise ConfigError(
                f"problem {problem.id} has a prompt of {tokens} tokens, more than --max-prompt-tokens {limit}: "
                "raise it, or remove the problem"
            )
