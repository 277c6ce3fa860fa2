"""Checks of the model files, the vocabulary and the positions of student and teacher."""

from typing import TYPE_CHECKING

from calopd.core.contexts import BASE
from calopd.doctor.case import ROLES, Case, Role
from calopd.doctor.outcome import Outcome, failed, not_checked, passed
from calopd.models.model_files import check_model, count_parameters, max_positions
from calopd.models.tokenizers import check_same_vocabulary, vocabulary

if TYPE_CHECKING:
    from calopd.planning.model_shapes import ModelShape

DOWNLOAD = "download it before the run with `calopd download CONFIG`"


def student_model(case: Case) -> Outcome:
    return _model(case, "student")


def teacher_model(case: Case) -> Outcome:
    if case.teacher_is_remote and case.folder("teacher") is None:
        return not_checked("the teacher runs elsewhere (teacher.addresses)")
    return _model(case, "teacher")


def _model(case: Case, role: Role) -> Outcome:
    """A folder with a configuration and weight files, each as long as its header says."""
    path = case.path(role)
    if case.config.emulated:
        return not_checked(f"{path}: the engines are emulated, no weights are needed")
    check_model(f"{role}.path", path)
    folder = case.folder(role)
    if folder is None:
        return not_checked(f"{path} is on the hub and has not been downloaded", DOWNLOAD)
    parameters = count_parameters(folder)
    return passed(f"{path}: {parameters / 1e6:,.1f} M parameters, weight files complete")


def vocabularies(case: Case) -> Outcome:
    """Token ids must mean the same tokens to both models, added tokens included."""
    if case.teacher_is_remote and case.folder("teacher") is None:
        return not_checked("the teacher's tokenizer is elsewhere: see the check of the teacher replicas")
    tokenizer = case.file_tokenizer("student")
    student, teacher = vocabulary(tokenizer), vocabulary(case.file_tokenizer("teacher"))
    check_same_vocabulary(student, teacher)
    added = len(tokenizer.get_added_vocab())
    return passed(f"{len(student):,} tokens, {added} of them added, the same for teacher and student")


def needed_positions(case: Case, role: Role) -> tuple[int, str]:
    """The longest sequence that the settings allow for a model, and the settings that add up to it."""
    config = case.config
    response, key = config.rollout.max_tokens, "rollout.max_tokens"
    if role == "teacher":
        only_base = case.contexts == (BASE,)
        prompt = config.data.max_prompt_tokens if only_base else config.data.max_context_tokens
        return prompt + response, f"data.{'max_prompt_tokens' if only_base else 'max_context_tokens'} + {key}"
    if config.evaluation.problems and not case.study and config.evaluation.max_tokens > response:
        response, key = config.evaluation.max_tokens, "evaluation.max_tokens"
    return config.data.max_prompt_tokens + response, f"data.max_prompt_tokens + {key}"


def positions(case: Case) -> Outcome:
    """Prompt and response together within the positions that each model was trained for."""
    known = {role: limit for role in ROLES if (limit := _max_positions(case, role))}
    for role, limit in known.items():
        needed, settings = needed_positions(case, role)
        if needed > limit:
            return failed(
                f"the {role} has {limit:,} positions, but {settings} = {needed:,}",
                f"lower one of these settings, or choose a {role} with more positions",
            )
    if not known:
        return not_checked("no config.json with max_position_embeddings on this machine", DOWNLOAD)
    shown = ", ".join(f"{role} {needed_positions(case, role)[0]:,} of {limit:,}" for role, limit in known.items())
    return passed(f"longest sequence: {shown} positions")


def _max_positions(case: Case, role: Role) -> int | None:
    folder = case.folder(role)
    return None if folder is None else max_positions(folder)


def can_be_split(shape: "ModelShape", size: int) -> bool:
    """Whether vLLM can split a model over GPUs: a KV head is shared by several of them, or each has several heads."""
    return shape.heads % size == 0 and 0 in (shape.kv_heads % size, size % shape.kv_heads)


def split_heads(case: Case) -> Outcome:
    """vLLM splits a model by its attention heads."""
    from calopd.planning.model_shapes import load_shape  # the package imports torch

    rollout, teacher = case.config.rollout.tensor_parallel_size, case.config.teacher.tensor_parallel_size
    split = {"rollout": (case.path("student"), rollout), "teacher": (case.path("teacher"), teacher)}
    shapes = {key: load_shape(path) for key, (path, size) in split.items() if size > 1}
    if not shapes:
        return not_checked("no model is split over GPUs (tensor_parallel_size = 1)")
    for key, shape in shapes.items():
        path, size = split[key]
        if shape is None:
            return not_checked(f"{path}: no config.json on this machine, or an unknown architecture", DOWNLOAD)
        if not can_be_split(shape, size):
            sizes = [str(number) for number in range(1, shape.heads + 1) if can_be_split(shape, number)]
            return failed(
                f"{key}.tensor_parallel_size is {size}, and {path} has {shape.heads} attention heads and "
                f"{shape.kv_heads} KV heads, which vLLM cannot divide by it",
                f"set {key}.tensor_parallel_size to one of {', '.join(sizes)}",
            )
    return passed(", ".join(f"{split[key][0]} over {split[key][1]} GPUs" for key in shapes))
