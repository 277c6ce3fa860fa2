"""Studies on disk: shards, imports of what others scored, analysis twice the same, advice and pages."""

import csv
import json
import re

import numpy as np
import pytest

from calopd.core.errors import ConfigError
from calopd.core.types import Problem
from calopd.study.advise import advise
from calopd.study.analyze import analyze
from calopd.study.comparison_page import write_comparison
from calopd.study.recorded_rollouts import RecordedFile, import_scored
from calopd.study.shards import ScoredRollout, Study, StudyRollout, rollouts_of
from calopd.study.study_page import write_page

CONTEXTS = ["c0", "inst+", "inst-", "eval+", "eval-", "sol+", "sol-"]
WORDS = ["wait", " Wait", "7", "+", "</script>", "\n", " so"]


def scored(index: int, length: int, seed: int = 0) -> ScoredRollout:
    """Words move, the rest hardly does; the student is off by something else."""
    draw = np.random.default_rng([seed, index])
    ids = draw.integers(0, len(WORDS), length).astype(np.int32)
    base = -draw.exponential(1, length).astype(np.float32)
    size = np.where(np.isin(ids, (0, 1, 6)), 0.3, 0.002)
    teacher = [base + (draw.normal(0, 1, length) * size).astype(np.float32) for _ in CONTEXTS[1:]]
    student = (base + draw.normal(0, 1, length)).astype(np.float32)
    rollout = StudyRollout(index, f"p{index}", length, "1 < 2?", "3", index % 2 == 0)
    return ScoredRollout(rollout, ids, student, np.stack([base, *teacher]))


def make_study(directory, parts, shards=2):
    study = Study(directory)
    study.begin(teacher="T", student="S", contexts=CONTEXTS)
    study.write_tokens(WORDS)
    for number in range(shards):
        study.write_shard(number, parts[number::shards])
    return study


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path / "study", [scored(index, 400 + index) for index in range(12)])


def test_a_shard_gives_back_what_was_written(study):
    places = list(study.rollouts())
    assert sorted(place[2].index for place in places) == list(range(12))
    shard, start, rollout = places[3]
    back, first = study.read(shard, start, rollout), scored(rollout.index, rollout.tokens)
    assert back.rollout == first.rollout
    assert np.array_equal(back.token_ids, first.token_ids)
    assert np.array_equal(back.student_logprobs, first.student_logprobs)
    assert np.array_equal(back.teacher_logprobs, first.teacher_logprobs)
    assert len(rollouts_of(shard)) == 6
    assert not list(study.directory.glob("shards/*.tmp"))


def test_counts_are_exact_and_the_bytes_always_the_same(study, tmp_path):
    analysis = analyze(study.directory, threads=2)
    first = study.files.analysis.read_bytes()
    parts = [scored(index, 400 + index) for index in range(12)]
    assert analysis["tokens"] == sum(part.rollout.tokens for part in parts)
    assert (analysis["rollouts"], analysis["judged"], analysis["correct"]) == (12, 12, 6)
    moved = sum(int(np.sum(np.abs(p.teacher_logprobs[1] - p.teacher_logprobs[0]) > 0.05)) for p in parts)
    assert analysis["prevalence"]["0.05"]["contexts"]["inst+"]["tokens"] == moved
    analyze(study.directory, threads=1)
    assert study.files.analysis.read_bytes() == first
    cut = make_study(tmp_path / "cut", parts[::-1], shards=5)
    assert analyze(cut.directory, threads=1) == analysis, "however the tokens are cut into shards"
    with (study.files.tables / "relaxation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["probes"] for row in rows} == {"inst", "eval", "sol"}
    assert {path.stem for path in study.files.tables.iterdir()} == {
        "prevalence", "retention", "consistency", "relaxation", "shared_forms", "kinds", "forms",
    }  # fmt: skip


def test_a_duplicate_rollout_is_refused(study):
    study.write_shard(7, [scored(3, 10)])
    with pytest.raises(ConfigError, match=r"rollout 3 is in both .* and .*: remove one"):
        analyze(study.directory)


def test_a_study_goes_on_with_its_own_settings_only(study):
    study.begin(teacher="T", student="S", contexts=CONTEXTS)
    with pytest.raises(ConfigError, match="has teacher = 'T', but 'U' was given"):
        study.begin(teacher="U", student="S", contexts=CONTEXTS)
    with pytest.raises(ConfigError, match="no study at"):
        _ = Study(study.directory / "shards").facts


def scored_line(part: ScoredRollout, **more: object) -> str:
    teacher = dict(zip(CONTEXTS, part.teacher_logprobs.tolist(), strict=True))
    row = {"response_ids": part.token_ids.tolist(), "student_logprobs": part.student_logprobs.tolist()}
    return json.dumps({**row, "teacher_logprobs": teacher, "correct": part.rollout.correct, **more}) + "\n"


def test_rollouts_that_others_scored(study, tmp_path):
    """The same tokens give the same numbers, whichever way they came in."""
    file = tmp_path / "scored.jsonl"
    head = json.dumps({"surface_forms": {str(number): word for number, word in enumerate(WORDS)}}) + "\n"
    file.write_text(head + "".join(scored_line(scored(index, 400 + index)) for index in range(12)))
    imported = Study(tmp_path / "imported")
    assert import_scored(file, imported) == 12
    assert imported.token_texts() == WORDS
    ours, theirs = analyze(study.directory), analyze(imported.directory)
    for key in ours.keys() - {"study"}:
        assert ours[key] == theirs[key], key
    import_scored(file, imported)
    assert analyze(imported.directory) == theirs, "importing again replaces, it does not add"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"response_ids": [1, 2], "student_logprobs": [-1], "teacher_logprobs": {"c0": [-1, -1], "a": [-1, -1]}}',
         "line 1: log-probabilities of 'student' must be 2 finite numbers"),
        ('{"response_ids": [1], "student_logprobs": [-1], "teacher_logprobs": {"c0": [NaN], "a": [-1]}}',
         "of 'c0' must be 1 finite"),
        ('{"response_ids": [1], "student_logprobs": [-1], "teacher_logprobs": {"a": [-1]}}', "logprobs with 'c0'"),
        ('{"response_ids": [1], "student_logprobs": [-1], "teacher_logprobs": {"c0": [-1]}}', "at least one other"),
        ("nonsense", "line 1 is not valid JSON"),
        ("{}", "contains no scored rollouts"),
    ],
)  # fmt: skip
def test_scored_rollouts_that_are_refused(tmp_path, line, complaint):
    file = tmp_path / "scored.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        import_scored(file, Study(tmp_path / "study"))


