"""MLX's own Metal kernels on the CPU: a proof on code that was not written for the emulation."""

import numpy as np
import pytest

from mlxgen.emulator import SCHEDULES, EmulationError

KERNELS = "mlx/backend/metal/kernels"
SOURCE = f"""
#include <metal_stdlib>
#include <metal_simdgroup>
#include <metal_atomic>
#include "{KERNELS}/defines.h"
#include "{KERNELS}/utils.h"
"""


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return request.param


def source(headers, *instances):
    """Source with some of MLX's headers and instantiations (host name, kernel and arguments)."""
    includes = "".join(f'#include "{KERNELS}/{header}.h"\n' for header in headers)
    lines = "".join(f'instantiate_kernel("{name}", {rest})\n' for name, rest in instances)
    return SOURCE + includes + lines


def softmax(x):
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


SOFTMAX = source(
    ["softmax"], ("single", "softmax_single_row, float"), ("looped", "softmax_looped, float")
)


@pytest.mark.parametrize("width", (1, 31, 32, 33, 127, 1024, 1025, 4096))
@pytest.mark.parametrize("spread", (1, 30))
def test_softmax(load, rng, schedule, width, spread):
    library = load(text=SOFTMAX)
    x = (spread * rng.normal(size=(3, width))).astype(np.float32)
    threads = ((width + 3) // 4 + 31) // 32 * 32
    for kernel, size in (("single", threads), ("looped", 1024)):
        out = np.empty_like(x)
        library.run(
            kernel,
            [x, out, np.int32(width)],
            grid=(3,),
            by_threadgroups=True,
            threadgroup=(size,),
            outputs=[1],
            schedule=schedule,
            seed=width,
        )
        np.testing.assert_allclose(out, softmax(x), rtol=1e-5, atol=1e-7)


def barriers(text):
    """The text without one of its barriers, for each of them."""
    call = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    start = text.find(call)
    while start >= 0:
        yield text[:start] + text[start + len(call) :]
        start = text.find(call, start + 1)


def test_each_barrier_of_softmax_is_needed(load, rng):
    """Removing one must show in one of the schedules."""
    from metal.conftest import mlx_include

    header = (mlx_include() / f"{KERNELS}/softmax.h").read_text()
    begin = header.index("softmax_single_row")
    stop = header.index("template", begin)
    # softmax hides a wrong maximum, unless exp overflows with it
    x = (300 * rng.normal(size=(2, 1000))).astype(np.float32)
    mutants = list(barriers(header[:stop]))
    assert len(mutants) == 5
    for n, mutant in enumerate(mutants):
        instance = '\ninstantiate_kernel("single", softmax_single_row, float)\n'
        library = load(text=SOURCE + mutant + instance)
        caught = False
        for k in range(12):
            out = np.empty_like(x)
            try:
                library.run(
                    "single",
                    [x, out, np.int32(1000)],
                    grid=(2,),
                    by_threadgroups=True,
                    threadgroup=(256,),
                    outputs=[1],
                    schedule=SCHEDULES[min(k + 1, 3)],
                    seed=k,
                )
            except EmulationError:
                caught = True
            if not np.allclose(out, softmax(x), rtol=1e-5, atol=1e-7):
                caught = True
        assert caught, f"barrier {n} was removed, and nothing shows it"


@pytest.mark.parametrize("width", (1, 33, 1000, 4096))
def test_logsumexp(load, rng, schedule, width):
    library = load(text=source(["logsumexp"], ("block", "logsumexp, float")))
    x = (20 * rng.normal(size=(3, width))).astype(np.float32)
    out = np.empty(3, np.float32)
    library.run(
        "block",
        [x, out, np.int32(width)],
        grid=(3,),
        by_threadgroups=True,
        threadgroup=(((width + 3) // 4 + 31) // 32 * 32,),
        outputs=[1],
        schedule=schedule,
    )
    expected = np.logaddexp.reduce(x.astype(np.float64), -1)
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", (1, 32, 255, 1025))
@pytest.mark.parametrize(
    "op, apply", [("Add", np.add), ("Multiply", np.multiply), ("Maximum", np.maximum)]
)
def test_binary(load, rng, op, apply, count):
    library = load(
        text=source(
            ["binary_ops", "binary"],
            ("float32", f"binary_vv, float, float, {op}"),
            ("float16", f"binary_vv, half, half, {op}"),
            ("int32", f"binary_vv, int, int, {op}"),
        )
    )
    for name in library.kernels:
        a, b = (100 * rng.normal(size=(2, count))).astype(name)
        out = np.empty_like(a)
        per_thread = 8 // a.itemsize
        library.run(
            name,
            [a, b, out, np.uint32(count)],
            grid=((count + per_thread - 1) // per_thread,),
            threadgroup=(64,),
            outputs=[2],
        )
        np.testing.assert_array_equal(out, apply(a, b))


@pytest.mark.parametrize("count", (1, 31, 32, 1000, 4097))
@pytest.mark.parametrize("op", ("Sum", "Min", "Max", "Prod"))
def test_reduce(load, rng, schedule, op, count):
    library = load(
        text=source(
            ["atomic", "reduction/ops", "reduce"], ("all", f"all_reduce, float, float, {op}<float>")
        )
    )
    x = rng.uniform(0.99, 1.01, count).astype(np.float32)
    out = np.empty(1, np.float32)
    library.run(
        "all",
        [x, out, np.uint64(count), np.uint64(count)],
        grid=(256,),
        threadgroup=(256,),
        outputs=[1],
        schedule=schedule,
    )
    reduce = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Prod": np.prod}[op]
    np.testing.assert_allclose(out[0], reduce(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("count", (1, 32, 129, 1000, 5000))
@pytest.mark.parametrize("inclusive", (True, False))
def test_scan(load, rng, schedule, count, inclusive):
    flags = "true" if inclusive else "false"
    library = load(
        text=source(
            ["scan"], ("scan", f"contiguous_scan, float, float, CumSum<float>, 4, {flags}, false")
        ).replace(
            f'#include "{KERNELS}/scan.h"',
            f'#include "{KERNELS}/binary_ops.h"\n#include "{KERNELS}/scan.h"',
        )
    )
    x = rng.normal(size=(2, count)).astype(np.float32)
    out = np.empty_like(x)
    threads = min(1024, (count + 127) // 128 * 32)
    library.run(
        "scan",
        [x, out, np.uint64(count)],
        grid=(threads, 2),
        threadgroup=(threads,),
        outputs=[1],
        schedule=schedule,
    )
    expected = np.cumsum(x.astype(np.float64), -1)
    expected = expected if inclusive else expected - x
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", (1, 31, 100, 512))
def test_sort(load, rng, schedule, count):
    library = load(
        text=source(
            ["sort"],
            ("sort", "block_sort, float, float, false, 128, 4"),
            ("argsort", "block_sort, float, uint, true, 128, 4"),
        )
    )
    x = rng.normal(size=(3, count)).astype(np.float32)
    for kernel, expected in (("sort", np.sort(x)), ("argsort", np.argsort(x))):
        out = np.empty(x.shape, np.float32 if kernel == "sort" else np.uint32)
        strides = [np.int32(n) for n in (count, 1, 1, count, count)]
        library.run(
            kernel,
            [x, out, *strides],
            grid=(1, 3),
            by_threadgroups=True,
            threadgroup=(128,),
            outputs=[1],
            schedule=schedule,
        )
        np.testing.assert_array_equal(out, expected)
