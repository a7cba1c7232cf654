"""Following the helps about formulas removes their errors: fixes are applied, advice by hand.

A row: the message's name, the wrong formula, and the corrected one. tests/check follows helps that
concern a whole entry.
"""

# ruff: noqa: RUF001 - the signs are what is wrong

from __future__ import annotations

import pytest
from formula import formula_samples as samples

from mlxgen.diagnostics import Advice
from mlxgen.formula.compile import Want, compile_formula
from mlxgen.formula.explain import messages
from mlxgen.model.signature import Kind

ROWS = """
empty |  | x * 2
bad_character | x\u200b + y | x + y
statement | z = x | x
statement | return x | x
statement | if flag: x | x if flag else y
syntax | x if n = 2 else y | x if n == 2 else y
syntax | x if flag && n > 2 else y | x if flag and n > 2 else y
syntax | x if flag || n > 2 else y | x if flag or n > 2 else y
syntax | x->sum() | x.sum()
syntax | x if n <> 2 else y | x if n != 2 else y
syntax | x if n !== 2 else y | x if n != 2 else y
syntax | x if n === 2 else y | x if n == 2 else y
syntax | x if n => 2 else y | x if n >= 2 else y
syntax | x if n =< 2 else y | x if n <= 2 else y
syntax | x .* y | x * y
syntax | x ./ y | x / y
syntax | x .^ 2 | x ** 2
syntax | 2x | 2 * x
syntax | mx::exp(x) | mx.exp(x)
syntax | x++ | x + 1
quote | x' | x.T
unfinished | x + | x
unreadable | x × y | x * y
unreadable | x ÷ y | x / y
unreadable | x − y | x - y
unreadable | x if n ≤ 2 else y | x if n <= 2 else y
unreadable | x if n ≥ 2 else y | x if n >= 2 else y
unreadable | x if n ≠ 2 else y | x if n != 2 else y
unreadable | x * ∞ | x * inf
unreadable | x if n ∈ (1, 2) else y | x if n in (1, 2) else y
unreadable | x if flag ∧ n > 2 else y | x if flag and n > 2 else y
unreadable | x if flag ∨ n > 2 else y | x if flag or n > 2 else y
no_function | (lambda a: a)(x) | exp(x)
Lambda | x + (lambda: 1) | x + 1
Dict | stack({}) | stack([x, y])
Set | stack({x, y}) | stack([x, y])
JoinedStr | x if mode == f"a" else y | x if mode == "a" else y
syntax | *x | x
DictComp | stack({a: a for a in xs}) | stack([a for a in xs])
SetComp | stack({a for a in xs}) | stack([a for a in xs])
Await | await x | x
Yield | (yield x) | x
two_stars | sum(x, **n) | sum(x, axis=n)
ellipsis | ... | x[..., 0]
complex | x * 1j | x * y
bytes | x if mode == b"a" else y | x if mode == "a" else y
several_loops | stack([a for a in xs for b in xs]) | stack([a * b for a, b in zip(xs, xs)])
filtered_lists | stack([a for a, b in zip(xs, xs) if flag]) | stack([a for a in xs if flag])
loop_variable | stack([x for x.T in xs]) | stack([a for a in xs])
loop_count | stack([a for a, b, c in zip(xs, xs)]) | stack([a for a, b in zip(xs, xs)])
long_int | x * 99999999999999999999 | x * 1e20
large_float | x * 1e999 | x * inf
bad_string | x if mode == "a\\0" else y | x if mode == "a" else y
module | x * linalg | x * linalg.norm(x)
unknown_function | linalg(x) | exp(x)
quote | x if mode == 'a else y | x if mode == 'a' else y
statement | x; y | x
no_methods | n.abs() | abs(n) * x
no_value | x.item() | where(x > 0, x, 0)
in_arrays | x if x in y else y | where((x == y).any(), x, y)
by_zero | x * (n // 0) | x * (n // 2)
star | stack([*n]) | stack([*xs])
loop_over | stack([x for a in n]) | stack([x for a in x.shape])
ellipses | x[..., ...] | x[...]
not_indexed | x * n[0] | x * ints[0]
not_sliced | x * n[1:] | x * ints[0]
list_index | xs[0.5] | xs[0]
out_of_range | (x, y)[2] | (x, y)[-1]
slice_bound | x[0.5:] | x[1:n]
slice_step | x[::0] | x[::-1]
mixed_stars | stack([*ints, *xs]) | stack([*xs])
collect | stack([mode for a in xs]) | stack([a for a in xs])
constant_index | (x, 2)[n] | (x, 2)[0]
compared_to_none | x if x + y is None else y | x if w is None else y
axis_twice | x[0].sum(axis=(0, 0)) | x[0].sum(axis=(0,))
lengths | x.reshape(-1, -1) | x.reshape(-1, 2)
unknown_name | x.astype(int) | x.astype(int32)
unknown_name | x.astype(bool) | x.astype(bool_)
argument | logsumexp(2) | logsumexp(array(2))
condition | w if w else x | w if w is not None else x
unknown_name | x * aplha | x * alpha
no_axis | zeros((2, 3)).sum(axis=7) | zeros((2, 3)).sum(axis=-1)
""".strip("\n").split("\n")


Report = tuple[str, str, int, int, "str | None"]


def reports(text: str, want: Want) -> list[Report]:
    found: list[Report] = []
    compile_formula(text, samples.SCOPE, want, lambda *one: found.append(one))
    return found


@pytest.mark.parametrize("row", ROWS)
def test_help(row: str) -> None:
    name, wrong, right = row.split(" | ")
    (code, message, start, end, help), *_ = reports(wrong, Want(Kind.ARRAY))
    assert code == messages()[name].code and help, (code, message, help)
    if isinstance(help, Advice) and help.instead is not None:
        assert wrong[:start] + help.instead + wrong[end:] == right
    assert reports(right, Want(Kind.ARRAY)) == []


def test_every_fix_is_followed() -> None:
    followed = {row.split(" | ")[0] for row in ROWS}
    assert {name for name, message in messages().items() if message.fixes} <= followed
