"""Formulas: their translations, and the locations of their errors.

Translations are tested twice. A C++ compiler compiles random ones with MLX's headers. A list of
formulas is run, and the results are compared with Python's results for the same text.
"""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from formula import formula_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen.diagnostics import Rendered, sections
from mlxgen.formula.compile import Expr, Name, Scope, Want, compile_formula
from mlxgen.formula.source import parsed
from mlxgen.model.numbers import ArrayFacts, evaluated
from mlxgen.model.signature import Kind, Type

INCLUDE = Path(mlxgen.__path__[0]) / "runtime" / "include"

Report = tuple[str, str, int, int, "str | None"]


def compiled(text: str, want: Want | None = None, scope: Scope = samples.SCOPE) -> Expr:
    """Translate a formula without errors."""
    reports: list[object] = []
    expr = compile_formula(text, scope, want or Want(Kind.ARRAY), lambda *r: reports.append(r))
    assert expr is not None and not reports, reports
    return expr


def cpp(text: str, want: Want | None = None, scope: Scope = samples.SCOPE, **places: str) -> str:
    """Return the translation on one line."""
    return samples.written(compiled(text, want, scope), **places)


def errors(text: str, want: Want | None = None, scope: Scope = samples.SCOPE) -> list[Report]:
    """Return the diagnostics of a formula."""
    reports: list[Report] = []

    def report(said: Rendered, start: int, end: int) -> None:
        reports.append((said.code, said.text, start, end, said.help))

    expr = compile_formula(text, scope, want or Want(Kind.ARRAY), report)
    assert (expr is None) == bool(reports)
    for code, message, start, end, help in reports:
        assert code in sections() and message
        assert 0 <= start < max(end, 1) and end <= max(len(text), 1), (text, start, end)
        assert help is None or str(help) or help.instead  # a fix may say all
    return reports


def mlx_root() -> Path:
    """Where MLX is installed."""
    mx = pytest.importorskip("mlx.core")
    return Path(mx.__file__).parent


