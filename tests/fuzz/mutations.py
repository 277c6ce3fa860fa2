"""Inputs that nobody would write by hand: damaged copies of valid ones, and values of every type in every place."""

import random
from typing import Any

NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, -0.0, float("nan"), float("inf"))
TEXTS = ("", " ", "\x00", "\ud800", "é" * 3, "a" * 10_000, "../../etc/passwd", "%s%n", "{}", "\\boxed{1}", "🙂", "null")
DIGITS = b"9" * 5_000
NESTING = 3_000


def damaged(data: bytes, draw: random.Random) -> bytes:
    """A copy with some bytes flipped, removed, repeated, moved or replaced."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        at, to = sorted((draw.randint(0, len(out)), draw.randint(0, len(out))))
        match draw.randrange(8):
            case 0 if out:
                out[min(at, len(out) - 1)] ^= 1 << draw.randrange(8)
            case 1:
                del out[at : min(to, at + draw.choice((1, 4, 1_000_000)))]
            case 2:
                out[at:at] = draw.randbytes(draw.choice((1, 2, 8, 40)))
            case 3:
                out[at:at] = out[at : at + draw.choice((1, 10, 100))] * draw.choice((1, 3))
            case 4:
                out = out[:at]
            case 5:
                out[at : at + 8] = draw.choice((b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7))
            case 6:
                out[at:at] = draw.choice((DIGITS, b"-", b'"', b"\n", b"'''", b"\xef\xbb\xbf", b"[" * NESTING))
            case _:
                out[at:to] = out[at:to][::-1]
    return bytes(out)


def any_value(draw: random.Random, depth: int = 3) -> Any:
    """A value that JSON can hold."""
    kind = draw.randrange(7 if depth else 5)
    if kind == 0:
        return draw.choice((None, True, False))
    if kind in (1, 2):
        return draw.choice(NUMBERS) if draw.random() < 0.5 else draw.randint(-100, 100)
    if kind in (3, 4):
        return draw.choice(TEXTS)
    children = [any_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return children if kind == 5 else {draw.choice(TEXTS): child for child in children}


def varied(value: Any, draw: random.Random) -> Any:
    """A copy of a JSON value with one or more parts replaced, removed or added."""
    if isinstance(value, dict):
        out = {key: varied(own, draw) if draw.random() < 0.3 else own for key, own in value.items()}
        if out and draw.random() < 0.2:
            del out[draw.choice(list(out))]
        if draw.random() < 0.1:
            out[draw.choice(TEXTS)] = any_value(draw)
        return out
    if isinstance(value, list) and draw.random() < 0.5:
        return [varied(item, draw) for item in value] * draw.choice((1, 1, 2))
    return any_value(draw) if draw.random() < 0.7 else value
