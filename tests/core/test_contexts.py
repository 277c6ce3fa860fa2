import math
import random
import re
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from transformers import GenerationConfig

from calopd.core.contexts import (
    BASE,
    CONTEXTS,
    Context,
    groups,
    messages,
    probe_names,
    unrelated_solution,
    wrong_answer,
)
from calopd.core.errors import ConfigError, VocabularyMismatch
from calopd.core.types import Problem
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import check_same_vocabulary, stop_ids, vocabulary
from tests.tiny import make_tokenizer

PROBLEM = Problem("a", "How much is 1+2?", "3", "1+2=3")


@given(st.from_regex(r"\A-?[0-9]{1,4}(\.[0-9]{1,2})?\Z"), st.integers(0, 5))
def test_wrong_answers_have_the_shape_of_the_right_one(answer, seed):
    wrong = wrong_answer(answer, "some-id", seed)
    assert wrong != answer
    assert re.sub(r"\d", "#", wrong) == re.sub(r"\d", "#", answer)
    first = next(char for char in answer if char.isdigit())
    assert first == "0" or next(char for char in wrong if char.isdigit()) != "0"
    assert wrong == wrong_answer(answer, "some-id", seed)


@pytest.mark.parametrize("answer", ["1/2", "\\frac{1}{2}", "\\frac{3}{9}x", "1:2", "-2/4", "1/2, 1/3"])
def test_a_wrong_answer_has_another_value_and_no_zero_denominator(answer):
    def fractions(text):
        pairs = re.findall(r"(\d+)(?:\}\{|[/:])(\d+)", text)
        return [Fraction(int(top), int(bottom)) for top, bottom in pairs]

    for seed in range(300):
        assert fractions(wrong_answer(answer, "id", seed)) != fractions(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "\\frac12", "\\frac 1 2", "\\frac1{2}", "\\frac{1}2", "\\frac{-1}{2}", "\\frac{ 1 }{ 2 }", "\\cfrac{1}{2}",
        "3 / (2)", "(3)/(2)", "1.5/2", "\\tfrac{1}{2}",
    ],
)  # fmt: skip
def test_fractions_in_other_forms_get_another_value_and_no_zero_denominator(answer):
    def value(text):
        top, bottom = re.findall(r"[+-]?\d+(?:\.\d+)?" if re.search(r"\d\D+\d", text) else r"\d", text)
        return Fraction(top) / Fraction(bottom)

    for seed in range(300):
        assert value(wrong_answer(answer, "id", seed)) != value(answer)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("2^4", pow), ("2^{4}", pow), ("3+4", int.__add__), ("1-1", int.__sub__), ("2 \\cdot 6", int.__mul__),
        ("\\binom{5}{2}", math.comb), ("1,2", lambda *terms: sorted(terms)), ("\\{1,2\\}", lambda *terms: {*terms}),
    ],
)  # fmt: skip
def test_arithmetic_and_lists_get_another_value(answer, value):
    def value_of(text):
        return value(*map(int, re.findall(r"\d+", text)))

    for seed in range(300):
        assert value_of(wrong_answer(answer, "id", seed)) != value_of(answer)


@pytest.mark.parametrize(
    "answer", ["(1,2)", "x^{2}", "9^{9^{9}}", "2\\pi+1", "1 1/2", "[1,2)", "1,234", "3(2)", "1..2", "0.5!"]
)
def test_what_is_neither_arithmetic_nor_a_list_keeps_its_first_draw(answer):
    draw = random.Random("wrong-answer/0/id")
    digits = re.findall(r"\d", answer)
    drawn = [draw.randint(1 if place == 0 and digit != "0" else 0, 9) for place, digit in enumerate(digits)]
    assert re.findall(r"\d", wrong_answer(answer, "id", 0)) == list(map(str, drawn))


@pytest.mark.parametrize("answer", ["\\frac{\\sqrt{3}}{2}", "x/3", "\\frac{x^2}{5}", "\\frac{a}{12}", "1:2:3"])
def test_no_number_of_a_division_becomes_zero(answer):
    for seed in range(300):
        assert all(int(number) for number in re.findall(r"\d+", wrong_answer(answer, "id", seed)))


def test_wrong_answers_of_earlier_versions_stay():
    """A study or a run that is repeated shows its teacher the same text."""
    answers = ("1/2", "\\frac{3}{9}x", "-2/4, 1/3", "3.05", "204", "x^{2}")
    expected = ["2/7", "\\frac{2}{7}x", "-2/7, 9/7", "2.79", "279", "x^{8}"]
    assert [wrong_answer(answer, "id", 1) for answer in answers] == expected


def test_an_answer_without_digits_gets_one_more():
    assert wrong_answer("x", "id", 0) == "(x)+1"


def test_unrelated_solution_is_of_another_problem_and_answer_and_of_its_length():
    others = [
        PROBLEM,
        Problem("same-answer", "q", "3", "x" * 100),
        Problem("near", "q2", "9", "y" * 105),
        Problem("far", "q3", "9", "z" * 300),
    ]
    problem = Problem("p", "q0", "3", "w" * 100)
    assert {unrelated_solution(problem, others, len, seed) for seed in range(20)} == {("y" * 105, True)}
    assert unrelated_solution(problem, [others[0], others[3]], len, 0) == ("z" * 300, False)
    with pytest.raises(ConfigError, match="no other problem"):
        unrelated_solution(problem, others[:2], len, 0)