def compiler() -> str:
    """A C++ compiler."""
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def check_cpp(source: str, folder: Path) -> None:
    """Assert that a compiler accepts ``source``."""
    path = folder / "formulas.cpp"
    path.write_text(source)
    command = [
        *(compiler(), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra"),
        *("-Wno-unused-parameter", "-Wno-tautological-compare"),
        *("-isystem", str(mlx_root() / "include"), f"-I{INCLUDE}", str(path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr[:5000]


# Translations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", "x"),
        ("x + y", "mlxgen::add(x, y, s)"),
        ("2 * x + 1", "mlxgen::add(mlxgen::multiply(2, x, s), 1, s)"),
        ("-x", "mx::negative(x, s)"),
        ("x @ y.T", "mx::matmul(x, mx::transpose(y, s), s)"),
        ("x // 2 % y", "mlxgen::remainder(mlxgen::floor_divide(x, 2, s), y, s)"),
        ("(x > 0) & ~(y != x)", None),
        ("exp(x)", "mx::exp(x, s)"),
        ("mx.exp(x)", "mx::exp(x, s)"),
        ("mx.linalg.inv(x)", "mx::linalg::inv(x, s)"),
        ("acos(x)", "mx::arccos(x, s)"),
        ("sum(x)", "mlxgen::sum(x, false, s)"),
        ("x.sum(-1, keepdims=True)", "mlxgen::sum(x, -1, true, s)"),
        ("sum(x, axis=(0, n))", "mlxgen::sum(x, std::vector<int>{0, n}, false, s)"),
        (
            "sum(x, axis)",
            "axis.has_value() ? mlxgen::sum(x, *axis, false, s) : mlxgen::sum(x, false, s)",
        ),
        ("softmax(x, axis=-1)", "mx::softmax(x, -1, false, s)"),
        ("concatenate([x, y])", "mx::concatenate(std::vector<mx::array>{x, y}, 0, s)"),
        ("concatenate(xs, None)", "mx::concatenate(xs, s)"),
        ("where(x > 0, x, 0)", "mlxgen::where(mlxgen::greater(x, 0, s), x, 0, s)"),
        ("where(x > y, x, y)", "mlxgen::where(mlxgen::greater(x, y, s), x, y, s)"),
        ("clip(x, None, 1)", "mlxgen::clip(x, std::nullopt, 1, s)"),
        ("clip(x, low, None)", "mlxgen::clip(x, low, std::nullopt, s)"),
        ("clip(x, y, None)", "mx::clip(x, y, std::nullopt, s)"),
        ("expand_dims(x, (0, -1))", "mx::expand_dims(x, std::vector<int>{0, -1}, s)"),
        ("transpose(x, (1, 0))", "mx::transpose(x, std::vector<int>{1, 0}, s)"),
        ("x.transpose(1, 0)", "mx::transpose(x, std::vector<int>{1, 0}, s)"),
        ("x.transpose()", "mx::transpose(x, s)"),
        ("x.reshape(-1, n)", "mx::reshape(x, mx::Shape{-1, n}, s)"),
        ("reshape(x, y.shape)", "mx::reshape(x, y.shape(), s)"),
        ("reshape(x, ints)", "mx::reshape(x, mlxgen::as_shape(ints), s)"),
        ("zeros((2, n), dtype=x.dtype)", "mx::zeros(mx::Shape{2, n}, x.dtype(), s)"),
        ("zeros(3, dt)", "mx::zeros(mx::Shape{3}, dt.value_or(mx::float32), s)"),
        ("zeros(3)", "mx::zeros(mx::Shape{3}, mx::float32, s)"),
        ("full(3, 0.5)", "mx::full(mx::Shape{3}, mlxgen::scalar(0.5), s)"),
        ("arange(n)", "mx::arange(n, s)"),
        ("arange(0, 1, 0.25)", "mx::arange(0.0, 1.0, 0.25, s)"),
        ("arange(n, dtype=float32)", "mx::arange(n, mx::float32, s)"),
        ("split(x, 2)[0]", "mx::split(x, 2, 0, s)[0]"),
        ("split(x, n)[0]", "mlxgen::item(mx::split(x, n, 0, s), 0)"),
        ("split(x, [1, 3])[2]", "mx::split(x, mx::Shape{1, 3}, 0, s)[2]"),
        ("linalg.qr(x)[-1]", "std::get<1>(mx::linalg::qr(x, s))"),
        ("sort(x, None)", "mx::sort(x, s)"),
        ("topk(x, 2)", "mx::topk(x, 2, -1, s)"),
        ("einsum('ij->ji', x)", 'mx::einsum("ij->ji", std::vector<mx::array>{x}, s)'),
        ("x.at[y].add(x)", "mlxgen::at_add(x, y, x, s)"),
        ("x[y, 0]", "mlxgen::index(x, std::vector<mx::array>{y, mx::array(0)}, s)"),
        ("x.at[y, y].add(x)", "mlxgen::at_add(x, std::vector<mx::array>{y, y}, x, s)"),
        ("x.at[0, 1:].maximum(2)", "mlxgen::at_maximum(x, {0, mlxgen::Slice{1}}, 2, s)"),
        ("pad(x, 1)", 'mlxgen::pad(x, 1, 0, "constant", s)'),
        ("pad(x, (n, 1))", 'mlxgen::pad(x, std::pair<int, int>{n, 1}, 0, "constant", s)'),
        ("linalg.norm(x, 2)", "mx::linalg::norm(x, 2.0, std::nullopt, false, s)"),
        ("fft.fft(x, norm='ortho')", "mx::fft::fft(x, -1, mx::fft::FFTNorm::Ortho, s)"),
        ("fast.rms_norm(x, w, 1e-5)", "mx::fast::rms_norm(x, w, 1e-5, s)"),
        ("array(2.0)", "mlxgen::scalar(2.0)"),
        ("array([1, n])", "mx::array({1, n}, mx::int32)"),
        ("x[0]", "mlxgen::index(x, {0}, s)"),
        ("x[..., 1:n, None]", None),
        ("x[y]", "mlxgen::index(x, y, s)"),
        ("sqrt(2 / pi) * x", "mlxgen::multiply(std::sqrt(2 / std::numbers::pi), x, s)"),
        ("maximum(n, 1) * x", "mlxgen::multiply(std::max(n, 1), x, s)"),
        ("x if flag else y", "flag ? x : y"),
        ("w @ x if w is not None else x", "w.has_value() ? mx::matmul(*w, x, s) : x"),
        ("x if w is None else w", "!w.has_value() ? x : *w"),
        ("x if mode == 'a' else y", 'mode == "a" ? x : y'),
        ("x if name == 'é\"\\\\' else y", 'name == "é\\"\\\\" ? x : y'),
        ("x if name == '\\n\\r\\x01' else y", 'name == "\\n\\015\\001" ? x : y'),
        ("x if bias == 'none' else bias", 'bias_mode == "none" ? x : *bias'),
        ("bias.T if 'none' != bias else x", 'bias_mode != "none" ? mx::transpose(*bias, s) : x'),
        ("x if bias in ('none',) else bias", 'bias_mode == "none" ? x : *bias'),
        ("bias if bias not in ['none'] else x", 'bias_mode != "none" ? *bias : x'),
        ("x if not bias != 'none' else bias", '!(bias_mode != "none") ? x : *bias'),
        (
            "x if mask is None else x * mask if mask != 'full' and mask != 'causal' else y",
            "!mask_mode.has_value() && !mask.has_value() ? x : "
            '(mask_mode != "full" && mask_mode != "causal" ? mlxgen::multiply(x, *mask, s) : y)',
        ),
        (
            "y if mask in ('full', 'causal') else x if mask is None else mask",
            'mask_mode == "full" || mask_mode == "causal" ? y : (!mask.has_value() ? x : *mask)',
        ),
        (
            "y if mask == 'full' or mask == 'causal' else mask if mask is not None else x",
            'mask_mode == "full" || mask_mode == "causal" ? y : (mask.has_value() ? *mask : x)',
        ),
        (
            "x if bias == 'none' else bias if bias != 'none' else y",
            'bias_mode == "none" ? x : (bias_mode != "none" ? *bias : y)',
        ),
        ("masked(x, mask)", "ops::masked(x, mask_mode, mask, s)"),
        ("masked(x, bias)", "ops::masked(x, bias_mode, bias, s)"),
        ("masked(x, 'full')", 'ops::masked(x, "full", std::nullopt, s)'),
        ("masked(x, name)", "ops::masked(x, name, std::nullopt, s)"),
        ("masked(x, y)", "ops::masked(x, std::nullopt, y, s)"),
        ("masked(x, w)", "ops::masked(x, std::nullopt, w, s)"),
        ("masked(x, None)", "ops::masked(x, std::nullopt, std::nullopt, s)"),
        ("masked(x)", "ops::masked(x, std::nullopt, std::nullopt, s)"),
        (
            "masked(x, mask) if mask != 'full' else masked(x, mask)",
            'mask_mode != "full" ? ops::masked(x, mask_mode, mask, s) '
            ': ops::masked(x, "full", std::nullopt, s)',
        ),
        (
            "fast.scaled_dot_product_attention(x, x, x, scale=1, mask=w)",
            None,
        ),
        ("sum([a * 2 for a in xs])", None),
        ("axpby(x, y)", "ops::axpby(x, y, 1.0, s)"),
        ("axpby(x, y, alpha=n)", "ops::axpby(x, y, n, s)"),
        ("sincos(x)[0]", "ops::sincos(x, s)[0]"),
        ("resize(x, axis=1)", None),
        ("grads[-1]", "grads[1]"),
        ("xs[-1]", "mlxgen::item(xs, -1)"),
    ],
)
def test_arrays(text: str, expected: str | None) -> None:
    if expected is None:
        compiled(text)
    else:
        assert cpp(text) == expected


@pytest.mark.parametrize(
    ("text", "want", "expected"),
    [
        ("x.shape", Want(Kind.SHAPE), "x.shape()"),
        ("(n, 2)", Want(Kind.SHAPE), "mx::Shape{n, 2}"),
        ("()", Want(Kind.SHAPE), "mx::Shape{}"),
        ("x.shape[:-1] + (n,)", Want(Kind.SHAPE), None),
        ("(*x.shape[:-1], n)", Want(Kind.SHAPE), None),
        (
            "(x.shape[0] * n,)",
            Want(Kind.SHAPE),
            "mx::Shape{mlxgen::to_int(int64_t(mlxgen::dim(x, 0)) * n)}",
        ),
        ("broadcast_shapes(x.shape, y.shape)", Want(Kind.SHAPE), None),
        ("[d // 2 for d in x.shape]", Want(Kind.SHAPE), None),
        ("x.shape[-1]", Want(Kind.INT), "mlxgen::dim(x, -1)"),
        ("exp(x).shape[-1]", Want(Kind.INT), "mlxgen::dim(mx::exp(x, s), -1)"),
        ("x.size", Want(Kind.INT), "mlxgen::size(x)"),
        ("n // 2", Want(Kind.INT), "mlxgen::floor_div(n, 2)"),
        ("-n % 3", Want(Kind.INT), "mlxgen::floor_mod(-int64_t(n), 3)"),
        ("n - 1", Want(Kind.INT), "int64_t(n) - 1"),
        ("(n + 1,)", Want(Kind.SHAPE), "mx::Shape{mlxgen::to_int(int64_t(n) + 1)}"),
        ("max(n, 1, 2)", Want(Kind.INT), "std::max(std::max(n, 1), 2)"),
        ("int(alpha)", Want(Kind.INT), "mlxgen::to_int(alpha)"),
        ("2147483647 + 1", Want(Kind.INT), "2147483648"),
        ("x.size * (2 * -3 - 1)", Want(Kind.INT), "mlxgen::times(mlxgen::size(x), -7)"),
        ("n / 2", Want(Kind.FLOAT), "static_cast<double>(n) / 2"),
        ("1 / n", Want(Kind.FLOAT), "1.0 / n"),
        ("-inf", Want(Kind.FLOAT), "-mlxgen::inf"),
        ("-(-alpha)", Want(Kind.FLOAT), "-(-alpha)"),
        ("-(-n)", Want(Kind.INT), "-(-int64_t(n))"),
        ("n - -n", Want(Kind.INT), "n - -int64_t(n)"),
        ("not (not flag)", Want(Kind.BOOL), "!!flag"),
        ("x.ndim == 2", Want(Kind.BOOL), "mlxgen::ndim(x) == 2"),
        ("x.ndim == n", Want(Kind.BOOL), "mlxgen::ndim(x) == n"),
        ("0 < n <= 3", Want(Kind.BOOL), "0 < n && n <= 3"),
        ("not flag and n > 0", Want(Kind.BOOL), "!flag && n > 0"),
        ("ints or shape", Want(Kind.BOOL), "!ints.empty() || !shape.empty()"),
        ("n if flag else 0.5", Want(Kind.FLOAT), "flag ? static_cast<double>(n) : 0.5"),
        ("n if flag else 0.5", Want(Kind.NUMBER), "flag ? mlxgen::Scalar(n) : 0.5"),
        ("max(n, 2.5)", Want(Kind.NUMBER), "mlxgen::max(n, 2.5)"),
        ("round(alpha)", Want(Kind.INT), "mlxgen::round(alpha)"),
        ("2 ** n", Want(Kind.NUMBER), "mlxgen::pow(2, n)"),
        ("flag or n > 0 and n < 3", Want(Kind.BOOL), "flag || (n > 0 && n < 3)"),
        ("mode in ('a', 'b')", Want(Kind.BOOL), 'mode == "a" || mode == "b"'),
        ("n not in x.shape", Want(Kind.BOOL), "!mlxgen::contains(x.shape(), n)"),
        ("x.dtype == float32", Want(Kind.BOOL), "x.dtype() == mx::float32"),
        ("issubdtype(x.dtype, floating)", Want(Kind.BOOL), None),
        ("all(a.ndim == 2 for a in xs)", Want(Kind.BOOL), None),
        (
            "w is not None and w.ndim == 1",
            Want(Kind.BOOL),
            "w.has_value() && mlxgen::ndim(*w) == 1",
        ),
        ("x.shape == (2, 3)", Want(Kind.BOOL), "x.shape() == mx::Shape{2, 3}"),
        ("result_type(x, y)", Want(Kind.DTYPE), "mx::result_type(x, y)"),
        ("result_type(*xs)", Want(Kind.DTYPE), "mx::result_type(xs)"),
        ("result_type(*linalg.qr(x))", Want(Kind.DTYPE), None),
        ("result_type(x, float16)", Want(Kind.DTYPE), "mx::promote_types(x.dtype(), mx::float16)"),
        ("mx.bool_", Want(Kind.DTYPE), "mx::bool_"),
        ("(x, y)", Want(Kind.ARRAYS, 2), "std::vector<mx::array>{x, y}"),
        ("sincos(x)", Want(Kind.ARRAYS, 2), "ops::sincos(x, s)"),
        ("xs", Want(Kind.ARRAYS, 2), "mlxgen::exactly(xs, 2)"),
        ("[a + b for a, b in zip(xs, grads)]", Want(Kind.ARRAYS), None),
    ],
)
def test_other_results(text: str, want: Want, expected: str | None) -> None:
    expr = compiled(text, want)
    assert expr.type.kind is want.kind
    if expected is not None:
        assert samples.written(expr) == expected


def test_what_a_formula_uses() -> None:
    expr = compiled("axpby(exp(x), linalg.inv(y), alpha=n) + x.sum()")
    assert expr.names == {"x", "y", "n"}
    assert expr.ops == {"axpby"}
    assert {"exp", "linalg.inv", "sum"} <= expr.mlx
    assert compiled("n * big", Want(Kind.INT)).type.int64
    assert not compiled("n", Want(Kind.INT)).type.int64


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x * (n, big)[0]", {"x", "n"}),
        ("x * [n, alpha, beta][1:][0]", {"x", "alpha"}),
        ("x * len((n, big))", {"x"}),
        ("x * ((n, big)[1], alpha)[0]", {"x", "big"}),
        ("x * sum([n, beta][:1][0] * a for a in xs)", {"x", "n", "xs"}),
        ("([x, y] * 2)[2]", {"x"}),
        ("(x, axpby(x, y))[0]", {"x"}),
    ],
)
def test_what_an_index_drops_is_not_used(text: str, names: set[str]) -> None:
    expr = compiled(text)
    assert expr.names == names and not expr.ops


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("x.astype(float16)", "float16"),
        ("x.astype(x.dtype if flag else float32)", ""),
        ("x.astype(float16 if flag else float32)", "floating"),
        ("x.astype(int32 if flag else float32)", ""),
        ("x.astype(result_type(float16, float32))", "floating"),
        ("x.astype(result_type(x.astype(float32)))", "float32"),
        ("x.astype(dt if dt is not None else int32)", ""),
        ("zeros(3)", "float32"),
        ("zeros(3, dt)", ""),
        ("array(x, int32)", "int32"),
        ("x.astype(x.astype(float16).dtype)", "float16"),
    ],
)
def test_dtypes_that_are_known(text: str, dtype: str) -> None:
    assert compiled(text).facts[0].dtype == dtype


