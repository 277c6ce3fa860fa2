"""Statistics, results, comparisons and exports of an evaluation, from samples made by hand."""

import csv
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest

from calopd.core.errors import ConfigError
from calopd.core.paper_results import size_note
from calopd.core.statistics import average, bootstrap, difference, majority_score
from calopd.core.types import Problem, Sampling
from calopd.evaluation import accuracy_tables
from calopd.evaluation.benchmark_table import HUB
from calopd.evaluation.benchmarks import Benchmark, load_benchmark, load_benchmarks
from calopd.evaluation.evaluated_models import resolve
from calopd.evaluation.evaluation_page import write_page
from calopd.evaluation.job import Job, Settings, load_job, sample_seed
from calopd.evaluation.layout import EvaluationDir
from calopd.evaluation.paired_comparison import compare
from calopd.evaluation.results import MEAN, read_results, write_results
from calopd.rundir.files import Journal
from tests.services.processes import ROOT


def test_the_bootstrap_agrees_with_the_normal_interval():
    values = [float(i % 10 < 3) for i in range(1_000)]
    estimate = average({"b": values})
    half = 1.96 * np.sqrt(0.3 * 0.7 / 1_000)
    assert estimate.value == pytest.approx(0.3)
    assert estimate.low == pytest.approx(0.3 - half, abs=0.004)
    assert estimate.high == pytest.approx(0.3 + half, abs=0.004)
    assert average({"b": values}) == estimate, "the same draws every time"
    assert np.std(bootstrap(values, "b")) == pytest.approx(half / 1.96, rel=0.05)


def test_the_mean_over_benchmarks_is_unweighted():
    estimate = average({"small": [1.0] * 10, "large": [0.0] * 990})
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.5, 0.5)


def test_pairing_sees_a_small_gain_that_intervals_do_not():
    draw = random.Random(0)
    base = [draw.random() for _ in range(200)]
    better = [value + 0.02 + draw.gauss(0, 0.05) for value in base]
    one, other = average({"b": base}), average({"b": better})
    assert other.low < one.high
    gain = difference({"b": better}, {"b": base})
    assert gain.significant
    assert gain.p_value < 0.01
    nothing = difference({"b": base}, {"b": base})
    assert not nothing.significant
    assert nothing.p_value == 1.0


@pytest.mark.parametrize(
    ("answers", "correct", "score"),
    [
        (["1", "1", "2"], [True, True, False], 1.0),
        (["2", "1", "2"], [False, True, False], 0.0),
        (["1", "2"], [True, False], 0.5),
        ([None, None, "1"], [False, False, True], 1.0),
        ([None, None], [False, False], 0.0),
    ],
)
def test_majority(answers, correct, score):
    assert majority_score(answers, correct) == score


SETTINGS = Settings("student", "some/model", None, "abc", None, n=2, sampling=Sampling(0.6, 0.95, 50))
PROBLEMS = tuple(Problem(f"p{i}", f"What is {i} < & </script>?", str(i)) for i in range(20))


def sampled(directory: Path, label: str, right: float, *, settings: Settings = SETTINGS, replicas: int = 1) -> Job:
    """A job with all of its samples on the disk, a share of them right."""
    names = ("easy", "hard")
    job = Job(
        Settings(**{**{f: getattr(settings, f) for f in Settings.__slots__}, "label": label}),
        [Benchmark(name, name, PROBLEMS) for name in names],
    )
    files = EvaluationDir(directory)
    job.save(files)
    journals = [Journal(files.journal(replica)) for replica in range(replicas)]
    tasks = list(job.tasks())
    random.Random(label).shuffle(tasks)
    for number, task in enumerate(tasks):
        good = random.Random(f"{task.key}").random() < right * (1.0 if task.benchmark == "easy" else 0.5)
        answer = task.problem.answer if good else "-1"
        row = {"benchmark": task.benchmark, "problem_id": task.problem.id, "sample": task.sample, "seed": task.seed}
        row |= {"correct": good, "answer": answer, "after_think": True, "length": 10 + number % 3, "truncated": False}
        row |= {"seconds": 0.1, "sampler": "torch", "text": f"<b>\\boxed{{{answer}}}", "response_ids": [1, 2]}
        journals[number % replicas].add(row)
    return job


