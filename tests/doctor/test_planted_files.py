"""Faults of models, prompts, data and the machine, planted one at a time: each is named, with what to do."""

import json
import os
import re
import shutil
import socket
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from calopd.core.errors import CalopdError, ConfigError
from calopd.doctor import disk_checks, machine_checks
from calopd.doctor.case import Case
from calopd.doctor.checks import CHECKS, Level, examine, require
from calopd.doctor.gpu_checks import role_memory
from calopd.doctor.outcome import Verdict
from calopd.models.tokenizers import load_tokenizer
from tests.doctor.examined import check_fault, copied, failures, recipe

BOTH = ("student", "teacher")


def edit_json(file: Path, **values) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def edit_tokenizer(folder: Path, change) -> None:
    tokenizer = load_tokenizer(folder)
    change(tokenizer)
    tokenizer.save_pretrained(folder)


def truncate_weights(folder: Path) -> None:
    file = folder / "teacher" / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1000)


def add_token(folder: Path) -> None:
    edit_tokenizer(folder / "teacher", lambda tokenizer: tokenizer.add_tokens(["<|extra|>"]))


def template(ending: str, *roles: str):
    """Replace the assistant marker of the chat template."""

    def plant(folder: Path) -> None:
        def change(tokenizer) -> None:
            tokenizer.chat_template = tokenizer.chat_template.replace("'<|im_start|>assistant\n'", repr(ending))
            assert repr(ending) in tokenizer.chat_template

        for role in roles:
            edit_tokenizer(folder / role, change)

    return plant


def end_of_turn(role: str):
    def plant(folder: Path) -> None:
        edit_tokenizer(folder / role, lambda tokenizer: setattr(tokenizer, "eos_token", "<|endoftext|>"))
        edit_json(folder / role / "generation_config.json", eos_token_id=0)

    return plant


def few_positions(role: str, count: int):
    return lambda folder: edit_json(folder / role / "config.json", max_position_embeddings=count)


def edit_problem(file: str = "train.jsonl", **values):
    def plant(folder: Path) -> None:
        first, *rest = (folder / file).read_text().splitlines()
        lines = [json.dumps(json.loads(first) | values), *rest]
        (folder / file).write_text("\n".join(lines) + "\n")

    return plant


def nothing(folder: Path) -> None:
    pass