def test_responses_of_a_file(tmp_path):
    file = tmp_path / "rollouts.jsonl"
    rows = [
        {"problem_id": "a", "response_ids": [1, 2], "student_logprobs": [-1, -2], "correct": True},
        {"problem": "2+2?", "answer": "4", "response": "x"},
        {"problem_id": "unknown", "response_ids": [1]},
        {"problem_id": "a"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    class Tokenizer:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [len(text)]

    recorded = RecordedFile(file, [Problem("a", "1+1?", "2")], Tokenizer())
    assert len(recorded) == 4
    first, second = recorded.get(0), recorded.get(1)
    assert (first.problem.answer, first.token_ids.tolist(), first.correct) == ("2", [1, 2], True)
    assert first.student_logprobs is not None
    assert (second.problem.id, second.problem.problem, second.token_ids.tolist()) == ("line-2", "2+2?", [1])
    assert second.student_logprobs is None
    with pytest.raises(ConfigError, match="rollout 3: expected `problem` and `answer`, or a `problem_id`"):
        recorded.get(2)
    with pytest.raises(ConfigError, match="rollout 4: expected `response_ids` or `response`"):
        recorded.get(3)


def test_advice_follows_the_paper_s_range(study):
    analysis = analyze(study.directory)
    advice = advise(analysis)
    assert advice.choice.probes == "eval"
    assert 0.52 <= advice.choice.retained <= 0.65
    assert f"relaxation = {advice.choice.relaxation:g}" in advice.text()
    assert {choice.probes for choice in advice.others} == {"inst", "sol"}
    assert any("the study has only" in caveat for caveat in advice.caveats)
    probes = analysis["relaxation"]["probes"]
    for name in ("eval", "inst"):
        probes[name]["retained"] = [0.9] * len(analysis["relaxation"]["grid"])
    assert advise(analysis).choice.probes == "sol"
    assert any("part of the deviation is task knowledge" in caveat for caveat in advise(analysis).caveats)
    probes["sol"]["retained"] = probes["eval"]["retained"]
    assert "self-deviation under these probes is small" in advise(analysis).reasons[0]
    for curve in probes.values():
        curve["retained"] = [0.1] * len(curve["retained"])
    assert "only 10%" in advise(analysis).reasons[0]


def test_the_page_holds_everything_and_loads_nothing(study):
    analyze(study.directory, min_count=0)
    html = write_page(study.directory, chosen=[], count=4).read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:)[^"]+"', html.split("<script>")[0])
    own = html[html.index('<header class="top">') : html.index("plotly.js v")]
    figures = re.findall(r'<figure data-at="([\d.]+)"', own)
    assert figures.count("0.01") == figures.count("0.05") == figures.count("0.1") == 4
    rollouts = re.findall(r'id="rollout-(\d+)">(.*?)</script>', own)
    assert len(rollouts) == 4
    data = [json.loads(text) for _, text in rollouts]
    assert {row["correct"] for row in data} == {True, False}
    assert max(row["count"] for row in data) == 411, "the longest is among them"
    assert data[0]["texts"][4] == "</script>"
    page = write_page(study.directory, study.directory / "one.html", chosen=[5], count=4)
    assert re.findall(r'id="rollout-(\d+)"', page.read_text(encoding="utf-8")) == ["5"]
    with pytest.raises(ConfigError, match="no rollout 99"):
        write_page(study.directory, chosen=[99], count=4)


def test_two_studies_side_by_side(study, tmp_path):
    other = make_study(tmp_path / "other", [scored(index, 300, seed=1) for index in range(6)])
    for each in (study, other):
        analyze(each.directory)
    html = write_comparison(study.directory, other.directory, (0.01, 0.1)).read_text(encoding="utf-8")
    assert html.count('<div class="plot">') == 12
    assert "study, τ = 0.01" in html
    assert "other, τ = 0.1" in html
    with pytest.raises(ConfigError, match=r"has no threshold 0.5, only 0.01, 0.05, 0.1"):
        write_comparison(study.directory, other.directory, (0.5,))
