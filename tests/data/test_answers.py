import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.answers import rows
from calopd.data.answers import answer_key, answered_after_think, is_correct, last_boxed
from calopd.data.answers import judge as judges
from tests.data.answer_forms import forms
from tests.services.processes import ROOT

TABLE = rows()


@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in TABLE} - {"hostile"}))
def test_the_table_of_answers(kind):
    wrongly = [(g, r, right) for k, right, g, r in TABLE if k == kind and is_correct(r, g) is not right]
    assert not wrongly


def test_the_table_is_large_enough_to_mean_something():
    assert len(TABLE) >= 200
    assert 0.25 < sum(right for _, right, *_ in TABLE) / len(TABLE) < 0.75


def test_hostile_answers_end_and_are_wrong(monkeypatch):
    monkeypatch.setattr(judges, "CPU_SECONDS", 0.3)
    for kind, right, gold, response in TABLE:
        if kind == "hostile":
            assert is_correct(response, gold) is right


# What an answer may say beyond the gold one, a gold answer asks for.
ONE_WAY = {
    ("7", "a+b=7"), ("x^2+y^2=1", "1"), ("B", "\\textbf{(B) } 12"), ("12", "\\textbf{(B)}\\ 12"),
}  # fmt: skip


def test_the_verdict_is_symmetric():
    for kind, right, gold, response in TABLE:
        given_answer = last_boxed(response)
        if kind not in ("hostile", "box") and given_answer is not None and (gold, given_answer) not in ONE_WAY:
            assert is_correct(f"\\boxed{{{gold}}}", given_answer) is right, (gold, given_answer)


def test_gold_answers_fed_back_are_right_and_shuffled_ones_wrong():
    """The demo's held-out set: each gold answer in every form, then each with another problem's answer."""
    lines = (ROOT / "examples" / "demo" / "heldout.jsonl").read_text().splitlines()
    golds = [json.loads(line)["answer"] for line in lines]
    for gold in set(golds):
        for response in forms(gold):
            assert is_correct(response, gold), (response, gold)
    shuffled = golds[:]
    random.Random(0).shuffle(shuffled)
    for gold, other in zip(golds, shuffled, strict=True):
        assert all(is_correct(response, gold) == (other == gold) for response in forms(other)), (gold, other)


def test_the_last_balanced_box_counts():
    assert last_boxed(r"\boxed{\frac{a}{b}} and \boxed{1") == r"\frac{a}{b}"


def test_where_the_answer_stood():
    assert answered_after_think(r"<think>hm</think> \boxed{1}")
    assert not answered_after_think(r"<think>\boxed{1}</think> done")
    assert not answered_after_think(r"\boxed{1}")


SYMBOLIC = [
    r"2^{\aleph_0}", r"n \equiv 2 \pmod{4}", r"\left(\frac{\phi}{2}\right)^2 \cdot \frac{4\phi^{-2}}{1} \cdot 2",
    r"\theta^{0}+1", r"a_n = 2 + \frac{(-1)^n}{n}", r"\{(x,y): x+y=2\}", r"\mu \le 2", r"\text{for all } n \ge 2",
    r"\frac{(n+1)(n+2)}{2}-\sum_{i=1}^{m}\binom{a_i}{2}+2", r"2\alpha", r"\log_2 n",
]  # fmt: skip


@pytest.mark.parametrize("gold", SYMBOLIC)
def test_no_symbolic_gold_equals_a_bare_number(gold):
    assert not is_correct(r"\boxed{2}", gold)
    if "=" not in gold:  # of a given equation, the right side counts
        assert not is_correct(f"\\boxed{{{gold}}}", "2")
    assert is_correct(f"\\boxed{{{gold}}}", gold)


def test_votes_for_one_number_are_counted_together():
    assert len({answer_key(text) for text in ("1234", "1,234", "1234.0", r"\$1234", r"\text{1234 pens}")}) == 1
    assert answer_key("x+1") == answer_key(" x + 1 ") != answer_key("x+2")


def test_a_comparison_without_end_is_ended_and_the_next_one_works():
    judge = judges.Judge()
    try:
        assert judge.equal("1/2", "2/4")
        start = time.monotonic()
        with pytest.raises(judges.OverLimit):
            judge.equal("9^{9^{9^{9}}}", "9^{9^{9^{8}}}+x", seconds=0.3)
        assert time.monotonic() - start < 60
        assert judge.equal("1/2", "0.5")
        family = psutil.Process(judge._process.pid).children()
        assert [p.rlimit(resource.RLIMIT_AS)[0] for p in family] == [judges.MEMORY_BYTES]
    finally:
        judge.stop()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive


