"""TOML files that build on another one."""

from pathlib import Path

import pytest

from calopd.config import Config, load_config
from calopd.config.extends import read_layers
from calopd.core.errors import ConfigError
from tests.config.conftest import MINIMAL, ROOT

BASE = f"""{MINIMAL}
addresses = ["a:1", "b:1"]
[rollout]
max_tokens = 5
[method.contexts]
"hint+" = "It is right."
"hint-" = "It is wrong."
"""


def write(folder: Path, **files: str) -> Path:
    """Write NAME.toml files; the path of the first one."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return folder / f"{next(iter(files))}.toml"


def test_tables_are_merged_and_everything_else_is_replaced(tmp_path: Path) -> None:
    top = 'extends = "middle.toml"\n[teacher]\naddresses = ["c:1"]\n[method.contexts]\n"hint-" = "No."\n'
    middle = 'extends = "base.toml"\n[rollout]\nmax_tokens = 6\ntop_p = 0.5\n[run]\nname = "middle"\n'
    config = load_config(write(tmp_path, top=top, middle=middle, base=BASE), environ={})
    assert (config.teacher.path, config.teacher.addresses) == ("t", ("c:1",))
    assert (config.rollout.max_tokens, config.rollout.top_p, config.run.name) == (6, 0.5, "middle")
    assert config.method.contexts == {"hint+": "It is right.", "hint-": "No."}


def test_the_environment_and_set_come_last(tmp_path: Path) -> None:
    file = write(tmp_path, top='extends = "base.toml"\n[rollout]\nmax_tokens = 6\ntop_p = 0.5\n', base=BASE)
    config = load_config(file, ["rollout.top_p=0.7"], {"CALOPD__ROLLOUT__MAX_TOKENS": "8"})
    assert (config.rollout.max_tokens, config.rollout.top_p) == (8, 0.7)


def test_a_base_is_found_beside_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    write(tmp_path / "shared", base='extends = "lowest.toml"\n[run]\nname = "base"\n', lowest=BASE)
    file = write(tmp_path, top='extends = "shared/base.toml"\n')
    monkeypatch.chdir("/")
    assert load_config(file, environ={}).run.name == "base"


def test_the_saved_configuration_stands_alone(tmp_path: Path) -> None:
    config = load_config(ROOT / "configs" / "qwen3-30b-to-8b.toml", environ={})
    saved = tmp_path / "config.toml"
    saved.write_text(config.to_toml())
    (values,) = read_layers(saved)
    assert "extends" not in values
    assert "extends" not in config.to_toml()
    assert load_config(saved, environ={}) == config


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": 'extends = "a.toml"'}, r"a\.toml extends .*a\.toml: a configuration cannot extend itself"),
        ({"a": 'extends = "b.toml"', "b": 'extends = "a.toml"'}, r"a\.toml extends .*b\.toml extends .*a\.toml: "),
        ({"a": 'extends = "b.toml"', "b": 'extends = "no.toml"'}, r"no\.toml: No such file.*b\.toml extends .*no"),
        ({"a": 'extends = "b.toml"', "b": "[data"}, r"b\.toml is not valid TOML"),
        ({"a": 'extends = ["b.toml"]'}, "must be the path of one TOML file"),
        ({"a": 'extends = "b\\u0000.toml"'}, "must be the path of one TOML file"),
        ({"a": '[run]\nextends = "b.toml"'}, r"unknown key run\.extends"),
    ],
)  # fmt: skip
def test_a_chain_that_cannot_be_read_is_named(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, **files), environ={})


def pair(name: str) -> Config:
    return load_config(ROOT / "configs" / f"{name}.toml", environ={})


def test_the_papers_pairs_differ_in_their_models_and_batch_sizes_only() -> None:
    small, middle, large = (pair(name) for name in ("qwen3-4b-to-1.7b", "qwen3-30b-to-4b", "qwen3-30b-to-8b"))
    assert (small.student.path, small.teacher.path) == ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B-Thinking-2507")
    assert (small.teacher.batch_tokens, middle.teacher.batch_tokens) == (65_536, 32_768)
    for config in (small, middle, large):
        assert config.learner.micro_batch_tokens == 32_768
        same = config.rollout.model_copy(update={"replicas": small.rollout.replicas})
        assert (config.data, config.method, same) == (small.data, small.method, small.rollout)
        assert (config.learner.compute_dtype, config.teacher.dtype) == ("auto", "auto")
        assert (config.method.name, config.method.overlap_share) == ("cal_opd", 0.25)
        assert (config.rollout.dtype, config.rollout.max_in_flight) == ("auto", 128)


def test_the_papers_pairs_divide_eight_gpus_among_the_roles() -> None:
    """Two learner ranks have no room for 8B on GPUs of 80 GB; with four teachers, rollouts would be the bottleneck."""
    split = {"qwen3-4b-to-1.7b": (2, 4, 2), "qwen3-30b-to-4b": (2, 4, 2), "qwen3-30b-to-8b": (2, 3, 3)}
    for name, counts in split.items():
        config = pair(name)
        assert (config.teacher.replicas, config.rollout.replicas, config.learner.ranks) == counts
        assert config.placement.gpus == tuple(range(8)) == tuple(range(config.resources.host_gpus))
        assert config.resources.gpu == "h100"


@pytest.mark.parametrize("value", ["[" * 3_000, "9" * 5_000, "{a=" * 2_000])
def test_what_python_refuses_to_read_is_a_users_error(tmp_path, value):
    file = tmp_path / "deep.toml"
    file.write_text(f"x = {value}")
    with pytest.raises(ConfigError, match="TOML that cannot be read"):
        load_config(file, (), {})
    file.write_text(MINIMAL)
    with pytest.raises(ConfigError, match=r"run\.steps"):
        load_config(file, [f"run.steps={value}"], {})


def test_a_byte_order_mark_is_no_part_of_the_configuration(tmp_path: Path) -> None:
    """Editors of Windows write one."""
    file = tmp_path / "run.toml"
    file.write_text(MINIMAL, encoding="utf-8-sig")
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")
    plain = write(tmp_path, plain=MINIMAL)
    assert load_config(file, environ={}) == load_config(plain, environ={})
