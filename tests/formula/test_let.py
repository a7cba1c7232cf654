"""Named subexpressions (`let`): their values, gradients and C++ variables."""

from __future__ import annotations

import ast

import mlx.core as mx
import numpy as np
import pytest
from formula import formula_samples as samples

import mlxgen
from mlxgen.formula.compile import Expr, Let, Want, compile_formula
from mlxgen.formula.lets import MOST, expanded, words
from mlxgen.formula.source import parsed
from mlxgen.model.signature import Kind

YAML = """
- signature: >-
    norm(x: array, weight: array | None = None, eps: float = 1e-5)
    -> (y: array, avg: array, inv: array)
  let:
    last: x.ndim - 1
    dims: "[i for i in range(x.ndim) if i != last]"
    avg_: mean(x, axis=dims, keepdims=True)
    centered: x - avg_
    inverse: rsqrt(mean(centered * centered, axis=dims, keepdims=True) + eps)
    xhat: centered * inverse
    scaled: weight * xhat
    has: weight is not None
    slope: grad_y * (weight if has else ones_like(inverse))
    count: x.size // x.shape[-1]
    moments: (avg_, inverse)
    given: weight if eps > 0 else None
  composite: (scaled if has else xhat, moments[0], moments[1])
  grad:
    x: >-
      inverse * (slope - mean(slope, axis=dims, keepdims=True)
      - xhat * mean(slope * xhat, axis=dims, keepdims=True)) + 0 * grad_avg + 0 * grad_inv
    weight: grad_y * xhat
  checks:
    - {that: count > 1, else: more than one element is needed}
    - {that: given is None or given.ndim == 1, else: weight must be a vector}
- signature: "third(x: array) -> array"
  let:
    extent: x.shape[2]
    ratio: 1 / extent
    rows: x.shape[0] * 1.0
  composite: x * ratio if x.ndim > 2 else x * rows
- signature: "branches(x: array, n: int = 1) -> array"
  let: {up: exp(x), deep: "x.shape[2] * up"}
  composite: (up if n > 1 else x) + (up if n > 2 else x) + (deep if x.ndim > 2 else deep * 2
    if x.ndim > 3 else x)
- signature: "rows(x: array, n: int) -> array"
  dispatch: {cpu: rows}
  let: {left: "x.shape[0] - n", extents: "(left,) + x.shape[1:]"}
  shape: extents
  composite: x[n:]
  checks: [{that: left >= 0, else: n is too large}]
  samples: {n: 1}
- signature: "several(x: array) -> (a: array, b: array, c: array)"
  let:
    parts: split(x, 3)
    mode: "'full' if x.ndim > 0 else 'none'"
    s: parts[0]
    t0: exp(s) + exp(s)
  composite: (t0 + exp(parts[1]) * exp(parts[1]), parts[1] if mode == 'full' else parts[0], t0)
"""
CPP = """
template <typename T>
void rows(mlxgen::In<T> x, int n, mlxgen::Out<T> out) {
  for (int64_t i = 0; i < out.size(); i++) {
    out[i] = x[i + x.size() - out.size()];
  }
}
"""


