"""An LM head split over processes scores as the whole one."""

import threading

import pytest
import torch

from calopd.core.lm_head import HeadScores, score_sharded, score_targets
from calopd.core.types import ScoreOptions

T, V, H = 37, 211, 16


def sharded(hidden, weight, targets, options, ends) -> list[HeadScores]:
    """The scores of every part, computed by threads that exchange tensors as processes do."""
    starts = [0, *ends[:-1]]
    barrier = threading.Barrier(len(ends))
    sent: list[torch.Tensor | None] = [None] * len(ends)
    found: list[HeadScores | None] = [None] * len(ends)

    def run(rank: int) -> None:
        def all_gather(columns):
            sent[rank] = columns
            barrier.wait()
            joined = torch.cat(sent, -1)
            barrier.wait()
            return joined

        part = weight[starts[rank] : ends[rank]]
        found[rank] = score_sharded(hidden, part, targets, options, first=starts[rank], all_gather=all_gather)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(ends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("ends", [[211], [128, 211], [64, 128, 203, 211]])
@pytest.mark.parametrize(
    "options",
    [ScoreOptions(), ScoreOptions(16, True), ScoreOptions(5, False, 1.0), ScoreOptions(want_entropy=True)],
    ids=["logprobs", "top-k and entropy", "top-k of uncertain rows", "entropy"],
)
def test_every_process_has_the_scores_of_the_whole_head(ends, options):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(T, H, generator=generator), torch.randn(V, H, generator=generator)
    targets = torch.randint(V, (T,), generator=generator)
    expected = score_targets(hidden, weight, targets, options)
    for scores in sharded(hidden, weight, targets, options, ends):
        for name in ("logprobs", "entropy", "top_logprobs"):
            own, whole = getattr(scores, name), getattr(expected, name)
            assert (own is None) == (whole is None)
            assert own is None or torch.allclose(own, whole, atol=1e-5)
        for name in ("top_ids", "top_positions"):
            own, whole = getattr(scores, name), getattr(expected, name)
            assert (own is None) == (whole is None)
            assert own is None or torch.equal(own, whole)


def test_a_part_gone_bad_is_not_hidden():
    hidden, weight, targets = torch.randn(T, H), torch.randn(V, H), torch.arange(T)
    weight[200] = float("nan")
    for scores in sharded(hidden, weight, targets, ScoreOptions(), [128, 211]):
        assert scores.logprobs.isnan().all()
