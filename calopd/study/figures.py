"""The figures of the paper's TSD study as plotly.js JSON. A colour that starts with `--` is a CSS variable."""

from typing import Any

from calopd.pages.charts import SERIES_COLOURS, base_layout
from calopd.study.advise import HIGH, LOW

Figure = dict[str, Any]
SCALE = [[0, "--card"], [1, "--heat"]]
PERCENT_AXIS = {"tickformat": ".0%", "range": [0, 1.02]}


def prevalence(analysis: dict[str, Any], tau: str) -> Figure:
    """Share of tokens with |D| > tau: for both contexts of a group, and for their union."""
    part, groups = analysis["prevalence"][tau], analysis["groups"]
    paired = {name: contexts for name, contexts in groups.items() if len(contexts) == 2}
    bars: list[tuple[str, dict[str, float | None]]] = [
        (label, {name: part["contexts"][contexts[place]]["share"] for name, contexts in paired.items()})
        for place, label in enumerate(("positive", "negative"))
    ]
    bars.append(("union", {name: part["groups"][name]["share"] for name in groups}))
    return _bars(bars, list(groups))


def consistency(analysis: dict[str, Any], tau: str) -> Figure:
    """Overlap, agreement and shared deviation ratio of every group of two."""
    part = analysis["consistency"][tau]
    labels = {"overlap": "overlap", "agreement": "agreement", "sdr": "shared deviation ratio"}
    bars = [(label, {name: row[key] for name, row in part.items()}) for key, label in labels.items()]
    return _bars(bars, list(part))


def kinds(analysis: dict[str, Any], tau: str) -> Figure:
    """rho by kind of token, under the first context of every group."""
    part = {name: entry for name, entry in analysis["kinds"][tau].items() if entry["tokens"]}
    positives = [contexts[0] for contexts in analysis["groups"].values()]
    bars = [(context, {name: entry["rho"][context] for name, entry in part.items()}) for context in positives]
    return _bars(bars, list(part), labelled=False)


def _bars(bars: list[tuple[str, dict[str, float | None]]], names: list[str], labelled: bool = True) -> Figure:
    data = [
        {
            "type": "bar",
            "name": label,
            "x": names,
            "y": [values.get(name) for name in names],
            "text": [_percent(values.get(name)) if labelled else "" for name in names],
            "textposition": "outside",
            "textfont": {"size": 10},
            "cliponaxis": False,
            "marker": {"color": SERIES_COLOURS[number % len(SERIES_COLOURS)]},
            "hovertemplate": "%{x}, " + label + ": %{y:.2%}<extra></extra>",
        }
        for number, (label, values) in enumerate(bars)
    ]
    highest = max((value for _, values in bars for value in values.values() if value is not None), default=1.0)
    layout = base_layout(legend=True)
    layout |= {"barmode": "group", "bargap": 0.22, "hovermode": "closest"}
    layout["yaxis"] |= PERCENT_AXIS | {"range": [0, min(1.08, 1.18 * highest or 1.0)]}
    return {"data": data, "layout": layout}


def retention(analysis: dict[str, Any], tau: str) -> Figure:
    """Ret(i -> j): of the tokens that move under group i, the share that moves under group j."""
    table = analysis["retention"][tau]
    rows = {one: list(row.values()) for one, row in table.items()}
    return _heat_map(rows, "from %{y} to %{x}: %{z:.1%}", percent=True, highest=1)


def shared_forms(analysis: dict[str, Any], tau: str, length: str, which: str) -> Figure:
    """Number of forms that the lists of two contexts have in common."""
    table = analysis["forms"][tau]["shared"][length][which]["pairs"]
    rows = {one: list(row.values()) for one, row in table.items()}
    return _heat_map(rows, "%{y} and %{x}: %{z} of " + length, percent=False, highest=int(length))


def _heat_map(rows: dict[str, list[float | None]], hover: str, *, percent: bool, highest: int) -> Figure:
    names = list(rows)
    texts = [[_percent(value) if percent else str(value) for value in row] for row in rows.values()]
    trace = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": list(rows.values()),
        "text": texts,
        "texttemplate": "%{text}",
        "textfont": {"color": "--ink", "size": 13},
        "zmin": 0,
        "zmax": highest,
        "colorscale": SCALE,
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": hover + "<extra></extra>",
    }
    layout = base_layout(legend=False) | {"hovermode": "closest"}
    layout["xaxis"] |= {"side": "top", "showgrid": False, "type": "category"}
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False, "type": "category", "ticksuffix": "  →"}
    return {"data": [trace], "layout": layout}


def relaxation(analysis: dict[str, Any], key: str) -> Figure:
    """`retained` or `zero` by relaxation, one line per set of probes; the paper's useful range is a band."""
    grid = analysis["relaxation"]["grid"]
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": grid,
            "y": curve[key],
            "line": {"color": SERIES_COLOURS[number % len(SERIES_COLOURS)], "width": 2},
            "hovertemplate": name + " at λ %{x:g}: %{y:.1%}<extra></extra>",
        }
        for number, (name, curve) in enumerate(analysis["relaxation"]["probes"].items())
    ]
    layout = base_layout(legend=True) | {"hovermode": "closest"}
    layout["xaxis"] |= {"type": "log", "tickvals": [1, 2, 5, 10, 20, 40, 80], "title": {"text": "relaxation λ"}}
    layout["yaxis"] |= PERCENT_AXIS
    if key == "retained":
        band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": LOW, "y1": HIGH, "layer": "below"}
        layout["shapes"] = [band | {"fillcolor": "--band", "line": {"width": 0}}]
    return {"data": data, "layout": layout}


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"
