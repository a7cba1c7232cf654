"""Tries formulas of the tables with Python's eval, before the package is built.

    python aten/tools/try_formulas.py add mul --verbose
    python aten/tools/try_formulas.py --all

Formulas have Python's meaning after ``from mlx.core import *``, so they can be compared with the
recorded samples without the generator and without a compiler: forward and gradients. Entries with
kernels or C++ are not tried. Run with torch's Python, which knows the signatures.
"""

from __future__ import annotations

import argparse
import builtins
import importlib
import inspect
import math
import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import torch
import yaml

ATEN = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ATEN / "tests"))

import report as report_file  # noqa: E402
from comparing import Mismatch, compare, dtype_of  # noqa: E402
from samples import load  # noqa: E402

DROPPED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")


class NotAFormula(Exception):
    """An entry that has no formula, or uses what is not emulated."""


@dataclass
class Argument:
    """An argument of a signature: its kind in torch's spelling, and its default."""

    name: str
    kind: str
    default: Any = inspect.Parameter.empty


@dataclass
class Entry:
    """A formula with its signature."""

    name: str
    overload: str
    arguments: list[Argument]
    results: list[str]
    body: dict[str, Any]


def aten_signature(full: str) -> tuple[list[Argument], list[str]] | None:
    """Return arguments and results of an ATen overload, or None where torch does not have it."""
    base, _, overload = full.partition(".")
    try:
        schema = getattr(getattr(torch.ops.aten, base), overload or "default")._schema
    except AttributeError:
        return None
    result = []
    for argument in schema.arguments:
        if argument.name == "generator":
            result.append(Argument("key", "Tensor?", None))
        if argument.name in DROPPED:
            continue
        default = (
            argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        )
        if isinstance(default, torch.dtype):
            default = dtype_of(str(default).removeprefix("torch."))
        result.append(Argument(argument.name, kind_of(str(argument.type)), default))
    return result, [r.name or str(i) for i, r in enumerate(schema.returns)]


def kind_of(kind: str) -> str:
    """Return torch's internal spelling of a kind in the schema's spelling."""
    if kind.startswith("Optional["):
        return kind_of(kind[9:-1]) + "?"
    if kind.startswith("List["):
        return kind_of(kind[5:-1]) + "[]"
    return {"number": "Scalar"}.get(kind, kind)


def own_signature(text: str) -> tuple[str, list[Argument], list[str]]:
    """Return name, arguments and results of a helper's signature in torch's spelling."""
    name, _, rest = text.partition("(")
    before, _, after = rest.rpartition("->")
    inside = before.rpartition(")")[0]
    parts = after.strip(" ()").split(",")
    results = [part.split()[1] if len(part.split()) > 1 else str(i) for i, part in enumerate(parts)]
    result = []
    for part in re.split(r",\s*(?![^\[(]*[\])])", inside):
        if not part or part == "*":
            continue
        declared, equals, default = part.partition("=")
        kind, _, argument = declared.strip().rpartition(" ")
        value = eval(default, {}) if equals else inspect.Parameter.empty
        result.append(Argument(argument, kind, value))
    return name, result, results


def scattered(reduce: str) -> Callable[..., mx.array]:
    """Return MLX's C++ function scatter or scatter_add etc., which Python does not have."""

    def scatter(
        a: mx.array, indices: Any, updates: mx.array, axes: Any = None, axis: Any = None
    ) -> mx.array:
        axes = axes if axes is not None else axis
        indices = [indices] if isinstance(indices, mx.array) else list(indices)
        axes = [i % a.ndim for i in ([axes] if isinstance(axes, int) else axes)]
        others = [i for i in range(a.ndim) if i not in axes]
        front = mx.transpose(a, [*axes, *others])
        count = updates.ndim - a.ndim
        flat = mx.squeeze(updates, [count + i for i in axes]) if axes else updates
        at = front.at[tuple(indices)]
        done = getattr(at, reduce)(flat) if reduce else assigned(front, tuple(indices), flat)
        order = [*axes, *others]
        return mx.transpose(done, [order.index(i) for i in range(a.ndim)])

    return scatter


def assigned(a: mx.array, where: Any, value: mx.array) -> mx.array:
    """Return ``a`` with new values in one place."""
    result = mx.array(a)
    result[where] = value
    return result


def scatter_add_axis(a: mx.array, indices: mx.array, values: mx.array, axis: int) -> mx.array:
    """MLX's C++ function, which Python does not have."""
    axis %= a.ndim
    shape = indices.shape
    where = [
        indices if i == axis else mx.arange(n).reshape([-1 if j == i else 1 for j in range(a.ndim)])
        for i, n in enumerate(shape)
    ]
    return a.at[tuple(where)].add(mx.broadcast_to(values, shape))


