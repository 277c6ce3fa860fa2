"""The studies of an experiment in common tables, one row per study, with the paper's numbers where they apply."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calopd.config import load_config
from calopd.core.errors import ConfigError
from calopd.core.paper_results import pair_of
from calopd.core.paper_study import FORMS_CONTEXT, Form, PaperStudy, paper_study
from calopd.experiments.job_execution import is_done
from calopd.experiments.planned_runs import ExperimentPlan, StudyJob
from calopd.pages.figures.data_table import DataTable, TableRow
from calopd.rundir.files import read_json
from calopd.study.layout import StudyDir
from calopd.study.shards import Study
from calopd.study.terminal_tables import percent

SHOWN_FORMS = 3
_CSV: list[object] = ["study", "teacher", "student", "tau", "measure", "value", "paper", "paper_at_least"]
Measures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class MeasuredStudy:
    name: str
    analysis: dict[str, Any]
    paper: PaperStudy | None
    """The paper's numbers, if the study is the paper's."""

    @property
    def pair(self) -> tuple[str, str]:
        """Names of teacher and student."""
        facts = self.analysis["study"]
        student, teacher = pair_of({role: {"path": facts.get(role, "")} for role in ("student", "teacher")})
        return teacher, student


def measured_studies(plan: ExperimentPlan) -> list[MeasuredStudy]:
    """The studies that are analysed, in the order of the plan."""
    found = []
    for job in plan.jobs:
        if isinstance(job, StudyJob) and is_done(plan, job):
            files = StudyDir(plan.files.study(job.study))
            found.append(MeasuredStudy(job.study, read_json(files.analysis), _paper(files)))
    return found


def _paper(files: StudyDir) -> PaperStudy | None:
    """The paper's numbers, by the configuration that the study was collected with and that of its rollouts."""
    study = source = Study(files.path)
    try:
        while recorded := source.facts.get("recorded"):
            source = Study(Path(recorded))
        config, sampled = (load_config(one.files.config, environ={}).model_dump(mode="json") for one in (study, source))
    except ConfigError:  # moved, or of another version: nobody knows whether its settings are the paper's
        return None
    return paper_study(config, study.contexts, sampled)


def study_tables(studies: Sequence[MeasuredStudy]) -> list[DataTable]:
    """Rollouts, prevalence, retention, consistency and token forms of all studies."""
    prevalence = "Share of the tokens that move, in percent: |D| > τ."
    retention = "Of the tokens that move under one group, the share that moves under another, in percent."
    consistency = "Overlap, agreement and shared deviation ratio (SDR) of the two contexts of a group, in percent."
    return [
        _rollouts(studies),
        _measures(studies, "prevalence", prevalence, _prevalence),
        _measures(studies, "retention", retention, _retention),
        _measures(studies, "consistency", consistency, _consistency),
        _forms(studies),
    ]


def _rollouts(studies: Sequence[MeasuredStudy]) -> DataTable:
    about = " The paper's number of tokens is approximate." if any(study.paper for study in studies) else ""
    table = DataTable(
        key="study-rollouts", title="Rollouts", note=f"The student's responses that the teacher scored.{about}",
        header=["Study", "teacher", "student", "tokens", "rollouts", "mean length", "median length"],
        csv_header=["study", "teacher", "student", "tokens", "rollouts", "mean_length", "median_length"],
    )  # fmt: skip
    for study in studies:
        one, paper, length = study.analysis, study.paper, study.analysis["length"]
        rows = [(study.name, (one["tokens"], one["rollouts"], length["mean"], length["median"]))]
        if paper is not None:
            counts = (paper.tokens, paper.rollouts, paper.mean_length, paper.median_length)
            rows.append((f"{study.name}, the paper", counts))
        for label, numbers in rows:
            table.rows.append(TableRow([label, *study.pair, *(f"{number:,.0f}" for number in numbers)]))
            table.csv_rows.append([label, *study.pair, *numbers])
    return table


def _prevalence(analysis: dict[str, Any], tau: str) -> Measures:
    part, measures = analysis["prevalence"][tau], Measures()
    for group, contexts in analysis["groups"].items():
        measures |= {context: part["contexts"][context]["share"] for context in contexts}
        if len(contexts) > 1:
            measures[f"{group} union"] = part["groups"][group]["share"]
    return measures


