import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calopd.cli.registry import find_command
from calopd.core.errors import ConfigError
from calopd.data.prepare import PREFIX, SUFFIX, prepare
from calopd.data.problems import load_problems
from tests.tiny import make_problems, make_tokenizer


def dapo(file, rows):
    table = [
        {
            "prompt": [{"content": text, "role": "user"}],
            "reward_model": {"ground_truth": answer, "style": "rule"},
            "extra_info": {"index": str(i)},
        }
        for i, (text, answer) in enumerate(rows)
    ]
    pq.write_table(pa.Table.from_pylist(table), file)
    return str(file)


def wrapped(text: str) -> str:
    return f"{PREFIX}\n\n{text}\n\n{SUFFIX}"


def test_dapo_is_unwrapped_repaired_deduplicated_and_freed_of_conflicts(tmp_path):
    rows = [(wrapped("What is $\x0crac12$ of 4?"), "2")] * 3
    rows += [(wrapped("Conflict?"), "1"), (wrapped("Conflict?"), "2"), ("Bare?", " 7 "), (PREFIX + " Half?", "8")]
    rows += [(wrapped("No answer?"), "")]
    account = prepare(dapo(tmp_path / "d.parquet", rows), tmp_path / "out.jsonl")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["problem"] for row in written] == ["What is $\\frac12$ of 4?", "Bare?", PREFIX + " Half?"]
    assert [row["answer"] for row in written] == ["2", "7", "8"]
    assert (account.rows, account.wrappers_stripped, account.without_wrapper, account.half_wrapped) == (8, 6, 1, 1)
    assert (account.repaired, account.duplicates, account.conflicting_problems, account.empty) == (3, 3, 1, 1)
    assert account.problems == 3
    assert account.conflicts == ["'Conflict?': 1, 2"]
    assert len(load_problems(tmp_path / "out.jsonl")) == 3


def test_the_same_source_gives_the_same_bytes(tmp_path):
    source = dapo(tmp_path / "d.parquet", [(f"Problem {i % 50}?", str(i % 50)) for i in range(500)])
    for name in ("a", "b"):
        prepare(source, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_jsonl_keeps_the_solution_of_any_copy(tmp_path):
    source = tmp_path / "in.jsonl"
    rows = [{"question": "q", "answer": 3}, {"problem": "q", "answer": "3", "solution": "1+2=3"}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    account = prepare(str(source), tmp_path / "out.jsonl")
    (problem,) = load_problems(tmp_path / "out.jsonl")
    assert (problem.problem, problem.answer, problem.solution, account.with_solution) == ("q", "3", "1+2=3", 1)


def test_gsm8k_solutions_lose_their_marks(tmp_path):
    source = tmp_path / "gsm8k.jsonl"
    answer = "She sold 48/2 = <<48/2=24>>24 clips.\nTogether 48+24 = <<48+24=72>>72.\n#### 72"
    source.write_text(json.dumps({"question": "How many clips?", "answer": answer}) + "\n")
    prepare(str(source), tmp_path / "out.jsonl")
    (problem,) = load_problems(tmp_path / "out.jsonl")
    assert (problem.answer, problem.solution) == ("72", "She sold 48/2 = 24 clips.\nTogether 48+24 = 72.")


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    source = tmp_path / "bom.jsonl"
    source.write_text('{"id": "1", "problem": "q", "answer": "2"}\n\n', encoding="utf-8-sig")
    assert load_problems(source)[0].id == "1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense\n", "line 1"),
        ('{"x": 1}\n', "expected problem"),
        ("[" * 3_000, "line 1: JSON that cannot be read"),
        ('{"id": %s}' % ("9" * 5_000), "line 1: JSON that cannot be read"),
        ('{"id": "1", "problem": "\\ud800", "answer": "2"}', "line 1: not UTF-8 text"),
    ],
)
def test_what_is_no_problem_is_named_by_line(tmp_path, text, message):
    source = tmp_path / "in.jsonl"
    source.write_text(text)
    with pytest.raises(ConfigError, match=message):
        prepare(str(source), tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_missing_source_is_named(tmp_path):
    with pytest.raises(ConfigError, match="expected a parquet or JSONL file"):
        prepare(str(tmp_path / "none.parquet"), tmp_path / "out.jsonl")


def test_a_parquet_file_with_damaged_text_is_refused(tmp_path):
    source = tmp_path / "d.parquet"
    dapo(source, [("What is 1 plus 1?", "2")])
    pq.write_table(pq.read_table(source), source, compression="none", use_dictionary=False)
    source.write_bytes(source.read_bytes().replace(b"1 plus", b"1 \xfflus"))
    with pytest.raises(ConfigError, match="is not a parquet file, or is damaged"):
        prepare(str(source), tmp_path / "out.jsonl")


def test_negatives_are_those_of_a_run_with_the_same_seed(tmp_path):
    source = make_problems(tmp_path / "p.jsonl", 20)
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    outs = []
    for name in ("a", "b"):
        words = [
            "data",
            "negatives",
            str(source),
            "-o",
            str(tmp_path / name),
            "--tokenizer",
            str(tmp_path / "tokenizer"),
        ]
        command, rest = find_command(words)
        command.module.run(command.parser().parse_args(rest))
        outs.append((tmp_path / name).read_text())
    assert outs[0] == outs[1]
    problems = {problem.id: problem for problem in load_problems(source)}
    for row in map(json.loads, outs[0].splitlines()):
        assert row["wrong_answer"] != problems[row["id"]].answer
        assert row["unrelated_solution"] != problems[row["id"]].solution