def test_a_killed_judge_is_started_again():
    judge = judges.Judge()
    try:
        assert judge.equal("1/2", "2/4")
        judge._process.kill()
        judge._process.wait()
        assert judge.equal("1/2", "2/4")
    finally:
        judge.stop()


@pytest.mark.parametrize("whole", [True, False])
def test_a_comparison_whose_process_is_killed_is_repeated(monkeypatch, whole):
    """It counted as a wrong answer, for ever: right answers became wrong ones when memory was short."""
    judge, ask, asked = judges.Judge(), judges.Judge._ask, []

    def ask_and_kill(self, request):
        asked.append(request)
        if len(asked) > 1:
            return ask(self, request)
        process = self._process or self._start()
        while not (forks := psutil.Process(process.pid).children()):
            time.sleep(0.005)
        os.kill(process.pid if whole else forks[0].pid, signal.SIGKILL)
        return ask(self, request)

    monkeypatch.setattr(judges.Judge, "_ask", ask_and_kill)
    try:
        assert judge.equal("1+x", "x+1")
        assert whole or len(asked) == 2
        assert [judge.equal("1+x", other) for other in ("x+2", "x+1", "x+3")] == [False, True, False]
    finally:
        judge.stop()


def test_an_answer_without_a_verdict_is_not_remembered_as_wrong(monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(judges.Judge, "_ask", lambda self, request: "killed")
        with pytest.raises(judges.JudgeLost, match="killed 3 times"):
            is_correct(r"\boxed{z+7}", "7+z")
    assert is_correct(r"\boxed{z+7}", "7+z")


def test_the_process_does_not_know_the_token(monkeypatch):
    for name in ("CALOPD_TOKEN", "CALOPD__QUEUE__URL", "HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "a secret")
    judge = judges.Judge()
    try:
        assert judge.equal("1/2", "2/4")
        for process in (parent := psutil.Process(judge._process.pid), *parent.children()):
            assert "a secret" not in process.environ().values()
    finally:
        judge.stop()


def test_a_student_that_repeats_itself_costs_no_time():
    start = time.process_time()  # CPU seconds: other work on the machine does not count
    assert last_boxed("\\boxed{" * 20_000 + "7}") == "7"
    assert last_boxed("\\boxed{" * 20_000) is None
    assert not is_correct("\\boxed{" + "\\{" * 700 + "\\}" * 700 + "}", "7")
    assert not is_correct("\\boxed{" + "1," * 900 + "1}", "7")
    assert not is_correct("\\boxed{" + " " * 100_000 + "}", "7")
    assert time.process_time() - start < 5


FRAGMENTS = [
    r"\frac{", r"}", r"{", r"\sqrt", r"^", r"_", r"(", r")", r"[", r"]", r"9", r"12", r"0", r"x", r"y", r"n", r"e",
    r"i", r"\pi", r"\infty", r",", r";", r"=", r"<", r">", r"\le", r"\cup", r"\{", r"\}", r"+", r"-", r"*", r"/",
    r"!", r".", r"\text{", r"cm", r"\%", r"^\circ", r"$", r"\\", r"&", r"\begin{pmatrix}", r"\end{pmatrix}", r"\int",
    r"\sum", r"\lim", r"\binom", r"\log", r"\sin", r"\pm", r"\in", r"\boxed{", r"^{9^{9", r"10^{10}", r"\overline{",
    r"é", r"中", r":", r"'", r"\,", r"|", r"sqrt",
]  # fmt: skip
GOLDS = ["42", r"\frac{1}{2}", "x^2+1", "(1,2)", r"\{1,2\}", "[0,1)", r"\text{even}", r"3\text{ cm}", "2^{10}"]
ODD = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=20).map("".join),
    st.text(max_size=30),
    st.from_regex(r"[0-9]{1,40}(\^\{?[0-9]{1,9}\}?|!|/0|e[0-9]{1,9}|%){0,3}", fullmatch=True),
)


@pytest.mark.slow
def test_odd_answers_neither_hang_nor_crash(monkeypatch):
    """`--hypothesis-profile=explore` tries five times as many, new ones each time."""
    monkeypatch.setattr(judges, "CPU_SECONDS", 0.3)
    seen, examples = 0, 100 if settings().derandomize else 500

    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(ODD, min_size=20, max_size=20), st.sampled_from(GOLDS))
    def check(answers, gold):
        nonlocal seen
        for answer in answers:
            seen += 1
            assert is_correct(f"\\boxed{{{answer}}}", gold) in (True, False)

    check()
    assert seen >= 20 * examples
    assert is_correct(r"\boxed{x+1}", "1+x"), "the judge still works"


def test_it_works_in_a_script_without_a_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from calopd.data.answers import is_correct\nprint(is_correct(r'\\boxed{x+1}', '1+x'))")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert done.stdout == "True\n", done.stderr
