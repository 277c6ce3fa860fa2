"""Teacher and learner on fake CUDA tensors: `python -m tests.gpu.forward` prints the faults of each case.

The real classes run, with models of tiny shapes. Every case runs once as it is, and once with each planted defect.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import deepcopy
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
from calopd.core.head_tiles import tile_shape
from calopd.core.lm_head import score_sharded
from calopd.core.types import Sampling, ScoreOptions
from calopd.doctor import gpu_facts
from calopd.models import packing
from services.learner import optimizer, student
from services.learner.trainer import Trainer
from services.rollout.engines import torch_sampler
from services.rollout.engines.sampling_engine import SampleRequest
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
RANKS = 4


def load_fake(key: str, path: str, dtype: torch.dtype, *_: Any, **__: Any) -> Any:
    """In place of `load_causal_lm`: a model of these shapes on the GPU."""
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(deepcopy(MODELS[path]), dtype=dtype)


def faults(calls: Calls, rows: int) -> list[str]:
    """How a pass over `rows` packed rows differs from what a GPU should do."""
    found = []
    if not calls.named("varlen_attn"):
        found.append("attention does not run in varlen_attn")
    if calls.named("scaled_dot_product"):
        found.append("attention runs in scaled_dot_product_attention")
    if any(shape[-2:] == (rows, rows) for call in calls.seen for shape, _ in call.outputs):
        found.append(f"a tensor of {rows} x {rows} (a mask or scores of attention) is made")
    return found + head_faults(calls)


def head_faults(calls: Calls) -> list[str]:
    """How logits are computed, if not in float32 from bfloat16."""
    heads = [
        (call.inputs[0][1], kind)
        for call in calls.seen
        for shape, kind in call.outputs
        if "mm" in call.name and len(shape) == 2 and shape[1] == VOCABULARY
    ]
    if not heads:
        return ["no logits are computed"]
    return [f"logits are {kind} from {given}" for given, kind in {*heads} - {("bfloat16", "float32")}]


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


def split_head() -> list[str]:
    """The vLLM teacher's LM head, of which this GPU has a half."""
    with fake_cuda() as calls, torch.device("cuda"):
        hidden, weight = (torch.empty(n, HIDDEN, dtype=torch.bfloat16) for n in (37, VOCABULARY))
        targets = torch.zeros(37, dtype=torch.long)
        rows, tile = tile_shape(on_cuda=hidden.is_cuda)
        score_sharded(
            hidden,
            weight,
            targets,
            ScoreOptions(top_k=4, want_entropy=True),
            first=VOCABULARY,
            all_gather=lambda columns: torch.cat((columns, columns), dim=1),
            rows=rows,
            tile=tile,
        )
    return head_faults(calls)


def sampler() -> list[str]:
    """The sampler that needs no vLLM: a wave of prompts and two tokens."""
    request = SampleRequest(np.arange(3, 20, dtype=np.int32), Sampling(max_tokens=2, top_p=0.9), seed=0)
    with fake_cuda() as calls:
        engine = torch_sampler.TorchSampler("dense", stop_ids=[1], dtype="auto", device="auto", max_rows=4)
        for key in range(3):
            engine.add(key, request)
        finished = [*engine.step(), *engine.step()]
    incomplete = [] if len(finished) == 3 else [f"{len(finished)} of 3 responses are complete"]
    return head_faults(calls) + incomplete


def learner(*settings: str, mesh: tuple[int, ...] = (RANKS,)) -> list[str]:
    """A step of the real trainer: forward, backward, clipping, AdamW, and the next policy; on one of several ranks."""
    config = load_config(Path("configs/demo.toml"), ["student.path=dense", *settings])
    batch = trajectories()[:6]
    names = ("replicate", "shard")[-len(mesh) :]
    with fake_cuda() as calls:
        ranks: Any = SimpleNamespace(
            device=torch.device("cuda", 0),
            rank=0,
            size=RANKS,
            mesh=init_device_mesh("cuda", mesh, mesh_dim_names=names),
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
        published = {str(tensor.dtype) for tensor in trainer.policy_weights().tensors}
    if not calls.named("_fused_adamw"):
        found.append("AdamW is not fused")
    if published != {"torch.bfloat16"}:
        found.append(f"the policy is published in {sorted(published)}")
    return found


def report_facts() -> list[str]:
    """The measurements of `calopd doctor --report`; a compiled kernel is none of fake tensors."""
    measured = {name: fact for name, fact in gpu_facts.FACTS.items() if name != "compiled_kernel"}
    with patch.object(gpu_facts, "FACTS", measured), patch.object(gpu_facts, "VOCABULARY", 512), fake_cuda():
        facts = gpu_facts.measure(torch.device("cuda"))
    wrong = [f"{name}: {value}" for name, value in facts.items() if str(value).startswith("error")]
    kernel = facts["packed_attention"]
    return wrong or ([] if kernel["kernel"] == "varlen_attn" else [f"attention runs in {kernel['kernel']}"])


Case = Callable[[], list[str]]
Plant = Callable[..., AbstractContextManager[Any]]


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
    return patch.object(optimizer, "FUSED", False)


TEACHERS: dict[str, Case] = {f"{model} teacher": partial(teacher, model) for model in MODELS}
LEARNER: dict[str, Case] = {"learner": partial(learner, "learner.recompute_activations=true")}
OTHERS: dict[str, Case] = {
    "learner of adapters": partial(learner, "learner.lora_rank=8"),
    "learner on two nodes": partial(learner, mesh=(2, RANKS // 2)),
    "learner offloaded": partial(learner, "learner.offload_optimizer=true"),
    "learner with a frozen copy": partial(learner, "method.name=exopd", "learner.lora_rank=0"),
    "facts of a report": report_facts,
}
HEADS: dict[str, Case] = {"split head": split_head, "sampler": sampler}
PLANTS: dict[str, tuple[dict[str, Case], Plant]] = {
    "": (TEACHERS | LEARNER | HEADS | OTHERS, nullcontext),
    "rounded logits": (TEACHERS | LEARNER | HEADS, rounded_logits),
    "no kernel": (TEACHERS | LEARNER, no_kernel),
    "left on CPU": (TEACHERS | LEARNER, left_on_cpu),
    "looped AdamW": (LEARNER, looped_adamw),
}


def outcome(case: Case) -> list[str]:
    try:
        return case()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def main() -> None:
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    found: dict[str, dict[str, list[str]]] = {}
    with ExitStack() as stack:
        for module in (torch_scorer, torch_sampler, student):
            stack.enter_context(patch.object(module, "load_causal_lm", load_fake))
        for planted, (cases, plant) in PLANTS.items():
            with plant():
                found[planted] = {name: outcome(case) for name, case in cases.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
