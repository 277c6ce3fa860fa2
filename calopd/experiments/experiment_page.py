"""experiment.html and the files beside it: tables and figures of the runs that are finished so far."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from calopd.experiments.accuracy_table import accuracy_table, difference_table, scored_arms
from calopd.experiments.experiment_figures import discrepancy_table, experiment_figures, run_groups
from calopd.experiments.job_execution import is_done
from calopd.experiments.planned_runs import BaselineJob, ExperimentPlan, StudyJob
from calopd.experiments.study_tables import MeasuredStudy, measured_studies, study_tables
from calopd.pages.comparison.compared_page import render_figures
from calopd.pages.comparison.efficiency import efficiency_table
from calopd.pages.comparison.run_groups import RunGroup
from calopd.pages.document import document
from calopd.pages.figures.data_table import DataTable
from calopd.pages.figures.exports import export_figure, export_table
from calopd.pages.report.report_page import DEMO_MODELS, DEMO_NOTE, EMULATED_NOTE
from calopd.rundir.files import write_text
from calopd.study.layout import StudyDir


def write_results(plan: ExperimentPlan) -> Path:
    """Write the page, and every table and figure as CSV, LaTeX and SVG."""
    experiment, out = plan.experiment, plan.files.results(plan.name)
    sections = ""
    for part in experiment.tables:
        rows = scored_arms(plan, part.arms)
        if rows:
            tables = accuracy_table(plan, part, rows), difference_table(plan, part, rows)
            sections += _section(part.title, *tables, out=out)
    held_out = discrepancy_table(plan)
    if held_out is not None:
        sections += _section(held_out.title, held_out, out=out)
    for figure in experiment.figures:
        drawn = experiment_figures(plan, figure)
        for one in drawn:
            export_figure(one, out)
        if drawn:
            sections += f"<section><h2>{escape(figure.title)}</h2>{render_figures(drawn)}</section>\n"
    groups = _distinct(run_groups(plan, list(experiment.arms)))
    if groups:
        sections += _section("Efficiency", efficiency_table(groups), out=out)
    studies = measured_studies(plan)
    if studies:
        sections += _section(
            "Teacher self-deviation", *study_tables(studies), out=out, links=_study_links(plan, studies)
        )
    return write_text(plan.files.page(plan.name), document(experiment.title, _header(plan) + sections + _jobs(plan)))


def _distinct(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Every run once, under the label of the first arm that it is part of."""
    by_runs: dict[tuple[str, ...], RunGroup] = {}
    for group in groups:
        by_runs.setdefault(tuple(record.name for record in group.records), group)
    return list(by_runs.values())


def _section(title: str, *tables: DataTable, out: Path, links: str = "") -> str:
    for table in tables:
        export_table(table, out)
    shown = "".join(table.html("" if table.title == title else "h3") for table in tables if table.rows)
    return f"<section><h2>{escape(title)}</h2>{shown}{links}</section>\n"


def _study_links(plan: ExperimentPlan, studies: Sequence[MeasuredStudy]) -> str:
    """The page of every study, and its comparison with the study whose rollouts it has."""
    links = ""
    for name in (study.name for study in studies):
        folder, other = f"../../studies/{escape(name)}", escape(plan.experiment.studies[name].rollouts_of)
        links += f'<li><a href="{folder}/tsd.html">{escape(name)}</a>'
        if StudyDir(plan.files.study(name)).comparison.exists():
            links += f', <a href="{folder}/compare.html">beside {other}</a>'
        links += "</li>"
    return f"<h3>Pages of the studies</h3><ul>{links}</ul>"


def _header(plan: ExperimentPlan) -> str:
    done = sum(is_done(plan, job) for job in plan.jobs)
    facts = {
        "jobs done": f"{done} of {len(plan.jobs)}",
        "seeds": ", ".join(map(str, plan.experiment.seeds)),
        "steps": ", ".join(sorted({str(job.config.run.steps) for job in plan.runs})),
        "responses per step": ", ".join(sorted({str(job.config.learner.trajectories) for job in plan.runs})),
    }
    about = "".join(f"<span>{escape(key)} <b>{escape(value)}</b></span>" for key, value in facts.items() if value)
    notices = [plan.experiment.note] if plan.experiment.note else []
    if done < len(plan.jobs):
        notices.append("Unfinished: tables and figures contain only the runs that have ended so far.")
    if any(job.config.emulated for job in plan.jobs):
        notices.append(EMULATED_NOTE)
    if any(DEMO_MODELS in job.config.student.path for job in plan.jobs):
        notices.append(DEMO_NOTE)
    shown = "".join(f'<p class="notice">{escape(notice)}</p>' for notice in notices)
    return (
        f'<header class="top"><p class="kicker">Experiment</p><h1>{escape(plan.experiment.title)}</h1>'
        f'<p class="about">{about}</p></header>{shown}\n'
    )


def _jobs(plan: ExperimentPlan) -> str:
    """All jobs with their state."""
    rows = ""
    for job in plan.jobs:
        state = "done" if is_done(plan, job) else "not done"
        page = "" if isinstance(job, BaselineJob) else f"../../runs/{job.name}/report.html"
        if isinstance(job, StudyJob):
            page = f"../../studies/{job.study}/tsd.html"
        name = f'<a href="{escape(page)}">{escape(job.name)}</a>' if page and state == "done" else escape(job.name)
        rows += f"<tr><th>{name}</th><td>{state}</td></tr>"
    return (
        f'<section><details><summary><h2>Jobs</h2></summary><table class="results"><tbody>{rows}</tbody></table>'
        "</details></section>"
    )
