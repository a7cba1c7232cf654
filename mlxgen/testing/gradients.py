"""`gradcheck`: the derivatives of any function of MLX arrays, compared with finite differences."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as changed
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from .compare import (
    Arrays,
    Function,
    Mismatch,
    is_float,
    is_inexact,
    replaced,
    require_like,
    require_same,
    to_numpy,
)
from .derivatives import (
    COORDINATES,
    STEP,
    Point,
    Remedy,
    compare_jvp,
    compare_second,
    compare_vjp,
    pullback,
)
from .report import Failure, Report
from .transforms import check_forward, check_vmap, check_vmap_vjp

Check = Literal["vjp", "jvp", "second", "vmap", "compile"]

CHECKS: tuple[Check, ...] = ("vjp", "jvp", "second", "vmap", "compile")

BATCH = 3
"""The batch size for vmap."""

AXES = 8
"""The number of combinations of in_axes; if there are more, a random choice."""

CHOOSE = Remedy(
    "choose other arguments",
    "choose arguments further from the edge of the domain, or a smaller step",
    "the function does not look smooth here: choose arguments further from the kink, or a smaller "
    "step",
)


class GradcheckError(AssertionError):
    """A failed check of ``gradcheck``. ``report`` has the parts of the message."""

    __module__ = "mlxgen.testing"  # the public module

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


def gradcheck(
    f: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] | None = None,
    checks: Sequence[Check] = CHECKS,
    dtype: mx.Dtype | None = None,
    step: float = STEP,
    rtol: float | None = None,
    atol: float = 0.0,
    seed: int = 0,
    limit: int = COORDINATES,
    raise_exception: bool = True,
) -> Report:
    """Compare the derivatives of a function with finite differences, and check its transforms.

    ``vjp`` and ``jvp`` are compared with central differences, for each argument alone and for all
    together, with several cotangents and tangents, because both must be linear in them. ``second``
    compares the vjp of the vjp in the same way. ``vmap`` compares vmap of the function and of its
    vjp, and the vjp of its vmap, with a loop. ``compile`` compares with a plain call. The function
    must return the same result on every call and must not change its arguments.

    All checks run on the CPU, in float64 if the function supports it. The function is called some
    thousand times: use small arrays.

    Args:
        f: Any function of arrays that returns an array, or a tuple, list or dict of arrays. The
            trainable parameters of an ``nn.Module`` are checked, too.
        *args: Its arguments: arrays, and lists, tuples and dicts of arrays. Floating and complex
            arrays are differentiated; others are passed on.
        argnums: The positions of the arguments to differentiate; all by default. Parameters of a
            module are always differentiated.
        checks: The checks to run.
        dtype: float64 or float32. The default is float64, or float32 for a function without
            float64, which the result then reports.
        step: Step of the differences. If it is too wide, smaller steps are tried.
        rtol: Tolerance relative to each derivative; by default 1e-4 in float64, and 2e-3 in float32
            and for complex numbers. The effect of the function's own rounding on the differences is
            measured and added.
        atol: Absolute tolerance of each derivative.
        seed: Seed of the random numbers.
        limit: Elements of each argument that are moved one by one. If it has more elements, these
            are a random choice, and all are moved at once along a random direction.
        raise_exception: Raise an error if a check fails; otherwise only return the report.

    Returns:
        A report, which is true if all checks passed, and which lists the failures.

    Raises:
        GradcheckError: A check failed. The message contains, for each failure, the argument and the
            element with the largest error, with both values.
        ValueError: There is nothing to differentiate, or an option is invalid.
        Exception: Any exception of the function itself.
    """
    __tracebackhide__ = True
    unknown = [name for name in checks if name not in CHECKS]
    if unknown or isinstance(checks, str):
        raise ValueError(f"checks: {checks!r} is not a sequence of {', '.join(CHECKS)}")
    if dtype is not None and dtype not in (mx.float64, mx.float32):
        raise ValueError(f"dtype: derivatives are checked in float64 or float32, not {dtype}")
    options = {"limit": limit, "seed": seed, "rtol": rtol, "atol": atol}
    try:
        with mx.stream(mx.cpu):
            run = _Run(_Call(f, args), argnums, dtype, step, options)
            run.check(checks)
    except _Raised as raised:
        error = raised.error
        raise error.with_traceback(_outside(error.__traceback__)) from error.__cause__
    if raise_exception and run.failures:
        raise GradcheckError(run.message(), run.report())
    return run.report()


# The function -------------------------------------------------------------------------------------


class _Raised(Exception):
    """The exception of the function itself in a plain call."""

    def __init__(self, error: Exception) -> None:
        self.error = error


_HERE = Path(__file__).parent


def _outside(traceback: TracebackType | None) -> TracebackType | None:
    """Remove the frames of this folder from the start of a traceback."""
    while traceback and Path(traceback.tb_frame.f_code.co_filename).parent == _HERE:
        traceback = traceback.tb_next
    return traceback


class _Leaf(NamedTuple):
    """The position of an array in nested lists, tuples and dicts."""


def _flatten(value: Any, name: str) -> tuple[Any, list[tuple[str, mx.array]]]:
    """Return a tree without its arrays, and the arrays with their names."""
    if isinstance(value, mx.array):
        return _Leaf(), [(name, value)]
    found: list[tuple[str, mx.array]] = []
    if isinstance(value, dict):
        tree = {}
        for key, item in value.items():
            tree[key], more = _flatten(item, f"{name}[{key!r}]")
            found += more
        return tree, found
    if isinstance(value, (list, tuple)):
        items = []
        for i, item in enumerate(value):
            inner, more = _flatten(item, f"{name}[{i}]")
            items.append(inner)
            found += more
        if isinstance(value, list):
            return items, found
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items), found
    return value, found


def _filled(tree: Any, arrays: Iterator[mx.array]) -> Any:
    """Return the tree with arrays."""
    if isinstance(tree, _Leaf):
        return next(arrays)
    if isinstance(tree, dict):
        return {key: _filled(item, arrays) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_filled(item, arrays) for item in tree]
    if isinstance(tree, tuple):
        items = (_filled(item, arrays) for item in tree)
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return tree


def _inner(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the parameter names; a custom function hides them from inspect."""
    if isinstance(f, mx.custom_function):
        own = [inner for inner in gc.get_referents(f) if not isinstance(inner, type)]
        return own[0] if own and inspect.isfunction(own[0]) else f
    return f


