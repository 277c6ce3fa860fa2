"""Teacher and learner on fake CUDA tensors: `python -m tests.gpu.forward` prints the faults of each case.

The real classes run, with models of tiny shapes. Every case runs once as it is, and once with each planted defect.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen3Config, Qwen3MoeConfig

from calopd.config import load_config
from calopd.core.types import ScoreOptions
from calopd.models import packing
from services.learner import optimizer, student
from services.learner.trainer import Trainer
from services.teacher_scorer.engines import torch_scorer
from services.teacher_scorer.engines.scoring_engine import SequenceToScore
from tests.gpu.fake_cuda import Calls, fake_cuda
from tests.services.learner.gradients import trajectories

VOCABULARY, HIDDEN = 400, 64
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
}  # fmt: skip
MODELS: dict[str, PretrainedConfig] = {
    "dense": Qwen3Config(**SIZES),
    "moe": Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48),
}
RANKS = 2


def load_fake(key: str, path: str, dtype: torch.dtype, *_: Any, **__: Any) -> Any:
    """In place of `load_causal_lm`: a model of these shapes on the GPU."""
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(MODELS[path], dtype=dtype)


def faults(calls: Calls, rows: int) -> list[str]:
    """How a pass over `rows` packed rows differs from what a GPU should do."""
    found = []
    if not calls.named("varlen_attn"):
        found.append("attention does not run in varlen_attn")
    if calls.named("scaled_dot_product"):
        found.append("attention runs in scaled_dot_product_attention")
    if any(shape[-2:] == (rows, rows) for call in calls.seen for shape, _ in call.outputs):
        found.append(f"a tensor of {rows} x {rows} (a mask or scores of attention) is made")
    heads = [
        (call.inputs[0][1], kind)
        for call in calls.seen
        for shape, kind in call.outputs
        if "mm" in call.name and len(shape) == 2 and shape[1] == VOCABULARY
    ]
    if not heads:
        found.append("no logits are computed")
    found += [
        f"logits are {kind} from {given}" for given, kind in set(heads) if (given, kind) != ("bfloat16", "float32")
    ]
    return found


def teacher(model: str) -> list[str]:
    ids = np.arange(3, 103, dtype=np.int32)
    sequences = [
        SequenceToScore(ids[:31], ids[40:69], ScoreOptions(top_k=4, want_entropy=True)),
        SequenceToScore(ids[:31], ids[50:87]),
        SequenceToScore(ids[1:24], ids[60:100]),
    ]
    with fake_cuda() as calls:
        scorer = torch_scorer.TorchScorer(model, dtype="auto", device="auto")
        calls.seen.clear()
        done = scorer.score(sequences)
    lengths = [len(scores.logprobs) for scores in done.scores]
    wrong = [f"scores have the lengths {lengths}"] if lengths != [len(s.response_ids) for s in sequences] else []
    return faults(calls, done.computed_tokens) + wrong


def learner(*settings: str) -> list[str]:
    """A step of the real trainer: forward, backward, clipping and AdamW, on one of two ranks."""
    config = load_config(Path("configs/demo.toml"), ["student.path=dense", *settings])
    batch = trajectories()[:6]
    with fake_cuda() as calls:
        ranks: Any = SimpleNamespace(
            device=torch.device("cuda", 0),
            rank=0,
            size=RANKS,
            mesh=init_device_mesh("cuda", (RANKS,)),
            checkpoints=None,
        )
        trainer = Trainer(config, ranks)
        calls.seen.clear()
        trainer.begin(0)
        trainer.learn(batch, None)
        found = faults(calls, sum(len(t.prompt_ids) + len(t.sample.response_ids) - 1 for t in batch))
        if not calls.named("varlen_attn_backward"):
            found.append("the backward pass does not run in varlen_attn")
        trainer.optimizer_step(SimpleNamespace(get=lambda _: float(len(batch))))  # type: ignore[arg-type]
    if not calls.named("_fused_adamw"):
        found.append("AdamW is not fused")
    return found


Plant = Callable[[], AbstractContextManager[Any]]


def rounded_logits() -> AbstractContextManager[Any]:
    """Products of bfloat16 rounded to bfloat16, as torch.mm does by default."""
    stock = torch.mm

    def mm(a: torch.Tensor, b: torch.Tensor, out_dtype: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
        product = stock(a, b).float()
        return product if out is None else out.copy_(product)

    return patch.object(torch, "mm", mm)


def no_kernel() -> AbstractContextManager[Any]:
    """Attention as on a CPU."""
    return patch.object(packing, "has_kernel", lambda *_: False)


def left_on_cpu() -> AbstractContextManager[Any]:
    """Inputs that were not moved to the GPU."""
    return patch.object(packing.Packed, "to", lambda packed, _: packed)


def looped_adamw() -> AbstractContextManager[Any]:
    return patch.object(optimizer, "uses_fused", lambda _: None)


TEACHERS = {f"{model} teacher": partial(teacher, model) for model in MODELS}
LEARNERS = {
    "learner": partial(learner, "learner.recompute_activations=true"),
    "learner of adapters": partial(learner, "learner.lora_rank=8"),
}
PLANTS: dict[str, tuple[dict[str, Callable[[], list[str]]], Plant]] = {
    "": (TEACHERS | LEARNERS, nullcontext),
    "rounded logits": (TEACHERS | LEARNERS, rounded_logits),
    "no kernel": (TEACHERS | LEARNERS, no_kernel),
    "left on CPU": (TEACHERS | LEARNERS, left_on_cpu),
    "looped AdamW": (LEARNERS, looped_adamw),
}


def outcome(case: Callable[[], list[str]]) -> list[str]:
    try:
        return case()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def main() -> None:
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    found: dict[str, dict[str, list[str]]] = {}
    with patch.object(torch_scorer, "load_causal_lm", load_fake), patch.object(student, "load_causal_lm", load_fake):
        for planted, (cases, plant) in PLANTS.items():
            with plant():
                found[planted] = {name: outcome(case) for name, case in cases.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
