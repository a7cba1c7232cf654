"""Invalid and extreme calls of every operator, which test_hostile.py runs in other processes.

``python hostile.py PART`` exits with 0 if each call of that part raised an exception or returned
the right result. It prints a description before each call, so that the last line names the call
that crashed or hung.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import mlx.core as mx
import mlxops
import numpy as np
from mlxops.checks.test_gradients import CASES

from mlxgen.testing.cases import Subject

Result = Any
FLOATS = (mx.float16, mx.bfloat16, mx.float32, mx.float64)
INTEGERS = (mx.uint8, mx.uint32, mx.uint64, mx.int8, mx.int32, mx.int64)
MOST = 2**31 - 1


def spread(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Return an array of any size that needs no memory: its strides are 0."""
    return mx.broadcast_to(mx.ones([min(n, 1) for n in shape], dtype), shape)


# A valid call of each operator that is not elementwise; hostile calls change one argument.
VALID: dict[str, dict[str, Any]] = {
    "segment_sum": {
        "x": mx.ones((3, 4)),
        "segment_ids": mx.array([0, 2, 1]),
        "num_segments": 3,
    },
    "rms_norm_residual": {
        "x": mx.ones((3, 4)),
        "residual": mx.ones((3, 4)),
        "weight": mx.ones((4,)),
    },
    "grid_sample": {"x": mx.ones((2, 3, 4, 1)), "grid": mx.zeros((2, 2, 2, 2))},
    "block_diag": {"arrays": [mx.ones((2, 3)), mx.ones((1, 2))]},
}


def samples(module: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a call of each operator of a module, from its entry's first sample."""
    table = json.loads(resources.files(mlxops).joinpath("ops.json").read_text("utf-8"))["operators"]
    for op in table:
        if op["module"] == module and "internal" not in op["tags"]:
            function = getattr(getattr(mlxops, module), op["python_name"])
            case = next(case for case in CASES if case.function is function)
            subject = Subject(mlxops, op, case, 0)
            yield op["name"], subject.keywords(subject.draw(mx.float32))


VALID.update(samples("nn"))

NO_ARRAYS: list[Any] = [
    *(None, "text", b"bytes", {}, {1: 2}, object(), int, len, ..., slice(1)),
    *([], [1.0], [[1, 2], [3]], (), (1, 2), [None], [[]], range(3), iter(())),
    *(True, 2**31, -(2**31), 2**63 - 1, 2**63, -(2**63), 10**400, 1e308, -1e308, 5e-324, 1j),
    *(float("inf"), float("-inf"), float("nan")),
    *(np.array([None, 1], dtype=object), np.array(["a"]), np.array(1j), np.array([1 + 2j])),
    *(np.float64(0.5), np.int64(-(2**63)), np.array([], dtype=object), np.zeros((2, 0, 3))),
    *(np.ones((3, 4))[::-1, ::2], np.array("2020-01-01", dtype="datetime64[D]")),
]

# Invalid values for an int, float, bool or string, and the largest valid ones.
NO_NUMBERS: list[Any] = [
    *(None, "text", b"", [], [1], {}, object(), 1j, 0.5, mx.array(1), mx.array([1, 2]), np.ones(2)),
    *(0, -1, 1, 7, True, 2**31, -(2**31), -(2**31) - 1, 2**63, -(2**64), 10**400),
    *(float("inf"), float("nan"), 1e308, -0.0, np.int64(3), np.float32(2.5)),
]


def arrays() -> Iterator[mx.array]:
    """Yield arrays of every dtype, of unusual shapes, values and strides."""
    for dtype in (*FLOATS, *INTEGERS, mx.bool_, mx.complex64):
        yield mx.ones((3, 4), dtype)
    for shape in ((), (0,), (1,), (3,), (0, 4), (3, 0), (3, 4, 0), (0, 0, 0, 0), (5, 7), (1,) * 40):
        yield mx.ones(shape)
    limits = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, -3e38, 1e-45, -1.0, -2.0, 2.5, 3e9]
    for dtype in FLOATS:
        yield mx.array(limits, mx.float32).reshape(3, 4).astype(dtype)
        yield mx.array(limits, mx.float32).reshape(4, 3).T.astype(dtype)
    yield mx.array([1e308, -1e308, 5e-324, 1e19, -9.3e18, 1.8e308], mx.float64).reshape(2, 3)
    for dtype in INTEGERS:
        least, most = mx.iinfo(dtype).min, mx.iinfo(dtype).max
        yield mx.array(np.array([[least, most, 0, 1]] * 3, str(dtype).rpartition(".")[2]))
    base = mx.arange(120, dtype=mx.float32).reshape(6, 4, 5) / 60
    yield from (base[::-2, :, 0], base[5:2:-1, ::1, 4], base[:3, :, 1].T.T, base.T[1, :, ::2].T)
    yield from (mx.broadcast_to(base[0, 0, 0], (3, 4)), base[0:3, 0:4, 2:3].squeeze(2))
    yield from (spread(3, 4)[::-1], mx.broadcast_to(base[0, :, 0], (3, 4))[:, ::-1])


