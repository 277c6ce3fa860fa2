"""Scoring with transformers: packed batches; the LM head runs on response rows only, in tiles of the vocabulary."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Self

import numpy as np
import torch

from calopd.config.sections import TeacherSection
from calopd.core.head_tiles import tile_shape
from calopd.core.lm_head import score_targets
from calopd.core.lm_head.products import project
from calopd.core.types import ScoreOptions
from calopd.models.devices import choose_device, choose_dtype
from calopd.models.loading import load_causal_lm, revision
from calopd.models.packing import ATTENTION, has_kernel, pack, use_packed_attention
from services.teacher_scorer.engines.scoring_engine import BatchScores, SequenceScores, SequenceToScore

log = logging.getLogger(__name__)


class TorchScorer:
    """A causal language model of transformers, on one device."""

    name = "torch"

    def __init__(
        self, path: str, *, dtype: str, device: str, chunk: int = 0, tile: int = 0, share_prefixes: bool = True
    ) -> None:
        self.model = path
        self._device = choose_device(device)
        default_chunk, default_tile = tile_shape(on_cuda=self._device.type == "cuda")
        self._chunk, self._tile = chunk or default_chunk, tile or default_tile
        self._share = share_prefixes
        self.dtype = choose_dtype(dtype, self._device)
        model = load_causal_lm("teacher.path", path, self.dtype, self._device)
        use_packed_attention("teacher.path", model)
        self._lm = model.eval().requires_grad_(False)
        self.vocabulary_size = int(self._lm.lm_head.weight.shape[0])
        self.max_positions = int(model.config.max_position_embeddings)
        self.revision = revision(path, model.config.to_json_string())
        log.info("teacher %s: %s, V = %d, revision %s", path, self.dtype, self.vocabulary_size, self.revision)

    @classmethod
    def configured(cls, teacher: TeacherSection, *, deterministic: bool = False) -> Self:
        return cls(
            teacher.path,
            dtype=teacher.dtype,
            device=teacher.device,
            chunk=teacher.chunk,
            tile=teacher.tile,
            share_prefixes=teacher.share_prefixes,
        )

    @torch.inference_mode()
    def score(self, sequences: list[SequenceToScore]) -> BatchScores:
        start = time.perf_counter()
        packed = pack([sequence.read_ids for sequence in sequences], share=self._share).to(self._device)
        self._lm.set_attn_implementation(ATTENTION)
        hidden = self._lm.model(
            input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed
        ).last_hidden_state[0]
        middle = time.perf_counter()
        # The row before response token j predicts it.
        rows = [own[len(s.prompt_ids) - 1 :] for own, s in zip(packed.rows, sequences, strict=True)]
        out: list[SequenceScores | None] = [None] * len(sequences)
        for options in {sequence.options for sequence in sequences}:
            members = [i for i, sequence in enumerate(sequences) if sequence.options == options]
            wanted = torch.from_numpy(np.concatenate([rows[i] for i in members])).to(self._device)
            for i, scores in zip(members, self._head(hidden[wanted], sequences, members, options), strict=True):
                out[i] = scores
        return BatchScores(
            [scores for scores in out if scores is not None],
            packed.computed,
            0 if has_kernel(hidden.device, hidden.dtype) else packed.padding,
            middle - start,
            time.perf_counter() - middle,
        )

    def _head(
        self,
        hidden_TH: torch.Tensor,
        sequences: list[SequenceToScore],
        members: list[int],
        options: ScoreOptions,
    ) -> list[SequenceScores]:
        """Score all rows of some sequences at once, and split the result by sequence."""
        targets = np.concatenate([sequences[i].response_ids for i in members]).astype(np.int64)
        scores = score_targets(
            hidden_TH,
            self._lm.lm_head.weight,
            torch.from_numpy(targets).to(self._device),
            options,
            rows=self._chunk,
            tile=self._tile,
        )
        found = SequenceScores.of(scores)
        ends = np.cumsum([len(sequences[i].response_ids) for i in members]).tolist()
        return [found.rows(start, end) for start, end in pairwise([0, *ends])]

    @torch.inference_mode()
    def reference(self, sequence: SequenceToScore) -> np.ndarray:
        self._lm.set_attn_implementation("sdpa")
        tokens = torch.from_numpy(np.concatenate((sequence.prompt_ids, sequence.response_ids)).astype(np.int64))
        with self._float32_head():
            logits = self._lm(input_ids=tokens[None].to(self._device), use_cache=False).logits[0]
        rows = logits.float().log_softmax(-1)[len(sequence.prompt_ids) - 1 : -1].cpu()
        return rows.gather(1, tokens[len(sequence.prompt_ids) :, None]).squeeze(1).numpy()

    @contextmanager
    def _float32_head(self) -> Iterator[None]:
        """Let the model's own forward pass, and what it does to logits, see float32 products of the LM head."""
        head = self._lm.lm_head
        plain = head.forward

        def forward(hidden_BTH: torch.Tensor) -> torch.Tensor:
            rows = hidden_BTH.flatten(0, 1)
            out = torch.empty(len(rows), len(head.weight), device=rows.device)
            return project(rows, head.weight, out).unflatten(0, hidden_BTH.shape[:2])

        head.forward = forward
        try:
            yield
        finally:
            head.forward = plain
