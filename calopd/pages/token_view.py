"""Tokens of a response as coloured HTML: classes by deviation or by retained advantage, and their legends."""

from bisect import bisect_left, bisect_right
from html import escape
from itertools import pairwise

DEVIATION_BANDS = (0.1, 0.3, 0.7, 1.5, 3.0)
KEPT_SHARES = (1 / 3, 2 / 3, 0.999)
AGREEMENT = 0.01
"""If |A_OPD| and |A| are both at most this, student and teacher agree and the token has no colour."""


def deviation_class(deviation: float) -> str:
    """`down1`..`down5` or `up1`..`up5` by the band of |D|; nothing within the first bound."""
    level = bisect_left(DEVIATION_BANDS, abs(deviation))
    return f"{'down' if deviation < 0 else 'up'}{level}" if level else ""


def kept_class(kept: float, raw: float) -> str:
    """`removed`, or `less1`..`less4` / `more1`..`more4` by |A| / |A_OPD| and the sign of A."""
    if max(abs(kept), abs(raw)) <= AGREEMENT:
        return ""
    if kept == 0:
        return "removed"
    share = abs(kept) / abs(raw) if raw else 1.0
    return f"{'less' if kept < 0 else 'more'}{1 + bisect_right(KEPT_SHARES, share)}"


def visible(token: str) -> str:
    """The token as HTML; whitespace and control characters get a visible sign."""
    if not token:
        return '<i class="ws">∅</i>'
    if token.strip(" ") == "":
        return f'<i class="ws">{"·" * len(token)}</i>'
    return "".join(_visible_character(character) for character in token)


def _visible_character(character: str) -> str:
    if character == "\n":
        return '<i class="ws">↵</i>\n'
    if character == "\t":
        return '<i class="ws">⇥</i>\t'
    if ord(character) < 0x20:
        return f'<i class="ws">{chr(0x2400 + ord(character))}</i>'
    return escape(character)


def deviation_legend(what: str) -> str:
    bounds = [f"{bound:g}" for bound in DEVIATION_BANDS]
    bands = [f"{low}–{high}" for low, high in pairwise(bounds)] + [f"> {bounds[-1]}"]
    down = "".join(f'<span class="down{level}">{bands[level - 1]}</span>' for level in range(len(bands), 0, -1))
    up = "".join(f'<span class="up{level}">{band}</span>' for level, band in enumerate(bands, start=1))
    return (
        f'<div class="legend for-deviation" title="{what}">'
        f"less likely when probed {down}<span>|D| ≤ {bounds[0]}</span>{up} more likely when probed</div>"
    )


def kept_legend() -> str:
    shares = ("≤ ⅓", "≤ ⅔", "< 1", "all retained")
    less = "".join(f'<span class="less{level}">{shares[level - 1]}</span>' for level in range(len(shares), 0, -1))
    more = "".join(f'<span class="more{level}">{share}</span>' for level, share in enumerate(shares, start=1))
    return (
        f'<div class="legend for-kept" title="|A| / |A_OPD|">− make less likely {less}'
        f'<span class="removed">removed</span>'
        f"{more} make more likely + <span>plain: |A| ≤ {AGREEMENT:g}</span></div>"
    )
