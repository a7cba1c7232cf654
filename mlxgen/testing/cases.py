"""The generated checks of a package: its operators' samples, and tests of them for pytest.

mlxgen writes a test module for every package, with two calls: ``case`` for each sample of an entry,
and ``make_tests``. The latter reads the facts about each operator from the package's ``ops.json``
and returns a parametrized test for each kind of check in ``testing``::

    CASES = [case(mlxops.lgamma, {"x": {"low": 0.1, "high": 6}})]
    globals().update(make_tests(mlxops, CASES))

A test exists only if there is something to check. A gradient that is declared ``none`` has no test,
and neither has a transform that a function in the operator's composition lacks.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import math
import operator
import sys
import textwrap
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial, reduce
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

from .. import testing
from . import Arrays, Floats, Function, Mismatch
from .crashes import named
from .formulas import FORMULA_NAMES, formula_code, is_known, lengths_of
from .shapeless import Resized, check_shapeless, equal_axes, named_axes, single_axes

DISTANCE = 0.1
"""The minimum distance of samples from the points of `away_from`; larger than difference steps."""


@dataclass(frozen=True)
class Case:
    """An operator's function and one of its samples."""

    function: Callable[..., Any]
    sample: Mapping[str, Any]
    overload: str | None = None


def case(
    function: Callable[..., Any],
    sample: Mapping[str, Any] | None = None,
    overload: str | None = None,
) -> Case:
    """Return a sample of an operator.

    Args:
        function: The operator, as a function of its package.
        sample: For an array, a mapping with `shape`, `low`, `high`, `values`, `dtype`, `away_from`:
            random numbers from `low` to `high`, none within 0.1 of the points `away_from`, or the
            given `values`. `sorted`, `distinct`, `any` and `positive_definite` are further
            properties of the numbers, and `bounds` are formulas of `low` and `high` for other
            shapes. For a list of arrays, a list of such mappings. For any other argument, its
            value. For an array or string, a mapping or the string. An omitted array has shape
            (3, 4) and numbers from -2 to 2; an omitted optional array is None.
        overload: The operator's name in C++, if it is one of several overloads.
    """
    return Case(function, sample or {}, overload)