def test_the_intervention_follows_the_problem_or_precedes_it():
    assert messages(PROBLEM, "Hint.")[1]["content"] == "How much is 1+2?\n\nHint."
    assert messages(PROBLEM, "Hint.", before=True)[1]["content"] == "Hint.\n\nHow much is 1+2?"
    assert messages(PROBLEM)[1]["content"] == "How much is 1+2?"
    assert {message["role"]: message["content"] for message in messages(PROBLEM)}["system"] == (
        "You are a helpful math assistant. Please solve the math problem.\n\n"
        "You must enclose your final answer exactly within \\boxed{}."
    )


def test_groups_are_pairs():
    assert groups() == {name: (f"{name}+", f"{name}-") for name in ("inst", "eval", "ans", "sol")}
    assert probe_names(["eval", "inst-", "eval+"]) == ("eval+", "eval-", "inst-")
    with pytest.raises(ConfigError, match="ans, eval, inst, sol"):
        probe_names(["evil"])


def test_what_a_context_needs_is_in_its_text():
    assert {name: set(context.needs) for name, context in CONTEXTS.items() if context.needs} == {
        "ans+": {"answer"}, "ans-": {"answer"}, "sol+": {"solution"}, "sol-": {"solution"}
    }  # fmt: skip
    assert [name for name, context in CONTEXTS.items() if context.privileged] == ["ans+", "ans-", "sol+", "sol-"]


def prompts(template_suffix: str = "", limit: int = 2_000, context_limit: int = 2_000, **more) -> Prompts:
    tokenizer = make_tokenizer()
    tokenizer.chat_template += template_suffix
    others = [PROBLEM, Problem("b", "How much is 2+2?", "4", "2+2=4")]
    return Prompts(tokenizer, others, seed=0, max_prompt_tokens=limit, max_context_tokens=context_limit, **more)


def test_a_long_solution_loses_its_beginning_and_nothing_else():
    long = Problem("l", "How much?", "3", " ".join(str(n) for n in range(400)) + " so 3")
    made, cuts = prompts(context_limit=300), []
    made.on_cut = lambda: cuts.append("cut")
    ids = made.ids(long, "sol+")
    assert cuts == ["cut"]
    made.ids(long, "inst+")
    assert cuts == ["cut"], "counted only if something was lost"
    text = made.tokenizer.decode(ids.tolist())
    assert 280 < len(ids) <= 300
    assert "398 399 so 3. Use it while" in text
    assert " 5 6 7 " not in text
    assert "How much?" in text
    assert text.endswith("<|im_start|>assistant\n")
    with pytest.raises(ConfigError, match=r"problem l under sol\+ .* data.max_context_tokens"):
        prompts(context_limit=60).ids(long, "sol+")


def test_contexts_of_ones_own_have_fields_and_groups():
    texts = {"hint+": "Known: {answer} for {problem}", "hint-": "Known: {answer}", "calm": "Stay calm."}
    mine = {name: Context.named(name, text) for name, text in texts.items()}
    made = prompts(contexts=CONTEXTS | mine)
    assert made.intervention(PROBLEM, "hint+") == "Known: 3 for How much is 1+2?"
    assert made.intervention(PROBLEM, "hint-") == f"Known: {wrong_answer('3', 'a', 0)}"
    assert probe_names(["hint", "calm"], mine) == ("hint+", "hint-", "calm")
    with pytest.raises(ConfigError, match=r"unknown field \{anwser\}"):
        Context.named("hint+", "{anwser}")
    with pytest.raises(ConfigError, match="a name is letters"):
        Context.named("c0", "x")


def test_every_context_becomes_a_prompt_that_ends_with_the_assistant_marker():
    made = prompts()
    texts = {name: made.tokenizer.decode(made.ids(PROBLEM, name).tolist()) for name in (BASE, *CONTEXTS)}
    assert len(set(texts.values())) == 9
    assert all(text.endswith("<|im_start|>assistant\n") for text in texts.values())
    assert "reference: 3." in texts["ans+"]
    assert "reference: 3." not in texts["ans-"]
    assert "guidance: 1+2=3." in texts["sol+"]
    assert "guidance: 2+2=4." in texts["sol-"]


def test_a_template_that_opens_the_thinking_is_not_let_to():
    assert np.array_equal(prompts("{{ '<think>\n' }}").ids(PROBLEM), prompts().ids(PROBLEM))


def test_too_long_a_prompt_names_the_problem():
    with pytest.raises(ConfigError, match="problem a under c0"):
        prompts(limit=10).ids(PROBLEM)


def test_a_missing_solution_names_the_problem():
    with pytest.raises(ConfigError, match="problem n has no solution"):
        prompts().ids(Problem("n", "q", "1"), "sol+")


def test_a_response_ends_at_any_id_that_the_model_names(tmp_path):
    tokenizer = make_tokenizer()
    assert stop_ids(tmp_path, tokenizer) == [tokenizer.eos_token_id]
    GenerationConfig(eos_token_id=[0, tokenizer.eos_token_id]).save_pretrained(tmp_path)
    assert stop_ids(tmp_path, tokenizer) == [0, tokenizer.eos_token_id]


def test_another_vocabulary_is_refused_by_id():
    ours = vocabulary(make_tokenizer())
    theirs = [*ours[:7], "other", *ours[8:]]
    check_same_vocabulary(ours, list(ours))
    with pytest.raises(VocabularyMismatch, match=r"id 7: student .* teacher 'other'"):
        check_same_vocabulary(ours, theirs)
    with pytest.raises(VocabularyMismatch, match="1 of"):
        check_same_vocabulary(ours, ours[:-1])
