"""Peak memory of the learner and of the torch teacher, counted by running their own code with fake tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.peak_counter import PeakCounter, fake_gpu, fake_world
from calopd.config import Config
from calopd.core.head_tiles import tile_shape
from calopd.core.lm_head import HeadScores
from calopd.core.step_result import StepSums
from calopd.core.types import Problem, Sample, Scores, Ticket, TopK, Trajectory
from calopd.models import packing
from calopd.models.devices import choose_dtype, dtype_name
from calopd.planning.model_shapes import model_values
from calopd.planning.rollout_limits import rollout_work
from calopd.planning.workload import learner_tokens, longest_sampled, longest_scored, teacher_tokens
from services.learner import student as student_module
from services.learner.accumulator import Accumulator
from services.learner.tickets import step_tickets
from services.learner.trainer import Trainer
from services.teacher_scorer.engines.scoring_engine import SequenceScores, SequenceToScore
from services.teacher_scorer.engines.torch_scorer import TorchScorer

PROMPT = 64
"""Tokens of a prompt: few, so that the LM head works on nearly all tokens."""


def on_gpu(config: Config) -> Config:
    """The data types and the recomputation of a GPU; and nothing is kept for the report, which would read values."""
    sections = {}
    for name, key in (("teacher", "dtype"), ("rollout", "dtype"), ("learner", "compute_dtype")):
        section = getattr(config, name)
        chosen = dtype_name(choose_dtype(getattr(section, key), torch.device("cuda")))
        sections[name] = section.model_copy(update={key: chosen, "device": "cpu"})
    recompute = bool(config.learner.recompute_activations)
    update = {"show_trajectories": 0, "recompute_activations": recompute}
    sections["learner"] = sections["learner"].model_copy(update=update)
    return config.model_copy(update=sections)


@contextmanager
def shapes_only(module: str) -> Iterator[None]:
    """Models that `module` loads are built from their config.json, without weights."""

    def build(key: str, path: str, dtype: torch.dtype, *_: Any, **__: Any) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        values = dict(model_values(path) or {})
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")

    # There is one device, and modules of fake tensors cannot be moved, not even to where they are.
    with mock.patch(f"{module}.load_causal_lm", build), mock.patch("torch.nn.Module.to", lambda self, *_, **__: self):
        yield


def lengths(tokens: int, longest: int) -> list[int]:
    """Lengths of sequences that have `tokens` tokens together and are as long as possible."""
    rest = tokens % longest
    return [longest] * (tokens // longest) + [rest] * (rest > PROMPT)


class FakeRanks:
    """Rank 0 of some ranks that do not exist."""

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size
        self.device = torch.device("cpu")
        self.mesh = init_device_mesh("cpu", (size,))


def trajectory(ticket: Ticket, tokens: int) -> Trajectory:
    """A trajectory with `tokens` inputs, and with the scores that its ticket asks for."""
    response, options = tokens - PROMPT + 1, ticket.score_options
    zeros = np.zeros(response, np.float32)
    top = TopK(np.zeros((response, options.top_k), np.int32), np.zeros((response, options.top_k), np.float32))
    scores = Scores(
        ticket.contexts,
        np.zeros((len(ticket.contexts), response), np.float32),
        teacher_revision="",
        seconds=0.0,
        top_k=top if options.top_k else None,
        entropy=zeros if options.want_entropy else None,
    )
    # The policy of the second step, in which it is learned from.
    sample = Sample(zeros.astype(np.int32), zeros, truncated=False, policy_version=1, seconds=0.0)
    return Trajectory(ticket, np.zeros(PROMPT, np.int32), sample, scores, False, False, sampler="", worker="")


def micro_batch(config: Config) -> list[Trajectory]:
    """Trajectories that fill a micro-batch."""
    problems = [Problem(str(i), "", "") for i in range(config.learner.trajectories)]
    tickets = step_tickets(config, problems, "", 0)
    return [trajectory(t, n) for t, n in zip(tickets, lengths(learner_tokens(config), longest_sampled(config)))]  # noqa: B905


@contextmanager
def real_inputs() -> Iterator[None]:
    """Micro-batches are tensors with values, because lengths and slices are read from them."""
    pack = Accumulator._pack

    def pack_with_values(*args: Any) -> Any:
        with _disable_current_modes():
            return pack(*args)

    with mock.patch.object(Accumulator, "_pack", pack_with_values):
        yield


def count_learner(config: Config, ranks: int) -> PeakCounter:
    """The peak of rank 0 in a step of the real trainer, with an optimizer state and gradients of earlier micro-batches.

    A fake world has one device: with `learner.offload_optimizer`, all that lives on the host is subtracted.
    """
    counter = PeakCounter()
    with fake_world(ranks), shapes_only("services.learner.student"), real_inputs():
        fake_ranks = FakeRanks(ranks)
        with fake_gpu(counter):
            _train(on_gpu(config), fake_ranks, counter)
    return counter


def _train(config: Config, ranks: FakeRanks, counter: PeakCounter) -> None:
    trainer = Trainer(config, ranks)  # type: ignore[arg-type]
    parameters = [p for p in trainer.student.parameters() if isinstance(p, DTensor)]
    for parameter in parameters:
        counter.count(parameter._local_tensor, "parameter")
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    sums = StepSums()
    sums.add(kept_trajectories=1.0, kept_tokens=1.0)
    steps: list[list[list[Trajectory]]] = [[], [micro_batch(config)]]
    with counter:
        for step, batches in enumerate(steps):
            trainer.begin(step)
            for parameter in trained:  # as an earlier micro-batch of the step leaves it
                parameter.grad = torch.zeros_like(parameter)
            for trajectories in batches:
                counter.phase = "micro-batch"
                trainer.learn(trajectories, None)
            counter.phase = "optimizer"
            trainer.optimizer_step(sums)
    if config.learner.offload_optimizer:
        # Weights, and of those that are trained a gradient and two moments.
        counter.peak -= sum(p._local_tensor.nbytes for p in (*parameters, *trained, *trained, *trained))


def count_teacher(config: Config) -> PeakCounter:
    """The peak of the torch engine in a batch of the most tokens, which share no prefix."""
    counter = PeakCounter()
    module = "services.teacher_scorer.engines.torch_scorer"
    with shapes_only(module), mock.patch(f"{module}.SequenceScores.of", _without_values), fake_gpu(counter):
        chunk, tile = tile_shape(on_cuda=True)
        teacher = on_gpu(config).teacher
        sizes = {"chunk": teacher.chunk or chunk, "tile": teacher.tile or tile}
        engine = TorchScorer.configured(teacher.model_copy(update=sizes))
        for tensor in (*engine._lm.parameters(), *engine._lm.buffers()):
            counter.count(tensor, "parameter")
        with counter:
            engine.score(teacher_batch(config))
    return counter


def teacher_batch(config: Config) -> list[SequenceToScore]:
    """Sequences that fill a batch."""
    options = step_tickets(config, [Problem("", "", "")], "", 0)[0].score_options
    return [
        SequenceToScore(np.full(PROMPT, i, np.int32), np.full(tokens - PROMPT + 1, i, np.int32), options)
        for i, tokens in enumerate(lengths(teacher_tokens(config), longest_scored(config)))
    ]


def count_rollout(config: Config) -> PeakCounter:
    """The peak of a model of transformers with the sizes of the rollout's engine, and of vLLM's sampler.

    vLLM itself needs a GPU. Weights, one step of the engine, the KV cache of one longest sequence and the logits of all
    responses in flight are counted; CUDA graphs are not.
    """
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    counter, work = PeakCounter(), rollout_work(config)
    rollout = on_gpu(config).rollout
    with shapes_only("services.learner.student"), fake_gpu(counter), torch.inference_mode():
        dtype = choose_dtype(rollout.dtype, torch.device("cpu"))
        lm = student_module.load_causal_lm("student.path", config.student.path, dtype)
        packing.use_packed_attention("student.path", lm)
        for tensor in (*lm.parameters(), *lm.buffers()):
            counter.count(tensor, "parameter")
        model = lm.config
        with counter:
            heads = (2, work.longest, model.num_key_value_heads, model.head_dim)
            cache = [torch.empty(heads, dtype=dtype) for _ in range(model.num_hidden_layers)]
            with _disable_current_modes():
                packed = packing.pack([np.full(work.tokens, 1, np.int64)], share=False)
            lm.model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed)
            logits = torch.empty(work.logits_rows, model.vocab_size, dtype=dtype)
            apply_top_k_top_p_pytorch(logits.float(), None, torch.ones(work.logits_rows))
        del cache
    return counter


def _without_values(scores: HeadScores) -> SequenceScores:
    arrays = {field.name: getattr(scores, field.name) for field in fields(SequenceScores)}
    return SequenceScores(**{name: np.zeros(a.shape, np.float32) for name, a in arrays.items() if a is not None})