@dataclass(frozen=True)
class SampleArray:
    """One array of a call: its name and its numbers."""

    arg: str  # the argument
    index: int | None  # in a list of arrays
    dtype: mx.Dtype | None  # None: the tested dtype,
    sums: bool  # or its accumulator dtype
    shape: tuple[int, ...]
    low: float
    high: float
    values: Any
    away_from: tuple[float, ...]
    bounds: Mapping[str, str]  # formulas of `low` and `high`, for any shapes
    has_domain: bool  # false: only the `values` are known to be valid
    orders: frozenset[str]  # those of ORDERS that the sample declares

    @classmethod
    def of(
        cls,
        arg: Mapping[str, Any],
        given: Mapping[str, Any],
        index: int | None,
        dtypes: Sequence[str] = (),
    ) -> SampleArray:
        """Create an array from an argument of `ops.json`, its sample, and its possible dtypes."""
        dtype = given.get("dtype") or arg["dtype"]
        sums = dtype == "accumulator"
        if sums:
            dtype = None
        if dtype is None and dtypes and "float32" not in dtypes:
            dtype = dtypes[0]
        values = given.get("values")
        shape = given.get("shape")
        shape = (3, 4) if shape is None else shape
        low, high = given.get("low", -2), given.get("high", 2)
        orders = frozenset(name for name in ORDERS if given.get(name))
        if "positive_definite" in orders:
            low, high = -math.inf, math.inf
        has_domain = values is None or "low" in given
        if values is not None:
            values = np.asarray(values)
            finite = values[np.isfinite(values)]
            shape = values.shape
            if not has_domain:
                low, high = (finite.min(), finite.max()) if finite.size else (0, 0)
        return cls(
            arg=arg["name"],
            index=index,
            dtype=None if dtype is None else getattr(mx, {"bool": "bool_"}.get(dtype, dtype)),
            sums=sums,
            shape=tuple(shape),
            low=float(low),
            high=float(high),
            values=values,
            away_from=tuple(given.get("away_from") or ()),
            bounds=given.get("bounds", {}),
            has_domain=has_domain,
            orders=orders,
        )

    @property
    def name(self) -> str:
        """The array's name in messages."""
        return self.arg if self.index is None else f"{self.arg}[{self.index}]"

    @property
    def step(self) -> float:
        """The difference step: smaller in a narrow domain, and between sorted numbers."""
        span = self.high - self.low
        if "sorted" in self.orders:
            span /= max(1, *self.shape[-1:])
        return min(testing.STEP, span / 200) if span > 0 else testing.STEP

    @property
    def is_index(self) -> bool:
        """True for integers that may be the indices, offsets or lengths of other arrays.

        Integers of the whole range of their dtype are plain data.
        """
        if self.dtype is None or not mx.issubdtype(self.dtype, mx.integer):
            return False
        limits = mx.iinfo(self.dtype)
        return self.low > limits.min or self.high < limits.max

    @property
    def is_free(self) -> bool:
        """True if every number, in every shape, is as valid as those of the sample."""
        return not (self.is_index or self.bounds or self.orders)

    def is_known(self, is_larger: bool) -> bool:
        """Return true if the domain also holds for other shapes, all of them larger or not."""
        if self.bounds or not self.is_index:
            return True
        # An index that is valid remains valid for larger arrays. The last of sorted numbers is
        # often a size, such as that of an array of offsets.
        return is_larger and self.has_domain and "sorted" not in self.orders

    def contains(self, values: Any, low: float, high: float) -> bool:
        """Return true if numbers are in the domain and ordered as declared."""
        if not self.has_domain and self.is_index:
            return np.array_equal(values, self.values)
        if values.size and self.has_domain and not (low <= values.min() <= values.max() <= high):
            return False
        if "sorted" in self.orders and values.shape[-1] > 1:
            first, last = values[..., 0], values[..., -1]
            spans = (first == math.ceil(low)) & (last == math.floor(high))
            if not np.all(spans if self.is_index else first < last):
                return False
        return all(ORDERS[name](values) for name in self.orders)

    def draw(self, dtype: mx.Dtype, rng: np.random.Generator) -> mx.array:
        """Return the array, in `dtype` unless it has a dtype of its own.

        Raises:
            ValueError: No such array exists.
        """
        if self.sums and dtype != mx.float64:
            dtype = mx.float32
        dtype = self.dtype or dtype
        if self.orders and not self.shape:
            raise ValueError(f"'{self.name}' has no last axis that could be {min(self.orders)}")
        if self.values is not None:
            self._check_values()
            return self._stored(self.values, dtype)
        if 0 in self.shape:
            return mx.zeros(self.shape, dtype)
        if self.low > self.high:
            raise ValueError(f"the domain of '{self.name}' is empty")
        is_whole = not mx.issubdtype(dtype, mx.inexact)
        values = self._integers(dtype, rng) if is_whole else self._floats(rng)
        if "any" in self.orders:
            if self.low == 0 == self.high:
                raise ValueError(f"the sample of '{self.name}' has no number other than 0")
            rows = values.reshape(-1, values.shape[-1])
            for i in np.flatnonzero(~rows.any(axis=1)):
                rows[i, rng.integers(rows.shape[1])] = self.high or self.low
        return self._stored(values, dtype)

    def _stored(self, values: Any, dtype: mx.Dtype) -> mx.array:
        """Return numbers as an array, if its own dtype represents them."""
        array = mx.array(values, dtype=dtype)
        is_whole = self.dtype is not None and mx.issubdtype(dtype, mx.integer)
        if is_whole and not np.array_equal(np.array(array), values):
            raise ValueError(f"some numbers of '{self.name}' are not valid {dtype}")
        return array

    def _check_values(self) -> None:
        """Raise an error for values outside of the domain, or not ordered as declared."""
        finite = self.values[np.isfinite(self.values)]
        if finite.size and not self.low <= finite.min() <= finite.max() <= self.high:
            raise ValueError(f"'{self.name}' has numbers outside of {self.low} to {self.high}")
        if broken := [name for name in sorted(self.orders) if not ORDERS[name](self.values)]:
            raise ValueError(f"the numbers of '{self.name}' are not {broken[0]}")

    def _integers(self, dtype: mx.Dtype, rng: np.random.Generator) -> Any:
        """Draw integers. Those of a dtype of their own are all in the domain."""
        low, high = math.ceil(self.low), math.floor(self.high)
        if mx.issubdtype(dtype, mx.unsignedinteger) or dtype == mx.bool_:
            low, high = max(low, 0), high if self.dtype else max(high, 1)
        if self.dtype is None:
            high = max(low, high)
        if low > high:
            raise ValueError(f"the domain of '{self.name}' has no integer")
        if not self.orders & {"sorted", "distinct"}:
            return rng.integers(low, high, self.shape, endpoint=True)
        count = self.shape[-1]
        rows = []
        for _ in range(math.prod(self.shape[:-1])):
            ends = [low, high][:count] if "sorted" in self.orders else []
            inner = count - len(ends)
            if "distinct" in self.orders:
                if high + 1 - low < count:
                    raise ValueError(f"the domain of '{self.name}' has too few integers")
                start = low + bool(ends)
                row = start + rng.choice(high + 1 - start - (len(ends) > 1), inner, replace=False)
            else:
                row = rng.integers(low, high, inner, endpoint=True)
            row = np.concatenate([ends, row])
            rows.append(np.sort(row) if ends else row)
        return np.array(rows, dtype=np.int64).reshape(self.shape)

    def _floats(self, rng: np.random.Generator) -> Floats:
        """Draw floats that are in the domain, if it is an interval, after moves by the stencil."""
        if "positive_definite" in self.orders:
            if len(self.shape) < 2 or self.shape[-1] != self.shape[-2]:
                raise ValueError(f"the last axes of '{self.name}' are not square matrices")
            factors = rng.uniform(-1, 1, self.shape)
            return factors @ np.swapaxes(factors, -1, -2) + np.eye(self.shape[-1])
        margin = len(testing.STENCIL) * self.step if self.high > self.low else 0
        if "sorted" in self.orders:
            gap = np.arange(self.shape[-1]) * 3 * margin
            room = self.high - self.low - 2 * margin - gap[-1:].sum()
            return np.sort(rng.uniform(0, room, self.shape)) + self.low + margin + gap
        values = np.full(self.shape, np.nan)
        for _ in range(200):
            near = [np.abs(values - point) < DISTANCE for point in self.away_from]
            wrong = np.logical_or.reduce([np.isnan(values), *near])
            if not wrong.any():
                return values
            count = int(wrong.sum())
            values[wrong] = rng.uniform(self.low + margin, self.high - margin, count)
        raise ValueError(
            f"the sample of '{self.name}' has no numbers from {self.low} to {self.high} that are "
            f"{DISTANCE} away from {list(self.away_from)}"
        )


def _is_positive_definite(matrices: Any) -> bool:
    is_symmetric = np.allclose(matrices, np.swapaxes(matrices, -1, -2))
    values = np.linalg.eigvalsh(matrices)
    rounding = 10 * np.finfo(values.dtype).eps * np.abs(values).sum(axis=-1, keepdims=True)
    return bool(is_symmetric and (values > rounding).all())


ORDERS: dict[str, Callable[[Any], bool]] = {
    "sorted": lambda values: bool((np.diff(values) >= 0).all()),
    "distinct": lambda values: bool((np.diff(np.sort(values)) > 0).all()),
    "any": lambda values: bool(values.any(axis=-1).all()),
    "positive_definite": _is_positive_definite,
}
"""Tests of the properties of arrays that a sample can declare."""


