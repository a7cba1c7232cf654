"""Features that the emulation runs as Metal does, and features that it rejects."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from mlxgen.emulator import SCHEDULES, EmulationError, check_rules
from mlxgen.emulator.library import Bfloat16

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def run(load, body, x, size=None, **options):
    """Run `body`, which sets y[i] from x and i, with one threadgroup of all threads."""
    parameters = options.pop("parameters", "")
    source = f"""{HEAD}
    [[kernel]] void f(device const float* x, device float* y, {parameters}
        uint i [[thread_index_in_threadgroup]]) {{ {body} }}"""
    library = load(text=source)
    count = size or len(x)
    y = np.empty(len(x), np.float32)
    library.run("f", [x, y], grid=(count,), threadgroup=(count,), outputs=[1], **options)
    return y


@pytest.fixture
def x(rng):
    return rng.normal(size=64).astype(np.float32)


def test_literals_are_floats(load, x):
    y = run(load, "y[i] = x[i] * 0.1 + 1e-3;", x)
    np.testing.assert_array_equal(y, x * np.float32(0.1) + np.float32(1e-3))


def test_vectors_and_swizzles(load, x):
    body = """
    float4 v = float4(x[i], 1, float2(2, 3));
    v.xy = v.yx;
    uint3 n = uint3(i);
    y[i] = dot(v.wzyx, float4(1, 2, 3, 4)) + float((n.xy + n.zz).x) + fabs(v).z;
    """
    n = np.arange(64, dtype=np.float32)
    expected = 3 + 2 * 2 + 3 * x + 4 * 1 + 2 * n + 2
    np.testing.assert_allclose(run(load, body, x), expected, rtol=1e-6)


def test_two_threadgroup_variables_in_a_row(load, x):
    body = """
    threadgroup float a[64]; threadgroup float b[64], c[2][32];
    a[i] = x[i]; b[i] = 2 * x[i]; c[i / 32][i % 32] = 3 * x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = a[63 - i] + b[63 - i] + c[1 - i / 32][31 - i % 32];
    """
    for schedule in ("natural", "ascending", "descending", "seeded"):
        y = run(load, body, x, schedule=schedule)
        np.testing.assert_allclose(y, 6 * x[::-1], rtol=1e-6)


def test_a_missing_simdgroup_barrier_shows(load, x):
    """The orders of threads reveal it; `test_races` tests barriers of threadgroups."""
    x = x[:32].copy()
    body = "threadgroup float a[32]; a[i] = x[i]; y[i] = a[31 - i];"
    expected = x[::-1]
    seen = [
        not np.array_equal(run(load, body, x, schedule=schedule), expected)
        for schedule in ("ascending", "descending")
    ]
    assert all(seen)


def test_simdgroup_operations(load, x):
    body = """y[i] = simd_sum(x[i]) + simd_max(x[i]) + simd_shuffle_down(x[i], 1)
        + simd_shuffle_xor(x[i], 5) + simd_prefix_exclusive_sum(x[i]) + simd_broadcast(x[i], 3);"""
    groups = x.astype(np.float64).reshape(2, 32)
    lanes = np.arange(32)
    expected = (
        groups.sum(1, keepdims=True)
        + groups.max(1, keepdims=True)
        + groups[:, np.minimum(lanes + 1, 31)]
        + groups[:, lanes ^ 5]
        + (groups.cumsum(1) - groups)
        + groups[:, 3:4]
    )
    y = run(load, body, x, schedule="seeded", seed=5)
    np.testing.assert_allclose(y, expected.ravel(), rtol=1e-5, atol=1e-5)


def test_atomics(load, x):
    source = f"""{HEAD}
    [[kernel]] void f(device const float* x, device atomic<float>* sum, device atomic_uint* n,
        uint i [[thread_position_in_grid]]) {{
      atomic_fetch_add_explicit(sum, x[i], memory_order_relaxed);
      atomic_fetch_max_explicit(n, i, memory_order_relaxed);
    }}"""
    total, most = np.zeros(1, np.float32), np.zeros(1, np.uint32)
    arguments = [x, total, most]
    load(text=source).run("f", arguments, grid=(64,), threadgroup=(7,), outputs=[1, 2], fill=False)
    assert most[0] == 63
    np.testing.assert_allclose(total[0], x.sum(), rtol=1e-5)


def test_half_rounds_at_every_operation(load, rng):
    source = f"""{HEAD}
    [[kernel]] void f(device const half* x, device half* y, uint i [[thread_position_in_grid]]) {{
      y[i] = x[i] * x[i] * x[i] + x[i] - x[i] * x[i];
    }}"""
    x = rng.normal(size=1000).astype(np.float16)
    y = np.empty_like(x)
    load(text=source).run("f", [x, y], grid=(1000,), threadgroup=(256,), outputs=[1])
    np.testing.assert_array_equal(y, x * x * x + x - x * x)


def rounded(x):
    """Round float32 to bfloat16 bits, to nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_conversions_of_bfloat(load, x):
    body = """
    bfloat b = bfloat(x[i]), c = i;
    uint n = c; ushort m; m = c; bool set = b;
    int sum = n; sum += c; half h = 1; h -= c;
    c = clamp(c, bfloat(3), bfloat(9)) + median3(c, c, bfloat(0));
    ++c; c--; --c;
    y[i] = n + m + sum + float(i ? c : 0) + h + (set ? 0.5f : 0.0f);"""
    n = np.arange(64, dtype=np.float32)
    c = np.where(n > 0, np.clip(n, 3, 9) + n - 1, 0)
    np.testing.assert_array_equal(run(load, body, x), 4 * n + c + 1 - n + 0.5)
    with pytest.raises(EmulationError, match=r"float.* to .*bfloat"):
        run(load, "bfloat b = 1.5f; y[i] = b;", x)


