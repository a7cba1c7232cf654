"""Resolves the results of an entry: forward, shapes and dtypes of outputs, and checks.

Also collects the facts about arrays that are known at generation time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..diagnostics import Rendered
from ..formula.compile import Name, Want, compile_formula
from ..formula.facts import category
from ..formula.source import Formula
from ..formula.values import call, hole
from ..model.dtypes import ACCUMULATOR
from ..model.kinds import Kind
from ..model.op import (
    STREAM,
    Arguments,
    Condition,
    Expr,
    Fact,
    Form,
    Forward,
    OutputRules,
    Rank,
    Rule,
)
from ..model.signature import Type
from .context import Context, Environment, Path
from .fit import QUALIFIED, own_function, spelled


def forward(context: Context, env: Environment) -> Forward:
    """Compile the composite or the call of the bound function; kernels are added later."""
    text, names, form = context.raw.composite, env.names(), context.form
    if text is None:
        return _bound_call(context, env) if form is Form.BIND else Forward(form)
    linear = context.raw.jvp == "linear"
    for name, fact in env.facts.items() if linear else ():
        names[name] = names[name]._replace(fact=fact._replace(degree=1))
    what = ["its arrays"] if linear else []
    needs = [
        env.need(context, "output", name, fact, fact.dtype, what)
        for name, fact in zip(context.output_names, env.results, strict=False)
    ]
    expr = context.formula(("composite",), text, context.want_outputs(needs), names)
    return Forward(form, expr, text)


def bound_texts(context: Context) -> list[str]:
    """Return the possible calls of an entry that binds an MLX function; none for other entries."""
    raw = context.raw
    if raw.composite or raw.dispatch or {"eval_cpu", "eval_gpu"} & set(raw.manual):
        return []
    target = raw.cpp or f"mlx::core::{context.name}"
    plain = re.sub(r"^(::)?(mlx::core|mx)::", "", target)
    if plain == target:
        return []
    name, signature = "mx." + plain.replace("::", "."), context.signature
    declared = signature.declared
    args = [(a, f"{'*' * a.type.variadic}{a.name}", f"{a.name}={a.name}") for a in declared]
    variadic = any(a.type.variadic for a in declared)
    by_place = [word if variadic and a.kw_only else place for a, place, word in args]
    as_declared = [word if a.kw_only else place for a, place, word in args]
    arrays = [place for a, place, _ in args if a.type.is_array]
    by_name = [*arrays, *(word for a, _, word in args if not a.type.is_array)]
    attempts = (by_place, as_declared, by_name)
    return [*dict.fromkeys(f"{name}({', '.join(given)})" for given in attempts)]


def _bound_call(context: Context, env: Environment) -> Forward:
    """Compile the call of the bound function, checked against MLX's API."""
    target = context.raw.cpp or f"mlx::core::{context.name}"
    path: Path = ("cpp",) if context.raw.cpp else context.at_name
    if not QUALIFIED.fullmatch(target):
        context.error("no_cpp_name", path, target=target)
        return Forward(context.form)
    attempts = bound_texts(context)
    if not attempts:
        return _own_call(context, env.arguments, target, path)
    problems: list[Rendered] = []

    def note(said: Rendered, start: int, end: int) -> None:
        problems.append(said)

    # The name refers to MLX's function, not to this entry.
    scope = context.scope(env.names())._replace(ops={}, lets={})
    for text in attempts:
        expr = compile_formula(text, scope, context.want_outputs(), note)
        if expr is not None:  # which behaves in shapeless graphs as MLX's own function
            expr = expr._replace(specializes="", gradient_specializes="")
            return Forward(context.form, expr, text)
    # Only the help of MG306 is about the arguments; the others are about formulas.
    code, message, hint, _ = problems[0]
    context.error("unbound", path, code * bool(hint), target=target, message=message, hint=hint)
    return Forward(context.form)


