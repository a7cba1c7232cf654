"""Signatures: three spellings of one model, and the rules with the locations of errors."""

import keyword
import math
import time
from dataclasses import replace

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pages import PAGES

from mlxgen.diagnostics import Rendered
from mlxgen.model.dtypes import DTYPES
from mlxgen.model.kinds import KINDS
from mlxgen.model.signature import Arg, Default, Kind, Output, Signature, Type, quoted, split
from mlxgen.read.names import RESERVED
from mlxgen.read.signature import combine, parse_signature

ARRAY = Type(Kind.ARRAY)


def parse(text: str, spelling: str = "any") -> Signature:
    """Parse a signature without errors."""

    def report(*error: object) -> None:
        raise AssertionError(error)

    signature = parse_signature(text, spelling, report)
    assert signature is not None
    return signature


def errors(text: str, spelling: str = "any") -> list[tuple[str, str]]:
    """Return code and marked text of each error; without errors a signature must be returned."""
    found: list[tuple[str, str]] = []

    def report(said: Rendered, start: int, end: int) -> None:
        assert said.code in PAGES and said.text and said.help != ""
        assert 0 <= start <= end <= len(text)
        found.append((said.code, text[start:end]))

    signature = parse_signature(text, spelling, report)
    assert (signature is None) == bool(found)
    return found


def bare(signature: Signature) -> Signature:
    """Remove the offsets from a signature."""
    args = (arg._replace(offset=(0, 0)) for arg in signature.declared)
    outputs = (output.name for output in signature.outputs)
    return signature._replace(args=split([*args], outputs), named_args=True)


# ---- the three spellings -----------------------------------------------------------------------


def test_the_forms_of_the_proposal():
    first = parse("array add(const array& a, const array& b)")
    nameless = parse("array(const array&, const array&)", "cpp")
    python = parse("add(a: array, b: array) -> array", "python")
    assert first == Signature(
        "add",
        (Arg("a", ARRAY, offset=(10, 24)), Arg("b", ARRAY, offset=(26, 40))),
        (Output("out", ARRAY),),
    )
    assert bare(first) == bare(python)
    assert not nameless.named_args and nameless.name is None
    assert bare(nameless._replace(name="add")) == bare(first)


@pytest.mark.parametrize(
    "same",
    [
        (
            "array axpby(const array& x, array y, double alpha = 1, StreamOrDevice s = {})",
            "mx::array axpby(const mx::array& x, array const& y, double alpha = 1.0);",
            "mlx::core::array axpby(array x, array y, double alpha=1.f, mx::StreamOrDevice s)",
            "axpby(x: array, y: array, alpha: float = 1.0) -> array",
            "def axpby(x: scalar | array, y: mx.array, alpha: float = 1, *,"
            " stream: Union[None, Stream, Device] = None) -> mlx.core.array: ...",
            "axpby(Tensor x, Tensor y, float alpha=1) -> Tensor",
            "axpby(array x, array y, float alpha=1.0) -> array",
            "  axpby (\n  x : array,\n  y : array|scalar , alpha:float=1,) -> array:  ",
        ),
        (
            "array f(array x, Scalar alpha = 1, std::optional<mlxgen::Scalar> a = std::nullopt)",
            "f(x: array, alpha: int | float = 1, a: float | int | None = None) -> array",
            "f(x: array, alpha: Union[bool, int, float] = 1, a: Optional[float | int] = None)"
            " -> array",
            "f(Tensor x, Scalar alpha=1, Scalar? a=None) -> Tensor",
        ),
        (
            "array f(std::vector<double> a, std::vector<bool> b,"
            " std::vector<std::optional<array>> c,"
            " std::optional<std::vector<double>> d = std::nullopt)",
            "f(a: list[float], b: list[bool], c: list[array | None], d: list[float] | None = None)"
            " -> array",
            "f(float[] a, bool[3] b, Tensor?[] c, Scalar[]? d=None) -> Tensor",
            "f(Scalar[] a, bool[] b, Tensor(a)?[] c, float[]? d=None) -> Tensor(a)",
        ),
        (
            "array f(const array& x, const std::optional<array>& w = std::nullopt)",
            "array f(array x, std::optional<mx::array> w = {})",
            "f(x: array, w: array | None = None) -> array",
            "f(x: array, w: Optional[array] = None) -> array",
            "f(x: array, w: Union[None, array] = None) -> array",
            "f(x: array | float, w: int | float | array | None = None) -> array",
            "f(Tensor x, Tensor? w=None) -> Tensor",
        ),
        (
            "std::vector<array> f(const std::vector<array>& xs, int n, int64_t m)",
            "std::vector<mx::array> f(std::vector<mx::array> xs, int32_t n, std::int64_t m)",
        ),
        (
            "f(xs: list[array], n: int) -> list[array]",
            "f(xs: Sequence[array], n: int) -> (list[array])",
            "f(xs: typing.Sequence[array], n: int) -> Sequence[array]",
            "f(Tensor[] xs, SymInt n) -> Tensor[]",
            "std::vector<array> f(std::vector<array> xs, int n)",
        ),
        (
            "std::tuple<array, array, array> f(array x)",
            "f(x: array) -> tuple[array, array, array]",
            "f(x: array) -> (array, array, array)",
            "f(Tensor x) -> (Tensor, Tensor, Tensor)",
        ),
        (
            "sincos(x: array) -> (sin: array, cos: array)",
            "sincos(Tensor x) -> (Tensor sin, Tensor cos)",
            "sincos(array x) -> (array sin, array cos)",
        ),
        (
            'array f(array x, enum("a", "b") mode = "b", std::string t = "c")',
            "f(x: array, mode: Literal['a', \"b\"] = 'b', t: str = 'c') -> array",
            "f(Tensor x, enum('a', 'b',) mode='b', str t=\"c\") -> Tensor",
        ),
        (
            'f(x: array, m: array | Literal["a", "b"] | None = "b") -> array',
            'f(x: array, m: None | typing.Literal["a", "b"] | scalar | array = "b") -> array',
            'f(x: array, m: Optional[Union[float, array, Literal["a", "b"]]] = "b") -> array',
            'array f(array x, std::optional<std::variant<array, enum("a", "b")>> m = "b")',
        ),
        (
            "array f(std::vector<int> a, mx::Shape b, axes c, Dtype d, std::optional<Dtype> e)",
            "f(a: list[int], b: shape, c: axes, d: Dtype, e: dtype | None) -> array",
            "f(a: tuple[int, ...], b: shape, c: None | int | Sequence[int], d: mx.Dtype,"
            " e: Optional[Dtype]) -> array",
            "f(a: Sequence[int], b: shape, c: axes | None, d: dtype, e: Dtype | None) -> array",
            "f(SymInt[] a, shape b, int[1]? c, ScalarType d, ScalarType? e) -> Tensor",
            "f(int[] a, shape b, axes c, Dtype d, Dtype? e) -> array",
        ),
        (
            "array f(int[2] k, int[3] m = {1, 2, 3}, std::vector<int> p = std::vector<int>{4})",
            "f(k: tuple[int, int], m: tuple[int, int, int] = (1, 2, 3), p: list[int] = [4])"
            " -> array",
            "f(k: int | tuple[int, int], m: tuple[int, int, int] | int = [1, 2, 3],"
            " p: list[int] = (4,)) -> array",
            "f(int[2] k, int[3] m=[1, 2, 3], int[] p=[4]) -> Tensor",
        ),
        (
            "array f(int[1] a = 2, int[2] b = {}, int[3] c = {5})",
            "f(a: int | Sequence[int] = 2, b: int | tuple[int, int] = (), c: tuple[int, int, int]"
            " = [5]) -> array",
            "f(a: int | list[int] = [2], b: tuple[int, int] = [], c: tuple[int, int, int] = 5)"
            " -> array",
            "f(SymInt[1] a=2, int[2] b=[], SymInt[3] c=[5]) -> Tensor",
        ),
        (
            "array f(axes a = mx::Shape{}, axes b = Shape{1}, axes c = {0, -1}, int[2] d = 3)",
            "f(a: axes = None, b: axes = 1, c: axes = (0, -1), d: tuple[int, int] = 3) -> array",
            "f(int[1]? a=None, int[1]? b=1, int[1]? c=[0, -1], int[2] d=3) -> Tensor",
        ),
        (
            "array f(Dtype a = float32, Dtype b = mx::bool_, std::optional<int> c = 3)",
            "f(a: Dtype = mx.float32, b: Dtype = mlx.core.bool_, c: int | None = 3) -> array",
            "f(Dtype a=float32, ScalarType b=bool_, int? c=3) -> Tensor",
        ),
        (
            "array f(double a = INFINITY, double b = -std::numeric_limits<float>::infinity(),"
            " double c = std::numeric_limits<double>::quiet_NaN(), bool d = true)",
            "f(a: float = inf, b: float = float('-inf'), c: float = math.nan, d: bool = True)"
            " -> array",
            "f(a: float = mx.inf, b: float = -float('inf'), c: float = nan, d: bool = True)"
            " -> array",
            "f(float a=inf, float b=-inf, float c=nan, bool d=True) -> Tensor",
        ),
    ],
)
def test_spellings_of_one_signature(same):
    signatures = [bare(parse(text)) for text in same]
    assert signatures == signatures[:1] * len(same)