def test_bfloat_rounds_at_every_operation(load, rng):
    source = f"""{HEAD}
    [[kernel]] void f(device const bfloat* x, device bfloat* y,
        uint i [[thread_position_in_grid]]) {{ y[i] = x[i] * x[i] + x[i] / bfloat(3.0f); }}"""
    bits = rounded(rng.normal(size=1000))
    x = widened(bits)
    out = np.empty_like(bits)
    library = load(text=source)
    arguments = [Bfloat16(bits), Bfloat16(out)]
    library.run("f", arguments, grid=(1000,), threadgroup=(256,), outputs=[1])
    square = widened(rounded(x * x))
    third = widened(rounded(x / np.float32(3)))
    np.testing.assert_array_equal(widened(out), widened(rounded(square + third)))


def test_function_constants(load, x):
    source = f"""{HEAD}
    constant bool twice [[function_constant(3)]];
    constant int shift [[function_constant(4)]];
    constant bool once = !twice;
    constant float half_of_it = shift / 2.0f;
    #define MORE 5
    constant int more [[function_constant(MORE + 2)]];
    constant int added = is_function_constant_defined(more) ? more : 100;
    [[kernel]] void f(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {{
      y[i] = (once ? x[i] : 2 * x[i]) + 2 * half_of_it + added;
    }}"""
    library = load(text=source)
    y = np.empty_like(x)
    library.set_constants({3: True, "shift": -1})
    library.run("f", [x, y], grid=(64,), threadgroup=(64,), outputs=[1])
    np.testing.assert_allclose(y, 2 * x + 99, rtol=1e-6)
    library.set_constants({7: 10})
    library.run("f", [x, y], grid=(64,), threadgroup=(64,), outputs=[1])
    np.testing.assert_allclose(y, 2 * x + 9, rtol=1e-6)


CONSTANTS = """
    y[0] = INT_MAX == 2147483647 && INT_MIN < 0 && UINT_MAX > INT_MAX && LONG_MAX > UINT_MAX;
    y[1] = HUGE_VALF == INFINITY && FLT_MAX < INFINITY && MAXFLOAT == FLT_MAX && FLT_DIG == 6;
    y[2] = M_PI_H == half(M_PI_F) && HALF_MAX == half(65504) && HUGE_VALH > HALF_MAX;
    y[3] = SHRT_MIN == -32768 && USHRT_MAX == 65535 && CHAR_BIT == 8 && ULONG_MAX == ~0ul;
    metal::float4 a = metal::float4(1, 2, metal::half2(3, 4));
    metal::uint2 b = metal::uint2(5); metal::packed_float3 c = a.xyz; metal::float2x2 m(1);
    y[4] = metal::dot(a, a) == 30 && b.y == 5 && metal::size_t(c[2]) == 3 && m[1][1] == 1;
    volatile float4 v = a; volatile bfloat w = bfloat(2);
    y[5] = v.y + w == 4;
"""


