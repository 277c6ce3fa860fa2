"""What the engines' source touches of vLLM's objects, found by the names that these objects have there."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ENGINES = ("services/teacher_scorer/engines", "services/rollout/engines")


@dataclass(frozen=True, slots=True)
class Use:
    """An attribute of an object, or a keyword of a call."""

    owner: str
    name: str
    line: int


def attributes(tree: ast.AST, objects: Mapping[str, str]) -> Iterator[Use]:
    """Attributes of `objects`: expression in the source -> its class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (owner := objects.get(ast.unparse(node.value))):
            yield Use(owner, node.attr, node.lineno)


def keywords(tree: ast.AST, owners: Mapping[str, str]) -> Iterator[Use]:
    """Keywords of calls of `owners`: expression in the source -> class, or class.method.

    Keys of dicts that are added to `settings` are keywords of EngineArgs too.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (owner := owners.get(ast.unparse(node.func))):
            yield from (Use(owner, word.arg, node.lineno) for word in node.keywords if word.arg)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if [ast.unparse(target) for target in targets] == ["settings"]:
                yield from (Use("EngineArgs", ast.literal_eval(k), node.lineno) for k in node.value.keys if k)


def function(tree: ast.AST, name: str) -> ast.FunctionDef | ast.ClassDef:
    """A function or class of the source."""
    kinds = ast.FunctionDef | ast.ClassDef
    (found,) = [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == name]
    return found


def parameters(tree: ast.Module, owner: str, method: str) -> set[str]:
    """Names of the parameters of a method."""
    defined = function(function(tree, owner), method)
    assert isinstance(defined, ast.FunctionDef)
    return {a.arg for a in (*defined.args.posonlyargs, *defined.args.args, *defined.args.kwonlyargs)}