class Subject:
    """A case, with the facts about its operator in the package's ``ops.json``."""

    def __init__(self, package: ModuleType, op: Mapping[str, Any], case: Case, number: int) -> None:
        self.package = package
        self.op = op
        self.case = case
        self.number = number  # index of the sample of this operator
        self.path = ".".join(filter(None, (op["module"], op["python_name"])))
        self.has_kernels = op["form"] == "kernels"
        # if true, the composite runs instead of a kernel
        backend = "metal" if testing.metal_backend() else "cpu"
        kernel = op["kernels"].get(backend)
        self.is_composed = kernel is None or bool(kernel.get("template"))  # possibly
        self.is_scalar_kernel = self.has_kernels and op["elementwise"]
        self.is_elementwise = op["elementwise"] or "elementwise" in op["tags"]

    @cached_property
    def function(self) -> Function:
        """The operator as a function of the sample's arrays."""
        return Function(
            self.call,
            self.op["python_name"],
            tuple(slot.name for slot in self.slots),
            tuple(output["name"] for output in self.op["outputs"]),
            all(math.isfinite(v) for v in self.case.sample.values() if isinstance(v, float)),
        )

    @cached_property
    def symmetric(self) -> Function:
        """The function for derivatives: what moves an element of a positive definite matrix moves
        its mirror image, too, so that kernels may read one triangle or both."""
        definite = [i for i, slot in enumerate(self.slots) if "positive_definite" in slot.orders]

        def call(*arrays: mx.array) -> Any:
            mirrored = [(arrays[i] + mx.swapaxes(arrays[i], -1, -2)) / 2 for i in definite]
            return self.call(*testing.replaced(arrays, definite, mirrored))

        return replace(self.function, call=call) if definite else self.function

    @cached_property
    def steps(self) -> list[float]:
        """The difference step for each array."""
        return [slot.step for slot in self.slots]

    @cached_property
    def slots(self) -> list[SampleArray]:
        """The arrays of the sample."""
        found = []
        for arg in self.op["args"]:
            given = self.case.sample.get(arg["name"])
            dtypes = self.op["dtypes"].get(arg["name"], ())
            if arg["kind"] in ("arrays", "optionals"):
                if given is None:
                    given = [{}, {}] if arg["kind"] == "arrays" else []
                for i, item in enumerate(given):
                    if item is not None:
                        found.append(SampleArray.of(arg, item, i, dtypes))
            elif arg["kind"] == "array" and _is_passed(arg, given):
                found.append(SampleArray.of(arg, given or {}, None, dtypes))
        return found

    @cached_property
    def problem(self) -> str:
        """The reason why the operator cannot be called or differentiated with the sample, or ""."""
        try:
            with _quiet():
                arrays = self.draw(mx.float32)
                mx.eval(self.function(*arrays))
                if self.numbers:
                    mx.eval(self.call_as(self.case.function, *arrays, without=self.numbers))
                if self.differentiable:
                    testing.require_finite(self.function, self.draw(self.dtype), self.dtype)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def call(self, *arrays: mx.array) -> Any:
        """Call the operator with these arrays and the other values of the sample."""
        return self.call_as(self.case.function, *arrays)

    @property
    def numbers(self) -> list[str]:
        """The arrays whose default is a number, which the checks otherwise never use."""
        arrays = (arg for arg in self.op["args"] if arg["kind"] == "array")
        return [arg["name"] for arg in arrays if isinstance(arg.get("value"), int | float)]

    def call_as(
        self, function: Callable[..., Any], *arrays: mx.array, without: Sequence[str] = ()
    ) -> Any:
        """Call a variant of the operator in the same way, ``without`` some arguments."""
        given = {k: v for k, v in self.keywords(arrays).items() if k not in without}
        first: list[Any] = []
        star = [arg.get("resolved", {}).get("variadic", False) for arg in self.op["args"]]
        for arg, variadic in zip(self.op["args"], star, strict=True):
            if variadic:
                first += given.pop(arg["name"], [])
                break
            if (any(star) or arg.get("pos_only")) and arg["name"] in given:
                first.append(given.pop(arg["name"]))
        return function(*first, **given)

    def in_place(self, *arrays: mx.array) -> Any:
        """Call the in-place variant with a new object for each array."""
        copies = [a.astype(a.dtype) for a in arrays]
        result = self.call_as(_resolve(self.package, self.op, "_"), *copies)
        assert result is copies[0], f"{self.path}_ does not return its argument"
        return result

    def into_others(self, *arrays: mx.array) -> Any:
        """Call the operator with the argument `out`."""
        several = len(self.op["outputs"]) > 1
        outs = tuple(mx.array(0) for _ in self.op["outputs"])
        out = outs if several else outs[0]
        result = self.call_as(partial(self.case.function, out=out), *arrays)
        same = map(operator.is_, result if several else [result], outs)
        assert all(same), f"{self.path} does not return the arrays of `out`"
        return result

    def keywords(self, arrays: Sequence[mx.array]) -> dict[str, Any]:
        """Return the arguments of a call: these arrays and the other values of the sample."""
        kinds = {arg["name"]: arg["kind"] for arg in self.op["args"]}
        # An array or string that the sample omits has its default, any other absent array is None.
        absent = [a for a in self.op["args"] if a["kind"] == "array"]
        out: dict[str, Any] = {
            arg["name"]: arg["value"] if _is_by_default(arg) else None for arg in absent
        }
        sample = self.case.sample
        for name, kind in kinds.items():
            if kind == "optionals" and sample.get(name) is not None:
                out[name] = [None] * len(sample[name])
        for slot, a in zip(self.slots, arrays, strict=True):
            if slot.index is None:
                out[slot.arg] = a
            elif kinds[slot.arg] == "arrays":
                out.setdefault(slot.arg, []).append(a)
            else:
                out[slot.arg][slot.index] = a
        for name, value in sample.items():
            is_other = kinds[name] == "array" and not isinstance(value, Mapping)
            if is_other or kinds[name] not in ("array", "arrays", "optionals"):
                is_dtype = kinds[name] == "dtype" and value is not None
                out[name] = getattr(mx, value) if is_dtype else value
        return out

    def draw(self, dtype: mx.Dtype, seed: int = 0) -> Arrays:
        """Return arrays for a call; they depend only on the seed, not on other operators."""
        name = zlib.crc32(f"{self.path} {self.number}".encode())
        rngs = (np.random.default_rng((name, seed, i)) for i in range(len(self.slots)))
        return [slot.draw(dtype, rng) for slot, rng in zip(self.slots, rngs, strict=True)]

    def ends(self, slot: SampleArray, arrays: Sequence[mx.array]) -> tuple[float, float]:
        """Return the domain of an array in a call with these arrays."""
        if not slot.bounds:
            return slot.low, slot.high
        values = self.defaults | self.keywords(arrays)
        names = {**FORMULA_NAMES, **values, **lengths_of(self.op["lengths"], values)}
        ends = {"low": slot.low, "high": slot.high}
        ends |= {end: eval(formula_code(text)[0], names) for end, text in slot.bounds.items()}
        return float(ends["low"]), float(ends["high"])

    def is_valid(self, arrays: Sequence[mx.array]) -> bool:
        """Return true if the numbers of a call are as valid as those of the sample.

        Args:
            arrays: The arrays of a call, possibly followed by cotangents.
        """
        given = arrays[: len(self.slots)]
        for slot, a in zip(self.slots, given, strict=True):
            # Each element of an elementwise operator stands alone.
            if slot.is_free or (self.is_elementwise and not slot.has_domain):
                continue
            if not slot.contains(testing.to_numpy(a), *self.ends(slot, given)):
                return False
        return True

    def resized(self, arrays: Arrays, anew: bool = False) -> Arrays | None:
        """Return the arrays of a call with other shapes, with valid numbers.

        Args:
            arrays: Arrays of these shapes.
            anew: Draw all of them; otherwise keep those in which all numbers are valid.

        Returns:
            None if the sample does not describe the numbers for these shapes.
        """
        if self.is_elementwise:
            return arrays
        pairs = [*zip(self.slots, arrays, strict=True)]
        is_larger = all(n >= m for s, a in pairs for n, m in zip(a.shape, s.shape, strict=True))
        found = []
        for i, (slot, a) in enumerate(pairs):
            if slot.is_free and not anew:
                found.append(a)
                continue
            if not slot.is_known(is_larger):
                return None
            try:
                low, high = self.ends(slot, arrays)
                is_alone = a.shape[-1:] == (1,) != slot.shape[-1:]
                if "sorted" in slot.orders and slot.is_index and is_alone and low < high:
                    return None  # one number cannot be both ends
                other = replace(slot, shape=a.shape, values=None, low=low, high=high)
                found.append(other.draw(a.dtype, np.random.default_rng((*a.shape, i))))
            except (ValueError, IndexError, ZeroDivisionError):  # no such numbers
                return None
        return found

    def has_dtype(self, name: str) -> bool:
        """Return true if the operator computes in a floating dtype on the CPU."""
        # An argument with a dtype of its own is cast for a kernel, but not for a composite.
        cast = {a["name"] for a in self.op["args"] if a["dtype"] and self.has_kernels}
        among = {"float16", "bfloat16", "float32", "float64"}
        rules = [
            dtypes
            for arg, dtypes in self.op["dtypes"].items()
            if arg not in cast and (len(dtypes) > 1 or self.has_kernels or dtypes[0] in among)
        ]
        kernels = self.op["kernels"]
        alone = [] if self.op["composite"] else ["metal"]  # Metal has no float64
        rules += [kernels[name]["dtypes"] for name in ["cpu", *alone] if name in kernels][:1]
        # Next to floating arguments, a group of integers stays as it is.
        floating = [rule for rule in rules if "float32" in rule]
        return all(name in rule for rule in floating or rules)

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype for derivatives."""
        return mx.float64 if self.has_dtype("float64") else mx.float32

    def argnums(self, *declared: str) -> list[int]:
        """Return the arrays with one of these declarations as gradient; by default, the others."""
        out = []
        for i, (slot, a) in enumerate(zip(self.slots, self.draw(mx.float32), strict=True)):
            word = str(self.op["grad"].get(slot.arg, "")).partition(" ")[0]
            plain = testing.is_float(a) and word not in ("none", "zero")
            if word in declared if declared else plain:
                out.append(i)
        return out

    def allows(self, trace: Callable[[Arrays], Any], dtype: mx.Dtype = mx.float32) -> bool:
        """Return true if the operator's composition supports a transform; nothing is computed."""
        with _quiet(), mx.stream(mx.cpu if dtype == mx.float64 else mx.default_device()):
            try:
                trace(self.draw(dtype))
            except Exception as error:  # the check reports any other error
                return not _declared(self, error)
        return True

    @cached_property
    def differentiable(self) -> list[int]:
        """The arrays that have a gradient."""

        def gradient(argnum: int, args: Arrays) -> None:
            pull, given = _pulled(self, args, [argnum])
            pull(*given)

        return [i for i in self.argnums() if self.allows(partial(gradient, i), self.dtype)]

    @cached_property
    def twice(self) -> list[tuple[list[int], list[int]]]:
        """Arrays whose gradients are differentiable, and the arrays in which they are."""

        def second(i: int, j: int, args: Arrays) -> None:
            pull, given = _pulled(self, args, [i])
            both = [j, *range(len(args), len(given))]
            testing.pullback(pull, given, both)(*given, *pull(*given))

        groups: dict[tuple[int, ...], list[int]] = {}
        for i in self.differentiable:
            within = [
                j for j in self.differentiable if self.allows(partial(second, i, j), self.dtype)
            ]
            groups.setdefault(tuple(within), []).append(i)
        return [(argnums, list(within)) for within, argnums in groups.items() if within]

    @cached_property
    def maps(self) -> bool:
        """True if the operator has a vmap."""

        def mapped(args: Arrays) -> None:
            mx.vmap(self.function)(*(mx.stack([a, a]) for a in args))

        return self.op["vmap"] != "none" and self.allows(mapped)

    @property
    def has_composed_gradient(self) -> bool:
        """True if gradients consist of MLX's functions, not of kernels of the package."""
        lets = self.op["let"].values()
        formulas = [*self.op["grad"].values(), *lets, self.op["composite"]]
        return not any(self._calls_internal(text) for text in formulas if text)

    def _calls_internal(self, text: str) -> bool:
        words = {text.partition(" ")[0]}
        if words & {"none", "zero", "of"}:  # not a formula: the composite's gradient
            return False
        called = formula_code(text, f"<formula of {self.path}>")[1]
        return bool(called & {op["name"] for op in _entries(self.package) if _is_internal(op)})

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The default values of the arguments; None without one."""
        found = {}
        for arg in self.op["args"]:
            default = arg["default"] if arg["has_default"] else None
            found[arg["name"]] = None if default is None else eval(default, dict(FORMULA_NAMES))
        return found

    @cached_property
    def reference(self) -> Function | None:
        """The composite, evaluated by Python; None if it calls functions unknown to Python."""
        text = self.op["composite"]
        if text is None or self._calls_internal(text):
            return None
        code = formula_code(text, f"<composite of {self.path}>")[0]
        names = {**FORMULA_NAMES, "__builtins__": {}}
        names |= _functions(self.package)
        used = getattr(getattr(self.package, "_build_info", None), "USES", ())
        names |= {name: sys.modules[name] for name in used}
        if not is_known(text, {*names, *self.op["lengths"], *(a["name"] for a in self.op["args"])}):
            return None
        names |= self.defaults

        def evaluate(*arrays: mx.array) -> Any:
            values = names | self.keywords(arrays)
            return eval(code, values | lengths_of(self.op["lengths"], values))

        return Function(evaluate, self.function.op, self.function.args, self.function.outputs)

    def accepts(self, arrays: Sequence[mx.array]) -> bool:
        """Return true if the entry's `checks` and `axes` allow a call; nothing is computed.

        Args:
            arrays: The arrays of a call, possibly followed by cotangents.
        """
        try:
            self.function(*arrays[: len(self.slots)])
        except ValueError as error:
            own = tuple(f"[{self.op[key]}]" for key in ("name", "python_name"))
            return not str(error).startswith(own)
        return True


def _is_by_default(arg: Mapping[str, Any]) -> bool:
    """Return true for an array or string that has its default if a sample omits it."""
    return bool(arg.get("choices")) and arg["has_default"]


def _is_passed(arg: Mapping[str, Any], given: Any) -> bool:
    """Return true if a sample passes an array for an argument."""
    if given is None:
        return not (arg["optional"] or _is_by_default(arg))
    return not isinstance(given, str)


@cache
def _entries(package: ModuleType) -> list[dict[str, Any]]:
    text = importlib.resources.files(package).joinpath("ops.json").read_text("utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["operators"]
    return entries


def _is_internal(op: Mapping[str, Any]) -> bool:
    return "internal" in op["tags"]


def _operators(package: ModuleType) -> list[dict[str, Any]]:
    return [op for op in _entries(package) if not _is_internal(op)]


def _resolve(package: ModuleType, op: Mapping[str, Any], suffix: str = "") -> Any:
    """Return an operator's function in its package."""
    names = filter(None, [*op["module"].split("."), op["python_name"] + suffix])
    return reduce(getattr, names, package)