def test_constants_and_qualified_names(load):
    y = run(load, CONSTANTS, np.zeros(6, np.float32), 1)
    np.testing.assert_array_equal(y, 1)


def test_smaller_threadgroups_at_the_edge(load):
    source = f"""{HEAD}
    [[kernel]] void f(device uint* y, uint i [[thread_position_in_grid]],
        uint n [[threads_per_threadgroup]], uint s [[simdgroups_per_threadgroup]]) {{
      y[i] = 100 * n + s;
    }}"""
    y = np.zeros(70, np.uint32)
    load(text=source).run("f", [y], grid=(70,), threadgroup=(64,), outputs=[0])
    np.testing.assert_array_equal(y, [6402] * 64 + [601] * 6)


def test_overloads_by_address_space(load, x):
    source = f"""{HEAD}
    template <typename T> T first(device const T* p) {{ return p[0]; }}
    template <typename T> T first(threadgroup const T* p) {{ return p[0]; }}
    [[kernel]] void f(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {{
      threadgroup float a[1];
      if (i == 0) a[0] = 2;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      y[i] = first(x) + first(&a[0]);
    }}"""
    y = np.empty_like(x)
    load(text=source).run("f", [x, y], grid=(64,), threadgroup=(64,), outputs=[1])
    np.testing.assert_array_equal(y, np.full(64, x[0] + 2))


# ------------------------------------------------------------------------------ mistakes


# Memory is protected directly after a buffer, or directly before it.
@pytest.mark.parametrize(
    "index, byte, align_start",
    [
        ("i + 1", 256, False),
        ("i + 1000000", 4000000, False),
        ("i + 1000000", 4000000, True),
        ("int(i) - 1", -4, True),
        ("int(i) - 2000", -8000, False),
    ],
)
def test_access_outside_of_a_buffer(load, x, index, byte, align_start):
    with pytest.raises(EmulationError, match=rf"outside of buffer 0 \(x\) at byte {byte} of 256"):
        run(load, f"y[i] = x[{index}];", x, align_start=align_start)


def test_write_to_an_input(load, x):
    with pytest.raises(EmulationError, match=r"write to read-only buffer 0 \(x\)"):
        run(load, "const_cast<device float*>(x)[i] = 1; y[i] = 0;", x)


def test_index_outside_of_a_threadgroup_array(load, x):
    body = "threadgroup float a[32];\n a[i] = x[i];\n y[i] = 0;"
    with pytest.raises(EmulationError, match=r"index 32 is out of bounds at .*test.metal:6"):
        run(load, body, x)


def test_access_behind_the_threadgroup_memory(load, x):
    """The access is by a pointer, for which the compiler knows no bounds."""
    body = "threadgroup float a[32];\n threadgroup float* p = a; p[i] = x[i];\n y[i] = 0;"
    with pytest.raises(EmulationError, match=r"access beyond the threadgroup memory.*\(32, 0, 0\)"):
        run(load, body, x)


def test_threadgroup_memory_has_32_kib(load, x):
    body = "threadgroup float a[8193]; a[i] = x[i]; y[i] = a[i];"
    with pytest.raises(EmulationError, match="threadgroup memory for a: 4 bytes exceed"):
        run(load, body, x)


def test_threadgroup_memory_of_the_launch_counts(load, x):
    body = "threadgroup float a[4096]; a[i] = x[i]; y[i] = a[i] + sizeof(t[0]);"
    options = {"parameters": "threadgroup float* t [[threadgroup(0)]],"}
    run(load, body, x, threadgroup_memory={0: 16 * 1024}, **options)
    with pytest.raises(EmulationError, match="16 bytes exceed the limit of 32 KiB"):
        run(load, body, x, threadgroup_memory={0: 16 * 1024 + 16}, **options)


