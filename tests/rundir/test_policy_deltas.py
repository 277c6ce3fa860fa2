"""Policies as deltas: exact bytes after any chain, replicas that are late, files that are damaged."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from calopd.core.errors import PolicyError
from calopd.rundir.digests import file_digest
from calopd.rundir.policies import (
    DELTA,
    MANIFEST,
    WEIGHTS,
    is_intact,
    load_policy,
    policy_dir,
    policy_versions,
    prune_policies,
    read_manifest,
)
from calopd.rundir.policy_deltas import apply_delta, encode_piece
from calopd.rundir.policy_publisher import FilePublisher
from calopd.rundir.policy_reader import FileReader
from calopd.rundir.policy_transport import Published
from calopd.rundir.tensor_files import TensorStream, write_tensors

Tensors = dict[str, torch.Tensor]


def student(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(size, generator=draw).to(dtype) for name, size in (("a", 4_096), ("b", 511))}
    return weights | {"counter": torch.arange(3), "flag": torch.tensor([True, False, True])}


def trained(tensors: Tensors, seed: int, share: float = 0.01) -> Tensors:
    """The tensors with a share of the values moved to a neighbouring one."""
    draw = np.random.default_rng(seed)
    moved = {name: tensor.clone() for name, tensor in tensors.items()}
    for name in ("a", "b"):
        view = moved[name].view(torch.int16)
        view[torch.from_numpy(draw.random(len(view)) < share)] += 1
    return moved


def publish(publisher: FilePublisher, version: int, tensors: Tensors) -> Published:
    return publisher.publish(version, TensorStream.of(tensors))


def same(reader: FileReader, version: int, tensors: Tensors) -> bool:
    """Whether a version is read with exactly these bytes."""
    file = reader.fetch(version).directory / WEIGHTS
    with TemporaryDirectory() as folder:
        return file_digest(file) == write_tensors(Path(folder) / WEIGHTS, TensorStream.of(tensors))


@pytest.fixture
def history(tmp_path) -> tuple[FilePublisher, list[Tensors]]:
    """Versions 0 to 5 of a run; a snapshot every four: 0 and 4."""
    publisher, versions = FilePublisher(tmp_path, "r", 4), [student()]
    for seed in range(5):
        versions.append(trained(versions[-1], seed))
    kinds = [publish(publisher, version, tensors).is_delta for version, tensors in enumerate(versions)]
    assert kinds == [False, True, True, True, False, True]
    return publisher, versions


@given(st.binary(max_size=400), st.data())
def test_any_two_pieces(old, data):
    new = data.draw(st.binary(min_size=len(old), max_size=len(old)))
    a, b = (np.frombuffer(raw, np.uint8) for raw in (old, new))
    target = np.concatenate((np.zeros(2, np.uint8), a, np.zeros(3, np.uint8)))
    apply_delta(target, encode_piece(2, a, b))
    assert target.tobytes() == bytes(2) + new + bytes(3)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([torch.bfloat16, torch.float32]),
    st.lists(st.tuples(st.integers(0, 99), st.sampled_from([0.0, 0.001, 0.05, 0.3, 1.0])), max_size=8),
    st.integers(1, 5),
    st.sets(st.integers(0, 8)),
)
def test_exact_bytes_after_any_chain_whatever_a_replica_misses(dtype, steps, every, missed):
    with TemporaryDirectory() as name:
        policies, tensors = Path(name), student(dtype=dtype)
        publisher, follower = FilePublisher(policies, "r", every), FileReader(policies)
        for version, (seed, share) in enumerate([(0, 0.0), *steps]):
            tensors = trained(tensors, seed, share)
            publish(publisher, version, tensors)
            if version not in missed:
                assert same(follower, version, tensors)
        assert same(FileReader(policies), version, tensors)


def test_few_changes_take_few_bytes_and_many_a_snapshot(tmp_path):
    publisher, tensors = FilePublisher(tmp_path, "r", 10), student()
    publish(publisher, 0, tensors)
    few = publish(publisher, 1, trained(tensors, 1, share=0.005))
    assert few.is_delta
    assert few.bytes < 400
    moved = trained(tensors, 2, share=0.9)
    assert not publish(publisher, 2, moved).is_delta
    assert publish(publisher, 3, moved).bytes == 0


def test_other_tensors_are_a_snapshot(tmp_path):
    publisher, tensors = FilePublisher(tmp_path, "r", 10), student()
    publish(publisher, 0, tensors)
    others: list[Tensors] = [{"new": torch.ones(1)}, {}, {"a": tensors["a"][:-1]}, {"b": tensors["b"].float()}]
    for version, other in enumerate(others, 1):
        changed = tensors | other
        assert not publish(publisher, version, changed).is_delta
        assert same(FileReader(tmp_path), version, changed)


def test_every_version_is_read_in_any_order(tmp_path, history):
    _, versions = history
    reader = FileReader(tmp_path)
    for version in (3, 1, 1, 5, 4, 0, 2, 5):
        assert same(reader, version, versions[version])


def test_a_copy_is_brought_up_to_date_without_the_snapshot(tmp_path, history):
    _, versions = history
    reader = FileReader(tmp_path)
    assert same(reader, 1, versions[1])
    (policy_dir(tmp_path, 0) / WEIGHTS).unlink()
    assert same(reader, 3, versions[3])
    with pytest.raises(PolicyError, match="cannot copy the snapshot"):
        FileReader(tmp_path).fetch(3)


def test_the_copy_of_a_killed_replica_is_removed_by_the_next_one(tmp_path, history):
    cache = tmp_path / "cache"
    alive = FileReader(tmp_path, cache)
    copy = alive.fetch(5).directory
    abandoned = cache / "calopd-policy-killed"
    abandoned.mkdir()
    (abandoned / WEIGHTS).write_bytes(b"1")
    for folder in (copy, abandoned):
        os.utime(folder, (0, 0))
    FileReader(tmp_path, cache)
    assert [folder for folder in cache.iterdir() if folder.is_dir()] == [copy]
    assert alive.fetch(5).directory == copy


def damage(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda policies: damage(policy_dir(policies, 5) / DELTA),
        lambda policies: damage(policy_dir(policies, 4) / WEIGHTS),
        lambda policies: (policy_dir(policies, 5) / DELTA).write_bytes(b""),
        lambda policies: (policy_dir(policies, 5) / DELTA).unlink(),
        lambda policies: (policy_dir(policies, 5) / MANIFEST).write_text("{"),
        lambda policies: (policy_dir(policies, 5) / MANIFEST).write_text('{"version": 5}'),
        lambda policies: (policy_dir(policies, 4) / MANIFEST).unlink(),
    ],
)
def test_what_is_damaged_is_refused_until_the_learner_publishes_it_whole(
    tmp_path, history, break_it: Callable[[Path], object]
):
    publisher, versions = history
    reader = FileReader(tmp_path)
    break_it(tmp_path)
    assert not is_intact(tmp_path, 5)
    with pytest.raises(PolicyError):
        reader.fetch(5)
    assert not publisher.publish_whole(4), "only the last policy is kept"
    assert publisher.publish_whole(5)
    assert same(reader, 5, versions[5])
    assert publish(publisher, 6, trained(versions[5], 9)).is_delta
    assert same(reader, 6, trained(versions[5], 9))


def test_a_copy_that_went_wrong_is_built_again_from_the_snapshot(tmp_path, history):
    _, versions = history
    reader = FileReader(tmp_path)
    damage(reader.fetch(2).directory / WEIGHTS)
    assert same(reader, 3, versions[3])


def test_a_delta_to_other_weights_is_refused(tmp_path, history):
    """A restarted learner has published policy 2 again, with other weights than policy 3 is a delta to."""
    publish(FilePublisher(tmp_path, "r", 4), 2, student(7))
    with pytest.raises(PolicyError, match="delta to other weights"):
        FileReader(tmp_path).fetch(3)
    assert same(FileReader(tmp_path), 2, student(7))


def test_a_policy_with_another_digest_than_announced_is_refused(tmp_path, history):
    reader = FileReader(tmp_path)
    assert reader.fetch(3, read_manifest(tmp_path, 3).sha256)
    with pytest.raises(PolicyError, match="not the one announced"):
        reader.fetch(3, "0" * 64)


def test_a_resumed_learner_replaces_a_delta_by_a_snapshot_of_the_same_bytes(tmp_path, history):
    _, versions = history
    before = read_manifest(tmp_path, 3)
    resumed = FilePublisher(tmp_path, "r", 4)
    assert publish(resumed, 3, versions[3]) == Published(
        before.sha256, (policy_dir(tmp_path, 3) / WEIGHTS).stat().st_size, is_delta=False
    )
    assert same(FileReader(tmp_path), 3, versions[3])
    assert publish(resumed, 4, versions[4]).is_delta
    assert same(FileReader(tmp_path), 5, versions[5])


def test_a_publication_that_fails_is_followed_by_a_snapshot(tmp_path, history, monkeypatch):
    """The bytes in memory are then those of a policy that nobody has."""
    publisher, versions = history
    monkeypatch.setattr(FilePublisher, "_write_delta", lambda *arguments: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        publish(publisher, 6, trained(versions[5], 8))
    assert policy_versions(tmp_path) == [0, 1, 2, 3, 4, 5]
    last = trained(versions[5], 9)
    assert not publish(publisher, 7, last).is_delta
    assert same(FileReader(tmp_path), 7, last)


def test_pruning_keeps_what_the_kept_ones_are_deltas_to(tmp_path, history):
    _, versions = history
    prune_policies(tmp_path, 5, keep=2, needed={2})
    assert policy_versions(tmp_path) == [0, 1, 2, 4, 5]
    assert same(FileReader(tmp_path), 2, versions[2])
    prune_policies(tmp_path, 5, keep=1)
    assert policy_versions(tmp_path) == [4, 5]
    reader = FileReader(tmp_path)
    assert torch.equal(load_policy(reader.fetch(5).directory)["a"], versions[5]["a"])
    (policy_dir(tmp_path, 4) / MANIFEST).write_text("{")
    prune_policies(tmp_path, 5, keep=1)
    assert 5 in policy_versions(tmp_path)


@pytest.mark.parametrize(
    "raw", [b"x", b"\0" * 20, b"\0" * 8 + b"\xff" * 12, b"\2" + b"\0" * 7 + b"\4\0\0\0\1\0\0\0\1\0\0\0x"]
)
def test_a_delta_that_is_no_delta_changes_nothing_outside_of_the_policy(raw):
    target = np.zeros(8, np.uint8)
    with pytest.raises(PolicyError):
        apply_delta(target, raw)
    assert not target.any()