def gather(a: mx.array, indices: Any, axes: Any, slice_sizes: Any) -> mx.array:
    """MLX's C++ function, which Python does not have."""
    indices = [indices] if isinstance(indices, mx.array) else list(indices)
    axes = [axes] if isinstance(axes, int) else list(axes)
    cut = a[tuple(slice(None) if i in axes else slice(0, n) for i, n in enumerate(slice_sizes))]
    others = [i for i in range(a.ndim) if i not in axes]
    result = mx.transpose(cut, [*axes, *others])[tuple(indices)]
    return mx.expand_dims(result, [result.ndim - len(others) + i for i in axes]) if axes else result


def slice_update(
    src: mx.array, update: mx.array, start: Any, stop: Any, strides: Any = None
) -> mx.array:
    """MLX's C++ function with lists."""
    strides = strides or [1] * len(start)
    return assigned(src, tuple(map(slice, start, stop, strides)), update)


def mlxops_functions() -> dict[str, Any]:
    """Return the package mlxops, from the project's environment if it has the same Python."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.path.append(str(ATEN.parent / ".venv" / "lib" / version / "site-packages"))
    try:
        return {"mlxops": importlib.import_module("mlxops")}
    except ImportError:
        return {}


CPP = {
    "scatter": scattered(""),
    "scatter_add": scattered("add"),
    "scatter_max": scattered("maximum"),
    "scatter_min": scattered("minimum"),
    "scatter_prod": scattered("multiply"),
    "scatter_add_axis": scatter_add_axis,
    "gather": gather,
    "slice_update": slice_update,
    "masked_scatter": assigned,
}


class Formulas:
    """The entries of all tables, as functions."""

    def __init__(self, folders: list[Path]) -> None:
        self.entries: dict[str, Entry] = {}
        self.by_name: dict[str, list[Entry]] = {}
        # Overrides are in the last folder.
        for path in (p for folder in folders for p in sorted(folder.glob("*.yaml"))):
            for key, body in (yaml.safe_load(path.read_text()) or {}).items():
                if isinstance(body, list) or path.name == "nodes.yaml":
                    continue
                self.add(key, {"composite": body} if isinstance(body, str) else body)
        self.names = {n: getattr(mx, n) for n in dir(mx) if not n.startswith("_")}
        self.names |= CPP | {"mx": mx, "pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}
        self.names |= mlxops_functions()
        self.names |= {name: self.function(name) for name in self.by_name}
        self.names |= {name: numbers_or(name, self.names[name]) for name in NUMBERS}
        del self.names["range"]  # comprehensions need Python's
        self.names |= {
            e.name + "_" + e.overload: self.one(e) for e in self.entries.values() if e.overload
        }

    def add(self, key: str, body: dict[str, Any]) -> None:
        """Add an entry of a table."""
        if "(" in key:
            name, arguments, results = own_signature(key)
            entry = Entry(name, "", arguments, results, body)
        else:
            found = aten_signature(key)
            if found is None:
                print(f"{key}: torch has no such overload", file=sys.stderr)
                return
            name, _, overload = key.partition(".")
            entry = Entry(name, overload, *found, body)
        if key in self.entries:
            others = [e for e in self.by_name[name] if e.overload != entry.overload]
            self.by_name[name] = others
        self.entries[key] = entry
        self.by_name.setdefault(name, []).append(entry)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function that tries the overloads of a name in order."""

        def call(*args: Any, **kwargs: Any) -> Any:
            for exact in (True, False):
                for entry in self.by_name[name]:
                    bound = bind(entry, args, kwargs, exact)
                    if bound is not None:
                        return self.evaluate(entry, bound)
            raise TypeError(f"{name}: no overload accepts {args}, {kwargs}"[:300])

        return call

    def one(self, entry: Entry) -> Callable[..., Any]:
        """Return the function of one overload."""

        def call(*args: Any, **kwargs: Any) -> Any:
            bound = bind(entry, args, kwargs, False)
            if bound is None:
                raise TypeError(f"{entry.name}: the arguments do not fit")
            return self.evaluate(entry, bound)

        return call

    def evaluate(self, entry: Entry, arguments: dict[str, Any]) -> Any:
        """Return the value of an entry's formula, with its own gradient if it has one."""
        if "composite" not in entry.body:
            raise NotAFormula("has no composite")
        gradients = entry.body.get("grad")
        if not isinstance(gradients, dict):
            return self.value(entry.body, entry.body["composite"], arguments)
        return self.with_gradient(entry, gradients, arguments)

    def value(self, body: dict[str, Any], formula: str, arguments: dict[str, Any]) -> Any:
        """Return the value of a formula after those of ``let``."""
        scope = self.names | arguments
        failed: dict[str, Exception] = {}
        for name, text in (body.get("let") or {}).items():
            try:
                scope[name] = eval(str(text).strip(), scope)
            except NotAFormula:
                raise
            except Exception as error:  # it may be unused under this call's condition
                failed[name] = error
                scope.pop(name, None)
        try:
            return eval(str(formula).strip(), scope)
        except NameError as error:
            cause: Exception = error
            while isinstance(cause, NameError) and cause.name in failed:
                cause = failed.pop(cause.name)
            raise cause from None

    def with_gradient(
        self, entry: Entry, gradients: dict[str, Any], arguments: dict[str, Any]
    ) -> Any:
        """Return the value under mx.custom_function, with the entry's gradient formulas."""
        arrays = [k for k, v in arguments.items() if isinstance(v, mx.array)]
        fixed = {k: v for k, v in arguments.items() if k not in arrays}

        @mx.custom_function
        def run(*values: mx.array) -> Any:
            return self.value(
                entry.body, entry.body["composite"], fixed | dict(zip(arrays, values, strict=False))
            )

        @run.vjp
        def vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
            primals = primals if isinstance(primals, (list, tuple)) else [primals]
            scope = fixed | dict(zip(arrays, primals, strict=False))
            if isinstance(outputs, (list, tuple)):
                for i, (g, o) in enumerate(zip(cotangents, outputs, strict=False)):
                    for name in {entry.results[i], str(i)}:
                        scope |= {f"grad_{name}": g, f"result_{name}": o}
            scope |= {"grad": cotangents, "result": outputs}
            result = []
            for name, array in zip(arrays, primals, strict=False):
                formula = gradients.get(name, "zero")
                zero = formula in ("zero", "none")
                value = mx.zeros_like(array) if zero else self.value(entry.body, formula, scope)
                result.append(unbroadcast(value, array))
            return tuple(result)

        return run(*(arguments[name] for name in arrays))


