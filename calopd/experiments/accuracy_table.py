"""The paper's table over seeds, both pairs in one; and differences with intervals and corrected p-values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calopd.core.paper_results import (
    BENCHMARKS,
    STUDENT,
    TEACHER,
    pair_of,
    paper_accuracy,
    paper_arm,
    size_note,
)
from calopd.core.statistics import Difference, Spread, holm, seeded_difference, spread
from calopd.evaluation.accuracy_tables import p_value, points
from calopd.evaluation.results import MEAN
from calopd.experiments.existing_run import settings_of
from calopd.experiments.experiment_file import EvaluationPart, TablePart
from calopd.experiments.model_scores import ModelScores, read_scores
from calopd.experiments.planned_runs import ExperimentPlan
from calopd.experiments.variations import Variation
from calopd.pages.figures.data_table import DataTable, TableRow

LABELS = {STUDENT: "Student", TEACHER: "Teacher"}


@dataclass(frozen=True, slots=True)
class ScoredArm:
    """A row of the table: a model of a pair, with the scores of every finished seed."""

    pair: str
    label: str
    seeds: dict[int, ModelScores]
    """Seed -> scores; a model that was not trained has one entry."""
    planned: int
    paper: dict[str, float]
    """The paper's accuracy of this row, where the settings are the paper's."""

    def spread(self, benchmark: str) -> Spread:
        return spread([scores.accuracy(benchmark) for scores in self.seeds.values()])

    @property
    def first(self) -> ModelScores:
        return next(iter(self.seeds.values()))


def scored_arms(plan: ExperimentPlan, arms: Sequence[str]) -> list[ScoredArm]:
    """All rows with at least one finished evaluation, pair by pair: student, teacher, variations of the arms."""
    rows = []
    paper = _evaluates_as_paper(plan.experiment.evaluation)
    for pair in plan.experiment.recipes:
        for job in (job for job in plan.baselines if job.pair == pair):
            scores = read_scores(plan, job)
            if scores is not None and job.role in plan.experiment.evaluation.baselines:
                names = pair_of(_recipe_settings(plan, pair))
                known = paper_accuracy(names, job.role) if paper else {}
                rows.append(ScoredArm(pair, LABELS[job.role], {0: scores}, 1, _comparable(known, scores)))
        for variation in (one for arm in arms for one in plan.variations[arm]):
            found = _seeds(plan, pair, variation)
            if found:
                known = _paper(plan, pair, variation) if paper else {}
                known = _comparable(known, next(iter(found.values())))
                rows.append(ScoredArm(pair, variation.label, found, len(plan.experiment.seeds), known))
    return rows


def _recipe_settings(plan: ExperimentPlan, pair: str) -> dict[str, dict[str, object]]:
    config = next(job.config for job in plan.jobs if getattr(job, "pair", None) == pair)
    settings: dict[str, dict[str, object]] = config.model_dump(mode="json")
    return settings


def _seeds(plan: ExperimentPlan, pair: str, variation: Variation) -> dict[int, ModelScores]:
    found = {}
    for seed in plan.experiment.seeds:
        scores = read_scores(plan, plan.run(pair, variation, seed))
        if scores is not None:
            found[seed] = scores
    return found


def _paper(plan: ExperimentPlan, pair: str, variation: Variation) -> dict[str, float]:
    arm = paper_arm(settings_of(plan.run(pair, variation, plan.experiment.seeds[0])))
    return {} if arm is None else paper_accuracy(*arm)


def _comparable(paper: dict[str, float], scores: ModelScores) -> dict[str, float]:
    """The paper's mean is over its six benchmarks: it does not compare with the mean over others."""
    same = set(scores.benchmarks) == set(BENCHMARKS)
    return {name: value for name, value in paper.items() if same or name != MEAN}


def _evaluates_as_paper(part: EvaluationPart) -> bool:
    default = EvaluationPart()
    keys = ("n", "temperature", "top_p", "max_tokens", "problems")
    return all(getattr(part, key) == getattr(default, key) for key in keys)


def accuracy_table(plan: ExperimentPlan, part: TablePart, rows: Sequence[ScoredArm]) -> DataTable:
    """The paper's layout: benchmarks in columns, one block per pair, the best method of a block bold."""
    columns = _columns(rows)
    table = DataTable(
        key=part.key,
        title=part.title,
        note=" ".join([_note(plan, rows), *size_notes(rows)]),
        header=["Model / Method", *("Avg." if c == MEAN else c for c in columns)],
        csv_header=["pair", "model", "benchmark", "n", "seeds", "mean", "sd_over_seeds", "paper"],
    )
    for pair in dict.fromkeys(row.pair for row in rows):
        block = [row for row in rows if row.pair == pair]
        heading = _heading(plan, pair)
        for row in block:
            cells = [row.label if len(row.seeds) == row.planned else f"{row.label} ({len(row.seeds)} of {row.planned})"]
            cells += [_cell(row.spread(column)) for column in columns]
            method = row.label not in LABELS.values()
            bold = frozenset(n for n, c in enumerate(columns, 1) if method and _best(block, c, row))
            table.rows.append(TableRow(cells, bold, heading))
            heading = ""
            if row.paper:
                shown = [f"{100 * row.paper[c]:.1f}" if c in row.paper else "" for c in columns]
                table.rows.append(TableRow([f"{row.label}, the paper", *shown]))
            for column in columns:
                found = row.spread(column)
                sd = "" if found.deviation is None else found.deviation
                table.csv_rows.append(
                    [pair, row.label, column, plan.experiment.evaluation.n, found.count, found.mean, sd,
                     row.paper.get(column, "")]
                )  # fmt: skip
    return table


