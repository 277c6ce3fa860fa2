"""Comparison of several evaluations: check that they are comparable, and compute paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from calopd.core.errors import ConfigError
from calopd.core.statistics import Difference, Estimate, average, difference
from calopd.core.types import Sampling
from calopd.evaluation.results import MEAN, Results

TEACHER = "teacher"


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A row of the paper's table: a model, with its Avg@n on every benchmark and on average."""

    label: str
    role: str
    """student, teacher or method."""
    values: dict[str, Estimate]
    gains: dict[str, Difference]
    """Paired differences to the student; empty for the student."""


@dataclass(frozen=True, slots=True)
class Comparison:
    columns: list[str]
    """The benchmarks and, if there are several, their mean."""
    rows: list[ComparisonRow]
    n: int

    @property
    def student(self) -> ComparisonRow:
        return self.rows[0]

    def best(self, column: str) -> float:
        """The best value among the methods, at the precision of the table."""
        return max((_shown(row.values[column]) for row in self.rows if row.role == "method"), default=float("nan"))

    def is_best(self, row: ComparisonRow, column: str) -> bool:
        return row.role == "method" and _shown(row.values[column]) == self.best(column)


def _shown(estimate: Estimate) -> float:
    return round(100 * estimate.value, 1)


def compare(results: Sequence[Results], *, student: str | None = None, teacher: str | None = None) -> Comparison:
    """Compare results in the paper's order: student, teacher, then the methods with gains over the student."""
    if len(results) < 2:
        raise ConfigError(f"{len(results)} results given: a comparison needs at least two")
    labels = [r.label for r in results]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"duplicate labels in {', '.join(labels)}: set unique labels with `calopd eval LABEL=MODEL`")
    student = student or labels[0]
    teacher = teacher or (TEACHER if TEACHER in labels else None)
    for wanted in filter(None, (student, teacher)):
        if wanted not in labels:
            raise ConfigError(f"no results with label {wanted!r}: expected one of {', '.join(labels)}")
    roles = dict.fromkeys(labels, "method") | ({teacher: "teacher"} if teacher else {}) | {student: "student"}
    ordered = sorted(results, key=lambda r: ("student", "teacher", "method").index(roles[r.label]))
    base = ordered[0]
    for other in ordered[1:]:
        _check_comparable(base, other)
    columns = {name: [name] for name in base.names} | ({MEAN: base.names} if len(base.names) > 1 else {})
    rows = []
    for result in ordered:
        scores = {name: result.scores(name) for name in base.names}
        values = {column: average({name: scores[name] for name in names}) for column, names in columns.items()}
        gains = {
            column: difference({name: scores[name] for name in names}, {name: base.scores(name) for name in names})
            for column, names in columns.items()
            if result is not base
        }
        rows.append(ComparisonRow(result.label, roles[result.label], values, gains))
    return Comparison(list(columns), rows, base.n)


def _check_comparable(one: Results, other: Results) -> None:
    """Raise ConfigError unless problems and sampling settings are equal, so that only the models differ."""
    if one.names != other.names:
        raise ConfigError(
            f"{one.label} was evaluated on {', '.join(one.names)}, {other.label} on {', '.join(other.names)}: "
            "evaluate both on the same benchmarks"
        )
    for name in one.names:
        if one.benchmark(name)["sha256"] != other.benchmark(name)["sha256"]:
            raise ConfigError(
                f"{one.label} and {other.label} were evaluated on different versions of {name}: "
                "evaluate both on the same problems"
            )
    for setting in ("n", *(field.name for field in fields(Sampling))):
        if one.settings[setting] != other.settings[setting]:
            raise ConfigError(
                f"{one.label} was sampled with {setting} = {one.settings[setting]}, {other.label} with "
                f"{other.settings[setting]}: evaluate both with the same settings"
            )
