"""Arrays that a formula uses several times are computed once and stored in C++ variables."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from formula import formula_samples as samples
from formula.test_formula import check_cpp, compiled, errors
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.formula.compile import Expr, Let, Name, Task, Want, compile_together
from mlxgen.model.op import Length
from mlxgen.model.signature import Kind, Type

PURE = samples.SCOPE._replace(pure=lambda name: name != "resize")
ARRAYS = Want(Kind.ARRAYS)


def locals_of(expr: Expr) -> list[str]:
    """Return the C++ of the variables t0, t1..."""
    assert [name for name, _ in expr.locals] == [f"t{i}" for i in range(len(expr.locals))]
    return [samples.written(local) for _, local in expr.locals]


REPEATED: list[tuple[str, list[str], str | None]] = [
    (
        "grads[0] * exp(x) * exp(x)",
        ["mx::exp(x, s)"],
        "mlxgen::multiply(mlxgen::multiply(grads[0], t0, s), t0, s)",
    ),
    ("mx.exp(x) - exp(x)", ["mx::exp(x, s)"], "mlxgen::subtract(t0, t0, s)"),
    ("x.sum() * sum(x)", ["mlxgen::sum(x, false, s)"], "mlxgen::multiply(t0, t0, s)"),
    # Only the outermost part, unless the inner one is also used elsewhere.
    ("sin(exp(x)) * sin(exp(x))", ["mx::sin(mx::exp(x, s), s)"], "mlxgen::multiply(t0, t0, s)"),
    (
        "sin(exp(x)) * sin(exp(x)) * exp(x)",
        ["mx::exp(x, s)", "mx::sin(t0, s)"],
        "mlxgen::multiply(mlxgen::multiply(t1, t1, s), t0, s)",
    ),
    # Lists of arrays, conditions as a whole, and what takes part in shapes.
    (
        "split(exp(x), 2)[0] * split(exp(x), 2)[1]",
        ["mx::split(mx::exp(x, s), 2, 0, s)"],
        "mlxgen::multiply(t0[0], t0[1], s)",
    ),
    (
        "linalg.qr(x)[0] @ linalg.qr(x)[1]",
        ["mx::linalg::qr(x, s)"],
        "mx::matmul(std::get<0>(t0), std::get<1>(t0), s)",
    ),
    (
        "(exp(x) if flag else y) / (exp(x) if flag else y)",
        ["flag ? mx::exp(x, s) : y"],
        "mlxgen::divide(t0, t0, s)",
    ),
    ("reshape(exp(x), exp(x).shape)", ["mx::exp(x, s)"], "mx::reshape(t0, t0.shape(), s)"),
    (
        "fast.rms_norm(x, exp(y) if flag else None, 1) / "
        "fast.rms_norm(y, exp(y) if flag else None, 1)",
        ["flag ? std::optional<mx::array>(mx::exp(y, s)) : std::nullopt"],
        None,
    ),
    ("clip(x, None, a_max=exp(y)) + exp(y)", ["mx::exp(y, s)"], None),
    # On a condition or in a loop, if it is computed anyhow.
    ("(exp(x) if flag else y) * exp(x)", ["mx::exp(x, s)"], None),
    ("stack([f * exp(x) for f in xs]) * exp(x)", ["mx::exp(x, s)"], None),
    # The first operand of `and`, `or` and `in` is computed in any case, and two of a chain.
    ("x if exp(x).ndim == 2 and n > 1 else exp(x) + exp(x)", ["mx::exp(x, s)"], None),
    ("x if exp(x).ndim == 2 or exp(x).ndim == 3 else y", ["mx::exp(x, s)"], None),
    ("x if 0 < exp(x).ndim < exp(x).size else y", ["mx::exp(x, s)"], None),
    ("x if n < 1 or exp(x).size == n else exp(x) + exp(x)", [], None),
    ("x if n < 1 < exp(x).size else exp(x) + exp(x)", [], None),
    # Random numbers follow from the key, which there always is.
    (
        "random.normal((2,), key=sin(x)) + random.normal((2,), key=sin(x))",
        [
            "mx::random::normal(mx::Shape{2}, mx::float32, std::nullopt, std::nullopt, "
            "mx::sin(x, s), s)"
        ],
        "mlxgen::add(t0, t0, s)",
    ),
    ("sincos(x)[0] * sincos(x)[1]", ["ops::sincos(x, s)"], "mlxgen::multiply(t0[0], t0[1], s)"),
]


@pytest.mark.parametrize(("text", "locals_", "result"), REPEATED)
def test_repeated(text: str, locals_: list[str], result: str | None) -> None:
    expr = compiled(text, scope=PURE)
    assert locals_of(expr) == locals_
    assert result is None or samples.written(expr) == result


def test_repeated_in_several_results() -> None:
    expr = compiled("(x * tanh(y), y * tanh(y))", ARRAYS)
    assert locals_of(expr) == ["mx::tanh(y, s)"]
    assert expr.holes == {"x", "y", "stream"}


@pytest.mark.parametrize(
    "text",
    [
        # Names, numbers, and what is there once.
        "x * x",
        "grads[0] + grads[0]",
        "sqrt(alpha) * x * sqrt(alpha)",
        "x.shape[0] * x * x.shape[0]",
        "exp(x) * exp(y)",
        "clip(x, None, a_max=exp(y))",
        "+exp(x)",
        "([exp(x)] * 2)[1]",
        # On conditions alone.
        "(exp(x) if flag else y) + (exp(x) if n > 0 else x)",
        "x if flag and exp(x).ndim == 2 else exp(x)",
        "x if n in (exp(x).ndim, exp(x).size) else y",
        "x @ w + x @ w if w is not None else x",
        # In loops, whose lists may be empty.
        "[f * exp(x) for f in xs][0] + [exp(x) - f for f in xs][0]",
        "[exp(f) * exp(f) for f in xs][0]",
        "sum([exp(x) for f in xs if exp(x).ndim == f.ndim])",
        # What an index or a length leaves out.
        "(exp(x), y)[1] * exp(x)",
        "len([exp(x), y]) * exp(x)",
        "[exp(x), y][1] * (exp(x) if flag else exp(x))",
        # What may draw random numbers.
        "resize(x) * resize(x)",
        "exp(resize(x)) * exp(resize(x))",
    ],
)
def test_not_repeated(text: str) -> None:
    expr = compiled(text, scope=PURE)
    assert not expr.locals


def test_entries_may_draw() -> None:
    """Without a scope, entries count as random."""
    assert not compiled("sincos(x)[0] * sincos(x)[1]").locals


def test_random_functions_have_keys() -> None:
    """Without a key, every call would draw other numbers."""
    for key in ("", ", key=None"):
        assert errors(f"random.normal((2,){key})"), key


def test_optional_keys_are_drawn() -> None:
    """None draws another key in each call, so that equal calls have different results."""
    for key in ("w", "x if flag else None"):
        call = f"random.normal((2,), key={key})"
        expr = compiled(f"{call} - {call}", scope=PURE)
        assert not expr.locals and expr.impure == {"random.normal"}
    drawn = compiled("random.normal((2,), key=w)")
    assert "mlxgen::random_key(w)" in samples.written(drawn)
    with_key = compiled("random.normal((2,), key=x) - random.normal((2,), key=x)", scope=PURE)
    assert with_key.locals and not with_key.impure


def test_names_are_free() -> None:
    names = {**samples.NAMES, "t0": Name(Type(Kind.ARRAY)), "t2": Name(Type(Kind.INT))}
    scope = samples.SCOPE._replace(names=names, lengths={"t1": Length("x", 0, "t1")})
    expr = compiled("exp(t0) * exp(t0) + sin(t0) * sin(t0)", scope=scope)
    assert [name for name, _ in expr.locals] == ["t3", "t4"]


def test_what_is_known_stays() -> None:
    one, two = compiled("grads[0] * exp(x)"), compiled("grads[0] * exp(x) + 0 * exp(x)")
    assert two.locals and (one.facts, one.names, one.mlx) == (
        two.facts,
        two.names,
        two.mlx - {"add"},
    )


def together(*texts: str, always: bool = False, **lets: Let) -> list[list[tuple[str, str]]]:
    """Return the variables of formulas that one function computes; ``always``: the first one."""
    scope = PURE._replace(lets=lets)
    tasks = [
        Task(text, scope, Want(Kind.ARRAY), lambda *_: None, always and i == 0)
        for i, text in enumerate(texts)
    ]
    exprs = compile_together(tasks)
    return [
        [(name, samples.written(local)) for name, local in expr.locals] if expr else []
        for expr in exprs
    ]


LAZY = "mlxgen::Lazy([&] {{ return {}; }})".format


def test_formulas_of_one_function() -> None:
    shared, lazy = ("t0", "mx::exp(x, s)"), ("t0", LAZY("mx::exp(x, s)"))
    assert together("exp(x) * y", "exp(x) + y") == [[shared], [shared]]
    # Not every call computes it.
    assert together("exp(x) * y", "exp(x) + y", "y") == [[lazy], [lazy], []]
    assert together("exp(x) * y", "exp(x) + y", "y", always=True) == [[shared], [shared], []]
    # Only conditions compute it in one of the formulas.
    assert together("exp(x) * y", "exp(x) if flag else y") == [[], []]
    # A name of a variable has one meaning in all formulas.
    assert together("exp(x) * exp(x)", "sin(x) * sin(x)") == [
        [("t0", "mx::exp(x, s)")],
        [("t1", "mx::sin(x, s)")],
    ]
    # Inner parts of shared ones, which one formula repeats.
    inner, outer = ("t0", "mx::exp(x, s)"), ("t1", "mx::sin(t0, s)")
    assert together("sin(exp(x)) * exp(x)", "sin(exp(x))") == [[inner, outer], [inner, outer]]


def test_lets_of_one_function() -> None:
    let = Let("sin(exp(x))", "wave", frozenset(["x"]))
    shared = ("wave", "mx::sin(mx::exp(x, s), s)")
    assert together("wave * y", "wave + y", wave=let) == [[shared], [shared]]
    lazy = ("wave", LAZY("mx::sin(mx::exp(x, s), s)"))
    assert together("wave * y", "wave + y", "y", wave=let) == [[lazy], [lazy], []]
    assert together("wave * y", "y", wave=let) == [[shared], []]


class Repeats(samples.Formulas):
    """Random formulas that repeat earlier parts."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.before: list[str] = []

    def array(self, depth: int) -> str:
        """A formula of an array."""
        if self.before and self.rng.random() < 0.4:
            return self.rng.choice(self.before)
        text = super().array(depth)
        if not re.search(r"\b[afik]\b", text):  # of a loop
            self.before.append(text)
        return text


def test_random_formulas(tmp_path: Path) -> None:
    found: list[tuple[str, str, Expr]] = []

    @given(st.randoms(use_true_random=False))
    @settings(max_examples=400, deadline=None, database=None, derandomize=True)
    def collect(rng: random.Random) -> None:
        kind = rng.choice(("array", "arrays"))
        want, result = samples.RESULTS[kind]
        text = getattr(Repeats(rng), kind)(4)
        if not errors(text, want, PURE) and (expr := compiled(text, want, PURE)).locals:
            found.append((text, result, expr))

    collect()
    assert len(found) > 40
    for text, _, expr in found:  # each is used twice, after it
        after = [*locals_of(expr), samples.written(expr)]
        for i, (name, _) in enumerate(expr.locals):
            uses = [len(re.findall(rf"\b{name}\b", cpp)) for cpp in after]
            assert sum(uses) > 1 and not any(uses[: i + 1]), text
            assert "resize" not in after[i]
    found += [(text, "mx::array", compiled(text, scope=PURE)) for text, _, _ in REPEATED]
    check_cpp(samples.translation_unit(found), tmp_path)
