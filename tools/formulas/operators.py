"""The operators of a file as Python functions whose gradients are the entries' formulas.

The forward of a kernel is that of the installed package, or else the entry's composite. Python sees
neither for some functions, such as internal kernels. These can have a substitute; otherwise a
smooth function of the same arguments is used, which is sufficient to compare two gradients, but has
another derivative (``Operators.unknown``).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from types import CodeType, ModuleType
from typing import Any

import mlx.core as mx

from mlxgen.formula.lets import Insert
from mlxgen.model.kinds import Kind
from mlxgen.model.numbers import ArrayFacts, evaluated
from mlxgen.model.op import Form, Grad, GradKind, Jvp, Op, Parameter
from mlxgen.testing.formulas import FORMULA_NAMES, formula_code, lengths_of

Arrays = list[mx.array]
Values = dict[str, Any]


class Operators:
    """Functions by name, and the formulas of their gradients, which can be replaced."""

    def __init__(
        self,
        ops: Sequence[Op],
        jvps: Mapping[str, Mapping[str, str]],
        installed: ModuleType | None,
        stand_ins: Mapping[str, str],
    ) -> None:
        self.ops = {op.name: op for op in ops}
        self.jvps = jvps  # the formulas of `jvp` by operator and argument
        self.installed = {op.name: _installed(installed, op) for op in ops}
        stand_ins = stand_ins if installed else {}  # they call functions of the package
        self.stand_ins = {name: formula_code(text)[0] for name, text in stand_ins.items()}
        self.unknown = {
            op.name
            for op in ops
            if _is_compiled(op)
            and not (self.installed[op.name] or op.entry.composite or op.name in stand_ins)
        }
        self.functions: dict[str, Callable[..., Any]] = {
            op.name: partial(self._call, op) for op in ops
        }
        self._names = {**FORMULA_NAMES, **self.functions, "__builtins__": {}}
        self._kernels = {
            **self._names,
            **{name: function for name, function in self.installed.items() if function},
            "derivative": derivative,
            "reduce": reduce,
        }
        self.changed: dict[tuple[str, str], str] = {}  # (operator, formula): its replacement

    def evaluate(self, op: Op, text: str, values: Values) -> Any:
        """Return the value of a formula of an operator, or of its replacement."""
        return self.evaluated(op, self.changed.get((op.name, text), text), values)

    def evaluated(self, op: Op, text: str, values: Values) -> Any:
        """Return the value of a formula without replacement."""
        names = {**self._names, **lengths_of(op.arguments.lengths, values), **values}
        if not op.entry.let:
            return eval(formula_code(text)[0], names)
        lets = tuple(op.entry.let)

        @cache
        def let(name: str) -> Any:
            return eval(_calling(op.entry.let[name], lets), names)

        names[_LET] = let
        return eval(_calling(text, lets), names)

    def _call(self, op: Op, *args: Any, **kwargs: Any) -> Any:
        """Call an operator as formulas and tests do."""
        kwargs.pop("stream", None)
        values = {p.name: _default(p) for p in op.arguments.params}
        values |= dict(zip(values, args, strict=False)) | kwargs
        for p in op.arguments.params:
            if p.type.kind is Kind.AXES and isinstance(values[p.name], int):
                values[p.name] = [values[p.name]]
        places = _places(op, values)
        arrays = [mx.array(_at(values, place)) for place in places]
        if op.elementwise:
            kinds = [a.dtype for a in arrays if mx.issubdtype(a.dtype, mx.inexact)]
            arrays = list(mx.broadcast_arrays(*arrays))
            arrays = [a.astype(reduce(mx.result_type, kinds)) if kinds else a for a in arrays]
        if not any(g.kind is not GradKind.COMPOSITE for g in op.derivatives.grads):
            return self._forward(op, _with(values, places, arrays))
        none = {p.name for g in op.derivatives.grads if g.kind is GradKind.NONE for p in g.params}
        arrays = [
            _refusing(op, place[0])(a) if place[0] in none else a
            for place, a in zip(places, arrays, strict=True)
        ]
        return self._primitive(op, values, places)(*arrays)

    def _primitive(self, op: Op, values: Values, places: list[_Place]) -> Callable[..., Any]:
        @mx.custom_function
        def primitive(*arrays: mx.array) -> Any:
            return self._forward(op, _with(values, places, arrays))

        @primitive.vjp
        def vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
            given = _listed(primals)
            known = _with(values, places, given)
            known |= gradient_names(op, _listed(cotangents), _listed(outputs))
            gradients: Values = {}
            for grad in op.derivatives.grads:
                gradients |= self._gradient(op, grad, known)
            found = [_at(gradients, place) for place in places]
            shaped = [_like(g, a) for g, a in zip(found, given, strict=True)]
            return shaped if isinstance(primals, list | tuple) else shaped[0]

        if op.derivatives.jvp is Jvp.FORMULA:

            @primitive.jvp
            def jvp(primals: Any, tangents: Any) -> Any:
                known = _with(values, places, _listed(primals))
                tangents = dict(zip(places, _listed(tangents), strict=True))
                texts = self.jvps[op.name]
                found = [
                    self.evaluate(op, texts[place[0]], known | {"tangent": tangent})
                    for place, tangent in tangents.items()
                    if tangent is not None and place[0] in texts
                ]
                if not found:  # all tangents are those of integers
                    outputs = self._forward(op, known)
                    return _mapped(mx.zeros_like, outputs)
                return reduce(mx.add, found)

        function: Callable[..., Any] = primitive
        return function

    def _gradient(self, op: Op, grad: Grad, known: Values) -> Values:
        """Return the gradients of one item of `grad`, by argument."""
        names = [p.name for p in grad.params]
        given = {name: known[name] for name in names}
        if grad.kind in (GradKind.ZERO, GradKind.NONE):
            return {name: _mapped(mx.zeros_like, value) for name, value in given.items()}
        if grad.kind is GradKind.FORMULA:
            found = self.evaluate(op, grad.text, known)
            return dict(zip(names, found, strict=True)) if len(names) > 1 else {names[0]: found}
        if grad.kind is GradKind.COMPOSITE:
            forward = partial(self._composite, op)
        else:
            forward = partial(self._forward, op)
        present = [name for name in names if given[name] is not None]
        places = [place for place in _places(op, known) if place[0] in present]

        def function(*arrays: mx.array) -> Arrays:
            return list(_listed(forward(_with(known, places, arrays))))

        primals = [_at(known, place) for place in places]
        found = mx.vjp(function, primals, known["grads"])[1]
        return _with(dict.fromkeys(names), places, found)

    def calls_package(self, op: Op) -> bool:
        """Return true if the forward is that of the installed package."""
        return _is_compiled(op) and self.installed[op.name] is not None

    def _composite(self, op: Op, values: Values) -> Any:
        return self.evaluated(op, op.entry.composite or "", values)

    def _forward(self, op: Op, values: Values) -> Any:
        """Return the outputs of an operator."""
        given = {p.name: values[p.name] for p in op.arguments.params}
        if op.forward.form is Form.BIND and not _is_compiled(op):
            return self.evaluated(op, op.forward.text, given)
        function = self.installed[op.name]
        if function and self.calls_package(op):
            named = {p.name: given.pop(p.name) for p in op.arguments.params if p.arg.kw_only}
            return function(*given.values(), **named)
        if op.entry.composite:
            return self._composite(op, given)
        if op.name in self.stand_ins:
            return eval(self.stand_ins[op.name], {**self._kernels, **given})
        return _smooth(op, given)


def _is_compiled(op: Op) -> bool:
    """Return true if a kernel computes the operator, or a C++ function that is not MLX's."""
    return op.forward.form is Form.KERNELS or (
        op.forward.form is Form.BIND and "::" in op.forward.text
    )


