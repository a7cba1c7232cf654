"""Warns of unused arguments and cotangents, which were probably forgotten.

The key `unused` lists exceptions with reasons, such as ``{alpha: torch's signature has it}``. An
output in it is memory for intermediate results of kernels, and its cotangent needs no reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...check.context import Context
from ...diagnostics import did_you_mean
from ...model.dtypes import INTEGER
from ...model.op import Form, GradKind, Op
from . import MESSAGES


def check_unused(context: Context, op: Op) -> None:
    """Warn of arguments and cotangents that formulas should use but do not."""
    cotangents = [f"grad_{name}" for name in context.output_names if not op.single]
    has_memory = op.forward.kernels and not (op.single or op.elementwise)
    memory = context.output_names if has_memory else ()
    reasons = context.raw.unused
    names = [*(p.name for p in op.arguments.params), *memory, *cotangents]
    wrong = [name for name in reasons if name not in names]
    for name in wrong:
        about = {"name": name, "guess": did_you_mean(name, names), "known": ", ".join(names)}
        path = ("unused", name)
        context.error("unknown_in_unused", path, "some", table=MESSAGES, key=True, **about)
    unused = dict.fromkeys(_arguments(op), "composite")
    outputs = context.output_names
    unused |= {cotangents[i]: "grad" for i in _cotangents(op) if outputs[i] not in reasons}
    excused = {*memory, *unused, *_left_out(op)}
    for name in reasons:
        if name in names and name not in excused:
            path = ("unused", name)
            context.warning("unused_is_used", path, table=MESSAGES, key=True, name=name)
    for name, key in unused.items() if not wrong else ():  # else one is misspelled
        if name not in reasons:
            context.warning(f"unused_in_{key}", (key,), table=MESSAGES, key=True, name=name)


def _arguments(op: Op) -> Iterator[str]:
    """Yield the arguments that the composite does not use.

    Next to kernels, a composite should use every kernel argument. Alone, it may leave arguments to
    the gradients and checks.
    """
    if op.forward.expr is None or op.forward.form is Form.BIND:
        return
    exprs = [op.forward.expr]
    if op.forward.form is Form.COMPOSITE:
        if any(grad.function for grad in op.derivatives.grads):
            return
        exprs += [grad.expr for grad in op.derivatives.grads if grad.expr]
        exprs += [check.expr for check in op.checks]
    used = frozenset[str]().union(*(expr.names for expr in exprs))
    params = [p for p in op.arguments.params if not p.arg.mode_of]
    yield from (p.name for p in params if p.name not in used)


def _left_out(op: Op) -> set[str]:
    """Return the attributes that a [[kernel]] does not use; metal.py requires a reason for them."""
    kernel = op.forward.kernel("metal")
    if kernel is None or kernel.scalar:
        return set()
    used = {binding.name for binding in kernel.bindings} | kernel.uses
    return {p.name for p in op.arguments.attributes} - used


def _cotangents(op: Op) -> Iterator[int]:
    """Yield the outputs whose cotangent no gradient uses, if all gradients are formulas."""
    if len(op.outputs) < 2:
        return
    exprs = [grad.expr for grad in op.derivatives.grads if grad.expr]
    others = {grad.kind for grad in op.derivatives.grads} - {
        GradKind.FORMULA,
        GradKind.NONE,
        GradKind.ZERO,
    }
    each = op.signature.each_output("grad")
    used = {each[name] for expr in exprs for name in expr.names & each.keys()}
    if not exprs or others or None in used:
        return
    dtypes = op.output_rules.dtypes or [None] * len(op.outputs)
    for i, rule in enumerate(dtypes):
        has_gradient = rule is None or rule.text not in ("bool_", *INTEGER)
        if has_gradient and i not in used:
            yield i