FAULTS = {
    "a truncated weight file": (
        truncate_weights, [], "teacher model", "truncated or damaged", "download the model again"),
    "no model": (
        lambda folder: shutil.rmtree(folder / "student"), [], "student model", "no folder there", "student.path"),
    "an added token on one side": (
        add_token, [], "vocabulary", "differ in 1 of 401 token ids (id 400: student '', teacher '<|extra|>')",
        "of one family"),
    "a template that forbids thinking": (
        template("<|im_start|>assistant\n<think>\n\n</think>\n\n", *BOTH), [], "thinking",
        "forces responses without thinking", "leaves <think> to the model"),
    "a template that begins the thinking": (
        template("<|im_start|>assistant\n<think>\nOkay", *BOTH), [], "thinking",
        "begins the thinking of the response", "ends with the assistant marker"),
    "another template at the teacher": (
        template("[assistant]", "teacher"), [], "chat template", "where the teacher's has '[assistant]'",
        "choose a pair with one template"),
    "a prompt that ends with a space": (
        template("<|im_start|>assistant ", *BOTH), [], "first token", "merges with a response that begins with",
        "remove the trailing space"),
    "another end of turn at the teacher": (
        end_of_turn("teacher"), [], "end of turn", "the teacher with <|endoftext|> (0)", "one end of turn"),
    "a student that never stops": (
        end_of_turn("student"), [], "end of turn", "the student stops at <|endoftext|> (0)", "eos_token_id"),
    "a student with too few positions": (
        few_positions("student", 279), [], "positions",
        "the student has 279 positions, but data.max_prompt_tokens + rollout.max_tokens = 280", "lower one of these"),
    "a teacher with too few positions": (
        few_positions("teacher", 535), [], "positions",
        "the teacher has 535 positions, but data.max_context_tokens + rollout.max_tokens = 536", "more positions"),
    "a teacher with a low limit": (
        nothing, ["teacher.max_tokens=200"], "teacher limits", "[teacher] allows max_tokens = 200",
        "raise teacher.max_tokens to 536"),
    "problems without the solutions that a probe shows": (
        edit_problem(solution=""), ['method.probes=["sol"]'], "solutions",
        "problem p0-0 has no solution, which the context 'sol+' needs (1 of 64", "calopd data solve"),
    "an answer that no response can match": (
        edit_problem(answer="\\frac{1}{2"), [], "answers", "1 of 80 gold answers cannot be checked",
        "remove the problems"),
    "a problem that is too long": (
        edit_problem(problem="long " * 400), [], "prompts", "problem p0-0 under c0 has a prompt of",
        "raise data.max_prompt_tokens"),
    "a held-out problem that is too long": (
        edit_problem("heldout.jsonl", problem="long " * 400), [], "prompts", "under c0 has a prompt of",
        "raise data.max_prompt_tokens"),
    "too few held-out problems": (
        nothing, ["evaluation.problems=17"], "problems", "holds 16", "set evaluation.problems to 16 or less"),
    "too little memory": (
        nothing, ['rollout.engine="vllm"', "rollout.cpu_kv_cache_gib=4000"], "memory", "not enough memory: about",
        "lower rollout.cpu_kv_cache_gib"),
    "GPUs that the host does not have": (
        nothing, [f"resources.{role}=1" for role in ("teacher", "rollout", "learner")], "GPUs",
        "[resources] uses the GPUs 0, 1, 2, but", "on fewer GPUs"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_with_what_to_do(fault, tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plant, settings, check, message, advice = FAULTS[fault]
    config = copied(tiny, tmp_path, settings)
    plant(tmp_path)
    check_fault(config, check, message, advice)


def test_without_a_fault_nothing_fails(tiny, tmp_path):
    results = list(examine(Case(copied(tiny, tmp_path)), Level.SERVICES))
    assert not [result for result in results if result.outcome.verdict is Verdict.FAILED]
    assert [result.name for result in results] == [check.name for check in CHECKS]
    shown = next(result.outcome.detail for result in results if result.name == "chat template")
    assert "What is" in shown
    assert shown.endswith("<|im_start|>assistant\n")


def test_a_check_that_needs_a_failed_one_is_not_repeated(tiny, tmp_path):
    config = copied(tiny, tmp_path)
    shutil.rmtree(tmp_path / "student")
    results = {result.name: result.outcome for result in examine(Case(config), Level.SERVICES)}
    assert results["prompts"].message == "needs the check 'student model' to pass"
    assert results["chat template"].verdict is Verdict.NOT_CHECKED


def test_a_full_disk_is_told_before_the_first_checkpoint(tiny, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(disk_checks.shutil, "disk_usage", lambda folder: usage(2e9, 1.5e9, 0.5e9))
    check_fault(copied(tiny, tmp_path), "disk", "0.5 GB free", "lower learner.keep_checkpoints")


def test_space_is_counted_per_file_system():
    def space(needed: float, free: float, device: int, purpose: str) -> disk_checks.Space:
        return disk_checks.Space(Path(f"/{purpose}"), purpose, "key", needed * 1e9, free * 1e9, device)

    apart = [space(60, 100, 1, "checkpoints"), space(60, 100, 2, "policies")]
    assert disk_checks.judge_space(apart).verdict is Verdict.PASSED
    together = [space(60, 100, 1, "checkpoints"), space(60, 100, 1, "policies")]
    assert "about 120.0 GB needed" in disk_checks.judge_space(together).message
    tmpfs = [space(60, 100, 1, "checkpoints"), space(60, 48, 2, "policies")]
    assert disk_checks.judge_space(tmpfs).message.startswith("/policies: about 60.0 GB needed for policies, 48.0 GB")


def test_the_space_of_the_8b_recipe_is_that_of_its_checkpoints_and_policies():
    runs, policies = disk_checks.needed_bytes(recipe("qwen3-30b-to-8b"))
    assert runs == pytest.approx(3 * 98.3e9 + 33e9, rel=0.02)
    # Two kept and one being written, and the deltas of two, at most half of a policy each.
    assert policies == pytest.approx(4 * 16.4e9, rel=0.02)


def test_a_recipe_that_does_not_fit_its_gpus_is_told_what_would():
    """The 8B student on two ranks of an H100, as an earlier version shipped it."""
    outcome = role_memory(Case(recipe("qwen3-30b-to-8b", "resources.gpu=h100", "resources.learner=2")))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.message.startswith("learner rank 0 needs ")
    assert "usable" in outcome.message
    assert "learner" in outcome.advice


def test_a_recipe_as_it_is_shipped_fits():
    outcome = role_memory(Case(recipe("qwen3-30b-to-8b")))
    assert outcome.verdict is Verdict.PASSED
    assert re.search(r"learner rank \d \d+\.\d of \d+\.\d GiB", outcome.message)


@pytest.fixture
def noexec(tmp_path):
    """A folder from which nothing can be executed: a tmpfs for root, else one that is not writable."""
    folder = tmp_path / "noexec"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        folder.chmod(0o500)
    yield folder
    if not mounted.returncode:
        subprocess.run(["umount", folder], check=True)


def test_a_temporary_folder_without_execution_is_found(tiny, tmp_path, noexec, monkeypatch):
    if machine_checks.can_execute(noexec):
        pytest.skip("root without the right to mount")
    assert machine_checks.can_execute(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(noexec / "triton"))
    monkeypatch.setattr(machine_checks.shutil, "which", lambda name: "/usr/bin/gcc")
    (tmp_path / "case").mkdir()
    config = copied(tiny, tmp_path / "case")
    check_fault(config, "temporary folders", f"{noexec} (TRITON_CACHE_DIR) does not allow execution", "with `exec`")


def test_a_port_in_use_is_found(tiny, tmp_path):
    config = copied(tiny, tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", config.rollout.port))
        taken.listen()
        check_fault(config, "ports", "(rollout.port) is in use", "choose other ports")


def test_a_run_raises_the_first_quick_failure_in_one_line(tiny, tmp_path):
    config = copied(tiny, tmp_path, ["evaluation.problems=17"])
    with pytest.raises(ConfigError, match=r"holds 16: add problems to the file, or set evaluation.problems to 16"):
        require(config)


def test_a_run_keeps_the_error_of_a_check_as_it_is(tiny, tmp_path):
    config = copied(tiny, tmp_path)
    truncate_weights(tmp_path)
    with pytest.raises(CalopdError) as raised:
        require(config)
    assert str(raised.value).endswith("the file is truncated or damaged")


def test_the_demo_is_all_green():
    """Ports aside: another run may be active on this machine."""
    config = recipe("demo")
    assert not failures(config).keys() - {"ports"}