def test_results_do_not_depend_on_order_or_replicas(tmp_path):
    for name, replicas in (("one", 1), ("three", 3)):
        write_results(sampled(tmp_path / name, "student", 0.8, replicas=replicas), EvaluationDir(tmp_path / name))
    assert (tmp_path / "one" / "results.json").exists()
    one, three = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "three"))
    for results in (one, three):
        for benchmark in results["benchmarks"]:
            for sample in benchmark["samples"]:
                del sample["length"]
        for row in results["summary"]:
            del row["length"]
    assert one == three


def test_a_torn_line_is_cut_off_and_counts_for_nothing(tmp_path):
    file = tmp_path / "samples" / "0.jsonl"
    journal = Journal(file)
    journal.add({"a": 1})
    journal.close()
    with file.open("ab") as out:
        out.write(b'{"a": 2, "text": "half a li')
    again = Journal(file)
    assert again.rows == [{"a": 1}]
    again.add({"a": 3})
    again.close()
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"a": 1}, {"a": 3}]


def test_seeds_are_of_benchmark_problem_and_sample():
    seeds = {sample_seed(0, b, p, s) for b in ("x", "y") for p in ("1", "2") for s in (0, 1)}
    assert len(seeds) == 8
    assert sample_seed(0, "x", "1", 0) == sample_seed(0, "x", "1", 0) != sample_seed(1, "x", "1", 0)


def test_samples_of_other_settings_are_not_mixed_in(tmp_path):
    job = sampled(tmp_path, "student", 0.5)
    job.save(EvaluationDir(tmp_path))
    assert load_job(EvaluationDir(tmp_path)) == job
    values = {f: getattr(SETTINGS, f) for f in Settings.__slots__}
    Job(Settings(**{**values, "n": 4, "in_flight": 3}), job.benchmarks).save(EvaluationDir(tmp_path))
    with pytest.raises(ConfigError, match=r"samples with temperature = 0.6, not 1.0: choose another --out"):
        Job(Settings(**{**values, "sampling": Sampling(1.0, 0.95, 50)}), job.benchmarks).save(EvaluationDir(tmp_path))
    with pytest.raises(ConfigError, match="weights_sha256 = abc, not def"):
        Job(Settings(**{**values, "weights_sha256": "def"}), job.benchmarks).save(EvaluationDir(tmp_path))
    other = Benchmark("easy", "easy", (Problem("p0", "another", "0"),))
    with pytest.raises(ConfigError, match="samples of another problem 'p0' of easy"):
        Job(SETTINGS, [other]).save(EvaluationDir(tmp_path))


def results_of(tmp_path: Path, **shares: float):
    return [
        write_results(sampled(tmp_path / label, label, share), EvaluationDir(tmp_path / label))
        for label, share in shares.items()
    ]


def test_the_comparison_has_the_papers_layout(tmp_path):
    student, ours, teacher = results_of(tmp_path, student=0.3, cal_opd=0.6, teacher=1.0)
    comparison = compare([student, ours, teacher])
    assert [row.role for row in comparison.rows] == ["student", "teacher", "method"]
    assert comparison.columns == ["easy", "hard", MEAN]
    method = comparison.rows[2]
    assert method.gains[MEAN].estimate.value == pytest.approx(
        method.values[MEAN].value - comparison.student.values[MEAN].value
    )
    assert method.gains[MEAN].significant
    mean = np.mean([method.values["easy"].value, method.values["hard"].value])
    assert method.values[MEAN].value == pytest.approx(mean)
    assert read_results(tmp_path / "student").scores("easy") == student.scores("easy")
    with pytest.raises(ConfigError, match="no results with label 'x'"):
        compare([student, ours], student="x")


def test_exports(tmp_path):
    comparison = compare(results_of(tmp_path, student=0.3, cal_opd=0.6, teacher=1.0))
    text = accuracy_tables.markdown(comparison)
    assert text.splitlines()[0] == "| Model / Method | easy | hard | Avg. |"
    assert "| cal_opd | **" in text
    rows = list(csv.DictReader(io.StringIO(accuracy_tables.csv_text(comparison))))
    assert len(rows) == 9
    assert float(rows[-1]["gain_low"]) < float(rows[-1]["gain"]) < float(rows[-1]["gain_high"])
    tex = accuracy_tables.latex(comparison)
    assert "cal\\_opd & $\\mathbf{" in tex
    assert tex.count("\\\\") == 4


