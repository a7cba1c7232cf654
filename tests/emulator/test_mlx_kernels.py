"""MLX's own Metal kernels on the CPU, as a test with code not written for the emulation."""

import numpy as np
import pytest

from mlxgen.emulator import SCHEDULES, EmulationError

pytestmark = pytest.mark.extended

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
    """Return source with MLX headers and instantiations (host name, kernel and arguments)."""
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
    """Yield the text without one of its barriers, for each barrier."""
    call = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    start = text.find(call)
    while start >= 0:
        yield text[:start] + text[start + len(call) :]
        start = text.find(call, start + 1)


def test_each_barrier_of_softmax_is_needed(load, rng):
    """Each removed barrier must be found under at least one schedule."""
    from emulator.conftest import mlx_include

    header = (mlx_include() / f"{KERNELS}/softmax.h").read_text()
    begin = header.index("softmax_single_row")
    stop = header.index("template", begin)
    # softmax hides a wrong maximum, unless exp overflows because of it
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
    "op, apply, tolerance", [("Negative", np.negative, 0), ("Exp", np.exp, 1), ("Tanh", np.tanh, 1)]
)
def test_unary(load, rng, op, apply, tolerance, count):
    types = (("float32", "float"), ("float16", "half"))
    instances = [(name, f"unary_v, {type_}, {type_}, {op}") for name, type_ in types]
    library = load(text=source(["unary_ops", "unary"], *instances))
    for name in library.kernels:
        x = rng.normal(size=count).astype(name)
        out = np.empty_like(x)
        per_thread = 8 // x.itemsize
        library.run(
            name,
            [x, out, np.uint32(count)],
            grid=((count + per_thread - 1) // per_thread,),
            threadgroup=(64,),
            outputs=[1],
        )
        spacing = 2 * np.finfo(name).eps * tolerance
        np.testing.assert_allclose(out, apply(x.astype(np.float64)).astype(name), spacing)


@pytest.mark.parametrize("count", (1, 33, 1025))
def test_ternary(load, rng, count):
    library = load(
        text=source(
            ["ternary_ops", "ternary"], ("select", "ternary_v, float, Select, false, false")
        )
    )
    condition = rng.integers(0, 2, count).astype(bool)
    a, b = rng.normal(size=(2, count)).astype(np.float32)
    out = np.empty_like(a)
    library.run(
        "select",
        [condition, a, b, out, np.uint32(count)],
        grid=((count + 1) // 2,),
        threadgroup=(64,),
        outputs=[3],
    )
    np.testing.assert_array_equal(out, np.where(condition, a, b))


def test_copy(load, rng):
    library = load(
        text=source(
            ["copy"],
            ("vector", "copy_v, float, half"),
            ("scalar", "copy_s, float, int"),
            ("general", "copy_g_nd2, float, float, int"),
        )
    )
    x = (10 * rng.normal(size=(37, 33))).astype(np.float32)
    half, whole = np.empty(x.shape, np.float16), np.empty(x.shape, np.int32)
    size = np.uint32(x.size)
    for kernel, out, per_thread in (("vector", half, 4), ("scalar", whole, 2)):
        grid = ((x.size + per_thread - 1) // per_thread,)
        library.run(kernel, [x, out, size], grid=grid, threadgroup=(128,), outputs=[1])
    np.testing.assert_array_equal(half, x.astype(np.float16))
    np.testing.assert_array_equal(whole, np.full(x.shape, int(x[0, 0])))
    transposed = np.empty((33, 37), np.float32)
    strides = np.array([1, 33], np.int64)
    library.run(
        "general",
        [x, transposed, None, strides],
        grid=(37, 33),
        threadgroup=(8, 8),
        outputs=[1],
    )
    np.testing.assert_array_equal(transposed, x.T)


def run_gemv(library, kernel, matrix, vector, rows, threadgroup, schedule):
    """Return matrix times vector, in threadgroups for this number of rows."""
    outer, inner = matrix.shape
    out = np.empty(outer, matrix.dtype)
    nothing, one = np.zeros(1, np.int64), np.float32(1)
    sizes = [np.int32(n) for n in (inner, outer, inner)]
    # This kernel also declares bias, factors and strides, which only other kernels use.
    batch = [np.int32(1), np.ones(1, np.int32), nothing, nothing, nothing, np.int32(1)]
    library.run(
        kernel,
        [matrix, vector, out.copy(), out, *sizes, one, one, *batch],
        grid=((outer + rows - 1) // rows,),
        by_threadgroups=True,
        threadgroup=threadgroup,
        outputs=[3],
        schedule=schedule,
    )
    return out


GEMV = source(
    ["gemv"],
    ("float32", "gemv, float, 4, 1, 1, 32, 4, 4, 0, 0"),
    ("float16", "gemv, half, 4, 1, 1, 32, 4, 4, 0, 0"),
    ("wide", "gemv, float, 1, 8, 1, 32, 4, 4, 0, 0"),
)


@pytest.mark.parametrize("inner, outer", ((1, 4), (64, 8), (129, 33), (1000, 65)))
@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_gemv(load, rng, schedule, dtype, inner, outer):
    matrix = rng.normal(size=(outer, inner)).astype(dtype)
    vector = rng.normal(size=inner).astype(dtype)
    out = run_gemv(load(text=GEMV), dtype, matrix, vector, 16, (32, 1, 4), schedule)
    a, b = matrix.astype(np.float64), vector.astype(np.float64)
    assert (np.abs(out - a @ b) <= 4 * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b))).all()


def test_a_barrier_in_a_condition(load, rng):
    """gemv with several simdgroups per row has a barrier that only their first lanes reach."""
    matrix, vector = rng.normal(size=(8, 600)), rng.normal(size=600)
    with pytest.raises(EmulationError, match=r"divergence: .* threadgroup_barrier at .*gemv\.h"):
        run_gemv(
            load(text=GEMV),
            "wide",
            matrix.astype(np.float32),
            vector.astype(np.float32),
            4,
            (32, 8, 1),
            "natural",
        )


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


# Kernels that MLX's wheels lack


def layer_norm(x, weight, bias, eps=1e-5):
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps) * weight + bias


def run_layer_norm(library, kernel, arrays, schedule, threads):
    """Run it on x, weight and bias as MLX does; return the result."""
    out = np.empty_like(arrays[0])
    rows, width = out.shape
    constants = [np.float32(1e-5), np.uint32(width), np.uint32(1), np.uint32(1)]
    library.run(
        kernel,
        [*arrays, out, *constants],
        grid=(rows * threads,),
        threadgroup=(threads,),
        outputs=[3],
        schedule=schedule,
    )
    return out


def norm_inputs(rng, width):
    """Return rows of x far from 0, weight and bias."""
    x = 3 * rng.normal(size=(3, width)) + [[0], [10], [-1]]
    return [a.astype(np.float32) for a in (x, *rng.normal(size=(2, width)))]


# In threads beyond the end of a row, `n` is negative, and they write before `thread_x`.
LAYER_NORM_MISTAKE = "for (int i = n; i < N_READS; i++)"


@pytest.mark.parametrize("width", (1, 31, 33, 255, 256, 257, 1000, 1024, 4099))
def test_layer_norm(load, mlx_source, rng, schedule, width):
    text = mlx_source("layer_norm.metal")
    assert text.count(LAYER_NORM_MISTAKE) == 2
    arrays = norm_inputs(rng, width)
    threads = (width + 255) // 256 * 32  # 8 elements each
    mended = load(
        text=text.replace(LAYER_NORM_MISTAKE, LAYER_NORM_MISTAKE.replace("n;", "max(n, 0);"))
    )
    for kernel, size in (("layer_normfloat32", threads), ("layer_norm_loopedfloat32", 256)):
        out = run_layer_norm(mended, kernel, arrays, schedule, size)
        np.testing.assert_allclose(out, layer_norm(*arrays), 1e-5, 2e-5)
    original = load(text=text)
    if (width + 7) // 8 == threads:
        out = run_layer_norm(original, "layer_normfloat32", arrays, schedule, threads)
        np.testing.assert_allclose(out, layer_norm(*arrays), 1e-5, 2e-5)
    else:
        with pytest.raises(EmulationError, match=r"index -\d+ is out of bounds at test.metal"):
            run_layer_norm(original, "layer_normfloat32", arrays, schedule, threads)


@pytest.mark.parametrize("width", (1, 31, 33, 127, 128, 129, 1000, 1024, 4096))
def test_rms_norm(load, mlx_source, rng, schedule, width):
    library = load(text=mlx_source("rms_norm.metal"))
    x, weight, _ = norm_inputs(rng, width)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-5) * weight
    threads = (width + 127) // 128 * 32  # 4 elements each
    for kernel, size in (("rmsfloat32", threads), ("rms_loopedfloat32", 256)):
        out = np.empty_like(x)
        library.run(
            kernel,
            [x, weight, out, np.float32(1e-5), np.uint32(width), np.uint32(1)],
            grid=(3 * size,),
            threadgroup=(size,),
            outputs=[2],
            schedule=schedule,
        )
        np.testing.assert_allclose(out, wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("width", (1, 31, 33, 1000, 5000))
def test_arg_reduce(load, mlx_source, rng, schedule, width):
    library = load(text=mlx_source("arg_reduce.metal"))
    x = rng.normal(size=(3, width)).astype(np.float32)
    threads = min(256, (width + 127) // 128 * 32)
    for kernel, find in (("argmin_float32", np.argmin), ("argmax_float32", np.argmax)):
        out = np.empty(3, np.uint32)
        shape = [np.array([3], np.int32), np.array([width], np.int64), np.array([1], np.int64)]
        library.run(
            kernel,
            [x, out, *shape, np.uint64(1), np.int64(1), np.uint64(width)],
            grid=(threads, 3),
            threadgroup=(threads,),
            outputs=[1],
            schedule=schedule,
        )
        np.testing.assert_array_equal(out, find(x, -1))


@pytest.mark.parametrize("traditional", (True, False))
def test_rope(load, mlx_source, rng, traditional):
    library = load(text=mlx_source("rope.metal"))
    library.set_constants({"forward": True, "traditional": traditional, "hs_transpose": False})
    heads, steps, width, offset = 5, 7, 64, 3
    x = rng.normal(size=(1, heads, steps, width)).astype(np.float32)
    out = np.empty_like(x)
    strides = np.array([steps * width, width, 1], np.int64)
    constants = [np.float32(1), strides, strides, np.int64(0), np.int32(heads), None, None]
    library.run(
        "rope_float32",
        [x, out, np.array([offset], np.int32), *constants, np.float32(np.log2(10000))],
        grid=(width // 2, steps, (heads + 3) // 4),
        threadgroup=(32, 8),
        outputs=[1],
    )
    frequencies = 10000.0 ** (-np.arange(width // 2) / (width // 2))
    angle = np.outer(np.arange(steps) + offset, frequencies)
    rotation = np.exp(1j * angle)
    pairs = (
        x.reshape(*x.shape[:-1], -1, 2) if traditional else np.stack(np.split(x, 2, -1), -1)
    ).astype(np.float64)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * rotation
    got = out.reshape(pairs.shape) if traditional else np.stack(np.split(out, 2, -1), -1)
    np.testing.assert_allclose(got, np.stack([turned.real, turned.imag], -1), 1e-4, 1e-5)