def test_threadgroup_memory_is_poisoned(load, x):
    y = run(load, "threadgroup float a[64]; y[i] = a[i];", x)
    assert np.isnan(y).all()


def test_the_initialiser_of_threadgroup_memory_does_not_count(load, x):
    y = run(load, "threadgroup float a[64] = {0}; y[i] = a[i];", x)
    assert np.isnan(y).all()


def test_elements_that_no_thread_writes(load, x):
    message = r"no thread writes 4 of the 64 elements of buffer 1 \(y\), first element 60"
    with pytest.raises(EmulationError, match=message):
        run(load, "if (i < 60) y[i] = x[i];", x)
    y = run(load, "y[i] = as_type<float>(0xFFFFFFFF);", x)  # the bytes of unwritten memory
    assert np.isnan(y).all()


def test_an_empty_buffer(load):
    with pytest.raises(EmulationError, match=r"access to buffer 1 \(y\), which is empty, at"):
        run(load, "y[i] = 1;", np.empty(0, np.float32), 4)


@pytest.mark.parametrize(
    "body, thread",
    [
        ("for (uint n = 0; x[0] == x[0]; ++n) { y[i] += n; }", r"\(\d+, 0, 0\)"),
        ("if (i == 7) { for (uint n = 0; x[0] == x[0]; ++n) { y[i] += n; } }", r"\(7, 0, 0\)"),
        ("while (x[0] == x[0]) { threadgroup_barrier(mem_flags::mem_none); }", r"\(\d+, 0, 0\)"),
        ("while (x[0] == x[0]) { y[i] += simd_sum(x[i]); }", r"\(\d+, 0, 0\)"),
    ],
)
def test_a_kernel_that_does_not_end(load, x, body, thread):
    message = rf"f: no end within 0.2 seconds .*, in thread {thread} of threadgroup \(0, 0, 0\)"
    for schedule in SCHEDULES:
        with pytest.raises(EmulationError, match=message):
            run(load, body, x, schedule=schedule, seconds=0.2)
    np.testing.assert_array_equal(run(load, "y[i] = x[i];", x), x)  # the next launch is unaffected


def test_the_time_limit_of_all_launches(load, x, monkeypatch):
    monkeypatch.setenv("MLXGEN_METAL_TIMEOUT", "0.1")
    with pytest.raises(EmulationError, match=r"no end within 0.1 seconds \(MLXGEN_METAL_TIMEOUT"):
        run(load, "while (x[0] == x[0]) { y[i] += 1; }", x)