#: functions of Python in calls without arrays
NUMBERS = ("min", "max", "sum", "abs", "all", "any")


def numbers_or(name: str, entry: Callable[..., Any]) -> Callable[..., Any]:
    """Return Python's function for calls without an array, and the entry for all others."""

    def call(*args: Any, **kwargs: Any) -> Any:
        own = not any(isinstance(argument, mx.array) for argument in args)
        return (getattr(builtins, name) if own else entry)(*args, **kwargs)

    return call


def unbroadcast(value: mx.array, like: mx.array) -> mx.array:
    """Return a gradient summed to its argument's shape, in its dtype."""
    value = mx.array(value) if not isinstance(value, mx.array) else value
    extra = value.ndim - like.ndim
    value = value.sum(axis=list(range(extra))) if extra > 0 else value
    for axis, n in enumerate(like.shape):
        if n == 1 and value.shape[axis] != 1:
            value = value.sum(axis=axis, keepdims=True)
    return mx.broadcast_to(value, like.shape).astype(like.dtype)


def bind(entry: Entry, args: Any, kwargs: dict[str, Any], exact: bool) -> dict[str, Any] | None:
    """Return an entry's arguments by name if they fit its kinds, or None."""
    if len(args) > len(entry.arguments):
        return None
    given = dict(zip((a.name for a in entry.arguments), args, strict=False))
    if set(given) & set(kwargs) or set(kwargs) - {a.name for a in entry.arguments}:
        return None
    given |= kwargs
    bound = {}
    for argument in entry.arguments:
        if argument.name not in given:
            if argument.default is inspect.Parameter.empty:
                return None
            bound[argument.name] = argument.default
            continue
        value = given[argument.name]
        if not fits(value, argument.kind, exact):
            return None
        if isinstance(value, int) and re.search(r"\[\d*\]\??$", argument.kind):
            size = re.search(r"\[(\d+)\]", argument.kind)
            value = [value] * (int(size[1]) if size else 1)
        bound[argument.name] = value
    return bound


def fits(value: Any, kind: str, exact: bool) -> bool:
    """Return whether a value has a kind, exactly or by conversion."""
    if kind.endswith("?"):
        return value is None or fits(value, kind[:-1], exact)
    if kind.endswith("]"):
        item = kind[: kind.rindex("[")]
        if isinstance(value, (list, tuple)):
            return all(fits(part, item, exact) for part in value)
        return not exact and fits(value, item, exact)
    number = isinstance(value, (bool, int, float, complex))
    if kind == "Tensor":
        return isinstance(value, mx.array) or (not exact and number)
    if kind == "Scalar":
        return number
    if kind == "float":
        return isinstance(value, float) or (not exact and number)
    if kind in ("int", "SymInt"):
        # a dtype is an int in torch's signatures
        return type(value) is int or isinstance(value, mx.Dtype) or (not exact and number)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "str":
        return isinstance(value, str)
    return True


