import subprocess
import sys
import time

import pytest

from calopd import answers
from calopd.answers import answered_after_think, is_correct, last_boxed


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        (r"so \boxed{42}", "42", True),
        (r"\boxed{41} no: \boxed{42}", "42", True),
        (r"\boxed{42} no: \boxed{41}", "42", False),
        (r"\boxed{42.0}", "42", True),
        (r"\boxed{1,234}", "1234", True),
        (r"\boxed{\frac{1}{2}}", "0.5", True),
        (r"\boxed{\dfrac{1}{2}}", r"\frac12", True),
        (r"\boxed{x^2+1}", "1+x^2", True),
        (r"\boxed{\text{ 7 }}", "7", True),
        (r"the answer is 42", "42", False),
        (r"\boxed{42", "42", False),
        (r"\boxed{}", "42", False),
        (r"\boxed{nan}", "42", False),
        (r"\boxed{\frac{1}{0}}", "42", False),
    ],
)
def test_answers(response, gold, right):
    assert is_correct(response, gold) is right


def test_the_last_balanced_box_counts():
    assert last_boxed(r"\boxed{\frac{a}{b}} and \boxed{1") == r"\frac{a}{b}"


def test_where_the_answer_stood():
    assert answered_after_think(r"<think>hm</think> \boxed{1}")
    assert not answered_after_think(r"<think>\boxed{1}</think> done")
    assert not answered_after_think(r"\boxed{1}")


def test_a_comparison_without_end_is_wrong_and_the_next_one_works():
    judge = answers._Judge()
    try:
        assert judge.equal("1/2", "2/4")
        start = time.monotonic()
        assert not judge.equal("9^{9^{9^{9}}}", "9^{9^{9^{8}}}+x", seconds=0.5)
        assert time.monotonic() - start < 5
        assert judge.equal("1/2", "0.5")
    finally:
        judge.stop()


def test_a_student_that_repeats_itself_costs_no_time():
    start = time.monotonic()
    assert last_boxed("\\boxed{" * 20_000 + "7}") == "7"
    assert last_boxed("\\boxed{" * 20_000) is None
    assert time.monotonic() - start < 5


def test_it_works_in_a_script_without_a_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from calopd.answers import is_correct\nprint(is_correct(r'\\boxed{x+1}', '1+x'))")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr
