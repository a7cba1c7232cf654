"""A package made with mlxgen, from its sources to the wheel and its import.

One small project is built once, as by ``pip install``; the tests inspect and change it. Everything
runs in other processes, with the tools of this environment.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import builds
import mlx.core as mx
import pytest
from builds import output, run

import mlxgen
from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics, install
from mlxgen.emulator.cxx import EmulationError
from mlxgen.emulator.package import installed
from mlxgen.emulator.spaces import kernels_around
from mlxgen.package import backend as build
from mlxgen.read import settings as read_settings

FILES = {
    "pyproject.toml": """
        [build-system]
        requires = ["mlxgen"]
        build-backend = "mlxgen.build"

        [project]
        name = "tiny-ops"
        version = "1.2.3"
        """,
    "mlx_ops.yaml": """
        - name: axpby
          signature: "axpby(array x, array y, float alpha=1, float beta=1) -> array"
          dispatch: {cpu: axpby, metal: axpby_metal}
          grad: {x: alpha * grad, y: beta * grad}
          variants: [function, method]

        - name: twice
          signature: "twice(x: array) -> array"
          module: extra
          composite: 2 * x

        # Right for n = 9, which the generated checks use, not for fewer: known only when they run.
        - name: cut
          signature: "cut(x: array, y: array, n: int = 9) -> array"
          dispatch: {cpu: cut}
          composite: x + y if n > 2 else (x + y)[:n]
          grad: {x: "grad if n > 2 else grad[:n]"}
          jvp: {x: "tangent if n > 2 else tangent[:n]", y: tangent}
        - name: cast
          signature: "cast(x: array, n: int = 9, dtype: Dtype = float32) -> array"
          composite: 2 * x
          grad: {x: "(2 * grad)[:n].astype(dtype)"}
        - name: total
          signature: "total(xs: list[array], n: int = 9) -> array"
          composite: sum(xs)
          grad: {xs: "[grad for x in xs[:n]]"}

        - name: loop
          signature: "loop(x: array) -> array"
          dispatch: {cpu: loop}
          grad: {x: zero}
          samples: {x: {low: 1, high: 2}}

        - name: carry
          signature: "carry(x: array, state: array | None = None) -> (out: array, last: array)"
          dispatch:
            cpu: carry
            metal:  # a thread for N elements
              kernel: carry
              template: {N: {of: "x.shape[-1]", values: [2, 4]}}
              grid: ["(x.size + N - 1) // N"]
              threadgroup: ["min(max_threads, 32)"]
          shape: x.shape
          dtypes: {x: floating, state: accumulator}
          dtype: {last: accumulator}
          grad:
            x: (grad_out if state is None else grad_out * state) + grad_last
            state: grad_out * x + grad_last
          vmap: batch
          samples:
            - {x: {}, state: {}}
            - {x: {shape: [3]}}
            - {x: {shape: [3, 2]}, state: {shape: [3, 2]}}

        - name: last
          signature: "last(x: array, start: array | None = None) -> array"
          dispatch:
            cpu: last
            metal:
              kernel: last
              template: {N: {of: "x.shape[-1]", values: [4]}}
              constants: {width: "x.shape[-1]"}
              grid: [out.size]
          composite: x[..., -1] if start is None else x[..., -1] + start.astype(x.dtype)
          shape: x.shape[:-1]
          dtypes: {x: floating, start: int32}
          checks: [{that: start is None or start.ndim == 0, else: start is a number}]
          samples: [{x: {}}, {x: {shape: [2, 5]}}, {x: {shape: [2, 3]}, start: {shape: []}}]

        - name: launch
          signature: >-
            launch(x: array, threads: int = 4, group: int = 4, by: int = 1)
            -> (first: array, rest: array)
          dispatch:
            cpu: launch
            metal:
              kernel: launch
              grid: [threads, by]
              threadgroup: [group, "9 // 9"]
              constants: {count: "2 ** 30 * by"}
              zero: [rest]
          shape: {first: "x.shape[:1]", rest: x.shape}
          grad: none

        - name: window
          signature: "window(x: array, /, size: int | tuple[int, int] = 1) -> array"
          composite: x * size[0] + size[1]
        - name: draw
          signature: "draw(low: array, high: array, key: array) -> array"
          composite: random.randint(low, high, (3,), int32, key)
          samples:
            low: {values: [-9, 0, 5], dtype: int32}
            high: {values: [-2, 7, 9], dtype: int32}
            key: {values: [0, 1], dtype: uint32}
        """,
    "csrc/axpby.h": """
        #pragma once
        #include <algorithm>
        #include "mlxgen/kernel.h"
        namespace tiny_ops::cpu {
        using mlxgen::accum_t, mlxgen::In, mlxgen::Out;
        template <typename T>
        T axpby(T x, T y, T alpha, T beta) {
          return alpha * x + beta * y;
        }
        inline float cut(float x, float y, int n) { // float64 takes the composite
          return x + y;
        }
        template <typename T>
        void carry(In<T> x, In<accum_t<T>> state, Out<T> out, Out<accum_t<T>> last) {
          for (int64_t i = 0; i < x.size(); ++i) {
            out[i] = state ? static_cast<T>(x[i] * state[i]) : x[i];
            last[i] = x[i] + (state ? state[i] : 0);
          }
        }
        template <typename T>
        void last(In<T> x, In<int32_t> start, Out<T> out) {
          int64_t width = x.size() / out.size();
          for (int64_t i = 0; i < out.size(); ++i) {
            T first = start ? static_cast<T>(start[0]) : T(0);
            out[i] = static_cast<T>(x[(i + 1) * width - 1] + first);
          }
        }
        template <typename T>
        void launch(In<T> x, int threads, int group, int by, Out<T> first, Out<T> rest) {
          std::fill_n(first.data, x.dim(by - 1), T(1));
          std::fill_n(rest.data, rest.size(), T(0));
        }
        template <typename T, bool positive = false>
        T loop(T x) { // the one it is computed in
          return positive ? 1 : 0;
        }
        } // namespace tiny_ops::cpu
        """,
    "kernels/metal/axpby.metal": """
        #include <metal_stdlib>
        using namespace metal;
        template <typename T>
        T axpby_metal(T x, T y, float alpha, float beta) {
          return T(alpha * x + beta * y);
        }
        """,
    "kernels/metal/carry.metal": """
        #include <metal_stdlib>
        using namespace metal;
        template <typename T, int N>
        [[kernel]] void carry(
            device const T* x [[buffer(0)]],
            device const float* state [[buffer(1)]],
            device T* out [[buffer(2)]],
            device float* last [[buffer(3)]],
            constant bool& has_state [[buffer(4)]],
            constant int& x_size [[buffer(5)]],
            uint i [[thread_position_in_grid]]) {
          for (int k = int(i) * N; k < min(int(i + 1) * N, x_size); ++k) {
            out[k] = has_state ? T(float(x[k]) * state[k]) : x[k];
            last[k] = float(x[k]) + (has_state ? state[k] : 0);
          }
        }
        template <typename T, int N>
        [[kernel]] void last(
            device const T* x [[buffer(0)]],
            device const int* start [[buffer(1)]],
            device T* out [[buffer(2)]],
            constant int& width [[buffer(3)]],
            constant bool& has_start [[buffer(4)]],
            uint i [[thread_position_in_grid]]) {
          T kept[N];
          for (int k = 0; k < width; ++k) {
            kept[k] = x[i * width + k];
          }
          out[i] = kept[width - 1] + (has_start ? T(start[0]) : T(0));
        }
        template <typename T>
        [[kernel]] void launch(
            device const T* x,
            device T* first,
            device T* rest,
            constant int& count,
            constant const int* x_shape,
            uint2 place [[thread_position_in_grid]],
            uint2 threads [[threads_per_grid]]) {
          for (int i = place.x; i < x_shape[0]; i += threads.x) {
            first[i] = count > 0 ? T(1) : x[i];
          }
        }
        """,
    "python/tiny_ops/__init__.py": """
        from tiny_ops._load import *
        from tiny_ops._load import __version__ as __version__
        """,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built project; ``dist`` contains the wheel, ``build`` the build files."""
    root = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(re.sub(r"(?m)^ {8}", "", text).lstrip("\n"), encoding="utf-8")
    builds.build_wheel(root)
    return root


