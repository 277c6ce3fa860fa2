"""An engine is asked for no more positions than the preflight allows: vLLM refuses more than the model has."""

import asyncio
from typing import Any

import pytest

from calopd.config import load_config
from calopd.config.sections import RolloutSection
from calopd.core.options import Sampling
from calopd.doctor.case import Case
from calopd.doctor.model_checks import needed_positions
from calopd.planning.workload import longest_rollout
from calopd.study.collection import Goal
from calopd.study.shards import Study
from services.rollout.jobs import collect, offline
from tests.doctor.examined import copied
from tests.services.processes import ROOT


class Asked(Exception):
    def __init__(self, *_: object, max_model_len: int, **__: object) -> None:
        self.length = max_model_len


def ask(*arguments: Any, **settings: Any) -> None:
    raise Asked(*arguments, **settings)


@pytest.mark.parametrize("evaluated", [0, 8])
def test_a_rollout(evaluated):
    settings = ["data.heldout=held.jsonl", "evaluation.max_tokens=30000", f"evaluation.problems={evaluated}"]
    config = load_config(ROOT / "configs" / "qwen3-30b-to-8b.toml", settings, {})
    assert longest_rollout(config) == needed_positions(Case(config), "student")[0]


def test_the_sampler_of_an_evaluation(tiny, monkeypatch):
    monkeypatch.setattr(offline, "build_engine", ask)
    with pytest.raises(Asked) as asked:
        offline.OfflineSampler(str(tiny.student), RolloutSection(), Sampling(max_tokens=100), max_prompt_tokens=28)
    assert asked.value.length == 128


def test_a_collector(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "build_engine", ask)
    monkeypatch.setattr(collect, "set_threads", lambda _: None)
    config, study = copied(tiny, tmp_path), Study(tmp_path / "study")
    study.begin(contexts=["c0"])
    share, goal = collect.Share(0, 1), Goal(None, 1, 1, 1.0)
    with pytest.raises(Asked) as asked:
        asyncio.run(collect.collect(config, study, share, goal, None, ""))
    assert asked.value.length == needed_positions(Case(config, study=["c0"]), "student")[0]