def _names(f: Callable[..., Any], count: int) -> list[str]:
    """Return the names of a function's positional arguments."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):  # functions of extension modules have no signature
        parameters = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}[{i}]" for i in range(count - len(names))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
    return [*names[:count], *(f"args[{i}]" for i in range(len(names), count))]


class _Call:
    """A function of trees as a function of the arrays in them."""

    def __init__(self, f: Any, args: Sequence[Any]) -> None:
        self.f = f
        inner = _inner(f)
        name = getattr(inner, "__name__", "") or type(getattr(f, "func", f)).__name__
        self.name = "the function" if name == "<lambda>" else name
        self.module: list[str] = []  # the parameters of an nn.Module
        leaves: list[tuple[str, mx.array]] = []
        if hasattr(f, "trainable_parameters"):
            leaves += tree_flatten(f.trainable_parameters())  # type: ignore[arg-type]
            self.module = [name for name, _ in leaves]
        self.positions = [-1] * len(leaves)  # the argument that contains each array
        self.trees = []
        for i, (name, arg) in enumerate(zip(_names(inner, len(args)), args, strict=True)):
            tree, found = _flatten(arg, name)
            self.trees.append(tree)
            leaves += found
            self.positions += [i] * len(found)
        self.names = [name for name, _ in leaves]
        self.arrays = [mx.array(a) for _, a in leaves]  # copies, which it may change

    def named(self, *arrays: mx.array) -> list[tuple[str, mx.array]]:
        """Return the result's arrays with their names."""
        parameters, values = arrays[: len(self.module)], iter(arrays[len(self.module) :])
        args = [_filled(tree, values) for tree in self.trees]
        if not self.module:
            out = self.f(*args)
        else:
            kept = self.f.parameters()
            try:
                self.f.update(tree_unflatten(list(zip(self.module, parameters, strict=True))))
                out = self.f(*args)
            finally:
                self.f.update(kept)
        if isinstance(out, mx.array):
            return [("the result", out)]
        return _flatten(out, "output")[1]

    def __call__(self, *arrays: mx.array) -> Arrays:
        return [a for _, a in self.named(*arrays)]

    def chosen(self, argnums: int | Sequence[int] | None) -> list[int]:
        """Return the arrays to differentiate, for these positions of arguments."""
        if argnums is None:
            wanted = list(range(-1, len(self.trees)))
        else:
            given = [argnums] if isinstance(argnums, int) else list(argnums)
            wrong = [i for i in given if not -len(self.trees) <= i < len(self.trees)]
            if wrong:
                raise ValueError(f"argnums: there is no argument {wrong[0]}")
            wanted = [-1, *(i % len(self.trees) for i in given)]
        pairs = enumerate(zip(self.arrays, self.positions, strict=True))
        found = [i for i, (a, position) in pairs if position in wanted and is_inexact(a)]
        if not found:
            raise ValueError(
                "there is nothing to differentiate: give floating or complex arrays (mx.array)"
            )
        return found