@pytest.fixture
def site(project: Path, tmp_path: Path) -> Path:
    """Return a folder with the installed package next to MLX, where its libraries search."""
    (wheel,) = (project / "dist").glob("*.whl")
    builds.install(wheel, tmp_path)
    return tmp_path


@pytest.mark.extended
def test_wheel(project: Path) -> None:
    (wheel,) = (project / "dist").glob("*.whl")
    assert wheel.name.startswith("tiny_ops-1.2.3-cp3")
    with zipfile.ZipFile(wheel) as archive:
        names = {re.sub(r"_ext\..*\.so|\.(so|dylib)$", "*", name) for name in archive.namelist()}
        info = archive.read("tiny_ops/_build_info.py").decode()
    assert {
        "tiny_ops/__init__.py",
        "tiny_ops/_build_info.py",
        "tiny_ops/_ext/__init__.pyi",
        "tiny_ops/_load.py",
        "tiny_ops/*",
        "tiny_ops/extra/__init__.py",
        "tiny_ops/include/mlxgen/op.h",
        "tiny_ops/include/tiny_ops/axpby.h",
        "tiny_ops/lib/libtiny_ops*",
        "tiny_ops/ops.json",
        "tiny_ops/py.typed",
    } <= names
    assert f'MLX_VERSION = "{mx.__version__}"' in info
    assert 'VERSION = "1.2.3"' in info