def images() -> Iterator[mx.array]:
    """Yield arrays with four axes, like images and grids."""
    limits = [np.inf, -np.inf, np.nan, 3e38, -3e38, 2.2e9, -2.2e9, 1.0, -1.0, 1e-45, 4.3e9, 1.8e19]
    for dtype in FLOATS:
        yield mx.array(limits + limits[::-1][:4], mx.float32).reshape(2, 2, 2, 2).astype(dtype)
        # All pairs of limits.
        pairs = np.array(list(itertools.product(limits, limits)), dtype=np.float32)
        yield mx.array(np.stack([pairs, -pairs]).reshape(2, 12, 12, 2)).astype(dtype)
    for shape in (
        (2, 0, 4, 2),
        (0, 3, 4, 2),
        (2, 3, 4, 0),
        (2, 0, 0, 2),
        (1, 3, 4, 2),
        (2, 1, 1, 2),
    ):
        yield mx.ones(shape)
    yield mx.ones((4, 3, 5, 2))[::2, ::-1, ::2, ::-1]


def operators() -> Iterator[tuple[str, Callable[..., Result], dict[str, Any], dict[str, Any]]]:
    """Yield each operator: its name, function, kinds of arguments, and a valid call."""
    for op in json.loads(resources.files(mlxops).joinpath("ops.json").read_text("utf-8"))[
        "operators"
    ]:
        # MLX's factorizations end the process if their arrays do not fit into memory, also without
        # mlxops. tests/linalg calls those operators with empty, singular and non-square matrices.
        if "internal" in op["tags"] or op["module"] == "linalg":
            continue
        module = getattr(mlxops, op["module"]) if op["module"] else mlxops
        kinds = {arg["name"]: arg["kind"] for arg in op["args"]}
        valid = VALID.get(op["name"])
        if valid is None:
            known = {"array": mx.full((3, 4), 0.5), "optional array": mx.full((3, 4), 0.5)}
            valid = {name: known.get(kind, 1) for name, kind in kinds.items()}
        yield op["name"], getattr(module, op["python_name"]), kinds, valid


def hostile(kind: str) -> Iterator[Any]:
    """Yield values for an argument of this kind."""
    if kind in ("array", "optional array"):
        yield from NO_ARRAYS
        yield from arrays()
        yield from images()
    elif kind == "arrays":
        yield from NO_ARRAYS
        yield from ([value] for value in NO_ARRAYS)
        yield from ([value, mx.ones((2, 2))] for value in itertools.chain(arrays(), images()))
        yield from ([spread(0, 2**30)] * 4 + [mx.ones((2, 5))], [spread(MOST, 0)] * 3)
    else:
        yield from NO_NUMBERS


def shown(value: Any) -> str:
    if isinstance(value, (mx.array, np.ndarray)):
        few = str(value.tolist()) if 0 < value.size < 20 else ""
        return f"{type(value).__module__}.array({value.dtype} {value.shape} {few})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)[:60]