def test_keyword_only_arguments():
    signature = parse("f(x: array, *, a: float, b: float = 1, c: int) -> array")
    assert [arg.kw_only for arg in signature.args] == [False, True, True, True]
    assert parse("f(Tensor x, *, float a, float b=1, int c) -> Tensor") == signature._replace(
        args=tuple(
            arg._replace(offset=offset)
            for arg, offset in zip(
                signature.args, ((2, 10), (15, 22), (24, 33), (35, 40)), strict=True
            )
        ),
    )
    positional = parse("f(x: array, *, stream: StreamOrDevice = None) -> array")
    assert positional.python() == "f(x: array) -> array"


@pytest.mark.parametrize(
    "text",
    [
        "f(x: array, StreamOrDevice: float) -> array",
        "f(x: array, StreamOrDevice: array, Stream: int = 1) -> array",
        "array f(const array& x, float StreamOrDevice)",
        "array f(const array& x, const array& StreamOrDevice)",
        "f(Tensor x, float StreamOrDevice=1) -> Tensor",
        'f(x: array, mode: Literal["StreamOrDevice"] = "StreamOrDevice") -> array',
    ],
)
def test_arguments_called_as_the_type_of_streams(text):
    assert len(parse(text).args) == text.count(",") + 1


@pytest.mark.parametrize("type", ["float", "str = 'Stream'", 'Literal["Stream"]', "int = Stream"])
def test_streams_of_other_types(type):
    with pytest.raises(AssertionError, match="MG208"):
        parse(f"f(x: array, stream: {type}) -> array")


def test_positional_only_arguments():
    signature = parse("f(x: array, n: int = 1, /, a: float = 2, *, b: float) -> array")
    assert [arg.pos_only for arg in signature.args] == [True, True, False, False]
    assert signature.python() == "f(x: array, n: int = 1, /, a: float = 2.0, *, b: float) -> array"
    assert parse(signature.python()).python() == signature.python()
    assert parse("f(Tensor x, /, *, float b) -> Tensor").python() == (
        "f(x: array, /, *, b: float) -> array"
    )
    for wrong in ("/, x: array", "x: array, /, y: array, /", "x: array, *, y: array, /"):
        assert [code for code, *_ in errors(f"f({wrong}) -> array", "any")] == ["MG215"]


def test_offsets_are_those_of_the_arguments():
    text = 'std::vector<array> f(const array& x, enum("a, b") y = "a, b", axes  z = {1, 2})'
    pieces = [text[slice(*arg.offset)] for arg in parse(text).args]
    assert pieces == ["const array& x", 'enum("a, b") y = "a, b"', "axes  z = {1, 2}"]


def test_names_of_outputs():
    for text, names, named in (
        ("f(x: array) -> array", ["out"], False),
        ("f(x: array) -> (y: array)", ["y"], True),
        ("f(x: array) -> (out: array, more: array)", ["out", "more"], True),
        ("f(x: array) -> (array, array)", ["out0", "out1"], False),
        ("std::pair<array, array> f(array x)", ["out0", "out1"], False),
    ):
        signature = parse(text)
        assert [output.name for output in signature.outputs] == names
        assert signature.named_outputs == named


def test_nameless_arguments_avoid_reserved_names():
    signature = parse(f"array({', '.join(['array'] * 26)})")
    names = [arg.name for arg in signature.args]
    assert names == list("abcdefghijklmnopqrstuvwxyz")
    assert not set(names) & set(RESERVED)


def test_parts():
    signature = parse("f(x: array, n: int, xs: list[array]) -> (y: array)")
    assert [arg.name for arg in signature.arrays] == ["x", "xs"]