def _functions(package: ModuleType) -> dict[str, Any]:
    """Return the functions that formulas call: by names in C++, and rather by names in Python.

    In Python the C++ name of an overload has no equivalent, because the arguments choose.
    """
    ops = _operators(package)
    shared = Counter((op["module"], op["python_name"]) for op in ops)
    found = {op["name"]: op for op in ops if shared[op["module"], op["python_name"]] == 1}
    inside = {op["python_name"]: op for op in reversed(ops) if op["module"]}
    found |= inside | {op["python_name"]: op for op in ops if not op["module"]}
    return {name: _resolve(package, op) for name, op in found.items()}


# The kinds of checks ------------------------------------------------------------------------------


def _check_sample(s: Subject) -> None:
    """Check that the operator accepts the sample and, if it has a gradient, is finite there."""
    if s.problem:
        given = textwrap.shorten(str(dict(s.case.sample) or "the default one"), 300)
        op = s.op["python_name"]
        raise AssertionError(f"[{op}] sample {s.number} ({given}) cannot be used: {s.problem}")
    is_described = any({"shape", "dtype"} & output.keys() for output in s.op["outputs"])
    for name in ("float32", "float16") if is_described else ():
        if s.has_dtype(name):
            _check_described(s, s.draw(getattr(mx, name)))