@pytest.mark.extended
def test_only_its_own_files_are_compiled(project: Path) -> None:
    """The shared toolchain is cached; its headers match, or g++ would warn (-Winvalid-pch)."""
    again = project / "build" / "CMakeFiles" / "mlxgen_ops.dir" / "generated" / "src" / "cut.cpp.o"
    again.unlink()
    text = output(run("-m", "ninja", "-C", "build", cwd=project))
    assert "cut.cpp.o" in text and "invalid-pch" not in text
    log = (project / "build" / ".ninja_log").read_text(encoding="utf-8")
    assert set(re.findall(r"(\w+)\.cpp\.o", log)) == {
        *("axpby", "twice", "cut", "cast", "total", "loop", "carry", "last", "window", "draw"),
        *("launch", "dispatch", "bind_0", "module", "empty"),
    }


@pytest.mark.extended
def test_import_and_call(site: Path) -> None:
    script = """
import tiny_ops, mlx.core as mx
from tiny_ops import extra
import tiny_ops.extra
x, y = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
with mx.stream(mx.cpu):
    assert tiny_ops.axpby(x, y, alpha=2.0).tolist() == [5.0, 8.0]
    assert mx.grad(lambda x: tiny_ops.axpby(x, y, alpha=2.0).sum())(x).tolist() == [2.0, 2.0]
    assert extra.twice(x).tolist() == [2.0, 4.0]
    assert tiny_ops.install_methods() == tiny_ops.install_methods() == ["axpby"]
    assert x.axpby(y).tolist() == [4.0, 6.0]
assert {"axpby", "extra", "install_methods"} <= set(tiny_ops.__all__)
print(tiny_ops.__version__, "mlxgen" in __import__("sys").modules)
"""
    assert output(run("-c", script, cwd=site, path=site)) == "1.2.3 False\n"


@pytest.mark.extended
def test_derivatives_that_do_not_fit(site: Path) -> None:
    """Wrong shapes, dtypes and counts that are known only at run time raise errors."""
    script = """
import tiny_ops, mlx.core as mx
mx.set_default_device(mx.cpu)
x, y, half = mx.ones((3, 4)), mx.ones((1, 4)), mx.ones((3, 4), mx.float16)

def gradient(f, *xs):
    grads = mx.vjp(f, list(xs), [mx.ones_like(f(*xs))])[1]
    return [g.astype(mx.float32).sum().item() for g in grads]

def message(f, *args):
    try:
        return f(*args)
    except ValueError as error:
        return str(error)

cut, cast, total = tiny_ops.cut, tiny_ops.cast, tiny_ops.total
print(gradient(cut, x, y), gradient(cast, half), gradient(lambda *xs: total(xs), x, y))
print(mx.vjp(cast, [half], [half])[1][0].dtype)
for case in (
    (gradient, lambda x: cut(x, y, 2), x),
    (gradient, lambda y: cut(x, y, 2), y),
    (mx.jvp, lambda x: cut(x, y, 2), [x], [x]),
    (cut, x.astype(mx.float64), y, 2),
    (gradient, lambda x: cast(x, 2), x),
    (gradient, lambda x: cast(x, 9, mx.bool_), half),
    (mx.jvp, lambda x: cast(x, 2), [x], [x]),
    (mx.vmap(lambda x: gradient(lambda x: cast(x, 2), x)), mx.ones((2, 3, 4))),
    (gradient, lambda x, y: total([x, y], 1), x, y),
):
    print(message(*case))
"""
    assert output(run("-c", script, cwd=site, path=site)).splitlines() == [
        "[12.0, 12.0] [24.0] [12.0, 12.0]",
        "mlx.core.float16",
        "[cut] The gradient of 'x' has shape (2, 4), but 'x' has shape (3, 4).",
        "[cut] In the composite, the output has shape (2, 4), but the kernel's has shape (3, 4).",
        "[cut] The jvp of 'x' has shape (2, 4), but the output has shape (3, 4).",
        "[cut] In the composite, the output has shape (2, 4), but the kernel's has shape (3, 4).",
        "[cast] The gradient of 'x' has shape (2, 4), but 'x' has shape (3, 4).",
        "[cast] The gradient of 'x' has dtype bool, but 'x' has dtype float16.",
        "[cast] The gradient of 'x' has shape (2, 4), but 'x' has shape (3, 4).",
        "[cast] The gradient of 'x' has shape (2, 4), but 'x' has shape (3, 4).",
        "[total] The gradient of 'xs' has 1 arrays, expected 2.",
    ]


