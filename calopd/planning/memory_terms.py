"""Peak memory as a sum of named terms."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calopd.planning.gpus import GIB


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by purpose, at the moment of the peak."""

    terms: Mapping[str, float]

    @property
    def bytes(self) -> float:
        return sum(self.terms.values())

    @property
    def gib(self) -> float:
        return self.bytes / GIB

    def breakdown(self) -> dict[str, float]:
        """GiB of each term, largest first."""
        ordered = sorted(self.terms.items(), key=lambda term: -term[1])
        return {name: size / GIB for name, size in ordered if size}


def largest(moments: Iterable[Memory]) -> Memory:
    """The moment that needs most."""
    return max(moments, key=lambda moment: moment.bytes)


def dtype_bytes(setting: str) -> int:
    """Bytes of a number of a data type on a GPU, where `auto` is bfloat16."""
    return 4 if setting == "float32" else 2
