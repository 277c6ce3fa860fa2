"""Mean lengths of the prompts that a plan counts with, in Qwen3's tokens."""

from collections.abc import Iterable, Mapping

from calopd.core.contexts import BASE, CONTEXTS, Context

PROMPT_TOKENS = 200
"""A problem of DAPO-Math, with system turn and template."""
INTERVENTION_TOKENS = 40
"""The text that a context adds."""
SOLUTION_TOKENS = 4_000
"""A reference solution, which some texts show."""


def prompt_lengths(names: Iterable[str], known: Mapping[str, Context] = CONTEXTS) -> list[int]:
    """Length of the prompt under each context."""
    return [PROMPT_TOKENS + (0 if name == BASE else _added(known[name])) for name in names]


def _added(context: Context) -> int:
    return INTERVENTION_TOKENS + SOLUTION_TOKENS * ("solution" in context.needs)
