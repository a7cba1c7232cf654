"""`mlxgen.metal.emulate`: kernels of `mx.fast.metal_kernel` on the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen.metal
from mlxgen.metal import EmulationError, emulate

COPY = "uint i = thread_position_in_grid.x;\ny[i] = x[i];"
X = mx.arange(12, dtype=mx.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def emulation(request: pytest.FixtureRequest) -> Iterator[Any]:
    with emulate() as seen:
        yield seen


def kernel(source: str, name: str = "k", **more: Any) -> Any:
    given = {"input_names": ["x"], "output_names": ["y"], **more}
    return mx.fast.metal_kernel(name=name, source=source, **given)


def run(source: str, *inputs: Any, call: Any = {}, **more: Any) -> mx.array:  # noqa: B006
    x = inputs[0] if inputs else X
    given = {
        "inputs": list(inputs or [x]),
        "output_shapes": [x.shape],
        "output_dtypes": [x.dtype],
        "grid": (x.size, 1, 1),
        "threadgroup": (8, 1, 1),
        **call,
    }
    outputs: list[mx.array] = kernel(source, **more)(**given)
    return outputs[0] if len(outputs) == 1 else outputs  # type: ignore[return-value]


def same(found: mx.array, expected: Any) -> None:
    np.testing.assert_array_equal(np.array(found), np.array(expected))


# ------------------------------------------------------------------------------ options


def test_lazy_and_cached(emulation: Any) -> None:
    y = run(COPY)
    emulation.update()
    assert not emulation.launches
    same(y, X)
    same(run(COPY), X)
    emulation.update()
    assert emulation.launches == {"k": 2} and not emulation.errors


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.int64, mx.uint8, mx.bool_])
def test_template(dtype: mx.Dtype) -> None:
    source = """
        uint i = thread_position_in_grid.x;
        float values[N];
        for (int k = 0; k < N; ++k) {
          values[k] = ADD ? 1.0f : 0.0f;
        }
        y[i] = static_cast<T>(static_cast<float>(x[i]) + values[N - 1]);
    """
    x = mx.array([0, 1, 0]).astype(dtype)
    for add in (True, False):
        template = [("T", dtype), ("N", 3), ("ADD", add)]
        expected = (x.astype(mx.float32) + add).astype(dtype).astype(mx.float32)
        same(run(source, x, call={"template": template}).astype(mx.float32), expected)


def test_sizes_of_numpy() -> None:
    grid, threadgroup = (np.int64(12), 1, 1), (np.int32(4), 1, 1)
    shapes = [(np.int64(3), 4)]
    call = {"grid": grid, "threadgroup": threadgroup, "output_shapes": shapes}
    same(run(COPY, X, call=call), X)


def test_header_and_utils_of_mlx() -> None:
    header = "template <typename T> T twice(T x) { return x + x; }"
    source = "uint i = thread_position_in_grid.x; y[i] = twice(x[i]) + ceildiv(7, 2);"
    same(run(source, header=header), 2 * X + 4)


def test_strides() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        long at = elem_to_loc(long(i), x_shape, x_strides, x_ndim);  // may be negative
        y[i] = x[at] + x_shape[0];
    """
    x = X.T[::-1]
    same(run(source, x, ensure_row_contiguous=False), x + 4)
    same(run(COPY, x), x)
    same(run(COPY, mx.broadcast_to(mx.array([3.0]), (3, 4))), mx.full((3, 4), 3.0))


def test_scalars_and_small_inputs() -> None:
    # Without axes: a reference. Fewer than 8 elements: the address space `constant`.
    source = "uint i = thread_position_in_grid.x; y[i] = a * b[1] + (c ? n : 0);"
    names = ["a", "b", "c", "n"]
    inputs = [2.5, mx.array([1.0, 3.0]), True, 4]
    y = kernel(source, input_names=names)(
        inputs=inputs,
        output_shapes=[(5,)],
        output_dtypes=[mx.float32],
        grid=(5, 1, 1),
        threadgroup=(2, 1, 1),
    )[0]
    same(y, [11.5] * 5)