def test_formulas_over_several_lines() -> None:
    assert cpp("x\n  + y  # both\n") == "mlxgen::add(x, y, s)"
    assert cpp("  x + y ") == "mlxgen::add(x, y, s)"
    (report,) = errors("exp(x)\n  + foo")
    assert (report[2], report[3]) == (11, 14)
    (report,) = errors("x) + (\ny")
    assert report[0] == "MG301"


def test_offsets_count_characters() -> None:
    text = '"é" + foo'
    assert [t[2:4] for t in errors(text)] == [(6, 9)]


def test_all_errors_are_reported() -> None:
    reports = errors("foo(x) + bar * exp(baz)")
    assert [(r[0], r[2], r[3]) for r in reports] == [
        ("MG304", 0, 3),
        ("MG303", 9, 12),
        ("MG303", 19, 22),
    ]


# Errors


@pytest.mark.parametrize(
    ("text", "code", "where", "says"),
    [
        ("", "MG301", "", "empty"),
        ("exp(x", "MG301", "(", "never closed"),
        ("x ? y : x", "MG301", "?", "a if condition else b"),
        ("x = y", "MG301", "x =", "=="),
        ("s = exp(x); s * x", "MG301", "s =", "value at its use"),
        ("x[0] += 1", "MG301", "x[0] +=", "single expression"),
        ("return x", "MG301", "return", "remove `return`"),
        ("flag && n > 0", "MG301", "&&", "`and`"),
        ("x if n = 0 else y", "MG301", "=", "=="),
        ("mode == 'a;b' +", "MG301", "+", "incomplete"),
        ("mx::exp(x)", "MG301", "mx::exp", "dots"),
        ("x * 2.0f", "MG301", "2.0f", "suffix"),
        ("x * 1e5 + 2y", "MG301", "2y", "write *"),
        ("x'", "MG301", "'", "x.T"),
        ("x ≤ y", "MG301", "≤", "write <="),
        ("x +\u00a0y", "MG301", "\u00a0", "U+00A0"),
        ("(x +\n (y * 2", "MG301", None, "'(' was never closed"),
        ("# x", "MG301", "# x", "empty"),
        ("exp(x),", "MG313", "exp(x),", "comma"),
        ("lambda a: a", "MG302", "lambda a: a", "lambda"),
        ("{1: x}", "MG302", "{1: x}", "dict"),
        ("f'{x}'", "MG302", "f'{x}'", "f-string"),
        ("(y := x)", "MG301", "y :=", "value at its use"),
        ("[a for b in xs for a in b]", "MG302", None, "one `for`"),
        ("exp(**x)", "MG302", "x", "**"),
        ("x * 1j", "MG302", "1j", "complex"),
        ("foo", "MG303", "foo", "unknown name"),
        ("axs", "MG303", "axs", "did you mean 'axis'"),
        ("exp", "MG303", "exp", "exp(x)"),
        ("x.astype(float)", "MG303", "float", "float32"),
        ("expq(x)", "MG304", "expq", "did you mean 'exp'"),
        ("norm(x)", "MG304", "norm", "linalg.norm"),
        ("svd(x)", "MG304", "svd", "linalg.svd"),
        ("tuple(x)", "MG304", "tuple", "itself"),
        ("vmap(x)", "MG305", "vmap", "Python function"),
        ("mx.random.seed(3)", "MG305", "mx.random.seed", "state"),
        ("exp(x, y)", "MG306", "y", "call it as exp(a)"),
        ("exp()", "MG306", "exp()", "needs 'a'"),
        ("exp(a=x)", "MG306", "a=x", "positional only"),
        ("softmax(x, -1, True)", "MG306", "True", "precise="),
        ("sum(x, axes=1)", "MG306", "axes=1", "did you mean 'axis'"),
        ("sum(x, 1, axis=1)", "MG306", "1", "twice"),
        ("sum(x, stream=n)", "MG306", "stream=n", "cannot pass a stream"),
        ("axpby(x, y, 2.0)", "MG306", "2.0", "alpha="),
        ("sum(x, axis=0.5)", "MG307", "0.5", "int | Sequence[int] | None"),
        ("sum(x, axis=y)", "MG307", "y", "known when the graph is built"),
        ("matmul(x, 2)", "MG307", "2", "array(2)"),
        ("reshape(x, 0.5)", "MG307", "0.5", "Sequence[int]"),
        ("sum(2)", "MG307", "2", "int 2"),
        ("sigmoid(2.0)", "MG307", "2.0", "array(2.0)"),
        ("max(x, y)", "MG307", "max(x, y)", "maximum(a, b)"),
        ("random.categorical(x, shape=(1,), num_samples=2, key=y)", "MG307", None, "combination"),
        ("x + 'a'", "MG308", "x + 'a'", "string 'a'"),
        ("x @ 2", "MG308", "x @ 2", "arrays"),
        ("xs * 2", "MG308", "xs * 2", "[a * 2 for a in arrays]"),
        ("0 < x < 1", "MG308", "0 < x < 1", "(a < b) & (b < c)"),
        ("x if w == None else y", "MG311", "w", "is not None"),
        ("x if flag + 1 == 2 else y", "MG308", "flag + 1", "int(flag)"),
        ("x if n & 1 == 0 else y", "MG308", None, ""),
        ("x.foo", "MG309", "x.foo", "no attribute 'foo'"),
        ("x.shap", "MG309", "x.shap", "did you mean 'shape'"),
        ("x.sum", "MG309", "x.sum", "call it"),
        ("x.item()", "MG309", "item", "value"),
        ("x.matmul(y)", "MG309", "matmul", "matmul(x, ...)"),
        ("xs.sum()", "MG309", "xs.sum", "no methods"),
        ("np.linalg.norm(x)", "MG303", "np", "linalg.norm(...)"),
        ("F.relu(x)", "MG303", "F", "maximum(x, 0)"),
        ("x.astype(torch.half)", "MG303", "torch", "float16"),
        ("mode == a", "MG303", "a", "in quotes"),
        ("x if true else y", "MG303", "true", "True"),
        ("x.unsqueeze(0)", "MG309", "unsqueeze", "expand_dims"),
        ("exp(x).ndim() * x", "MG309", "ndim", "remove the parentheses"),
        ("x.sum(dim=0)", "MG306", "dim=0", "'axis'"),
        ("x.astype('float32')", "MG307", "'float32'", "without quotes"),
        ("concatenate(x, y)", "MG307", "x", "write a list"),
        ("stack(x)", "MG307", "x", "write a list"),
        ("x.numel * x", "MG309", "x.numel", "x.size"),
        ("einsum('ij->ji')", "MG306", None, "needs 'operands'"),
        ("sum([a async for a in xs])", "MG302", None, "await"),
        ("einsum('i', x, 2)", "MG307", "2", "the int 2"),
        ("frobnicate(x)", "MG304", "frobnicate", "'frobnicate'"),
        ("x ^ 0.5", "MG308", "x ^ 0.5", "**"),
        ("2(x + y)", "MG302", "2", "write *"),
        ("x * (n // 0)", "MG327", "n // 0", "zero"),
        ("x[1.5]", "MG310", "1.5", "a float"),
        ("x[:, y]", "MG310", ":", "moveaxis"),
        ("x[..., ...]", "MG310", "...", "one ellipsis"),
        ("x[::0]", "MG310", "0", "zero"),
        ("x[x > 0]", "MG310", "x > 0", "where"),
        ("grads[2]", "MG310", "2", "out of range"),
        ("grads[flag]", "MG310", "flag", "int"),
        ("x + w", "MG311", "w", "'w' may be None"),
        ("w.sum()", "MG311", "w", "is not None"),
        ("x.reshape(axis0)", "MG311", "axis0", ""),
        ("x + bias", "MG311", "bias", "'bias' may be a string"),
        ("bias.sum()", "MG311", "bias", "bias != 'none'"),
        ("-bias", "MG311", "bias", "may be a string"),
        ("bias", "MG311", "bias", "may be a string"),
        ("exp(bias)", "MG311", "bias", "may be a string"),
        ("stack([x, bias])", "MG311", "bias", "may be a string"),
        ("x if bias == 'none' and flag else bias", "MG311", None, "may be a string"),
        ("mask if mask is not None else x", "MG311", "mask", "mask != 'causal'"),
        ("x if mask == 'full' else mask", "MG311", None, "mask != 'causal'"),
        ("x if mask in ('full', 'causal') else mask", "MG311", None, "may be None"),
        ("x if bias == 'no' else y", "MG316", "'no'", "'none'"),
        ("x if bias is None else y", "MG319", "bias is None", "never None"),
        ("x if bias < 'none' else y", "MG311", "bias", "may be a string"),
        ("x if bias == 2 else y", "MG311", "bias", "may be a string"),
        ("x if bias else y", "MG312", "bias", "compare it"),
        ("masked(x, bias if flag else x)", "MG311", None, "may be a string"),
        ("masked(x, 'half')", "MG316", "'half'", "'none'"),
        ("masked(x, 2)", "MG307", "2", "Literal"),
        ("masked(x, mask_mode='full')", "MG306", "mask_mode='full'", "masked(x, mask=None)"),
        ("x * mask_mode", "MG303", "mask_mode", "unknown name"),
        ("fast.scaled_dot_product_attention(x, x, x, scale=1, mask=bias)", "MG311", "bias", ""),
        ("x if x > 0 else y", "MG312", "x > 0", "where"),
        ("x if n else y", "MG312", "n", "n != 0"),
        ("x if w else y", "MG312", "w", "is not None"),
        ("x if flag else 0", "MG312", None, "zeros_like"),
        ("x * (ints or shape)", "MG308", None, "one of several lists"),
        ("sum(x, axis=ints or shape)", "MG307", "ints or shape", "one of several lists"),
        ("x * int(not ints or shape)", "MG307", None, "one of several lists"),
        ("reshape(x, (2 ** n, -1))", "MG307", None, "Sequence[int]"),
        ("2", "MG313", "2", "full_like"),
        ("xs", "MG313", "xs", "[0]"),
        ("x.shape", "MG313", "x.shape", "expected an array"),
        ("stack(split(x, -1))", "MG313", "-1", "above 0"),
        ("split(x, 0)[0]", "MG313", "0", "above 0"),
        ("x if mode == 'c' else y", "MG316", "'c'", "'a', 'b'"),
        ("fft.fft(x, norm='orth')", "MG316", "'orth'", "did you mean 'ortho'"),
        ("resize(x, mode='q')", "MG316", "'q'", "'mode' is never 'q'"),
        ("x * 99999999999999999999", "MG317", "99999999999999999999", "64 bits"),
        ("x * 1e999", "MG317", "1e999", "inf"),
        ("x * (9223372036854775807 + 1)", "MG317", "9223372036854775807 + 1", "64 bits"),
        ("x if x is None else y", "MG319", "x is None", "never None"),
        ("y if w is None and w is None else x", "MG319", None, "is None"),
        ("shape(x)", "MG320", "shape", "an argument, not"),
        ("sum([x for x in xs])", "MG320", "x", "another name"),
        ("random.normal((2,))", "MG321", None, "key=key"),
        ("random.bernoulli(0.5, key=None)", "MG307", "None", ""),
    ],
)
def test_errors(text: str, code: str, where: str | None, says: str) -> None:
    reports = errors(text)
    assert [r[0] for r in reports] == [code], reports
    _, message, start, end, help = reports[0]
    if where is not None:
        assert text[start:end] == where
    assert says in f"{message} {help}"


