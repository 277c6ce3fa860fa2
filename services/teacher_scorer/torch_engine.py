"""Scoring with transformers: LM head on response rows only, in chunks, never holding [T, V]."""

import hashlib
import json
import logging
from pathlib import Path

import numpy as np
import torch

from calopd.devices import choose_device
from calopd.logprobs import score_targets
from calopd.models import load_causal_lm
from services.teacher_scorer.engine import SequenceScores, SequenceToScore

log = logging.getLogger(__name__)


class TorchEngine:
    """A causal language model of transformers, on one device."""

    name = "torch"

    def __init__(self, path: str, *, dtype: str, device: str, chunk: int) -> None:
        self.model = path
        self._device = choose_device(device)
        self._chunk = chunk
        model = load_causal_lm("teacher.path", path, dtype)
        self._lm = model.to(self._device).eval().requires_grad_(False)
        self.vocabulary_size = int(self._lm.lm_head.weight.shape[0])
        self.max_positions = int(model.config.max_position_embeddings)
        self.revision = _revision(path, model.config.to_json_string())
        log.info("teacher %s: %s, V = %d, revision %s", path, dtype, self.vocabulary_size, self.revision)

    @torch.inference_mode()
    def score(self, sequences: list[SequenceToScore]) -> list[SequenceScores]:
        # Padding stands on the right, where causal attention never looks back from a real token: no mask is needed.
        longest = max(sequence.tokens for sequence in sequences)
        ids = torch.zeros(len(sequences), longest, dtype=torch.long)
        for row, sequence in zip(ids, sequences, strict=True):
            tokens = np.concatenate((sequence.prompt_ids, sequence.response_ids[:-1]))
            row[: len(tokens)] = torch.from_numpy(tokens)
        hidden = self._lm.model(input_ids=ids.to(self._device), use_cache=False).last_hidden_state
        # The score of response token j is read at the row before it.
        rows = [
            hidden[i, len(s.prompt_ids) - 1 : len(s.prompt_ids) - 1 + len(s.response_ids)]
            for i, s in enumerate(sequences)
        ]
        out: list[SequenceScores | None] = [None] * len(sequences)
        wishes = [(s.top_k, s.want_entropy, s.top_k_min_entropy) for s in sequences]
        for wish in set(wishes):
            members = [i for i, other in enumerate(wishes) if other == wish]
            for i, scores in zip(members, self._head(rows, sequences, members, *wish), strict=True):
                out[i] = scores
        return [scores for scores in out if scores is not None]

    def _head(
        self,
        rows: list[torch.Tensor],
        sequences: list[SequenceToScore],
        members: list[int],
        top_k: int,
        entropy: bool,
        min_entropy: float | None,
    ) -> list[SequenceScores]:
        """The head over all rows of some sequences at once, and its scores cut apart again."""
        targets = np.concatenate([sequences[i].response_ids for i in members]).astype(np.int64)
        scores = score_targets(
            torch.cat([rows[i] for i in members]),
            self._lm.lm_head.weight,
            torch.from_numpy(targets).to(self._device),
            top_k=top_k,
            entropy=entropy,
            top_k_min_entropy=min_entropy,
            rows=self._chunk,
        )
        logprobs, top_ids, top_logprobs, entropies, positions = (
            None if tensor is None else tensor.cpu().numpy()
            for tensor in (
                scores.logprobs,
                scores.top_ids,
                scores.top_logprobs,
                scores.entropy,
                scores.top_positions,
            )
        )
        assert logprobs is not None
        out = []
        end = 0
        for i in members:
            start, end = end, end + len(sequences[i].response_ids)
            # Without positions, the rows of the top-k are those of the tokens.
            low, high = (start, end) if positions is None else np.searchsorted(positions, (start, end))
            out.append(
                SequenceScores(
                    logprobs[start:end],
                    None if top_ids is None else top_ids[low:high],
                    None if top_logprobs is None else top_logprobs[low:high],
                    None if entropies is None else entropies[start:end],
                    None if positions is None else positions[low:high] - start,
                )
            )
        return out

    @torch.inference_mode()
    def reference(self, sequence: SequenceToScore) -> np.ndarray:
        tokens = torch.from_numpy(np.concatenate((sequence.prompt_ids, sequence.response_ids)).astype(np.int64))
        logits = self._lm(input_ids=tokens[None].to(self._device), use_cache=False).logits[0].float()
        rows = logits.log_softmax(-1)[len(sequence.prompt_ids) - 1 : -1].cpu()
        return rows.gather(1, tokens[len(sequence.prompt_ids) :, None]).squeeze(1).numpy()


def _revision(path: str, config: str) -> str:
    """A name for these weights: a digest over the configuration and samples from all over the weight files."""
    digest = hashlib.sha256(json.dumps(json.loads(config), sort_keys=True).encode())
    for file in sorted(Path(path).glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as weights:
            for part in range(16):
                weights.seek(part * size // 16)
                digest.update(weights.read(65_536))
    return digest.hexdigest()[:12]