def test_inputs_of_numpy() -> None:
    source = "uint i = thread_position_in_grid.x; if (i != 1) y[i] = x[i] * a + n;"
    inputs = [np.arange(3, dtype=np.float32), np.float32(2), np.int64(1)]
    call = {"inputs": inputs, "output_shapes": [(3,)], "output_dtypes": [mx.float32]}
    made = kernel(source, input_names=["x", "a", "n"])
    y = made(**call, grid=(3, 1, 1), threadgroup=(3, 1, 1), init_value=np.float32(7))[0]
    same(y, [1.0, 7.0, 5.0])


def test_several_outputs_and_initial_value() -> None:
    source = "uint i = thread_position_in_grid.x; if (i % 2) y[i] = x[i]; z[i] = int(x[i]);"
    y, z = kernel(source, output_names=["y", "z"])(
        inputs=[X],
        output_shapes=[X.shape, (12,)],
        output_dtypes=[mx.float32, mx.int32],
        grid=(12, 1, 1),
        threadgroup=(4, 1, 1),
        init_value=-1,
    )
    same(y, mx.where(X % 2 == 1, X, -1))
    same(z, mx.arange(12))


def test_atomic_outputs() -> None:
    source = "atomic_fetch_add_explicit(&y[0], x[thread_position_in_grid.x], memory_order_relaxed);"
    call = {"output_shapes": [(1,)], "init_value": 1}
    same(run(source, call=call, atomic_outputs=True), [67])


def test_atomic_store_is_a_write() -> None:
    source = "atomic_store_explicit(&y[thread_position_in_grid.x], -1, memory_order_relaxed);"
    call = {"output_dtypes": [mx.int32]}
    same(run(source, call=call, atomic_outputs=True), mx.full(X.shape, -1))


def test_positions_in_three_axes() -> None:
    source = """
        uint3 p = thread_position_in_grid;
        uint3 n = threads_per_grid;
        y[(p.z * n.y + p.y) * n.x + p.x] = threadgroup_position_in_grid.y * 100
            + thread_index_in_threadgroup + threads_per_threadgroup.x * 1000;
    """
    call = {"grid": (2, 3, 2), "threadgroup": (16, 2, 1)}  # a threadgroup is at most the grid
    found = run(source, call=call)
    assert found.flatten().tolist() == [
        *(2000, 2001, 2002, 2003, 2100, 2101, 2000, 2001, 2002, 2003, 2100, 2101),
    ]