def normalized(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return batch normalization over all axes but the last."""
    centered = x - x.mean((0, 1))
    return weight * centered / np.sqrt((centered**2).mean((0, 1)) + 1e-5)


@pytest.mark.extended
def test_values_and_gradients() -> None:
    ops = mlxgen.load(YAML, cpp='#include "mlxgen/kernel.h"\n' + CPP)
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 3, 4)), rng.normal(size=4)
    given = mx.array(x.astype(np.float32)), mx.array(weight.astype(np.float32))
    with mx.stream(mx.cpu):
        y, mean, _ = ops.norm(*given)
        assert np.allclose(y, normalized(x, weight), atol=1e-5)
        assert np.allclose(mean[0, 0], x.mean((0, 1)), atol=1e-5)
        assert np.allclose(ops.norm(given[0])[0], normalized(x, np.ones(4)), atol=1e-5)
        factor = rng.normal(size=x.shape)
        got = mx.grad(lambda *a: (ops.norm(*a)[0] * mx.array(factor, mx.float32)).sum(), [0, 1])
        for i, of in enumerate(got(*given)):
            step = rng.normal(size=(x, weight)[i].shape)
            up, down = [
                factor * normalized(x + h * step * (i == 0), weight + h * step * (i == 1))
                for h in (1e-5, -1e-5)
            ]
            assert np.isclose((np.array(of) * step).sum(), (up - down).sum() / 2e-5, atol=1e-2)
        assert np.allclose(ops.third(given[0]), x / 4, atol=1e-6)
        assert np.allclose(ops.third(given[1]), weight * 4, atol=1e-5)  # has no third axis
        for n in (1, 2, 3):
            for one, deep in (x, 4 * np.exp(x)), (weight, weight):  # weight has no third axis
                up, got_ = np.exp(one), ops.branches(mx.array(one.astype(np.float32)), n)
                wanted = (up if n > 1 else one) + (up if n > 2 else one) + deep
                assert np.allclose(got_, wanted, rtol=1e-4, atol=1e-5)
        assert np.allclose(ops.rows(given[0], 1), x[1:], atol=1e-6)
        parts = np.split(x[0], 3)
        for got_, wanted in zip(
            ops.several(given[0][0]),
            (2 * np.exp(parts[0]) + np.exp(parts[1]) ** 2, parts[1], 2 * np.exp(parts[0])),
            strict=True,
        ):
            assert np.allclose(got_, wanted, rtol=1e-5)


def compiled(text: str, **lets: str) -> Expr | None:
    """Compile a formula with some `let`s."""
    found: dict[str, Let] = {}
    for name, of in lets.items():
        own = words(parsed(of))
        inner = [found[word] for word in own & found.keys()]
        depth = max((let.depth + 1 for let in inner), default=0)
        found[name] = Let(of, f"{name}_", own.union(*(let.words for let in inner)), depth)
    return compile_formula(
        text, samples.SCOPE._replace(lets=found), Want(Kind.ARRAY), lambda *_: None
    )


def variables(text: str, **lets: str) -> list[str]:
    """Return the names of the C++ variables of a formula."""
    expr = compiled(text, **lets)
    assert expr is not None
    return [name for name, _ in expr.locals]


def test_only_what_is_always_computed_is_a_variable() -> None:
    assert variables("a * a", a="exp(x)") == ["a_"]
    assert variables("b", a="exp(x)", b="a * a", c="sin(b)") == ["a_", "b_"]
    assert variables("a if flag else x", a="exp(x)") == []
    assert variables("a if flag else a + 1", a="exp(x)") == ["a_"]
    assert variables("a if flag and n > 1 else b * a", a="exp(x)", b="sin(x)") == ["a_"]
    assert variables("(a if flag else x) * a", a="exp(x)") == ["a_"]
    assert variables("sum([a for i in range(n)])", a="exp(x)") == []
    assert variables("x * c * d", c="2", d="n") == []  # constants and other names
    assert variables("(a, b)[1]", a="exp(x)", b="sin(x)") == ["b_"]


def test_shared_parts_of_conditions_are_computed_at_their_first_use() -> None:
    text = "(a if flag else x) + (a if n > 1 else y)"
    expr = compiled(text, a="exp(x)")
    assert expr is not None
    assert [(name, samples.written(local)) for name, local in expr.locals] == [
        ("a_", "mlxgen::Lazy([&] { return mx::exp(x, s); })")
    ]
    assert samples.written(expr).count("a_()") == 2
    # With and without the fact that w is an array, these are two variables.
    text = "(c if w is not None else x) + (c if w is not None else y)"
    text += " + (c if flag else x) + (c if n > 1 else y)"
    assert variables(text, c="clip(x, w, y)") == ["c_", "t0"]
    assert variables("x * sum([a for i in range(n)])", a="n + 1") == []  # it is short


CHAINS = {
    "conditions": ("n > 1", "{0} or {0}", "x if {0} else y"),
    "comparisons": ("n > 1", "{0} == {0}", "x if flag or {0} else y"),
    "chained": ("n", "1 if 0 < {0} < {0} * 2 else {0}", "x * ({0} if flag else 1)"),
    "branches": ("exp(x)", "{0} + {0}", "{0} if flag else y"),
    "nested": ("exp(x)", "({0} if flag else x) + ({0} if n > 1 else y)", "{0} if n > 2 else y"),
    "ints": ("n", "{0} + {0} % 3", "x * {0} if flag else y"),
    "optional": ("w if n > 1 else None", "{0} if flag else w", "clip(x, {0}, {0})"),
    "dtypes": ("x.dtype", "result_type({0}, {0})", "x.astype({0}) if flag else x"),
    "loops": ("n", "sum([{0} for i in range({0})])", "x * {0}"),
    "members": ("n > 1", "{0} in ({0}, True)", "x if {0} else y"),
    "calls": ("exp(x)", "axpby({0}, {0})", "{0} if flag else y"),
    "indices": ("x[0] if flag else x", "{0}[{0}.shape[0] // 2 :] * 2", "{0} if flag else y"),
    "shapes": ("x.shape", "{0} if {0}[0] > 1 else {0}", "reshape(x, {0}) if flag else x"),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("length", [28, 300])
def test_costs_grow_with_the_text(chain: str, length: int) -> None:
    """Neither the time nor the C++ grows with the number of paths through a chain of `let`s."""
    first, step, use = CHAINS[chain]
    lets = {"a0": first} | {f"a{i}": step.format(f"a{i - 1}") for i in range(1, length)}
    expr = compiled(use.format(f"a{length - 1}"), **lets)
    assert expr is not None
    size = sum(len(samples.written(part)) for part in (expr, *(of for _, of in expr.locals)))
    assert size < 300 * length


def test_too_large() -> None:
    for step in ("{0} + {0}", "({0}, {0})", "(*{0}, *{0})"):
        lets = {"a0": "(x, x)"} | {f"a{i}": step.format(f"a{i - 1}") for i in range(1, 40)}
        assert compiled("a39[0]", **lets) is None


def test_names_are_used_once_each() -> None:
    """The size of the C++ grows with the number of names, not with their uses."""
    lets = {"a0": "exp(x)"} | {f"a{i}": f"a{i - 1} * a{i - 1} + a{i - 1}" for i in range(1, 25)}
    expr = compiled("a24", **lets)
    assert expr is not None and len(expr.locals) == 25
    assert expr.names == {"x"}


def test_texts_with_names_inserted() -> None:
    lets = {"a": "x.shape[0]", "b": "a * (a + 1)"}
    assert ast.unparse(expanded("b - 1", lets)) == "x.shape[0] * (x.shape[0] + 1) - 1"
    assert ast.unparse(expanded("x.ndim", lets)) == "x.ndim"
    many = {"a0": "n"} | {f"a{i}": f"a{i - 1} * a{i - 1}" for i in range(1, 40)}
    assert ast.unparse(expanded("a39", many)) == "a39"
    assert len(ast.unparse(expanded("a9", many))) < MOST
