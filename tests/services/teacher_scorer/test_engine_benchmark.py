"""The comparison of engines: its work fits the batches, and its advice follows the figures."""

import pytest

from benchmarks.teacher_engines import WorkSize, batches, draw_sequences, verdict


def result(speed: int, *scores: float):
    return {"tokens_per_second": speed, "scores": list(scores)}


def test_the_work_is_the_same_for_every_engine_and_fits_its_limits():
    size = WorkSize(responses=5, prompt_tokens=40, response_tokens=100)
    work, again = (draw_sequences(size, 390, longest=120) for _ in range(2))
    assert len(work) == 15
    assert all((a.response_ids == b.response_ids).all() for a, b in zip(work, again, strict=True))
    assert max(sequence.tokens for sequence in work) <= 120
    assert (work[0].prompt_ids[:32] == work[2].prompt_ids[:32]).all()
    cut = batches(work, 300)
    assert [s for batch in cut for s in batch] == work
    assert max(sum(s.tokens for s in batch) for batch in cut) <= 300


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"torch": result(300, -1.0), "vllm": result(200, -1.5)}, '1.50 times as fast: teacher.engine = "torch"'),
        ({"torch": result(100, -1.0), "vllm": result(200, -1.5)}, '2.00 times as fast: teacher.engine = "vllm"'),
        ({"torch": result(100, -1.0), "vllm": result(200, -1.5)}, "differ by 0.5 nats"),
        ({"torch": {"error": "no"}, "vllm": result(200, -1.5)}, "Only one engine can run this teacher here"),
        ({"torch": {"error": "no"}, "vllm": {"error": "no"}}, "No engine can run this teacher here"),
    ],
)  # fmt: skip
def test_the_advice_follows_the_figures(found, said):
    assert said in verdict(found)
