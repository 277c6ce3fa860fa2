"""Rendering of problems and contexts into prompt token ids."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calopd.core.contexts import BASE, CONTEXTS, Context, messages, unrelated_solution, wrong_answer
from calopd.core.errors import ConfigError, InvalidRequest
from calopd.core.types import Problem

if TYPE_CHECKING:
    from calopd.config import Config

log = logging.getLogger(__name__)


class Prompts:
    """Renders the prompt token ids of a problem under a context."""

    def __init__(
        self,
        tokenizer: Any,
        problems: Sequence[Problem],
        *,
        seed: int,
        max_prompt_tokens: int,
        max_context_tokens: int,
        contexts: Mapping[str, Context] = CONTEXTS,
        before: bool = False,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.problems = {problem.id: problem for problem in problems}
        self._ordered = list(problems)
        self._seed = seed
        self._limits = {"max_prompt_tokens": max_prompt_tokens, "max_context_tokens": max_context_tokens}
        self._contexts = dict(contexts)
        self._before = before
        self._lengths: dict[str, int] = {}
        self._options = dict(template_options or {})
        self._ahead: dict[str, np.ndarray] = {}
        """Problem id -> its prompt without an intervention, rendered before it was needed."""
        self.on_cut: Callable[[], object] = lambda: None
        """Called for every prompt whose solution was cut."""

    @classmethod
    def configured(cls, config: "Config", tokenizer: Any, problems: Sequence[Problem]) -> "Prompts":
        """Prompts with the settings of a run."""
        return cls(
            tokenizer,
            problems,
            seed=config.run.seed,
            max_prompt_tokens=config.data.max_prompt_tokens,
            max_context_tokens=config.data.max_context_tokens,
            contexts=config.method.known_contexts,
            before=config.method.placement == "before",
        )

    def _length(self, text: str) -> int:
        if text not in self._lengths:
            self._lengths[text] = len(self.tokenizer.encode(text, add_special_tokens=False))
        return self._lengths[text]

    def intervention(self, problem: Problem, name: str, cut: int = 0) -> str:
        """The text that a context adds to this problem, without the first `cut` tokens of the solution."""
        if name == BASE:
            return ""
        if name not in self._contexts:
            known = ", ".join([BASE, *self._contexts])
            raise InvalidRequest(f"unknown context {name!r}; expected one of {known}")
        context = self._contexts[name]
        fields = {"problem": problem.problem, "answer": problem.answer, "solution": problem.solution}
        if context.polarity == "-" and "answer" in context.needs:
            fields["answer"] = wrong_answer(problem.answer, problem.id, self._seed)
        if "solution" in context.needs:
            if not problem.solution:
                raise ConfigError(
                    f"problem {problem.id} has no solution, which the context {name!r} needs: "
                    "add solutions to the problems or choose other contexts"
                )
            if context.polarity == "-":
                fields["solution"], near = unrelated_solution(problem, self._ordered, self._length, self._seed)
                if not near:
                    log.warning("problem %s: no unrelated solution of similar length, using the nearest", problem.id)
            if cut:
                kept = self.tokenizer.encode(fields["solution"], add_special_tokens=False)[cut:]
                fields["solution"] = self.tokenizer.decode(kept)
        return context.fill(fields)

    def ids(self, problem: Problem, context: str = BASE) -> np.ndarray:
        """int32 prompt ids, ending with the assistant marker (without the `<think>` that some templates append).

        If the solution makes the prompt too long, the beginning of the solution is cut.
        """
        if context == BASE and problem.id in self._ahead:
            return self._ahead[problem.id]
        key = "max_prompt_tokens" if context == BASE else "max_context_tokens"
        limit = self._limits[key]
        ids = self._render(problem, context, 0)
        cut = 0
        while len(ids) > limit:
            cut += len(ids) - limit
            shorter = self._render(problem, context, cut)
            if len(shorter) >= len(ids):
                raise ConfigError(
                    f"problem {problem.id} under {context} has a prompt of {len(ids)} tokens, more than "
                    f"data.{key} = {limit}: raise the limit or remove the problem"
                )
            ids = shorter
        if cut:
            self.on_cut()
        return ids

    def prefetch(self, problem_ids: Sequence[str]) -> None:
        """Render the prompts of these problems ahead, and keep no others. A prompt that is too long is left out."""
        ahead: dict[str, np.ndarray] = {}
        for problem_id in problem_ids:
            with contextlib.suppress(ConfigError):
                ahead[problem_id] = self.ids(self.problems[problem_id])
        self._ahead = ahead

    def text(self, problem: Problem, context: str = BASE, cut: int = 0) -> str:
        """The prompt before it is tokenized."""
        turns = messages(problem, self.intervention(problem, context, cut), before=self._before)
        text: str = self.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **self._options
        )
        return text.rstrip().removesuffix("<think>") if text.rstrip().endswith("<think>") else text

    def _render(self, problem: Problem, context: str, cut: int) -> np.ndarray:
        text = self.text(problem, context, cut)
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def decode(self, ids: np.ndarray) -> str:
        # The tokenizer's own code decodes twice as fast as its wrapper, which only adds the cleaning of spaces.
        cleans = getattr(self.tokenizer, "clean_up_tokenization_spaces", False)
        decoder = self.tokenizer if cleans else getattr(self.tokenizer, "backend_tokenizer", self.tokenizer)
        text: str = decoder.decode(ids.tolist(), skip_special_tokens=True)
        return text
