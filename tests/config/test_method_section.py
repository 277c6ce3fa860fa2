"""[method]: a method of one's own, settings that are refused, and the paper's recipes."""

import os
from pathlib import Path

import pytest

from calopd.cli.registry import find_command
from calopd.config import load_config
from calopd.config.resume import check_owner
from calopd.core.errors import ConfigError
from calopd.core.methods import METHODS
from calopd.rundir.layout import RunDir
from calopd.rundir.run_id import ensure_run_id
from tests.config.conftest import MINIMAL
from tests.core.test_methods import t, tokens_of

MINE = """
from dataclasses import dataclass

from calopd.core.methods import Method, ProbeSettings, cal_opd

@dataclass(frozen=True, kw_only=True)
class Settings(ProbeSettings):
    factor: float = 0.5

def advantage(tokens, settings):
    return settings.factor * cal_opd.advantage(tokens, settings)

METHOD = Method(name="part_cal", settings=Settings, advantage=advantage)
"""


def test_a_method_of_ones_own_is_found_by_name(tmp_path):
    file, config = tmp_path / "mine.py", tmp_path / "c.toml"
    file.write_text(MINE)
    config.write_text(MINIMAL)
    try:
        mine = [f'method.file="{file}"', "method.name=part_cal"]
        loaded = load_config(config, [*mine, "method.factor=0.25"], {})
        assert loaded.method.scored_contexts() == ("c0", "eval+", "eval-")
        tokens = tokens_of(t(-2), t(-1), probes=t(-1.1, -0.9)[:, None])
        assert loaded.method.objective.advantage(tokens).item() == pytest.approx(0.25 * 0.5)
        assert "factor = 0.25" in loaded.to_toml()
        with pytest.raises(ConfigError, match=r"method\.facto for the method part_cal: did you mean factor"):
            load_config(config, [*mine, "method.facto=1"], {})
        with pytest.raises(ConfigError, match=r"method\.factor: expected a number"):
            load_config(config, [*mine, "method.factor=x"], {})
        file.write_text("METHOD = 1")
        with pytest.raises(ConfigError, match="expected a METHOD"):
            load_config(config, [f'method.file="{file}"'], {})
        file.write_text(MINE.replace("advantage=advantage)", 'advantage=advantage, recorded="zero_ratio")'))
        with pytest.raises(ConfigError, match="needs settings derived from RecordedSettings"):
            load_config(config, mine, {})
    finally:
        METHODS.pop("part_cal", None)


