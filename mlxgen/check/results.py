"""What an entry gives: its forward, the shapes and dtypes of its outputs, its checks.

The place for what will be known of shapes, ranks and dtypes when generating, and compared.
"""

from __future__ import annotations

import re

from ..formula.compile import Name, Scope, Want, compile_formula
from ..model.kinds import Kind
from ..model.op import Condition, Expr, Form, Rule
from .context import Context, Path
from .fit import QUALIFIED, own_function, spelled


def forward(context: Context) -> tuple[Expr | None, str]:
    """The composite or the call of the bound function, and its text; None for kernels alone."""
    text = context.raw.composite
    if text is not None:
        names = context.names()
        return context.formula(("composite",), text, context.want_outputs, names), text
    return _bound_call(context) if context.form is Form.BIND else (None, "")


def _bound_call(context: Context) -> tuple[Expr | None, str]:
    """The call of the function that the entry names, checked against MLX's API."""
    target = context.raw.cpp or f"mlx::core::{context.name}"
    path: Path = ("cpp",) if context.raw.cpp else context.at_name
    if not QUALIFIED.fullmatch(target):
        context.error("no_cpp_name", path, target=target)
        return None, ""
    plain = re.sub(r"^(::)?(mlx::core|mx)::", "", target)
    if context.raw.cpp and plain == target:
        return _own_call(context, target, path)
    name = "mx." + plain.replace("::", ".")
    signature = context.signature
    attempts = [f"{name}({', '.join(a.name for a in signature.args)})"]
    if rest := [a for a in signature.args if not a.type.is_array]:
        given = [*(a.name for a in signature.arrays), *(f"{a.name}={a.name}" for a in rest)]
        attempts.append(f"{name}({', '.join(given)})")
    problems: list[tuple[str, str | None]] = []

    def note(code: str, message: str, start: int, end: int, help: str | None) -> None:
        # A bound function gives what it gives: formulas get hints about that, signatures cannot.
        problems.append((message, help if end - start < len(text) else None))

    scope = Scope(context.names(), {}, {})  # MLX's function, not the entry of its name
    for text in attempts:
        expr = compile_formula(text, scope, context.want_outputs, note)
        if expr is not None:
            return expr, text
    message, hint = problems[0] if problems else ("it does not fit the signature", None)
    if hint is None or not hint.startswith("signature: "):  # of a formula that nobody wrote
        hint = "give `cpp`, `composite` or `dispatch`, or mend the signature"
    context.error("unbound", path, target=target, message=message, hint=hint)
    return None, ""


def _own_call(context: Context, target: str, path: Path) -> tuple[Expr | None, str]:
    """The call of a hand-written C++ function from csrc."""
    function = own_function(context, target, path)
    if function is None:
        return None, ""
    arguments = ", ".join([*(p.cpp for p in context.params), "s"])
    expr = Expr(context.signature.outputs[0].type, f"{spelled(context, function)}({arguments})")
    return expr, f"{function.qualified_name}({arguments})"


def texts_by_output(context: Context, key: str) -> dict[str, str]:
    """A rule's text by output name."""
    given = getattr(context.raw, key)
    if isinstance(given, str):
        return dict.fromkeys(context.output_names, given)
    return given or {}


def _rules(context: Context, key: str, want: Want, names: dict[str, Name]) -> list[Rule | None]:
    """A rule per output, None for those without one."""
    texts = texts_by_output(context, key)
    rules: list[Rule | None] = []
    for name in context.output_names:
        text = texts.get(name)
        expr = context.formula((key, name), text, want, names, None) if text is not None else None
        rules.append(Rule(text, expr) if text is not None and expr else None)
    return rules


def shapes(context: Context) -> tuple[Rule, ...]:
    """The rules of the outputs' shapes; none for an elementwise op."""
    texts = texts_by_output(context, "shape")
    if not texts:
        return ()
    if len(context.known("MG124", texts, context.output_names, "output", ("shape",))) == len(texts):
        for name in context.output_names:
            if name not in texts:
                context.error("no_shape", ("shape",), name=name)
    rules = _rules(context, "shape", Want(Kind.SHAPE), context.names())
    return tuple(rule for rule in rules if rule)


def out_dtypes(context: Context) -> tuple[Rule | None, ...]:
    """The rules of the outputs' dtypes; None for the promoted one."""
    texts = texts_by_output(context, "dtype")
    if not texts:
        return (None,) * len(context.signature.outputs)
    known = context.known("MG124", texts, context.output_names, "output", ("dtype",))
    context.dtypes_known &= len(known) == len(texts)
    if context.elementwise:
        context.dtypes_known = False
        context.error("elementwise_dtype", ("dtype",), key=True)
        return ()
    names = context.names()
    for p in context.arrays:
        if p.type.kind is Kind.ARRAY and not p.type.optional:
            position = p.position
            for q in context.arrays:  # the op function has no members
                position = position.replace(f"{q.cpp}_size_", f"{q.cpp}.size()")
                if q.present:
                    position = position.replace(q.present, f"{q.cpp}.has_value()")
            names[p.name] = Name(p.type, f"inputs[{position}]")
    rules = _rules(context, "dtype", Want(Kind.DTYPE), names)
    context.dtypes_known &= all(rules[context.output_names.index(name)] for name in known)
    return tuple(rules)


def checks(context: Context) -> tuple[Condition, ...]:
    """The conditions that the arguments must meet."""
    names = context.names() if context.raw.checks else {}
    found = []
    for i, check in enumerate(context.raw.checks):
        if expr := context.formula(("checks", i, "that"), check.that, Want(Kind.BOOL), names, None):
            found.append(Condition(check.that, expr, check.otherwise.rstrip(".") + "."))
    return tuple(found)
