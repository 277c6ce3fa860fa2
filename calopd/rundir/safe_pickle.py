"""Pickles read without executing code: only the types that a format consists of are built."""

import io
import pickle
import pickletools
from collections.abc import Set
from enum import Enum, EnumType
from typing import Any

Global = tuple[str, str]
"""Module and name of a class or function."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, allowed: Set[Global]) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed here: nothing was executed")
        return super().find_class(module, name)


def _enum_member(kind: object, name: object) -> Enum:
    """A member of an enum as early versions of Python 3.11 (Debian 12 has 3.11.2) write it: getattr(enum, name)."""
    if isinstance(kind, EnumType) and isinstance(name, str) and name in kind.__members__:
        member: Enum = kind.__members__[name]
        return member
    raise pickle.UnpicklingError("builtins.getattr is not allowed here: nothing was executed")


class RestrictedPickle:
    """The part of the module `pickle` that a reader uses, limited to some types."""

    PickleError = pickle.PickleError
    dumps = staticmethod(pickle.dumps)

    def __init__(self, allowed: Set[Global]) -> None:
        self._allowed = allowed

    def loads(self, data: bytes) -> Any:
        """Build the object; raise `pickle.UnpicklingError` if it needs anything else."""
        _check_memo(data)
        return _Unpickler(data, self._allowed).load()


def _check_memo(data: bytes) -> None:
    """The unpickler reserves memory up to the largest memo index, which 5 bytes can set to 4 billion."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= (argument or 0) <= len(data):
            raise pickle.UnpicklingError(f"memo index {argument} in a pickle of {len(data)} bytes")