def _columns(rows: Sequence[ScoredArm]) -> list[str]:
    names = rows[0].first.benchmarks if rows else []
    return [*names, MEAN] if len(names) > 1 else names


def _cell(found: Spread) -> str:
    return f"{100 * found.mean:.1f}" + ("" if found.deviation is None else f" ± {100 * found.deviation:.1f}")


def _best(block: Sequence[ScoredArm], column: str, row: ScoredArm) -> bool:
    methods = [one.spread(column).mean for one in block if one.label not in LABELS.values()]
    return round(row.spread(column).mean, 3) == round(max(methods), 3)


def _heading(plan: ExperimentPlan, pair: str) -> str:
    student, teacher = pair_of(_recipe_settings(plan, pair))
    return f"{teacher} → {student}"


def _note(plan: ExperimentPlan, rows: Sequence[ScoredArm]) -> str:
    seeds = len(plan.experiment.seeds)
    spread_words = "one seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds"
    mean = "; the last column is the unweighted mean" if MEAN in _columns(rows) else ""
    return f"Avg@{plan.experiment.evaluation.n} in percent, {spread_words}{mean}."


def size_notes(rows: Sequence[ScoredArm]) -> list[str]:
    """Benchmarks of the paper with another number of problems than the paper's."""
    counts = {(name, len(scores)): None for row in rows for name, scores in row.first.scores.items()}
    notes = [note for name, count in counts if (note := size_note(name, count))]
    if rows and not set(rows[0].first.benchmarks) & set(BENCHMARKS):
        notes.append("None of the paper's benchmarks is in this table.")
    return notes


def difference_table(plan: ExperimentPlan, part: TablePart, rows: Sequence[ScoredArm]) -> DataTable:
    """Differences of the mean to one row of the same pair, with intervals and p-values corrected by Holm's method."""
    labels = {STUDENT: LABELS[STUDENT]} | {arm: plan.variations[arm][0].label for arm in plan.variations}
    found: dict[tuple[str, str], tuple[Difference, int]] = {}
    for row in rows:
        base = next((one for one in rows if one.pair == row.pair and one.label == labels[part.against]), None)
        if base is not None and base is not row and row.label not in LABELS.values():
            paired = _paired(row, base)
            if paired is not None:
                found[row.pair, row.label] = paired
    corrected = holm({key: gain.p_value for key, (gain, _) in found.items()})
    table = DataTable(
        key=f"{part.key}-differences",
        title=f"{part.title}: difference to {labels[part.against]}",
        note=(
            "Points of the mean, with the 95 % interval of a paired bootstrap over problems and seeds. p is two-sided; "
            f"Holm's correction is for the {len(found)} comparisons of this table. With few seeds it is too narrow."
        ),
        header=["Method", "difference [95 % interval]", "p", "p, corrected", "seeds"],
        csv_header=["pair", "model", "difference", "low", "high", "p_value", "p_holm", "seeds"],
    )
    pair = ""
    for key, (gain, seeds) in found.items():
        cells = [key[1], points(gain), p_value(gain.p_value), p_value(corrected[key]), str(seeds)]
        table.rows.append(TableRow(cells, group=_heading(plan, key[0]) if key[0] != pair else ""))
        pair = key[0]
        numbers = (gain.estimate.value, gain.estimate.low, gain.estimate.high, gain.p_value, corrected[key])
        table.csv_rows.append([*key, *numbers, seeds])
    return table


def _paired(row: ScoredArm, base: ScoredArm) -> tuple[Difference, int] | None:
    """The difference over the seeds that both have; a model that was not trained is compared with each of them."""
    untrained = base.label in LABELS.values()
    seeds = [seed for seed in row.seeds if untrained or seed in base.seeds]
    if not seeds or any(row.seeds[seed].sha256 != base.first.sha256 for seed in seeds):
        return None
    names = row.first.benchmarks
    ours = {name: np.array([row.seeds[seed].scores[name] for seed in seeds]) for name in names}
    theirs = {
        name: np.array([(base.first if untrained else base.seeds[seed]).scores[name] for seed in seeds])
        for name in names
    }
    return seeded_difference(ours, theirs), len(seeds)
