"""The cards at the top of a page, and numbers as pages write them."""

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Card:
    label: str
    value: str
    detail: str = ""


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