def test_the_least_integer_is_no_literal_of_cpp():
    least = parse("array f(array x, int64_t n = -9223372036854775808)")
    assert least.args[1].default.cpp == "INT64_MIN"
    assert parse(least.cpp()) == parse("array f(const array& x, int64_t n = INT64_MIN)")
    assert parse("array f(array x, int n = INT_MIN)").args[1].default.value == -(2**31)


# ---- round trips -------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,5}(_[a-z0-9]{1,3})?", fullmatch=True).filter(
    lambda name: not (keyword.iskeyword(name) or errors(f"{name}({name}: int) -> array"))
)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t\"'\\"))
INTS = st.integers(-(2**31), 2**31 - 1)


@st.composite
def types(draw) -> Type:
    kind = draw(st.sampled_from(Kind))
    has_choices = kind is Kind.ENUM or (kind is Kind.ARRAY and draw(st.booleans()))
    return Type(
        kind,
        optional=kind is Kind.AXES or (kind is not Kind.ARRAYS and draw(st.booleans())),
        choices=tuple(draw(st.lists(TEXTS, min_size=1, max_size=3, unique=True)))
        if has_choices
        else (),
        single=kind is Kind.FLOAT and draw(st.booleans()),
        int64=kind is Kind.INT and draw(st.booleans()),
        length=draw(st.none() | st.integers(1, 4)) if kind is Kind.INTS else None,
    )


@st.composite
def defaults(draw, type: Type) -> Default | None:
    kind = type.kind
    only_none = kind is Kind.ARRAY and not type.choices
    if type.optional and (only_none or draw(st.booleans())):
        return Default(None, type)
    if type.is_union:
        return Default(draw(st.sampled_from(type.choices)), type)
    row = KINDS[kind]
    if type.is_array or not (row.item or row.values or kind is Kind.OPTIONALS):
        return None
    value = {
        Kind.FLOAT: st.floats(width=32 if type.single else 64),
        Kind.INT: INTS,
        Kind.BOOL: st.booleans(),
        Kind.FLOATS: st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
        Kind.BOOLS: st.lists(st.booleans()).map(tuple),
        Kind.OPTIONALS: st.just(()),
        Kind.NESTED: st.lists(st.lists(INTS).map(tuple)).map(tuple),
        Kind.NUMBER: st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(),
        Kind.STR: TEXTS,
        Kind.DTYPE: st.sampled_from(DTYPES),
    }.get(kind)
    if kind is Kind.ENUM:
        value = st.sampled_from(type.choices)
    if value is None:
        size = {"min_size": type.length or 0, "max_size": type.length or 3}
        value = st.lists(INTS, **size).map(tuple)
    value = draw(value)
    # -nan is nan, and {} of an optional list is no list in C++
    return Default(math.nan if value != value else value, type) if value != () else None


@st.composite
def signatures(draw) -> Signature:
    names = draw(st.lists(NAMES, min_size=0, max_size=6, unique=True))
    args = []
    for name in names:
        type = draw(types())
        default = draw(st.none() | defaults(type))
        args.append(Arg(name, type, default, kw_only=draw(st.booleans())))
    args.sort(key=lambda arg: (arg.kw_only, not arg.kw_only and arg.default is not None))
    count = draw(st.integers(0, 3))
    if count == 0:
        outputs = [Output("out", Type(Kind.ARRAYS))]
    elif count == 1:
        outputs = [Output("out", ARRAY)]
    else:
        outputs = [Output(f"out{i}", ARRAY) for i in range(count)]
    named = draw(st.booleans())
    if named:
        outputs = [output._replace(name=f"result_{output.name}") for output in outputs]
    every = split(args, [output.name for output in outputs])
    return Signature(draw(st.none() | NAMES), every, tuple(outputs), named)


def without_widths(signature: Signature) -> Signature:
    """Remove the facts that Python and torch spelling cannot express."""

    def arg(arg: Arg) -> Arg:
        type = replace(arg.type, single=False, int64=False)
        return arg._replace(type=type, default=arg.default and Default(arg.default.value, type))

    args = split([*map(arg, signature.declared)], [output.name for output in signature.outputs])
    return signature._replace(args=args)


def in_cpp(signature: Signature) -> Signature:
    """Remove the facts that C++ spelling cannot express: keyword-only marks, output names."""
    args = [arg for arg in signature.declared if not arg.kw_only]
    count = len(signature.outputs)
    names = ["out"] if count == 1 else [f"out{i}" for i in range(count)]
    outputs = tuple(map(Output, names, (output.type for output in signature.outputs)))
    return Signature(signature.name, split(args, names), outputs)


TORCH = {
    Kind.ARRAY: "Tensor",
    Kind.ARRAYS: "Tensor[]",
    Kind.INTS: "int[]",
    Kind.FLOATS: "float[]",
    Kind.BOOLS: "bool[]",
    Kind.OPTIONALS: "Tensor?[]",
    Kind.NESTED: "int[][]",
    Kind.SHAPE: "shape",
    Kind.AXES: "int[1]",
    Kind.NUMBER: "Scalar",
    Kind.DTYPE: "ScalarType",
}


def torch_type(type: Type) -> str:
    """Return a type in torch's schema language, extended by ``enum("a", "b")``."""
    name = TORCH.get(type.kind) or replace(type, optional=False, choices=()).python
    if type.choices:
        name = f"enum({type.listed_choices})"
    if type.length is not None:
        name = f"int[{type.length}]"
    return f"{name}?" if type.optional else name


def torch(signature: Signature) -> str:
    """Return a signature in torch spelling, which mlxgen parses but never prints."""
    args = []
    for arg in signature.args:
        if arg.kw_only and "*" not in args:
            args.append("*")
        default = arg.default
        if default:
            value = default.value
            default = f"={list(value) if isinstance(value, tuple) else default.python}"
        args.append(f"{torch_type(arg.type)} {arg.name}{default or ''}")
    outputs = [torch_type(output.type) for output in signature.outputs]
    if signature.named_outputs:
        outputs = [f"{torch_type(output.type)} {output.name}" for output in signature.outputs]
    result = ", ".join(outputs)
    if signature.named_outputs or len(outputs) > 1:
        result = f"({result})"
    return f"{signature.name or ''}({', '.join(args)}) -> {result}"