def _check_described(s: Subject, arrays: Arrays) -> None:
    """Compare the results of a composite with the shapes and dtypes that the entry declares."""
    values = s.defaults | s.keywords(arrays)
    names = {**FORMULA_NAMES, "accumulator": mx.float32, **values}
    names |= lengths_of(s.op["lengths"], values)
    for output, result in zip(s.op["outputs"], s.function(*arrays), strict=False):
        for of, got in (("shape", list(result.shape)), ("dtype", result.dtype)):
            if of in output:
                wanted = eval(formula_code(output[of])[0], names)
                wanted = list(wanted) if of == "shape" else wanted
                about = f"[{s.path}] the {of} of {output['name']} is {got}, but the entry declares"
                assert got == wanted, f"{about} {output[of]}, which is {wanted}"


def _check_forward(s: Subject) -> None:
    """Compare the forward with the composite."""
    assert s.reference is not None
    source = "by the composite"
    testing.check_forward(s.function, s.reference, s.draw(mx.float32), source=source)
    if s.has_dtype("float64"):
        with mx.stream(mx.cpu):
            # MLX's exp and similar functions have errors of 1e-7 in float64, too.
            args = s.draw(mx.float64)
            testing.check_forward(s.function, s.reference, args, source=source, rtol=1e-6)
    if s.has_kernels:
        _check_other_sizes(s, s.reference, source)


def _check_other_sizes(s: Subject, reference: Function, source: str) -> None:
    """Compare kernels with the composite for other sizes of the named axes: 1 and one more."""
    names = [slot.arg for slot in s.slots]
    for what, shaped in named_axes(s.draw(mx.float32), names, s.op.get("axes", {})):
        given = s.resized(shaped, anew=True)
        if not (given and s.accepts(given)):
            continue
        try:
            wanted = reference(*given)
            mx.eval(wanted)
        except (ValueError, IndexError, ZeroDivisionError):  # the composite lacks such sizes
            continue
        got = s.function(*given)
        testing.require_same(got, wanted, s.function, f"forward, {what}", source, 1e-5)


