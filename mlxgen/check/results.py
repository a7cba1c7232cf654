"""What an entry gives: its forward, the shapes and dtypes of its outputs, its checks; and what is
known of its arrays when generating.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from ..diagnostics import Help
from ..formula.compile import Name, Want, compile_formula
from ..formula.facts import category
from ..formula.source import parsed
from ..formula.values import hole, parts
from ..model.dtypes import ACCUMULATOR
from ..model.kinds import Kind
from ..model.op import STREAM, Condition, Expr, Fact, Form, Rank, Rule
from ..model.signature import Type
from .context import Context, Path
from .fit import QUALIFIED, own_function, spelled


def forward(context: Context) -> tuple[Expr | None, str]:
    """The composite or the call of the bound function, and its text; None for kernels alone."""
    text, names = context.raw.composite, context.names()
    if text is None:
        expr, text = _bound_call(context) if context.form is Form.BIND else (None, "")
    else:
        linear = context.raw.jvp == "linear"
        for name, fact in context.facts.items() if linear else ():
            names[name] = names[name]._replace(fact=fact._replace(degree=1))
        what = "its arrays" if linear else ""
        needs = [
            context.need("output", name, fact, fact.dtype, what)
            for name, fact in zip(context.output_names, context.results, strict=False)
        ]
        expr = context.formula(("composite",), text, context.want_outputs(needs), names)
    if expr and context.form is not Form.KERNELS:
        context.results = expr.known or ()
    return expr, text


def bound_texts(context: Context) -> list[str]:
    """The calls that an entry which binds a function of MLX may mean; none for other entries."""
    raw = context.raw
    if raw.composite or raw.dispatch or {"eval_cpu", "eval_gpu"} & set(raw.manual):
        return []
    target = raw.cpp or f"mlx::core::{context.name}"
    plain = re.sub(r"^(::)?(mlx::core|mx)::", "", target)
    if plain == target:
        return []
    name, signature = "mx." + plain.replace("::", "."), context.signature
    attempts = [f"{name}({', '.join(a.name for a in signature.args)})"]
    if rest := [a for a in signature.args if not a.type.is_array]:
        given = [*(a.name for a in signature.arrays), *(f"{a.name}={a.name}" for a in rest)]
        attempts.append(f"{name}({', '.join(given)})")
    return attempts


def _bound_call(context: Context) -> tuple[Expr | None, str]:
    """The call of the function that the entry names, checked against MLX's API."""
    target = context.raw.cpp or f"mlx::core::{context.name}"
    path: Path = ("cpp",) if context.raw.cpp else context.at_name
    if not QUALIFIED.fullmatch(target):
        context.error("no_cpp_name", path, target=target)
        return None, ""
    attempts = bound_texts(context)
    if not attempts:
        return _own_call(context, target, path)
    problems: list[tuple[str, str, Help]] = []

    def note(code: str, message: str, start: int, end: int, help: Help) -> None:
        problems.append((code, message, help))

    # MLX's function, not the entry of its name.
    scope = context.scope(context.names())._replace(ops={})
    for text in attempts:
        expr = compile_formula(text, scope, context.want_outputs(), note)
        if expr is not None:
            return expr, text
    code, message, hint = problems[0] if problems else ("", "it does not fit the signature", None)
    if code != "MG306":  # else it is about the arguments; other helps are for who writes formulas
        hint = "give `cpp`, `composite` or `dispatch`, or mend the signature"
    context.error("unbound", path, target=target, message=message, hint=hint)
    return None, ""


def _own_call(context: Context, target: str, path: Path) -> tuple[Expr | None, str]:
    """The call of a hand-written C++ function from csrc."""
    function = own_function(context, target, path)
    if function is None:
        return None, ""
    given = ", ".join(map(hole, [*(p.name for p in context.params), STREAM]))
    cpp = f"{spelled(context, function)}({given})"
    shown = ", ".join([*(p.cpp for p in context.params), "s"])
    type = context.signature.outputs[0].type
    return Expr(type, parts(cpp)), f"{function.qualified_name}({shown})"


def texts_by_output(context: Context, key: str) -> dict[str, str]:
    """A rule's text by output name."""
    given = getattr(context.raw, key)
    if isinstance(given, str):
        return dict.fromkeys(context.output_names, given)
    axes, texts = context.axes, {name: given[of] for name, of in context.keys(key).items()}
    return texts | ({name: axes.shape(name) for name in axes.outputs} if key == "shape" else {})


def _outputs_known(context: Context, key: str) -> bool:
    """Whether a mapping names outputs alone; reports other names."""
    if isinstance(getattr(context.raw, key), dict):
        context.known_in("MG124", key, context.output_names, "output")
    return context.keys(key).keys() <= set(context.output_names)


def _rules(context: Context, key: str, want: Want, names: dict[str, Name]) -> list[Rule | None]:
    """A rule per output, None for those without one."""
    texts, keys = texts_by_output(context, key), context.keys(key)
    rules: list[Rule | None] = []
    for name in context.output_names:
        text = texts.get(name)
        path: Path = (key, keys.get(name, name))
        if key == "shape" and name in context.axes.outputs:
            path = ("axes", context.axes.keys[name])
        expr = context.formula(path, text, want, names, stream=False) if text is not None else None
        rules.append(Rule(text, expr) if text is not None and expr else None)
    return rules