def test_an_array_or_a_string_is_two_arguments():
    text = 'f(x: array, m: array | Literal["a"] = "a", *, m_mode: float = 1) -> (m_mode_arg: array)'
    signature = parse(text)
    mode, array = signature.args[1:3]
    assert [arg.name for arg in signature.args] == ["x", "arg_m_mode", "m", "m_mode"]
    assert [arg.name for arg in signature.declared] == ["x", "m", "m_mode"]
    assert mode.type == Type(Kind.ENUM, optional=True, choices=("a",)) and mode.mode_of == "m"
    assert array.type == Type(Kind.ARRAY, optional=True) and not array.mode_of
    assert mode.declared is array.declared is signature.declared[1]
    assert (mode.default.value, array.default.value) == ("a", None)
    assert signature.python() == text.replace("= 1", "= 1.0")
    again = parse(signature.python())
    assert bare(again) == bare(signature)
    (required,) = {arg.default for arg in parse("f(m: array | Literal['a']) -> array").args}
    assert required is None


ROUND_TRIP = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@ROUND_TRIP
@given(signatures())
def test_round_trip_in_cpp(signature):
    signature = in_cpp(signature)
    assert bare(parse(signature.cpp(), "cpp")) == signature


@ROUND_TRIP
@given(signatures())
def test_round_trip_in_python(signature):
    signature = without_widths(signature)
    assert bare(parse(signature.python())) == signature


@ROUND_TRIP
@given(signatures())
def test_round_trip_without_widths(signature):
    assume(not any(arg.type.is_union for arg in signature.declared))  # torch has no such type
    signature = without_widths(signature)
    assert bare(parse(torch(signature))) == signature


# ---- renderings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "cpp", "param", "python", "torch"),
    [
        (ARRAY, "mx::array", "const mx::array&", "array", "Tensor"),
        (
            Type(Kind.ARRAY, optional=True),
            "std::optional<mx::array>",
            "const std::optional<mx::array>&",
            "array | None",
            "Tensor?",
        ),
        (
            Type(Kind.ARRAYS),
            "std::vector<mx::array>",
            "const std::vector<mx::array>&",
            "list[array]",
            "Tensor[]",
        ),
        (Type(Kind.FLOAT), "double", "double", "float", "float"),
        (Type(Kind.FLOAT, single=True), "float", "float", "float", "float"),
        (
            Type(Kind.FLOAT, optional=True),
            "std::optional<double>",
            "std::optional<double>",
            "float | None",
            "float?",
        ),
        (Type(Kind.INT), "int", "int", "int", "int"),
        (Type(Kind.INT, int64=True), "int64_t", "int64_t", "int", "int"),
        (Type(Kind.BOOL), "bool", "bool", "bool", "bool"),
        (Type(Kind.NUMBER), "mlxgen::Scalar", "mlxgen::Scalar", "int | float", "Scalar"),
        (Type(Kind.STR), "std::string", "const std::string&", "str", "str"),
        (
            Type(Kind.ENUM, choices=("a", 'b"')),
            "std::string",
            "const std::string&",
            'Literal["a", "b\\""]',
            'enum("a", "b\\"")',
        ),
        (
            Type(Kind.INTS),
            "std::vector<int>",
            "const std::vector<int>&",
            "Sequence[int]",
            "int[]",
        ),
        (
            Type(Kind.INTS, length=2, optional=True),
            "std::optional<std::vector<int>>",
            "const std::optional<std::vector<int>>&",
            "int | tuple[int, int] | None",
            "int[2]?",
        ),
        (
            Type(Kind.FLOATS),
            "std::vector<double>",
            "const std::vector<double>&",
            "Sequence[float]",
            "float[]",
        ),
        (
            Type(Kind.BOOLS),
            "std::vector<bool>",
            "const std::vector<bool>&",
            "Sequence[bool]",
            "bool[]",
        ),
        (
            Type(Kind.OPTIONALS),
            "std::vector<std::optional<mx::array>>",
            "const std::vector<std::optional<mx::array>>&",
            "Sequence[array | None]",
            "Tensor?[]",
        ),
        (
            Type(Kind.NESTED),
            "std::vector<std::vector<int>>",
            "const std::vector<std::vector<int>>&",
            "Sequence[Sequence[int]]",
            "int[][]",
        ),
        (
            Type(Kind.ARRAYS, variadic=True),
            "std::vector<mx::array>",
            "const std::vector<mx::array>&",
            "array",
            "Tensor[]",
        ),
        (Type(Kind.SHAPE), "mx::Shape", "const mx::Shape&", "Sequence[int]", "shape"),
        (
            Type(Kind.AXES),
            "std::optional<std::vector<int>>",
            "const std::optional<std::vector<int>>&",
            "int | Sequence[int] | None",
            "int[1]?",
        ),
        (Type(Kind.DTYPE), "mx::Dtype", "mx::Dtype", "Dtype", "ScalarType"),
    ],
)
def test_types(type, cpp, param, python, torch):
    assert (str(type.cpp), str(type.cpp_param), type.python) == (cpp, param, python)
    assert torch_type(type) == torch
    assert type.is_array == (type.kind in (Kind.ARRAY, Kind.ARRAYS))


@pytest.mark.parametrize(
    ("value", "type", "cpp", "python"),
    [
        (None, Type(Kind.ARRAY, optional=True), "std::nullopt", "None"),
        (True, Type(Kind.BOOL), "true", "True"),
        (False, Type(Kind.BOOL), "false", "False"),
        (-3, Type(Kind.INT), "-3", "-3"),
        (1.0, Type(Kind.FLOAT), "1.0", "1.0"),
        (2, Type(Kind.NUMBER), "2", "2"),
        (2.0, Type(Kind.NUMBER), "2.0", "2.0"),
        (True, Type(Kind.NUMBER), "true", "True"),
        (-math.inf, Type(Kind.NUMBER), "-std::numeric_limits<double>::infinity()", "-inf"),
        (1e-5, Type(Kind.FLOAT, single=True), "1e-05f", "1e-05"),
        (math.inf, Type(Kind.FLOAT), "std::numeric_limits<double>::infinity()", "inf"),
        (
            -math.inf,
            Type(Kind.FLOAT, single=True),
            "-std::numeric_limits<float>::infinity()",
            "-inf",
        ),
        (math.nan, Type(Kind.FLOAT), "std::numeric_limits<double>::quiet_NaN()", "nan"),
        ('a"\\\n', Type(Kind.STR), r'"a\"\\\n"', r'"a\"\\\n"'),
        ("float32", Type(Kind.DTYPE), "mx::float32", "float32"),
        ((1, 2), Type(Kind.INTS), "{1, 2}", "(1, 2)"),
        ((1,), Type(Kind.INTS), "{1}", "(1,)"),
        ((), Type(Kind.SHAPE), "{}", "()"),
        ((1,), Type(Kind.AXES), "std::vector<int>{1}", "(1,)"),
        ((1,), Type(Kind.SHAPE, optional=True), "mx::Shape{1}", "(1,)"),
    ],
)
def test_defaults(value, type, cpp, python):
    default = Default(value, type)
    assert (default.cpp, default.python) == (cpp, python)