_LET = "__let"  # the function that returns the value of a name of `let`


@cache
def _calling(text: str, lets: tuple[str, ...]) -> CodeType:
    """Compile a formula that gets the values of names of `let` from a function, when it needs them.

    Inserting their formulas instead would compute a value once for each use.
    """
    calls = {name: ast.parse(f"{_LET}({name!r})", mode="eval").body for name in lets}
    tree = Insert(calls).visit(ast.parse(f"({text}\n)", mode="eval").body)
    return formula_code(ast.unparse(tree))[0]


_Place = tuple[str, int | None]  # an argument, and the index in a list of arrays


def _installed(package: ModuleType | None, op: Op) -> Callable[..., Any] | None:
    """Return the function of an installed package."""
    found: Any = package
    for part in op.path.split("."):
        found = getattr(found, part, None)
    return None if "internal" in op.entry.tags else found


def derivative(function: Callable[..., Any], *args: Any, of: int = 0, order: int = 1) -> mx.array:
    """Return the derivative of an elementwise function by one of its arguments, for substitutes."""
    if order == 0:
        result: mx.array = function(*args)
        return result
    inner = partial(derivative, function, of=of, order=order - 1)

    def along(x: mx.array) -> mx.array:
        return inner(*args[:of], x, *args[of + 1 :])

    x = mx.broadcast_arrays(*map(mx.array, args))[of]
    return mx.vjp(along, [x], [mx.ones_like(x)])[1][0]


