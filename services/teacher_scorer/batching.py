"""Which of the waiting sequences go into one forward pass: the oldest, and those of nearly its length."""

from collections.abc import Sequence

MAX_PADDING = 0.10


def cut_batch(lengths: Sequence[int], budget: int) -> list[int]:
    """Positions of a batch among sequences of `lengths`, oldest first.

    It contains position 0 (nobody starves), padded to its longest it holds at most `budget` tokens (one sequence
    alone may exceed it), and at most 10 % of it is padding.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    low = high = order.index(0)
    total = lengths[0]

    def fits(added: int, longest: int, count: int) -> bool:
        padded = longest * count
        return padded <= budget and padded - (total + added) <= MAX_PADDING * padded

    while True:
        count = high - low + 2
        if high + 1 < len(order) and fits(lengths[order[high + 1]], lengths[order[high + 1]], count):
            high += 1
            total += lengths[order[high]]
        elif low > 0 and fits(lengths[order[low - 1]], lengths[order[high]], count):
            low -= 1
            total += lengths[order[low]]
        else:
            return order[low : high + 1]