def test_all_attributes_of_mlx() -> None:
    """MLX declares those whose names are in the source, also as parts of other names."""
    source = """
        uint my_grid_size = grid_size.y, my_grid_origin = grid_origin.x;
        y[thread_position_in_grid.y] = my_grid_size * 1000 + my_grid_origin
            + quadgroups_per_threadgroup * 100 + dispatch_quadgroups_per_threadgroup * 10
            + threads_per_simdgroup + thread_execution_width + quadgroup_index_in_threadgroup;
    """
    found = run(source, call={"grid": (1, 12, 1), "threadgroup": (1, 12, 1)})
    assert found.flatten().tolist() == [12394 + i // 4 for i in range(12)]


def test_verbose_prints_what_mlx_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run(COPY, call={"template": [("T", mx.float16), ("B", True)], "verbose": True})
    name, values = "custom_kernel_k_float16_t_1_float_float", "<float16_t, 1>"
    assert capsys.readouterr().out == textwrap.dedent(f"""\
        Generated source code for `k`:
        ```
        template <typename T, bool B>
        [[kernel]] void {name}(
          const device float* x [[buffer(0)]],
          device float* y [[buffer(1)]],
          uint3 thread_position_in_grid [[thread_position_in_grid]]) {{
        uint i = thread_position_in_grid.x;
        y[i] = x[i];
        }}

        template [[host_name("{name}")]] [[kernel]] decltype({name}{values}) {name}{values};

        ```
        """)


def test_stream() -> None:
    for stream in (None, mx.gpu, mx.Device(mx.gpu), mx.new_stream(mx.cpu)):
        same(run(COPY, call={"stream": stream}), X)
    with pytest.raises(ValueError, match="Only supports the GPU"):
        run(COPY, call={"stream": mx.cpu})


# ---------------------------------------------------------------------- transformations


def test_transformations() -> None:
    def f(x: mx.array) -> mx.array:
        return run(COPY, x + 1) * 2

    same(mx.compile(f)(X), 2 * X + 2)
    messages: list[tuple[str, Callable[[], Any]]] = [
        ("vjp", lambda: mx.grad(lambda x: f(x).sum())(X)),
        ("jvp", lambda: mx.jvp(f, [X], [X])),
        ("vmap", lambda: mx.vmap(f)(X[None])),
    ]
    for name, function in messages:
        with pytest.raises(ValueError, match=rf"\[Primitive::{name}\] Not implemented for Custom"):
            function()


def test_custom_function() -> None:
    @mx.custom_function
    def f(x: mx.array) -> mx.array:
        return run(COPY, x)

    f.vjp(lambda primals, cotangent, output: 3 * cotangent)
    same(mx.grad(lambda x: f(x).sum())(X), mx.full(X.shape, 3.0))


# ------------------------------------------------------------------------------- faults

FAULTS = {
    "read outside": (
        "uint i = thread_position_in_grid.x;\ny[i] = x[i + 1];",
        r"k: access outside of buffer 0 \(x\) at byte 48 of 48, at k\.source:2, in thread",
    ),
    "read before": (
        "uint i = thread_position_in_grid.x;\n\ny[i] = x[int(i) - 1];",
        r"buffer 0 \(x\) at byte -4 of 48, at k\.source:3, in thread \(0, 0, 0\)",
    ),
    "write outside": ("uint i = thread_position_in_grid.x; y[i + 12] = x[i];", r"buffer 1 \(y\)"),
    "race": (
        "uint i = thread_position_in_grid.x;\ny[i] = i;\ny[0] = i + 1;",
        r"race: .*byte 0 of buffer 1 \(y\), one.*at k\.source:3",
    ),
    "barrier": (
        """threadgroup float s[128];
        uint i = thread_position_in_threadgroup.x;
        s[i] = i;
        y[i] = s[(i + 40) % 128];""",
        r"race: .*byte \d+ of s, one.*at k\.source:[34]",
    ),
    "misaligned": (
        """uint i = thread_position_in_grid.x;
        y[i] = x[i];
        float4 v = *(const device float4*)(x + 1);
        y[i] = v.x + v.y + v.z + v.w;""",
        r"misaligned access to byte 4 of buffer 0 \(x\): .* multiple of 16, at k\.source:3",
    ),
    "unwritten": (
        "uint i = thread_position_in_grid.x; if (i > 2) y[i] = x[i];",
        r"no thread writes 3 of the 12 elements of buffer 1 \(y\), first element 0",
    ),
    "divergence": (
        """uint i = thread_position_in_grid.x;
        if (i < 3) { threadgroup_barrier(mem_flags::mem_threadgroup); }
        y[i] = x[i];""",
        r"divergence: .*k\.source:2",
    ),
    "helper": ("uint i = thread_position_in_grid.x; y[i] = far(x, i);", r"at k\.header:2"),
}
HEADER = "inline float far(const device float* x, uint i) {\n  return x[i + 99];\n}"


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str, emulation: Any) -> None:
    source, message = FAULTS[name]
    if sys.platform != "linux":  # the line is not known
        message = re.split(r"(?:, |\.\*)?at k", message)[0]
    threads = 128 if name in ("race", "barrier") else 12
    call = {"grid": (threads, 1, 1), "threadgroup": (threads, 1, 1), "output_shapes": [(threads,)]}
    y = run(source, header=HEADER, call=call)
    for _ in range(2):  # the process lives, and finds it again
        with pytest.raises(EmulationError, match=message):
            mx.eval(y)
        y = run(source, header=HEADER, call=call)
    emulation.update()
    assert len(emulation.errors) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="clang does not touch all pages on macOS")
@pytest.mark.parametrize("size", [66_000, 140_000, 1_000_000])
def test_stacks_do_not_overlap(size: int) -> None:
    source = f"""
        uint i = thread_position_in_grid.x;
        float big[{size}];
        for (int j = 0; j < {size}; j += 100) {{ big[j + int(x[i])] = x[i]; }}
        y[i] = big[int(x[i])];"""
    with pytest.raises(EmulationError, match="stack overflow of a thread, which has 256 KiB, at k"):
        mx.eval(run(source))