def test_results_of_the_wrong_kind() -> None:
    assert errors("(x, y)", Want(Kind.ARRAYS, 3))[0][0] == "MG314"
    assert errors("split(x, 3)", Want(Kind.ARRAYS, 2))[0][0] == "MG314"
    assert errors("x", Want(Kind.ARRAYS, 2))[0][0] == "MG314"
    assert errors("(x, 2)", Want(Kind.ARRAYS, 2))[0][2:4] == (4, 5)
    assert "(n,)" in str(errors("n", Want(Kind.SHAPE))[0])
    assert "//" in str(errors("n / 2", Want(Kind.INT))[0])
    assert "n != 0" in str(errors("n", Want(Kind.BOOL))[0])
    assert errors("x > 0", Want(Kind.BOOL))[0][0] == "MG313"
    assert errors("x", Want(Kind.DTYPE))[0][0] == "MG313"
    assert errors("dt", Want(Kind.DTYPE))[0][0] == "MG311"


def test_no_arrays_where_none_can_be() -> None:
    for text in ("exp(x).shape[0]", "(x + y).ndim", "x[0].ndim", "x.T.ndim", "sincos(x)[0].ndim"):
        reports = errors(text, Want(Kind.INT), samples.SHAPES_ONLY)
        assert [r[0] for r in reports] == ["MG315"], text
    for text in ("x.shape[0] * 2", "prod(x.shape)", "len(xs)", "max(a.ndim for a in xs)"):
        compiled(text, Want(Kind.INT), samples.SHAPES_ONLY)


def test_sizes_are_bounded() -> None:
    assert errors("-" * 200 + "x")[0][0] == "MG318"
    assert errors("(" * 500 + "x" + ")" * 500)[0][0] in ("MG301", "MG318")
    assert errors("x+" * 4000 + "x")[0][0] == "MG318"
    assert errors("x" * 20_000)[0][0] == "MG318"
    nested = "x"
    for _ in range(12):
        nested = f"sort({nested}, axis0)"
    assert errors(nested)[0][0] == "MG318"


def test_names_of_the_scope_go_first() -> None:
    scope = Scope({name: Name(Type(Kind.ARRAY)) for name in ("e", "fft")}, {}, "")
    text = cpp("e + fft.sum()", scope=scope, e="e_", fft="inputs[0]")
    assert text == "mlxgen::add(e_, mlxgen::sum(inputs[0], false, s), s)"


def test_items_of_lists_have_names() -> None:
    """``grads[0]`` is ``grad_a``, also for other names of the list."""
    names = {name: Name(Type(Kind.ARRAY)) for name in ("grad_a", "grad_b")}
    names["grads"] = Name(Type(Kind.ARRAYS), 2, items=["grad_a", "grad_b"])
    scope = Scope(names, {}, "")
    assert compiled("grads[-1] + grads[1]", scope=scope).names == {"grad_b"}
    assert compiled("sum(grads) + grads[0]", scope=scope).names == {"grads", "grad_a"}


def test_strings_have_no_holes() -> None:
    """Text in a string never becomes a hole."""
    expr = compiled("x + 1 if name == '$x' else x")
    assert expr.holes == {"x", "name", "stream"}
    assert '"$x"' in samples.written(expr, x="y")


def test_loop_variables_hide_nothing() -> None:
    scope = Scope({"xs": Name(Type(Kind.ARRAYS)), "g": Name(Type(Kind.ARRAY))}, {}, "")
    flat = cpp("sum([a * g for a in xs])", scope=scope, g="a[0]")
    assert "const mx::array& _each_a" in flat and "mlxgen::multiply(_each_a, a[0], s)" in flat
    assert "const mx::array& _each_for_" in cpp("sum([-for_ for for_ in xs])", scope=scope)


# Random formulas


def random_formula(formulas: samples.Formulas, rng: random.Random) -> tuple[str, Want, str]:
    kind = rng.choice([*samples.RESULTS, *["array"] * 6])
    want, result = samples.RESULTS[kind]
    return getattr(formulas, kind)(rng.randrange(1, 4)), want, result


@pytest.fixture(scope="module")
def translated() -> list[tuple[str, str, Expr]]:
    """Return the random formulas that were translated; the others have located errors."""
    found: list[tuple[str, str, Expr]] = []

    @given(st.randoms(use_true_random=False))
    @settings(max_examples=250, deadline=None, database=None, derandomize=True)
    def collect(rng: random.Random) -> None:
        text, want, result = random_formula(samples.Formulas(rng), rng)
        if not errors(text, want):
            found.append((text, result, compiled(text, want)))

    collect()
    assert len(found) > 200
    return found


def test_what_passes_compiles(translated: list[tuple[str, str, Expr]], tmp_path: Path) -> None:
    check_cpp(samples.translation_unit(translated), tmp_path)


def test_translations_are_on_one_line(translated: list[tuple[str, str, Expr]]) -> None:
    assert not any("\n" in samples.written(expr) for _, _, expr in translated)


@given(st.randoms(use_true_random=False), st.data())
@settings(max_examples=300, deadline=None, database=None)
def test_damaged_formulas_give_errors(rng: random.Random, data: st.DataObject) -> None:
    text, want, _ = random_formula(samples.Formulas(rng), rng)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 6)))
    pieces = ["", "(", ")", "[", ".", ",", "foo", "0.5", "'a'", "None", "w", " is ", "**", "x"]
    damaged = text[:start] + data.draw(st.sampled_from(pieces)) + text[end:]
    errors(damaged, want)


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None, database=None)
def test_any_text_gives_errors(text: str) -> None:
    errors(text)


# Every part of Python is either translated or rejected by name