def _check_metal(s: Subject) -> None:
    """Compare float32 on Metal with float64 on the CPU: the forward and the vjp."""
    rng = np.random.default_rng(0)
    args = s.draw(mx.float32)
    with mx.stream(mx.cpu):
        low = [mx.array(rng.uniform(-1, 1, out.shape), out.dtype) for out in s.function(*args)]
        mx.eval(low)
    pull = testing.pullback(s.function, args, s.differentiable)
    functions = [(s.function, args), *([(pull, [*args, *low])] if s.differentiable else [])]
    for fn, given in functions:
        with mx.stream(mx.cpu):
            high = [a.astype(s.dtype) if testing.is_float(a) else a for a in given]
            wanted = fn(*high)
            mx.eval(wanted)
        with mx.stream(mx.gpu if testing.metal_backend() == "gpu" else mx.cpu):
            got = fn(*given)
            like = [w.astype(g.dtype) for w, g in zip(wanted, got, strict=True)]
            testing.require_same(got, like, fn, "on Metal", "on the CPU", 1e-5)


def _check_vjp(s: Subject) -> None:
    """Compare the vjp with finite differences; gradients that are declared zero must be zero."""
    args, zero = s.draw(s.dtype), s.argnums("zero")
    testing.check_vjp(s.symmetric, args, s.differentiable, step=s.steps, dtype=s.dtype)
    if zero:
        with mx.stream(mx.cpu):
            pull = testing.pullback(s.function, args, zero)
            got = pull(*args, *(mx.ones_like(out) for out in s.function(*args)))
            wanted = [mx.zeros_like(args[i]) + 0 for i in zero]
            testing.require_same(got, wanted, pull, "declared zero", "by that", 0)
    for i in zero:
        if testing.is_float(args[i]):  # other indices, offsets or lengths may be invalid
            _require_no_gradient(s, i, "zero")


NEGLIGIBLE = 1e-6
"""A gradient of the composite that is smaller may be rounding."""


def _require_no_gradient(s: Subject, argnum: int, declared: str) -> None:
    """Compare a gradient that is declared `zero` or `none` with the composite's.

    Without a composite that Python can evaluate, finite differences must be zero where `zero` is
    declared. `none` is then right: differentiating raises.
    """
    name, args, composite = s.slots[argnum].arg, s.draw(s.dtype), s.op["composite"] or ""
    stop = f"if '{name}' has no gradient on purpose, write stop_gradient({name}) in "
    stop += "the composite" if composite else "a `composite`"
    if s.reference is not None:
        with mx.stream(mx.cpu):
            found = _gradient_of(s.reference, args, argnum)
        size = np.nan_to_num(np.abs(found), posinf=0).ravel()
        if size.max(initial=0) <= NEGLIGIBLE:
            return
        i = int(size.argmax())
        element = testing.element_of(s.slots[argnum].name, args[argnum], i)
        place = f"{element} = {testing.to_numpy(args[argnum]).flat[i]:.6g}"
        wanted = f"{found.flat[i]:.6g}"
        raise Mismatch(
            s.function.op,
            f"`grad` declares '{name}' {declared}, but the composite's gradient at {place} is "
            f"{wanted}",
            name,
            element,
            "0" if declared == "zero" else "none",
            wanted,
            f"remove `{declared}`, so that the composite's gradient is used, or write a formula; "
            f"{stop}",
        )
    if declared == "zero" and "stop_gradient" not in composite:
        try:
            testing.check_vjp(s.symmetric, args, [argnum], step=s.steps, dtype=s.dtype)
        except Mismatch as error:
            error.text = f"`grad` declares '{name}' zero: {error.text}"
            if error.hint != testing.SAMPLES.kink:
                error.hint = f"write a formula, or `none`; {stop}"
            raise


def _gradient_of(fn: Function, args: Arrays, argnum: int) -> Any:
    """Return the gradient of one argument as a NumPy array; zeros if there is none."""
    try:
        pull = testing.pullback(fn, args, [argnum])
        return testing.to_numpy(pull(*args, *_cotangents(fn(*args)))[0])
    except Exception:  # a function in it has no gradient
        return np.zeros(args[argnum].shape)


def _check_jvp(s: Subject) -> None:
    """Compare the jvp with finite differences, for the differentiable arguments; along an argument
    whose gradient is declared zero it must be zero."""
    chosen, args, zero = s.differentiable, s.draw(s.dtype), s.argnums("zero")
    if s.op["jvp"] == "formula":
        chosen = [i for i in chosen if s.slots[i].arg in s.op["jvp_args"]]
    testing.check_jvp(s.symmetric, args, chosen, step=s.steps, dtype=s.dtype)
    with mx.stream(mx.cpu):
        for i in zero:
            alone = partial(_with_argument, s.function, args, i)
            got = mx.jvp(alone, [args[i]], [mx.ones_like(args[i])])[1]
            what, wanted = f"jvp along '{s.function.arg(i)}'", list(map(mx.zeros_like, got))
            testing.require_same(got, wanted, s.function, what, "as `grad` declares it", 0)


def _with_argument(fn: Function, args: Arrays, argnum: int, value: mx.array) -> Arrays:
    return fn(*testing.replaced(args, [argnum], [value]))


def _check_second(s: Subject) -> None:
    """Compare the vjp of the vjp with finite differences."""
    for argnums, within in s.twice:
        given = s.draw(s.dtype)
        testing.check_second(s.symmetric, given, argnums, within, step=s.steps, dtype=s.dtype)


def _check_broadcast_vjp(s: Subject) -> None:
    """Check that the gradient of a broadcast argument is summed."""
    args = s.draw(s.dtype)
    for i in s.differentiable:
        for smaller in testing.reductions(args[i]):
            given = testing.replaced(args, [i], [smaller])
            if not s.accepts(given):
                continue
            options: dict[str, Any] = {"step": s.steps, "dtype": s.dtype, "limit": 4}
            testing.check_vjp(s.function, given, s.differentiable, **options)


def _check_none(s: Subject) -> None:
    """Check that differentiating an argument without a gradient raises an error, and that the
    composite has no gradient either."""
    args = s.draw(mx.float32)
    for i in s.argnums("none"):
        testing.check_not_differentiable(s.function, args, i)
        if testing.is_float(args[i]):
            _require_no_gradient(s, i, "none")


