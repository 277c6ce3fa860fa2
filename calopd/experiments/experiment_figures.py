"""The figures of an experiment: metrics over steps, and accuracy and retained discrepancy over the values of a grid."""

from collections.abc import Sequence

from calopd.core.paper_results import paper_at_end
from calopd.evaluation.results import MEAN
from calopd.experiments.accuracy_table import LABELS, scored_arms
from calopd.experiments.discrepancy import read_discrepancy
from calopd.experiments.existing_run import settings_of
from calopd.experiments.experiment_file import FigurePart
from calopd.experiments.job_execution import final_retained, is_trained
from calopd.experiments.model_scores import read_scores
from calopd.experiments.planned_runs import BaselineJob, ExperimentJob, ExperimentPlan, RunJob, StudyJob
from calopd.experiments.variations import Variation, shown
from calopd.pages.comparison.run_groups import RunGroup
from calopd.pages.comparison.step_figures import step_figures
from calopd.pages.figures.data_table import DataTable, TableRow
from calopd.pages.figures.line_figure import Line, LineFigure, Mark
from calopd.pages.report import read_record

_DISCREPANCY = ("mean_absolute", "standard_error", "mean_log_ratio", "retained", "mean_length", "responses")


def run_groups(plan: ExperimentPlan, arms: Sequence[str]) -> list[RunGroup]:
    """The runs of some arms that have ended, one group per pair and variation."""
    groups = []
    for pair in plan.experiment.recipes:
        for variation in (one for arm in arms for one in plan.variations[arm]):
            jobs = [plan.run(pair, variation, seed) for seed in plan.experiment.seeds]
            records = [read_record(job.config.run_dir) for job in jobs if is_trained(job.config.run_dir)]
            records = [record for record in records if record.steps]
            label = variation.label if len(plan.experiment.recipes) == 1 else f"{variation.label}, {pair}"
            if records:
                groups.append(RunGroup(label, records))
    return groups


def experiment_figures(plan: ExperimentPlan, part: FigurePart) -> list[LineFigure]:
    if part.kind == "sweep":
        return _sweep(plan, part)
    return step_figures(run_groups(plan, part.arms), part.metrics, prefix=f"{part.key}-")


def _sweep(plan: ExperimentPlan, part: FigurePart) -> list[LineFigure]:
    figures = []
    for key, title in (("accuracy", "Accuracy"), ("retained_ratio", "Retained discrepancy")):
        lines, marks = [], []
        for pair in plan.experiment.recipes:
            for arm in part.arms:
                for label, points in _points(plan, pair, plan.variations[arm], part.x, key).items():
                    lines.append(Line.over_seeds(label, [x for x, _ in points], [values for _, values in points]))
                marks += _paper_points(plan, pair, arm, part.x, key)
        if lines:
            name = part.x.rpartition(".")[2]
            figures.append(
                LineFigure(
                    key=f"{part.key}-{key}", title=f"{title} against {name}", unit="ratio", x_title=name,
                    note="Mean over the steps of a run." if key == "retained_ratio" else "Mean over the benchmarks.",
                    lines=tuple(lines), marks=tuple(marks), logarithmic_x=True,
                )
            )  # fmt: skip
    return figures


def _sweep_label(plan: ExperimentPlan, pair: str, variation: Variation, x: str) -> str:
    """The arm, with the values of its grid's other keys: each combination is a line of its own."""
    others = [f"{key.rpartition('.')[2]} {shown(value)}" for key, value in variation.values.items() if key != x]
    pairs = [pair] if len(plan.experiment.recipes) > 1 else []
    return ", ".join([variation.arm, *others, *pairs])


def _points(
    plan: ExperimentPlan, pair: str, variations: Sequence[Variation], x: str, key: str
) -> dict[str, list[tuple[float, list[float]]]]:
    """Line -> (value of the grid's key, results of the finished seeds), ascending."""
    points: dict[str, list[tuple[float, list[float]]]] = {}
    for variation in variations:
        jobs = [plan.run(pair, variation, seed) for seed in plan.experiment.seeds]
        values = [value for job in jobs if (value := _result(plan, job, key)) is not None]
        if x in variation.values and values:
            line = points.setdefault(_sweep_label(plan, pair, variation, x), [])
            line.append((float(variation.values[x]), values))
    return {label: sorted(line) for label, line in points.items()}


def _result(plan: ExperimentPlan, job: RunJob, key: str) -> float | None:
    if key == "retained_ratio":
        return final_retained(job.config.run_dir)
    scores = read_scores(plan, job)
    return None if scores is None else scores.accuracy(MEAN)


def _paper_points(plan: ExperimentPlan, pair: str, arm: str, x: str, key: str) -> list[Mark]:
    """The paper's accuracy, or its retained ratio at the end of training, where the settings are the paper's."""
    marks = []
    scored = {row.label: row.paper.get(MEAN) for row in scored_arms(plan, [arm]) if row.pair == pair}
    for variation in (one for one in plan.variations[arm] if x in one.values):
        if key == "accuracy":
            value, when = scored.get(variation.label), ""
        else:
            settings = settings_of(plan.run(pair, variation, plan.experiment.seeds[0]))
            value, when = paper_at_end(settings, key), ", at the end"
        if value is not None:
            label, line = f"the paper, {variation.label}{when}", _sweep_label(plan, pair, variation, x)
            marks.append(Mark(label, value, float(variation.values[x]), line))
    return marks


def _model_label(plan: ExperimentPlan, job: ExperimentJob) -> str:
    """The label that a model has in tables, with its seed and pair if there are several."""
    if isinstance(job, BaselineJob):
        words = [LABELS[job.role]]
    else:
        words = [label for (_, label, _), name in plan.run_names.items() if name == job.name][:1]
    if isinstance(job, RunJob) and len(plan.experiment.seeds) > 1:
        words.append(f"seed {job.seed}")
    if not isinstance(job, StudyJob) and len(plan.experiment.recipes) > 1:
        words.append(job.pair)
    return ", ".join(words)


def discrepancy_table(plan: ExperimentPlan) -> DataTable | None:
    """Held-out discrepancy of the initial and the trained students; None if none was measured yet."""
    table = DataTable(
        key="discrepancy",
        title="Held-out discrepancy between teacher and student",
        note=(
            "On the student's own responses to held-out problems, in nats per token. ± is the standard error over the "
            "responses of one model. Retained: the share beyond the teacher's self-deviation, relaxation 5."
        ),
        header=["Model", "mean |lT - lS|", "mean lS - lT", "retained", "length", "responses"],
        csv_header=["model", *_DISCREPANCY],
    )
    for job in (job for job in plan.jobs if not isinstance(job, StudyJob)):
        found = read_discrepancy(plan, job)
        if found is not None:
            error = f"{found['mean_absolute']:.3f} ± {found['standard_error']:.3f}"
            cells = [_model_label(plan, job), error, f"{found['mean_log_ratio']:.3f}", f"{found['retained']:.1%}"]
            table.rows.append(TableRow([*cells, f"{found['mean_length']:.1f}", f"{found['responses']:,}"]))
            table.csv_rows.append([job.name, *(found[key] for key in _DISCREPANCY)])
    return table if table.rows else None