def test_defaults_are_compared_by_value_and_kind():
    number, truth = Type(Kind.FLOAT), Type(Kind.BOOL)
    assert Default(math.nan, number) == Default(float("nan"), number)
    assert hash(Default(math.nan, number)) == hash(Default(float("nan"), number))
    assert Default(1.0, number) != Default(True, number)
    assert Default(True, truth) != Default(True, number)
    assert Default(None, number) != None  # noqa: E711


@pytest.mark.parametrize(
    ("text", "cpp", "python"),
    [
        ("f(x: array) -> array", "array", "array"),
        ("f(x: array) -> list[array]", "std::vector<array>", "list[array]"),
        ("f(x: array) -> (array, array)", "std::pair<array, array>", "tuple[array, array]"),
        (
            "f(x: array) -> (a: array, b: array, c: array)",
            "std::tuple<array, array, array>",
            "tuple[array, array, array]",
        ),
    ],
)
def test_results(text, cpp, python):
    signature = parse(text)
    assert (signature.cpp_result, signature.python_result) == (cpp, python)


def test_printed():
    """The printed form of a signature; another test parses it again."""
    signature = parse(
        "f(x: array, w: array | None = None, *, n: int = 3, k: shape = (1,), a: axes = None,"
        ' s0: tuple[int, int] = 2, m: Literal["u", "v"] = "v", d: Dtype = float16) -> array'
    )
    assert signature.cpp() == (
        "array f(const array& x, const std::optional<array>& w = std::nullopt, int n = 3,"
        " const Shape& k = {1}, axes a = std::nullopt, int[2] s0 = {2, 2},"
        ' enum("u", "v") m = "v", Dtype d = float16)'
    )
    assert signature.python() == (
        "f(x: array, w: array | None = None, *, n: int = 3, k: shape = (1,), a: axes = None,"
        ' s0: int | tuple[int, int] = (2, 2), m: Literal["u", "v"] = "v", d: Dtype = float16)'
        " -> array"
    )
    assert torch(signature) == (
        "f(Tensor x, Tensor? w=None, *, int n=3, shape k=[1], int[1]? a=None,"
        ' int[2] s0=[2, 2], enum("u", "v") m="v", ScalarType d=float16) -> Tensor'
    )


def test_quoted_is_a_literal_of_python():
    for text in ("", 'a"b', "\\", "\n\t", "é日", "'"):
        assert eval(quoted(text)) == text