def attempt(what: str, call: Callable[..., Result], *args: Any, **given: Any) -> Result:
    """Evaluate a call; return None if it raised an allowed exception."""
    print(what, flush=True)
    try:
        result = call(*args, **given)
        mx.eval(result)
    except Exception as error:
        assert str(error), what
        return None
    return result


def same(a: Result, b: Result) -> bool:
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return (a.shape, a.dtype) == (b.shape, b.dtype) and bool(
        mx.array_equal(a, b, equal_nan=mx.issubdtype(a.dtype, mx.inexact))
    )


def calls() -> None:
    """Change one argument at a time; unusual strides must yield the same results as copies."""
    for name, function, kinds, valid in operators():
        for arg, kind in kinds.items():
            for value in hostile(kind):
                what = f"{name}({arg}={shown(value)})"
                result = attempt(what, function, **{**valid, arg: value})
                if result is not None and type(value) is mx.array and value.dtype in FLOATS[:3]:
                    copy = mx.array(np.array(value.astype(mx.float32))).astype(value.dtype)
                    assert same(result, function(**{**valid, arg: copy})), what
        attempt(f"{name}()", function)
        attempt(f"{name} of 50 arguments", function, *[1] * 50)
        attempt(f"{name}(unknown)", function, **valid, unknown=1)
        for stream in ("cpu", 3, object(), mx.array(1), mx.gpu, mx.Device(mx.cpu, 7)):
            attempt(f"{name}(stream={stream!r})", function, **valid, stream=stream)


def transforms() -> None:
    """Test nested gradients, vmap and compile, over arrays of unusual shapes."""
    whole = {*VALID, "add", "sincos", "betainc"}
    for place, (name, function, kinds, valid) in enumerate(operators()):
        for arg in (arg for arg, kind in kinds.items() if kind.endswith("array")):
            shape = valid[arg].shape if isinstance(valid[arg], mx.array) else (3, 4)
            every_one = itertools.product(
                nested(functools.partial(_call, function, valid, arg)).items(),
                odd(shape),
            )
            # Elementwise operators share the code around their kernels: each tests a part.
            part = slice(None) if name in whole else slice(place % 9, None, 9)
            for (how, transformed), value in list(every_one)[part]:
                attempt(f"{how} of {name}({arg}={shown(value)})", transformed, value)


def _call(function: Callable[..., Result], valid: dict[str, Any], arg: str, value: Any) -> Result:
    return function(**{**valid, arg: value})


def odd(shape: tuple[int, ...]) -> list[mx.array]:
    """Return arrays of other shapes than an operator requires, and of this one."""
    shapes = [shape, (), (0,), (0, *shape), (*shape, 0), (2, *shape), (1,) * 40]
    return [
        *(mx.full(other, 0.5) for other in shapes),
        *(mx.full((2, 2, *shape), 0.5)[::-1], mx.ones(shape, mx.int32), spread(*shape)),
    ]


def nested(function: Callable[..., Result]) -> dict[str, Callable[..., Any]]:
    """Return transforms of a function of one array."""

    def sums(value: mx.array) -> mx.array:
        result = function(value)
        parts = result if isinstance(result, (list, tuple)) else [result]
        return sum((part.astype(mx.float32).sum() for part in parts), mx.array(0.0))

    return {
        "grad": mx.grad(sums),
        "grad of grad": mx.grad(lambda v: mx.grad(sums)(v).sum()),
        "vmap": mx.vmap(function),
        "vmap of vmap over the last": mx.vmap(mx.vmap(function, -1), -1),
        "grad of vmap": mx.grad(lambda v: mx.vmap(sums)(v).sum()),
        "vmap of grad": mx.vmap(mx.grad(sums), 1),
        "jvp": lambda v: mx.jvp(sums, [v], [v]),
        "jvp with another shape": lambda v: mx.jvp(sums, [v], [mx.ones((7, 11))]),
        "vjp with another shape": lambda v: mx.vjp(sums, [v], [mx.ones((7, 11))]),
        "shapeless compile": mx.compile(function, shapeless=True),
    }


