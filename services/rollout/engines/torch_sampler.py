"""Sampling with transformers, for machines without vLLM: one wave of prompts at a time."""

from pathlib import Path
from typing import Self

import numpy as np
import torch
import transformers
from transformers import DynamicCache

from calopd.config.sections import RolloutSection
from calopd.core.errors import PolicyError
from calopd.core.lm_head.products import project
from calopd.models.devices import choose_device, choose_dtype
from calopd.models.loading import load_causal_lm
from calopd.rundir.policies import load_policy
from services.rollout.engines.sampling_engine import Finished, SampleRequest


class _Row:
    """A response being generated."""

    def __init__(self, key: int, request: SampleRequest) -> None:
        self.key, self.request = key, request
        self.noise = torch.Generator().manual_seed(request.seed % 2**63)
        self.ids: list[int] = []
        self.logprobs: list[float] = []


class TorchSampler:
    """Prompts wait until the wave before them is complete; finished rows leave the wave at once."""

    def __init__(self, path: str, *, stop_ids: list[int], dtype: str, device: str, max_rows: int) -> None:
        self.name = f"torch {torch.__version__} (transformers {transformers.__version__})"
        self._device = choose_device(device)
        model = load_causal_lm("student.path", path, choose_dtype(dtype, self._device), self._device)
        self._lm = model.eval().requires_grad_(False)
        self._stop_ids = set(stop_ids)
        self._max_rows = max_rows
        self._waiting: list[_Row] = []
        self._wave: list[_Row] = []
        self._mask = torch.empty(0, 0, dtype=torch.long)
        self._cache = DynamicCache()

    @classmethod
    def configured(
        cls,
        path: str,
        rollout: RolloutSection,
        *,
        stop_ids: list[int],
        max_model_len: int,
        seed: int,
        deterministic: bool = False,
    ) -> Self:
        # A matrix product of other rows may round differently: each response is a wave of its own.
        rows = 1 if deterministic else rollout.max_in_flight
        return cls(path, stop_ids=stop_ids, dtype=rollout.dtype, device=rollout.device, max_rows=rows)

    def add(self, key: int, request: SampleRequest) -> None:
        self._waiting.append(_Row(key, request))

    def abort(self, keys: set[int]) -> None:
        self._waiting = [row for row in self._waiting if row.key not in keys]
        self._keep([i for i, row in enumerate(self._wave) if row.key not in keys])

    def load(self, directory: Path) -> None:
        missing, unexpected = self._lm.load_state_dict(load_policy(directory), strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise PolicyError(f"policy {directory} does not fit the student: lacks {missing}, has {unexpected}")

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        logits = self._advance() if self._wave else self._start()
        finished, kept = [], []
        for i, row in enumerate(self._wave):
            token, logprob = _draw(logits[i], row)
            row.ids.append(token)
            row.logprobs.append(logprob)
            stopped = token in self._stop_ids
            if stopped or len(row.ids) >= row.request.sampling.max_tokens:
                ids, logprobs = np.asarray(row.ids, np.int32), np.asarray(row.logprobs, np.float32)
                finished.append(Finished(row.key, ids, logprobs, truncated=not stopped))
            else:
                kept.append(i)
        self._keep(kept)
        return finished

    def _keep(self, rows: list[int]) -> None:
        """Drop the other rows of the wave."""
        if len(rows) == len(self._wave):
            return
        self._wave = [self._wave[i] for i in rows]
        index = torch.tensor(rows, dtype=torch.long, device=self._device)
        self._mask = self._mask[index]
        if rows:
            self._cache.batch_select_indices(index)

    def _start(self) -> torch.Tensor:
        """Process the prompts of a new wave, padded on the left."""
        self._wave, self._waiting = self._waiting[: self._max_rows], self._waiting[self._max_rows :]
        prompts = [row.request.prompt_ids for row in self._wave]
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        self._mask = torch.zeros_like(ids)
        for i, prompt in enumerate(prompts):
            ids[i, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
            self._mask[i, longest - len(prompt) :] = 1
        self._mask = self._mask.to(self._device)
        self._cache = DynamicCache(config=self._lm.config)
        return self._forward(ids.to(self._device), (self._mask.cumsum(1) - 1).clamp(min=0))

    def _advance(self) -> torch.Tensor:
        """Process the last token of each row."""
        ids = torch.tensor([[row.ids[-1]] for row in self._wave], device=self._device)
        self._mask = torch.cat((self._mask, self._mask.new_ones(len(ids), 1)), dim=1)
        return self._forward(ids, self._mask.sum(1, keepdim=True) - 1)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """float32 logits of the next token of each row, also from bfloat16 weights."""
        hidden = self._lm.model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        weight = self._lm.lm_head.weight
        return project(hidden, weight, torch.empty(len(hidden), len(weight), device=hidden.device))


def _draw(logits: torch.Tensor, row: _Row) -> tuple[int, float]:
    """Sample a token with the row's own generator, so that it does not depend on the rest of the wave.

    Returns the token and its log-probability at temperature 1.
    """
    sampling = row.request.sampling
    logprobs = logits.log_softmax(-1)
    if sampling.temperature == 0:
        token = int(logits.argmax())
        return token, float(logprobs[token])
    probabilities = (logits / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        ordered[ordered.cumsum(0) - ordered > sampling.top_p] = 0
        probabilities = torch.zeros_like(probabilities).scatter_(0, order, ordered)
    # The largest of p / Exp(1) is a sample from p.
    noise = torch.empty(len(probabilities)).exponential_(generator=row.noise).to(probabilities.device)
    token = int((probabilities / noise).argmax())
    return token, float(logprobs[token])
