"""Names that a class defines, read from its source: code that needs a GPU is checked without running it."""

import ast
from pathlib import Path
from types import ModuleType

from calopd.models.vllm_interface import Touched


def defined_names(package: ModuleType, touched: Touched) -> set[str]:
    """The attributes and methods of a class of `package`."""
    assert package.__file__ is not None
    file = Path(package.__file__).parent / touched.file
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == touched.owner:
            return names_of_class(node)
    raise AssertionError(f"{file} has no class {touched.owner}")


def names_of_class(owner: ast.ClassDef) -> set[str]:
    """Methods, properties, annotated fields, and everything that a method assigns to `self`."""
    found = set()
    for node in owner.body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    for inner in ast.walk(owner):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            found.add(inner.attr)
    return found