SNIPPETS = """
x = 1; await x; yield x; [*x]; x[1:2,3]; x if y; not x; ~n; +flag; -mode; x<y<n; x is y; x in xs
1_000; 0x10; b'a'; ...; [a async for a in xs]; {a for a in xs}; {a: 1 for a in xs}
(a for a in xs); print(x); x.y.z; x()(); (x)(y); xs[x]; mode[0]; exp(*xs); exp(x, *xs)
broadcast_arrays(*xs)[0]; zip(xs, xs); range(3); len(3); int('3'); float('inf'); bool(x)
abs('a'); min(); max(xs); sum(); sum(xs, 1); all(xs); any(flag); min(x, 1); sum([flag]); None
True; 'a'; float32; floating; finfo(x.dtype); result_type(*linalg.qr(x)); result_type(xs)
result_type(x, *xs); asarray(a=x); finfo(x); iinfo(int32).max; iinfo(int32).eps; array([])
array(['a']); array(x); array(w); array([low]); unique(x, 3); unique(x, 3, flag)
linalg.svd(x, compute_uv=flag)[0]; linalg.svd(w); result_type(); result_type(w)
issubdtype(x, y); broadcast_shapes(); x.reshape(); x.reshape(shape=3); x.at[0].add(y)
x.at[None].add(y); x.at[0].foo(y); x.at[0].add(w); xs.at[0].add(y); x.at[y].add(1); x.T(); mx
mx.foo; mx.foo(x); linalg; linalg.foo(x); x.astype('float32'); x.astype(dt)
sum(x, axis=[0, 'a']); pad(x, ((1, 2), 3)); pad(x, 1, mode='a'); tensordot(x, y, [[0]]); [x, 1]
[*xs, 1]; (*n, 1); [i for i in 3]; [i for i in (1, x)]; [mode for a in xs]; [a for a, b in xs]
[a for a.b in xs]; [a for a, a in zip(xs, xs)]; [a for a in zip(xs)]; enumerate(xs)
[a for a in range(x)]; [a for a in range(1, 2, 3)]; [a * i for i, a in enumerate(xs) if i > 0]
sincos(x)[n]; sincos(x)[0.5]; (1, 'a')[n]; (1, 2)[n]; (x, y)[n]; (x, 1)[0]; xs[flag:]; xs[:0.5]
(1, 'a')[1:]; x[True]; x['a']; x[(0, 1)]; x[[0, 1]]; x[w]
x[y, :]; x[..., y]; x[y, None]; x[y, w]; x[y, 'a']; x[None]; x[low]; g; w.shape
w is True; 'a' == 'b'; mode < 'a'; name == mode; x.dtype == floating; x.dtype == 'a'; xs == xs
n == None; dt is None; low is not None; (x if flag else w); (low if flag else None)
(n if flag else low); (1 if flag else 'a'); (big if flag else n)
x + (w if w is not None else None); clip(x, low if flag else None, None)
clip(x, axis0 if flag else 3, None); rope(x)
fast.rope(x, 2, traditional=True, base=None, scale=1, offset=0)
fast.rope(x, 2, True, 1.0, 1.0, 0); conv2d(x, y, stride=(1, 2, 3)); conv2d(x, y, padding=ints)
conv_general(x, y, padding=([1], [2])); as_strided(x, (2, 2), (1, 1)); as_strided(x)
as_strided(x, offset=-1); random.key(-1); random.key(n); depends([x], [y])[0]; quantize(x)[0]
meshgrid(x, y)[1]; atleast_1d(x, y); einsum(name, x); einsum(x, y); logical_and(x, 1); add(1, x)
add(1, 2); add(True, x); minimum(flag, 1); round(2.5) * x; x << 1; 1 << n; x.ndim << 1; x ** -1
2 ** x; 2 ** -n; n ** n; 0 ** 0 * x"""


def _split(texts: str) -> list[str]:
    return [t.strip() for t in re.split(r";|\n", texts) if t.strip()]


@pytest.mark.parametrize("text", _split(SNIPPETS))
@pytest.mark.parametrize("kind", ["array", "int", "cond"])
def test_snippets(text: str, kind: str) -> None:
    errors(text, samples.RESULTS[kind][0])
    errors(text, samples.RESULTS[kind][0], samples.SHAPES_ONLY)


def test_snippets_that_pass_compile(tmp_path: Path) -> None:
    items = []
    for text in _split(SNIPPETS):
        for want, result in samples.RESULTS.values():
            if not errors(text, want):
                items.append((text, result, compiled(text, want)))
    assert len(items) > 50
    check_cpp(samples.translation_unit(items), tmp_path)


# Values: the same text, run by Python and as C++

NUMBERS: dict[str, Any] = {
    "n": 2,
    "big": 5,
    "alpha": 0.25,
    "beta": -1.5,
    "scalar": 3,
    "half": 0.5,
    "truth": True,
    "most": 2,
    "flag": True,
    "axis": (0, 1),
    "axis0": 1,
    "mode": "a",
    "name": "q",
    "shape": (3, 2),
    "ints": (0, 1),
    "none": (),
    "dt": None,
    "low": -0.5,
}
CPP_NUMBERS = """
  int n = 2;
  int64_t big = 5;
  float alpha = 0.25;
  double beta = -1.5;
  mlxgen::Scalar scalar = 3;
  mlxgen::Scalar half = 0.5;
  mlxgen::Scalar truth = true;
  std::optional<mlxgen::Scalar> most = 2;
  bool flag = true;
  std::optional<std::vector<int>> axis{{0, 1}};
  std::optional<int> axis0 = 1;
  std::string mode = "a";
  std::string name = "q";
  mx::Shape shape{3, 2};
  std::vector<int> ints{0, 1};
  std::vector<int> none;
  std::optional<mx::Dtype> dt;
  std::optional<double> low = -0.5;
"""

