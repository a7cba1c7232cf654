"""Formulas that are accepted as linear in the cotangent are linear, tested with numbers.

The formulas are random ones and all that ``test_formula.py`` runs, with each of their arrays in
turn as the cotangent. Cotangents contain zeros, both signs and two magnitudes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from formula import formula_samples as samples
from formula.test_formula import ARRAYS, NUMBERS, _split, python_names

from mlxgen.formula.compile import Name, Need, Scope, Want, compile_formula
from mlxgen.model.op import Fact
from mlxgen.model.signature import Kind, Type

mx = pytest.importorskip("mlx.core")
np = pytest.importorskip("numpy")

NEED = Need("gradient", "x", linear=["`grad`"])


def accepted(text: str, linear: str, types: Mapping[str, Type]) -> bool:
    """Return whether a formula is accepted as linear in one of its arrays."""
    names = {
        name: Name(type_, fact=Fact(dtype="", degree=int(name == linear)))
        for name, type_ in types.items()
    }
    scope = Scope(names, samples.OPS, "ops", release=samples.RELEASE)
    want = Want.arrays([False], [NEED])
    return compile_formula(text, scope, want, lambda *_: None) is not None


def is_linear(text: str, linear: str, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a formula is linear for some numbers."""
    rng, shape = np.random.default_rng(0), arrays[linear].shape
    one, other = rng.normal(size=shape), 100 * rng.normal(size=shape)
    one[rng.random(size=shape) < 0.3] = 0
    cotangents = [one, other, one - 3 * other, np.zeros(shape)]
    code = compile(text.strip(), text, "eval")
    found = []
    for cotangent in cotangents:
        given = {**arrays, linear: mx.array(cotangent.astype(np.float32), arrays[linear].dtype)}
        result = eval(code, {**python_names(given), **values})
        found.append(np.array(mx.array(result).astype(mx.complex64)))
    first, second, both, zero = found
    if not all(np.isfinite(result).all() for result in found):
        return False
    size = max(np.abs(result).max(initial=0) for result in found)
    close = {"rtol": 0, "atol": (2e-2 if arrays[linear].dtype == mx.float16 else 1e-4) * size}
    return not zero.any() and np.allclose(first - 3 * second, both, **close)


def arrays() -> dict[str, Any]:
    """The arrays in the formulas of test_formula.py."""
    rng = np.random.default_rng(1)
    floats = {"x": (2, 3), "y": (2, 3), "w": (1, 3), "g": (3,), "sq": (2, 2), "q": (1, 2, 4, 8)}
    found = {
        name: mx.array(rng.normal(size=shape).astype(np.float32)) for name, shape in floats.items()
    }
    found |= {"h": mx.array(rng.normal(size=(2, 2)).astype(np.float16))}
    found |= {"q2": mx.array(rng.normal(size=(64, 64)).astype(np.float32))}
    found |= {"i": mx.array([[7, -3], [2, 5]]), "idx": mx.array([1, 0]), "key": mx.random.key(3)}
    return found | {"b": mx.array([[True, False, True], [False, True, True]])}


def test_functions() -> None:
    given, count = arrays(), 0
    types = {**samples.ARGUMENTS, **{name: Type(Kind.ARRAY) for name in given}}
    types["v"] = Type(Kind.ARRAY, optional=True)
    for text in _split(ARRAYS):
        for name in ("x", "y", "w", "g", "h", "sq", "q", "q2"):
            if not accepted(text, name, types):
                continue
            values = {"v": None, "xs": [given["x"], given["y"]]}
            if "xs" in text and name in ("x", "y"):
                continue
            count += 1
            assert is_linear(text, name, given, values), f"{text} is not linear in {name}"
    assert count > 100


class Gradients:
    """Random formulas of square matrices."""

    LEAVES = ("grad", "grad", "grad", "x", "y", "0 * x", "ones_like(grad)")
    FORMS = """
    {} + {}|{} - {}|{} * {}|{} / (2 + abs({}))|-{}|{} @ {}|{}.T|({} > {})|({} == 0)
    ({} if flag else {})|where({} > 0, {}, {})|where({} == 0, {}, {})|sum({}, -1, True) * {}
    mean({}, 0, True) + {}|2 * {}|flip({}, 0)|roll({}, 1, 0)|tril({})|{}[::-1]
    {}[:, argmax({})][:, None]|take({}, argmax({}, 0), 0)|concatenate([{}, {}])[3:]
    split(concatenate([{}, {}]), 2)[0]|stack([{}, {}])[1]|exp(-abs({}))|{}.at[0].add({}[0])
    {}.at[0].multiply({}[0])|{}.at[argmax({}, 0)].add({})|addmm({}, {}, {})
    einsum('ij,jk->ik', {}, {})|put_along_axis({}, argmax({}, 0, True), {}[:1], 0)|cumsum({}, 0)
    pad({}, 1)[1:-1, 1:-1]|pad({}, 1, constant_values={}[0, 0])[1:, 1:][:-1, :-1]|sort({}, 0)
    {}.astype(x.dtype if flag else float32)|{}.astype(int32) * {}|maximum({}, {})
    nan_to_num({}, 1.0)|sum([{}, {}])|sum([a * {} for a in [{}, {}]])
    broadcast_arrays({}, {})[1]|kron({}, {})[:3, :3]|fast.rms_norm({}, {}[0], 1e-5)
    linalg.solve(x + 9 * eye(3), {})|stop_gradient({})|({}, {})[1]
    [{}, {}][n - 2]|slice_update({}, {}[:1, :1], idx, (0, 1))|fft.fft({}).real|{} ** 1
    full_like({}, {}[0, 0])|full({}.shape, {}[0, 0])|zeros_like({})|{} * isnan({})
    divmod({}, 2)[0]
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.forms = [
            f.strip() for line in self.FORMS.split("\n") for f in line.split("|") if f.strip()
        ]

    def text(self, depth: int) -> str:
        """Write a formula."""
        if depth == 0:
            return self.rng.choice(self.LEAVES)
        form = self.rng.choice(self.forms)
        return "".join(self._parts(form, depth))

    def _parts(self, form: str, depth: int) -> Iterator[str]:
        head, *rest = form.split("{}")
        yield head
        for part in rest:
            inner = self.text(self.rng.randrange(depth))
            yield (inner if inner.isidentifier() else f"({inner})") + part


@pytest.mark.parametrize("seed", range(2))
def test_random_gradients(seed: int) -> None:
    rng = random.Random(seed)
    formulas, numbers = Gradients(rng), np.random.default_rng(seed)
    given = {
        name: mx.array(numbers.normal(size=(3, 3)).astype(np.float32))
        for name in ("x", "y", "grad")
    }
    given["idx"] = mx.array([0, 1])
    types = {**samples.ARGUMENTS, **{name: Type(Kind.ARRAY) for name in given}}
    taken = 0
    for _ in range(700):
        text = formulas.text(rng.randrange(1, 4))
        if not accepted(text, "grad", types):
            continue
        try:
            for flag in (True, False):
                values = {"flag": flag, "n": NUMBERS["n"]}
                assert is_linear(text, "grad", given, values), text
        except (ValueError, TypeError, IndexError, RuntimeError):  # shapes, singular matrices
            continue
        taken += 1
    assert taken > 50
