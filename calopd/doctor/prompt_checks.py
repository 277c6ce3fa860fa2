"""Checks of the chat template: the prompt of c0, thinking mode, end of turn, the boundary before the first token."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from calopd.core.contexts import messages
from calopd.doctor.case import Case
from calopd.doctor.outcome import Outcome, failed, not_checked, passed
from calopd.models.tokenizers import stop_ids

OPENED, CLOSED = "<think>", "</think>"
FIRST_WORDS = ("the", "The", "To", "Let", "We", "First", "Okay", "is", "a", "1", "\\boxed", OPENED)
"""Beginnings of responses. Which of them a model prefers does not matter: none may merge with the end of the prompt."""
NEEDS_TEACHER = "the teacher's tokenizer is not on this machine"


def rendered(tokenizer: Any, turns: Sequence[dict[str, str]]) -> str:
    """The text of a chat, up to the beginning of the assistant's turn."""
    text: str = tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True)
    return text


def chat_template(case: Case) -> Outcome:
    """Teacher and student must be prompted in the same way, since the teacher scores the student's prompt."""
    problem = case.training[0]
    ids, prompt = case.prompts.ids(problem), case.prompts.text(problem)
    detail = f"the prompt of c0 (problem {problem.id}, {len(ids)} tokens):\n{prompt}"
    if case.teacher_is_remote and case.folder("teacher") is None:
        return passed("the student's prompt of c0 is shown below; the teacher's template is not here", detail)
    turns = messages(problem)
    texts = [rendered(tokenizer, turns) for tokenizer in (case.student_tokenizer, case.teacher_tokenizer)]
    student, teacher = (text.rstrip().removesuffix(OPENED).rstrip() for text in texts)
    if student != teacher:
        place = next(i for i, (a, b) in enumerate(zip_longest(student, teacher)) if a != b)
        return failed(
            f"the chat templates differ: the student's has {student[place : place + 30]!r} where the teacher's has "
            f"{teacher[place : place + 30]!r}",
            "the teacher would score prompts in a form that it was not trained on: choose a pair with one template",
            detail,
        )
    if case.teacher_tokenizer.encode(prompt, add_special_tokens=False) != ids.tolist():
        return failed(
            "teacher and student tokenize the prompt of c0 differently",
            "use the tokenizer files that came with each model, and a pair of one family",
            detail,
        )
    return passed("the same for teacher and student; the prompt of c0 is shown below", detail)


def thinking(case: Case) -> Outcome:
    """The prompt must not decide for the student whether it thinks: `<think>` is part of the response."""
    turns = messages(case.training[0])
    text = rendered(case.student_tokenizer, turns)
    end = text[text.rfind(case.training[0].problem) + len(case.training[0].problem) :]
    if CLOSED in end:
        return failed(
            f"the student's chat template ends the prompt with {end[-40:]!r}: it forces responses without thinking",
            "use a template that leaves <think> to the model: the teacher scores these tokens as part of the response",
        )
    if OPENED in end.rstrip().removesuffix(OPENED):
        return failed(
            f"the student's chat template ends the prompt with {end[-40:]!r}: it begins the thinking of the response",
            "use a template that ends with the assistant marker, or with <think> alone, which calopd removes",
        )
    if end.rstrip().endswith(OPENED):
        return passed("the template appends <think>; calopd removes it, and the student writes it itself")
    return passed("the prompt ends with the assistant marker; whether to think is left to the student")


def end_of_turn(case: Case) -> Outcome:
    """The token that ends a turn in the template must stop the student, and be the teacher's end too."""
    tokenizer = case.student_tokenizer
    turn = end_of_turn_id(tokenizer, messages(case.training[0]))
    student = set(stop_ids(case.config.student.path, tokenizer))
    if turn is not None and turn not in student:
        return failed(
            f"the template ends a turn with {_token(tokenizer, turn)}, but the student stops at "
            f"{_tokens(tokenizer, student)}",
            "name the token in eos_token_id of the student's generation_config.json: responses would never end",
        )
    if case.teacher_is_remote and case.folder("teacher") is None:
        return not_checked(NEEDS_TEACHER)
    teacher = set(stop_ids(case.config.teacher.path, case.teacher_tokenizer))
    wanted = {turn} if turn is not None else student
    if not wanted & teacher:
        return failed(
            f"the student ends a turn with {_tokens(tokenizer, wanted)}, the teacher with "
            f"{_tokens(tokenizer, teacher)}",
            "the teacher would find every end of a response unlikely: choose a pair with one end of turn, or correct "
            "eos_token_id in the teacher's generation_config.json",
        )
    return passed(f"teacher and student end a turn with {_tokens(tokenizer, wanted)}")


def end_of_turn_id(tokenizer: Any, turns: Sequence[dict[str, str]]) -> int | None:
    """The token that the template writes after the text of the assistant; None if it writes none."""
    answer = "The end"
    text = tokenizer.apply_chat_template([*turns, {"role": "assistant", "content": answer}], tokenize=False)
    after = text[text.rfind(answer) + len(answer) :].lstrip()
    ids = tokenizer.encode(after, add_special_tokens=False)
    return int(ids[0]) if ids else None


def _token(tokenizer: Any, number: int) -> str:
    return f"{tokenizer.convert_ids_to_tokens(number)} ({number})"


def _tokens(tokenizer: Any, numbers: set[int]) -> str:
    return " or ".join(_token(tokenizer, number) for number in sorted(numbers)) or "nothing"


def first_token(case: Case) -> Outcome:
    """The prompt must end where a token ends: else no response can begin as it would in the training data."""
    tokenizer = case.student_tokenizer
    ids, prompt = case.prompts.ids(case.training[0]).tolist(), case.prompts.text(case.training[0])
    for word in FIRST_WORDS:
        if tokenizer.encode(prompt + word, add_special_tokens=False)[: len(ids)] != ids:
            return failed(
                f"the prompt ends inside a token: its end {prompt[-12:]!r} merges with a response that begins with "
                f"{word!r}",
                "remove the trailing space or text from the generation prompt of the chat template",
            )
    return passed(f"the prompt ends with {prompt[-12:]!r}, which merges with no beginning of a response")