def attempt(formulas: Formulas, sample: Any) -> None:
    """Compare one sample; numbers that are given for arrays become arrays if needed."""
    key = sample.overload
    entry = formulas.entries.get(key)
    name = key.partition(".")[0]
    if name not in formulas.by_name:
        raise NotAFormula("missing")
    if entry is None:  # another overload may accept the call
        compare(sample, formulas.function(name))
        return
    function = formulas.one(entry)
    try:
        compare(sample, function)
    except AttributeError as error:
        if "'float'" not in str(error) and "'int'" not in str(error) and "'bool'" not in str(error):
            raise

        def arrays(*args: Any, **kwargs: Any) -> Any:
            new = [
                mx.array(v) if isinstance(v, (bool, int, float)) and a.kind == "Tensor" else v
                for v, a in zip(args, entry.arguments, strict=False)
            ]
            return function(*new, **kwargs)

        compare(sample, arrays)


def tried(
    formulas: Formulas, overload: str, samples: list[Any], verbose: bool
) -> tuple[str, int, int]:
    """Return what is wrong with an overload ("" if nothing), and how many samples are right."""
    right, first = 0, ""
    kinds: Counter[str] = Counter()
    for index, sample in enumerate(samples):
        try:
            attempt(formulas, sample)
            right += 1
            continue
        except NotAFormula as error:
            return f"not a formula: {error}", right, len(samples)
        except Mismatch as error:
            text = str(error)
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        kinds[re.sub(r"[\d.e+-]+", "#", text)[:60]] += 1
        if not first or (verbose and kinds[re.sub(r"[\d.e+-]+", "#", text)[:60]] == 1):
            line = f"#{index} ({sample.origin}): {text}"
            if verbose:
                line += f"\n      {shown(sample)}"
            first = f"{first}\n    {line}" if first else line
    return first, right, len(samples)


def shown(sample: Any) -> str:
    """Return a sample's arguments in one line."""

    def text(value: Any) -> str:
        if isinstance(value, list):
            return "[" + ", ".join(map(text, value)) + "]"
        if hasattr(value, "data"):
            small = f" {value.data.tolist()}" if 0 < value.data.size <= 6 else ""
            return f"{value.dtype}{list(value.shape)}{small}"
        return getattr(value, "name", repr(value))

    parts = [text(v) for v in sample.args] + [f"{k}={text(v)}" for k, v in sample.kwargs.items()]
    return f"{sample.overload}({', '.join(parts)})"[:400]


def main() -> None:
    """Try the formulas of some names, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="ATen names or overloads")
    parser.add_argument("--all", action="store_true", help="all names of the allowlist")
    parser.add_argument("--verbose", action="store_true", help="every kind of mismatch")
    parser.add_argument("--dtype", help="only the samples of this dtype, for example float32")
    parser.add_argument("--wrong", action="store_true", help="list only what is not right")
    parser.add_argument(
        "--tables",
        nargs="*",
        type=Path,
        default=[Path("mlxgen/plugins/importers/torch"), Path("aten/overrides")],
        help="folders with tables, from the current folder",
    )
    options = parser.parse_args()
    mx.set_default_device(mx.cpu)
    formulas = Formulas(options.tables)
    names = options.names
    if options.all:
        names = report_file.allowed()
    names_by_state: Counter[str] = Counter()
    overloads_by_state: Counter[str] = Counter()
    for name in names:
        # in a process of its own: MLX ends the process for what it cannot divide
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=report, args=(formulas, name, options, sender)
        )
        process.start()
        sender.close()
        try:
            states = receiver.recv()
        except EOFError:
            process.join()
            print(f"{'wrong':8}{name:40}  the process ended with {process.exitcode}")
            states = ["wrong"]
        process.join()
        overloads_by_state.update(states)
        names_by_state["partly" if len(set(states)) > 1 else states[0] if states else "none"] += 1
    print("names:", dict(names_by_state), "overloads:", dict(overloads_by_state))


def report(formulas: Formulas, given: str, options: argparse.Namespace, sender: Any) -> None:
    """Print a name's overloads, and send their states."""
    name, _, chosen = given.partition(".")
    grouped: dict[str, list[Any]] = {}
    for sample in load(name):
        dtypes = sample.origin.split()[1:2]
        if options.dtype and dtypes != [options.dtype] and sample.origin != "by hand":
            continue
        if not chosen or sample.overload == given:
            grouped.setdefault(sample.overload, []).append(sample)
    states = []
    for overload, group in grouped.items():
        problem, right, count = tried(formulas, overload, group, options.verbose)
        state = "wrong" if problem else "right"
        if problem.startswith("not a formula"):
            state = "missing" if problem.endswith("missing") else "kernel"
        states.append(state)
        if state != "right" or not options.wrong:
            print(f"{state:8}{overload:40}{right:5} of {count:<5}{problem}", flush=True)
    if not states:
        print(f"{'none':8}{given:40}  no samples", flush=True)
    sender.send(states)


if __name__ == "__main__":
    main()