@pytest.mark.extended
def test_arguments(site: Path) -> None:
    script = """
import tiny_ops, mlx.core as mx
x = mx.array([1.0])
with mx.stream(mx.cpu):
    for size in (2, [2, 2], (2, 2)):
        assert tiny_ops.window(x, size).item() == tiny_ops.window(x, size=size).item() == 4
    assert tiny_ops.window(x).item() == 2
    for wrong in (lambda: tiny_ops.window(x=x), lambda: tiny_ops.window(x, 1.5)):
        try:
            wrong()
        except TypeError as error:
            assert "window(x: scalar | array, /, size: int | tuple[int, int] = (1" in str(error)
        else:
            raise AssertionError
    # A key is not promoted with the numbers: these are no uint32.
    assert tiny_ops.draw(-20, -10, mx.random.key(0)).max().item() < -10
"""
    output(run("-c", script, cwd=site, path=site))


@pytest.mark.extended
def test_sums(site: Path) -> None:
    """An argument in the accumulator dtype is neither promoted with the others nor truncated."""
    script = """
import tiny_ops, mlx.core as mx
mx.set_default_device(mx.cpu)
for x, *given in (
    (mx.float16, mx.float16, mx.bfloat16, mx.float32, mx.int32),
    (mx.bfloat16, mx.float32),
    (mx.float32, mx.float16),
    (mx.float64, mx.float32, mx.float64),
):
    sums = mx.float64 if x == mx.float64 else mx.float32
    for state in given:
        x_, state_ = mx.ones(3, x), mx.array([1, 2, 3]).astype(state)
        out, last = tiny_ops.carry(x_, state_)
        assert out.dtype == x and last.dtype == sums and last.tolist() == [2, 3, 4]
        if state != mx.int32:
            grad = mx.grad(lambda state: sum(a.sum() for a in tiny_ops.carry(x_, state)))(state_)
            assert grad.dtype == state and grad.tolist() == [2, 2, 2]
    assert tiny_ops.carry(x_)[1].dtype == sums and tiny_ops.carry(x_)[1].tolist() == [1, 1, 1]
exact = 1 + 2**-20
out, last = tiny_ops.carry(mx.zeros((), mx.float16), exact)
assert (last.item(), last.dtype, out.dtype) == (exact, mx.float32, mx.float16)
try:
    tiny_ops.carry(mx.ones(3), mx.ones(3, mx.float64))
except ValueError as error:
    print(error)
"""
    assert output(run("-c", script, cwd=site, path=site)) == (
        "[carry] dtype float64 is not supported with float32. Got state: float64 (3,).\n"
    )


@pytest.mark.extended
def test_what_was_computed_before_decides_nothing(site: Path) -> None:
    """Loops process whole strips; data of an earlier array after the end has no effect."""
    script = """
import tiny_ops, mlx.core as mx
mx.set_default_device(mx.cpu)
views = (
    lambda x: x,
    lambda x: mx.broadcast_to(x[:1, :1], x.shape),
    lambda x: mx.broadcast_to(x[:1], x.shape),
    lambda x: mx.broadcast_to(x[:, :1], x.shape),
    lambda x: x[:, ::2],
    lambda x: mx.contiguous(x.T).T,
)
for dtype in (mx.float32, mx.float16):
    for view in views:
        for before in views:
            mx.eval(tiny_ops.loop(before(-mx.ones((72, 1000), dtype))))
            for shape in ((1, 1), (3, 5), (50, 70), (20, 600)):
                x = view(mx.ones(shape, dtype))
                assert tiny_ops.loop(x).min() == 1, (dtype, shape, views.index(view))
"""
    output(run("-c", script, cwd=site, path=site))


@pytest.mark.extended
def test_methods_of_others_stay(site: Path) -> None:
    script = """
import tiny_ops, mlx.core as mx
mx.array.axpby = lambda self: None
tiny_ops.install_methods()
"""
    done = run("-c", script, cwd=site, path=site)
    assert "AttributeError: mx.array already has a method 'axpby'" in done.stderr


@pytest.mark.extended
def test_another_mlx(site: Path) -> None:
    info = site / "tiny_ops" / "_build_info.py"
    text = info.read_text(encoding="utf-8")
    info.write_text(text.replace(f'"{mx.__version__}"', '"0.1.0"'), encoding="utf-8")
    last = run("-c", "import tiny_ops", cwd=site, path=site).stderr.splitlines()[-1]
    assert last.startswith("ImportError: tiny_ops 1.2.3 was built for MLX 0.1.0, but MLX ")
    assert last.endswith("-m mlxgen rebuild tiny_ops`")