def patterns() -> None:
    """Test any bit pattern, integers and special values in each argument of elementwise ops."""
    random = np.random.default_rng(0)
    few = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.0, -2.0, -3.0, 1e-40, 1e30, 171.5]

    def numbers(dtype: mx.Dtype) -> mx.array:
        bits = random.integers(0, 256, 2000 * dtype.size, np.uint8)
        whole = random.integers(-40, 400, 500) / random.choice([1, 2, 10], 500)
        values = mx.array(np.concatenate([whole, random.choice(few, 500)])).astype(dtype)
        mixed = mx.array(random.permutation(3000))
        return mx.concatenate([mx.array(bits).view(dtype), values])[mixed]

    for (name, function, kinds, valid), dtype in itertools.product(operators(), FLOATS):
        if name not in VALID:
            given = {arg: numbers(dtype) for arg, kind in kinds.items() if kind.endswith("array")}
            attempt(f"{name} of any bits, {dtype}", function, **{**valid, **given})
            for n in (0, 1, 2, 3, 100, MOST) if kinds.get("n") == "int" else ():
                attempt(f"{name} of any bits, n={n}", function, **given, n=n)


def memory() -> None:
    """Test sizes that exceed all memory, or that overflow 64 bits."""
    huge = [
        spread(MOST, MOST),
        spread(2**30, 2**30, 16),
        spread(MOST, MOST, MOST, MOST),
        spread(641, 6700417, 65537, 65535),
    ]
    for name, function, kinds, _ in operators():
        if name not in VALID and name != "softcap":  # softcap is composed of MLX's ops only
            given: dict[str, Any] = {
                arg: 1 if kind == "int" else 0.5 for arg, kind in kinds.items()
            }
            large = next(arg for arg, kind in kinds.items() if kind == "array")
            for value in huge:
                result = attempt(f"{name}({value.shape})", function, **{**given, large: value})
                assert result is None, name
    images = spread(1, MOST, MOST, 1)
    wide = spread(3, MOST, MOST)
    ids = mx.array([0, 1, 2])
    few: dict[str, Callable[[], Result]] = {
        "order": lambda: mlxops.polygamma(MOST, mx.array([0.5, -0.5, 30.0, np.inf])),
        "order of gradient": lambda: mx.grad(mlxops.polygamma, 1)(MOST, mx.array(2.5)),
        "segments": lambda: mlxops.segment_sum(mx.ones((3, 100_000)), ids, MOST),
        "rows": lambda: mlxops.segment_sum(wide, ids, 2),
        "no columns": lambda: mlxops.segment_sum(mx.ones((3, 0)), ids, MOST),
        "image": lambda: mlxops.grid_sample(images, mx.zeros((1, 2, 2, 2))),
        "points": lambda: mlxops.grid_sample(mx.ones((1, 2, 2, 1)), spread(1, MOST, MOST, 2)),
        "channels": lambda: mlxops.grid_sample(spread(0, 2, 2, MOST), spread(0, MOST, MOST, 2)),
        "no channels": lambda: mlxops.grid_sample(spread(MOST, 1, 1, 0), spread(MOST, 0, 1, 2)),
        "norm": lambda: mlxops.rms_norm_residual(wide, wide),
        "no norm": lambda: mlxops.rms_norm_residual(spread(2**30, 0), spread(2**30, 0)),
        "blocks": lambda: mlxops.block_diag([spread(MOST, 0), spread(0, MOST)]),
        "too many blocks": lambda: mlxops.block_diag([spread(2**30, 0)] * 4 + [mx.ones((2, 5))]),
    }
    for what, call in few.items():
        attempt(what, call)
    print("after that MLX computes on", flush=True)
    assert mlxops.lgamma(mx.full((300, 1000), 3.0)).sum().item() > 0


def limits() -> None:
    """Test allocations that the system rejects."""
    resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))
    terabyte = spread(2**20, 2**18)
    for call in (
        lambda: mlxops.swiglu(terabyte, 0.5),
        lambda: mlxops.rms_norm_residual(terabyte, terabyte),
        lambda: mlxops.segment_sum(mx.ones((3, 2**18)), mx.array([0, 1, 2]), 2**20),
    ):
        assert attempt("a terabyte", call) is None