def _default(p: Parameter) -> Any:
    if p.arg.default is None:
        return None
    value = p.arg.default.value
    return getattr(mx, str(value)) if p.type.kind is Kind.DTYPE and value else value


def _places(op: Op, values: Values) -> list[_Place]:
    """Return the arrays of a call, in order."""
    found: list[_Place] = []
    for p in op.arguments.arrays:
        if p.is_list:
            found += [(p.name, i) for i in range(len(values[p.name]))]
        elif values[p.name] is not None:
            found.append((p.name, None))
    return found


def _at(values: Values, place: _Place) -> Any:
    name, index = place
    return values[name] if index is None else values[name][index]


def _with(values: Values, places: Sequence[_Place], arrays: Sequence[Any]) -> Values:
    """Return the arguments with these arrays."""
    out = dict(values)
    for (name, index), a in zip(places, arrays, strict=True):
        if index is None:
            out[name] = a
        else:
            out[name] = [*(out[name][:index] if index else []), a]
    return out


def _listed(values: Any) -> Any:
    return list(values) if isinstance(values, list | tuple) else [values]


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list):
        return [function(v) for v in value]
    return None if value is None else function(value)  # None: an absent argument


def gradient_names(op: Op, cotangents: Arrays, outputs: Arrays) -> Values:
    """Return the names in gradient formulas other than the arguments."""
    names: Values = {"grads": cotangents, "results": outputs}
    names |= {f"asked_{p.name}": True for p in op.arguments.arrays}
    if len(op.outputs) == 1:
        return names | {"grad": cotangents[0], "grad_out": cotangents[0], "result": outputs[0]}
    for output, grad, result in zip(op.outputs, cotangents, outputs, strict=True):
        names |= {f"grad_{output.name}": grad, f"result_{output.name}": result}
    return names


def _like(gradient: Any, primal: mx.array) -> mx.array:
    """Return a gradient in the shape and dtype of its argument, like the runtime."""
    if not mx.issubdtype(primal.dtype, mx.inexact):
        return mx.zeros_like(primal)
    gradient = mx.array(gradient)
    while gradient.ndim > primal.ndim:
        gradient = gradient.sum(axis=0)
    axes = [i for i, n in enumerate(primal.shape) if n == 1 != gradient.shape[i]]
    gradient = gradient.sum(axis=axes, keepdims=True) if axes else gradient
    return mx.broadcast_to(gradient, primal.shape).astype(primal.dtype)


def _refusing(op: Op, name: str) -> Callable[[mx.array], mx.array]:
    """Return the identity without a gradient."""

    same: Any = mx.custom_function(lambda x: x * mx.ones_like(x))

    @same.vjp  # type: ignore[untyped-decorator]
    def vjp(*_: Any) -> Any:
        raise ValueError(f"[{op.python_name}] Not differentiable with respect to '{name}'.")

    return same  # type: ignore[no-any-return]


def _smooth(op: Op, given: Values) -> Any:
    """Return some smooth function of the arguments, with outputs of the right shapes."""
    phase = 0.3
    arrays: Arrays = []
    for k, p in enumerate(op.arguments.params, 1):
        value = given[p.name]
        for a in _listed(value) if p.type.is_array and value is not None else ():
            arrays.append(mx.sin((0.7 + 0.31 * len(arrays)) * a.astype(_floating(a)) + k))
        phase += 0.0 if p.type.is_array else k * math.sin(sum(map(ord, str(value))))
    outputs = []
    facts = {
        p.name: _mapped(lambda a: ArrayFacts(tuple(a.shape), None), given[p.name])
        if p.type.is_array
        else given[p.name]
        for p in op.arguments.params
    }
    facts |= lengths_of(op.arguments.lengths, facts)
    for k in range(len(op.outputs)):
        if op.output_rules.shapes:
            tree = op.output_rules.shapes[k].tree
            shape = tuple(evaluated(tree, facts, arrays[0].shape) if tree else arrays[0].shape)
            index = mx.arange(math.prod(shape)).reshape(shape).astype(arrays[0].dtype)
            outputs.append(mx.cos(index + sum(a.mean() for a in arrays) + phase + k) + 1.5)
        else:
            outputs.append(mx.cos(reduce(mx.add, arrays) + phase + k) + 1.5)
    return outputs if len(outputs) > 1 else outputs[0]


def _floating(a: mx.array) -> mx.Dtype:
    return a.dtype if mx.issubdtype(a.dtype, mx.inexact) else mx.float32
