import pytest
import torch

from calopd.core.errors import PolicyError
from calopd.rundir.policies import load_policy, policy_dir, prune_policies, publish_policy
from calopd.rundir.policy_reader import FileReader


def test_a_published_policy_is_verified_and_comes_back(tmp_path):
    publish_policy(tmp_path, 3, {"w": torch.arange(6.0).reshape(2, 3).T}, "r")
    assert torch.equal(load_policy(FileReader(tmp_path).fetch(3).directory)["w"], torch.arange(6.0).reshape(2, 3).T)
    publish_policy(tmp_path, 3, {"w": torch.ones(1)}, "r")
    assert torch.equal(load_policy(FileReader(tmp_path).fetch(3).directory)["w"], torch.ones(1))


def test_the_same_bytes_stay_where_they_are(tmp_path):
    """A replica may be reading them."""
    first = publish_policy(tmp_path, 3, {"w": torch.ones(4)}, "r")
    seen = (policy_dir(tmp_path, 3) / "model.safetensors").stat().st_ino
    assert publish_policy(tmp_path, 3, {"w": torch.ones(4)}, "r") == first == FileReader(tmp_path).fetch(3).sha256
    assert (policy_dir(tmp_path, 3) / "model.safetensors").stat().st_ino == seen


def test_one_changed_byte_is_refused(tmp_path):
    publish_policy(tmp_path, 0, {"w": torch.zeros(8)}, "r")
    file = policy_dir(tmp_path, 0) / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(PolicyError, match="does not match its manifest"):
        FileReader(tmp_path).fetch(0)


def test_a_policy_under_another_version_is_refused(tmp_path):
    publish_policy(tmp_path, 1, {"w": torch.zeros(8)}, "r")
    policy_dir(tmp_path, 1).rename(policy_dir(tmp_path, 2))
    with pytest.raises(PolicyError, match="does not match"):
        FileReader(tmp_path).fetch(2)
    with pytest.raises(PolicyError, match="no policy at"):
        FileReader(tmp_path).fetch(1)


def test_a_version_that_is_no_whole_number_is_refused(tmp_path):
    publish_policy(tmp_path, 1, {"w": torch.zeros(8)}, "r")
    file = policy_dir(tmp_path, 1) / "manifest.json"
    file.write_text(file.read_text().replace('"version": 1', '"version": 1.0'))
    with pytest.raises(PolicyError, match="is damaged"):
        FileReader(tmp_path).fetch(1)


@pytest.mark.parametrize("base", ["0.0", "true", "[" * 3_000, "9" * 5_000, '"0"'])
def test_a_damaged_manifest_is_refused(tmp_path, base):
    publish_policy(tmp_path, 1, {"w": torch.zeros(8)}, "r")
    file = policy_dir(tmp_path, 1) / "manifest.json"
    file.write_text(file.read_text().replace('"base_version": null', f'"base_version": {base}'))
    with pytest.raises(PolicyError, match="is damaged"):
        FileReader(tmp_path).fetch(1)


def test_the_last_ones_are_kept(tmp_path):
    for version in range(5):
        publish_policy(tmp_path, version, {"w": torch.zeros(1)}, "r")
        prune_policies(tmp_path, version, keep=2)
    assert sorted(d.name for d in tmp_path.iterdir()) == ["000003", "000004"]
