"""Resolves the transformations of an operator: gradients, jvp and vmap."""

from __future__ import annotations

import re

from ..formula.compile import Name, Need, Task, Want, compile_together
from ..model.dtypes import FLOATING
from ..model.op import (
    Arguments,
    Derivatives,
    Expr,
    Fact,
    Form,
    Grad,
    GradKind,
    Jvp,
    Parameter,
    Vmap,
)
from ..read.keys import GradFunction, listed
from .context import ARRAY, ARRAYS, BOOL, Context, Environment, Path
from .fit import gradient_function

RESULT = frozenset(["result"])
_NO_GRADIENT = (GradKind.NONE, GradKind.ZERO)


def derivatives(context: Context, env: Environment) -> Derivatives:
    """Return the gradients, the jvp and the vmap rule."""
    grads = _gradients(context, env)
    own = context.raw.grad is not None and context.form is not Form.KERNELS
    jvp, tangents = _jvp(context, env, grads)
    return Derivatives(tuple(grads), own, jvp, tuple(tangents), _vmap(context))


def _gradients(context: Context, env: Environment) -> list[Grad]:
    given, kernels = context.raw.grad, context.form is Form.KERNELS
    arrays = env.arguments.arrays
    if given in ("none", "todo"):
        return [_without_gradient(p) for p in arrays]
    texts = given if isinstance(given, dict) else {}
    grads: list[Grad] = []
    tasks: dict[str, tuple[int, Task]] = {}  # by key, with the position of their gradients
    seen: set[str] = set()
    for key, value in texts.items():
        if params := _arguments(context, env.arguments, key, seen):
            found = _declared(context, env, key, params, value)
            if isinstance(found, Task):
                tasks[key] = len(grads), found
                found = [Grad(tuple(params), GradKind.FORMULA, str(value).strip())]
            grads += found
    exprs = compile_together([task for _, task in tasks.values()])
    for (key, (i, _)), expr in zip(tasks.items(), exprs, strict=True):
        grads[i] = grads[i]._replace(expr=expr)
        if expr is None:
            context.fail(("grad", key))
    grads = [g for g in grads if g.expr or g.kind is not GradKind.FORMULA]
    if "vjp" in context.raw.manual:
        return []
    missing = [p for p in arrays if p.name not in seen]
    unknown = seen - {arg.name for arg in context.signature.declared}
    if unknown and len(unknown) >= len([p for p in missing if not p.integral]):
        missing = []  # they are probably misspelled
    for p in missing:
        if p.integral and (kernels or given is not None):
            grads.append(_of_integers(p))
        elif kernels and context.raw.composite is not None:
            grads.append(Grad((p,), GradKind.COMPOSITE, "of the composite"))
        elif "grad" not in context.left_out and (kernels or given is not None):
            path = ("grad",) if given is not None else ()
            sort = "kernels" if context.raw.composite is None else ""
            context.error("no_gradient", path, sort, key=bool(path), name=p.name)
    return grads


def _without_gradient(p: Parameter) -> Grad:
    return _of_integers(p) if p.integral else Grad((p,), GradKind.NONE, "none")


def _of_integers(p: Parameter) -> Grad:
    """Return a zero: as in MLX, mx.checkpoint asks for the gradients of all arguments."""
    return Grad((p,), GradKind.ZERO, "zero (integers)")


def _arguments(context: Context, arguments: Arguments, key: str, seen: set[str]) -> list[Parameter]:
    """Return the arrays that a key of `grad` names, separated by commas."""
    path: Path = ("grad", key)
    by_name, arrays = arguments.by_name, [p.name for p in arguments.arrays]
    names = list(listed([key]))
    params = []
    for name, _, at in names:
        param = by_name.get(name)
        if param is None or param.arg.mode_of:
            context.is_known("unknown_in_grad", name, arrays, path, at=at)
        elif not param.type.is_array:
            context.error("gradient_of_other", path, key=True, at=at, name=name, kind=param.type)
        elif name in seen:
            context.error("two_gradients", path, key=True, at=at, name=name)
        else:
            params.append(param)
        seen.add(name)
    return params if len(params) == len(names) else []


def _declared(
    context: Context, env: Environment, key: str, params: list[Parameter], value: str | GradFunction
) -> list[Grad] | Task:
    """Return the gradients that an item of `grad` defines, or its formula to compile."""
    path: Path = ("grad", key)
    if len(params) > 1 and any(p.is_list for p in params):
        context.error("gradient_of_list", path, key=True)
        return []
    if isinstance(value, GradFunction):
        function, include = gradient_function(context, value.function, (*path, "function"))
        kind = GradKind.FUNCTION
        return [Grad(tuple(params), kind, value.function, function=function, include=include)]
    text = value.strip()
    integral = [p.name for p in params if p.integral]
    if text != "none" and integral:
        several = "several" * (len(params) > 1)
        context.error("gradient_of_integers", path, several, key=True, name=integral[0])
    if text == "none":
        return [_without_gradient(p) for p in params]
    if text == "zero":
        return [Grad((p,), GradKind.ZERO, text) for p in params]
    names = _gradient_names(context, env)
    cotangents = [f"grad_{name}" for name in context.output_names]
    linear = [f"`{name}`" for name in (cotangents if len(cotangents) > 1 else ["grad"])]
    dtype = _floating(context, env.arguments)
    needs = [
        Need("gradient", p.name)  # reported above
        if p.integral
        else env.need(context, "gradient", p.name, env.facts[p.name], dtype, linear)
        for p in params
    ]
    want = Want.arrays([p.is_list for p in params], needs)
    if len(params) == 1:
        _given(names, params[0])
    elif context.form is Form.KERNELS:
        names |= {f"asked_{p.name}": Name(BOOL) for p in params}
    if any(name not in names for name in re.findall(r"\bgrad(?:_out)?\b", text)):
        context.error("ambiguous_grad", path, outputs=cotangents)
        return []
    together = len(params) > 1 or params[0].is_list
    return context.task(path, text, want, names, always=together)


