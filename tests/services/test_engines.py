"""Engines by name: what the configuration allows is what the services have."""

from dataclasses import fields
from typing import get_args

import numpy as np
import pytest
import torch

from calopd.config.sections import RolloutSection, TeacherSection
from calopd.core.lm_head import score_logits, score_targets
from calopd.core.options import SAMPLERS
from calopd.core.types import Sampling, ScoreOptions
from services.rollout import engines as sampling
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.engines.torch_sampler import TorchSampler
from services.rollout.engines.vllm_sampler import sampling_params
from services.teacher_scorer import engines as scoring


@pytest.mark.parametrize(("section", "registry"), [(RolloutSection, sampling), (TeacherSection, scoring)])
def test_the_configuration_allows_exactly_the_registered_engines(section, registry):
    assert set(get_args(section.model_fields["engine"].annotation)) == set(registry.ENGINES)


@pytest.mark.parametrize(("registry", "name"), [(r, name) for r in (sampling, scoring) for name in r.ENGINES])
def test_a_registered_engine_exists_and_is_built_from_its_section(registry, name):
    engine = registry.resolve_name(registry.ENGINES[name])
    assert callable(engine.configured)


class Recording:
    """Stands in for a dataclass, and records which fields are read."""

    def __init__(self, values):
        self._values, self.read = values, set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self._values, name)


def sample_with_torch(sampling, tiny) -> None:
    engine = TorchSampler(str(tiny.student), stop_ids=[2], dtype="float32", device="cpu", max_rows=1)
    engine.add(0, SampleRequest(np.arange(5, 9, dtype=np.int32), sampling, seed=0))
    while not engine.step():
        pass


def sample_with_vllm(sampling, tiny) -> None:
    sampling_params(sampling, seed=0, stop_ids=[2])


SAMPLES_WITH = {"torch": sample_with_torch, "vllm": sample_with_vllm}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_an_engine_uses_every_sampling_parameter(name, tiny):
    recording = Recording(Sampling(0.7, 0.9, 2))
    SAMPLES_WITH[name](recording, tiny)
    assert recording.read >= {field.name for field in fields(Sampling)}


def test_the_lm_head_uses_every_score_option():
    hidden, weight, targets = torch.randn(4, 3), torch.randn(9, 3), torch.arange(4)
    for head in (
        lambda options: score_targets(hidden, weight, targets, options),
        lambda options: score_logits(lambda rows: hidden[rows] @ weight.T, targets, options),
    ):
        recording = Recording(ScoreOptions(2, want_entropy=False, top_k_min_entropy=0.5))
        head(recording)
        assert recording.read >= {field.name for field in fields(ScoreOptions)}
