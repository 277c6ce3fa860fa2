"""The forms in which a model writes a number that it has found."""


def forms(gold: str) -> list[str]:
    """Responses that all say this whole number."""
    value = int(gold.replace(",", ""))
    boxes = [
        f"{value}",
        f" {value} ",
        f"{value}.",
        f"{value}.00",
        f"{value:,}",
        f"{value:,}".replace(",", "{,}"),
        f"${value}$",
        f"+{value}" if value >= 0 else f"{value}",
        f"\\$ {value}" if value >= 0 else f"-\\${-value}",
        f"\\text{{{value}}}",
        f"\\mathbf{{{value}}}",
        f"{value} \\text{{ pens}}",
        f"{value} apples",
        f"{value}\\%",
        f"{value}^\\circ",
        f"x = {value}",
        f"\\text{{Total}} = {value}",
        f"\\dfrac{{{2 * value}}}{{2}}",
        f"\\frac{{{3 * value}}}{{3}}",
        f"\\left({value}\\right)",
        f"\\boxed{{{value}}}",
    ]
    around = (
        "\\boxed{%s}",
        "<think>\nhm, \\boxed{-1}?\n</think>\n\nThe answer is $\\boxed{%s}$, as was to be shown.\n",
    )
    return [frame.replace("%s", box) for box in boxes for frame in around]