def every(stream: Any) -> list[Result]:
    """Return valid results of all operators on a stream, some of them shared between threads."""
    large = mx.linspace(0.1, 0.9, 100_003, stream=stream)
    results = [function(**valid, stream=stream) for _, function, _, valid in operators()]
    results += [f(large, stream=stream) for f in (mlxops.lgamma, mlxops.digamma, mlxops.sincos)]
    mx.eval(results)
    return results


def chain(a: Any, b: Any) -> bool:
    """Return true if results that pass between streams and are dropped early are right."""
    x = mx.arange(12, dtype=mx.float32, stream=a).reshape(3, 4, stream=a)
    for _ in range(100):
        y = mlxops.examples.add(x, x, stream=a)
        z, w = mlxops.examples.add(y, x, stream=b), mlxops.examples.add(y, y, stream=a)
        mx.async_eval(w, z)
        del y  # w or another array may reuse its buffer as soon as z exists
        x = mlxops.examples.axpby(w, z, 1.0, -1.0, stream=b)  # 4x - 3x
    return bool(mx.array_equal(x.reshape(12), mx.arange(12)))


def threads() -> None:
    """Run all operators on several threads at once, with streams of each kind."""
    wanted = every(mx.cpu)
    right = []

    def work(i: int) -> None:
        own = (mx.new_stream(mx.cpu), mx.new_thread_local_stream(mx.cpu), None, mx.cpu)[i % 4]
        with mx.stream(own if i % 4 < 2 else mx.new_stream(mx.cpu)):
            right.append(all(map(same, every(own), wanted)))
            right.append(chain(mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert right == [True] * 16, right


def forks() -> None:
    """A forked child computes on its own stream, wherever MLX itself can."""
    os.environ["MLXGEN_NUM_THREADS"] = "8"  # read at the first start of threads
    x = mx.linspace(0.1, 0.9, 400_003)
    mx.eval(mlxops.digamma(x))

    def ends_well(call: Callable[[], Result]) -> bool:
        child = os.fork()
        if child == 0:
            mx.eval(call())
            os._exit(0)
        for _ in range(500):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status == 0
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False

    for i in range(40):
        running = mlxops.digamma(x)
        (mx.eval if i % 2 else mx.async_eval)(running)
        if not ends_well(lambda: mlxops.lgamma(x, stream=mx.new_stream(mx.cpu))):
            assert not ends_well(lambda: mx.exp(x, stream=mx.new_stream(mx.cpu))), i
        mx.eval(running)


def interrupt() -> None:
    """Press Ctrl-C while an operator runs."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let background jobs ignore it
    x = mx.full((4_000_000,), 0.5)
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    try:
        while time.monotonic() - started < 30:
            mx.eval(mlxops.special.gammainc(x, 0.7))
    except KeyboardInterrupt:
        assert abs(mlxops.lgamma(mx.array(3.0)).item() - np.log(2)) < 1e-6
        return
    raise AssertionError("not interrupted")


def leave() -> None:
    """Exit the interpreter while operators run."""
    streams = [mx.new_stream(mx.cpu) for _ in range(3)]
    mx.async_eval([mlxops.lgamma(mx.ones((20_000_000,)), stream=s) for s in streams])


def large() -> None:
    """Test more than 2^31 elements and 2^31 bytes; the last ones differ from the others."""
    rows, width = 46_400, 46_400  # their product is just above 2^31
    last = mx.arange(width) == width - 1
    print("add", flush=True)
    out = mlxops.examples.add(
        mx.broadcast_to(last.astype(mx.uint8), (rows, width)), mx.array(3, mx.uint8)
    )
    assert out[-1, -2:].tolist() == [3, 4]
    print("block_diag", flush=True)
    column = mx.broadcast_to(mx.array(7, mx.uint8), (rows, 1))
    row = mx.broadcast_to(mx.array(8, mx.uint8), (1, width))
    out = mlxops.block_diag([column, row])
    assert out.shape == (rows + 1, width + 1)
    assert out[-2:, :2].tolist() == [[7, 0], [0, 8]]
    assert out[-1, -2:].tolist() == [8, 8]


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    globals()[sys.argv[1]]()
