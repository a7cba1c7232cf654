"""Reads the named subexpressions of an entry, the key `let`.

Here their names and syntax are checked. Formulas that use them translate them, because what is
allowed in a `let` depends on the use.
"""

from __future__ import annotations

from collections.abc import Collection

from ..formula.compile import Let
from ..formula.explain import Wrong
from ..formula.lets import words
from ..formula.mlx import CONSTANTS, MODULES
from ..formula.source import FormulaText, parsed
from ..model.names import free_names
from ..model.op import Op
from ..read.names import clash, in_cpp, meanings
from .arguments import names_in_use
from .context import Context, Environment, Path

_NAMES = ("MG303", "MG304", "MG309")  # unknown names, functions and methods

MOST = 1000  # `let`s of an entry


def read_lets(context: Context) -> None:
    """Store the entry's `let`s in the context, and report invalid names and invalid Python."""
    given = context.entry.data.get("let")
    many = len(context.raw.let) > MOST
    if many:
        context.error("many_lets", ("let",), key=True, count=len(context.raw.let), limit=MOST)
    if isinstance(given, dict) and (many or "let" in context.left_out):
        context.lets.update((str(name), Let("", "", broken=True)) for name in given)
        return
    if not context.raw.let:
        return
    taken = names_in_use(context)
    problems = {name: _problem(context, name) for name in context.raw.let}
    # The names of members end in an underscore.
    valid = [name for name, (problem, _) in problems.items() if not problem]
    names = free_names(valid, "let", lambda cpp: cpp in taken or cpp[-1] == "_" or in_cpp(cpp))
    for name, text in context.raw.let.items():
        path: Path = ("let", name)
        problem, reason = problems[name]
        if problem:
            context.error("bad_let", path, key=True, name=name, problem=problem, reason=reason)
        cpp = names.get(name, name)
        try:
            found = words(parsed(text))
        except Wrong as wrong:
            start, end = FormulaText(text).span(wrong.at)
            context.report_in(path, wrong.written(text[start:end]), start, end)
            context.lets[name] = Let(text, cpp, broken=True)
            continue
        except RecursionError:
            found = frozenset()  # reported where it is used
        inner = [context.lets[word] for word in found & context.lets.keys()]
        depth = max((let.depth + 1 for let in inner), default=0)
        every = found.union(*(let.words for let in inner))
        context.lets[name] = Let(text, cpp, every, depth, broken=bool(problem))


def _problem(context: Context, name: str) -> tuple[str, str | None]:
    """Return why a `let` cannot have a name: a name in messages.yaml or "", and the reason."""
    signature = context.signature
    arrays, outputs = [arg.name for arg in signature.arrays], context.output_names
    if not name.isidentifier() or not name.isascii():
        return "no_identifier", None
    others: dict[str, Collection[str]] = {
        "argument": [arg.name for arg in signature.args],
        "output": outputs,
        "axis": context.axes.lengths,
        "module": MODULES,
        "constant": CONSTANTS,
    }
    reason = clash(name, "an argument") or meanings(arrays, outputs).get(name)
    problem = next((of for of, names in others.items() if name in names), "taken" if reason else "")
    return problem, reason


def check_unused_lets(
    context: Context, op: Op, env: Environment, in_samples: Collection[str]
) -> None:
    """Warn of `let`s that no formula uses, and no sample; report their unknown names."""
    exprs = [op.forward.expr, *op.derivatives.exprs, *(check.expr for check in op.checks)]
    exprs += [rule.expr for rule in (*op.output_rules.shapes, *op.output_rules.dtypes) if rule]
    exprs += [expr for kernel in op.forward.kernels for expr in kernel.formulas]
    used = frozenset[str]().union(*(expr.lets for expr in exprs if expr))
    for name in context.lets:
        if name not in used and name not in in_samples:
            context.warning("unused_let", ("let", name), key=True, name=name)
            context.formula(("let", name), name, context.want_outputs(), env.names(), only=_NAMES)