# A GPU that is not Metal's. Graphs can be built for it, and nothing can be computed on it.
GPU = """
#include <dlfcn.h>
#include "mlx/stream.h"

namespace mlx::core {
namespace gpu {
bool is_available() {
  return true;
}
int device_count() {
  return 1;
}
} // namespace gpu

Stream default_stream(Device d) {
  if (d == Device::gpu) {
    return Stream(100, d);
  }
  auto* library = dlopen("libmlx.so", RTLD_LAZY | RTLD_NOLOAD);
  auto* real = dlsym(library, "_ZN3mlx4core14default_streamENS0_6DeviceE");
  return reinterpret_cast<Stream (*)(Device)>(real)(d);
}
} // namespace mlx::core
"""


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="there every GPU is Metal's")
def test_a_gpu_without_metal(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with MLX for CUDA: there are no kernels, so that operators are their composites."""
    library = site / "gpu.so"
    (site / "gpu.cpp").write_text(GPU, encoding="utf-8")
    include = Path(mx.__file__).parent / "include"
    command = ["c++", "-std=c++20", "-shared", "-fPIC", f"-I{include}", "-o", str(library)]
    subprocess.run([*command, str(site / "gpu.cpp"), "-ldl"], check=True)
    script = """
import io
import mlx.core as mx
import tiny_ops

assert mx.default_device() == mx.gpu and not mx.metal.is_available()
x = mx.array([1.0, 2.0])

def primitives(*outputs):
    text = io.StringIO()
    mx.export_to_dot(text, *outputs)
    lines = [line.partition('label ="')[2] for line in text.getvalue().splitlines()]
    return sorted({line.partition('"')[0] for line in lines if line})

print(primitives(tiny_ops.cut(x, x)), primitives(mx.vmap(tiny_ops.cut)(x, x)))
print(primitives(tiny_ops.last(x)), primitives(tiny_ops.extra.twice(x)))
print(primitives(mx.grad(lambda x: tiny_ops.cut(x, x).sum())(x)))
for op in (tiny_ops.axpby, tiny_ops.carry):
    try:
        op(x, x)
    except ValueError as error:
        print(error)
mx.set_default_device(mx.cpu)
print(primitives(tiny_ops.cut(x, x)), tiny_ops.axpby(x, x).tolist())
"""
    monkeypatch.setenv("LD_PRELOAD", str(library))
    message = (
        "No kernel for float32 on the GPU; kernels exist for cpu (float16, bfloat16, float32, "
    )
    assert output(run("-c", script, cwd=site, path=site)).splitlines() == [
        # The operator's name is that of what has its gradient, around the composite.
        "['Add', 'Cut', 'StopGradient'] ['Add', 'Cut', 'StopGradient']",
        "['Last', 'Slice', 'Squeeze', 'StopGradient'] ['Broadcast', 'Multiply']",
        "['Add', 'Broadcast', 'ExpandDims']",
        f"[axpby] {message}float64).",
        f"[carry] {message}float64).",
        "['Cut'] [2.0, 4.0]",
    ]


def ninja(project: Path) -> list[str]:
    """Build again; return the names of compiled and linked files."""
    text = output(run("-m", "ninja", "-C", "build", cwd=project))
    return re.findall(r"(?:Building|Linking) CXX .*?([\w.]+)$", text, re.MULTILINE)


@pytest.mark.extended
def test_nothing_changed(project: Path) -> None:
    ninja(project)
    assert ninja(project) == []


@pytest.mark.extended
def test_an_edit_compiles_one_operator(project: Path) -> None:
    ninja(project)
    path = project / "mlx_ops.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("2 * x", "x + x"), encoding="utf-8")
    try:
        changed = ninja(project)
        assert "twice.cpp.o" in changed
        assert "axpby.cpp.o" not in changed
    finally:
        path.write_text(text, encoding="utf-8")


METAL_TESTS = """
import mlx.core as mx
import pytest
import tiny_ops

def test_templates(metal_launches):
    for width, kernel in ((1, 2), (2, 2), (3, 4), (4, 4)):
        x = mx.arange(7 * width).reshape(7, width).astype(mx.float32)
        assert mx.array_equal(tiny_ops.carry(x, mx.full(x.shape, 2.0))[1], x + 2)
        assert metal_launches() == {f"carry_float32_{kernel}": 1}
    with pytest.raises(ValueError) as error:
        tiny_ops.carry(mx.ones((3, 5)))
    assert str(error.value) == (
        "[carry] The Metal kernel supports N = x.shape[-1] up to 4, got 5."
    )
    assert tiny_ops.last(mx.arange(4.0)).item() == 3
    assert metal_launches() == {"last_float32_4": 1}
    assert tiny_ops.last(mx.arange(5.0)).item() == 4  # by the composite
    assert metal_launches() == {}

def test_dense(metal_launches):
    assert tiny_ops.axpby(mx.ones(3), mx.ones(3), 2.0, 3.0).tolist() == [5, 5, 5]
    assert metal_launches() == {"axpby_dense_float32": 1}

@pytest.mark.parametrize(
    "shape, threads, group, by, said",
    [
        ((3, 2), 0, 4, 1, "grid [threads, by] is (0, 1, 1): an empty grid writes no outputs"),
        ((3, 2), -1, 4, 1, "grid [threads, by] is (-1, 1, 1): sizes must not be negative"),
        ((3, 0), -1, 4, 1, "grid [threads, by] is (-1, 1, 1): sizes must not be negative"),
        ((3, 2), 4, 0, 1, "threadgroup [group, 9 // 9] is (0, 1, 1): each axis needs at least"),
        ((3, 2), 4, -2, 1, "threadgroup [group, 9 // 9] is (-2, 1, 1): each axis needs at least 1"),
        ((3, 2), 4, 2048, 1, "(2048, 1, 1): the device allows this kernel at most 1024 threads"),
        ((3, 2), 4, 2**30, 1, "(1073741824, 1, 1): the device allows this kernel at most 1024"),
        ((3, 2), 4, 4, 2, "2147483648 is out of range for the kernel's parameter 'count'"),
    ],
)
def test_launches_that_metal_refuses(metal_launches, shape, threads, group, by, said):
    with pytest.raises((ValueError, OverflowError)) as error:
        mx.eval(tiny_ops.launch(mx.zeros(shape), threads, group, by))
    assert str(error.value).startswith("[launch] ") and said in str(error.value)
    assert metal_launches() == {}

def test_launches_of_nothing(metal_launches):
    assert tiny_ops.launch(mx.zeros((0, 2)), 0)[0].shape == (0,)  # both outputs are empty
    assert metal_launches() == {}

def test_another(metal_launches):
    tiny_ops.axpby(mx.ones(3, mx.float16), mx.ones(3, mx.float16)).tolist()
"""


@pytest.mark.extended
def test_metal_kernels_are_tested_without_a_gpu(
    project: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run `mlxgen metal-test` in another project: a success, and each kind of failure."""
    monkeypatch.setenv("MLXGEN_METAL_COMPILER", "false")  # all kernels are compiled in advance

    def metal_test(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run("-m", "mlxgen", "metal-test", *arguments, cwd=project, path=site)

    # Without its own tests: the generated checks, which launch every kernel.
    text = output(metal_test())
    assert "passed" in text and "skipped" not in text
    dense = ("dense", "dense_n", "dense_large")
    strided = [f"strided_{axes}{large}" for axes in "123n" for large in ("", "_large")]
    for layout in (*dense, *strided):
        for dtype in ("float32", "float16", "bfloat16"):
            assert re.search(rf"\d+  axpby_{layout}_{dtype}$", text, re.MULTILINE)
    assert "launches of 45 kernels" in text
    built = project / "build" / "metal" / "libraries" / "tiny_ops.axpby.metal"
    diags = Diagnostics()
    settings = read_settings.load(project, diags)
    (axpby,) = [op for op in operators.load(settings, diags)[0] if op.name == "axpby"]
    assert kernels_around(axpby, axpby.forward.kernel("metal"), {}) in built.read_text(
        encoding="utf-8"
    )

    tests = project / "tests" / "test_metal.py"
    tests.parent.mkdir()
    tests.write_text(METAL_TESTS, encoding="utf-8")
    kernel = project / "kernels" / "metal" / "axpby.metal"
    before = kernel.read_text(encoding="utf-8")
    try:
        done = metal_test()
        assert done.returncode == 1 and "12 passed" in done.stdout
        missing = "ERROR axpby: no test has launched axpby_dense_n_float16, axpby_dense_large_"
        assert missing in done.stdout and "axpby_dense_float32," not in done.stdout
        assert "1 passed" in output(metal_test("--", "tests", "-k", "dense"))
        shared = metal_test("--jobs", "2")  # the launches of all workers are counted
        assert shared.returncode == 1 and "12 passed" in shared.stdout
        assert "created: 2/2 workers" in shared.stdout
        assert missing in shared.stdout and "axpby_dense_float32," not in shared.stdout

        tests.write_text("import os\ndef test_killed():\n    os.kill(os.getpid(), 11)\n", "utf-8")
        done = metal_test()
        assert done.returncode == 1
        assert "pytest was killed by SIGSEGV in tests/test_metal.py::test_killed" in done.stderr

        tests.write_text(METAL_TESTS, encoding="utf-8")
        endless = "for (int i = 0; x == x; ++i) { y += i; }\n  return T(alpha"
        kernel.write_text(before.replace("return T(alpha", endless), encoding="utf-8")
        monkeypatch.setenv("MLXGEN_METAL_TIMEOUT", "0.5")
        done = metal_test("--", "tests", "-k", "dense")
        assert "errors of emulated Metal kernels" in done.stdout
        assert "axpby_dense_float32: no end within 0.5 seconds" in done.stdout

        kernel.write_text(before.replace("T(alpha * x", "T(alpha * z"), encoding="utf-8")
        done = metal_test()
        assert done.returncode == 1
        assert "error: tiny_ops.axpby does not compile:" in done.stderr
        assert re.search(r"axpby\.metal:\d+:\d+: error: .*\Wz\W", done.stderr)

        kernel.write_text(before.replace("float alpha", "double alpha"), encoding="utf-8")
        done = metal_test()
        assert done.returncode == 1
        assert "axpby.metal:4:25: Metal has no double" in done.stderr
    finally:
        kernel.write_text(before, encoding="utf-8")
        shutil.rmtree(tests.parent)

    yaml = project / "mlx_ops.yaml"
    entries = yaml.read_text(encoding="utf-8")
    try:
        yaml.write_text(entries.replace("float beta=1", "float beta=2"), encoding="utf-8")
        done = metal_test()
        assert done.returncode == 1
        assert "error: the operators of the installed tiny_ops (in " in done.stderr
        assert "differ from those in mlx_ops.yaml: install it again" in done.stderr
    finally:
        yaml.write_text(entries, encoding="utf-8")


@pytest.mark.extended
def test_a_mistake_is_reported_as_it_is(project: Path) -> None:
    path = project / "mlx_ops.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("variants", "varients"), encoding="utf-8")
    try:
        done = run("-m", "ninja", "-C", "build", cwd=project)
        assert done.returncode != 0
        shown = done.stdout + done.stderr
        assert re.search(r"mlx_ops\.yaml:5:3: error\[MG\d+\]: .*did you mean 'variants'", shown)
        assert "Traceback" not in shown
    finally:
        path.write_text(text, encoding="utf-8")


EDITABLE = """
import os, site, sys
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
site.addsitedir(sys.argv[1])
import mlx.core as mx, tiny_ops
print(tiny_ops.extra.twice(mx.array(4.0)).item())
"""


@pytest.mark.extended
def test_an_import_that_cannot_build_ends_with_the_reason(project: Path, tmp_path: Path) -> None:
    # Compiles nothing again.
    config = {"build-dir": "build", "editable.rebuild": "true", "editable.verbose": "false"}
    build = f"from mlxgen import build; build.build_editable('editable', {config})"
    output(run("-c", build, cwd=project))
    (wheel,) = (project / "editable").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (record,) = tmp_path.glob("*.dist-info/RECORD")
    for name, said, size in csv.reader(record.read_text(encoding="utf-8").splitlines()):
        data = (tmp_path / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        assert (said, size) == (f"sha256={digest}", str(len(data))) or name.endswith("/RECORD")

    def use() -> subprocess.CompletedProcess[str]:
        return run("-c", EDITABLE, str(tmp_path), cwd=project)

    def reason() -> str:
        done = use()
        assert done.returncode == 1 and "CalledProcessError" not in done.stderr
        error = "ImportError: the changed sources of tiny_ops cannot be built"
        return done.stderr.partition(error)[2]

    path = project / "mlx_ops.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("variants", "varients"), encoding="utf-8")
    try:
        said = reason()
        assert re.fullmatch(r":\nmlx_ops\.yaml:5:3: error\[MG\d+\]: .*\n1 error\n", said, re.DOTALL)
    finally:
        path.write_text(text, encoding="utf-8")
    path = project / "csrc" / "mistake.cpp"
    path.write_text("mistake", encoding="utf-8")
    try:
        assert reason() == "; the reason is above\n"
    finally:
        path.unlink()
    assert output(use()) == "8.0\n"


@pytest.mark.extended
def test_a_build_of_selected_operators(project: Path, tmp_path: Path) -> None:
    build = "from mlxgen import build; build.build_wheel('selected', {'mlxgen.select': %r})"
    output(run("-c", build % "twice, axpby", cwd=project))
    (wheel,) = (project / "selected").glob("*.whl")
    sources = project / "build" / "selected" / "generated" / "src"
    assert {path.stem for path in sources.glob("*.cpp")} == {
        *("axpby", "twice", "dispatch", "bind_0", "module")
    }
    builds.install(wheel, tmp_path)
    code = "import tiny_ops; print(tiny_ops._build_info.SELECTED, *tiny_ops.dispatch_table())"
    assert output(run("-c", code, cwd=project, path=tmp_path)).split() == ["twice;axpby", "axpby"]
    assert (project / "build" / "generated" / "src" / "cut.cpp").exists()  # a folder of its own
    done = run("-c", build % ["twize"], cwd=project)
    shown = done.stdout + done.stderr
    assert done.returncode != 0
    assert "error[MG606]: unknown operator or tag 'twize' (did you mean 'twice'?)" in shown


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="Apple's C++ library is always shared")
def test_a_static_cpp_library_stays_private(project: Path, tmp_path: Path) -> None:
    """Exported, its symbols would mix with those of the shared library, which MLX uses."""
    commands = output(run("-m", "ninja", "-C", "build", "-t", "commands", cwd=project))
    links = re.findall(r"&& ([^&\n]* -shared [^&\n]*)", commands)
    assert len(links) == 2  # the operators and the bindings
    for command in links:
        library = tmp_path / "linked.so"
        command = re.sub(r"-o \S+", f"-static-libstdc++ -o {library}", command)
        subprocess.run(command, shell=True, check=True, cwd=project / "build")
        symbols = output(subprocess.run(["nm", "-D", library], capture_output=True, text=True))
        assert " U " in symbols
        assert not re.search(r" [^U] _ZNSolsEi", symbols)  # std::ostream << int


@pytest.mark.extended
def test_a_nanobind_that_does_not_fit(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("MLXGEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "nanobind" / "src").mkdir(parents=True)
    (tmp_path / "nanobind" / "__init__.py").touch()
    (tmp_path / "nanobind" / "src" / "nb_abi.h").write_text("#define NB_INTERNALS_VERSION 15\n")
    (tmp_path / "nanobind-2.8.0.dist-info").mkdir()
    (tmp_path / "nanobind-2.8.0.dist-info" / "METADATA").write_text("Version: 2.8.0\n")
    copy = tmp_path / "project"
    shutil.copytree(project, copy, ignore=shutil.ignore_patterns("build", "dist"))
    done = run("-c", builds.BUILD, cwd=copy, path=tmp_path)
    assert done.returncode != 0
    shown = done.stdout + done.stderr
    assert "mlxgen: nanobind 2.8.0 does not match MLX" in shown
    assert "Traceback" not in shown


@pytest.mark.extended
def test_requirements(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = build.requirements(project)
    assert set(build.TOOLS) < set(found)
    assert f"mlx{install.backend()}=={mx.__version__}" in found
    assert any(re.fullmatch(r"nanobind==[\d.]+", item) for item in found)
    monkeypatch.setattr(build.compat, "version", lambda name: None)
    with pytest.raises(SystemExit, match="which MLX should tiny_ops be built for"):
        build.requirements(project)


@pytest.mark.extended
def test_editable_installs_have_a_build_folder_of_their_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(build, "_say_why", lambda wheel: None)
    given = {}
    for name in ("build_wheel", "build_editable"):
        backend = SimpleNamespace(
            __file__=shutil.__file__, **{name: lambda folder, config: given.update(config)}
        )
        monkeypatch.setattr(build, "_backend", lambda backend=backend: backend)
        for prefix in ("/", "/elsewhere"):
            given.clear()
            monkeypatch.setattr(build.sys, "prefix", prefix)
            getattr(build, name)("dist")
            editable = name == "build_editable"
            assert given["build-dir"] == ("build/editable" if editable else "build")
            assert given["cmake.define.MLXGEN_SELECT"] == ""  # not the last build's
            # The CMake of an isolated build no longer exists when the package is imported.
            assert (given.get("editable.rebuild") == "false") == (editable and prefix != "/")


@pytest.mark.extended
def test_without_a_compiler(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SystemExit, match=r"^mlxgen: there is no C\+\+ compiler: (run|install) "):
        build.build_wheel("dist")


def test_what_metal_test_copies_of_an_editable_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "installed", tmp_path / "sources"]
    for folder in folders:
        folder.mkdir()
    spec = SimpleNamespace(submodule_search_locations=list(map(str, folders)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(EmulationError, match="not installed"):
        installed("tiny")
    (folders[0] / "ops.json").touch()
    assert installed("tiny") == folders


def test_build_extra_is_what_the_backend_asks_for() -> None:
    path = Path(mlxgen.__file__).with_name("pyproject.toml")
    extras = build.tomllib.loads(path.read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert extras["build"] == [*build.TOOLS, "nanobind"]


KINDS = (".py", ".h", ".cpp", ".j2", ".json", ".in", ".typed", ".cl")


def test_mlxgen_installs_all_its_files() -> None:
    folder = Path(mlxgen.__file__).parent
    settings = build.tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = settings["tool"]["setuptools"]
    folders = {name: folder.joinpath(*name.split(".")[1:]) for name in setuptools["packages"]}
    installed = {path for place in folders.values() for path in place.glob("*.py")}
    for name, patterns in setuptools["package-data"].items():
        installed |= {path for pattern in patterns for path in folders[name].glob(pattern)}
    for path in folder.rglob("*"):
        ignored = {"__pycache__", "build", "mlxgen.egg-info"} & set(path.relative_to(folder).parts)
        if path.is_file() and not ignored and path.suffix in KINDS:
            assert path in installed
