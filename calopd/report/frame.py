"""What all pages share: one self-contained file with style, plotly and script, and the cards at its top."""

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from calopd.report.assets import SCRIPT, STYLE

# A page needs nothing from anywhere; with this the browser holds it to that.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True, slots=True)
class Card:
    label: str
    value: str
    detail: str = ""


def frame(title: str, body: str) -> str:
    """The whole page around a body, as one string of HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<script>{get_plotlyjs()}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def render_card(card: Card) -> str:
    return (
        f'<div class="card"><h2>{escape(card.label)}</h2><p class="value">{escape(card.value)}</p>'
        f"<p>{escape(card.detail)}</p></div>"
    )


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.1f}".replace("-", "−")


def write_whole(target: Path, page: str) -> Path:
    """A whole page or none of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(target.name + ".aside")
    aside.write_text(page, encoding="utf-8")
    os.replace(aside, target)
    return target