# The checks ---------------------------------------------------------------------------------------

# Suggestions for failures of a function whose vjp is right.
_AFTER_VJP = {
    "jvp": "the vjp is right: an mx.custom_function needs its own jvp (@f.jvp)",
    "vmap": "it is right without vmap: an mx.custom_function loses its vjp under vmap, unless it "
    "defines a rule (@f.vmap)",
}


class _Run:
    """The checks of one function."""

    def __init__(
        self,
        call: _Call,
        argnums: int | Sequence[int] | None,
        dtype: mx.Dtype | None,
        step: float,
        options: dict[str, Any],
    ) -> None:
        self.call = call
        self.chosen = call.chosen(argnums)
        self.step, self.options = step, options
        self.rng = np.random.default_rng(options["seed"])
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self.passed: list[str] = []
        self.skipped: list[str] = []
        found = self._plain(call.arrays)
        outputs = tuple(name for name, _ in found)
        if not any(is_inexact(a) for _, a in found):
            raise ValueError(
                f"{call.name} returns no floating or complex array: there is nothing to "
                f"differentiate"
            )
        self.fn = Function(call, call.name, tuple(call.names), outputs)
        self.dtype = self._dtype() if dtype is None else dtype
        self.args = [a.astype(self.dtype) if is_float(a) else a for a in call.arrays]

    def _plain(self, arrays: Sequence[mx.array]) -> list[tuple[str, mx.array]]:
        try:
            found = self.call.named(*arrays)
            mx.eval([a for _, a in found])
        except Exception as error:
            raise _Raised(error) from None
        return found

    def _dtype(self) -> mx.Dtype:
        """Return float64 if the function computes in it, else float32."""
        if any(a.dtype == mx.complex64 for a in self.call.arrays):
            self.notes.append("Checked in float32, because complex64 is MLX's only complex dtype.")
            return mx.float32
        high, low = (
            [a.astype(dtype) if is_float(a) else a for a in self.call.arrays]
            for dtype in (mx.float64, mx.float32)
        )
        try:
            found = self.fn(*high)
            mx.eval(found)
        except Exception as error:
            self.notes.append(f"Checked in float32, because float64 raises {_sentence(error)}")
            return mx.float32
        lower = [out.dtype for out in found if is_inexact(out) and out.dtype != mx.float64]
        if lower:
            lowered = _dtype_name(lower[0])
            self.notes.append(f"Checked in float32, because float64 arguments return {lowered}.")
            return mx.float32
        for name, derivative in (("vjp", self._one_vjp), ("jvp", self._one_jvp)):
            refusal = _refusal(derivative, high)
            if refusal is not None and _refusal(derivative, low) is None:
                raised = _sentence(refusal)
                self.notes.append(
                    f"Checked in float32, because in float64 its {name} raises {raised}"
                )
                return mx.float32
        return mx.float64

    def _one_vjp(self, args: Arrays) -> Arrays:
        cotangents = [mx.ones_like(out) for out in self.fn(*args)]
        return pullback(self.fn, args, self.chosen)(*args, *cotangents)

    def _one_jvp(self, args: Arrays) -> Arrays:
        primals = [args[i] for i in self.chosen]
        tangents = [mx.ones_like(a) for a in primals]

        def call(*values: mx.array) -> Arrays:
            return self.fn(*replaced(args, self.chosen, values))

        return list(mx.jvp(call, primals, tangents)[1])

    @property
    def rtol(self) -> float:
        """The tolerance for the results of a transform."""
        return 1e-6 if self.dtype == mx.float64 else 1e-5

    def check(self, checks: Sequence[Check]) -> None:
        """Run these checks, the most basic first."""
        differences = {"vjp", "jvp", "second"}.intersection(checks)
        if not self._try("call", lambda: self._calls(bool(differences))):
            self.skipped = list(checks)
            return
        for name in CHECKS:
            if name not in checks:
                continue
            if name == "second" and self._is_wrong("vjp"):
                self.skipped.append(name)
                continue
            if self._try(name, getattr(self, f"_{name}")):
                self.passed.append(name)

    def _is_wrong(self, name: str) -> bool:
        return any(failure.check == name for failure in self.failures)

    def _try(self, name: str, check: Callable[[], None]) -> bool:
        try:
            check()
        except Exception as error:
            failure = Failure.of(self.fn.op, name, error)
            if not isinstance(error, Mismatch):
                text = f"it raised {_sentence(error)}"
                failure = Failure(self.fn.op, name, text, error=error)
            elif name in _AFTER_VJP and "vjp" in self.passed:
                text = f"{failure.message}; {_AFTER_VJP[name]}"
                failure = changed(failure, message=text)
            self.failures.append(failure)
            return False
        return True

    def _calls(self, differences: bool) -> None:
        """Check that calls are repeatable, finite near the arguments, and change no argument."""
        given = [mx.array(a) for a in self.args]
        before = [to_numpy(a) for a in given]
        first = [a for _, a in self._plain(given)]
        for i, (a, b) in enumerate(zip(given, before, strict=True)):
            if a.shape != b.shape or not np.array_equal(to_numpy(a), b, equal_nan=True):
                name = self.fn.arg(i)
                text = f"it changes its argument '{name}' in place"
                hint = "work on a copy: x = x + y instead of x += y"
                raise Mismatch(self.fn.op, text, name, hint=hint)
        again = [a for _, a in self._plain([mx.array(a) for a in self.args])]
        try:
            require_same(again, first, self.fn, "called again", "before", self.rtol)
        except Mismatch as error:
            error.hint = (
                "it must be deterministic: pass random numbers as an argument, and keep no state"
            )
            raise
        self.point = Point(self.fn, self.args, self.dtype, self.step, advice=CHOOSE, **self.options)
        for i in self.chosen if differences else ():
            self.point.jacobian(i)

    def _vjp(self) -> None:
        compare_vjp(self.point, self.chosen)
        if any(a.dtype != b.dtype for a, b in zip(self.args, self.call.arrays, strict=True)):
            # In the given dtypes: a gradient that is right in float64 may have a wrong dtype.
            for i, gradient in zip(self.chosen, self._one_vjp(self.call.arrays), strict=True):
                name, like = self.fn.arg(i), self.call.arrays[i]
                what = f"vjp of '{name}' in the given dtypes: the gradient"
                require_like(gradient, like, self.fn, what, "for the argument", name)

    def _jvp(self) -> None:
        compare_jvp(self.point, self.chosen)

    def _second(self) -> None:
        compare_second(self.point, self.chosen)

    def _near(self) -> Arrays:
        """Return other arguments, a few steps away from the given ones."""
        out = []
        for a in self.args:
            if is_inexact(a):
                by = self.rng.uniform(-2 * self.step, 2 * self.step, (*a.shape, 2))
                moved = to_numpy(a) + (by @ [1, 1j] if a.dtype == mx.complex64 else by[..., 0])
                a = mx.array(moved.astype(np.array(a).dtype), dtype=a.dtype)
            out.append(a)
        return out

    def _vmap(self) -> None:
        elements = [self._near() for _ in range(BATCH)]
        check_vmap(self.fn, elements, limit=AXES, rtol=self.rtol)
        if not self._is_wrong("vjp"):
            check_vmap_vjp(self.point.fn, elements, self.chosen, limit=AXES // 4, rtol=self.rtol)

    def _compile(self) -> None:
        functions = [self.fn]
        if not self._is_wrong("vjp"):
            functions.append(pullback(self.point.fn, self.args, self.chosen))
        for fn in functions:
            more = (
                [mx.ones_like(out) for out in self.point.outputs]
                if len(fn.args) > len(self.args)
                else []
            )
            compiled = Function(mx.compile(fn.__call__), fn.op, fn.args, fn.outputs)
            for args in (self.args, self._near()):
                given = [*args, *more]
                source = "in a plain call"
                check_forward(compiled, fn, given, what="compiled", source=source, rtol=self.rtol)

    # -------------------------------------------------------------------------- the result

    def report(self) -> Report:
        """Return the results."""
        skipped = ", ".join(self.skipped)
        notes = [f"Not checked, because of a failed check: {skipped}."] * bool(skipped)
        return Report(len(self.passed), tuple(self.failures), (*notes, *self.notes))

    def message(self) -> str:
        """Describe all failures, the most basic first."""
        count = len(self.failures) + len(self.passed)
        dtype = _dtype_name(self.dtype)
        lines = [f"{len(self.failures)} of {count} checks of {self.fn.op} failed (in {dtype})"]
        for failure in self.failures:
            said = failure.message.startswith(failure.check)
            lines.append(failure.message if said else f"{failure.check}: {failure.message}")
        return "\n".join([*lines, *self.report().notes])


def _refusal(derivative: Callable[[Arrays], Arrays], args: Arrays) -> Exception | None:
    """Return the exception that a derivative raises, or None."""
    try:
        mx.eval(derivative(args))
    except Exception as error:
        return error
    return None


def _dtype_name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _sentence(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line}"
