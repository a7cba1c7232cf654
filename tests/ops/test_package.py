"""The package around the operators: names, tables, methods, documentation."""

import inspect
import json
import re
import subprocess
import sys
from importlib import resources

import mlx.core as mx
import mlxops
import pytest

from mlxgen.testing import metal_backend

OPS = [
    op
    for op in json.loads(resources.files(mlxops).joinpath("ops.json").read_text("utf-8"))[
        "operators"
    ]
]
SHIPPED = [
    *("add", "axpby", "softcap", "swiglu", "lgamma", "digamma", "polygamma", "sincos"),
    *("rms_norm_residual", "segment_sum", "grid_sample", "block_diag"),
]


def function(op):
    target = mlxops
    for part in filter(None, op["module"].split(".")):
        target = getattr(target, part)
    return getattr(target, op["python_name"])


PUBLIC = [op for op in OPS if "internal" not in op["tags"]]


def test_all_operators_are_there():
    assert {op["name"] for op in PUBLIC} >= set(SHIPPED)
    assert set(mlxops.__all__) >= {op["python_name"] for op in PUBLIC if not op["module"]}


@pytest.mark.parametrize("op", PUBLIC, ids=lambda op: op["name"])
def test_documentation(op):
    doc = function(op).__doc__
    lines = [line.strip() for line in doc.splitlines()]
    assert lines[0].startswith(f"{op['python_name']}(")
    assert "stream: StreamOrDevice = None" in lines[0]
    assert "Args:" in lines
    assert "Returns:" in lines
    for arg in op["args"]:
        assert any(line.startswith(f"{arg['name']} (") for line in lines), arg["name"]


@pytest.mark.parametrize("op", PUBLIC, ids=lambda op: op["name"])
def test_aliases(op):
    for alias in op["aliases"]:
        named = function({**op, "python_name": alias})
        assert callable(named)
        assert named.__doc__.startswith(f"{alias}(")


def test_internal_operators_are_not_in_python():
    for op in OPS:
        if "internal" in op["tags"]:
            assert not hasattr(mlxops, op["python_name"])


def test_dispatch_table():
    table = mlxops.dispatch_table()
    for op in OPS:
        if op["form"] != "kernels":
            assert op["name"] not in table
            continue
        row = table.get(op["name"], {})  # missing for operators with Metal kernels only
        for backend, kernel in op["kernels"].items():
            if backend == "metal" and metal_backend() is None:
                assert "metal" not in row, "the table tells what this build has"
            else:
                assert row[backend]["kernel"] == kernel["kernel"]
                dtypes = [dtype.rstrip("_") for dtype in kernel["dtypes"]]  # bool_
                assert row[backend]["dtypes"] == dtypes


def test_dispatch_table_is_a_copy():
    mlxops.dispatch_table().clear()
    assert mlxops.dispatch_table()


def test_every_kernel_has_the_dtypes_that_were_asked_for():
    internal = {op["name"] for op in OPS if "internal" in op["tags"]}
    linalg = {op["name"] for op in OPS if op["module"] == "linalg"}
    for op, row in mlxops.dispatch_table().items():
        if op in internal:
            continue  # functions called by a composite may support one dtype only
        wanted = {"float32", "float64"}  # LAPACK has no other
        if op not in linalg:
            wanted |= {"float16", "bfloat16"}
        assert set(row["cpu"]["dtypes"]) >= wanted, op


def test_methods():
    x = mx.array([1.5, 40.0])
    names = mlxops.install_methods()
    try:
        assert (
            names
            == mlxops.install_methods()
            == sorted(op["python_name"] for op in PUBLIC if "method" in op["variants"])
        )
        assert x.softcap(3.0).tolist() == mlxops.softcap(x, 3.0).tolist()
        assert x.softcap(cap=3.0, stream=mx.cpu).tolist() == mlxops.softcap(x, 3.0).tolist()
        assert x.lgamma().tolist() == mlxops.lgamma(x).tolist()
        assert mx.grad(lambda x: x.lgamma().sum())(x).shape == (2,)
        assert mx.array.lgamma.__doc__ == mlxops.lgamma.__doc__
        assert mx.array.lgamma.__qualname__ == "array.lgamma"
    finally:
        for name in names:
            delattr(mx.array, name)


def test_methods_are_opt_in():
    assert not hasattr(mx.array, "softcap")


def test_stubs_are_installed():
    folder = resources.files(mlxops)
    assert folder.joinpath("py.typed").is_file()
    stub = folder.joinpath("_ext", "__init__.pyi").read_text("utf-8")
    for op in PUBLIC:
        assert f"def {op['python_name']}(" in stub or op["module"]


def test_version():
    assert mlxops.__version__.count(".") == 2
    assert inspect.ismodule(mlxops._ext)


def test_another_version_of_mlx():
    script = "import mlx.core as mx; mx.__version__ = '0.0.1'; import mlxops"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(
        rf"ImportError: mlxops {mlxops.__version__} was built for MLX {mx.__version__}, "
        r"but MLX 0\.0\.1 is installed: run `.* -m mlxgen rebuild mlxops`",
        done.stderr,
    )
