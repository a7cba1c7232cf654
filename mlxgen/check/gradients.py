"""How an operator is transformed: gradients, jvp and vmap."""

from __future__ import annotations

import ast
import re

from ..formula.compile import Name, Need, Want
from ..formula.explain import Wrong
from ..formula.source import Source
from ..model.dtypes import FLOATING
from ..model.op import Expr, Fact, Form, Grad, GradKind, Parameter
from ..model.signature import with_article
from ..read.keys import GradFunction, listed
from ..read.yaml import quoted
from .batch import check_batch
from .context import ARRAY, ARRAYS, BOOL, Context, Path
from .fit import gradient_function

RESULT = frozenset(["result"])
_NO_GRADIENT = (GradKind.NONE, GradKind.ZERO)


def gradients(context: Context) -> tuple[list[Grad], bool]:
    """The gradients, and whether they are an op's own that brings others (of MLX)."""
    given, kernels = context.raw.grad, context.form is Form.KERNELS
    if given == "none":
        return [Grad((p,), GradKind.NONE, "none") for p in context.arrays], not kernels
    texts = given if isinstance(given, dict) else {}
    grads: list[Grad] = []
    seen: set[str] = set()
    for key, value in texts.items():
        if params := _arguments(context, key, seen):
            grads += _declared(context, key, params, value)
    if "vjp" in context.raw.manual:
        return [], False
    missing = [p for p in context.arrays if p.name not in seen]
    unknown = seen.difference(p.name for p in context.params)
    if unknown and len(unknown) >= len([p for p in missing if not p.integral]):
        missing = []  # they are there, misspelt
    for p in missing:
        if p.integral:
            grads.append(Grad((p,), GradKind.NONE, "none (integers)"))
        elif kernels and context.raw.composite is not None:
            grads.append(Grad((p,), GradKind.COMPOSITE, "of the composite"))
        elif "grad" not in context.left_out and (kernels or given is not None):
            path = ("grad",) if given is not None else ()
            sort = "kernels" if context.raw.composite is None else ""
            context.error("no_gradient", path, sort, key=bool(path), name=p.name)
    return grads, given is not None and not kernels


def _arguments(context: Context, key: str, seen: set[str]) -> list[Parameter]:
    """The arrays that a key of `grad` names: one, or several with commas."""
    path: Path = ("grad", key)
    by_name = {p.name: p for p in context.params}
    arrays = [p.name for p in context.arrays]
    names = list(listed([key]))
    params = []
    for name, _, at in names:
        param = by_name.get(name)
        if param is None:
            context.is_known("MG401", name, arrays, "array argument", path, at=at)
        elif not param.type.is_array:
            kind = with_article(param.type)
            context.error("gradient_of_other", path, key=True, at=at, name=name, kind=kind)
        elif name in seen:
            context.error("two_gradients", path, key=True, at=at, name=name)
        else:
            params.append(param)
        seen.add(name)
    return params if len(params) == len(names) else []


def _declared(
    context: Context, key: str, params: list[Parameter], value: str | GradFunction
) -> list[Grad]:
    """The gradients that an item of `grad` gives to its arguments."""
    path: Path = ("grad", key)
    if len(params) > 1 and any(p.is_list for p in params):
        context.error("gradient_of_list", path, key=True)
        return []
    if isinstance(value, GradFunction):
        function = gradient_function(context, value.function, (*path, "function"))
        return [Grad(tuple(params), GradKind.FUNCTION, value.function, function=function)]
    text = value.strip()
    if text != "none" and any(p.integral for p in params):
        name, instead = next(p.name for p in params if p.integral), _without_integers(params, text)
        context.error("gradient_of_integers", path, key=True, name=name, instead=instead)
    if text in ("none", "zero"):
        return [Grad((p,), GradKind(text), text) for p in params]
    names = _gradient_names(context)
    cotangents = [f"grad_{name}" for name in context.output_names]
    linear = "`grad`" if len(cotangents) == 1 else " or ".join(f"`{name}`" for name in cotangents)
    dtype = _floating(context)
    needs = [
        Need("gradient", p.name)  # which is reported
        if p.integral
        else context.need("gradient", p.name, context.facts[p.name], dtype, linear)
        for p in params
    ]
    want = Want.arrays([p.is_list for p in params], needs)
    if len(params) == 1:
        _given(names, params[0])
    elif context.form is Form.KERNELS:
        names |= {f"asked_{p.name}": Name(BOOL) for p in params}
    if any(name not in names for name in re.findall(r"\bgrad(?:_out)?\b", text)):
        outputs = ", ".join(f"grad_{name}" for name in context.output_names)
        context.error("ambiguous_grad", path, outputs=outputs)
        return []
    expr = context.formula(path, text, want, names)
    return [Grad(tuple(params), GradKind.FORMULA, text, expr)] if expr is not None else []