ARRAYS = """
sum(x, axis=ints if ints else None); sum(x, axis=none if none else None)
sum(x, axis=axis if axis else None)
sum(x, axis if axis is not None else ints); mean(x, axis=None if not none else none, keepdims=True)
x.transpose([k for k in range(x.ndim) if k not in [d % x.ndim for d in ints[1:]]] + [1])
pad(x, [(ints[2 * k], ints[2 * k + 1]) for k in range(1)] + [(0, 0)])
pad(x, [(d, n) for d in ints])
pad(x, [(ints[d - 1], 2) if d < 1 else (0, 0) for d in range(x.ndim)])
reshape(x, [d for d in x.shape if d != 2] + [x.shape[0]]); x.reshape(*x.shape, *[1 for d in ints])
as_strided(x, [d - 1 for d in x.shape], [prod(x.shape[k + 1:]) for k in range(x.ndim)], 0)
x if none else y; x if not none else y; x if ints and flag else y; tile(x, [d + 1 for d in ints])
x[:, :ints[1]]; roll(x, ints, ints); flip(x, ints); expand_dims(x, ints); squeeze(x[None], none)
conv_general(q, q[:, :, :, :], stride=ints[1], padding=[d for d in sorted(ints)][::-1])
x * sum([d for d in ints]); x * len(none); x * (ints if ints else shape)[1]; x * max(ints)
x * scalar; i * scalar; i * half; scalar - i; i ** scalar; i / scalar; scalar // i; b * truth
b + scalar; h * half; h + scalar; x ** half; i * -scalar; i * (scalar + 1); i * (1 + half)
i * (scalar * half)
i * (scalar - truth); i * (scalar / 2); i * (scalar ** 2); i * (scalar ** -1); i * (7 // scalar)
i * (7 % scalar); i * (-7 // scalar); i * (half // 1); i * abs(-scalar); i * (scalar if flag else 1)
i * max(scalar, 1); i * min(half, 1); i * -truth; i * +truth; i * (truth + truth); i * sqrt(scalar)
clip(i, None, scalar); clip(i, scalar, most); clip(x, half, None); clip(x, None, most); i > half
where(i > 0, i, scalar); where(x > 0, half, scalar); where(x > 0, scalar, truth); maximum(i, half)
minimum(scalar, x); power(i, scalar); full((2, 2), scalar); full(2, half); full(2, truth)
full(2, half, dtype=float16); full_like(i, half); full_like(h, scalar)
array(scalar); array(half); array(half, float16); array(scalar, int32)
pad(i, 1, constant_values=scalar); i == scalar; scalar < x; x.at[0].add(scalar)
linspace(0, scalar, 5)
arange(0, scalar, dtype=float32); i if scalar == 3 else x
i if half == 0.5 and scalar == 3.0 else x; arctan2(x, scalar)
divmod(i, scalar)[0]; linalg.norm(x[0], half); x if half > scalar else i; arange(int(scalar))
x[idx, idx]; x[idx[:, None], idx]; x[idx, 0]; x[1, idx * 0]; x[None][idx * 0, idx]; x[idx[0], idx]
x.at[idx, idx].add(y[0, 0]); x.at[idx[:, None], idx].multiply(2); x.at[1, idx].add(1)
x.at[idx, idx * 0].maximum(7); x[idx - 2, -idx]
x.at[0].add(y[0]); x.at[idx].add(y); x.at[idx * 0].add(1); x.at[:, idx[0].ndim].add(2)
h.at[1:].add(1); zeros_like(x).at[..., 1:].add(y[:, 1:]); x.at[0, 1].maximum(9)
x.at[idx].multiply(y); x.at[::-1].minimum(y); i.at[idx].add(i)
i.at[idx[:, None] * 0].add(i[:, None]); x.at[0, ::2].multiply(2); 2 * x + 1; 1 - x; x / 3
3 // x; x // 0.7; x % 0.7; -x % 2; x ** 2; 2 ** x; h * 2.5; h + 1; b * 2; b + 1; i + 2; i * 0.5
x ** 2.0; x ** True; h ** 2; i ** 2; i ** 2.0; b ** 2; x ** (2 * n); i ** (1 + half)
i / 2; i // 3; i % 3; -i; ~i; ~b; i & 3; i | 1; i ^ 2; i << 1; i >> 1; b & (x > 0); x == 1
1 < x; h > 0.1; x @ y.T; abs(x); round(x, 1); exp(x); log1p(abs(x)); sigmoid(h); erf(x)
square(i); reciprocal(x); sum(x); sum(x, axis=-1, keepdims=True); sum(i, (0, 1)); sum(x, axis)
x.sum(0); mean(h, axis=0); max(x, -1); min(x); prod(x, axis=ints); all(b); any(b, axis=0)
std(x); var(x, 0, ddof=1); median(x, -1); logsumexp(x, axis=1); softmax(x, -1); softmax(x)
softmax(h, axis=0, precise=True); argmax(x); argmax(x, 1); argmin(x, axis=axis0); sort(x)
sort(x, None); argsort(x, 0); topk(x, 1); partition(x, 1); cumsum(x); cumsum(x, 1, reverse=True)
cumsum(i, axis=0, inclusive=False, dtype=float32); cumprod(x, -1); cummax(x)
logcumsumexp(x, axis0); diff(x); concatenate([x, y]); concatenate([x, y], axis=-1)
concatenate([x, y], None); stack([x, y]); stack(xs, -1); xs[1] - xs[0]; reshape(x, (-1,))
x.reshape(3, -1); reshape(x, shape); flatten(x); unflatten(x, 1, (1, -1)); squeeze(x[None], 0)
squeeze(x[None, None], (0, 1)); squeeze(x[:, None]); expand_dims(x, 1); expand_dims(x, (0, -1))
transpose(x); x.T; x.mT; x.transpose(1, 0); transpose(x, (1, 0)); swapaxes(x, 0, 1)
moveaxis(x, 0, -1); matrix_transpose(stack(xs)); permute_dims(x); broadcast_to(x[0], x.shape)
broadcast_to(2.0, (2, 2)); tile(x, 2); tile(x, (2, 1)); repeat(x, 2); repeat(x, 2, axis=1)
flip(x); flip(x, 0); roll(x, 1); roll(x, 1, 0); roll(x, (1, 2), (0, 1)); pad(x, 1)
pad(x, (1, 2), constant_values=7); pad(x, ((0, 1), (2, 0)), 'edge'); where(x > 0, x, 0)
where(x > 0, 1, 2); where(h > 0, 0.5, h); where(x > y, x, y); clip(x, 0, None)
clip(x, None, 0.5); clip(x, low, y); clip(h, -1, 1); maximum(x, 0); minimum(0.5, h)
maximum(i, 2); take(x, 1); take(x, 1, axis=0); take(x, idx, axis=1); take(x, idx)
take_along_axis(x, idx[:, None] % 2, axis=1); take_along_axis(x, idx, None)
put_along_axis(x, idx, y.flatten()[:2], None); x[0]; x[-1]; x[1:]; x[:, 1]; x[..., 1:]
x[:, None, -1]; x[None]; x[::-1]; x[:, ::-2]; x[idx]; x[..., None, 0]; x[n - 1]; x[:-1, 1:3]
x[5:]; x[...]; x[0, 0]; zeros((2, 3)); zeros(2, int32); ones_like(h); zeros_like(x, dtype=int32)
zeros_like(x, dt); full((2,), 3); full((2,), 0.5, float16); full(2, x[0, 0]); full_like(h, 2)
full_like(x, 3, dtype=int32); eye(3); eye(2, 3, 1); identity(2, int32); tri(3)
tri(2, 3, -1, int32); tril(x); triu(x, 1); diag(x[0]); diagonal(x, 1); trace(x)
trace(i, dtype=float32); arange(5); arange(1, 5); arange(1, 5, 2); arange(0, 1, 0.25)
arange(4, dtype=float16); arange(2.0); arange(stop=4, step=2); linspace(0, 1, 5)
linspace(0, 1, 4, endpoint=False); matmul(x, y.T); addmm(x[:, :2] * 0, x, y.T, 2.0, beta=0.5)
inner(x, y); outer(x[0], y[0]); vecdot(x, y); kron(x, y); tensordot(x, y, [[1], [1]])
tensordot(x, y.T, 1); einsum('ij,kj->ik', x, y); einsum('ij->j', x); linalg.norm(x)
linalg.norm(x, axis=-1); linalg.norm(x, 1, axis=0); linalg.norm(x, 'fro')
linalg.norm(x, inf, -1, True); matrix_norm(x); linalg.inv(sq); linalg.det(sq)
linalg.solve(sq, sq + 1); linalg.cholesky(sq @ sq.T); linalg.svd(x, False); linalg.cross(x, y)
linalg.slogdet(sq)[1]; linalg.eigvalsh(sq + sq.T); fft.fft(x); fft.rfft(x, n=4)
abs(fft.fft2(x)); fft.ifft(x, norm='ortho'); fft.irfft(fft.rfft(x), axis=-1)
fft.fftn(x, axes=[0]); fft.fftshift(x); fft.fftshift(x, axes=1); fft.fftfreq(4)
real(fft.fft(x)); fft.fft(x).imag; conj(fft.fft(x)); random.uniform(shape=(2, 3), key=key)
random.uniform(0, 2, (3,), float16, key); random.normal((2, 2), key=key)
random.normal((2,), float16, 1, 0.5, key); random.randint(0, 9, (4,), key=key)
random.bernoulli(0.3, (5,), key); random.bernoulli(key=key); random.gumbel((2,), key=key)
random.categorical(x, key=key); random.categorical(x, num_samples=3, key=key)
random.truncated_normal(-1, 1, (3,), key=key); random.permutation(x, key=key)
random.permutation(5, key=key); random.laplace((2,), loc=0.5, key=key); random.split(key)
random.split(key, 3); random.key(7); fast.rms_norm(x, g, 1e-5); fast.rms_norm(x, None, 1e-5)
fast.layer_norm(x, g, None, 1e-5); fast.cross_entropy(x, idx[:2] % 2)
fast.rope(x[None, None], 2, traditional=False, base=100.0, scale=1.0, offset=n)
softmax(x / sqrt(x.shape[-1]), -1); fast.scaled_dot_product_attention(q, q, q, scale=0.5)
fast.scaled_dot_product_attention(q, q, q, scale=0.5, mask='causal'); array(2); array(2.5)
array(True); array([1, 2, n]); array([0.5, n]); array(2, float16); array([1, 2], dtype=float32)
array(x); nan_to_num(x / 0); nan_to_num(x, 1.0, posinf=2.0); isnan(x / 0 * 0); degrees(x)
degrees(2.0); x.astype(int32); x.view(int32); logical_and(b, x > 0); logical_xor(x, 0)
logical_not(b); isclose(x, y); allclose(x, x); array_equal(x, 2); array_equal(x, x)
searchsorted(sort(x[0]), y); count_nonzero(i); divmod(i, 3)[1]; minmax(x)[0]
minmax(x, axis=0)[1]; unique(i, 4); unique(i, 4, return_counts=True)[1]
as_strided(x, (2, 2), (1, 1)); as_strided(x, (3, 2)); as_strided(x, offset=0)
conv1d(x[None], y[:, None, :] * 0 + 1); conv2d(q, q[..., :1, :1, :] * 0 + 1, padding=(1, 0))
hamming(3); meshgrid(x[0], y[0])[1]; meshgrid(x[0], y[0], indexing='ij')[0]
broadcast_arrays(x, y[:1])[1]; split(x, 3, axis=1)[2]; split(x, [1], axis=1)[1]; x.split(2)[0]
unstack(x, axis=1)[1]; sum(xs); sum([a * 2 for a in xs]); stack([a + 1 for a in xs])
stack([c * d for c, d in zip(xs, [x, y])]); stack([a * k for k, a in enumerate(xs)])
stack([a for a in xs if a.ndim == 2]); concatenate([*xs, x]); stack(xs[::-1]); x if flag else y
w @ x.T if w is not None else x; x if v is None else v * x; x if mode == 'a' else y
sqrt(2 / pi) * x; x * exp(-n); x * maximum(alpha, 0.5); x * (n / 4); h * (n // 3); x * -n ** 2
x * (-7 // 2) + -7 % 3; x * (7.5 // -2) + 7.5 % -2; x * abs(beta); x * int(2.9)
x * finfo(x.dtype).eps; x * min(n, 1, big); x * sum(a.shape[0] for a in xs); x * len(xs)
x * prod(x.shape); x * x.size; x * float(n); x * round(2.5); x * (alpha + n); x.shape[0] * x
x.nbytes + x; h.itemsize * x; positive(x); stop_gradient(x); contiguous(x.T)
hadamard_transform(q[..., :2]); slice_update(x, y[:1, :1], idx[:2], (0, 1))
slice(x, idx[:2] * 0, (0, 1), (1, 2)); view(x, uint32); from_fp8(to_fp8(x), float32)
gather_mm(q, q.mT); block_masked_mm(q2, q2, 32)
dequantize(quantize(q2, 32)[0], quantize(q2, 32)[1], quantize(q2, 32)[2], 32)
quantized_matmul(q2, quantize(q2)[0], quantize(q2)[1], quantize(q2)[2])
sin(exp(x)) * sin(exp(x)) + exp(x); split(exp(q2), 2)[0] - split(exp(q2), 2)[1]
(exp(x) if flag else y) * exp(x) + (exp(x) if flag else y)
stack([exp(x) * f for f in xs]) - exp(x)
x if empty is None else -x; x if text is None else -x; x if mask is None else -x
x if text == 'causal' else 2 * x if text == 'full' else 3 * x
mask @ x if mask is not None and mask != 'causal' and mask != 'full' else x
mask @ x if mask not in ('causal', 'full') and mask is not None else x
fast.scaled_dot_product_attention(q[:, :, :2], q[:, :, :2], q[:, :, :2], scale=1, mask=inputs)
fast.scaled_dot_product_attention(q, q, q, scale=1, mask=causal)
fast.scaled_dot_product_attention(q, q, q, scale=1, mask=nothing)
"""

