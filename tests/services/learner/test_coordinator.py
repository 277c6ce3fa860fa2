"""A learner that is back after a crash: what it keeps of the steps that its checkpoint does not contain."""

from pathlib import Path

import pytest
import torch

from calopd.config import load_config
from calopd.core.types import Problem
from calopd.local import embedded_redis
from calopd.rundir.policies import load_policy, policy_dir, publish_policy, published_sha256, read_manifest
from calopd.rundir.policy_reader import FileReader
from calopd.rundir.run_id import ensure_run_id
from calopd.rundir.tensor_files import TensorStream
from calopd.transport.queue import Queue, open_queue
from services.learner import coordinator
from services.learner.checkpoint import Durable
from services.learner.coordinator import Coordinator
from services.learner.tickets import evaluation_batch, evaluation_tickets, step_batch, step_tickets
from tests.conftest import Server
from tests.ports import free_port
from tests.transport.test_redis_queue import trajectory

WEIGHTS = {"w": torch.ones(4)}


@pytest.fixture
def queue(tmp_path: Path):
    port = free_port()
    command = embedded_redis.server_command(tmp_path / "redis", port, "secret")
    with Server(command, embedded_redis.server_url(port, "secret")).running() as server:
        queue = open_queue(server.url, "r")
        queue.join()
        yield queue


@pytest.fixture
def back(tiny, tmp_path, queue: Queue, monkeypatch: pytest.MonkeyPatch):
    """A coordinator that resumes at a step; steps 0 to 3 were opened before the crash, and each has a result."""
    monkeypatch.setattr(coordinator, "serve_status", lambda status, port: None)
    monkeypatch.setattr(coordinator, "register_resource_collector", lambda *arguments: None)

    def resume(step: int, *settings: str) -> Coordinator:
        file = tiny.write_config("back", steps=8)
        config = load_config(file, [f'run.dir="{tmp_path}"', *settings], {})
        config.run_dir.path.mkdir()
        ensure_run_id(config.run_dir)
        problems = [Problem(f"p1-{number}", "p", "1") for number in range(16)]
        for number in range(4):
            queue.open_batch(step_batch(number), step_tickets(config, problems, "r", number)[:2])
        for version in (0, 2):
            publish_policy(config.policies, version, WEIGHTS, "r")
            queue.open_batch(evaluation_batch(version), evaluation_tickets(config, problems, "r", version))
        for claim in queue.claim("w", 8)[::2]:
            assert queue.commit(claim, trajectory(claim.ticket))
        resumed = Coordinator(config, queue)
        resumed.resume(step, None)
        return resumed

    return resume


def results(queue: Queue, step: int) -> int:
    return len(queue.arrivals(step_batch(step), block_seconds=0.01))


def test_later_steps_are_sampled_again_unless_the_run_is_deterministic(back, queue):
    back(1)
    assert [batch for batch in queue.open_batches() if batch.startswith("step")] == ["step-000001"]
    assert [results(queue, step) for step in range(4)] == [0, 1, 0, 0]


def test_a_deterministic_run_keeps_them_as_long_as_the_policies_are_the_same(back, queue):
    resumed = back(1, "run.deterministic=true")
    assert [results(queue, step) for step in range(4)] == [0, 1, 1, 1]
    resumed.publish(2, TensorStream.of(WEIGHTS))
    assert results(queue, 2) == 1
    resumed.publish(2, TensorStream.of({"w": torch.zeros(4)}))
    assert [results(queue, step) for step in range(4)] == [0, 1, 0, 1]


def test_steps_that_were_opened_early_are_sampled_again_from_the_policy_of_the_checkpoint(back, queue):
    """Some of their trajectories may come from policies after the checkpoint."""
    resumed = back(1, "run.max_staleness=1")
    assert [results(queue, step) for step in range(4)] == [0, 1, 0, 0]
    resumed.publish(1, TensorStream.of(WEIGHTS))
    problems = [Problem(f"p1-{number}", "p", "1") for number in range(16)]
    resumed.open_step(2, step_tickets(resumed._config, problems, "r", 2, oldest=1), 1)
    ticket = queue.claim("w", 99)[-1].ticket
    assert (ticket.batch, ticket.policy_version, ticket.newer_policy) == ("step-000002", 1, True)
    assert ticket.policy_sha256 == published_sha256(resumed._config.policies, 1)


def test_a_deterministic_run_keeps_early_steps_while_their_policy_exists(back, queue, tmp_path):
    """Steps 1 and 2 are incomplete; step 2 is sampled from policy 1, which is published again."""
    resumed = back(1, "run.deterministic=true", "run.max_staleness=1")
    assert [results(queue, step) for step in range(4)] == [0, 1, 1, 1]
    policy_dir(tmp_path / "back" / "policies", 0).rename(tmp_path / "lost")
    resumed.resume(1, None)
    assert [results(queue, step) for step in range(4)] == [0, 0, 1, 1]


def test_other_weights_of_a_policy_do_not_drop_a_step_that_this_process_has_opened(back, queue):
    resumed = back(1, "run.deterministic=true", "run.max_staleness=1")
    resumed.open_step(2, [], 1)
    resumed.publish(2, TensorStream.of({"w": torch.zeros(4)}))
    assert [results(queue, step) for step in range(4)] == [0, 1, 1, 0]


def test_a_policy_that_a_rollout_cannot_read_is_published_whole(back, queue, tmp_path, caplog):
    resumed, policies = back(1), tmp_path / "back" / "policies"
    many = torch.zeros(64, dtype=torch.bfloat16)
    for version in (1, 2):
        many[version] = version
        resumed.publish(version, TensorStream.of({"w": many}))
    assert read_manifest(policies, 2).is_delta
    queue.request_policy(2)
    queue.request_policy(1)
    assert list(resumed._answer_requests(iter([None]))) == [None]
    assert not read_manifest(policies, 2).is_delta
    assert torch.equal(load_policy(FileReader(policies).fetch(2).directory)["w"], many)
    assert "policy 1 was asked for by a rollout, but is not kept" in caplog.text


def test_trajectories_stay_until_a_durable_checkpoint_contains_their_step(back, queue):
    resumed = back(1, "run.deterministic=true")
    resumed.checkpoint_durable(Durable(step=3, seconds=1.0))
    assert [results(queue, step) for step in range(4)] == [0, 0, 0, 1]


def test_an_evaluation_whose_policy_was_damaged_is_dropped_with_a_warning(back, queue, tmp_path, caplog):
    """A power failure may damage policies, which are not synced. That of the checkpoint is published again."""
    resumed = back(2)
    assert [b for b in queue.open_batches() if b.startswith("eval")] == ["eval-000000", "eval-000002"]
    for version in (0, 2):
        (policy_dir(tmp_path / "back" / "policies", version) / "model.safetensors").write_bytes(b"")
    resumed._evaluations.resume(2)
    assert [b for b in queue.open_batches() if b.startswith("eval")] == ["eval-000002"]
    assert "the evaluation of policy 0 is dropped" in caplog.text