def _own_call(context: Context, arguments: Arguments, target: str, path: Path) -> Forward:
    """Return the call of a hand-written C++ function in csrc."""
    function = own_function(context, target, path)
    if function is None:
        return Forward(context.form)
    called = call(spelled(context, function), *map(hole, [*arguments.by_name, STREAM]))
    shown = ", ".join([*(p.cpp for p in arguments.params), "s"])
    expr = Expr(context.signature.outputs[0].type, called.parts)
    include = str(context.sources.header_of(function))
    return Forward(context.form, expr, f"{function.qualified_name}({shown})", include=include)


def by_output(context: Context, key: str) -> dict[str, Formula]:
    """Return the formula of a rule by output name."""
    given = getattr(context.raw, key)
    if isinstance(given, str):
        return dict.fromkeys(context.output_names, given)
    axes, found = context.axes, {name: given[of] for name, of in context.keys(key).items()}
    return found | ({name: axes.shape(name) for name in axes.outputs} if key == "shape" else {})


def _outputs_known(context: Context, key: str) -> bool:
    """Check that a mapping names only outputs."""
    if isinstance(given := getattr(context.raw, key), dict):
        context.known_in("unknown_output", given, context.output_names, key)
    return context.keys(key).keys() <= set(context.output_names)


def rules(context: Context, env: Environment) -> OutputRules:
    """Compile the rules of the outputs' shapes and dtypes."""
    return OutputRules(_shapes(context, env), _dtypes(context, env))


def _rules(context: Context, key: str, want: Want, names: dict[str, Name]) -> list[Rule | None]:
    """Compile a rule per output, None for outputs without one."""
    given, keys = by_output(context, key), context.keys(key)
    rules: list[Rule | None] = []
    for name in context.output_names:
        formula, rule = given.get(name), None
        path: Path = (key, keys.get(name, name))
        if key == "shape" and name in context.axes.outputs:
            path = ("axes", context.axes.keys[name])
        if formula is not None:
            expr = context.formula(path, formula, want, names, stream=False)
            rule = expr and _rule(context, formula, expr)
        rules.append(rule)
    return rules


def _rule(context: Context, formula: Formula, expr: Expr) -> Rule:
    if isinstance(formula, str):
        return Rule(formula, expr, context.expanded(formula))
    return Rule(ast.unparse(formula), expr, formula)


def _shapes(context: Context, env: Environment) -> tuple[Rule, ...]:
    """Compile the rules of the outputs' shapes; an elementwise op has none."""
    given = by_output(context, "shape")
    if not given:
        return ()
    if _outputs_known(context, "shape"):
        for name in context.output_names:
            if name not in given:
                path: Path = ("axes" if context.raw.shape is None else "shape",)
                context.error("no_shape", path, key=True, name=name)
    rules = _rules(context, "shape", Want(Kind.SHAPE), env.names())
    return tuple(rule for rule in rules if rule)


def _dtypes(context: Context, env: Environment) -> tuple[Rule | None, ...]:
    """Compile the rules of the outputs' dtypes; None for the promoted dtype."""
    if not by_output(context, "dtype"):
        return (None,) * len(context.signature.outputs)
    _outputs_known(context, "dtype")
    if context.elementwise:
        context.error("elementwise_dtype", ("dtype",), key=True)
        return ()
    names = env.names()
    names[ACCUMULATOR] = Name(Type(Kind.DTYPE), fact=Fact(dtype="floating"))
    return tuple(_rules(context, "dtype", Want(Kind.DTYPE), names))


def checks(context: Context, arguments: Arguments) -> tuple[tuple[Condition, ...], Environment]:
    """Compile the conditions on the arguments; also return the facts that follow from them."""
    names = Environment(arguments).names()
    found: list[Condition] = []
    ranks = dict(context.axes.ranks())
    for name, tree, message in context.axes.conditions():
        path: Path = ("axes", context.axes.keys[name])
        if expr := context.formula(path, tree, Want(Kind.BOOL), names, stream=False):
            found.append(Condition(tree, expr, message, name))
    for i, check in enumerate(context.raw.checks):
        text, message = check.that, check.otherwise.rstrip(".") + "."
        path = ("checks", i, "that")
        if expr := context.formula(path, text, Want(Kind.BOOL), names, stream=False):
            tree = context.expanded(text)
            implied = [*_implied(tree)]
            whole = frozenset([array for array, rank in implied if rank is None])
            found.append(Condition(tree, expr, message, whole=whole))
            ranks.update((array, rank) for array, rank in implied if rank)
    return tuple(found), Environment(arguments, _facts(context, arguments, ranks))