OTHERS = {
    "shape": """
sorted([3, n, 1]); [k for k in range(5, n, -2)]; none if none else ints; (n,) if none else (1, n)
[(d + 2 * ints[k] - 1) // (ints[k] + 1) + 1 for k, d in enumerate(x.shape)]; ints if flag else none
x.shape; x.shape[1:]; x.shape[::-1]; x.shape[:-1] + (n,); (*x.shape, 1); (1,) * n; shape
(n * 3, 2); [d * 2 for d in x.shape]; broadcast_shapes(x.shape, (1, 3), (2, 1))
x.shape if flag else (); (x.shape[-1] // 2,); x.shape[:-n]; x.shape[n - 3:]; x.shape[:n - 3]
x.shape[:n - 3] + (n,) + x.shape[n - 2:]; x.shape[n - 9:n + 9]; x.shape[n:]; x.shape[:n - 9]
x.shape[n + 9:n - 9:-n]; x.shape[n - 3:n - 9:-1]; x.shape[:n - 4:-1]
(*ints[-n:n], *x.shape[-n:])""",
    "int": """
int(scalar); int(half); int(truth + scalar); x.shape[int(truth)]
n // -2; -7 % 3; x.shape[-1]; x.ndim; x.size * n; max(x.shape); min(n, big); int(-2.7)
int(flag); n ** 3; abs(-n); sum(a.ndim for a in xs); len(xs); len(x.shape); len(x)
prod(x.shape); x.shape[0] * x.shape[1]; iinfo(int32).max; max(a.shape[-1] for a in xs)
(3, 4)[n - 1]; x.dtype.size; ints[-1]""",
    "num": """
n / 4; alpha * 2; sqrt(n); exp(-alpha); pi / n; 2 ** -1; n ** 0.5; 7.5 // 2; -7.5 % 2; float(n)
scalar; half; -half; scalar + half; scalar * 2; 1 / scalar; scalar ** 0.5; exp(half); float(scalar)
scalar // 2; scalar % 2; max(half, 0.25); abs(-half); scalar if flag else 0.25
finfo(float16).max; maximum(alpha, beta); min(alpha, 1); arctan2(1.0, 2.0); power(2.0, 3)
floor(2.7); sum(a.ndim / 2 for a in xs); erf(0.5)""",
    "cond": """
scalar == 3; scalar != 3.0; half < scalar <= 3; truth == 1; bool(half); 2 <= n < scalar
scalar in (1, 3); n == 2; 0 < n < 2; x.ndim == 2 and not flag; mode in ('a', 'b')
mode not in ('b',)
x.shape == y.shape; x.shape != (2, 3); 2 in x.shape; n not in (1, 3); x.dtype == float32
issubdtype(i.dtype, integer); w is not None; v is None or v.ndim == 7
any(a.ndim == 3 for a in xs); all(a.shape[0] == n for a in xs); h.dtype in (float16, bfloat16)
text == 'full'; text != 'full'; mask == 'full'; mask != 'causal'; empty == 'full'; empty != 'full'
text in ('causal', 'full'); mask in ('causal', 'full'); empty not in ('causal',); mask is not None
text is not None; empty is None; 'full' == text and mask is not None; text == name
flag == (n > 3); name != mode; bool(n); result_type(h, x) == float32
len([d for d in x.shape if d > 2]) == 1""",
}


def _number_or(function: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """MLX's function on arrays, Python's on numbers and lists."""
    import mlx.core as mx

    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if isinstance(args[0], mx.array) else otherwise)(*args, **kwargs)

    return call


def python_names(arrays: dict[str, Any]) -> dict[str, Any]:
    """The values of the names in formulas, for Python."""
    import builtins

    import mlx.core as mx

    names: dict[str, Any] = {k: getattr(mx, k) for k in dir(mx) if not k.startswith("_")}
    names.update(mx=mx, pi=math.pi, e=math.e, inf=math.inf, nan=math.nan, len=len, int=int)
    names.update(float=float, bool=bool, zip=zip, enumerate=enumerate, range=range)
    for name in ("sum", "min", "max", "all", "any", "abs"):
        names[name] = _number_or(getattr(mx, name), getattr(builtins, name))
    for name in ("sqrt", "exp", "erf", "floor"):
        names[name] = _number_or(getattr(mx, name), getattr(math, name))
    names["prod"] = _number_or(mx.prod, math.prod)
    names["round"] = _number_or(mx.round, round)
    names["maximum"] = lambda a, b: mx.maximum(a, b) if _any_array(a, b) else max(a, b)
    names["minimum"] = lambda a, b: mx.minimum(a, b) if _any_array(a, b) else min(a, b)
    names["power"] = lambda a, b: mx.power(a, b) if _any_array(a, b) else a**b
    names["arctan2"] = lambda a, b: mx.arctan2(a, b) if _any_array(a, b) else math.atan2(a, b)
    return {**names, **NUMBERS, **arrays}


def _any_array(*values: Any) -> bool:
    return any(hasattr(v, "dtype") for v in values)


def value_formulas() -> list[tuple[str, str]]:
    """Return kind and text of all formulas that are run."""
    found = {"array": ARRAYS, **OTHERS}
    return [(kind, text) for kind, texts in found.items() for text in _split(texts)]


# Numbers: operators on operands of all kinds. The result and its kind are Python's.

# Kinds of operands: their type, their C++ type and their values.
OPERANDS: dict[str, tuple[Type, str, list[Any]]] = {
    "int": (Type(Kind.INT), "int", [-(2**31), -3, 0, 1, 7, 2**31 - 1]),
    "wide": (Type(Kind.INT, int64=True), "int64_t", [-(2**40), -1, 0, 2]),
    "float": (Type(Kind.FLOAT), "double", [-2.5, -0.0, 0.1, 2.0, math.inf]),
    "bool": (Type(Kind.BOOL), "bool", [False, True]),
    "number": (Type(Kind.NUMBER), "mlxgen::Scalar", [True, -3, 2, 0.5]),
}
OF_NUMBERS = """
a + b; a - b; a * b; a / b; a // b; a % b; a ** b; min(a, b); max(a, b); a if p else b
a == b; a != b; a < b; a <= b < 2; a in (b, 2); min(a, b, 1.5); max((a, b)); sum([a, b])
(a, b)[1]; -a; +a; abs(a); round(a); int(a); float(a); bool(a); a ** 2; a ** -1; 2 ** a; not a
a and b; a or b; a * 1.0; a + 0; a // 2; a / 2; (a if p else 0.5) + 1; -(1 if p else a) // 2
(a if p else b) == 2; abs(a if p else b); round(a if p else b); int(a if p else b)
min(a if p else b, 1); float(a if p else b); a if p else b if p else 1.5; int(a // 2) if p else a
hint(a if p else 2.5); prod((a, b))
"""
GRID = """
template <typename T>
std::vector<T> values();
template <typename A, typename B>
void grid(int i, mlxgen::Scalar (*f)(A, B, bool)) {
  for (auto a : values<A>()) {
    for (auto b : values<B>()) {
      for (bool p : {false, true}) {
        try {
          auto v = f(a, b, p);
          auto kind = v.is_bool() ? "bool" : v.is_float() ? "float" : "int";
          std::printf("%d %s ", i, kind);
          v.is_float() ? std::printf("%.17g\\n", static_cast<double>(v))
                       : std::printf("%ld\\n", long(static_cast<int64_t>(v)));
        } catch (const std::exception&) {
          std::printf("%d raises 0\\n", i);
        }
      }
    }
  }
}
"""


def number_grid() -> tuple[list[str], list[str], list[tuple[str, Any, bool]]]:
    """Return C++ declarations, statements that print results, and the expected ones."""
    declared, lines = [GRID], list[str]()
    words = {-(2**31): "INT_MIN", math.inf: "mlxgen::inf"}
    for _, cpp_type, values in OPERANDS.values():
        listed = ", ".join(words.get(v, f"{v}".lower()) for v in values)
        declared.append(
            f"template <>\nstd::vector<{cpp_type}> values() {{\n  return {{{listed}}};\n}}\n"
        )
    expected: list[tuple[str, Any, bool]] = []
    accepted = Counter[str]()
    for text in _split(OF_NUMBERS):
        for a, b in product(OPERANDS, OPERANDS):
            if "b" not in re.findall(r"\w+", text) and a != b:
                continue
            types = {"a": OPERANDS[a], "b": OPERANDS[b]}
            names = {name: Name(type_) for name, (type_, *_) in types.items()}
            scope = Scope({**names, "p": Name(Type(Kind.BOOL))}, {}, {})
            if errors(text, Want(Kind.NUMBER), scope):
                continue
            accepted[text] += 1
            expr = compiled(text, Want(Kind.NUMBER), scope)
            params = "".join(f"{cpp_type} {name}, " for name, (_, cpp_type, _) in types.items())
            body = f"[]({params}bool p) -> mlxgen::Scalar {{ {samples.body(expr)} }}"
            lines.append(f"  grid({len(lines)}, +{body}); // {text}")
            for x, y, p in product(OPERANDS[a][2], OPERANDS[b][2], (False, True)):
                given = {"a": x, "b": y, "p": p, "hint": lambda n: n, "prod": math.prod}
                try:
                    huge = "**" in text and isinstance(y, int) and max(abs(x), abs(y)) > 99
                    want = None if huge else eval(text, given)
                except (ArithmeticError, ValueError) as error:
                    want = error
                large = max(abs(x), abs(y)) >= 2**31
                expected.append((f"{text} of {x!r}, {y!r}, {p}", want, large))
    assert min(accepted[text] for text in _split(OF_NUMBERS)) > 0, accepted
    return declared, lines, expected


