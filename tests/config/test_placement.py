"""[resources]: the GPUs of every process, and what is refused before anything starts."""

from pathlib import Path

import pytest

from calopd.config import Config, check_resumable, load_config, visible_gpus
from calopd.config.ports import local_ports
from calopd.config.visible_gpus import check_placement, gpu_environment
from calopd.core.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
DEMO = CONFIGS / "demo.toml"
THREE = ("resources.teacher=1", "resources.rollout=1", "resources.learner=1")


def demo(*settings: str) -> Config:
    return load_config(DEMO, settings, {})


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a driver without GPUs, and no variable that hides some."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(visible_gpus, "DRIVER_GPUS", tmp_path)
    return tmp_path


def test_counts_are_laid_out_in_the_order_of_the_roles() -> None:
    config = demo("resources.teacher=2", "resources.rollout=4", "resources.learner=2")
    assert config.placement.teachers == ((0,), (1,))
    assert config.placement.rollouts == ((2,), (3,), (4,), (5,))
    assert config.placement.learner == (6, 7)
    assert (config.teacher.replicas, config.rollout.replicas, config.learner.ranks) == (2, 4, 2)
    assert config.teacher_addresses == ("127.0.0.1:50051", "127.0.0.1:50052")


def test_counts_leave_out_named_gpus_and_named_ones_may_be_shared() -> None:
    config = demo("resources.teacher=[1, 0]", "resources.rollout=2", "resources.learner=[0]")
    assert config.placement.teachers == ((1,), (0,))
    assert config.placement.rollouts == ((2,), (3,))
    assert config.placement.learner == (0,)
    assert config.placement.gpus == (0, 1, 2, 3)


def test_a_replica_has_the_gpus_that_it_is_split_over() -> None:
    parallel = ("teacher.engine=vllm", "teacher.tensor_parallel_size=2", "rollout.tensor_parallel_size=2")
    config = demo("resources.teacher=4", "resources.rollout=[6, 7]", *parallel)
    assert config.placement.teachers == ((0, 1), (2, 3))
    assert config.placement.rollouts == ((6, 7),)
    assert (config.teacher.replicas, config.rollout.replicas) == (2, 1)


def test_without_resources_nothing_is_placed_and_zero_undoes_a_placement() -> None:
    assert demo().placement.gpus == ()
    assert demo("rollout.replicas=2", "teacher.replicas=3").teacher.replicas == 3
    undone = demo("resources.learner=0", "learner.ranks=3")
    assert (undone.placement.learner, undone.learner.ranks) == ((), 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["resources.teacher=two"], r"resources\.teacher: expected a number of GPUs .* not 'two'"),
        (["resources.rollout=-1"], r"resources\.rollout: expected a number of GPUs .* not -1"),
        (["resources.learner=2147483648"], r"resources\.learner: 2147483648 is more than the 1024 GPUs"),
        (["resources.learner=[0, 0]"], r"resources\.learner: \[0, 0\] names a GPU twice"),
        (["resources.learner=2", "learner.ranks=3"], r"learner\.ranks is 3, .* GPUs for 2: leave out learner\.ranks"),
        (["resources.teacher=2", "teacher.replicas=1"], r"teacher\.replicas is 1, .* GPUs for 2"),
        (
            ["resources.rollout=3", "rollout.tensor_parallel_size=2"],
            r"resources\.rollout has 3 GPUs, which rollout\.tensor_parallel_size = 2 does not divide: use a",
        ),
        (
            ["resources.host_gpus=4", "resources.teacher=2", "resources.learner=3"],
            r"beyond the 4 GPUs of resources\.host_gpus \(teacher \[0, 1\], learner \[2, 3, 4\]\)",
        ),
        (["resources.teacher=1", "teacher.device=cuda:1"], r"teacher\.device is 'cuda:1'.*leave it out"),
    ],
)
def test_contradictions_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        demo(*settings)


def test_a_host_with_too_few_gpus_is_refused(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bus in ("0000:17:00.0", "0000:65:00.0"):
        (host / bus).mkdir()
    with pytest.raises(ConfigError, match=r"resources uses the GPUs 0, 1, 2, but 2 are visible here: give the roles"):
        check_placement(demo(*THREE))
    check_placement(demo(*THREE, "teacher.device=cpu", "rollout.device=cpu", "learner.device=cpu"))
    (host / "0000:ca:00.0").mkdir()
    check_placement(demo(*THREE))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    with pytest.raises(ConfigError, match=r"2 are visible here \(CUDA_VISIBLE_DEVICES=6,7\)"):
        check_placement(demo(*THREE))


def test_a_host_without_a_driver_is_not_judged(monkeypatch: pytest.MonkeyPatch, host: Path) -> None:
    monkeypatch.setattr(visible_gpus, "DRIVER_GPUS", host / "none")
    check_placement(demo(*THREE))


def test_a_role_without_gpus_beside_placed_ones_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"not the learner, .* set resources\.learner"):
        check_placement(demo("resources.teacher=1", "resources.rollout=1"))
    check_placement(demo("resources.teacher=1", "resources.rollout=1"), ("teacher", "rollout"))
    check_placement(demo("resources.rollout=1", "resources.learner=1", "teacher.addresses=['host:1']"))


def test_ids_count_the_visible_gpus(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_environment(()) == {}
    (host / "0000:17:00.0").mkdir()
    assert gpu_environment((0,)) == {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 5,GPU-8932f937")
    assert gpu_environment((2, 0)) == {"CUDA_VISIBLE_DEVICES": "GPU-8932f937,4"}
    with pytest.raises(ConfigError, match="resources uses the GPUs 0, 3, but 3 are visible here"):
        gpu_environment((3, 0))


def test_a_resumed_run_may_be_placed_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    saved = demo("resources.teacher=2", "resources.rollout=4", "resources.learner=2")
    file.write_text(saved.to_toml())
    assert load_config(file, environ={}) == saved
    wanted = load_config(file, ["resources.rollout=2", "resources.learner=4"], {})
    check_resumable(saved, wanted)
    assert (wanted.rollout.replicas, wanted.learner.ranks) == (2, 4)


def test_the_ports_of_all_replicas_are_free_of_one_another() -> None:
    config = demo("resources.teacher=2", "resources.rollout=4", "resources.learner=2")
    ports = local_ports(config)
    assert len(ports) == 2 * 2 + 4 + 2
    assert ports["teacher.port + 1"] == config.teacher.port + 1
    assert ports["teacher.metrics_port + 1"] == config.teacher.metrics_port + 1
    with pytest.raises(ConfigError, match=r"teacher\.metrics_port and teacher\.port \+ 1 are both 7001"):
        local_ports(demo("teacher.replicas=2", "teacher.port=7000", "teacher.metrics_port=7001"))
    with pytest.raises(ConfigError, match=r"rollout\.port \+ 1 is 65536, above the last port"):
        local_ports(demo("rollout.replicas=2", "rollout.port=65535"))
