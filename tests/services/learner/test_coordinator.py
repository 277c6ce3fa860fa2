"""A learner that is back after a crash: what it keeps of the steps that its checkpoint does not contain."""

import json
import logging
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calopd.config import load_config
from calopd.core.errors import PolicyError
from calopd.core.types import Problem, Trajectory
from calopd.rundir.checkpoints import Record
from calopd.rundir.policies import load_policy, policy_dir, publish_policy, published_sha256, read_manifest
from calopd.rundir.policy_reader import FileReader
from calopd.rundir.run_id import ensure_run_id
from calopd.rundir.tensor_files import TensorStream
from calopd.transport.queue import TEACHER, Claim, Queue, arrived_indices
from services.learner import coordinator
from services.learner.batching import PolicyWanted
from services.learner.checkpoint import Durable
from services.learner.coordinator import Coordinator
from services.learner.tickets import evaluation_batch, evaluation_tickets, step_batch, step_tickets
from tests.transport.test_redis_queue import trajectory

WEIGHTS = {"w": torch.ones(4)}
with tempfile.TemporaryDirectory() as folder:
    SHA256 = publish_policy(Path(folder), 0, WEIGHTS, "r")
PROBLEMS = [Problem(f"p1-{number}", "p", "1") for number in range(16)]


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
        for number in range(4):
            tickets = step_tickets(config, PROBLEMS, "r", number)[:2]
            queue.open_batch(step_batch(number), [replace(ticket, policy_sha256=SHA256) for ticket in tickets])
        for version in (0, 2):
            assert publish_policy(config.policies, version, WEIGHTS, "r") == SHA256
            tickets = evaluation_tickets(config, PROBLEMS, "r", version, SHA256)
            queue.open_batch(evaluation_batch(version), tickets)
        for claim in queue.claim("w", 8)[::2]:
            assert queue.commit(*sampled_from(claim, None))
        resumed = Coordinator(config, queue)
        resumed.resume(Record(step=step), None)
        return resumed

    return resume


def results(queue: Queue, step: int) -> int:
    return len(arrived_indices(queue.arrivals(step_batch(step), block_seconds=0.01)))


def test_later_steps_are_sampled_again_unless_the_run_is_deterministic(back, queue):
    back(1)
    assert [batch for batch in queue.open_batches() if batch.startswith("step")] == ["step-000001"]
    assert [results(queue, step) for step in range(4)] == [0, 1, 0, 0]


def open_again(resumed: Coordinator, step: int) -> None:
    resumed.open_step(step, step_tickets(resumed._config, PROBLEMS, "r", step)[:2], 1)


def test_a_deterministic_run_keeps_them_as_long_as_the_policies_are_the_same(back, queue):
    resumed = back(1, "run.deterministic=true")
    assert [results(queue, step) for step in range(4)] == [0, 1, 1, 1]
    resumed.publish(2, TensorStream.of(WEIGHTS))
    open_again(resumed, 2)
    assert results(queue, 2) == 1
    resumed.publish(3, TensorStream.of({"w": torch.zeros(4)}))
    open_again(resumed, 3)
    assert [results(queue, step) for step in range(4)] == [0, 1, 1, 0]


def test_a_step_whose_policy_has_other_weights_than_before_the_crash_is_sampled_again(back, queue, tmp_path):
    """The run is resumed with another learning rate. The policies are gone, as those on a tmpfs are."""
    resumed = back(1, "run.deterministic=true")
    shutil.rmtree(tmp_path / "back" / "policies")
    late = queue.claim_abandoned("slow", 99, idle_seconds=0)[-1]
    assert late.ticket.batch == "step-000003"
    resumed.publish(3, TensorStream.of({"w": torch.zeros(4)}))
    open_again(resumed, 3)
    assert results(queue, 3) == 0
    assert not queue.commit(late, trajectory(late.ticket)), "a result from before the release"
    again = [claim.ticket for claim in queue.claim("w", 99)]
    assert {ticket.policy_sha256 for ticket in again} == {published_sha256(resumed._config.policies, 3)}
    assert {ticket.epoch > late.ticket.epoch for ticket in again} == {True}


