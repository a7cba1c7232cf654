"""Overloads and names of a compiled package: the calls of Python, formulas, methods and stubs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import pytest

import mlxgen
from mlxgen.testing import check

pytestmark = pytest.mark.extended

# The results tell which overload was called.
YAML = """
- signature: "pick(Tensor self) -> Tensor"
  composite: 0 * self + 1
  variants: [function, method]
- signature: "pick.dim(Tensor self, int dim, *, bool keepdim=False) -> Tensor"
  composite: 0 * self + (3 if keepdim else 2)
  variants: [function, method]
  samples: {dim: 0}
- signature: "pick.scale(Tensor self, float dim) -> Tensor"
  composite: 0 * self + 4
  samples: {dim: 0.5}
- signature: "pick.names(Tensor self, str mode) -> Tensor"
  composite: 0 * self + 5
  unused: {mode: the test needs only its kind}
  samples: {mode: a}
  deprecated: use dim
- signature: "pick.list(Tensor[] tensors, int[] sizes) -> Tensor"
  composite: 0 * tensors[0] + 6
  unused: {sizes: the test needs only its kind}
  samples: {tensors: [{}, {}], sizes: [1]}
- signature: "flags.bool(bool flag, Tensor self) -> Tensor"
  composite: self + 1 if flag else self
  samples: {flag: true}
- signature: "flags.int(int flag, Tensor self) -> Tensor"
  composite: self + flag
  samples: {flag: 5}
- signature: "caller(Tensor self) -> (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f)"
  composite: |-
    (pick(self), pick(self, 1), pick(self, keepdim=True, dim=0), pick(self, 1.5),
    2 * pick_dim(self, 1), flags(True, self) + flags(10, self))
- signature: "by_cpp_name(Tensor self) -> Tensor"
  composite: pick_scale(self, 2)
- signature: "kernel.one(Tensor self, Tensor default) -> Tensor"
  dispatch: {cpu: one}
  grad: {self: grad * default, default: grad * self}
- signature: "kernel.two(Tensor self, Tensor default, float EPS) -> Tensor"
  dispatch: {cpu: two}
  grad: {self: grad * EPS, default: zero}
  samples: {EPS: 0.5}
- signature: "_softmax(Tensor self, int dim, bool template=False) -> Tensor"
  composite: mx.softmax(self, axis=dim) if not template else self
  aliases: [special.softmax, nn.functional.soft]
  samples: {dim: -1}
- signature: "softmax(Tensor out, int _dim, Tensor? T=None, Tensor? grad=None) -> Tensor"
  composite: _softmax(out, _dim) if T is None else T
  unused: {grad: the test needs only its name}
  samples: {_dim: -1}
"""
CPP = """template <typename T>
T one(T self, T other) {
  return self * other;
}
template <typename T>
T two(T self, T, T eps) {
  return self * eps;
}
"""


@cache
def ops() -> ModuleType:
    return mlxgen.load(YAML, cpp=CPP)


X = mx.zeros((2, 2))


@pytest.mark.parametrize(
    ("args", "keywords", "expected"),
    [
        ((X,), {}, 1),
        ((1.5,), {}, 1),
        ((), {"self": X}, 1),
        ((X, 0), {}, 2),
        ((X, True), {}, 2),
        ((X,), {"dim": 0, "keepdim": True}, 3),
        ((X, 0.5), {}, 4),
        ((X,), {"dim": 0.5}, 4),
        ((X, "a"), {}, 5),
        (([X], [1]), {}, 6),
        ((), {"tensors": [X, X], "sizes": (1, 2)}, 6),
    ],
)
def test_calls(args: tuple[object, ...], keywords: dict[str, object], expected: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ops().pick(*args, **keywords)
    assert mx.max(found).item() == mx.min(found).item() == expected


def test_exact_kinds_are_tried_first() -> None:
    assert ops().flags(True, mx.array(1)).item() == 2
    assert ops().flags(2, mx.array(1)).item() == 3


def test_errors_list_all_overloads() -> None:
    with pytest.raises(TypeError) as error:
        ops().pick(X, object())
    text = str(error.value)
    assert text.count("pick(") >= 5
    assert "keepdim: bool = False" in text and "mode: str" in text


def test_only_the_deprecated_overload_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops().pick(X)
        with pytest.raises(DeprecationWarning, match="use dim"):
            ops().pick(X, "a")


def test_formulas_call_the_same_overloads() -> None:
    found = ops().caller(mx.ones((1,)))
    assert [array.item() for array in found] == [1, 2, 3, 4, 4, 2 + 11]


def test_formulas_call_an_overload_by_its_cpp_name() -> None:
    """The checks have no reference for it, because Python cannot call `pick_scale` with an int."""
    assert ops().by_cpp_name(mx.ones((1,))).item() == 4
    failures = [f for f in check(ops()).failures if f.operator == "by_cpp_name"]
    assert not failures, failures


def test_one_method_for_all_overloads() -> None:
    assert ops().install_methods() == ["pick"]
    try:
        assert X.pick().max().item() == 1
        assert X.pick(0, keepdim=True).max().item() == 3
        assert X.pick(dim=0.5).max().item() == 4
    finally:
        del mx.array.pick


def test_names() -> None:
    package = ops()
    assert {"_softmax", "softmax", "special", "nn"} <= set(package.__all__)
    x = mx.array([[1.0, 2.0]])
    expected = mx.softmax(x, axis=-1).tolist()
    assert package._softmax(self=x, dim=-1).tolist() == expected
    assert package.softmax(out=x, _dim=-1, grad=x).tolist() == expected
    assert package.softmax(x, -1, T=x).tolist() == x.tolist()
    assert package.special.softmax(x, -1, template=True).tolist() == x.tolist()
    assert package.nn.functional.soft(x, -1).tolist() == expected
    assert package.kernel(x, default=x).tolist() == [[1, 4]]
    assert package.kernel(x, x, EPS=0.5).tolist() == [[0.5, 1]]
    assert mx.grad(lambda x: package.kernel(x, 3 * x).sum())(x).tolist() == [[6, 12]]


def test_generated_checks_call_every_overload() -> None:
    report = check(ops())
    assert not report.failures, report
    table = json.loads(Path(ops().__file__).with_name("ops.json").read_text())["operators"]
    assert {op["name"] for op in table if op["python_name"] == "pick"} == {
        "pick",
        "pick_dim",
        "pick_scale",
        "pick_names",
        "pick_list",
    }


MYPY = ["-m", "mypy", "--strict", "--python-executable", sys.executable]
PYRIGHT = ["-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable]


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_stubs(checker: list[str], tmp_path: Path) -> None:
    shutil.copytree(Path(ops().__file__).parent, tmp_path / "own_ops")
    lines = [
        "import mlx.core as mx",
        "import own_ops",
        "x = mx.array(1.0)",
        "a: mx.array = own_ops.pick(x, 0, keepdim=True)",
        "b: mx.array = own_ops.pick(x, 0.5)",
        "c: mx.array = own_ops.softmax(x, 0, T=x)",
        "d: mx.array = own_ops.special.softmax(x, 0)",
        "wrong = own_ops.pick(x, x)",
    ]
    (tmp_path / "user.py").write_text("\n".join(lines) + "\n")
    command = [sys.executable, *checker, "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = re.findall(r"user\.py:(\d+)", done.stdout + done.stderr)
    assert set(found) == {"8"}, done.stdout + done.stderr
