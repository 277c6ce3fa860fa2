import hashlib
import os
import stat
import weakref

import pytest
import torch
from safetensors.torch import load_file

from calopd.rundir import digests
from calopd.rundir.digests import file_digest, sha256
from calopd.rundir.policies import load_policy, policy_dir, publish_policy
from calopd.rundir.policy_reader import FileReader
from calopd.rundir.tensor_files import TensorStream, write_tensors


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "half": torch.randn(3, 5).bfloat16(),
        "counts": torch.arange(7),
        "transposed": torch.randn(4, 6).T,
        "scalar": torch.tensor(2.5),
        "nothing": torch.empty(0, 3),
    }


def test_the_safetensors_library_reads_what_was_written(tmp_path, tensors):
    write_tensors(tmp_path / "t", TensorStream.of(tensors))
    read = load_file(tmp_path / "t")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor), name


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
def test_the_digest_formed_while_writing_is_that_of_the_file(tmp_path, tensors, monkeypatch, block):
    monkeypatch.setattr(digests, "BLOCK_BYTES", block)
    digest = write_tensors(tmp_path / "t", TensorStream.of(tensors))
    content = (tmp_path / "t").read_bytes()
    blocks = [content[start : start + block] for start in range(0, len(content), block)]
    assert digest == hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in blocks)).hexdigest()
    assert digest == file_digest(tmp_path / "t")
    assert sha256(tmp_path / "t") == hashlib.sha256(content).hexdigest()


def test_one_tensor_is_in_memory_at_a_time(tmp_path, monkeypatch):
    """Small blocks, so that none waits for the bytes of the next tensor."""
    monkeypatch.setattr(digests, "BLOCK_BYTES", 64)
    specs = TensorStream.of({str(i): torch.zeros(4096) for i in range(8)}).specs
    computed: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def compute():
        for _ in specs:
            alive.append(sum(tensor() is not None for tensor in computed))
            tensor = torch.zeros(4096)
            computed.append(weakref.ref(tensor))
            yield tensor

    write_tensors(tmp_path / "t", TensorStream(specs, compute()))
    assert max(alive) <= 2


def test_a_tensor_that_is_not_as_announced_is_an_error(tmp_path):
    specs = TensorStream.of({"w": torch.zeros(4)}).specs
    with pytest.raises(AssertionError):
        write_tensors(tmp_path / "t", TensorStream(specs, [torch.zeros(4).bfloat16()]))


def test_a_policy_damaged_by_a_power_failure_is_replaced_by_the_same_policy(tmp_path):
    """Policies are not synced: the manifest may have survived without the weights."""
    publish_policy(tmp_path, 2, {"w": torch.ones(64)}, "r")
    file = policy_dir(tmp_path, 2) / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    publish_policy(tmp_path, 2, {"w": torch.ones(64)}, "r")
    assert torch.equal(load_policy(FileReader(tmp_path).fetch(2).directory)["w"], torch.ones(64))


def test_others_may_read_a_policy_and_its_folder(tmp_path):
    """Rollouts of another user read the policies on a shared volume."""
    before = os.umask(0o022)
    try:
        publish_policy(tmp_path, 1, {"a": torch.ones(2)}, "run")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in policy_dir(tmp_path, 1).iterdir()}
    assert set(modes.values()) == {0o644}
    assert stat.S_IMODE(policy_dir(tmp_path, 1).stat().st_mode) == 0o755
