"""The formula against counts with fake tensors, on models of few layers that are shaped like real ones."""

import json

import pytest

from benchmarks.counted_roles import count_learner, count_rollout, count_teacher
from benchmarks.memory import TOLERANCE
from calopd.config.load import load_config
from calopd.planning.inference_memory import CUDA_GRAPHS_GIB
from calopd.planning.role_needs import role_need

DENSE = {
    "model_type": "qwen3",
    "hidden_size": 512,
    "intermediate_size": 1_536,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 16_384,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32_768,
}
MIXTURE = {
    **DENSE,
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 256,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "tie_word_embeddings": False,
}


@pytest.fixture
def settings(tmp_path):
    """A configuration with these overrides and with models of these shapes."""

    def make(*overrides, student=DENSE, teacher=DENSE):
        for name, values in (("student", student), ("teacher", teacher)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "config.json").write_text(json.dumps(values))
        file = tmp_path / "run.toml"
        file.write_text(
            f'[data]\ntrain = "train.jsonl"\nmax_prompt_tokens = 512\nmax_context_tokens = 512\n'
            f'[student]\npath = "{tmp_path}/student"\n[teacher]\npath = "{tmp_path}/teacher"\nbatch_tokens = 8192\n'
            "[rollout]\nmax_tokens = 3584\nmax_in_flight = 16\n[learner]\nmicro_batch_tokens = 8192\nchunk = 512\n"
        )
        return load_config(file, overrides, environ={})

    return make


LEARNERS = {
    "two ranks": (2, ()),
    "large head": (4, ("learner.chunk=8192",)),
    "short micro-batch": (2, ("learner.micro_batch_tokens=512", "rollout.max_tokens=256", "learner.chunk=64")),
    "adapters": (1, ("learner.lora_rank=16",)),
    "reference": (2, ("method.name=exopd", "learner.lora_rank=0")),
    "stored activations": (2, ("learner.recompute_activations=false",)),
    "offloaded": (1, ("learner.lora_rank=16", "learner.offload_optimizer=true")),
}


@pytest.mark.parametrize("case", LEARNERS)
def test_learner(case, settings):
    ranks, overrides = LEARNERS[case]
    config = settings(f"learner.ranks={ranks}", *overrides)
    counted = count_learner(config, ranks).peak
    assert role_need(config, "learner").memory.bytes == pytest.approx(counted, rel=TOLERANCE)


def test_learner_with_a_head_of_its_own(settings):
    config = settings("learner.ranks=2", student={**DENSE, "tie_word_embeddings": False})
    assert role_need(config, "learner").memory.bytes == pytest.approx(count_learner(config, 2).peak, rel=TOLERANCE)


@pytest.mark.parametrize("teacher", [DENSE, MIXTURE], ids=["dense", "mixture"])
def test_torch_teacher(teacher, settings):
    config = settings(teacher=teacher)
    assert role_need(config, "teacher").memory.bytes == pytest.approx(count_teacher(config).peak, rel=TOLERANCE)


def test_rollout(settings):
    config = settings("rollout.engine=vllm")
    counted = count_rollout(config).peak + CUDA_GRAPHS_GIB * 2**30
    assert role_need(config, "rollout").memory.bytes == pytest.approx(counted, rel=TOLERANCE)


def test_a_count_sees_memory_that_the_formula_does_not_know(settings, monkeypatch):
    """The check can fail: a learner that keeps the hidden states of all micro-batches is counted."""
    from services.learner.student import Student

    config, kept, forward = settings("learner.ranks=2"), [], Student.forward

    def keeps(self, *args, **kwargs):
        kept.append(self.lm.model.embed_tokens.weight.new_zeros(2**28))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Student, "forward", keeps)
    counted = count_learner(config, 2).peak
    assert role_need(config, "learner").memory.bytes < (1 - TOLERANCE) * counted


def test_an_optimizer_step_counts_the_shards_of_one_rank(settings):
    """Two moments beside weights and gradients, without the tensors of all ranks that DTensor reasons about."""
    config = settings("learner.ranks=2", student={**DENSE, "num_hidden_layers": 8})
    counter = count_learner(config, 2)
    assert counter.phases["optimizer"] == pytest.approx(2 * counter.phases[""], rel=TOLERANCE)