def test_a_file_that_changed_since_the_run_began_is_not_executed(tmp_path):
    file, config, saved = tmp_path / "mine.py", tmp_path / "c.toml", RunDir(tmp_path)
    file.write_text(MINE)
    config.write_text(MINIMAL)
    try:
        saved.config.write_text(load_config(config, [f'method.file="{file}"', "method.name=part_cal"], {}).to_toml())
        assert load_config(saved.config, environ={}).to_toml() == saved.config.read_text()
        file.write_text(MINE + f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        with pytest.raises(ConfigError, match="has changed since the run began and was not executed"):
            load_config(saved.config, environ={})
        assert not (tmp_path / "ran").exists()
        load_config(config, [f'method.file="{file}"', "method.name=part_cal"], {})
        assert (tmp_path / "ran").exists()
    finally:
        METHODS.pop("part_cal", None)


def test_the_file_of_somebody_elses_run_is_executed_only_if_named(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    run.config.write_text('[method]\nfile = "theirs.py"\n')
    check_owner(run)
    monkeypatch.setattr(os, "getuid", lambda: 4_242)
    with pytest.raises(ConfigError, match=r"belongs to another user.* set CALOPD__METHOD__FILE=theirs.py"):
        check_owner(run)
    with pytest.raises(ConfigError, match="belongs to another user"):
        check_owner(run, "mine.py")
    check_owner(run, "theirs.py")
    run.config.write_text('[method]\nname = "opd"\n')
    check_owner(run)
    (tmp_path / "base.toml").write_text('[method]\nfile = "theirs.py"\n')
    run.config.write_text('extends = "base.toml"\n[method]\nname = "opd"\n')
    with pytest.raises(ConfigError, match="belongs to another user"):
        check_owner(run)


def test_a_configuration_belongs_to_all_whose_files_it_extends(tmp_path, monkeypatch):
    run, base = RunDir(tmp_path), tmp_path / "base.toml"
    run.config.write_text('extends = "base.toml"\n[method]\nfile = "mine.py"\n')
    base.write_text("")
    check_owner(run)
    stat = Path.stat

    def theirs(path: Path, **options: bool) -> os.stat_result:
        found = list(stat(path, **options))
        found[4] = found[4] + 1 if path == base else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", theirs)
    with pytest.raises(ConfigError, match="belongs to another user"):
        check_owner(run)


@pytest.mark.parametrize("words", [["retry", "{run}"], ["run", "--resume", "{run}", "--set", "method.file={mine}"]])
def test_no_command_executes_the_file_of_somebody_elses_run(tmp_path, monkeypatch, words):
    run, mine = RunDir(tmp_path / "runs" / "demo"), tmp_path / "mine.py"
    theirs = tmp_path / "theirs.py"
    theirs.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{MINE}")
    mine.write_text(MINE)
    run.path.mkdir(parents=True)
    ensure_run_id(run)
    (run.path / "base.toml").write_text(f'{MINIMAL}[method]\nname = "part_cal"\nfile = "{theirs}"\n')
    run.config.write_text('extends = "base.toml"\n')
    monkeypatch.setattr(os, "getuid", lambda: 4_242)
    command, rest = find_command([word.format(run=run.path, mine=mine) for word in words])
    with pytest.raises(ConfigError, match="belongs to another user"):
        command.module.run(command.parser().parse_args(rest))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method.name=token_sync"], "method.recorded_run is missing, which token_sync needs"),
        (["method.name=uni_opd", "learner.samples=1"], "set learner.samples"),
        (["method.extrapolation=2"], "unknown key method.extrapolation for the method cal_opd; exopd has it"),
        (["method.name=exopd", "method.extrapolation=-1"], "method.extrapolation is -1.0, expected at least 0"),
        (['method.file="no.py"'], "no Python file there"),
    ],
)
def test_what_a_method_lacks_is_said_before_anything_starts(tmp_path, settings, message):
    file = Path(tmp_path / "c.toml")
    file.write_text(MINIMAL)
    with pytest.raises(ConfigError, match=message):
        load_config(file, settings, {})


def test_the_papers_recipe_of_a_method_applies_unless_the_user_says_otherwise(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(MINIMAL)

    def load(*settings: str):
        return load_config(file, settings, {})

    extrapolated = load("method.name=exopd")
    assert (extrapolated.learner.lora_rank, extrapolated.learner.lora_alpha) == (64, 128)
    assert (extrapolated.method.clamp, extrapolated.method.loss_agg_mode) == ("none", "token-mean")
    assert "lora_rank = 64" in extrapolated.to_toml()
    assert load("method.name=exopd", "learner.lora_rank=0").learner.lora_rank == 0
    assert load("method.name=uni_opd").learner.samples == 16
    assert load("method.name=uni_opd", "method.clamp=3").method.objective.clamp == 3
    assert load("method.name=opd").learner.lora_rank == 0


def test_another_method_by_name_leaves_the_settings_of_the_first_behind(tmp_path):
    """A layer that chooses a method drops settings of earlier layers that the method lacks; its own are checked."""
    file = tmp_path / "c.toml"
    file.write_text(MINIMAL + "[method]\nrelaxation=3\nprobes=['inst']\nclamp=7\n")
    plain = load_config(file, ["method.name=opd"], {})
    assert (plain.method.probe_contexts, plain.method.clamp) == ((), 7)
    filtered = load_config(file, ["method.name=tsd_filter"], {})
    assert filtered.method.probe_contexts == ("inst+", "inst-")
    with pytest.raises(ConfigError, match=r"method\.relaxation for the method opd; cal_opd, tsd_filter have it"):
        load_config(file, ["method.name=opd", "method.relaxation=2"], {})
