"""The most that one pass of a role computes, by the settings of a run."""

from calopd.config import Config


def longest_sampled(config: Config) -> int:
    """Inputs of the longest sequence that the learner sees; the last token of a response is no input."""
    return config.data.max_prompt_tokens + config.rollout.max_tokens - 1


def longest_scored(config: Config) -> int:
    """Inputs of the longest sequence that the teacher scores."""
    prompt = max(config.data.max_prompt_tokens, config.data.max_context_tokens)
    return min(config.teacher.max_tokens, prompt + config.rollout.max_tokens) - 1


def learner_tokens(config: Config) -> int:
    """Most tokens of a micro-batch: a single sequence may exceed the limit."""
    return max(config.learner.micro_batch_tokens, longest_sampled(config))


def teacher_tokens(config: Config) -> int:
    """Most tokens of a batch of the teacher: a single sequence may exceed the limit."""
    return max(config.teacher.batch_tokens, longest_scored(config))


def longest_rollout(config: Config) -> int:
    """Longest sequence that the rollout engine must be able to hold; evaluations count if there are any.

    No more than that: vLLM refuses a length above the positions of the model, which this one may equal.
    """
    evaluated = config.evaluation.max_tokens if config.evaluation.problems else 0
    return config.data.max_prompt_tokens + max(config.rollout.max_tokens, evaluated)
