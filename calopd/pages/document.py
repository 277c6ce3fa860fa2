"""A self-contained page: style, plotly and script within it, nothing from anywhere; and the frame of one figure."""

import json
import re
from html import escape
from typing import Any

from plotly.offline import get_plotlyjs

from calopd.pages.assets import SCRIPT, STYLE

# The page needs nothing from anywhere; with this the browser holds it to that.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """The whole page as one string of HTML; `style` and `script` come after the ones that all pages share."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>{get_plotlyjs()}</script>
<script>{SCRIPT}</script>
{f"<script>{script}</script>" if script else ""}
</body>
</html>
"""


def figure_html(
    title: str, note: str, figure: dict[str, Any] | None, *, attributes: str = "", absent: str = "", height: int = 0
) -> str:
    """A figure in its card; it travels as JSON and is drawn by the page's script. None: `absent` says why."""
    head = f"<figcaption><h3>{escape(title)}</h3><p>{_with_code(note)}</p></figcaption>"
    if figure is None:
        return f'<figure{attributes}>{head}<p class="absent">{escape(absent)}</p></figure>'
    size = f' style="height:{height}px"' if height else ""
    data = f'<script type="application/json">{script_json(figure)}</script>'
    return f'<figure{attributes}>{head}<div class="plot"{size}>{data}</div></figure>\n'


def _with_code(text: str) -> str:
    """Text for a page; names between back ticks become code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def script_json(value: Any) -> str:
    """JSON that can stand inside <script>: no `<` is left that could close it."""
    return json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    """NaN and infinities, which JSON lacks, become gaps in the curve."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and value - value != 0 else value