def shapes(context: Context) -> tuple[Rule, ...]:
    """The rules of the outputs' shapes; none for an elementwise op."""
    texts = texts_by_output(context, "shape")
    if not texts:
        return ()
    if _outputs_known(context, "shape"):
        for name in context.output_names:
            if name not in texts:
                path: Path = ("axes" if context.raw.shape is None else "shape",)
                context.error("no_shape", path, key=True, name=name)
    rules = _rules(context, "shape", Want(Kind.SHAPE), context.names())
    return tuple(rule for rule in rules if rule)


def out_dtypes(context: Context) -> tuple[Rule | None, ...]:
    """The rules of the outputs' dtypes; None for the promoted one."""
    texts = texts_by_output(context, "dtype")
    if not texts:
        return (None,) * len(context.signature.outputs)
    context.dtypes_known &= _outputs_known(context, "dtype")
    if context.elementwise:
        context.dtypes_known = False
        context.error("elementwise_dtype", ("dtype",), key=True)
        return ()
    names = context.names()
    names[ACCUMULATOR] = Name(Type(Kind.DTYPE), fact="floating")
    rules = _rules(context, "dtype", Want(Kind.DTYPE), names)
    context.dtypes_known &= all(
        rule for name, rule in zip(context.output_names, rules, strict=True) if name in texts
    )
    return tuple(rules)


def checks(context: Context) -> tuple[Condition, ...]:
    """The conditions that the arguments must meet."""
    names = context.names()
    found: list[Condition] = []
    ranks = dict(context.axes.ranks())
    for name, text, message in context.axes.conditions():
        path: Path = ("axes", context.axes.keys[name])
        if expr := context.formula(path, text, Want(Kind.BOOL), names, stream=False):
            found.append(Condition(text, expr, message, name))
    for i, check in enumerate(context.raw.checks):
        text, message = check.that, check.otherwise.rstrip(".") + "."
        path = ("checks", i, "that")
        if expr := context.formula(path, text, Want(Kind.BOOL), names, stream=False):
            tree = parsed(text)
            found.append(Condition(text, expr, message, whole=frozenset(_whole(tree))))
            ranks.update(_ranks(tree))
    _arrays(context, ranks)
    return tuple(found)


def _ranks(node: ast.expr) -> Iterator[tuple[str, tuple[str, int]]]:
    """The ranks that a condition says, by the arrays' names."""
    match node:
        case ast.BoolOp(ast.And(), parts):
            for part in parts:
                yield from _ranks(part)
        case ast.BoolOp(ast.Or(), [ast.Compare(ast.Name(name), [ast.Is()]), part]):
            yield from (rank for rank in _ranks(part) if rank[0] == name)
        case ast.Compare(ast.Attribute(ast.Name(name), "ndim"), [ast.Eq()], [ast.Constant(int(n))]):
            yield name, ("", n)
        case ast.Compare(ast.Attribute(ast.Name(name), "shape"), [ast.Eq()], [ast.List(axes)]):
            yield name, ("", len(axes))
        case ast.Compare(
            ast.Attribute(ast.Name(name), "shape" | "ndim" as one),
            [ast.Eq()],
            [ast.Attribute(ast.Name(other), two)],
        ) if one == two:
            yield name, (other, 0)


def _whole(node: ast.expr) -> Iterator[str]:
    """The arrays that are integers, or bools, if a condition holds."""
    match node:
        case ast.BoolOp(ast.And(), parts):
            for part in parts:
                yield from _whole(part)
        case ast.BoolOp(ast.Or(), [ast.Compare(ast.Name(name), [ast.Is()]), part]):
            yield from (found for found in _whole(part) if found == name)
        case ast.Call(
            ast.Name("issubdtype"),
            [ast.Attribute(ast.Name(name), "dtype"), ast.Name("integer")],
        ):
            yield name
        case ast.Compare(ast.Attribute(ast.Name(name), "dtype"), [ast.Eq()], [ast.Name("bool_")]):
            yield name


def _arrays(context: Context, ranks: Mapping[str, tuple[str, int]]) -> None:
    """Note what is known of the arrays; those of elementwise kernels have one shape."""
    dtype, first = _promoted(context), context.arrays[0].name if context.arrays else ""
    for p in context.arrays:
        rank = ranks.get(p.name, (p.name, 0))
        rank = ranks.get(rank[0], rank)  # that of an array of the same shape
        known = None if p.is_list else (first, 0) if context.elementwise else rank
        own = "floating" if p.dtype == ACCUMULATOR else p.dtype
        context.facts[p.name] = Fact(known, own or dtype, 0, frozenset([p.name]))


def _promoted(context: Context) -> str:
    """What is known of the dtype that arrays of kernels have together."""
    group = context.group if context.form is Form.KERNELS else ()
    return group[0] if len(group) == 1 else category(*group)


def outputs(
    context: Context,
    shapes: Sequence[Rule],
    dtypes: Sequence[Rule | None],
    checks: Sequence[Condition],
) -> None:
    """Note what is known of the outputs of kernels, and which arrays may have any ndim."""
    # Of several arrays some may be meant as scalars, unless their axes are spoken of.
    free = (
        {*context.facts} if len(context.arrays) == 1 else {n for r in shapes for n in r.expr.sized}
    )
    context.free = frozenset(free.difference(*(check.expr.names for check in checks)))
    if context.form is not Form.KERNELS:
        return
    count = len(context.output_names)
    ranks: list[Rank] = [rule.expr.known for rule in shapes]
    if context.elementwise:
        ranks = [(context.arrays[0].name, 0)] * count
    known = [rule.expr.known if rule else _promoted(context) for rule in dtypes]
    context.results = [Fact(*pair) for pair in zip(ranks, known, strict=False)]
    if len(context.results) < count:  # rules that have errors
        context.results = [Fact()] * count