def test_valid_accesses_are_no_faults() -> None:
    # 16-byte loads from a buffer whose size is no multiple of 16, and -1 as a result.
    source = """
        uint i = thread_position_in_grid.x;
        float4 v = *(const device float4*)x;
        y[i] = int(v.w + x[4]) - 10;
        if (i == 0) { *(device int4*)y = int4(-1); }
    """
    x = mx.arange(5, dtype=mx.float32)
    call = {"output_shapes": [(5,)], "output_dtypes": [mx.int32], "grid": (1, 1, 1)}
    with emulate(unwritten=False):
        same(run(source, x, call=call)[:4], [-1] * 4)
    source = "*(device int4*)y = int4(-1);"
    call["output_shapes"] = [(4,)]
    same(run(source, x, call=call), [-1] * 4)


def test_errors_that_numpy_drops() -> None:
    with pytest.raises(EmulationError, match="access outside"), emulate():
        np.array(run(FAULTS["read outside"][0]))


def test_outer_emulations_count_too(emulation: Any) -> None:
    same(run(COPY), X)
    with emulate() as inner:
        same(run(COPY), X)
    assert inner.launches == {"k": 1} and emulation.launches == {"k": 2}


def test_unwritten_can_be_allowed() -> None:
    source, _ = FAULTS["unwritten"]
    with emulate(unwritten=False):
        y = run(source)
        assert mx.isnan(y).sum().item() == 3


# ---------------------------------------------------------------------------- bad input

BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "grid": ({"grid": (0, 1, 1)}, ValueError, r"`grid` must be three sizes, but is \(0, 1, 1\)"),
    "arrays": ({"grid": (mx.array(4.0), 1, 1)}, TypeError, "`grid` must be three sizes"),
    "two sizes": ({"grid": (4, 1)}, TypeError, "`grid` must be three sizes"),
    "threadgroup": ({"threadgroup": (2048, 1, 1)}, ValueError, "exceeds the maximum of 1024"),
    "no dtypes": ({"output_dtypes": None}, TypeError, "`output_dtypes` is missing"),
    "a type": ({"output_dtypes": [float]}, TypeError, "output 'y' has a type as dtype"),
    "float64": ({"output_dtypes": [mx.float64]}, ValueError, "float64, which Metal lacks"),
    "shapes": ({"output_shapes": [(3,), (4,)]}, ValueError, "expected 1 `output_shapes`, found 2"),
    "no shape": ({"output_shapes": []}, ValueError, "expected 1 `output_shapes`, found 0"),
    "a number": ({"output_shapes": [3]}, TypeError, "the shape of output 'y' is 3"),
    "negative": ({"output_shapes": [(-3,)]}, ValueError, r"the shape of output 'y' is \(-3,\)"),
    "inputs": ({"inputs": []}, ValueError, "expected 1 `inputs`, found 0"),
    "a string": ({"inputs": ["x"]}, TypeError, "input 'x' is a str"),
    "a list": ({"inputs": [[1.0, 2.0]]}, TypeError, "input 'x' is a list"),
    "template": ({"template": [("T", 1.5)]}, ValueError, "the template argument T is 1.5"),
    "not a pair": ({"template": ["T"]}, TypeError, "'T' is not a pair"),
    "minus": ({"template": [("T", -1)]}, ValueError, "the template argument T is -1"),
    "keyword": ({"template": [("int", 1)]}, ValueError, "argument 'int' is not a valid name"),
    "twice": ({"template": [("N", 1), ("N", 2)]}, ValueError, "'N' is not a valid name"),
    "input": ({"template": [("x", 1)]}, ValueError, "'x' is not a valid name"),
    "huge": ({"output_shapes": [(2**40,)]}, ValueError, "the shape of output 'y' is"),
    "initial": ({"init_value": "0"}, TypeError, "`init_value` is a str"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=message) as raised:
        run(COPY, call=call)
    assert str(raised.value).startswith("[metal_kernel] k: ")
    assert str(raised.value).splitlines()[-1].startswith("help: ")


