import pytest

from calopd.config import Config, check_resumable, load_config
from calopd.config.resume import is_fixed
from calopd.core.errors import ConfigError
from calopd.core.methods import ProbeSettings
from calopd.core.options import Sampling
from tests.config.conftest import ROOT


@pytest.mark.parametrize("file", sorted(ROOT.glob("configs/*.toml")), ids=lambda f: f.name)
def test_every_shipped_configuration_is_valid_and_survives_saving(file, tmp_path):
    models = ["student.path=s", "teacher.path=t"] if file.name == "paper.toml" else []  # a base names no models
    config = load_config(file, models, environ={})
    saved = tmp_path / "config.toml"
    saved.write_text(config.to_toml())
    assert load_config(saved, environ={}) == config


def test_defaults_are_the_papers_recipe(minimal):
    config = load_config(minimal, environ={})
    assert config.run.steps == 100
    assert (config.learner.learning_rate, config.learner.weight_decay, config.learner.gradient_clip) == (1e-6, 0.01, 1)
    assert (config.learner.trajectories, config.learner.samples, config.learner.betas) == (256, 1, (0.9, 0.999))
    assert config.rollout.sampling == Sampling(temperature=1, top_p=1, max_tokens=16_384)
    assert config.evaluation.sampling == Sampling(temperature=0.6, top_p=0.95, max_tokens=20_480)
    assert (config.learner.chunk, config.data.max_prompt_tokens) == (1024, 2048)
    assert (config.method.name, config.method.clamp) == ("cal_opd", 10)
    assert config.method.settings == ProbeSettings(probes=("eval",), relaxation=5)
    assert config.method.probe_contexts == ("eval+", "eval-")
    assert config.method.loss_agg_mode == "seq-mean-token-mean"
    assert (config.learner.lora_rank, config.learner.samples) == (0, 1)


def test_overrides_beat_the_environment_and_that_the_file(minimal):
    environ = {"CALOPD__ROLLOUT__MAX_TOKENS": "7", "CALOPD__RUN__NAME": "e", "HOME": "x"}
    config = load_config(minimal, ["run.name=o", "method.clamp=none", 'method.probes=["inst+", "sol"]'], environ)
    assert (config.rollout.max_tokens, config.run.name, config.method.objective.clamp) == (7, "o", None)
    assert config.method.probe_contexts == ("inst+", "sol+", "sol-")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learner.learning_rat=1", r"unknown key learner\.learning_rat: did you mean learning_rate"),
        ("teacher.tensor_parallel_size=2", 'set teacher.engine = "vllm"'),
        ("lerner.chunk=1", "unknown key lerner: did you mean learner"),
        ("method.name=cal_opt", "unknown method 'cal_opt': did you mean cal_opd"),
        ("method.probes=['evil']", "unknown probe group 'evil'"),
        ("method.relaxation=0.5", r"method\.relaxation.*greater than or equal to 1"),
        ("learner.samples=3", "256 trajectories cannot be divided by 3 samples"),
        ("evaluation.problems=5", "data.heldout names no file"),
        ("run.name=../x", "run.name"),
        ("run.name=..", "run.name"),
        ("tracking.trackers=['tensorbord']", "unknown tracker 'tensorbord': did you mean tensorboard"),
        ("tracking.trackers=['wandb', 'wandb']", "names a tracker twice"),
        ("tracking.mode=maybe", r"tracking\.mode"),
        ("nonsense", "expected section.key=value"),
        ("method=opd", r"method is a section, expected \[method\] with keys \(given: 'opd'\)"),
        ("learner=3", r"learner is a section"),
        ("method.name=['opd']", r"method\.name must be a string"),
        ("method.file=3", r"method\.file must be a string"),
    ],
)
def test_wrong_settings_are_explained(minimal, override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(minimal, [override], {})


def test_missing_keys_and_files_are_named(tmp_path, minimal):
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_config(tmp_path / "no.toml", environ={})
    minimal.write_text("[data]\ntrain = 't'\n[student]\npath='s'\n")
    with pytest.raises(ConfigError, match="teacher is missing"):
        load_config(minimal, environ={})
    minimal.write_text("[data")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(minimal, environ={})


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("redis://user:secret@host:1/0", "redis://host:1/0"),
        ("redis://user:se@cret@host:1/0", "redis://host:1/0"),
        ("redis://host/0?password=secret", "redis://host/0"),
        ("rediss://host/0?username=secret&ssl_cert_reqs=none", "rediss://host/0?ssl_cert_reqs=none"),
        ("rediss://host:1/0?ssl_password=secret&db=2", "rediss://host:1/0?db=2"),
    ],
)
def test_the_password_of_the_queue_is_not_written_down(minimal, url, written):
    config = load_config(minimal, [f"queue.url={url}"], {})
    assert config.queue.url == url
    assert "secret" not in config.to_toml()
    assert "cret" not in config.to_toml()
    assert f'"{written}"' in config.to_toml()


def test_a_resumed_run_keeps_what_makes_it_that_run(minimal):
    saved = load_config(minimal, environ={})
    check_resumable(saved, load_config(minimal, ["run.steps=200", "learner.ranks=4", "rollout.port=9000"], {}))
    for setting in ("learner.trajectories=128", "method.relaxation=2", "data.train=other.jsonl"):
        with pytest.raises(ConfigError, match="the run was started with"):
            check_resumable(saved, load_config(minimal, [setting], {}))


def sections():
    return [(name, field.annotation) for name, field in Config.model_fields.items()]


@pytest.mark.parametrize(("name", "section"), sections(), ids=[name for name, _ in sections()])
def test_every_setting_has_a_meaning(name, section):
    assert section.__doc__
    without = [key for key, field in section.model_fields.items() if not field.description]
    assert without == [], f"[{name}]: write a docstring below {', '.join(without)}"


def test_the_settings_that_a_resumed_run_keeps():
    fixed = {f"{name}.{key}" for name, section in sections() for key in section.model_fields if is_fixed(name, key)}
    assert {key for key in fixed if not key.startswith(("data.", "student.", "method."))} == {
        "run.name", "run.dir", "run.seed", "run.max_staleness", "teacher.path", "rollout.temperature", "rollout.top_p",
        "rollout.max_tokens", "learner.trajectories", "learner.samples", "learner.lora_rank", "learner.lora_alpha",
        "learner.lora_targets",
    }  # fmt: skip
    assert {"data.train", "student.path", "method.name"} <= fixed
    assert is_fixed("method", "relaxation")
