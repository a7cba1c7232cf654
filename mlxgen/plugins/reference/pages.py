"""The reference of operators in Markdown: one page, or an index and a page for each function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...model.languages import Package
from ...model.op import Form, Op
from ...render.cpp import FILTERS, View
from ...render.files import Pieces
from ...render.reference import Reference, inplace, python_args
from ...render.templates import Templates
from ..common.markdown import laid_out, markdown

TEMPLATES = Templates(Path(__file__).parent / "templates", {**FILTERS, "markdown": markdown})
BACKENDS = {"cpu": "CPU", "gpu": "GPU", "metal": "Metal"}


class Page(Reference):
    """An operator as the template of the reference needs it."""

    def __init__(self, op: Op, package: Package, declarations: Mapping[str, str]) -> None:
        super().__init__(op, package)
        self.view, self.namespace, self.declarations = View(op), package.namespace, declarations
        self.grads, self.inplace = op.derivatives.grads, inplace(op)

    @property
    def signature(self) -> str:
        """The Python signature; one argument per line if it is long."""
        args, result = python_args(self.op), self.op.signature.python_result
        line = f"{self.op.path}({', '.join(args)}) -> {result}"
        if len(line) <= 72:
            return line
        lines = "".join(f"    {arg},\n" for arg in args)
        return f"{self.op.path}(\n{lines}) -> {result}"

    @property
    def other_languages(self) -> list[tuple[str, str]]:
        """The declarations in other languages, with the languages' names in Markdown."""
        head = f"{self.view.result} {self.namespace}::{self.op.name}"
        return [("cpp", laid_out(head, self.view.declared)), *self.declarations.items()]

    @property
    def cotangents(self) -> list[str]:
        """The names of cotangents in the gradient formulas."""
        used = {name for g in self.grads if g.expr is not None for name in g.expr.names}
        return [name for name in self.op.signature.each_output("grad") if name in used]

    @property
    def backends(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Backend, implementation and the dtypes of its kernel."""
        kernels: dict[str, tuple[str, ...]] = {k.backend: k.dtypes for k in self.op.forward.kernels}
        bound = self.op.forward.form is Form.BIND
        mlx = "C++ function" if bound else "composition of other operators"
        return [
            (BACKENDS[name], "kernel" if name in kernels else mlx, kernels.get(name, ()))
            for name in self.op.backends
        ]


def parts(op: Op, package: Package, declarations: Mapping[str, str]) -> list[str]:
    """Return the documentation of an operator: one line, the usage, and the details.

    Args:
        op: The operator.
        package: Its package.
        declarations: The declarations in languages other than Python and C++, by language.
    """
    page = Page(op, package, declarations)
    return [text.strip() for text in TEMPLATES.blocks("reference.md.j2", package, op=page)]


def reference(made: Iterable[Pieces], package: Package, folder: str = "") -> str:
    """Return the reference of all public operators.

    Args:
        made: The operators.
        package: Their package.
        folder: If each has a page: the folder with these, relative to the reference.
    """
    modules = reference_modules(made)
    return TEMPLATES.render("references.md.j2", package, modules=modules, folder=folder)


def reference_page(overloads: Sequence[Pieces], figure: str = "") -> str:
    """Return the reference of one function as a page of its own.

    Args:
        overloads: Its operators.
        figure: Markdown for the place between documentation and arguments of the first one.
    """
    first, *others = overloads
    parts = [f"# {first.path}", first.usage, figure, first.details]
    parts += [part for p in others for part in (p.usage, p.details)]
    return "\n\n".join(filter(None, parts)) + "\n"


def reference_modules(made: Iterable[Pieces]) -> list[tuple[str, list[list[Pieces]]]]:
    """Return the public functions by submodule, each with its overloads.

    Those of the package itself are last.
    """
    found: dict[str, dict[str, list[Pieces]]] = {}
    for p in made:
        if p.public:
            found.setdefault(p.modules[0], {}).setdefault(p.path, []).append(p)
    functions = [(module, [*of.values()]) for module, of in found.items()]
    return sorted(functions, key=lambda item: not item[0])
