"""softcap: a composite, which consists of MLX's operations only."""

import re

import mlx.core as mx
import mlxops
import numpy as np
from ops.accuracy import assert_close, draw

from mlxgen.testing import to_numpy


def test_values(dtype):
    a, x = draw(dtype, low=-30, high=30)
    assert_close(mlxops.softcap(a, 5.0), 5 * np.tanh(x / 5), 4)
    assert_close(mlxops.softcap(a), 50 * np.tanh(x / 50), 4)
    assert mlxops.softcap(a).dtype == dtype


def test_limits():
    out = mlxops.softcap(mx.array([1e30, -mx.inf, mx.inf, mx.nan, 0.0]), cap=2.0)
    np.testing.assert_array_equal(np.array(out), [2, -2, 2, np.nan, 0])


def test_integers_become_float32():
    out = mlxops.softcap(mx.array([1, 2]), 2.0)
    assert out.dtype == mx.float32
    assert_close(out, 2 * np.tanh([0.5, 1.0]), 4)


def test_compile_fuses_it(tmp_path):
    x = mx.ones((3,))
    out = mx.compile(lambda x: mlxops.softcap(x, 5.0))(x)
    graph = tmp_path / "graph.dot"
    with graph.open("w") as file:
        mx.export_to_dot(file, out)
    kernels = re.findall(r'label ="(\w*)", shape=rectangle', graph.read_text())
    # One kernel in addition to the constant.
    assert [k for k in kernels if k not in ("Broadcast", "Full")] == [kernels[-1]]
    assert re.fullmatch("Compiled.*Divide.*Tanh.*Multiply", kernels[-1])
    np.testing.assert_allclose(to_numpy(out), to_numpy(mlxops.softcap(x, 5.0)), 1e-6)


def test_export(tmp_path):
    """A composite can be exported, unlike primitives of extensions."""
    path = str(tmp_path / "softcap.mlxfn")
    x = mx.array([1.0, 60.0])
    mx.export_function(path, lambda x: mlxops.softcap(x), x)
    np.testing.assert_array_equal(mx.import_function(path)(x)[0], mlxops.softcap(x))