def _implied(node: ast.expr) -> Iterator[tuple[str, tuple[str, int] | None]]:
    """Yield arrays with a rank that follows from a condition; None: they are integers or bools."""
    match node:
        case ast.BoolOp(ast.And(), parts):
            for part in parts:
                yield from _implied(part)
        case ast.BoolOp(ast.Or(), [*absent, part]) if absent:
            yield from (found for found in _implied(part) if _all_absent(absent, found[0]))
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
        case ast.Call(
            ast.Name("issubdtype"),
            [ast.Attribute(ast.Name(name), "dtype"), ast.Name("integer")],
        ) | ast.Compare(ast.Attribute(ast.Name(name), "dtype"), [ast.Eq()], [ast.Name("bool_")]):
            yield name, None


def _all_absent(tests: Sequence[ast.expr], array: str) -> bool:
    """Return whether all conditions are absences of an array: ``x is None`` or ``x == 'a'``."""

    def is_absence(test: ast.expr) -> bool:
        match test:
            case ast.Compare(ast.Name(name), [ast.Is() | ast.Eq()], [ast.Constant(None | str())]):
                return name == array
        return False

    return all(map(is_absence, tests))


def _facts(
    context: Context, arguments: Arguments, ranks: Mapping[str, tuple[str, int]]
) -> dict[str, Fact]:
    """Return the facts about the arrays; those of elementwise kernels share one shape."""
    arrays, facts = arguments.arrays, dict[str, Fact]()
    dtype, first = _promoted(context, arguments), arrays[0].name if arrays else ""
    for p in arrays:
        rank = ranks.get(p.name, (p.name, 0))
        rank = ranks.get(rank[0], rank)  # the rank of an array of equal shape
        known = None if p.is_list else (first, 0) if context.elementwise else rank
        own = "floating" if p.dtype == ACCUMULATOR else p.dtype
        if context.form is not Form.KERNELS:
            own = own if own == "bool_" else None  # other dtypes are passed on
        facts[p.name] = Fact(known, own or dtype, 0, frozenset([p.name]))
    return facts


def _promoted(context: Context, arguments: Arguments) -> str:
    """Return the dtype or category that arrays of kernels are promoted to."""
    rule = arguments.group if context.form is Form.KERNELS else None
    group = rule.dtypes if rule else ()
    return group[0] if len(group) == 1 else category(*group)


def with_outputs(
    context: Context, env: Environment, rules: OutputRules, checks: Sequence[Condition]
) -> Environment:
    """Add the facts about the outputs of kernels, and the arrays that may have any rank."""
    arguments = env.arguments
    # An array may be intended as a scalar, unless it is the only one or formulas use its axes.
    free = {*env.facts} if len(env.facts) == 1 else {n for r in rules.shapes for n in r.expr.sized}
    free = free.difference(*(check.expr.names for check in checks))
    env = replace(env, free=frozenset(free))
    if context.form is not Form.KERNELS:
        return env
    count = len(context.output_names)
    ranks: list[Rank] = [rule.expr.facts[0].rank for rule in rules.shapes]
    if context.elementwise:
        ranks = [(arguments.arrays[0].name, 0)] * count
    dtypes = [r.expr.facts[0].dtype if r else _promoted(context, arguments) for r in rules.dtypes]
    found = [Fact(*pair) for pair in zip(ranks, dtypes, strict=False)]
    # Rules with errors are missing.
    return replace(env, results=found if len(found) == count else [Fact()] * count)