def test_a_fault_of_the_caller_says_what_was_launched(load):
    """The fault ends the process as usual, but the message names the launch."""
    text = (
        f"{HEAD}[[kernel]] void copied(device const float* x, device float* y) {{ y[0] = x[0]; }}"
    )
    load(text=text)
    script = f"""
import ctypes, numpy
from mlxgen.emulator import load_metal
nowhere = numpy.ctypeslib.as_array((ctypes.c_float * 4).from_address(8))
y = numpy.zeros(4, numpy.float32)
library = load_metal("test.metal", text={text!r})
library.run("copied", [nowhere, y], grid=(1,), threadgroup=(1,), outputs=[1])
"""
    command = [sys.executable, "-X", "faulthandler", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV
    assert "fault outside of a kernel, while copied was launched" in done.stderr
    assert "Segmentation fault" in done.stderr and "in run" in done.stderr


@pytest.mark.parametrize(
    "body, message",
    [
        (
            "if (i < 32) threadgroup_barrier(mem_flags::mem_none); y[i] = 0;",
            "which 32 threads never reach",
        ),
        (
            "if (i < 7) { threadgroup_barrier(mem_flags::mem_none); }\n"
            "else { threadgroup_barrier(mem_flags::mem_none); } y[i] = 0;",
            r"waits for threadgroup_barrier at test.metal:5, but thread \(7, 0, 0\)",
        ),
        (
            "auto most = [](float v) {\nreturn simd_max(v); };\n"
            "if (i < 7) y[i] = simd_sum(x[i]); else y[i] = most(x[i]);",
            "of the same simdgroup waits for simd_max at test.metal:6",
        ),
    ],
)
def test_divergence(load, x, body, message):
    with pytest.raises(EmulationError, match=message):
        run(load, body, x)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_operations_of_active_lanes(load, x, schedule):
    """Lanes that wait at the next barrier are not active in an operation in a branch."""
    body = """
    uint lane = i % 32;
    float v = x[i];
    if (lane < 5) v = simd_sum(v) + simd_shuffle_up(v, 1);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane % 2) v = simd_max(v);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = simd_sum(v);"""
    found = run(load, body, x, schedule=schedule)
    for lanes, sums in zip(x.reshape(-1, 32), found.reshape(-1, 32), strict=True):
        v = lanes.copy()
        v[:5] = lanes[:5].sum() + lanes[[0, 0, 1, 2, 3]]
        v[1::2] = v[1::2].max()
        np.testing.assert_allclose(sums, v.sum(), rtol=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_operations_in_both_branches(load, x, schedule):
    """Each branch has its own active lanes, also on one line; all lanes meet after it."""
    body = """
    uint lane = i % 32;
    float v = x[i], w = 0;
    if (lane < 5) v = simd_sum(v) + simd_shuffle_up(v, 1);
    else v = simd_max(v);
    for (uint k = 0; k < lane; ++k) w += simd_max(float(k));
    v = lane % 2 ? simd_sum(v) : simd_min(v);
    y[i] = simd_sum(v) + w;"""
    found = run(load, body, x, schedule=schedule)
    for lanes, sums in zip(x.reshape(-1, 32), found.reshape(-1, 32), strict=True):
        v = lanes.copy()
        v[:5] = lanes[:5].sum() + lanes[[0, 0, 1, 2, 3]]
        v[5:] = lanes[5:].max()
        v = np.where(np.arange(32) % 2, v[1::2].sum(), v[::2].min())
        steps = [sum(range(lane)) for lane in range(32)]
        np.testing.assert_allclose(sums, v.sum() + steps, rtol=1e-5)


RACES = [
    # threads of one threadgroup, then threads of several
    (
        "y[i / 64] = x[i];",
        256,
        r"race: threads \(\d+, 0, 0\) and \(\d+, 0, 0\) of .* byte \d+ of buffer 1 \(y\), one",
    ),
    ("threadgroup float s[64]; s[j] = x[i]; y[i] = s[63 - j];", 64, r"race: .* byte \d+ of s, one"),
    ("y[i] = x[i]; y[i] += y[i ^ 32];", 64, r"race: .* byte \d+ of buffer 1 \(y\), one"),
    ("y[j] = x[i];", 128, "another threadgroup access .*, and not"),
    ("y[i] = x[i] + y[j];", 128, "another threadgroup access .*, and not"),
    # ordered accesses
    (
        "threadgroup float s[64]; s[j] = x[i]; threadgroup_barrier(mem_flags::mem_threadgroup);"
        "y[i] = s[63 - j];",
        256,
        None,
    ),
    ("y[i] = x[i]; threadgroup_barrier(mem_flags::mem_device); y[i ^ 32] += 1;", 64, None),
    (
        "threadgroup float s[32]; s[j % 32] = x[i]; simdgroup_barrier(mem_flags::mem_threadgroup);"
        "y[i] = s[31 - j % 32];",
        32,
        None,
    ),
    ("atomic_fetch_add_explicit(n, 1, memory_order_relaxed); y[i] = x[i];", 256, None),
    # writes of the same value
    ("y[0] = x[0]; y[i / 64 + 1] = x[1];", 256, None),
    ("y[0] = x[i];", 256, r"byte 0 of buffer 1"),
]


@pytest.mark.parametrize("body, count, message", RACES)
@pytest.mark.parametrize("schedule", ["natural", "descending", "seeded"])
def test_races(load, rng, body, count, message, schedule):
    """A race is found under every schedule; the natural one returns the expected values."""
    source = f"""{HEAD}
    [[kernel]] void f(device const float* x, device float* y, device atomic<int>* n,
        uint i [[thread_position_in_grid]], uint j [[thread_position_in_threadgroup]]) {{
        {body} }}"""
    library = load(text=source)
    x, counter = rng.normal(size=256).astype(np.float32), np.zeros(1, np.int32)

    def launch():
        library.run(
            "f",
            [x, np.zeros_like(x), counter],
            grid=(count,),
            threadgroup=(64,),
            outputs=[1, 2],
            fill=False,
            schedule=schedule,
        )

    for _ in range(2):  # the first launch does not affect the second
        if message is None:
            launch()
        else:
            with pytest.raises(EmulationError, match=message):
                launch()


@pytest.mark.parametrize("align_start", [False, True])
@pytest.mark.parametrize("index, byte", [("i + 1", 256), ("int(i) - 1", -4)])
def test_writes_beside_an_output(load, x, align_start, index, byte):
    """Writes on the side of the guard page, and on the other side, are found."""
    source = f"""{HEAD}
    [[kernel]] void f(device const float* x, device float* y,
        uint i [[thread_position_in_grid]]) {{ y[{index}] = as_type<float>(~0u); }}"""
    with pytest.raises(EmulationError, match=rf"outside of buffer 1 \(y\) at byte {byte} of 256"):
        load(text=source).run(
            "f",
            [x[:64].copy(), np.zeros(64, np.float32)],
            grid=(64,),
            threadgroup=(64,),
            outputs=[1],
            align_start=align_start,
        )


@pytest.mark.parametrize("schedule", ["natural", "descending", "seeded"])
def test_races_in_place(load, rng, schedule):
    """An output in its input's memory, as MLX allocates: each thread may use its own element."""
    source = f"""{HEAD}
    [[kernel]] void own(device const float* x, device float* y,
        uint i [[thread_position_in_grid]]) {{ y[i] = x[i] + 1; }}
    [[kernel]] void other(device const float* x, device float* y,
        uint i [[thread_position_in_grid]]) {{ y[i] = x[i ^ 32] + 1; }}
    [[kernel]] void beyond(device const float* x, device float* y,
        uint i [[thread_position_in_grid]]) {{ y[i] = x[i ^ 128] + 1; }}"""
    library = load(text=source)
    given = rng.normal(size=256).astype(np.float32)
    launch = {"grid": (256,), "threadgroup": (64,), "outputs": [1], "schedule": schedule}
    x = given.copy()
    library.run("own", [x, x], **launch)
    np.testing.assert_array_equal(x, given + 1)
    for kernel, message in (("other", "no barrier is between"), ("beyond", "not atomically")):
        x = given.copy()
        with pytest.raises(EmulationError, match=rf"race: .*one of them writes, and {message}"):
            library.run(kernel, [x, x], **launch)


MISALIGNED = {
    "a cast": "y[i] = ((device const float4*)(x + 1))->w;",
    "a name of a pointer": "typedef device const float4* P; y[i] = P(x + 1)->w + P(x + 1)->y;",
    "an alias": "using P = const device half4*; P p = P(x + 1) + i; half4 h = p[0]; y[i] = h.x;",
    "threadgroup memory": "threadgroup float s[8]; s[i] = x[i]; s[i + 4] = x[i];"
    "typedef threadgroup float4* P; P p = P(s + 1); float4 v = *p; y[i] = v.x + v.w;",
    "a matrix": "float2x4 m = *(device const float2x4*)(x + 1); y[i] = (m * float2(1)).x;",
    "a write": "typedef device float4* P; P p = P(y + 1); *p = float4(x[i]);",
}


@pytest.mark.parametrize("body", MISALIGNED.values(), ids=MISALIGNED)
def test_misaligned_vectors(load, body):
    source = f"""{HEAD}
    [[kernel]] void f(device const float* x, device float* y,
        uint i [[thread_position_in_grid]]) {{ {body} }}"""
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(EmulationError, match=r"misaligned access to byte 4 of .* multiple of"):
        load(text=source).run("f", [x, y], grid=(1,), threadgroup=(1,), outputs=[1], fill=False)


def test_the_size_of_set_bytes(load, x):
    source = f"""{HEAD}
    [[kernel]] void f(device const float* x, device float* y, constant int& n,
        uint i [[thread_position_in_grid]]) {{ y[i] = x[i] + n; }}"""
    library = load(text=source)
    for value, message in (
        (np.int64(1), "8 bytes are set for buffer 2"),
        (np.float32(1), "is bound to float32, but the kernel takes constant int&"),
        (None, r"buffer 2 \(n\) is not bound"),
    ):
        with pytest.raises(EmulationError, match=message):
            library.run("f", [x, x.copy(), value], grid=(64,), threadgroup=(64,), outputs=[1])


def test_dtypes_of_buffers(load, x):
    with pytest.raises(EmulationError, match=r"buffer 0 .* is bound to int32"):
        run(load, "y[i] = x[i];", x.astype(np.int32))


@pytest.mark.parametrize(
    "source, message",
    [
        ("texture2d<float> t;", "textures"),
        ("texturecube_array<float> t;", "textures"),
        ("using namespace mpp::tensor_ops;", "tensor operations"),
        ('os_log_default.log("%u", i);', "logging"),
        ("threadgroup float a[2] = {1, 2};", "cannot be initialized"),
        ("float z = undeclared(1);", "test.metal:4.*undeclared"),
        ("x[i] = 1;", "test.metal:4.*read-only"),
        ("float z = 1.0L;", "no long double"),
    ],
)
def test_what_is_refused(load, source, message):
    text = f"""{HEAD}[[kernel]] void f(constant float* x, device float* y,
        uint i [[thread_position_in_grid]]) {{ {source} y[i] = x[i]; }}"""
    with pytest.raises(EmulationError, match=message):
        load(text=text)


def test_functions_that_only_address_spaces_tell_apart(load):
    text = f"""{HEAD}
    float g(device const float* p) {{ return p[0]; }}
    float g(threadgroup const float* p) {{ return p[1]; }}
    [[kernel]] void f(device const float* x, device float* y) {{ y[0] = g(x); }}"""
    with pytest.raises(EmulationError, match=r"test.metal:5:\d+: .*address spaces only"):
        load(text=text)


def test_too_many_buffers(load):
    parameters = ", ".join(f"device float* x{i}" for i in range(32))
    with pytest.raises(EmulationError, match="buffer 31 does not exist: Metal has 31 buffers"):
        load(text=f"{HEAD}[[kernel]] void f({parameters}) {{ x0[0] = 1; }}")


# ------------------------------------------------------------------------------ static rules

USING = "using namespace metal;\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (HEAD + "float f(float x) { double y = x; return y; }", "3:20: Metal has no double"),
        (HEAD + "struct A { virtual void f(); };", "no virtual functions"),
        (HEAD + "void f() { try { } catch (...) { } }", "no exceptions"),
        (HEAD + "float f(int n) { return n < 1 ? 1 : n * f(n - 1); }", "f calls itself"),
        (
            HEAD + "float g(int n);\nfloat f(int n) { return g(n); }\nfloat h(int n) { return n; }",
            None,
        ),
        (HEAD + "float f(float* x) { return x[0]; }", "pointer x of f needs an address space"),
        (HEAD + "float f(thread float& x) { return x; }", None),
        (USING + "float f(float x) { return exp(x); }", "must include <metal_stdlib>"),
        ("#include <metal_stdlib>\nfloat f(float x) { return exp(x); }", "add `using namespace"),
        ("#include <metal_stdlib>\nfloat f(float x) { return metal::exp(x); }", None),
        (HEAD + "float f(float x) { return std::exp(x); }", "no namespace std"),
    ],
)
def test_rules(tmp_path, text, message):
    path = tmp_path / "rules.metal"
    path.write_text(text + "\n")
    found = [str(error) for error in check_rules(path)]
    if message is None:
        assert found == []
    else:
        assert any(message in error for error in found), found


def test_our_kernels_keep_the_rules():
    from emulator.conftest import KERNELS, mlx_include

    for path in sorted(KERNELS.glob("*.metal")):
        assert [str(error) for error in check_rules(path, [mlx_include()])] == []
