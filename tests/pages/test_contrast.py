"""Text on the pages can be read in both colour schemes: WCAG's contrast of 4.5."""

import re

import pytest

from calopd.pages.assets import STYLE

LEAST = 4.5


def palettes() -> dict[str, dict[str, str]]:
    """The colours of the light and the dark scheme; the dark one replaces only some."""
    light, dark = (
        dict(re.findall(r"--([\w-]+):(#[0-9a-f]+)", part)) for part in STYLE.split("(prefers-color-scheme:dark)")
    )
    return {"light": light, "dark": light | dark}


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    channels = (int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_the_measure_is_that_of_wcag() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [("ink", "heat"), ("ink", "card"), ("ink", "page"), ("ink", "notice"), ("soft", "card"), ("soft", "page")],
)
def test_text_stands_out(scheme: str, text: str, ground: str) -> None:
    colours = palettes()[scheme]
    assert contrast(colours[text], colours[ground]) >= LEAST