def test_results_of_other_weights_are_sampled_again_instead_of_learned_from(back, queue, caplog):
    resumed = back(1)
    resumed.publish(1, TensorStream.of({"w": torch.zeros(4)}))
    rounds = resumed.open_step(1, step_tickets(resumed._config, PROBLEMS, "r", 1)[:2], 1)
    first = queue.claim("w", 99)
    assert len(first) == 2, "the policy has other weights than before the crash"
    ours, theirs = (sampled_from(claim, sha) for claim, sha in zip(first, (None, "other"), strict=True))
    assert queue.commit(*ours)
    assert queue.commit(*theirs)
    assert next(rounds) == [[ours[0].ticket.index]]
    assert "1 results of step-000001 are not of its policy" in caplog.text
    (again,) = queue.claim("w", 99)
    assert again.ticket.index == theirs[0].ticket.index
    assert queue.commit(*sampled_from(again, None))
    assert [found for found in rounds if found] == [[[again.ticket.index]]]


def sampled_from(claim: Claim, sha256: str | None, version: int | None = None) -> tuple[Claim, Trajectory]:
    """The claim with its result, by default of the policy that the ticket names."""
    done, ticket = trajectory(claim.ticket), claim.ticket
    sha256 = ticket.policy_sha256 if sha256 is None else sha256
    version = ticket.policy_version if version is None else version
    return claim, replace(done, sample=replace(done.sample, policy_version=version, policy_sha256=sha256))


def test_dead_letters_are_issued_again_when_the_learner_is_back(back, queue, caplog):
    resumed = back(1, "run.deterministic=true")
    (dead, *_) = queue.claim_abandoned("w", 99, idle_seconds=0)
    assert dead.ticket.batch == "step-000001"
    queue.dead_letter(dead, "a file was missing")
    assert results(queue, 1) == 2
    resumed.resume(Record(step=1), None)
    assert f"1 dead letters are issued again: {dead.ticket.id}" in caplog.text
    assert (results(queue, 1), queue.dead_letters()) == (1, [])
    assert [claim.ticket.index for claim in queue.claim("w", 99)] == [dead.ticket.index]


def test_a_step_that_was_opened_early_keeps_what_was_sampled_up_to_the_checkpoint(back, queue, caplog):
    """Step 2 was opened with policy 1, that of the checkpoint. One of its responses is of policy 2, which is gone."""
    resumed = back(1, "run.max_staleness=1")
    assert [results(queue, step) for step in range(4)] == [0, 1, 1, 0], "step 3 was opened with policy 2"
    later = queue.claim_abandoned("w", 99, idle_seconds=0)[-1]
    assert later.ticket.batch == "step-000002"
    assert queue.commit(*sampled_from(later, "of policy 2", version=2))
    resumed.resume(Record(step=1, policies={"0": SHA256, "1": SHA256}), None)
    resumed.publish(1, TensorStream.of(WEIGHTS))
    open_again(resumed, 1)
    open_again(resumed, 2)
    assert [results(queue, step) for step in (1, 2)] == [1, 1]
    assert "1 results of step 3 are of policies after the checkpoint" in caplog.text
    (again,) = queue.claim("w", 99)
    assert again.ticket == replace(later.ticket, epoch=again.ticket.epoch), "at once, from the newest policy"
    assert again.ticket.newer_policy


@pytest.mark.parametrize("lost", [False, True])
def test_a_deterministic_run_keeps_early_steps_while_their_policy_exists(back, queue, tmp_path, lost):
    """Step 1 is incomplete, and was opened early for policy 0."""
    resumed = back(1, "run.deterministic=true", "run.max_staleness=1")
    if lost:
        policy_dir(tmp_path / "back" / "policies", 0).rename(tmp_path / "lost")
    resumed.resume(Record(step=1, policies={"0": SHA256}), None)
    resumed.publish(1, TensorStream.of({"w": torch.zeros(4)}))
    open_again(resumed, 1)
    assert results(queue, 1) == (0 if lost else 1)
    claims = queue.claim("w", 99) or queue.claim_abandoned("w", 1, idle_seconds=0)
    assert claims[0].ticket.policy_version == (1 if lost else 0)


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


def test_a_step_whose_policy_nobody_has_is_sampled_from_that_of_the_checkpoint(back, queue, tmp_path):
    """Step 2 of a deterministic run is to be sampled from policy 1, which is damaged after policy 2 was published."""
    record, staleness = Record(step=1, policies={"0": SHA256}), ("run.deterministic=true", "run.max_staleness=1")
    resumed = back(1, *staleness)
    resumed.resume(record, None)
    resumed.publish(1, TensorStream.of(WEIGHTS))
    open_again(resumed, 2)
    resumed.publish(2, TensorStream.of({"w": torch.zeros(8)}))
    (policy_dir(resumed._config.policies, 1) / "model.safetensors").write_bytes(b"damaged")
    queue.request_policy(1)
    with pytest.raises(PolicyError, match="policy 1 is lost or damaged, and step 3 is to be sampled from it"):
        list(resumed._answer_requests(iter([None])))
    resumed.resume(replace(record, step=2, policies={"1": SHA256}), None)
    resumed.publish(2, TensorStream.of({"w": torch.zeros(8)}))
    open_again(resumed, 2)
    assert {claim.ticket.policy_version for claim in queue.claim("w", 99)} == {2}


