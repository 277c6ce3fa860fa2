"""Several evaluations side by side: whether they may be compared, and how sure their differences are."""

from collections.abc import Sequence
from dataclasses import dataclass

from calopd.core.errors import ConfigError
from calopd.core.statistics import Difference, Estimate, average, difference
from calopd.evaluation.results import MEAN, Results

TEACHER = "teacher"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the paper's table: a model, its Avg@n on every benchmark and on average."""

    label: str
    role: str
    """student, teacher or method."""
    values: dict[str, Estimate]
    gains: dict[str, Difference]
    """Over the student, problem by problem; empty for the student."""


@dataclass(frozen=True, slots=True)
class Comparison:
    columns: list[str]
    """The benchmarks; last, where there are several, their mean."""
    rows: list[Row]
    n: int

    @property
    def student(self) -> Row:
        return self.rows[0]

    def best(self, column: str) -> float:
        """The best value of the methods, at the precision of the table."""
        return max((_shown(row.values[column]) for row in self.rows if row.role == "method"), default=float("nan"))

    def is_best(self, row: Row, column: str) -> bool:
        return row.role == "method" and _shown(row.values[column]) == self.best(column)


def _shown(estimate: Estimate) -> float:
    return round(100 * estimate.value, 1)


def compare(results: Sequence[Results], *, student: str | None = None, teacher: str | None = None) -> Comparison:
    """The paper's layout: student, teacher, then the methods, with gains over the student."""
    if len(results) < 2:
        raise ConfigError("a comparison needs the results of at least two models")
    labels = [r.label for r in results]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"two results bear one label among {', '.join(labels)}: evaluate with LABEL=MODEL")
    student = student or labels[0]
    teacher = teacher or (TEACHER if TEACHER in labels else None)
    for wanted in filter(None, (student, teacher)):
        if wanted not in labels:
            raise ConfigError(f"no results are labelled {wanted!r}: there are {', '.join(labels)}")
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
        rows.append(Row(result.label, roles[result.label], values, gains))
    return Comparison(list(columns), rows, base.n)


def _check_comparable(one: Results, other: Results) -> None:
    """Pairs of other problems, or of other sampling, would compare more than the models."""
    if one.names != other.names:
        raise ConfigError(
            f"{one.label} was evaluated on {', '.join(one.names)}, {other.label} on {', '.join(other.names)}: "
            "evaluate both on the same benchmarks"
        )
    for name in one.names:
        if one.benchmark(name)["sha256"] != other.benchmark(name)["sha256"]:
            raise ConfigError(f"{one.label} and {other.label} were evaluated on different problems called {name}")
    for setting in ("n", "temperature", "top_p", "max_tokens"):
        if one.settings[setting] != other.settings[setting]:
            raise ConfigError(
                f"{one.label} was sampled with {setting} = {one.settings[setting]}, {other.label} with "
                f"{other.settings[setting]}: evaluate both alike"
            )