def same_number(want: Any, large: bool, kind: str, value: float) -> bool:
    """Return whether C++ has Python's number; it may raise for more than 32 bits."""
    if want is None:  # a power that takes Python too long
        return True
    if isinstance(want, Exception | complex):  # floats go on to infinity, as in MLX
        return kind == "raises" or kind == "float" or abs(value) >= 2**31
    if kind == "raises":
        return large or abs(want) >= 2**31 or not math.isfinite(want)
    same = math.isclose(value, want, rel_tol=1e-15) or (value != value and want != want)
    return kind == type(want).__name__ and same


RUN = """#include <climits>
#include <cstdio>
#include "mlx/io.h"
#include "mlxgen/formula.h"
namespace mx = mlx::core;
std::string folder;
void keep(int i, const mx::array& v) {
  mx::save(folder + "/" + std::to_string(i) + ".npy", mx::contiguous(v));
}
void keep(int i, const mx::Shape& v) {
  keep(i, mx::array(v.begin(), {mlxgen::len(v)}, mx::int64));
}
void keep(int i, int64_t v) { keep(i, mx::array(v, mx::int64)); }
void keep(int i, int v) { keep(i, mx::array(v, mx::int64)); }
void keep(int i, bool v) { keep(i, mx::array(v)); }
void keep(int i, double v) { keep(i, mx::array(v, mx::float64)); }
"""
MAIN = """int main(int, char** argv) {
  mx::set_default_device(mx::Device::cpu);
  mx::StreamOrDevice s = mx::Device::cpu;
  folder = argv[2];
  auto in = mx::load_safetensors(std::string(argv[1])).first;
"""


def test_values(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    mx.set_default_device(mx.cpu)
    arrays = {
        "x": mx.array([[0.5, -1.25, 2.0], [1.5, 0.75, -0.5]]),
        "y": mx.array([[1.0, 0.25, -2.0], [0.5, -0.75, 3.0]]),
        "w": mx.array([[0.5, 1.0, 2.0]]),
        "g": mx.array([0.5, 1.0, 2.0]),
        "h": mx.array([[0.5, -1.25], [3.0, 0.125]], dtype=mx.float16),
        "i": mx.array([[7, -3], [2, 5]]),
        "b": mx.array([[True, False, True], [False, True, True]]),
        "idx": mx.array([1, 0]),
        "key": mx.random.key(3),
        "sq": mx.array([[2.0, 0.5], [0.25, 3.0]]),
        "q": mx.arange(1 * 2 * 4 * 8).reshape(1, 2, 4, 8).astype(mx.float32) / 64,
        "q2": mx.arange(64 * 64).reshape(64, 64).astype(mx.float32) / 4096,
    }
    types = {**samples.ARGUMENTS, **{name: Type(Kind.ARRAY) for name in arrays}}
    types["none"] = Type(Kind.INTS)
    types["half"] = types["truth"] = types["scalar"]
    types["w"] = types["v"] = Type(Kind.ARRAY, optional=True)
    known = {name: Name(t, 2 if name == "xs" else None) for name, t in types.items()}
    union = Type(Kind.ARRAY, optional=True, choices=("causal", "full"))
    known |= {name: Name(union, mode=f"{name}_mode") for name in ("mask", "text", "empty")}
    known |= {
        name: Name(replace(union, choices=("causal",)), mode=f"{name}_mode")
        for name in ("inputs", "causal", "nothing")
    }
    scope = Scope(known, {}, "")
    given = {"mask": arrays["sq"], "text": "full", "empty": None}
    given |= {"inputs": arrays["sq"], "causal": "causal", "nothing": None}
    names = python_names({**arrays, **given, "v": None, "xs": [arrays["x"], arrays["y"]]})
    facts = {k: ArrayFacts(v.shape, str(v.dtype).split(".")[-1]) for k, v in arrays.items()}
    facts |= {"mask": facts["sq"], "text": "full", "empty": None}
    facts = {**NUMBERS, **facts, "v": None, "xs": [facts["x"], facts["y"]]}
    declared, printing, numbers = number_grid()
    lines = [RUN, *declared, MAIN, *printing]
    lines += [f'  auto {k} = in.at("{k}");' for k in arrays if k != "w"]
    lines += ['  std::optional<mx::array> w = in.at("w");', "  std::optional<mx::array> v;"]
    lines += ["  std::vector<mx::array> xs{x, y};", CPP_NUMBERS]
    lines += ["  std::optional<mx::array> mask = sq, text, empty, inputs = sq, causal, nothing;"]
    lines += ['  std::optional<std::string> mask_mode, text_mode = "full", empty_mode;']
    lines += ['  std::optional<std::string> inputs_mode, causal_mode = "causal", nothing_mode;']
    expected: dict[int, tuple[str, Any]] = {}
    for i, (kind, text) in enumerate(value_formulas()):
        expr = compiled(text, samples.RESULTS[kind][0], scope)
        try:
            expected[i] = (text, want := eval(text, names))
        except Exception as error:
            raise AssertionError(f"Python does not take {text}") from error
        lines.append(f"  keep({i}, [&] {{ {samples.body(expr)} }}()); // {text}")
        # Samples are evaluated like this at generation time.
        known = evaluated(parsed(text), facts, None) if kind in ("shape", "int", "cond") else None
        assert known is None or known == (tuple(want) if kind == "shape" else want), text
    lines.append("}\n")
    (tmp_path / "run.cpp").write_text("\n".join(lines))
    mx.save_safetensors(str(tmp_path / "in.safetensors"), arrays)
    root = mlx_root()
    command = [
        *(compiler(), "-std=c++20", "-O0", "-w", "-isystem", str(root / "include"), f"-I{INCLUDE}"),
        *(str(tmp_path / "run.cpp"), str(INCLUDE.parent / "src" / "shapeless.cpp")),
        *("-o", str(tmp_path / "run")),
        *(f"-L{root / 'lib'}", "-lmlx", f"-Wl,-rpath,{root / 'lib'}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    run = [str(tmp_path / "run"), str(tmp_path / "in.safetensors"), str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wrong = []
    for i, (text, want) in expected.items():
        have = mx.load(str(tmp_path / f"{i}.npy"))
        if isinstance(want, mx.array):
            same = have.dtype == want.dtype and have.shape == want.shape
            same = same and bool(mx.allclose(have, want, rtol=1e-5, atol=1e-6, equal_nan=True))
        else:
            same = have.tolist() == pytest.approx(
                list(want) if isinstance(want, tuple | list) else want
            )
        if not same:
            wrong.append(f"{text}: {have.dtype} {have} instead of {want}")
    assert not wrong, "\n".join(wrong)
    found = [line.split()[1:] for line in done.stdout.splitlines()]
    for (text, *want), (kind, value) in zip(numbers, found, strict=True):
        if not same_number(*want, kind, float(value) if kind == "float" else int(value)):
            wrong.append(f"{text}: {kind} {value} instead of {want[0]!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("sum(" * 40 + "x" + ", axis)" * 40, "MG318"),  # what may be None is written twice
        ("x + " * 9000 + "x", "MG318"),
        ("-" * 9000 + "x", "MG318"),
        ("x" + ".T" * 4500, "MG318"),
        ("(" * 9000, "MG301"),
        ("(" + "= " * 4900, "MG301"),
        ("x * " + "9" * 9000, "MG317"),
        ("a::" * 3000 + " y", "MG301"),
        ("q" * 9000, "MG303"),
        ("x." + "q" * 9000 + "()", "MG309"),
        ("x + '" + "q" * 9000 + "'", "MG308"),
        ("x + \ud800", "MG301"),
        ("x\0", "MG301"),
    ],
    ids=lambda part: part[:9].encode("ascii", "replace").decode(),
)
def test_limits(text: str, code: str) -> None:
    started = time.process_time()
    found = errors(text)
    assert time.process_time() - started < 2
    assert [r[0] for r in found] == [code]
    assert len(f"{found[0][1]}{found[0][4]}") < 500


def test_speed() -> None:
    text = "grads[0] * (1 - x * x) * exp(-x)"
    compiled(text)
    started = time.process_time()
    for _ in range(200):
        compiled(text)
    assert (time.process_time() - started) / 200 < 2e-3  # about 0.08 ms on an idle machine