@pytest.mark.parametrize(
    ("source", "header", "message"),
    [
        ("y[0] = 1;\ny[1] = what;", "", r"k\.source:2:\d+: error: .what. was not declared"),
        ("y[0] = 1", "", r"k\.(source|end):\d"),
        ("y[0] = f();", "int f() {\n  return g();\n}\n", r"k\.header:2"),
        ("y[0] = 1; }", "", r"k\.end:\d.*no opening bracket"),
        ("texture2d<float> t;", "", r"k\.source:1:1: the emulation does not support textures"),
    ],
)
def test_kernel_that_does_not_compile(source: str, header: str, message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        run(source, header=header)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"output_names": []}, "at least one output"),
        ({"input_names": ["x", "a b"]}, "k: 'a b' is not a valid name"),
        ({"input_names": ["y"]}, "k: 'y' is not a valid name"),
        ({"input_names": ["x", "float"]}, "k: 'float' is not a valid name"),
        ({"input_names": ["device"]}, "k: 'device' is not a valid name"),
        ({"input_names": ["thread_position_in_grid"]}, "is not a valid name"),
        ({"input_names": [f"x{i}" for i in range(31)]}, "k: 32 buffers, but Metal has 31"),
        ({"compile_options": {"math_mode": "slow"}}, "math_mode"),
    ],
)
def test_kernel_that_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(COPY, **given)


# ------------------------------------------------------------------ where it is emulated


def test_only_inside() -> None:
    inside = kernel(COPY)
    patched = mx.fast.metal_kernel
    with emulate():
        pass
    assert mx.fast.metal_kernel is patched

    @emulate
    def bare() -> Any:
        return run(COPY)

    @emulate(pretend=True)
    def called() -> bool:
        return bool(mx.metal.is_available())

    @emulate(pretend=True)
    def recursive(n: int) -> bool:
        return called() and (n == 0 or recursive(n - 1))

    same(bare(), X)
    assert recursive(2) and not mx.metal.is_available()
    assert mx.fast.metal_kernel is patched
    assert "emulated" in repr(inside)


def test_outside_is_mlx() -> None:
    code = """
        import mlx.core as mx, mlxgen.metal
        before = mx.fast.metal_kernel
        with mlxgen.metal.emulate():
            k = mx.fast.metal_kernel("k", ["x"], ["y"], "y[0] = x[0];")
        assert mx.fast.metal_kernel is before
        one = dict(output_shapes=[(1,)], output_dtypes=[mx.float32])
        try:
            k(inputs=[mx.ones(1)], **one, grid=(1, 1, 1), threadgroup=(1, 1, 1))
        except RuntimeError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[metal_kernel] No Metal back-end.\n" * (not mx.metal.is_available())


def test_pretend() -> None:
    with emulate(pretend=True):
        assert mx.metal.is_available() and mx.is_available(mx.gpu)
        assert mx.default_device() == mx.gpu and mx.default_device() != mx.cpu
        assert mx.device_info()["architecture"].startswith("applegpu")
        same(mx.add(X, 1, stream=mx.gpu), X + 1)
        same(mx.random.randint(1, 2, (3,), stream=mx.gpu), [1, 1, 1])
        with mx.stream(mx.cpu):
            assert mx.default_device() == mx.cpu
            with mx.stream(mx.new_stream(mx.gpu)):
                assert mx.default_device() == mx.gpu
                same(run(COPY), X)
            with mx.stream(mx.new_stream(mx.cpu)):
                assert mx.default_device() == mx.cpu
        assert mx.default_device() == mx.gpu
        mx.set_default_device(mx.cpu)
        assert mx.default_device() == mx.cpu
        with mx.stream(mx.default_stream(mx.gpu)):
            same(run(COPY, call={"stream": mx.gpu}), X)
    assert mx.default_device() == mx.cpu


def test_pytest_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
        import mlx.core as mx

        def call(source):
            k = mx.fast.metal_kernel("k", ["x"], ["y"], source)
            one = dict(output_shapes=[(1,)], output_dtypes=[mx.float32])
            x = mx.ones(1)
            return k(inputs=[x], **one, grid=(1, 1, 1), threadgroup=(1, 1, 1))[0]

        def test_right(metal):
            assert mx.metal.is_available()
            assert call("y[0] = x[0];").item() == 1
            metal.update()
            assert metal.launches == {"k": 1}

        def test_error_that_is_caught():
            try:
                mx.eval(call("y[0] = x[7];"))
            except RuntimeError:
                pass
        """)
    )
    command = [sys.executable, "-m", "pytest", "-p", "mlxgen.metal", "--metal-pretend", "-q", "-n0"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "k: access outside of buffer 0 (x) at byte 28 of 4" in done.stdout
    assert "2 launches of 1 kernels" in done.stdout


def test_public_name() -> None:
    assert mlxgen.metal.emulate is emulate
