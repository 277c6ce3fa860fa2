"""Pictures of the dashboards from a Prometheus that has scraped a run: `make dashboard-pictures`.

    python -m deploy.monitoring.grafana.pictures --prometheus http://127.0.0.1:9090 --minutes 20 -o docs/images

The panels, their places and their queries are those of dashboards/*.json. They are drawn by calopd's own charts, since
Grafana is a server that needs a browser session: the pictures show what the panels contain, not how Grafana looks.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from html import escape
from pathlib import Path
from typing import Any

from calopd.pages.charts import base_layout, line_trace, series_colour
from calopd.pages.document import document, figure_html

HERE = Path(__file__).parent
PAGES = ("calibration", "pipeline")
WIDTH = 1800
ROW_PIXELS = 34
"""Height of one unit of Grafana's grid."""
POINTS = 240
STYLE = f"""main{{max-width:none;padding:20px}}
.grid{{display:grid;grid-template-columns:repeat(24,minmax(0,1fr));grid-auto-rows:{ROW_PIXELS}px;gap:6px}}
.grid figure{{padding:8px 10px 2px;overflow:hidden}} .grid figcaption{{flex:none}} .grid figcaption p{{display:none}}
.grid h2{{font-size:15px;align-self:end;margin:0}} .grid figure:last-child:nth-child(odd){{grid-column:auto}}
.kicker{{margin:2px 0 10px}} .modebar{{display:none!important}}"""
TICKS = {"percentunit": "~%", "bytes": "~s"}
SUFFIXES = {"s": " s", "bytes": "B"}
NUMBERS = ("gauge", "stat")
"""Kinds of panels that show the last value of a series, not its curve."""
FORMATS = {"percentunit": ".1%", "bytes": ".3~s"}
"""Unit -> format of such a value; ".4~g" for all others."""


def query(prometheus: str, expression: str, start: float, end: float) -> list[dict[str, Any]]:
    step = max(1, math.ceil((end - start) / POINTS))
    words = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": step})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{words}", timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def legend(form: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        form = form.replace("{{" + name + "}}", value)
    return form


def figure(panel: dict[str, Any], prometheus: str, start: float, end: float) -> dict[str, Any] | None:
    """A panel from the start to the end: its curves over the minutes, or its last values; None without data."""
    drawn = curves(panel, prometheus, start, end)
    return numbers(panel, drawn["data"]) if drawn and panel["type"] in NUMBERS else drawn


def numbers(panel: dict[str, Any], series: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The last value of every series in large digits, side by side."""
    known = [(each["name"], [y for y in each["y"] if math.isfinite(y)]) for each in series]
    last = [(name, values[-1]) for name, values in known if values]
    unit = panel["fieldConfig"]["defaults"].get("unit", "")
    form = {"valueformat": FORMATS.get(unit, ".4~g"), "suffix": SUFFIXES.get(unit, ""), "font": {"color": "--ink"}}
    traces = [
        {
            "type": "indicator", "mode": "number", "value": value, "number": form,
            "title": {"text": name, "font": {"size": 12}},
            "domain": {"x": [place / len(last), (place + 1) / len(last)], "y": [0, 1]},
        }
        for place, (name, value) in enumerate(last)
    ]  # fmt: skip
    return {"data": traces, "layout": base_layout(legend=False) | {"height": _height(panel)}} if traces else None


def curves(panel: dict[str, Any], prometheus: str, start: float, end: float) -> dict[str, Any] | None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = "stacking" in defaults.get("custom", {})
    traces: list[dict[str, Any]] = []
    for target in panel["targets"]:
        for variable, value in {"$__rate_interval": "1m", "$run": ".*", "$replica": ".*"}.items():
            target = {**target, "expr": target["expr"].replace(variable, value)}
        for series in query(prometheus, target["expr"], start, end):
            paper = target["legendFormat"].startswith("paper")
            trace = line_trace("--idle" if paper else series_colour(len(traces)), single=len(series["values"]) == 1)
            trace["line"]["width"] = 1.5
            traces.append(trace | {
                "x": [(at - start) / 60 for at, _ in series["values"]],
                "y": [float(value) for _, value in series["values"]],
                "name": legend(target["legendFormat"], series["metric"]),
                **({"stackgroup": "all"} if stacked else {}),
            })  # fmt: skip
    if not traces:
        return None
    layout = base_layout(legend=len(traces) > 1) | {"height": _height(panel)}
    layout["legend"] |= {"y": -0.12, "yanchor": "top", "font": {"size": 10}}
    layout["xaxis"] |= {"range": [0, (end - start) / 60], "ticksuffix": " min", "nticks": 7}
    scale = "log" if "scaleDistribution" in defaults.get("custom", {}) else "linear"
    unit = defaults.get("unit", "")
    layout["yaxis"] |= {
        "tickformat": TICKS.get(unit, ""),
        "ticksuffix": SUFFIXES.get(unit, ""),
        "type": scale,
        "exponentformat": "e",
    }
    values = [value for trace in traces for value in trace["y"]]
    if "min" in defaults or not any(values):
        layout["yaxis"]["rangemode"] = "tozero" if any(values) else "nonnegative"
    return {"data": traces, "layout": layout}


def _height(panel: dict[str, Any]) -> int:
    """Pixels of a figure within its panel."""
    return int(ROW_PIXELS * panel["gridPos"]["h"] - 10)


def page(name: str, prometheus: str, start: float, end: float) -> str:
    dashboard = json.loads((HERE / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    parts = []
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        place = f"grid-column:{at['x'] + 1}/span {at['w']};grid-row:{at['y'] + 1}/span {at['h']}"
        if panel["type"] == "row":
            parts.append(f'<h2 style="{place}">{escape(panel["title"])}</h2>')
            continue
        drawn = figure(panel, prometheus, start, end)
        parts.append(
            figure_html(panel["title"], "", drawn, attributes=f' style="{place}"', absent="No data in this run.")
        )
    note = "The panels and queries of the Grafana dashboard, drawn by calopd from Prometheus. Not a picture of Grafana."
    body = f'<h1>{escape(dashboard["title"])}</h1><p class="kicker">{note}</p><div class="grid">{"".join(parts)}</div>'
    return document(dashboard["title"], body, style=STYLE)


def height(name: str) -> int:
    panels = json.loads((HERE / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    return int(rows * (ROW_PIXELS + 6)) + 150


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.monitoring.grafana.pictures", description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="its address (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=20, help="the time until the end to show (default: %(default)s)"
    )
    parser.add_argument("--end", type=float, help="the last moment to show, in seconds since 1970 (default: now)")
    parser.add_argument("--browser", default="chromium", help="a Chromium (default: %(default)s)")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/images"), help="folder (default: %(default)s)")
    arguments = parser.parse_args()
    end = arguments.end or time.time()
    for name in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.html"
            file.write_text(page(name, arguments.prometheus, end - 60 * arguments.minutes, end), encoding="utf-8")
            picture = arguments.out / f"dashboard-{name}.png"
            subprocess.run(
                [
                    arguments.browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu",
                    "--disable-background-networking", "--no-first-run",
                    f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{height(name)}",
                    "--virtual-time-budget=20000", f"--screenshot={picture.absolute()}", file.as_uri(),
                ],
                check=True, capture_output=True,
            )  # fmt: skip
            print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
