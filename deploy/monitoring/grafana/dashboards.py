"""Generates dashboards/*.json from the panels: `make dashboards`. Edit the panels, not the JSON."""

import json
from pathlib import Path
from typing import Any

from deploy.monitoring.grafana.calibration import calibration
from deploy.monitoring.grafana.panel import RUN, Panel, Row
from deploy.monitoring.grafana.pipeline import PIPELINE

HERE = Path(__file__).parent
SOURCE = {"type": "prometheus", "uid": "prometheus"}
RUNBOOK = "/d/calopd-runbook/runbook?viewPanel="
HEIGHT = 8

ANNOTATIONS = (
    ("Checkpoint", "green", f"changes(calopd_learner_checkpoint_timestamp_seconds{{{RUN}}}[1m]) > 0", "{{run}}"),
    (
        "Start",
        "red",
        'changes(process_start_time_seconds{job=~".*(teacher|rollout|learner).*"}[1m]) > 0 '
        'or (time() - process_start_time_seconds{job=~".*(teacher|rollout|learner).*"} < 60)',
        "{{job}} {{instance}}",
    ),
)


def runbook_sections() -> dict[str, str]:
    """Title -> text, from docs/runbook.md."""
    text = (HERE.parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in text.split("\n## ")[1:]]
    return {title.strip(): body.strip() for title, _, body in parts}


def grafana_panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 0, "showPoints": "auto"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    if panel.logarithmic:
        custom["scaleDistribution"] = {"type": "log", "log": 10}
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": {} if panel.kind == "gauge" else custom}
    if panel.unit == "percentunit":
        defaults |= {"min": 0, "max": 1} if panel.kind == "gauge" else {"min": 0}
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if panel.kind == "gauge":
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    out: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": _band_overrides(panel)},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for i, (legend, expression) in enumerate(panel.targets.items())
        ],
    }
    if panel.runbook:
        section = 1 + list(runbook_sections()).index(panel.runbook)
        out["links"] = [link(f"Runbook: {panel.runbook}", f"{RUNBOOK}{section}")]
    return out


def _band_overrides(panel: Panel) -> list[dict[str, Any]]:
    """Fill between the two curves, in grey, without points."""
    if panel.band is None:
        return []
    grey = {"id": "color", "value": {"mode": "fixed", "fixedColor": "#8e8e8e"}}
    thin = {"id": "custom.lineWidth", "value": 0}
    bare = {"id": "custom.showPoints", "value": "never"}
    fill = [{"id": "custom.fillBelowTo", "value": panel.band[0]}, {"id": "custom.fillOpacity", "value": 20}]
    low, high = ({"id": "byName", "options": name} for name in panel.band)
    return [
        {"matcher": low, "properties": [grey, thin, bare]},
        {"matcher": high, "properties": [grey, thin, bare, *fill]},
    ]


def layout(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        panels.append({
            "id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        })  # fmt: skip
        y, x = y + 1, 0
        for panel in row.panels:
            if x + panel.width > 24:
                x, y = 0, y + HEIGHT
            panels.append(grafana_panel(panel, len(panels) + 1, x, y))
            x += panel.width
        y += HEIGHT
    return panels


def link(title: str, url: str) -> dict[str, Any]:
    return {
        "title": title, "type": "link", "url": url, "icon": "dashboard", "keepTime": True, "includeVars": True,
        "asDropdown": False, "targetBlank": True, "tags": [], "tooltip": "",
    }  # fmt: skip


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": query,
        "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def dashboard(uid: str, title: str, panels: list[dict[str, Any]], replicas: bool = False) -> dict[str, Any]:
    variables = [variable("run", "Run", "label_values(calopd_learner_run_info, run)")]
    if replicas:
        variables.append(variable("replica", "Replica", 'label_values(up{job!="prometheus"}, instance)'))
    others = [("calopd-calibration", "Calibration"), ("calopd-pipeline", "Pipeline"), ("calopd-runbook", "Runbook")]
    return {
        "uid": uid, "title": f"calopd: {title}", "tags": ["calopd"], "schemaVersion": 39, "version": 1,
        "editable": False,
        "timezone": "browser", "refresh": "10s", "time": {"from": "now-6h", "to": "now"}, "panels": panels,
        "templating": {"list": variables},
        "links": [
            link(name, f"/d/{other}")
            for other, name in others if other != uid
        ],
        "annotations": {"list": [
            {"name": name, "datasource": SOURCE, "enable": True, "iconColor": color, "titleFormat": name,
             "textFormat": text, "target": {"refId": "Anno", "expr": expression, "interval": "15s"}}
            for name, color, expression, text in ANNOTATIONS
        ]},
    }  # fmt: skip


def runbook() -> dict[str, Any]:
    """docs/runbook.md, one text panel per section, so that panels can link to it on any Grafana."""
    panels = [
        {
            "id": number, "type": "text", "title": title,
            "gridPos": {"x": 12 * ((number - 1) % 2), "y": 9 * ((number - 1) // 2), "w": 12, "h": 9},
            "options": {"mode": "markdown", "content": text},
        }
        for number, (title, text) in enumerate(runbook_sections().items(), 1)
    ]  # fmt: skip
    page = dashboard("calopd-runbook", "Runbook", panels)
    return page | {"templating": {"list": []}, "annotations": {"list": []}}


def dashboards() -> dict[str, dict[str, Any]]:
    return {
        "calibration": dashboard("calopd-calibration", "Calibration", layout(calibration())),
        "pipeline": dashboard("calopd-pipeline", "Pipeline", layout(PIPELINE), replicas=True),
        "runbook": runbook(),
    }


def operator_rules() -> str:
    """The rules in the form of the Prometheus operator."""
    groups = (HERE.parent / "rules" / "calopd.yml").read_text(encoding="utf-8")
    indented = "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))
    head = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: calopd\nspec:\n"
    return f"# Made from deploy/monitoring/rules/calopd.yml by `make dashboards`.\n{head}{indented}"


def files() -> dict[Path, str]:
    """Path -> text of every generated file."""
    made = {
        HERE / "dashboards" / f"{name}.json": json.dumps(page, indent=1, ensure_ascii=False) + "\n"
        for name, page in dashboards().items()
    }
    return made | {HERE.parents[1] / "k8s" / "components" / "monitoring" / "rules.yaml": operator_rules()}


if __name__ == "__main__":
    for file, text in files().items():
        file.write_text(text, encoding="utf-8")
