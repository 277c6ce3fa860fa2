"""`calopd eval RUN@VERSION`: the weights that are sampled from are those of the version, also if it is a delta."""

from typing import Any, ClassVar

import pytest
from safetensors.torch import load_file

from calopd.evaluation.benchmarks import load_benchmark
from calopd.evaluation.evaluated_models import resolve
from calopd.evaluation.job import Job, Settings
from calopd.evaluation.layout import EvaluationDir
from calopd.evaluation.model_weights import weights_digest
from calopd.rundir.digests import file_digest
from calopd.rundir.layout import RunDir
from calopd.rundir.policies import WEIGHTS, read_manifest
from calopd.rundir.policy_publisher import FilePublisher
from services.rollout.jobs import evaluate
from tests.rundir.test_policy_deltas import publish, student, trained


class Sampler:
    """Stands for an engine: it reads its weights and samples nothing."""

    name = "none"
    loaded: ClassVar[list[Any]] = []

    def __init__(self, path, rollout, sampling, *, weights, **_):
        self.loaded.append((path, file_digest(weights / WEIGHTS), load_file(weights / WEIGHTS)))

    def sample(self, wanted):
        return iter(())

    def close(self):
        pass


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_version_that_is_a_delta_is_evaluated_with_its_own_weights(tiny, tmp_path, monkeypatch, version):
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.config.write_text(f'[student]\npath = "{tiny.student}"\n')
    publisher, versions = FilePublisher(run.policies, "run", 4), [student()]
    versions += [trained(versions[0], 1), trained(trained(versions[0], 1), 2)]
    for number, tensors in enumerate(versions):
        publish(publisher, number, tensors)
    assert read_manifest(run.policies, version).is_delta == (version > 0)

    model = resolve(f"{run}@{version}")
    assert (model.path, model.version) == (str(tiny.student), version)
    settings = Settings(model.label, model.path, str(model.weights), weights_digest(model), model.version, n=1)
    directory = EvaluationDir(tmp_path / "evaluation")
    Job(settings, [load_benchmark(str(tiny.heldout), 2)]).save(directory)
    monkeypatch.setattr(Sampler, "loaded", [])
    monkeypatch.setattr(evaluate, "OfflineSampler", Sampler)
    evaluate.evaluate(directory, replica=0, replicas=1)
    ((path, digest, found),) = Sampler.loaded
    assert (path, digest) == (str(tiny.student), settings.weights_sha256)
    assert found.keys() == versions[version].keys()
    assert all(found[name].equal(tensor) for name, tensor in versions[version].items())
