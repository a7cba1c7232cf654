"""Arguments that are an array or a string, in a compiled package."""

from __future__ import annotations

import ast
import doctest
import json
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import mlxgen

pytestmark = pytest.mark.extended

YAML = """
- signature: >-
    attend(q: array, k: array, v: array, *, scale: float,
    mask: array | Literal["causal"] | None = None) -> array
  cpp: mlx::core::fast::scaled_dot_product_attention
  samples:
    - {q: &a {shape: [1, 2, 3, 8]}, k: *a, v: *a, scale: 0.5, mask: {shape: [3, 3]}}
- signature: 'scaled(x: array, by: array | Literal["twice", "minus"] | None = None) -> array'
  composite: >-
    x if by is None else 2 * x if by == "twice" else -x if by == "minus" else x * by
  variants: [function, method, inplace, out]
- signature: 'gated(x: array, gate: array | Literal["open"]) -> array'
  checks: [{that: gate == "open" or gate.ndim <= x.ndim, else: gate has too many axes}]
  composite: x if gate == "open" else x * sigmoid(gate)
  grad:
    x: grad if gate == "open" else grad * sigmoid(gate)
    gate: grad * x * sigmoid(gate) * (1 - sigmoid(gate))
# Own kernels, with a gradient of the array; equal primitives are computed once.
- signature: >-
    masked(x: array, mask: array | Literal["all", "none", "other"] | None = None, *,
    fill: float = 0) -> array
  axes: {x: N D, mask: N D}
  dispatch: {cpu: masked}
  shape: x.shape
  composite: >-
    x if mask is None or mask == "all" else full_like(x, fill)
    if mask in ("none", "other") else x * mask
  grad:
    x: >-
      grad if mask is None or mask == "all" else zeros_like(x) if mask in ("none", "other")
      else grad * mask
    mask: grad * x
- signature: 'by_default(x: array, by: array | Literal["twice", "minus"] = "twice") -> array'
  composite: scaled(x, by)
- signature: 'passed(x: array, by: array | Literal["minus"] | None, t: str = "minus") -> array'
  composite: >-
    stack([scaled(x, by), scaled(x, t), scaled(x, "twice"), scaled(x), scaled(x, x),
    scaled(x, None), by_default(x), scaled(x, by if by is not None and by != "minus" else None)])
- signature: 'placed(x: array, by: array | Literal["a"], /, *, by_mode: float = 1) -> array'
  composite: x * by_mode if by == "a" else x * by
- signature: 'named(x: array, by: array | Literal["minus"] | None = None) -> array'
  let: {minus: by == "minus", same: by, factor: 1 if minus else 2}
  composite: -x if minus else x if same is None else factor * x * same
- {name: pick_list, python_name: pick, signature: "pick(x: array, n: list[int]) -> array",
  composite: x + len(n), samples: {n: [1]}}
- name: pick_union
  signature: 'pick(x: array, n: array | Literal["a"]) -> array'
  python_name: pick
  composite: x if n == "a" else x * n
- {name: pick_text, python_name: pick, signature: "pick(x: array, *, t: str) -> array",
  composite: 'x + (1 if t == "b" else 2)', samples: {t: b}}
"""
# The example of docs/language.md: its entry and its calls.
PAGE = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n### Arrays or strings\n")[2].partition("\n### ")[0]
YAML += "".join(re.findall(r"^```yaml\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL))
CPP = """
template <typename T>
void masked(mlxgen::In<T> x, int mode, mlxgen::In<T> mask, double fill, mlxgen::Out<T> out) {
  for (size_t i = 0; i < x.size(); ++i) {
    out[i] = mode > 0 ? static_cast<T>(fill) : mask ? x[i] * mask[i] : x[i];
  }
}
"""
X, Y = mx.array([[1.0, -2.0], [3.0, 4.0]]), mx.array([[0.5, 0.25], [0.0, 2.0]])


@pytest.fixture(scope="module")
def ops():
    """One operator for each use of the type."""
    with mx.stream(mx.cpu):
        yield mlxgen.load(YAML, cpp=CPP)


def same(got: mx.array, expected: mx.array) -> bool:
    return got.dtype == expected.dtype and got.tolist() == expected.tolist()


@pytest.mark.parametrize("mask", [None, "causal", "array"])
def test_a_function_of_mlx(ops, mask) -> None:
    q = mx.random.normal((1, 2, 4, 8), key=mx.random.key(1))
    given = mx.triu(mx.full((4, 4), -1e9), 1) if mask == "array" else mask
    got = ops.attend(q, q + 1, q, scale=0.3, mask=given)
    expected = mx.fast.scaled_dot_product_attention(q, q + 1, q, scale=0.3, mask=given)
    assert same(got, expected)


def test_calls(ops) -> None:
    for name in ("scaled", "masked"):
        assert same(getattr(ops, name)(X), X) and same(getattr(ops, name)(X, None), X)
        assert same(getattr(ops, name)(X, Y), X * Y)
    assert same(ops.scaled(X, "twice"), 2 * X) and same(ops.scaled(X, by="minus"), -X)
    assert same(ops.scaled(X.astype(mx.int32), 3), 3 * X.astype(mx.int32))  # weakly typed
    assert same(ops.scaled(X.astype(mx.float16), 0.5), 0.5 * X.astype(mx.float16))
    assert same(ops.scaled(X, np.array(2.0, np.float32)), 2 * X)
    assert same(ops.masked(X, "all"), X)
    assert same(ops.masked(X, "none", fill=7), mx.full_like(X, 7))
    assert same(ops.masked(X, mask="other"), mx.zeros_like(X))
    assert same(ops.gated(X, "open"), X) and same(ops.gated(X, Y), X * mx.sigmoid(Y))
    assert same(ops.by_default(X), 2 * X) and same(ops.by_default(X, "minus"), -X)
    assert same(ops.placed(X, "a", by_mode=3), 3 * X) and same(ops.placed(X, Y), X * Y)
    with pytest.raises(TypeError, match="incompatible"):
        ops.placed(X, by="a")


@pytest.mark.parametrize("empty", [mx.zeros((0, 2)), mx.zeros((2, 0))])
def test_empty_arrays_are_not_absent(ops, empty) -> None:
    assert same(ops.scaled(empty, empty), empty) and same(ops.masked(empty, empty), empty)


def test_a_wrong_string_names_the_choices(ops) -> None:
    match = re.escape("[scaled] by must be an array or one of 'twice', 'minus', got 'thrice'.")
    with pytest.raises(ValueError, match=match):
        ops.scaled(X, "thrice")
    for name in ("masked", "gated", "attend"):
        given = (X, X, X) if name == "attend" else (X,)
        more = {"scale": 1.0, "mask": ""} if name == "attend" else {}
        with pytest.raises(ValueError, match=rf"\[{name}\] \w+ must be an array or one of '"):
            getattr(ops, name)(*given, *(() if more else ("",)), **more)


@pytest.mark.parametrize("value", [[X], b"twice", {}, object(), ("twice",)])
def test_a_wrong_kind_names_the_type(ops, value) -> None:
    match = re.escape('by: scalar | array | Literal["twice", "minus"] | None = None')
    with pytest.raises(TypeError, match=match):
        ops.scaled(X, value)


def test_a_required_one(ops) -> None:
    for given in ((X,), (X, None)):
        with pytest.raises(TypeError, match=re.escape('gate: scalar | array | Literal["open"],')):
            ops.gated(*given)
    with pytest.raises(ValueError, match=r"\[gated\] gate has too many axes.* Got .*gate"):
        ops.gated(X, Y[None])


def test_named_axes(ops) -> None:
    with pytest.raises(ValueError, match=r"\[masked\] mask must be \(N, D\)"):
        ops.masked(X, Y[:1])


def test_formulas_pass_it_on(ops) -> None:
    def expected(by: object, first: mx.array, last: mx.array) -> list[object]:
        return [a.tolist() for a in (first, -X, 2 * X, X, X * X, X, 2 * X, last)]

    assert ops.passed(X, None).tolist() == expected(None, X, X)
    assert ops.passed(X, "minus").tolist() == expected("minus", -X, X)
    assert ops.passed(X, Y).tolist() == expected(Y, X * Y, X * Y)
    with pytest.raises(ValueError, match=r"\[scaled\] by must be an array or one of .*'third'"):
        ops.passed(X, None, "third")


def test_named_subexpressions(ops) -> None:
    assert same(ops.named(X), X) and same(ops.named(X, "minus"), -X)
    assert same(ops.named(X, Y), 2 * X * Y)


def test_overloads(ops) -> None:
    assert same(ops.pick(X, "a"), X) and same(ops.pick(X, Y), X * Y) and same(ops.pick(X, 2), X * 2)
    assert same(ops.pick(X, [1, 2]), X + 2) and same(ops.pick(X, t="b"), X + 1)


def test_gradients(ops) -> None:
    for function, slope in ((ops.scaled, X), (ops.masked, X)):
        gx, gy = mx.grad(lambda x, y, f=function: f(x, y).sum(), argnums=(0, 1))(X, Y)
        assert same(gx, Y) and same(gy, slope)
        assert same(mx.grad(lambda x, f=function: f(x, None).sum())(X), mx.ones_like(X))
    sigmoid = mx.sigmoid(Y)
    gx, gy = mx.grad(lambda x, y: ops.gated(x, y).sum(), argnums=(0, 1))(X, Y)
    assert mx.allclose(gx, sigmoid) and mx.allclose(gy, X * sigmoid * (1 - sigmoid))
    assert same(mx.grad(lambda x: ops.gated(x, "open").sum())(X), mx.ones_like(X))
    assert same(mx.grad(lambda x: ops.scaled(x, "minus").sum())(X), -mx.ones_like(X))
    assert same(mx.grad(lambda x: ops.masked(x, "none").sum())(X), mx.zeros_like(X))
    _, tangents = mx.jvp(lambda x, y: ops.masked(x, y), (X, Y), (Y, X))
    assert mx.allclose(tangents[0], Y * Y + X * X)


def test_vmap_and_compile(ops) -> None:
    xs, ys = mx.stack([X, 2 * X, -X]), mx.stack([Y, -Y, 3 * Y])
    for function in (ops.scaled, ops.masked, ops.gated):
        plain = mx.stack([function(x, y) for x, y in zip(xs, ys, strict=True)])
        assert mx.allclose(mx.vmap(function)(xs, ys), plain)
        assert mx.allclose(mx.vmap(function, in_axes=(None, 0))(X, ys)[1], function(X, ys[1]))
        assert mx.allclose(mx.compile(function)(X, Y), function(X, Y))
    for function, string in ((ops.scaled, "minus"), (ops.masked, "none"), (ops.gated, "open")):
        plain = mx.stack([function(x, string) for x in xs])
        assert same(mx.vmap(lambda x, f=function, s=string: f(x, s))(xs), plain)
        assert same(mx.compile(lambda x, f=function, s=string: f(x, s))(X), function(X, string))
    # Primitives with other strings differ; equal ones are computed once.
    several = mx.compile(lambda x: [ops.masked(x, m) for m in ("all", "none", None, "all")])
    assert [out.tolist() for out in several(X)] == [X.tolist(), [[0, 0], [0, 0]], *[X.tolist()] * 2]


def test_variants(ops) -> None:
    assert same(ops.scaled(X, Y, out=mx.array(0)), X * Y)
    for by, expected in ((Y, X * Y), ("minus", -X), (None, X)):
        target = X + 0
        assert ops.scaled_(target, by) is target and same(target, expected)


def test_generated_checks_cover_strings_and_arrays(ops) -> None:
    text = (Path(ops.__file__).parent / "checks" / "test_gradients.py").read_text()
    covered = {
        "attend": ["array", "causal"],
        "scaled": [None, "twice", "minus", "array"],
        "gated": [None, "open"],  # by default an array
        "by_default": [None, "minus", "array"],
    }
    for name, expected in covered.items():
        samples = map(ast.literal_eval, re.findall(rf"case\(\w+\.{name}, (.*)\),", text))
        key = {"attend": "mask", "gated": "gate"}.get(name, "by")
        given = [sample.get(key) for sample in samples]
        assert ["array" if isinstance(value, dict) else value for value in given] == expected


def test_the_example_of_the_page(ops) -> None:
    (example,) = re.findall(r"^```pycon\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    with mx.stream(mx.cpu):
        names = {"mx": mx, "ops": ops}
        test = doctest.DocTestParser().get_doctest(example, names, "language.md", None, 0)
        assert doctest.DocTestRunner().run(test).failed == 0 and len(test.examples) == 6


def test_table_of_operators(ops) -> None:
    table = json.loads((Path(ops.__file__).parent / "ops.json").read_text())["operators"]
    args = {op["name"]: op["args"] for op in table}["scaled"]
    assert [arg["name"] for arg in args] == ["x", "by"]
    assert args[1]["type"] == 'array | Literal["twice", "minus"] | None'
    assert "(array | Literal" in ops.scaled.__doc__ and "by_mode" not in ops.scaled.__doc__


def test_checks(ops) -> None:
    with mx.stream(mx.cpu):
        report = ops.check()
    assert not report.failures, report
    assert report.passed > 40