def test_an_evaluation_of_a_policy_that_nobody_has_is_dropped(back, queue, caplog):
    resumed = back(2)
    queue.request_policy(0)
    assert list(resumed._answer_requests(iter([None]))) == [None]
    assert [b for b in queue.open_batches() if b.startswith("eval")] == ["eval-000002"]
    assert "the evaluation of policy 0 is dropped" in caplog.text
    assert resumed._evaluations.needed == {2}


def test_a_damaged_policy_heals_also_if_none_is_kept_in_memory(back, queue, tmp_path):
    resumed, policies = back(1, "learner.snapshot_every=1"), tmp_path / "back" / "policies"
    resumed.publish(1, TensorStream.of(WEIGHTS))
    (policy_dir(policies, 1) / "model.safetensors").write_bytes(b"damaged")
    queue.request_policy(1)
    assert list(resumed._answer_requests(iter([None]))) == [PolicyWanted(1), None]
    resumed.publish(1, TensorStream.of(WEIGHTS))
    assert FileReader(policies).fetch(1, SHA256).sha256 == SHA256


def test_a_server_that_lost_its_data_does_not_pin_another_teacher(back, queue, tmp_path):
    resumed = back(1)
    (tmp_path / "back" / "teacher.json").write_text("the first teacher")
    resumed.resume(Record(step=1), None)
    assert queue.pin(TEACHER, b"another teacher") == b"the first teacher"


def test_trajectories_stay_until_a_durable_checkpoint_contains_their_step(back, queue):
    resumed = back(1, "run.deterministic=true")
    resumed.checkpoint_durable(Durable(step=3, seconds=1.0))
    assert [results(queue, step) for step in range(4)] == [0, 0, 0, 1]


@pytest.mark.parametrize("fault", ["a dead letter", "a dead letter that was seen", "a damaged result"])
def test_an_evaluation_waits_for_tickets_that_are_issued_again(back, queue, fault):
    resumed = back(2)
    evaluations, file = resumed._evaluations, resumed._run_dir.evaluation(0)
    first, *others = (c for c in queue.claim_evaluations("w", 999) if c.ticket.batch == evaluation_batch(0))
    if fault == "a damaged result":
        queue.commit(first, trajectory(first.ticket))
        queue.client.hset(f"calopd:r:results:{evaluation_batch(0)}", str(first.ticket.index), b"\xff\xff")
    else:
        queue.dead_letter(first, "a file was missing")
    if fault == "a dead letter that was seen":
        evaluations.collect()
    for claim in others:
        queue.commit(claim, trajectory(claim.ticket))
    resumed.resume(Record(step=2), None)
    if fault != "a dead letter that was seen":
        evaluations.collect()
        assert not file.exists()
    (again,) = queue.claim_evaluations("w", 999)
    assert again.ticket == replace(first.ticket, epoch=again.ticket.epoch)
    assert queue.commit(again, trajectory(again.ticket))
    evaluations.collect()
    assert json.loads(file.read_text())["missing"] == 0


def test_an_evaluation_whose_policy_was_damaged_is_dropped_with_a_warning(back, queue, tmp_path, caplog):
    """A power failure may damage policies, which are not synced. That of the checkpoint is published again."""
    resumed = back(2)
    assert [b for b in queue.open_batches() if b.startswith("eval")] == ["eval-000000", "eval-000002"]
    for version in (0, 2):
        (policy_dir(tmp_path / "back" / "policies", version) / "model.safetensors").write_bytes(b"")
    resumed._evaluations.resume(2)
    assert [b for b in queue.open_batches() if b.startswith("eval")] == ["eval-000002"]
    assert "the evaluation of policy 0 is dropped" in caplog.text


def test_the_last_line_of_the_log_says_that_the_run_is_complete(back, caplog):
    resumed = back(4)
    run_dir = resumed._config.run_dir
    run_dir.metrics.write_text(json.dumps({"step": 0, "retained_ratio": 0.5, "zero_ratio": None}) + "\n")
    with caplog.at_level(logging.INFO):
        resumed.finish(Record(step=8))
    assert caplog.messages[-1] == f"the run is complete: 8 steps; the trained student is in {run_dir.model}"
    assert json.loads(run_dir.summary.read_text())["steps"] == 8