# ---- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # MG201: what cannot be understood
        ("", [("MG201", "")]),
        ("axpby", [("MG201", "axpby")]),
        ("axpby: array -> array ", [("MG201", "axpby: array -> array")]),
        ("f(x: array; y: array) -> array", [("MG201", ";")]),
        ("f(x: array y: array) -> array", [("MG201", "y")]),
        ("f(x: array,, y: array) -> array", [("MG201", ",")]),
        ("f(x: array)) -> array", [("MG201", ")")]),
        ("f(x: list[array) -> array", [("MG201", "[")]),
        ("f(x: array) => array", [("MG201", "=>")]),
        ("f(x: array) - > array", [("MG201", "- >")]),
        ("f(m: str = “a”) -> array", [("MG201", "“")]),
        ("f(m: str = 'a) -> array", [("MG201", "'")]),
        # MG202: two spellings
        ("f(x: array, array y, float z) -> array", [("MG202", "array y")]),
        ("f(array x, y: float) -> array", [("MG202", "y: float")]),
        ("array f(x: array, y: array)", [("MG202", "x: array")]),
        ("f(x: array) -> (array a, array b)", [("MG202", "array a")]),
        ("f(x: array, y: array -> array", [("MG201", "(")]),
        ("f(x: array) -> array extra", [("MG209", "array extra")]),
        ("f(x: array) -> \n ", [("MG201", "")]),
        ("f(x: array) -> (array", [("MG201", "(")]),
        ("f(x: array) -> array: ... ...", [("MG201", "...")]),
        ("my f(x: array) -> array", [("MG201", "f")]),
        ("(", [("MG201", "(")]),
        (")(", [("MG201", ")")]),
        ("f(x: array = ) -> array", [("MG201", ")")]),
        ("f(x: 'array') -> array", [("MG201", "'array'")]),
        ("f(é: array) -> array", [("MG201", "é")]),
        ("f(x.y: array) -> array", [("MG201", "x.y")]),
        ('f(x: Literal["a") -> array', [("MG201", "[")]),
        ("f(int[0] x) -> Tensor", [("MG201", "0")]),
        ("array f(std::vector<array x)", [("MG201", "<")]),
        ("array f(const array& x,)", []),
        ("f(Tensor x,) -> Tensor", []),
        # MG203: types
        (
            "f(x: aray, y: Tensor, z: flaot) -> array",
            [("MG203", "aray"), ("MG203", "Tensor"), ("MG203", "flaot")],
        ),
        ("array f(str x, std::pair<int, int> y)", [("MG203", "str"), ("MG203", "std::pair")]),
        ("f(Tensor x, Generator? g=None) -> Tensor", [("MG203", "Generator")]),
        ("f(x: array | str) -> array", [("MG203", "array | str")]),
        ("f(x: scalar) -> array", [("MG203", "scalar")]),
        ("f(x: scalar | int) -> array", [("MG203", "scalar | int")]),
        ("f(x: None) -> array", [("MG203", "None")]),
        ("f(x: list[array] | None) -> array", [("MG203", "list[array] | None")]),
        ("f(x: list[str]) -> array", [("MG203", "list[str]")]),
        ("f(x: list[int | None]) -> array", [("MG203", "list[int | None]")]),
        ("f(x: list[list[float]]) -> array", [("MG203", "list[list[float]]")]),
        ("f(x: tuple[array, array]) -> array", [("MG203", "tuple[array, array]")]),
        ("f(x: tuple[int, int, ...]) -> array", [("MG203", "tuple[int, int, ...]")]),
        ("f(int?[] x) -> Tensor", [("MG203", "int?[]")]),
        ("f(Tensor[]? x) -> Tensor", [("MG203", "Tensor[]?")]),
        ("f(str[] x) -> Tensor", [("MG203", "str[]")]),
        ("f(str[3] x) -> Tensor", [("MG203", "str[3]")]),
        ("array f(std::vector<int64_t> x)", [("MG203", "std::vector<int64_t>")]),
        ("array f(array x, Device s)", [("MG203", "Device")]),
        # MG204: twice
        ("f(x: array, x: array) -> array", [("MG204", "x: array")]),
        ("f(x: array) -> (a: array, a: array)", [("MG204", "a")]),
        ("f(x: array, a: array) -> (a: array, b: array)", [("MG204", "a: array")]),
        # MG205: order of defaults
        (
            "f(a: float = 1, y: array, z: int) -> array",
            [("MG205", "y: array"), ("MG205", "z: int")],
        ),
        ("array f(float a = 1, array y)", [("MG205", "array y")]),
        # MG206: defaults
        ("f(n: int = 1.5) -> array", [("MG206", "1.5")]),
        ("f(a: float = 1e400) -> array", [("MG206", "1e400")]),
        ("array f(float a = 1e39, double b = 1e39)", [("MG206", "1e39")]),
        (f"f(a: float = 1{'0' * 400}) -> array", [("MG206", f"1{'0' * 400}")]),
        ("f(n: int = True) -> array", [("MG206", "True")]),
        ("f(n: int = 010) -> array", [("MG206", "010")]),
        ("f(n: int = 2147483648) -> array", [("MG206", "2147483648")]),
        ("f(n: int = -2147483649) -> array", [("MG206", "-2147483649")]),
        ("array f(int64_t n = 9223372036854775808)", [("MG206", "9223372036854775808")]),
        ("f(n: int = None) -> array", [("MG206", "None")]),
        ("f(n: int = 1 + 1) -> array", [("MG206", "1 + 1")]),
        ("f(n: int = f(1, 2)) -> array", [("MG206", "f(1, 2)")]),
        ("f(n: int = 1 2) -> array", [("MG206", "1 2")]),
        ("f(n: int = - 1) -> array", []),
        ("f(a: float = 1 .5) -> array", [("MG206", "1 .5")]),
        ("f(t: str = 'a' 'b') -> array", [("MG206", "'a' 'b'")]),
        ("f(t: str = 'a'.b) -> array", [("MG206", "'a'.b")]),
        ("f(k: list[int] = [1 2]) -> array", [("MG206", "[1 2]")]),
        ("f(d: Dtype = mx. float32) -> array", [("MG206", "mx. float32")]),
        ("f(a: float = '1') -> array", [("MG206", "'1'")]),
        ("f(a: float = 1.0f) -> array", [("MG206", "1.0f")]),
        ("array f(float a = 1.0x)", [("MG206", "1.0x")]),
        ("f(a: float = 007) -> array", [("MG206", "007")]),
        ("f(b: bool = 1) -> array", [("MG206", "1")]),
        ("f(b: bool = true) -> array", [("MG206", "true")]),
        ("array f(bool b = True)", [("MG206", "True")]),
        ("f(t: str = a) -> array", [("MG206", "a")]),
        (r"f(t: str = '\x61') -> array", [("MG206", r"'\x61'")]),
        ("array f(std::string t = 'a')", [("MG206", "'a'")]),
        ("f(d: Dtype = float33) -> array", [("MG206", "float33")]),
        ("f(d: Dtype = 'float32') -> array", [("MG206", "'float32'")]),
        ("f(x: list[int, int]) -> array", [("MG203", "list[int, int]")]),
        ("f(x: tuple[]) -> array", [("MG203", "tuple[]")]),
        ("f(x: list[...]) -> array", [("MG203", "list[...]")]),
        ("f(k: list[int] = 1) -> array", [("MG206", "1")]),
        ("f(k: list[int] = (1)) -> array", [("MG206", "(1)")]),
        ("f(k: list[int] = [1, 2.5]) -> array", [("MG206", "[1, 2.5]")]),
        ("f(k: list[int] = [2147483648]) -> array", [("MG206", "[2147483648]")]),
        ("f(k: list[int] = {1}) -> array", [("MG206", "{1}")]),
        ("array f(std::vector<int> k = [1])", [("MG206", "[1]")]),
        ("f(k: tuple[int, int] = [1, 2, 3]) -> array", [("MG206", "[1, 2, 3]")]),
        ('f(m: Literal["a"] = a) -> array', [("MG206", "a")]),
        # MG207: names
        ("f(class: int) -> array", [("MG207", "class")]),
        ("f(delete: int, NULL: int, errno: int, _x: int, x__y: int) -> array", []),
        ("f(x: array) -> (_y: array)", [("MG207", "_y")]),
        ("_softmax(x: array) -> array", []),
        ("_Softmax(x: array) -> array", [("MG207", "_Softmax")]),
        ("union(x: array) -> array", [("MG207", "union")]),
        ("array and(array x)", [("MG207", "and")]),
        ("add.Tensor(Tensor x) -> Tensor", []),
        ("special.erf(Tensor x) -> Tensor", [("MG207", "special.erf")]),
        ("add.Tensor.x(Tensor x) -> Tensor", [("MG207", "add.Tensor.x")]),
        ("add.Tensor(x: array) -> array", [("MG207", "add.Tensor")]),
        ("f(x: array) -> (new: array)", [("MG207", "new")]),
        # MG208: names with a meaning
        *(
            (f"f({name}: array) -> array", [("MG208", name)])
            for name in RESERVED
            if name != "stream"
        ),
        ("f(Tensor stream) -> Tensor", [("MG208", "stream")]),
        ("f(x: array, stream: int) -> array", [("MG208", "stream")]),
        ("f(s: int, inputs: int, self: int, std: float) -> array", []),
        ("f(x: array) -> (result: array)", []),
        ("f(x: array, grad_a: array) -> (a: array, b: array)", []),
        # MG209: results
        ("f(x: array)", [("MG209", "")]),
        ("f(x: array): ...", [("MG209", ":")]),
        ("f(x: array) -> y: array", [("MG209", "y: array")]),
        ("f(Tensor x) -> Tensor, Tensor", [("MG209", "Tensor, Tensor")]),
        ("array f(array x) -> array", [("MG209", "->")]),
        ("f(x: array) -> (a, b: array)", [("MG212", "a")]),
        ("f(x: array) -> None", [("MG209", "None")]),
        ("f(Tensor x) -> ()", [("MG209", "()")]),
        ("void f(array x)", [("MG209", "void")]),
        ("f(x: array) -> (array, int)", [("MG209", "int")]),
        ("f(x: array) -> array | None", [("MG209", "array")]),
        ("f(x: array) -> tuple[array]", [("MG209", "tuple[array]")]),
        ("f(x: array) -> (list[array], array)", [("MG209", "list")]),
        (
            "std::pair<array, array, array> f(array x)",
            [("MG209", "std::pair<array, array, array>")],
        ),
        ("std::tuple<array> f(array x)", [("MG209", "std::tuple<array>")]),
        ("std::pair<array, int> f(array x)", [("MG209", "int")]),
        # MG210: defaults of arrays
        ("f(x: array = [1]) -> array", [("MG210", "[1]")]),
        ("f(x: array = 'a') -> array", [("MG210", "'a'")]),
        ("f(x: array | None = 1) -> array", [("MG210", "1")]),
        ("f(x: list[array] = []) -> array", [("MG210", "[]")]),
        ("array f(std::vector<array> x = {})", [("MG210", "{}")]),
        # MG211: enumerated strings
        ('f(m: Literal["a", "b"] = "c") -> array', [("MG211", '"c"')]),
        ("f(m: Literal[]) -> array", [("MG211", "Literal[]")]),
        ('array f(enum("a", "a") m)', [("MG211", '"a"')]),
        (r'f(m: Literal["\x61"]) -> array', [("MG211", r'"\x61"')]),
        # MG212: without type or name
        ("f(x, y=1, *, z) -> array", [("MG212", "x"), ("MG212", "y"), ("MG212", "z")]),
        ("f(x: array, y) -> array", [("MG212", "y")]),
        ("f(Tensor x, int) -> Tensor", [("MG212", "int")]),
        ("array f(array x, const array&)", [("MG212", "const array&")]),
        ("f(x: array) -> (a: array, array)", [("MG212", "(a: array, array)")]),
        # MG213: writing
        ("f(Tensor(a!) x) -> Tensor(a!)", [("MG213", "Tensor(a!)")] * 2),
        ("f(Tensor(a!) x) -> Tensor", [("MG213", "Tensor(a!)")]),
        ("array f(array& x, float* y)", [("MG213", "array&"), ("MG213", "float*")]),
        # MG214: variable numbers
        (
            "f(*args: array, **kwargs: int) -> array",
            [("MG214", "**kwargs: int")],
        ),
        # MG215: the star
        ("f(x: array, *) -> array", [("MG215", "*")]),
        ("f(x: array, *, y: int, *, z: int) -> array", [("MG215", "*")]),
        # MG216: the stream
        (
            "f(x: array, stream: StreamOrDevice = None, y: array) -> array",
            [("MG216", "stream: StreamOrDevice = None")],
        ),
        ("array f(StreamOrDevice s, array y)", [("MG216", "StreamOrDevice s")]),
        # MG217, MG219: too many
        (f"f(x: {'list[' * 1000}", [("MG219", "[")]),
        (f"f({' ' * 10_000}) -> array", [("MG219", f"f({' ' * 58}")]),
        (f"array({', '.join(['array'] * 26)}, const array&)", [("MG217", "const array&")]),
        # several at once
        (
            "f(x: aray, class: int, n: int = a, n: int) -> int",
            [
                ("MG203", "aray"),
                ("MG207", "class"),
                ("MG206", "a"),
                ("MG209", "int"),
                ("MG204", "n: int"),
            ],
        ),
    ],
)
def test_rules(text, expected):
    assert errors(text) == expected