def _without_integers(params: list[Parameter], text: str) -> str:
    """What an item of `grad` should be instead, in which some arguments are integers."""
    try:
        tree = Source(text).parse()
    except Wrong:
        tree = None
    several = len(params) > 1 and text != "zero"
    parts = [f"({text})[{i}]" if several else text for i in range(len(params))]
    if isinstance(tree, ast.Call):
        parts = [f"{text}[{i}]" if several else text for i in range(len(params))]
    if isinstance(tree, ast.Tuple) and len(tree.elts) == len(params):
        spans = [Source(text).span(element) for element in tree.elts]
        parts = [text[start:end] for start, end in spans]
    for p in params:  # only a formula of several arguments asks
        wanted = str(not p.integral)
        parts = [re.sub(rf"\basked_{p.name}\b", wanted, part) for part in parts]
    none = ", ".join(p.name for p in params if p.integral)
    items = [
        (p.name, quoted(part)) for p, part in zip(params, parts, strict=True) if not p.integral
    ]
    items.append((quoted(none) if "," in none else none, "none"))
    return ", ".join(f"{name}: {part}" for name, part in items)


def _floating(context: Context) -> str:
    """The category of gradients; empty where arrays are never floating."""
    if context.form is not Form.KERNELS or "complex64" in context.group:
        return "inexact"
    return "" if {*FLOATING}.isdisjoint(context.group) else "floating"


def _given(names: dict[str, Name], p: Parameter) -> None:
    """An optional array is there when its own derivative is asked for."""
    if p.type.optional:
        names[p.name] = Name(ARRAY, fact=names[p.name].fact)


def _gradient_names(context: Context) -> dict[str, Name]:
    """What gradient formulas may refer to."""
    signature, names = context.signature, context.names()
    count = len(signature.outputs)
    found = [*context.results, *[Fact()] * count][:count]
    for word, degree, uses in (("grad", 1, frozenset[str]()), ("result", 0, RESULT)):
        facts = [fact._replace(degree=degree, uses=uses) for fact in found]
        each = signature.each_output(word)
        if len(each) == 1:  # how many arrays a list holds, only the call knows
            names |= dict.fromkeys(each, Name(ARRAYS, None, facts[0]))
            continue
        items = [f"{word}_{name}" for name in context.output_names]
        for name, i in each.items():
            names[name] = Name(ARRAYS, count, facts, items)
            if i is not None:
                names[name] = Name(ARRAY, fact=facts[i])
    return names


def jvp(context: Context, grads: list[Grad]) -> tuple[str, list[tuple[Parameter, Expr]]]:
    """How the op is differentiated forwards, and the formulas of it."""
    given = context.raw.jvp
    if "jvp" in context.raw.manual:
        return "manual", []
    if context.form is not Form.KERNELS:
        return "", []
    if given == "linear" and context.ok:
        _check_linear(context, grads)
    if given in ("linear", "none"):
        return str(given), []
    if isinstance(given, dict):
        return "formula", _jvp_formulas(context, given, grads)
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
        return "elementwise", [(g.params[0], g.expr) for g in formulas if g.expr]
    smooth = {g.kind for g in grads} - {GradKind.NONE}
    if smooth <= {GradKind.COMPOSITE} and grads:
        return "composite" if smooth else "none", []
    return "vjp", []


def _check_linear(context: Context, grads: list[Grad]) -> None:
    """Report gradients that depend on arrays, those of a linear op do not."""
    for grad in grads:
        used = frozenset[str]().union(*(f.uses for f in grad.expr.known)) if grad.expr else ()
        if used:
            names = ", ".join(f"`{name}`" for name in sorted(used))
            return context.error("not_linear", ("jvp",), name=grad.params[0].name, names=names)


def _jvp_formulas(
    context: Context, given: dict[str, str], grads: list[Grad]
) -> list[tuple[Parameter, Expr]]:
    """The formulas of `jvp`, one per argument."""
    by_name = {p.name: p for p in context.params}
    smooth = [p.name for g in grads for p in g.params if g.kind not in _NO_GRADIENT]
    missing = [name for name in smooth if name not in given]
    if len(missing) <= len(given.keys() - by_name.keys()):
        missing = []  # they are there, misspelt
    for name in missing:
        context.error("no_jvp", ("jvp",), key=True, name=name)
    found, cotangents = [], context.signature.each_output("grad")
    common = {k: name for k, name in _gradient_names(context).items() if k not in cotangents}
    arrays = [p.name for p in context.arrays]
    for name in context.known("MG409", given, arrays, "array argument", ("jvp",)):
        param, text = by_name[name], given[name]
        if text.strip() == "none":
            continue  # asking for it is an error
        if param.is_list:
            context.error("jvp_of_list", ("jvp", name), key=True, name=name)
            continue
        names = dict(common)
        _given(names, param)
        names["tangent"] = Name(ARRAY, fact=context.facts[name]._replace(degree=1))
        needs = [
            context.need("tangent", name, fact, _floating(context), "`tangent`")
            for fact in context.results
        ]
        if expr := context.formula(("jvp", name), text, context.want_outputs(needs), names):
            found.append((param, expr))
    return found


def vmap(context: Context) -> str:
    """How the op is vectorised."""
    given = context.raw.vmap
    if "vmap" in context.raw.manual:
        return "manual"
    if context.form is not Form.KERNELS:
        return ""
    if given == "elementwise" and not context.elementwise:
        context.error("elementwise_vmap", ("vmap",))
    if given == "batch" and not context.elementwise and (fixed := context.axes.fixed):
        context.error("fixed_vmap", ("vmap",), name=fixed[0])
    elif given == "batch" and not context.elementwise:
        check_batch(context)
    return given or ("elementwise" if context.elementwise else "sequential")
