"""Metric names: what the services export, and what an expression asks for."""

import re
from pathlib import Path
from typing import Any

from calopd.core.step_metrics import METRICS
from docs.generators.metrics import service_families

STANDARD = {"up", "process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}
"""Of Prometheus, and of every Python process on Linux."""
COMPARISON = re.compile(r"(?<![=!<>~])(==|!=|<=|>=|<|>)(?![=~])(?!\s*bool)")


def exported() -> set[str]:
    """Every series name that a service or its client may show."""
    names = {metric.prometheus for metric in METRICS}
    for family in service_families().values():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names | STANDARD


def names_in(expression: str) -> set[str]:
    """Metric names of an expression, without functions, labels and durations."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", expression)
    bare = re.sub(r"\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    words = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\()\b", bare))
    return {word for word in words if re.search(rf"\b{re.escape(word)}\b(?!\s*\()", bare)} - {
        "and",
        "or",
        "unless",
        "bool",
    }


def always(expression: str) -> str:
    """An alert's expression with its comparisons as 0 or 1: it has data whether the alert fires or not."""
    parts = re.split(r'("[^"]*"|\{[^}]*\})', expression)
    return "".join(part if i % 2 else COMPARISON.sub(r"\1 bool", part) for i, part in enumerate(parts))


def rule_expressions(rules: dict[str, Any]) -> dict[str, str]:
    """Name of a rule -> its expression, alerts with comparisons made visible."""
    return {
        f"rule {rule.get('record', rule.get('alert'))} {rule.get('labels', {}).get('role', '')}".strip():
            rule["expr"] if "record" in rule else always(rule["expr"])
        for group in rules["groups"]
        for rule in group["rules"]
    }  # fmt: skip


def panel_expressions(page: dict[str, Any]) -> dict[str, str]:
    """Panel, target and annotation -> expression, with the variables that Grafana would put in."""
    found = {
        f"panel {panel['title']}, {target['legendFormat']}": target["expr"]
        for panel in page["panels"]
        for target in panel.get("targets", [])
    }
    found |= {f"annotation {note['name']}": note["target"]["expr"] for note in page["annotations"]["list"]}
    values = {"$__rate_interval": "1m", "$run": ".*", "$replica": ".*"}
    return {where: _put(expression, values) for where, expression in found.items()}


def _put(expression: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        expression = expression.replace(name, value)
    return expression


def records(rules: dict[str, Any]) -> set[str]:
    return {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}


def runbook_anchors(root: Path) -> set[str]:
    titles = re.findall(r"^## (.*)$", (root / "docs" / "runbook.md").read_text(), re.MULTILINE)
    return {title.lower().replace(" ", "-") for title in titles}
