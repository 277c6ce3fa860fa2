"""The tables of an analysis as CSV files."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from calopd.core.tsd.token_forms import FormTable, kind
from calopd.rundir.files import atomic_file

CsvRow = Sequence[Any]


def prevalence_rows(analysis: dict[str, Any]) -> Iterable[CsvRow]:
    yield "tau", "context_or_group", "what", "tokens", "share"
    for tau, part in analysis["prevalence"].items():
        for what, entries in (("context", part["contexts"]), ("union", part["groups"])):
            for name, entry in entries.items():
                yield tau, name, what, entry["tokens"], entry["share"]


def retention_rows(analysis: dict[str, Any]) -> Iterable[CsvRow]:
    yield "tau", "from", "to", "retention"
    for tau, table in analysis["retention"].items():
        for one, row in table.items():
            for other, value in row.items():
                yield tau, one, other, value


def consistency_rows(analysis: dict[str, Any]) -> Iterable[CsvRow]:
    yield "tau", "group", "overlap", "agreement", "sdr", "joint_tokens"
    for tau, table in analysis["consistency"].items():
        for name, row in table.items():
            yield tau, name, row["overlap"], row["agreement"], row["sdr"], row["joint_tokens"]


def relaxation_rows(analysis: dict[str, Any]) -> Iterable[CsvRow]:
    yield "probes", "relaxation", "retained", "zero"
    grid = analysis["relaxation"]["grid"]
    for name, curve in analysis["relaxation"]["probes"].items():
        for relaxation, retained, zero in zip(grid, curve["retained"], curve["zero"], strict=True):
            yield name, relaxation, retained, zero


def shared_rows(analysis: dict[str, Any]) -> Iterable[CsvRow]:
    yield "tau", "length", "list", "one", "other", "shared"
    for tau, part in analysis["forms"].items():
        for length, lists in part["shared"].items():
            for which, entry in lists.items():
                for one, row in entry["pairs"].items():
                    for other, count in row.items():
                        yield tau, length, which, one, other, count


def kind_rows(analysis: dict[str, Any]) -> Iterable[CsvRow]:
    yield "tau", "kind", "tokens", "context", "rho"
    for tau, part in analysis["kinds"].items():
        for name, entry in part.items():
            for context, rho in entry["rho"].items():
                yield tau, name, entry["tokens"], context, rho


def form_rows(analysis: dict[str, Any], forms: FormTable) -> Iterable[CsvRow]:
    """All forms over the limit, not only the ends of the ranking."""
    yield "tau", "context", "form", "kind", "count", "rho", "mean_abs_deviation"
    rho, mean = forms.rho_FCK, forms.mean_FCK
    for k, tau in enumerate(analysis["taus"]):
        for c, context in enumerate(analysis["contexts"]):
            for f in forms.ranked(c, k):
                form = forms.forms[f]
                yield f"{tau:g}", context, form, kind(form), int(forms.count_F[f]), rho[f, c, k], mean[f, c, k]


def write_tables(folder: Path, analysis: dict[str, Any], forms: FormTable) -> None:
    tables = {
        "prevalence": prevalence_rows(analysis),
        "retention": retention_rows(analysis),
        "consistency": consistency_rows(analysis),
        "relaxation": relaxation_rows(analysis),
        "shared_forms": shared_rows(analysis),
        "kinds": kind_rows(analysis),
        "forms": form_rows(analysis, forms),
    }
    for name, rows in tables.items():
        with (
            atomic_file(folder / f"{name}.csv") as temporary,
            temporary.open("w", encoding="utf-8", newline="") as out,
        ):
            csv.writer(out).writerows(rows)