def _check_vmap(s: Subject) -> None:
    """Compare vmap, also nested, with a loop."""
    testing.check_vmap(s.function, [s.draw(mx.float32, seed) for seed in range(3)])


def _check_vmap_vjp(s: Subject) -> None:
    """Compare vmap of the vjp, and the vjp of vmap, with a loop."""
    elements = [s.draw(mx.float32, seed) for seed in range(3)]
    testing.check_vmap_vjp(s.function, elements, s.differentiable)


def _check_compile(s: Subject) -> None:
    """Compare the compiled function with a plain call."""
    args = s.draw(mx.float32)
    testing.check_compile(s.function, args, shapeless=False)


def _check_compile_vjp(s: Subject) -> None:
    """Compare the compiled vjp with a plain call."""
    pull, given = _pulled(s, s.draw(mx.float32))
    compiled = Function(mx.compile(pull.call), pull.op, pull.args, pull.outputs)
    testing.check_forward(compiled, pull, given, what="compiled", source="in a plain call")


def _check_shapeless(s: Subject) -> None:
    """Compare calls compiled for any shape, also of the vjp, with plain calls for other shapes; the
    function may reject the trace instead."""
    args, names = s.draw(mx.float32), [slot.arg for slot in s.slots]
    others = list(named_axes(args, names, s.op.get("axes", {})))
    # Other shapes are used for elementwise kernels and for compositions: MLX checks its inputs, but
    # a kernel may access any memory that its entry does not exclude.
    if s.is_elementwise or not s.has_kernels:
        others += [*single_axes(args, s.function.args), *equal_axes(args)]
    valid = [Resized(what, found) for what, given in others if (found := s.resized(given))]
    # The sample itself, if it does not describe the numbers for other shapes.
    others = valid or [Resized("the same shapes", args)]
    check_shapeless(s.function, args, others, op=s.function.op)
    if not s.differentiable:
        return
    pull = testing.pullback(s.function, args, s.differentiable)

    def pulled() -> Iterator[Resized]:
        for what, given in others:
            with contextlib.suppress(ValueError, IndexError):
                yield Resized(what, [*given, *_cotangents(s.function(*given))])

    given = [*args, *_cotangents(s.function(*args))]
    check_shapeless(pull, given, pulled(), op=s.function.op)


def _cotangents(outputs: Arrays) -> Arrays:
    """Return numbers that differ between elements, and depend only on the shapes."""
    return [mx.cos(mx.arange(o.size)).reshape(o.shape).astype(o.dtype) for o in outputs]


def _check_precision(s: Subject) -> None:
    """Compare float16 and bfloat16 with float32."""
    for name in ("float16", "bfloat16"):
        if s.has_dtype(name):
            # A scalar kernel computes in float32 and rounds once.
            options: dict[str, Any] = {"ulps": 1, "keeps_dtype": True}
            args, dtype = s.draw(mx.float32), getattr(mx, name)
            if not (s.is_scalar_kernel and any(map(testing.is_float, args))):
                options = {"composed": s.op["form"] == "composite"}
            testing.check_precision(s.function, args, dtype, **options)


def _pulled(
    s: Subject, args: Arrays, argnums: Sequence[int] | None = None
) -> tuple[Function, Arrays]:
    """Return the vjp and its arguments: those of the operator, and cotangents."""
    cotangents = [mx.ones_like(out) for out in s.function(*args)]
    chosen = s.differentiable if argnums is None else argnums
    return testing.pullback(s.function, args, chosen), [*args, *cotangents]


def _check_precision_vjp(s: Subject) -> None:
    """Compare the vjp in float16 and bfloat16 with float32."""
    for name in ("float16", "bfloat16"):
        if s.has_dtype(name):
            # Each step of a gradient's formula rounds; differences of terms magnify the errors.
            pulled = _pulled(s, s.draw(mx.float32))
            options: dict[str, Any] = {"ulps": 16, "composed": s.has_composed_gradient}
            testing.check_precision(*pulled, getattr(mx, name), **options)


REAL = [
    *("bool_", *(f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64))),
    *("float16", "bfloat16", "float32", "float64"),
]
# The tolerance between vjps: sums in another order round differently.
PRECISIONS = {"float32": 1e-4, "float16": 0.03, "bfloat16": 0.25}


def _check_layouts(s: Subject) -> None:
    """Check that strides do not affect the result, in any dtype."""
    for name in ("float32", "float16", "bfloat16"):
        if s.has_dtype(name):
            testing.check_layouts(s.function, s.draw(getattr(mx, name)), accepts=s.is_valid)


def _check_layouts_vjp(s: Subject) -> None:
    """Check that strides do not affect the vjp, also strides of the cotangents."""
    for name, rtol in PRECISIONS.items():
        if s.has_dtype(name):
            pulled = _pulled(s, s.draw(getattr(mx, name)))
            testing.check_layouts(*pulled, rtol=rtol, accepts=s.is_valid)


def _check_sizes(s: Subject) -> None:
    """Check empty, 0-d, broadcast and long arguments; long ones in every dtype with a kernel."""
    testing.check_sizes(s.function, s.draw(mx.float32), accepts=s.accepts)
    for name in REAL:
        if s.has_dtype(name):
            with mx.stream(mx.cpu if name == "float64" else mx.default_device()):
                given = s.draw(getattr(mx, name))
                testing.check_long(s.function, given, accepts=s.accepts)


def _check_sizes_vjp(s: Subject) -> None:
    """Check long arguments of the vjp."""
    for name, rtol in PRECISIONS.items():
        if s.has_dtype(name):
            pull, given = _pulled(s, s.draw(getattr(mx, name)))
            testing.check_long(pull, given, rtol=rtol, accepts=s.accepts)


def _check_checkpoint(s: Subject) -> None:
    """Compare the vjp under mx.checkpoint with the plain vjp."""
    inside = [*s.differentiable, *s.argnums("zero")]
    testing.check_checkpoint(s.function, s.draw(mx.float32), s.differentiable, inside)