def _retention(analysis: dict[str, Any], tau: str) -> Measures:
    table = analysis["retention"][tau].items()
    return {f"{one} → {other}": value for one, row in table for other, value in row.items() if one != other}


def _consistency(analysis: dict[str, Any], tau: str) -> Measures:
    words = {"overlap": "overlap", "agreement": "agreement", "sdr": "SDR"}
    table = analysis["consistency"][tau].items()
    return {f"{group} {word}": row[key] for group, row in table for key, word in words.items()}


def _by_tau(studies: Sequence[MeasuredStudy]) -> Iterable[tuple[str, MeasuredStudy, str]]:
    """(threshold, study that has it, heading above the first study of a threshold)."""
    for tau in sorted({tau for study in studies for tau in study.analysis["prevalence"]}, key=float):
        heading = f"τ = {tau}"
        for study in (one for one in studies if tau in one.analysis["prevalence"]):
            yield tau, study, heading
            heading = ""


def _measures(
    studies: Sequence[MeasuredStudy], part: str, note: str, read: Callable[[dict[str, Any], str], Measures]
) -> DataTable:
    """One row per study and threshold, one column per measure that a study has."""
    columns = list(dict.fromkeys(name for tau, study, _ in _by_tau(studies) for name in read(study.analysis, tau)))
    table = DataTable(
        key=f"study-{part}", title=part.capitalize(), note=note, header=["Study", *columns], csv_header=_CSV
    )
    for tau, study, heading in _by_tau(studies):
        values = read(study.analysis, tau)
        table.rows.append(TableRow([study.name, *(percent(values.get(name)) for name in columns)], group=heading))
        known, bounds = ({}, {}) if study.paper is None else (study.paper.measures, study.paper.at_least)
        paper, least = known.get(tau, {}), bounds.get(tau, {})
        shown = [percent(paper[n]) if n in paper else f"≥ {percent(least[n])}" if n in least else "" for n in columns]
        if any(shown):
            table.rows.append(TableRow([f"{study.name}, the paper", *shown]))
        table.csv_rows.extend(
            [study.name, *study.pair, tau, name, value, paper.get(name, ""), least.get(name, "")]
            for name, value in values.items()
        )
    return table


def _forms(studies: Sequence[MeasuredStudy]) -> DataTable:
    """Both ends of the ranking under the context of the paper's table; the page of a study has all contexts."""
    ends = {"top": "highest ρ", "bottom": "lowest ρ"}
    table = DataTable(
        key="study-forms", title=f"Token forms under {FORMS_CONTEXT}",
        note="ρ is the share of the occurrences of a form that move, in percent.",
        header=["Study", *(f"{words}, {n}" for words in ends.values() for n in range(1, SHOWN_FORMS + 1))],
        csv_header=["study", "teacher", "student", "tau", "list", "rank", "form", "rho"],
    )  # fmt: skip
    for tau, study, heading in _by_tau([one for one in studies if FORMS_CONTEXT in one.analysis["contexts"]]):
        lists = study.analysis["forms"][tau]
        own = {end: [(e["form"], e["rho"]) for e in lists[end][FORMS_CONTEXT]] for end in ends}
        rows: list[tuple[str, str, Mapping[str, Sequence[Form]]]] = [(study.name, heading, own)]
        if study.paper is not None and tau in study.paper.forms:
            rows.append((f"{study.name}, the paper", "", study.paper.forms[tau]))
        for label, above, forms in rows:
            cells = [_form(forms[end], place) for end in ends for place in range(SHOWN_FORMS)]
            table.rows.append(TableRow([label, *cells], group=above))
            for end in ends:
                ranked = enumerate(forms[end][:SHOWN_FORMS], 1)
                table.csv_rows.extend([label, *study.pair, tau, end, rank, form, rho] for rank, (form, rho) in ranked)
    return table


def _form(forms: Sequence[Form], place: int) -> str:
    if place >= len(forms):
        return ""
    form, rho = forms[place]
    return f"{form if form.isprintable() else repr(form)[1:-1]} {percent(rho)}"