def _floating(context: Context, arguments: Arguments) -> str:
    """Return the category of gradients; empty if no array is floating."""
    dtypes = arguments.group.dtypes if arguments.group else ()
    if context.form is not Form.KERNELS or "complex64" in dtypes:
        return "inexact"
    return "" if {*FLOATING}.isdisjoint(dtypes) else "floating"


def _given(names: dict[str, Name], p: Parameter) -> None:
    """Mark an optional array as present in the formula of its own derivative."""
    names[p.name] = names[p.name]._replace(present=p.type.optional)


def _gradient_names(context: Context, env: Environment) -> dict[str, Name]:
    """Return the names that gradient formulas may use."""
    signature, names = context.signature, env.names()
    count = len(signature.outputs)
    found = [*env.results, *[Fact()] * count][:count]
    for word, degree, uses in (("grad", 1, frozenset[str]()), ("result", 0, RESULT)):
        facts = [fact._replace(degree=degree, uses=uses) for fact in found]
        each = signature.each_output(word)
        if len(each) == 1:  # the length of a list depends on the call
            names |= dict.fromkeys(each, Name(ARRAYS, None, facts[0]))
            continue
        items = [f"{word}_{name}" for name in context.output_names]
        for name, i in each.items():
            names[name] = Name(ARRAYS, count, facts, items)
            if i is not None:
                names[name] = Name(ARRAY, fact=facts[i])
    return names


def _jvp(
    context: Context, env: Environment, grads: list[Grad]
) -> tuple[Jvp, list[tuple[Parameter, Expr]]]:
    """Return the kind of the jvp, and its formulas."""
    given = context.raw.jvp
    if "jvp" in context.raw.manual:
        return Jvp.MANUAL, []
    if context.form is not Form.KERNELS:
        return Jvp.MLX, []
    if given == "linear" and context.ok:
        _check_linear(context, grads)
    if given in ("linear", "none"):
        return Jvp(given), []
    if isinstance(given, dict):
        return Jvp.FORMULA, _jvp_formulas(context, env, given, grads)
    formulas = [g for g in grads if g.kind is GradKind.FORMULA]
    diagonal = (
        context.elementwise
        and len(context.signature.outputs) == 1
        and formulas != []
        and all(g.kind in (GradKind.FORMULA, *_NO_GRADIENT) and not g.joint for g in grads)
    )
    if given == "elementwise" and not diagonal:
        context.error("elementwise_jvp", ("jvp",))
    if diagonal:  # the Jacobian is its own transpose
        return Jvp.ELEMENTWISE, [(g.params[0], g.expr) for g in formulas if g.expr]
    smooth = {g.kind for g in grads if not g.params[0].integral} - {GradKind.NONE}
    return (Jvp.COMPOSITE if smooth == {GradKind.COMPOSITE} else Jvp.VJP), []


def _check_linear(context: Context, grads: list[Grad]) -> None:
    """Report gradients that depend on arrays, which cannot be if the op is linear."""
    for grad in grads:
        used = frozenset[str]().union(*(f.uses for f in grad.expr.facts)) if grad.expr else ()
        if used:
            names = [f"`{name}`" for name in sorted(used)]
            return context.error("not_linear", ("jvp",), name=grad.params[0].name, names=names)


def _jvp_formulas(
    context: Context, env: Environment, given: dict[str, str], grads: list[Grad]
) -> list[tuple[Parameter, Expr]]:
    """Compile the formulas of `jvp`, one per argument."""
    by_name = env.arguments.by_name
    smooth = [p.name for g in grads for p in g.params if g.kind not in _NO_GRADIENT]
    missing = [name for name in smooth if name not in given]
    if len(missing) <= len(given.keys() - by_name.keys()):
        missing = []  # they are probably misspelled
    for name in missing:
        context.error("no_jvp", ("jvp",), key=True, name=name)
    found, cotangents = [], context.signature.each_output("grad")
    names = _gradient_names(context, env)
    common = {k: name for k, name in names.items() if k not in cotangents}
    arrays = [p.name for p in env.arguments.arrays]
    floating = _floating(context, env.arguments)
    for name in context.known("unknown_in_jvp", given, arrays, ("jvp",)):
        param, text = by_name[name], given[name]
        if text.strip() == "none":
            continue  # differentiating raises
        if param.is_list:
            context.error("jvp_of_list", ("jvp", name), key=True, name=name)
            continue
        names = dict(common)
        _given(names, param)
        names["tangent"] = Name(ARRAY, fact=env.facts[name]._replace(degree=1))
        needs = [
            env.need(context, "tangent", name, fact, floating, ["`tangent`"])
            for fact in env.results
        ]
        if expr := context.formula(("jvp", name), text, context.want_outputs(needs), names):
            found.append((param, expr))
    return found


def _vmap(context: Context) -> Vmap:
    """Return the vmap rule."""
    given = context.raw.vmap
    if "vmap" in context.raw.manual:
        return Vmap.MANUAL
    if context.form is not Form.KERNELS:
        return Vmap.MLX
    if given == "elementwise" and not context.elementwise:
        context.error("elementwise_vmap", ("vmap",))
    if given == "batch" and not context.elementwise and (fixed := context.axes.fixed):
        context.error("fixed_vmap", ("vmap",), name=fixed[0])
    if given is None:
        return Vmap.ELEMENTWISE if context.elementwise else Vmap.SEQUENTIAL
    return Vmap(given)