def _check_variants(s: Subject) -> None:
    """Compare variants that give array objects the value with the function, also transformed."""
    args, f = s.draw(mx.float32), s.function
    for name, call in (("inplace", s.in_place), ("out", s.into_others)):
        if name not in s.op["variants"]:
            continue
        variant = replace(f, call=call)
        compiled = replace(f, call=mx.compile(variant))
        pairs: list[tuple[Function, Function, Arrays]] = [(variant, f, args), (compiled, f, args)]
        if s.differentiable:
            pull, given = _pulled(s, args)
            pairs.append((testing.pullback(variant, args, s.differentiable), pull, given))
        for got, wanted, given in pairs:
            result, expected = got(*given), wanted(*given)
            testing.require_same(result, expected, f, f"by {name}", "by the function", 1e-5)


def _on_metal(s: Subject) -> bool:
    if testing.metal_backend() == "emulation":  # float32 then runs the Metal kernel
        return s.has_dtype("float64")
    return testing.metal_backend() == "gpu"


def _differentiable(s: Subject) -> bool:
    return bool(s.differentiable)


CHECKS: dict[str, tuple[Callable[[Subject], None], Callable[[Subject], bool]]] = {
    "sample": (_check_sample, lambda s: True),
    "forward": (_check_forward, lambda s: s.reference is not None),
    "metal": (_check_metal, _on_metal),
    "vjp": (_check_vjp, lambda s: bool(s.differentiable or s.argnums("zero"))),
    "jvp": (_check_jvp, lambda s: _differentiable(s) and s.op["jvp"] != "none"),
    "second": (_check_second, lambda s: bool(s.twice)),
    "broadcast_vjp": (_check_broadcast_vjp, lambda s: s.is_elementwise and len(s.slots) > 1),
    "none": (_check_none, lambda s: bool(s.argnums("none"))),
    "vmap": (_check_vmap, lambda s: s.maps),
    "vmap_vjp": (_check_vmap_vjp, lambda s: _differentiable(s) and s.maps),
    "compile": (_check_compile, lambda s: True),
    # A C++ compiler compiles fused functions, which takes about a second: one sample is enough.
    "compile_vjp": (_check_compile_vjp, lambda s: _differentiable(s) and s.number == 0),
    "shapeless": (_check_shapeless, lambda s: bool(s.slots) and not s.op.get("of_mlx")),
    "precision": (_check_precision, lambda s: _differentiable(s) or s.is_scalar_kernel),
    "precision_vjp": (_check_precision_vjp, _differentiable),
    "layouts": (_check_layouts, lambda s: True),
    "layouts_vjp": (_check_layouts_vjp, _differentiable),
    "sizes": (_check_sizes, lambda s: s.is_elementwise),
    "sizes_vjp": (_check_sizes_vjp, lambda s: s.is_elementwise and _differentiable(s)),
    "checkpoint": (_check_checkpoint, _differentiable),
    "variants": (_check_variants, lambda s: not {"inplace", "out"}.isdisjoint(s.op["variants"])),
}
"""The kinds of tests: the check of a case, and a condition for the existence of the test."""


choose: Callable[[str, str], bool] | None = None
"""Called with the names of an operator and a check before it is prepared; false omits the check."""


def make_tests(package: ModuleType, cases: Iterable[Case]) -> dict[str, Callable[..., None]]:
    """Return tests for pytest: a function per kind of check, parametrized by the cases.

    Args:
        package: A package that mlxgen built, with its ``ops.json``.
        cases: The cases to check.

    Returns:
        The functions by name, for a test module's globals.
    """
    operators: dict[int, list[dict[str, Any]]] = {}
    for op in _operators(package):
        operators.setdefault(id(_resolve(package, op)), []).append(op)
    seen: dict[str, int] = {}
    subjects = []
    for c in cases:
        overloads = operators.get(id(c.function), [])
        found = [op for op in overloads if c.overload in (None, op["name"])]
        if not found:
            raise LookupError(f"{c.function} is not an operator of {package.__name__}")
        op = found[0]
        number = seen.setdefault(op["name"], 0)
        seen[op["name"]] += 1
        subjects.append(Subject(package, op, c, number))
    tests = {}
    for name, (check, applies) in CHECKS.items():
        wanted = [s for s in subjects if _is_wanted(name, applies, s)]
        if wanted:
            tests[f"test_{name}"] = _test(name, check, wanted)
    return tests


def _is_wanted(name: str, applies: Callable[[Subject], bool], subject: Subject) -> bool:
    """Return true if a check applies; `_check_sample` reports errors of the sample."""
    if choose and not choose(subject.op["name"], name):
        return False
    try:
        # MLX's updates of empty slices do not terminate.
        is_empty = any(0 in slot.shape for slot in subject.slots)
        if is_empty and name not in ("sample", "forward"):
            return False
        return bool(named(f"preparing {_title(name, subject)}", applies, subject))
    except Exception:
        return name == "sample"


def _title(name: str, subject: Subject) -> str:
    return f"test_{name} of {subject.path}, sample {subject.number}"


def _test(
    name: str, check: Callable[[Subject], None], subjects: Sequence[Subject]
) -> Callable[..., None]:
    import pytest

    def run(subject: Subject) -> None:
        __tracebackhide__ = True
        if subject.problem and check is not _check_sample:
            pytest.skip("test_sample reports the error in this sample")
        with _quiet():
            try:
                check(subject)
            except ValueError as error:
                if not _declared(subject, error):
                    raise
                pytest.skip(str(error))

    def test(subject: Subject) -> None:
        __tracebackhide__ = True
        named(_title(name, subject), run, subject)

    test.__name__ = test.__qualname__ = f"test_{name}"
    test.__doc__ = check.__doc__
    ids = [f"{s.path}-{s.number}" if s.number else s.path for s in subjects]
    parametrised: Callable[..., None] = pytest.mark.parametrize("subject", subjects, ids=ids)(test)
    return parametrised


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ignore warnings about deprecated operators, which these calls use on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _declared(s: Subject, error: Exception) -> bool:
    """Return true if an error shows that a function in the composition lacks the transform."""
    text = str(error)
    if "Not differentiable" in text:
        # An internal operator that it calls, or another operator, lacks the derivative.
        return bool(s.op.get("refusing")) or not text.startswith(f"[{s.function.op}]")
    limits = "Not implemented for", "cannot infer output shapes"
    return s.is_composed and any(limit in text for limit in limits)
