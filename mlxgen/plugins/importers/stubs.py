"""The functions of a release of MLX, from the stubs in its package (``mlx/core/*.pyi``).

A parameter has its annotation as alternatives, with the same spelling in all releases: ``Optional``
and ``Union`` are written with ``|``, and None is the last alternative. The parameter ``stream`` of
most functions is left out, because every operator of mlxgen has it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...formula.mlx import MODULES, PythonParam


class Function(NamedTuple):
    """A function of the stubs."""

    name: str  # "sum", "linalg.norm"
    overloads: Sequence[ast.FunctionDef]

    @property
    def signatures(self) -> Sequence[Sequence[PythonParam]]:
        """The parameters of each overload."""
        return [parameters(node.args) for node in self.overloads]


class Stubs(NamedTuple):
    """The stubs of a release."""

    functions: Mapping[str, Function]
    aliases: Mapping[str, str]  # function by alias: "acos": "arccos"
    methods: Sequence[ast.FunctionDef]  # of the class array


def read(root: Path) -> Stubs:
    """Read the stubs of the release in the folder ``root``.

    Raises ``OSError`` or ``SyntaxError`` if they are missing or damaged.
    """
    found: dict[str, list[ast.FunctionDef]] = {}
    aliases: dict[str, str] = {}
    methods: list[ast.FunctionDef] = []
    for module in ("", *MODULES):
        path = root / "core" / f"{module or '__init__'}.pyi"
        for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                aliases[ast.unparse(node.targets[0])] = ast.unparse(node.value)
            elif isinstance(node, ast.ClassDef) and node.name == "array":
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            elif isinstance(node, ast.FunctionDef):
                name = f"{module}.{node.name}" if module else node.name
                found.setdefault(name, []).append(node)
    functions = {name: Function(name, nodes) for name, nodes in found.items()}
    return Stubs(functions, {a: f for a, f in aliases.items() if f in functions}, methods)


def parameters(args: ast.arguments, untyped: str = "array") -> list[PythonParam]:
    """Return the parameters of a stub, without ``stream``.

    Args:
        args: The parameters.
        untyped: The annotation of those without one.
    """
    found = []
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    for i, (arg, default) in enumerate(zip(positional, defaults, strict=True)):
        found.append(_parameter(arg, "/" if i < len(args.posonlyargs) else "", default, untyped))
    if args.vararg is not None:
        found.append(_parameter(args.vararg, "*", None, untyped))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append(_parameter(arg, "k", default, untyped))
    return [param for param in found if param.name != "stream"]


def _parameter(arg: ast.arg, kind: str, default: ast.expr | None, untyped: str) -> PythonParam:
    alternatives = [*_alternatives(arg.annotation)] if arg.annotation else [untyped]
    if "None" in alternatives:  # always last, for any order in the release
        alternatives = [*(a for a in alternatives if a != "None"), "None"]
    annotation = " | ".join(dict.fromkeys(alternatives))
    written = ast.unparse(default) if default is not None else None
    return PythonParam(arg.arg, kind, annotation, written)


def _alternatives(annotation: ast.expr) -> Iterator[str]:
    """Yield the alternatives of ``Union[None, int]``, ``Optional[int]`` and ``int | None``."""
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            yield from _alternatives(left)
            yield from _alternatives(right)
        case ast.Subscript(ast.Name("Union"), ast.Tuple(items)):
            for item in items:
                yield from _alternatives(item)
        case ast.Subscript(ast.Name("Optional"), item):
            yield from _alternatives(item)
            yield "None"
        case _:
            text = ast.unparse(annotation).replace("mlx.core.", "")
            yield re.sub(r"\b(Tuple|List)\[", lambda match: match[0].lower(), text)