@pytest.mark.parametrize(
    ("text", "spelling", "code"),
    [
        ("array f(array x)", "cpp", None),
        ("array f(array x)", "python", "MG202"),
        ("f(x: array) -> array", "cpp", "MG202"),
        ("f(x: array) -> array", "python", None),
        ("f(Tensor x) -> Tensor", "cpp", "MG202"),
        ("f(Tensor x) -> Tensor", "python", "MG202"),
        ("f() -> array", "python", None),
    ],
)
def test_demanded_spelling(text, spelling, code):
    assert errors(text, spelling) == ([(code, text)] if code else [])


@pytest.mark.parametrize(
    ("text", "message", "help"),
    [
        ("f(x: Tensr) -> array", "unknown type 'Tensr'", "Literal"),
        ("f(x: ndarray) -> array", "unknown type 'ndarray' (did you mean 'array'?)", "write array"),
        (
            "array f(string x)",
            "unknown type 'string' (did you mean 'std::string'?)",
            "write std::string",
        ),
        ("f(x: size_t) -> array", "unknown type 'size_t' (did you mean 'int'?)", "write int"),
        ("array f(std::array<int, 2> x)", "(did you mean 'int[2]'?)", "write int[2]"),
        ("f(x: array) -> int", "an output cannot be an int", "return arrays"),
        (
            "f(n: int = 1, m: int) -> array",
            "'m' has no default, but an argument",
            "move the argument forward",
        ),
        ("f(x: array)", "has no return type", "'-> array'"),
        ("f(x: Foo) -> array", "unknown type 'Foo'", "array, float, int"),
        ("f(Generator g) -> Tensor", "unknown type 'Generator'", "remove the argument"),
        ("f(x) -> array", "'x' has no type", "'x: array' or 'Tensor x'"),
        ("f(x: array", "this '(' is not closed", "add the ')'"),
        ("mx.add(Tensor x) -> Tensor", "'mx.add' cannot be the name", "write 'add'"),
        ('f(m: Literal["sum"] = "sun") -> array', "is not one of the choices", 'write "sum"'),
        ('f(m: Literal["sum"] = "x") -> array', "is not one of the choices", 'use one of "sum"'),
        ("f(m: array | str) -> array", "must list its strings", 'array | Literal["first",'),
        ("f(m: array | Literal['a'] | Literal['b']) -> array", "several enumerated", "one of them"),
        ("f(m: list[array] | Literal['a']) -> array", "this union", 'array | Literal["text"]'),
        ('f(m: array | Literal["a"] = 1) -> array', "must be one of the strings, not 1", '"a"'),
        ('f(m: array | Literal["a"] = None) -> array', "'None' is not a default", "optional"),
        ("f(n: int = None) -> array", "'None' is not a default for an int", "optional"),
        ("f(k: int[2] = [1]) -> array", "expected ',' or ')'", "tuple[int, int] for two integers"),
        ("f(Tensor x, int k[2]) -> Tensor", "expected ',' or ')'", "before the name"),
        ("f(const array& x)", "has no return type", "write 'array' before the name"),
        ("array f(array x, *, int k)", "'*' between arguments", "torch spelling"),
        ("f(Tensor x, *, Stream y) -> Tensor", "unknown type 'Stream'", "remove it"),
        ("array f(std::optional<int> n = nullptr)", "an optional int", "std::nullopt"),
        ("array mlx::core::f(array x)", "the name of an operator", "write 'f'"),
        ("f(int[3] k=[1, 2]) -> Tensor", "not a default for a list of ints", "[1, 2, 3]"),
    ],
)
def test_messages(text, message, help):
    found = []
    parse_signature(text, "any", lambda *error: found.append(error))
    said = found[0][0]
    assert message in said.text
    assert (help in str(said.help)) if help else said.help is None


