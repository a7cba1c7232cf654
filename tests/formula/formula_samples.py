"""Random formulas and the C++ around their translations, for test_formula.py.

``Formulas`` writes formulas by the kind of their result, so that most of them are correct; they use
the names in ``ARGUMENTS``. ``translation_unit`` puts translated formulas into functions that a
compiler can check.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from mlxgen.command.operators import installed_mlx
from mlxgen.formula.compile import Expr, Name, Scope, Want
from mlxgen.model.signature import Kind, Signature, Type
from mlxgen.read.signature import parse_signature

ARGUMENTS = {
    "x": Type(Kind.ARRAY),
    "y": Type(Kind.ARRAY),
    "w": Type(Kind.ARRAY, optional=True),
    "xs": Type(Kind.ARRAYS),
    "grads": Type(Kind.ARRAYS),
    "n": Type(Kind.INT),
    "big": Type(Kind.INT, int64=True),
    "alpha": Type(Kind.FLOAT, single=True),
    "beta": Type(Kind.FLOAT),
    "scalar": Type(Kind.NUMBER),
    "most": Type(Kind.NUMBER, optional=True),
    "flag": Type(Kind.BOOL),
    "axis": Type(Kind.AXES),
    "axis0": Type(Kind.INT, optional=True),
    "mode": Type(Kind.ENUM, choices=("a", "b")),
    "name": Type(Kind.STR),
    "shape": Type(Kind.SHAPE),
    "ints": Type(Kind.INTS),
    "lists": Type(Kind.NESTED),
    "dt": Type(Kind.DTYPE, optional=True),
    "low": Type(Kind.FLOAT, optional=True),
}
# Arrays or strings, of which C++ has two variables.
UNIONS = {
    "mask": Type(Kind.ARRAY, optional=True, choices=("causal", "full")),
    "bias": Type(Kind.ARRAY, choices=("none",)),
}


def _signature(text: str) -> Signature:
    signature = parse_signature(text, "any", lambda *_: None)
    assert signature is not None
    return signature


OPS = {
    "sincos": _signature("sincos(x: array) -> (sin: array, cos: array)"),
    "axpby": _signature("axpby(x: array, y: array, *, alpha: float = 1.0) -> array"),
    "masked": _signature(
        'masked(x: array, mask: array | Literal["full", "causal", "none"] | None = None) -> array'
    ),
    "resize": _signature(
        "resize(x: array, scale: list[int] = [2, 2], "
        'mode: Literal["a", "b"] = "a", axis: axes = None) -> array'
    ),
}
NAMES = {name: Name(type_, 2 if name == "grads" else None) for name, type_ in ARGUMENTS.items()}
NAMES |= {name: Name(type_, mode=f"{name}_mode") for name, type_ in UNIONS.items()}
RELEASE = installed_mlx()  # which compiles the translations
SCOPE = Scope(NAMES, OPS, "ops", release=RELEASE)
SHAPES_ONLY = Scope(NAMES, OPS, "ops", stream=False, release=RELEASE)

# The possible results of a formula: the requirement, and the return type in C++.
RESULTS = {
    "array": (Want(Kind.ARRAY), "mx::array"),
    "arrays": (Want(Kind.ARRAYS), "std::vector<mx::array>"),
    "shape": (Want(Kind.SHAPE), "mx::Shape"),
    "cond": (Want(Kind.BOOL), "bool"),
    "int": (Want(Kind.INT), "int64_t"),
    "num": (Want(Kind.FLOAT), "double"),
    "dtype": (Want(Kind.DTYPE), "mx::Dtype"),
}

HEADER = """#include "mlxgen/formula.h"
namespace mx = mlx::core;
namespace ops {
std::vector<mx::array> sincos(
    const mx::array& x,
    mx::StreamOrDevice s);
mx::array axpby(
    const mx::array& x,
    const mx::array& y,
    double alpha,
    mx::StreamOrDevice s);
mx::array masked(
    const mx::array& x,
    const std::optional<std::string>& mask_mode,
    const std::optional<mx::array>& mask,
    mx::StreamOrDevice s);
mx::array resize(
    const mx::array& x,
    const std::vector<int>& scale,
    const std::string& mode,
    const std::optional<std::vector<int>>& axis,
    mx::StreamOrDevice s);
} // namespace ops
"""


def written(expr: Expr, **places: str) -> str:
    """Return the C++ with the names of the formula, except for ``places``."""
    return expr.cpp({**{name: name for name in expr.holes}, "stream": "s", **places})


def body(expr: Expr, **places: str) -> str:
    """Return the statements of a function that returns the formula."""
    locals_ = [f"const auto {name} = {written(e, **places)};" for name, e in expr.locals]
    return "\n  ".join([*locals_, f"return {written(expr, **places)};"])


def translation_unit(items: Sequence[tuple[str, str, Expr]]) -> str:
    """Return C++ with one function per translated formula (its text, the type of its result)."""
    params = [f"    {type_.cpp_param} {name}" for name, type_ in ARGUMENTS.items()]
    for name in UNIONS:
        params.append(f"    const std::optional<std::string>& {name}_mode")
        params.append(f"    const std::optional<mx::array>& {name}")
    listed = ",\n".join([*params, "    mx::StreamOrDevice s"])
    functions = [
        f"// {text}\n{cpp} f{i}(\n{listed}) {{\n  {body(expr)}\n}}\n"
        for i, (text, cpp, expr) in enumerate(items)
    ]
    return HEADER + "\n".join(functions)


class Formulas:
    """Writes random formulas, by the kind of their result; ``depth`` bounds their nesting."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def _pick(self, *options: str) -> str:
        """One of the options, with ``{kind}`` replaced by a formula of that kind."""
        return self.rng.choice(options)

    def _fill(self, depth: int, *options: str) -> str:
        text = self.rng.choice(options)
        out = ""
        while "{" in text:
            before, _, rest = text.partition("{")
            kind, _, text = rest.partition("}")
            out += before + str(getattr(self, kind)(depth - 1 - self.rng.randrange(2)))
        return out + text

    def array(self, depth: int) -> str:
        """A formula of an array."""
        if depth <= 0:
            return self._pick("x", "y", "x", "y", "grads[0]", "xs[1]")
        sign = self._pick("+", "-", "*", "/", "//", "%", "**")
        unary = self._pick("exp", "log", "mx.tanh", "sigmoid", "rsqrt", "abs", "square", "erf")
        reduction = self._pick("sum", "mean", "max", "prod", "logsumexp", "std", "median")
        order = self._pick("2", "n", "None", repr("fro"))
        width = self._pick("1", "(1, 2)", "((0, 1), (1, 0))", "n")
        return self._fill(
            depth,
            f"{{array}} {sign} {{array}}",
            f"{{array}} {sign} {{num}}",
            f"({{num}} {sign} {{array}})",
            "{array} @ {array}",
            f"({{array}} {self._pick('<', '>=', '==', '!=')} {{num}})",
            f"(({{array}} > 0) {self._pick('&', '|', '^')} ({{array}} < {{array}}))",
            f"{unary}({{array}})",
            f"-{self._pick('x', 'y', '(x * 2)')}",
            f"{reduction}({{array}}, {{axes}})",
            f"({{array}}).{self._pick('sum', 'mean', 'max', 'any')}({{axes}})",
            "where({array} > {array}, {operand}, {operand})",
            "clip({array}, {bound}, {operand})",
            "reshape({array}, {shape})",
            "({array}).reshape(-1, {int})",
            "broadcast_to({array}, {shape})",
            "concatenate([{array}, {array}], axis={int})",
            "stack({arrays})",
            "({array})[{index}]",
            "({array} if {cond} else {array})",
            "maximum({array}, {num})",
            "zeros({shape}, {dtype})",
            "full_like({array}, {num})",
            "full({shape}, {num}, dtype={dtype})",
            "zeros_like({array}, dt)",
            "({array}).astype({dtype})",
            "sum([{array} * f for f in xs])",
            f"fast.rms_norm({{array}}, {self._pick('w', 'None', 'y')}, {{num}})",
            "(x @ w if w is not None else {array})",
            "take_along_axis({array}, {array}, axis={int})",
            f"softmax({{array}}, axis=-1, precise={self._pick('True', 'flag')})",
            "({array}).T",
            "({array} if bias == 'none' else bias @ {array})",
            "(mask * {array} if mask is not None and mask not in ('full', 'causal') else {array})",
            f"masked({{array}}, {self._pick('mask', 'bias', 'w', 'None', repr('full'), 'x')})",
            "fast.scaled_dot_product_attention(x, y, {array}, scale={num}, mask='causal')",
            f"squeeze({{array}}, {self._pick('axis', 'ints', 'n', '(0, -1)')})",
            f"sort({{array}}, {self._pick('axis0', '-1', 'None')})",
            "einsum('ij,jk->ik', {array}, {array})",
            f"sincos({{array}})[{self._pick('0', '1', '-1')}]",
            "axpby({array}, {array}, alpha={num})",
            "resize({array}, {shape}, mode=mode, axis=axis)",
            "split({array}, 2)[0]",
            f"linalg.norm({{array}}, {order}, axis={self._pick('-1', '(0, 1)', 'axis')})",
            f"pad({{array}}, {width}, constant_values={{operand}})",
            "array([{num}, {num}])",
            "arange({num})",
            "arange({int}, {int}, dtype={dtype})",
            f"tensordot({{array}}, {{array}}, {self._pick('1', '[[0], [1]]')})",
            "cumsum({array}, axis=axis0, dtype=dt)",
            "conv2d({array}, {array}, stride={int}, padding=(1, {int}))",
        )

    def operand(self, depth: int) -> str:
        """A number or an array."""
        return self.num(depth) if self.rng.random() < 0.5 else self.array(depth)

    def bound(self, depth: int) -> str:
        """A bound of clip."""
        return self._fill(depth, "None", "low", "most", "{operand}")

    def axes(self, depth: int) -> str:
        """The arguments of a reduction."""
        return self._fill(
            depth,
            "axis=-1",
            "axis=(0, 1)",
            "axis=axis",
            "axis=ints",
            "-1, True",
            "keepdims=flag",
            "{int}",
        )

    def int(self, depth: int) -> str:
        """A formula of an int."""
        if depth <= 0:
            return self._pick(
                "1", "2", "-1", "n", "n", "big", "x.ndim", "x.shape[0]", "x.shape[-1]", "len(xs)"
            )
        return self._fill(
            depth,
            f"({{int}} {self._pick('+', '-', '*', '//', '%')} {{int}})",
            "max({int}, {int})",
            "min({int}, {int}, {int})",
            "({int} if {cond} else {int})",
            "-{int}",
            "int({num})",
            "({shape})[0]",
            "sum(a.shape[0] for a in xs)",
            "abs({int})",
            "({array}).shape[0]",
            "x.size",
            "prod({shape})",
            "{int} ** 2",
        )

    def num(self, depth: int) -> str:
        """A formula of a number."""
        if depth <= 0:
            return self._pick("scalar", "2", "0.5", "1e-5", "alpha", "beta", "n", "pi", "3", "-1.5")
        return self._fill(
            depth,
            f"({{num}} {self._pick('+', '-', '*', '/', '//', '%', '**')} {{num}})",
            "sqrt({num})",
            "{int}",
            "float({int})",
            "maximum({num}, {num})",
            "({num} if {cond} else {num})",
            "finfo(x.dtype).max",
            "-{num}",
            "exp(-{num})",
        )

    def cond(self, depth: int) -> str:
        """A formula of a condition."""
        if depth <= 0:
            return self._pick(
                "flag",
                "bias == 'none'",
                "mask is None",
                "mask in ('causal', 'full')",
                "mode == 'a'",
                "x.ndim == 2",
                "n > 0",
                "w is None",
                "axis0 is not None",
                "x.dtype == float32",
                "x.shape == y.shape",
                "mode in ('a', 'b')",
                "issubdtype(x.dtype, floating)",
                "name != 'q'",
            )
        return self._fill(
            depth,
            "({cond} and {cond})",
            "({cond} or {cond})",
            "not {cond}",
            f"{{int}} {self._pick('<', '>=', '==')} {{int}}",
            "0 < {num} <= 3",
            "all(a.ndim == 2 for a in xs)",
            "any(a.shape[0] == {int} for a in xs)",
            "(w is not None and w.ndim == {int})",
            "{dtype} in (float16, bfloat16)",
            "{int} in ({shape})",
        )

    def shape(self, depth: int) -> str:
        """A formula of a shape."""
        if depth <= 0:
            return self._pick(
                "x.shape", "shape", "(1, 2)", "(n,)", "()", "x.shape[:-1]", "ints", "y.shape[1:]"
            )
        return self._fill(
            depth,
            "({shape} + {shape})",
            "({int}, {int})",
            "(*{shape}, {int})",
            f"({{shape}})[{self._pick('1:', ':-1', '::-1', ':n')}]",
            "(1,) * {int}",
            "({shape} if {cond} else {shape})",
            "broadcast_shapes({shape}, {shape})",
            "[k * 2 for k in x.shape]",
            "[x.shape[i] for i in range({int}) if i != n]",
            "[i + k for i, k in enumerate(shape)]",
        )

    def arrays(self, depth: int) -> str:
        """A formula of several arrays."""
        if depth <= 0:
            return self._pick("xs", "grads", "[x, y]")
        return self._fill(
            depth,
            "[{array} for a in xs]",
            "[a * b for a, b in zip(xs, grads)]",
            "({array}, {array})",
            "[*xs, {array}]",
            "split({array}, {int})",
            "linalg.qr({array})",
            f"xs[{self._pick('1:', '::-1')}]",
            "({arrays} if {cond} else {arrays})",
            "[f * {array} for f in xs if f.ndim == 2]",
            "sincos({array})",
        )

    def dtype(self, depth: int) -> str:
        """A formula of a dtype."""
        if depth <= 0:
            return self._pick("float32", "x.dtype", "mx.float16", "int32", "bool_")
        return self._fill(
            depth,
            "result_type({array}, float32)",
            "({dtype} if {cond} else {dtype})",
            "({array}).dtype",
            "result_type(x, y)",
            "result_type(*xs)",
        )

    def index(self, depth: int) -> str:
        """Write the index of an array."""
        if self.rng.random() < 0.2:
            return self.array(depth)
        parts = ("0", "-1", "None", "1:", ":n", "::2", "{int}", ":")
        chosen = [self._fill(depth, *parts) for _ in range(self.rng.randrange(1, 4))]
        if self.rng.random() < 0.3:
            chosen.insert(0, "...")
        return ", ".join(chosen)
