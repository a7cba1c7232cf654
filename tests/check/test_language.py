"""Packages built from their own YAML and kernels, imported together with mlxops in one process.

Two packages contain the two forms of the original proposal, unchanged. The third contains the parts
of the language that no operator of mlxops uses. pip builds them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import builds
import pytest

from mlxgen.read.keys import OpEntry

FORMS = {
    "first": """
        - name: add
          signature: "array add(const array& a, const array& b)"
          dispatch:
            metal: add_metal
            cpu: add_cpu
          python_name: add
          grad:
            a: grad
            b: grad
        """,
    "second": """
        - name: add
          cpp_signature: "array(const array&, const array&)"
          python_signature: "add(a: array, b: array) -> array"
          grad:
            a: grad_out
            b: grad_out
        """,
    "my_ops": """
        # A bound function with a gradient of its own, on purpose ten times too large.
        - name: exp
          signature: "exp(array a) -> array"
          grad: {a: 10 * grad * result}

        # A bound function of one's own, with arguments of many kinds.
        - signature: >-
            shift(x: array, by: array | None = None, *, sign: Literal["plus", "minus"] = "plus",
            axes: list[int] = [0], out_type: Dtype | None = None) -> array
          cpp: my_ops::shifted

        - signature: "norm(x: array, axis: axes = None, keepdims: bool = False) -> array"
          cpp: mlx::core::logsumexp

        - signature: "tiled(Tensor x, int[2] n) -> Tensor"
          composite: tile(x, n)

        # The gradient of an optional array.
        - signature: "weighted(x: array, w: array | None = None) -> array"
          dispatch: {cpu: weighted}
          shape: x.shape
          grad:
            x: grad if w is None else grad * w
            w: grad * x
          vmap: batch

        # Compiled for positive inputs too: whether it was that is in its results.
        - signature: "by_sign(n: int, x: array, y: array) -> (sum: array, fast: array)"
          dispatch: {cpu: by_sign}
          grad: none

        # A shape that arguments can make impossible.
        - signature: "middle(x: array, cut: int) -> array"
          dispatch: {cpu: middle}
          shape: "[x.shape[1] - 2 * cut]"
          grad: none

        # Lengths that some arguments do not have.
        - signature: "parts(x: array, y: array, n: int) -> array"
          composite: x.sum() * y
          axes: {x: N, y: N//n N*n*n*n}

        # Elementwise, but not of arrays with more axes in front.
        - signature: "plus(x: array, y: array) -> array"
          dispatch: {cpu: add_cpu}
          axes: {x: B T, y: T}
          grad: {x: grad, y: grad}
        """,
}

SOURCES = {
    "csrc/kernels.h": """
        #pragma once
        #include "mlx/mlx.h"
        #include "mlxgen/kernel.h"

        namespace my_ops {
        namespace mx = mlx::core;

        inline mx::array shifted(
            const mx::array& x,
            const std::optional<mx::array>& by,
            const std::string& sign,
            const std::vector<int>& axes,
            const std::optional<mx::Dtype>& out_type,
            mx::StreamOrDevice s) {
          auto step = by ? *by : mx::array(1.0f, x.dtype());
          auto out = sign == "plus" ? mx::add(x, step, s) : mx::subtract(x, step, s);
          out = mx::sum(out, axes, false, s);
          return out_type ? mx::astype(out, *out_type, s) : out;
        }
        } // namespace my_ops

        namespace kernels {
        template <typename T>
        T add_cpu(T a, T b) {
          return a + b;
        }
        template <typename T, bool positive = false>
        void by_sign(int n, T x, T y, T& sum, T& fast) {
          sum = x + n * y;
          fast = positive;
        }
        template <typename T>
        void weighted(mlxgen::In<T> x, mlxgen::In<T> w, mlxgen::Out<T> out) {
          for (int64_t i = 0; i < x.size(); ++i) {
            out[i] = w ? static_cast<T>(x[i] * w[i]) : x[i];
          }
        }
        template <typename T>
        void middle(mlxgen::In<T> x, int cut, mlxgen::Out<T> out) {
          for (int64_t i = 0; i < out.size(); ++i) {
            out[i] = x[cut + i];
          }
        }
        } // namespace kernels
        """,
    "kernels/metal/kernels.metal": """
        #include <metal_stdlib>
        template <typename T>
        T add_metal(T a, T b) {
          return a + b;
        }
        """,
}
# The examples of docs/language.md: entries of my_ops, and files that begin with their names.
PAGE = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
EXAMPLES = PAGE.partition("\n## Hand-written members\n")[2]
EXAMPLES = EXAMPLES.partition("\n## Documentation and tests\n")[0]
FORMS["my_ops"] = dedent(FORMS["my_ops"]) + "".join(
    re.findall(r"^```yaml\n(.*?)^```$", EXAMPLES, re.MULTILINE | re.DOTALL)
)
BY_HAND = dict(re.findall(r"^```cpp\n// (\S+)\n(.*?)^```$", EXAMPLES, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three packages, next to MLX."""
    site = tmp_path_factory.mktemp("site")
    for name, yaml in FORMS.items():
        root = tmp_path_factory.mktemp(name)
        files = {
            "pyproject.toml": f'[project]\nname = "{name}"\nversion = "1"\n',
            "mlx_ops.yaml": dedent(yaml),
            f"python/{name}/__init__.py": f"from {name}._load import *\n",
            **{path: dedent(text) for path, text in SOURCES.items()},
        }
        if name == "my_ops":
            files |= BY_HAND
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        builds.install(builds.build_wheel(root), site)
    return site


def test_index_has_all_keys() -> None:
    index = PAGE.partition("\n## Keys\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \|", index, re.MULTILINE)
    keys = [key for row in rows for key in re.findall(r"`(\w+)`", row)]
    assert sorted(keys) == sorted(OpEntry.model_fields)


def _run(site: Path, script: str) -> None:
    preamble = """
import warnings
import mlx.core as mx
import first, second, my_ops, mlxops
mx.set_default_device(mx.cpu)
x, y = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])

def raises(text, function, *args):
    try:
        function(*args)
    except (ValueError, TypeError) as error:
        assert text in str(error), error
    else:
        raise AssertionError("nothing raised")
"""
    done = subprocess.run(
        [sys.executable, "-c", preamble + dedent(script)],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("form", ["first", "second"])
def test_forms_of_the_proposal(site: Path, form: str) -> None:
    _run(
        site,
        f"""
        add = {form}.add
        assert add(x, y).tolist() == [4, 6]
        assert add(x, 1).tolist() == [2, 3]
        f = lambda a, b: (add(a, b) ** 2).sum()
        assert [g.tolist() for g in mx.grad(f, argnums=(0, 1))(x, y)] == [[8, 12], [8, 12]]
        assert mx.grad(lambda a: f(x, a))(mx.array(1.0)).item() == 10  # broadcast is undone
        assert mx.vmap(add, in_axes=(0, None))(x, y).tolist() == [[4, 5], [5, 6]]
        assert mx.jvp(add, [x, y], [y, y])[1][0].tolist() == [6, 8]
        assert mx.compile(add)(x, y).tolist() == [4, 6]
        """,
    )


@pytest.mark.extended
def test_side_by_side(site: Path) -> None:
    _run(
        site,
        """
        assert (first.add(x, y) + mlxops.examples.add(x, y) + second.add(x, y)).tolist() == [12, 18]
        assert set(first.dispatch_table()) == {"add"} and "lgamma" in mlxops.dispatch_table()
        assert set(my_ops.dispatch_table()) == {"by_sign", "cube", "middle", "plus", "weighted"}
        """,
    )


@pytest.mark.extended
def test_gradient_of_a_bound_function(site: Path) -> None:
    """The gradient replaces MLX's own, also under vmap, in the jvp and in checkpoints."""
    _run(
        site,
        """
        exp = my_ops.exp
        ten = [10 * v for v in mx.exp(x).tolist()]
        close = lambda a, b: mx.allclose(a, mx.array(b), 1e-5).item()
        assert close(exp(x), mx.exp(x).tolist())
        assert close(mx.grad(lambda a: exp(a).sum())(x), ten)
        assert close(mx.vmap(mx.grad(exp))(x), ten)
        assert close(mx.grad(lambda a: mx.vmap(exp)(a).sum())(x), ten)
        assert close(mx.jvp(exp, [x], [mx.ones(2)])[1][0], ten)
        assert close(mx.grad(lambda a: mx.checkpoint(exp)(a).sum())(x), ten)
        both = mx.vmap(lambda a, b: exp(a * b), in_axes=(0, None))
        assert both(x, y).shape == (2, 2)
        """,
    )


@pytest.mark.extended
def test_arguments(site: Path) -> None:
    _run(
        site,
        """
        m = mx.array([[1.0, 2.0], [3.0, 4.0]])
        assert my_ops.shift(m).tolist() == [6, 8]
        assert my_ops.shift(m, 2, sign="minus", axes=[0, 1]).item() == 2
        assert my_ops.shift(m, out_type=mx.int32).dtype == mx.int32
        raises("one of 'plus', 'minus', got 'up'", lambda: my_ops.shift(m, sign="up"))
        raises("incompatible function arguments", lambda: my_ops.shift(m, None, "minus"))
        for axis in (None, 0, (0, 1), [1]):
            for keepdims in (False, True):
                got = my_ops.norm(m, axis, keepdims=keepdims)
                assert mx.array_equal(got, mx.logsumexp(m, axis, keepdims=keepdims))
        assert my_ops.tiled(x, [2, 2]).shape == (2, 4)
        assert my_ops.tiled(x, [2]).shape == my_ops.tiled(x, 2).shape == (2, 4)
        raises("[tiled] n must have 2 integers", lambda: my_ops.tiled(x, [2, 2, 2]))
        """,
    )


@pytest.mark.extended
def test_modules_aliases_and_warnings(site: Path) -> None:
    _run(
        site,
        """
        import my_ops.nn.gates
        from my_ops.nn import gates
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert gates.gated(x, y).tolist() == gates.gate_it(x, y).tolist() == [3, 8]
        assert [str(w.message) for w in caught][0] == "[gated] Deprecated: use x * gate"
        warnings.simplefilter("ignore")
        assert mx.grad(lambda a: gates.gated(a, y).sum())(x).tolist() == [3, 4]
        wrong = mx.grad(lambda a: gates.gated(x, a).sum())
        raises("[gated] Not differentiable with respect to 'gate'", wrong, y)
        """,
    )


@pytest.mark.extended
def test_manual_and_optional(site: Path) -> None:
    _run(
        site,
        """
        assert mx.grad(lambda a: my_ops.cube(a).sum())(x).tolist() == [3, 12]
        assert mx.jvp(my_ops.cube, [x], [y])[1][0].tolist() == [9, 48]
        w = my_ops.weighted
        assert w(x).tolist() == [1, 2] and w(x, y).tolist() == [3, 8]
        assert mx.grad(lambda a: w(a).sum())(x).tolist() == [1, 1]
        grads = mx.grad(lambda a, b: w(a, b).sum(), argnums=(0, 1))(x, y)
        assert [g.tolist() for g in grads] == [[3, 4], [1, 2]]
        assert mx.vmap(w, in_axes=(0, None))(mx.stack([x, y]), y).tolist() == [[3, 8], [9, 16]]
        """,
    )


@pytest.mark.extended
def test_loop_for_positive_inputs(site: Path) -> None:
    """The loop computes exactly the blocks of 512 elements in which every input is above 0."""
    _run(
        site,
        """
        import numpy as np
        rng = np.random.default_rng(0)

        def positive(a, padded):
            # Blocks of 512; the last one has at least 64 elements, some of the one before.
            count = len(a)
            a = np.append(a, np.full(-count % 64 if padded else 0, a[0]))
            found = np.zeros(len(a))
            for start in range(0, len(a), 512):
                part = slice(min(start, len(a) - 64), start + 512)
                found[part] = (a[part] > 0).all()
            return found[:count]

        for dtype in (mx.float16, mx.float32, mx.float64, mx.int32):
            for size in (1, 63, 64, 512, 2000, 20_000):
                for other in (0.0, -0.0, -1.0, float("nan")):
                    numbers = rng.integers(1, 20, (2, size)).astype(float)
                    numbers[rng.integers(2), rng.integers(size)] = other
                    last = numbers.copy()
                    last[:, -1] = 1
                    for a in (numbers, np.abs(numbers) + 1, last):
                        if dtype == mx.int32:
                            a = np.nan_to_num(a)
                        x, y = (mx.array(row, dtype=dtype) for row in a)
                        sum, fast = my_ops.by_sign(2, x, y)
                        assert np.array_equal(np.array(sum, float), a[0] + 2 * a[1], True)
                        least = a.min(axis=0)
                        if dtype != mx.float16 and size >= 64:
                            wanted = positive(least, False)
                        else:  # copied, in blocks that are padded with their first elements
                            parts = np.split(least, range(2048, size, 2048))
                            wanted = np.concatenate([positive(part, True) for part in parts])
                        assert np.array_equal(np.array(fast, float), wanted), (dtype, size)
        x = mx.arange(1.0, 7.0).reshape(2, 3)
        assert my_ops.by_sign(1, x.T, x.T)[1].tolist() == [[1, 1]] * 3
        assert my_ops.by_sign(1, x[1:, ::-1], 1.0)[1].tolist() == [[1, 1, 1]]
        assert my_ops.by_sign(1, mx.array(2.0), mx.array(0.0))[1].item() == 0
        assert my_ops.by_sign(1, mx.zeros((0,)), 1.0)[1].shape == (0,)
        """,
    )


@pytest.mark.extended
def test_shapes_that_cannot_be(site: Path) -> None:
    """Errors are raised when the graph is built, with the operator's name and its arguments."""
    _run(
        site,
        """
        middle, m = my_ops.middle, mx.array([[1.0, 2.0, 3.0, 4.0]])
        assert middle(m, 1).tolist() == [2, 3] and middle(m, 2).tolist() == []
        message = "[middle] The output shape (-2,) has a negative size. Got x: float32 (1, 4), "
        message += "cut: 3."
        raises(message, middle, m, 3)
        message = "[middle] Axis 1 is out of range for an array with 1 dimensions. Got x: float32"
        raises(message, middle, x, 0)
        compiled = mx.compile(lambda a: middle(a, 2), shapeless=True)
        assert compiled(m).tolist() == [] and compiled(mx.ones((1, 5))).tolist() == [1]
        raises("[middle] The output shape (-1,) has a negative size", compiled, mx.ones((1, 3)))
        parts, two = my_ops.parts, mx.ones(2)
        message = "[parts] y must be (N//n, N*n*n*n), where x is (N,). Got x: float32 "
        assert parts(two, mx.ones((1, 16)), 2).shape == (1, 16)
        raises(message + "(2,), y: float32 (1, 0), n: 0.", parts, two, mx.ones((1, 0)), 0)
        for n in (2000, 2**21):  # products beyond 32 and 64 bits
            raises(message + "(2,), y: float32 (0, 0)", parts, two, mx.ones((0, 0)), n)
        """,
    )


@pytest.mark.extended
def test_axes_of_elementwise_operators(site: Path) -> None:
    """Axes are checked for the arguments; gradients and batches have broadcast arrays."""
    _run(
        site,
        """
        plus, x, y = my_ops.plus, mx.arange(12.0).reshape(2, 3, 2), mx.array([1.0, 5.0])
        raises("[plus] x must be (B, T).", plus, x, y)
        for f in (mx.vmap(plus, (0, None)), mx.compile(mx.vmap(plus, (0, None)), shapeless=True)):
            assert mx.array_equal(f(x, y), x + y) and mx.array_equal(f(x[:1], y), x[:1] + y)
        assert mx.vmap(plus, (2, None), 2)(mx.ones((3, 2, 4)), y).shape == (3, 2, 4)
        gradient = mx.grad(lambda *a: plus(*a).sum(), (0, 1))
        assert [g.tolist() for g in gradient(x[0], y)] == [mx.ones((3, 2)).tolist(), [3, 3]]
        assert [g.shape for g in mx.vmap(gradient, (0, None))(x, y)] == [(2, 3, 2), (2, 2)]
        assert mx.jvp(plus, [x[0], y], [x[1], y])[1][0].tolist() == (x[1] + y).tolist()
        """,
    )