def test_what_cannot_be_compared_is_refused(tmp_path):
    (student,) = results_of(tmp_path, student=0.3)
    warm = {f: getattr(SETTINGS, f) for f in Settings.__slots__} | {"sampling": Sampling(1.0, 0.95, 50)}
    other = write_results(
        sampled(tmp_path / "warm", "warm", 0.3, settings=Settings(**warm)), EvaluationDir(tmp_path / "warm")
    )
    with pytest.raises(ConfigError, match=r"student was sampled with temperature = 0.6, warm with 1.0"):
        compare([student, other])
    with pytest.raises(ConfigError, match="duplicate labels"):
        compare([student, student])
    with pytest.raises(ConfigError, match="no results at"):
        read_results(tmp_path / "nothing")


def test_the_page_escapes_and_needs_nothing_from_elsewhere(tmp_path):
    results = results_of(tmp_path, student=0.3, teacher=1.0)
    page = write_page(tmp_path / "page.html", results, compare(results)).read_text()
    assert "What is 3 &lt; &amp; &lt;/script&gt;?" in page
    assert "<b>\\boxed" not in page
    assert "default-src 'none'" in page
    assert "significant" in page


def test_models_of_all_kinds(tmp_path):
    hf = tmp_path / "models" / "tiny"
    hf.mkdir(parents=True)
    (hf / "config.json").write_text("{}")
    run = tmp_path / "runs" / "mine"
    for version in (0, 10):
        (run / "policies" / f"{version:06d}").mkdir(parents=True)
        (run / "policies" / f"{version:06d}" / "manifest.json").write_text("{}")
    (run / "checkpoints" / "000008").mkdir(parents=True)
    (run / "checkpoints" / "000008" / "record.json").write_text("{}")
    (run / "config.toml").write_text(f'[student]\npath = "{hf}"\n')
    assert resolve(str(hf)).label == "tiny"
    assert resolve("Qwen/Qwen3-1.7B").path == "Qwen/Qwen3-1.7B"
    assert resolve(f"base={hf}").label == "base"
    newest = resolve(str(run))
    assert (newest.label, newest.version, newest.path) == ("mine@10", 10, str(hf))
    assert resolve(f"{run}@0").version == 0
    assert resolve(str(run / "policies" / "000000")).weights == run / "policies" / "000000"
    checkpoint = resolve(f"early={run / 'checkpoints' / '000008'}")
    assert checkpoint.is_checkpoint
    assert checkpoint.version == 8
    with pytest.raises(ConfigError, match="no policy or checkpoint 7: available are 0, 8, 10"):
        resolve(f"{run}@7")
    with pytest.raises(ConfigError, match=r"no model at .*: expected a model directory"):
        resolve(str(tmp_path))
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    assert resolve(str(run)).path == str(run / "model")


def test_benchmarks_from_files_and_by_name(tmp_path, monkeypatch):
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"id": i, "problem": f"{i}?", "answer": i}) + "\n" for i in range(3)))
    benchmark = load_benchmark(str(file), limit=2)
    assert (benchmark.name, [p.answer for p in benchmark.problems]) == ("mine", ["0", "1"])
    assert load_benchmark(str(file)).sha256 != benchmark.sha256
    with pytest.raises(ConfigError, match=r"unknown benchmark 'aime42': did you mean aime"):
        load_benchmark("aime42")
    with pytest.raises(ConfigError, match=r"no benchmark at no/such.jsonl: expected a JSONL file"):
        load_benchmark("no/such.jsonl")
    with pytest.raises(ConfigError, match="two benchmarks are named 'mine'"):
        load_benchmarks(f"{file},{file}")

    def offline(*_: object, **__: object) -> None:
        raise OSError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", offline)
    with pytest.raises(
        ConfigError, match=r"no route to the hub. If you are offline, give a file instead: --benchmark aime24.jsonl"
    ):
        load_benchmark("aime24")


def test_a_benchmark_of_the_paper_in_a_file_has_its_name_and_size(tmp_path):
    file = tmp_path / "amc23.jsonl"
    file.write_text('{"id": "1", "problem": "1 + 1?", "answer": "2"}\n')
    assert load_benchmark(str(file)).name == "AMC23"
    assert (size_note("AMC23", 40), size_note("mine", 7)) == ("", "")
    assert size_note("AMC23", 1) == "AMC23 has 1 problems here, 40 in the paper: the numbers do not compare."


@pytest.mark.parametrize(("name", "repository"), [(name, repository) for name, (_, repository) in HUB.items()])
def test_every_benchmark_is_in_the_documentation(name, repository):
    assert f"| `{name}` | {repository} |" in (ROOT / "docs" / "evaluation.md").read_text()