def codes_of_entry(text: str) -> set[str]:
    """Return the codes of errors in an entry's signatures."""
    (data,) = yaml.safe_load(text)
    found: set[str] = set()

    def report(said: Rendered, *_: object) -> None:
        found.add(said.code)

    if "signature" in data:
        parse_signature(data["signature"], "any", report)
        return found
    cpp = data.get("cpp_signature") and parse_signature(data["cpp_signature"], "cpp", report)
    python = parse_signature(data["python_signature"], "python", report)
    if cpp and python:
        combine(cpp, python, report)
    return found


# MG208 depends on the entry: tests/check/test_examples.py has its example.
@pytest.mark.parametrize("code", sorted(c for c in PAGES if c[:3] == "MG2" and c != "MG208"))
def test_examples_of_codes(code):
    assert codes_of_entry(PAGES[code].bad) == {code}
    assert codes_of_entry(PAGES[code].good) == set()


PIECES = st.sampled_from(
    [
        *(
            "array",
            "Tensor",
            "f",
            "x",
            "y",
            "(",
            ")",
            "(",
            ")",
            ",",
            ",",
            ":",
            "::",
            "->",
            "=",
            "[",
        ),
        *(
            "]",
            "<",
            ">",
            "{",
            "}",
            "*",
            "&",
            "/",
            "?",
            "|",
            ";",
            "...",
            ".",
            "const",
            "def",
            "enum",
        ),
        *("std::vector", "std::optional", "std::pair", "list", "tuple", "Optional", "Union"),
        *("Literal", "None", "scalar", "int", "float", "int[2]", "1", "-1", "1.5", '"a"', "'b'"),
        *('"', "stream", "StreamOrDevice", "class", "\\", "é", "!", "None", "inf", "axes", "out"),
    ]
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(PIECES, max_size=25).map(" ".join), st.sampled_from(["any", "cpp", "python"]))
def test_nothing_but_errors(text, spelling):
    errors(text, spelling)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=30))
def test_any_text(text):
    errors(text)
    errors(f"f(x: {text}) -> array")
    errors(f"f(x: int = {text}) -> array")


def test_parsing_is_fast():
    text = "axpby(x: array, y: array, *, alpha: float = 1.0, beta: float = 1.0) -> array"
    best = math.inf
    for _ in range(10):
        start = time.process_time()
        for _ in range(100):
            parse(text)
        best = min(best, (time.process_time() - start) / 100)
    assert best < 200e-6  # 20 to 50 microseconds on machines of 2026


# ---- two signatures of one operator ------------------------------------------------------------


def combined(cpp: str, python: str) -> Signature | list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    def report(said: Rendered, start: int, end: int) -> None:
        assert said.code == "MG218" and 0 <= start < end <= len(python)
        found.append((python[start:end], said.text))

    signature = combine(parse(cpp, "cpp"), parse(python, "python"), report)
    assert (signature is None) == bool(found)
    return signature or found


def test_combine_takes_names_from_python_and_widths_from_cpp():
    signature = combined(
        "std::pair<array, array>(const array&, float, int64_t, const Shape&, std::string,"
        " std::vector<int>, float)",
        'f(x: array, *, a: float = 1.0, n: int = 2, k: list[int] = [3], m: Literal["u"] = "u",'
        " w: tuple[int, int] = 1, b: float) -> (p: array, q: array)",
    )
    assert bare(signature) == Signature(
        "f",
        (
            Arg("x", ARRAY),
            *(
                Arg(name, type, default and Default(default, type), kw_only=True)
                for name, type, default in (
                    ("a", Type(Kind.FLOAT, single=True), 1.0),
                    ("n", Type(Kind.INT, int64=True), 2),
                    ("k", Type(Kind.SHAPE), (3,)),
                    ("m", Type(Kind.ENUM, choices=("u",)), "u"),
                    ("w", Type(Kind.INTS, length=2), (1, 1)),
                    ("b", Type(Kind.FLOAT, single=True), None),
                )
            ),
        ),
        (Output("p", ARRAY), Output("q", ARRAY)),
        named_outputs=True,
    )


def test_combine_accepts_what_agrees():
    same = "array f(array x, float a = 1)", "f(x: array, a: float = 1.0) -> array"
    assert combined(*same).name == "f"
    nan = "array f(float a = NAN)", "f(a: float = nan) -> array"
    assert combined(*nan).args[0].default.value is math.nan
    assert combined("array f(array x)", "(x: array) -> array").name == "f"


@pytest.mark.parametrize(
    ("cpp", "python", "marked", "message"),
    [
        ("array(array)", "f(x: array, y: array) -> array", "y: array", "is 1 there, but 2 here"),
        ("array(array)", "f() -> array", "f", "is 1 there, but 0 here"),
        ("array(float)", "f(x: array) -> array", "x: array", "a float there, but an array here"),
        ("array(array)", "f(x: array | None) -> array", "x: array | None", "an optional array"),
        ("array(int[2])", "f(x: list[int]) -> array", "x: list[int]", "a list of ints"),
        ("array(Shape)", "f(x: tuple[int, int]) -> array", "x: tuple[int, int]", "a shape there"),
        ("array(axes)", "f(x: list[int] | None) -> array", "x: list[int] | None", "axes"),
        ("array f(array y)", "f(x: array) -> array", "x: array", "'x' has the name 'y' there"),
        ("array(array, int n = 1)", "f(x: array) -> array", "", ""),
        ("array(int n = 1)", "f(n: int = 2) -> array", "n: int = 2", "default of 'n' is 1 there"),
        ("std::vector<array>(array)", "f(x: array) -> array", "x: array", "std::vector<array>"),
        ("array(array)", "f(x: array) -> (array, array)", "x: array", "tuple[array, array]"),
    ],
)
def test_combine_reports_what_differs(cpp, python, marked, message):
    if not marked:
        assert errors(cpp, "cpp")[0][0] == "MG212"
        return
    ((piece, said),) = combined(cpp, python)
    assert piece == marked
    assert message in said
