"""Sampling without a queue: run a list of prompts through an engine and yield each response when it is complete."""

import queue
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from calopd.config.sections import RolloutSection
from calopd.core.types import Problem, Sample, Sampling
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import load_tokenizer, stop_ids
from calopd.planning.rollout_limits import MOST_SEQUENCES
from services.rollout.engines import build_engine
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.sampler import SamplingLoop

Key = TypeVar("Key", bound=Hashable)


class OfflineSampler:
    """A model with its tokenizer, its engine and the settings to sample with."""

    def __init__(
        self,
        path: str,
        rollout: RolloutSection,
        sampling: Sampling,
        *,
        max_prompt_tokens: int,
        seed: int = 0,
        weights: Path | None = None,
        thinking: bool = True,
    ) -> None:
        tokenizer = load_tokenizer(path)
        self.prompts = Prompts(
            tokenizer,
            [],
            seed=seed,
            max_prompt_tokens=max_prompt_tokens,
            max_context_tokens=max_prompt_tokens,
            template_options={} if thinking else {"enable_thinking": False},
        )
        self._sampling, self._in_flight = sampling, rollout.max_in_flight or MOST_SEQUENCES
        longest = max_prompt_tokens + sampling.max_tokens
        stops = stop_ids(path, tokenizer)
        engine = build_engine(path, rollout, stop_ids=stops, max_model_len=longest, seed=seed)
        self.name = engine.name
        self._loop = SamplingLoop(engine)
        if weights is not None:
            self._loop.load_policy(weights, 0).result()

    def sample(self, wanted: Iterable[tuple[Key, Problem, int]]) -> Iterator[tuple[Key, Sample, str]]:
        """For each (key, problem, seed), yield the key, the sample and its text, in completion order."""
        waiting = iter(wanted)
        completed: queue.Queue[tuple[Key, Future[Sample]]] = queue.Queue()
        running = 0

        def submit() -> int:
            for key, problem, seed in waiting:
                request = SampleRequest(self.prompts.ids(problem), self._sampling, seed)
                future = self._loop.sample(request)
                future.add_done_callback(lambda done, key=key: completed.put((key, done)))  # type: ignore[misc]
                return 1
            return 0

        for _ in range(self._in_flight):
            running += submit()
        while running:
            key, future = completed.get()
            running += submit() - 1
            sample = future.result()
            yield key, sample, self.prompts.decode(sample.response_ids)

    def close(self) -> None:
        self._loop.stop()
