"""Pictures of the dashboards: what of a panel is drawn."""

from typing import Any

import pytest

from deploy.monitoring.grafana import pictures
from tests.deploy import check

SERIES = [
    {"metric": {"run": "one"}, "values": [[0, "0.25"], [60, "0.5"], [120, "NaN"]]},
    {"metric": {"run": "two"}, "values": [[0, "1"]]},
]


@pytest.fixture(autouse=True)
def prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "query", lambda *_: SERIES)


def drawn(kind: str, **changed: Any) -> dict[str, Any]:
    panels = [panel for page in check.pages(check.ROOT).values() for panel in page["panels"]]
    panel = next(panel for panel in panels if panel["type"] == kind)
    found = pictures.figure({**panel, **changed}, "", 0, 120)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", pictures.NUMBERS)
def test_a_gauge_is_drawn_as_its_last_values(kind: str) -> None:
    traces = drawn("gauge", type=kind)["data"]
    assert [(trace["type"], trace["title"]["text"], trace["value"]) for trace in traces] == [
        ("indicator", "one", 0.5),
        ("indicator", "two", 1.0),
    ]
    assert {trace["number"]["valueformat"] for trace in traces} == {".1%"}
    assert [trace["domain"]["x"] for trace in traces] == [[0, 0.5], [0.5, 1]]


def test_a_time_series_is_drawn_as_curves() -> None:
    assert {trace["type"] for trace in drawn("timeseries")["data"]} == {"scatter"}


def test_a_gauge_without_a_number_has_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "query", lambda *_: [{"metric": {}, "values": [[0, "NaN"]]}])
    gauge = next(panel for panel in check.pages(check.ROOT)["calibration"]["panels"] if panel["type"] == "gauge")
    assert pictures.figure(gauge, "", 0, 120) is None
