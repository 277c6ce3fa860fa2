"""vLLM's teacher engine against the torch engine on the same sequences, in the environment that it is started in.

python -m tests.gpu.vllm_teacher MODEL TENSOR_PARALLEL_SIZE -> a JSON line with the largest deviations in nats
"""

import json
import sys

import numpy as np

from calopd.core.types import ScoreOptions
from calopd.models.devices import set_vllm_environment
from services.teacher_scorer.engines import vllm_scorer
from services.teacher_scorer.engines.scoring_engine import SequenceToScore
from services.teacher_scorer.engines.torch_scorer import TorchScorer
from services.teacher_scorer.engines.vllm_scorer import VllmScorer
from tests.gpu.array_scorer import ArrayScorer


def sequences() -> list[SequenceToScore]:
    """Responses under three contexts, one twice; in batches of 96 tokens, most of them are cut."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(3, 390, length, np.int32) for length in (12, 19, 31)]
    wanted = [(80, ScoreOptions(4, True)), (33, ScoreOptions()), (20, ScoreOptions(4, False, 2.0))]
    found = [SequenceToScore(p, draw.integers(3, 390, n, np.int32), o) for n, o in wanted for p in prompts]
    return [*found, found[0]]


def main(model: str, tensor_parallel_size: str) -> None:
    set_vllm_environment(1, 1)
    vllm_scorer.ResponseScorer = ArrayScorer  # type: ignore[misc]
    engine = VllmScorer(
        model, dtype="float32", batch_tokens=96, max_tokens=512, tensor_parallel_size=int(tensor_parallel_size),
        expert_parallel=False, gpu_memory_utilization=0.5,
    )  # fmt: skip
    expected = TorchScorer(model, dtype="float32", device="cpu")
    work = sequences()
    deviation, ids_equal = 0.0, True
    for own, other in zip(engine.score(work).scores, expected.score(work).scores, strict=True):
        ours, theirs = own.arrays(), other.arrays()
        assert {name: array.shape for name, array in ours.items()} == {n: array.shape for n, array in theirs.items()}
        for name, array in theirs.items():
            if array.dtype.kind == "f":
                deviation = max(deviation, float(np.abs(ours[name] - array).max(initial=0)))
            else:
                ids_equal = ids_equal and bool(np.array_equal(ours[name], array))
    result = {
        "runner": engine.runner,
        "client": type(engine._engine.engine_core).__name__,
        "float32_logits": engine.float32_logits,
        "deviation": deviation,
        "ids_equal": ids_equal,
        "array_comes_back_as": type(engine._engine.collective_rpc("three_numbers")[0]).__name__,
        "reference": float(np.abs(engine.reference(work[0]) - expected.reference(work[0])).max()),
    }
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
