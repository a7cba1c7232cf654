"""Every kind of argument and result in C and Rust, in a package built as by ``pip install``.

Each operator returns numbers that depend on all its arguments. Python, whose conversions have tests
of their own, is the reference.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import builds
import mlx.core as mx
import pytest
from c.calls import (
    DTYPES,
    HERE,
    VALGRIND,
    Call,
    InC,
    Program,
    compile_c,
    error_bytes,
    folder_of,
    functions,
    require_same,
    run,
)
from rust.calls import Program as RustProgram
from rust.crate import cargo, needs_cargo, passed

pytestmark = pytest.mark.extended

PYPROJECT = """
[build-system]
requires = ["mlxgen"]
build-backend = "mlxgen.build"
[project]
name = "c-kinds"
version = "1.0"
[tool.mlxgen]
name = "kinds"
namespace = "all::kinds"
languages = ["rust"]
"""
YAML = r"""
- name: numbers
  signature: "array numbers(const array& x, double a, float b, int n, int64_t big, bool flag)"
  composite: x * a + b - n + (big - 4294967296) * 16 + int(flag) * 128
- name: maybe_numbers
  signature: >-
    array maybe_numbers(const array& x, std::optional<double> a = std::nullopt,
    std::optional<float> b = 0.25, std::optional<int> n = -2,
    std::optional<int64_t> big = 4294967296, std::optional<bool> flag = true)
  composite: >-
    x + (a if a is not None else 1) + (b if b is not None else 2) + (n if n is not None else 4)
    + (big - 4294967200 if big is not None else 8) + (int(flag) if flag is not None else 16)
- name: weak
  signature: "weak(Tensor x, Scalar a=2, Scalar? b=None, *, Scalar c=True, Scalar d=0.5) -> Tensor"
  composite: (x * a + b if b is not None else x * a) * c + d
- name: texts
  signature: >-
    texts(x: array, text: str = 'a"??!', mode: Literal['one', 'tw"o??!'] = 'tw"o??!',
    maybe: str | None = None, maybe_mode: Literal['p', 'q'] | None = 'q') -> array
  composite: >-
    x + (1 if text == 'a"??!' else 0) + (2 if mode == 'one' else 4) + (8 if maybe is None else 16)
    + (32 if maybe_mode is None else 64 if maybe_mode == 'p' else 128)
- name: masks
  signature: >-
    masks(x: array, gate: array | Literal['open', 'shut'],
    mask: array | Literal['tw"o??!', 'none'] | None = 'none') -> array
  composite: >-
    (x if gate == 'open' else x * 0 if gate == 'shut' else x * gate)
    + (1 if mask is None else 2 if mask == 'none' else 4) * (1 if mask != 'tw"o??!' else 8)
    + (mask if mask is not None and mask not in ('none', 'tw"o??!') else zeros_like(x))
- name: lists
  signature: >-
    lists(x: array, ints: Sequence[int], floats: Sequence[float] = [0.5, -1e-05],
    bools: Sequence[bool] = [True, False, True], pair: tuple[int, int] = (3, -1),
    maybe: Sequence[int] | None = None, none: Sequence[float] | None = [2.0]) -> array
  composite: >-
    x * sum(ints) + floats[0] + sum([1 if b else 16 for b in bools]) + 256 * pair[0] + pair[1]
    + (0 if maybe is None else 1000 + sum(maybe)) + (0 if none is None else 5000 + sum(none))
- name: axes
  signature: "axes(x: array, axis: axes = None, shape: shape = (2, -1)) -> array"
  composite: sum(x, axis=axis, keepdims=True).reshape(shape)
  samples: {shape: [1, 1]}
- name: typed
  signature: "typed(x: array, dtype: Dtype = float32, maybe: Dtype | None = None) -> array"
  composite: x.astype(dtype) if maybe is None else x.astype(dtype).astype(maybe)
- name: arrays
  signature: >-
    arrays(x: array, xs: list[array], zs: list[array | None], y: array | None = None) -> array
  composite: (x if y is None else x * y) + sum(xs) + sum([z for z in zs if z is not None]) + len(zs)
- name: nested
  signature: >-
    nested(x: array, lists: list[list[int]], some: list[list[int]] = [[1, 2], [], [3]],
    maybe: list[list[int]] | None = None) -> array
  composite: >-
    x * len(lists) + sum(lists[0]) + 100 * len(some) + 10 * sum(some[-1])
    + (0 if maybe is None else 1000 + len(maybe))
  samples: {lists: [[1], [2, 3]]}
- name: sums
  signature: "sums(x: array, n: int, *xs: array, low: array = 0.5) -> array"
  composite: x * n + sum(xs) + low
  samples: {n: 2}
- name: two
  signature: "two(x: array) -> (low: array, high: array)"
  composite: (x - 1, x + 1)
- name: several
  signature: "several(x: array, n: int = 3) -> list[array]"
  composite: "[x + i for i in range(n)]"
- name: checked
  signature: "checked(x: array, n: int) -> array"
  composite: x * n
  checks: [{that: n > 0, else: n must be positive}]
- name: late
  signature: "late(x: array) -> array"
  composite: linalg.inv(x)
  samples: {x: {values: [[2, 0], [0, 4]]}}
- name: none
  signature: "none(n: int = 3) -> array"
  composite: arange(n)
- signature: "pick(Tensor self, Tensor? default=None) -> Tensor"
  composite: self if default is None else self + default
- signature: "pick.dim(Tensor self, int dim, *, float EPS=1e-5) -> Tensor"
  composite: mx.sum(self, axis=dim) + EPS
  deprecated: use "sum"
- name: array_free
  signature: "array_free(x: array) -> array"
  composite: x + 1
- name: array_free_op
  signature: "array_free_op(x: array) -> array"
  composite: x + 2
- name: hostile
  signature: >-
    hostile(res: array, s: int = 1, call: int = 2, results: int = 4, complex: int = 8, I: int = 16,
    mlx_array: int = 32, size_t: int = 64, restrict: int = 128, s_num: list[int] = [256]) -> array
  composite: res + s + call + results + complex + I + mlx_array + size_t + restrict + s_num[0]
  doc: |
    A comment /* in a comment */ and a backslash \
  module: deep.er
- name: hidden
  signature: "hidden(x: array) -> array"
  composite: x
  tags: [internal]
"""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The package, built and installed."""
    root = tmp_path_factory.mktemp("kinds")
    (root / "python" / "kinds").mkdir(parents=True)
    (root / "python" / "kinds" / "__init__.py").write_text("from kinds._load import *\n")
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "mlx_ops.yaml").write_text(YAML)
    builds.install(builds.build_wheel(root), root / "site")
    sys.path.insert(0, str(root / "site"))
    yield import_module("kinds")
    sys.path.remove(str(root / "site"))


X = mx.array([[1.0, 2.5, -3.0], [0.0, 4.0, 8.5]])
Y = mx.array([[2.0, -1.0, 0.5]])
I32 = mx.array([[1, 2, 3], [4, 5, 6]], dtype=mx.int32)
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("numbers", {"a": 0.1, "b": 0.1, "n": -(2**31), "big": 2**62, "flag": True}),
    ("numbers", {"a": -math.inf, "b": 1e-40, "n": 2**31 - 1, "big": -(2**63), "flag": False}),
    ("maybe_numbers", {}),
    ("maybe_numbers", {"a": 0.5, "b": None, "n": None, "big": None, "flag": None}),
    ("maybe_numbers", {"a": -0.5, "b": 8.0, "n": 16, "big": 4294967232, "flag": False}),
    ("weak", {}),
    ("weak", {"x": I32, "a": 3, "b": 5, "c": 2, "d": 7}),
    ("weak", {"x": I32, "a": True, "b": False, "c": True, "d": 1}),
    ("weak", {"x": I32, "a": 0.5, "b": 2.0**60, "c": 2**40, "d": -1}),
    ("texts", {}),
    ("texts", {"text": "", "mode": "one", "maybe": "", "maybe_mode": "p"}),
    ("texts", {"maybe": "\u00e4", "maybe_mode": None}),
    ("texts", {"mode": "two"}),
    ("texts", {"maybe_mode": "r"}),
    ("masks", {"gate": "open"}),
    ("masks", {"gate": "shut", "mask": None}),
    ("masks", {"gate": Y, "mask": 'tw"o??!'}),
    ("masks", {"mask": Y}),
    ("masks", {"gate": "ajar"}),
    ("lists", {"ints": []}),
    ("lists", {"ints": [5, -2], "floats": [1e300], "bools": [], "maybe": [], "none": None}),
    ("lists", {"ints": [1], "pair": [7, 8], "maybe": [1, 2], "none": []}),
    ("lists", {"ints": [1], "floats": []}),
    ("lists", {"ints": [1], "pair": [1, 2, 3]}),
    ("axes", {}),
    ("axes", {"axis": 1, "shape": [-1]}),
    ("axes", {"axis": [0, 1], "shape": []}),
    ("axes", {"axis": [], "shape": [3, -1]}),
    ("axes", {"axis": 2}),
    ("axes", {"shape": [5, 5]}),
    *(("typed", {"dtype": dtype}) for dtype in DTYPES),
    *(("typed", {"maybe": dtype}) for dtype in DTYPES),
    *(("two", {"x": X.astype(dtype)}) for dtype in DTYPES),
    ("two", {"x": mx.zeros((0, 3))}),
    ("two", {"x": mx.array(3.0)}),
    ("two", {"x": mx.array([[[[[1.0]]]]])}),
    ("arrays", {"xs": [X], "zs": [None, Y, None]}),
    ("arrays", {"xs": [X, Y, I32], "zs": [], "y": Y}),
    ("arrays", {"xs": [], "zs": [X]}),
    ("arrays", {"xs": [mx.zeros((4, 4))], "zs": []}),
    ("nested", {"lists": [[5, -2], [], [7]]}),
    ("nested", {"lists": [[]], "some": [[], [4, 5]], "maybe": []}),
    ("nested", {"lists": [[2**31 - 1], [1]], "maybe": [[], [6]]}),
    ("nested", {"lists": []}),
    ("sums", {"n": 2, "xs": [X, Y], "low": mx.array(3.0)}),
    ("sums", {"n": -1, "xs": [I32]}),
    ("several", {}),
    ("several", {"n": 1}),
    ("several", {"n": 0}),
    ("checked", {"n": 2}),
    ("checked", {"n": -2}),
    ("late", {"x": mx.zeros((2, 2))}),
    ("late", {"x": mx.array([[2.0, 0.0], [0.0, 4.0]])}),
    ("none", {}),
    ("none", {"n": 5}),
    ("pick", {"default": None}),
    ("pick", {"default": Y}),
    ("pick_dim", {"dim": -1, "EPS": 0.5}),
    ("array_free", {}),
    ("array_free_op", {}),
    ("hostile", {"s": 1, "I": -16, "s_num": [256, 512]}),
]
# Calls that only C can make, and their messages.
FALSE: list[tuple[str, dict[str, Any], str]] = [
    ("texts", {"x": InC("mlxgen_no_array()")}, "[texts] x must not be a null array."),
    ("weak", {"a": InC("bad_number")}, "[weak] a must have a kind of mlxgen_number_kind."),
    (
        "weak",
        {"b": InC("mlxgen_some_number(bad_number)")},
        "[weak] b must have a kind of mlxgen_number_kind.",
    ),
    ("texts", {"text": InC("NULL")}, "[texts] text must not be NULL."),
    ("texts", {"mode": InC("NULL")}, "[texts] mode must not be NULL."),
    (
        "masks",
        {"gate": InC("NULL, mlxgen_no_array()")},
        "[masks] gate must be either an array or a string. Got gate_mode: None, gate: None.",
    ),
    (
        "masks",
        {"gate": "open", "mask": InC('"none", x_value')},
        "[masks] mask cannot be both an array and a string. "
        "Got mask_mode: 'none', mask: float32 (2, 3).",
    ),
    (
        "lists",
        {"ints": InC("NULL, 2")},
        "[lists] ints must not be NULL, because its size is not 0.",
    ),
    (
        "axes",
        {"shape": InC("NULL, 1")},
        "[axes] shape must not be NULL, because its size is not 0.",
    ),
    ("axes", {"axis": InC("NULL, 1")}, "[axes] axis must not be NULL, because its size is not 0."),
    ("typed", {"dtype": InC("(mlx_dtype)14")}, "[typed] dtype must be a value of mlx_dtype."),
    ("typed", {"dtype": InC("(mlx_dtype)-1")}, "[typed] dtype must be a value of mlx_dtype."),
    (
        "nested",
        {"lists": InC("NULL, NULL, 2")},
        "[nested] lists must not be NULL, because its size is not 0.",
    ),
    (
        "nested",
        {"lists": InC("NULL, (size_t[]){1}, 1")},
        "[nested] lists must not be NULL, because its size is not 0.",
    ),
    (
        "arrays",
        {"xs": InC("mlxgen_no_vector_array()"), "zs": []},
        "[arrays] xs must not be a null list.",
    ),
    (
        "arrays",
        {"xs": [X], "zs": InC("NULL, 1")},
        "[arrays] zs must not be NULL, because its size is not 0.",
    ),
]
BAD = "static const mlxgen_number bad_number = {3, 0, 0};"


def operators(kinds: ModuleType) -> dict[str, tuple[dict[str, Any], Any]]:
    """Return the operators by their names in C++."""
    return {op["name"]: (op, function) for op, function in functions(kinds)}


def call_of(
    kinds: ModuleType, name: str, given: dict[str, Any], results: bool = True, error: str = ""
) -> Call:
    """Return a call with an array, if the operator has one and none is given."""
    op, function = operators(kinds)[name]
    arrays = [arg["name"] for arg in op["args"] if arg["kind"] == "array" and not arg["optional"]]
    values = {**dict.fromkeys(arrays, X), **given}
    return Call(f"{name} {given}", op, function, values, results, error)


def test_calls(kinds: ModuleType, tmp_path: Path) -> None:
    """Results and errors are Python's; where valgrind is, it finds no lost memory."""
    assert {name for name, _ in CALLS} == {*operators(kinds)}
    program = Program(kinds, BAD)
    for name, given in CALLS:
        program.add(call_of(kinds, name, given))
    for name, given, error in FALSE:
        program.add(call_of(kinds, name, given, error=error))
    program.add(call_of(kinds, "two", {}, False, "[two] res_0 must not be NULL."))
    compile_c(program.source(), tmp_path, kinds)
    # g++ reads the value of an empty std::optional and discards what it computes with it.
    undefined = ["--undef-value-errors=no"] * bool(VALGRIND)
    require_same(program, run(program, tmp_path, *VALGRIND, *undefined))
    errors = sum(call.expected().startswith(error_bytes("")[:4]) for call in program.calls)
    assert errors > len(FALSE) + 8


@pytest.mark.parametrize(
    "command",
    [("gcc", "-std=c99"), ("gcc", "-std=c11"), ("g++", "-x", "c++", "-std=c++20"), ("clang",)],
    ids=lambda command: command[-1],
)
@pytest.mark.parametrize("mlx_c", [None, "before", "after"])
def test_header(
    kinds: ModuleType, tmp_path: Path, command: tuple[str, ...], mlx_c: str | None
) -> None:
    """The header compiles as C and C++, alone and with mlx-c's, whose types it then uses."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    include = ['#include "kinds_c.h"']
    if mlx_c:
        for name, text in MLX_C.items():
            (tmp_path / "mlx" / "c").mkdir(parents=True, exist_ok=True)
            (tmp_path / "mlx" / "c" / name).write_text(text)
        include.insert(0 if mlx_c == "before" else 1, '#include "mlx/c/array.h"')
    lines = [
        *include,
        "static mlx_dtype dtype = kinds_typed__dtype;",
        "int main(void) {",
        "  mlx_array x = kinds_array_new();",
        "  kinds_lists(&x, x, NULL, 0, kinds_lists__floats, kinds_lists__bools,",
        "              kinds_lists__pair, kinds_lists__maybe, kinds_lists__none,",
        "              mlxgen_no_stream());",
        "  return dtype == MLX_FLOAT32 && x.ctx == NULL ? 0 : 1;",
        "}\n",
    ]
    compile_c("\n".join(lines), tmp_path, kinds, *command, "-I", ".")


# The types of mlx-c, with the names of its headers and their guards.
MLX_C = {
    "array.h": """
#ifndef MLX_ARRAY_H
#define MLX_ARRAY_H
#include <stdbool.h>
#include <stdlib.h>
typedef struct mlx_array_ { void* ctx; } mlx_array;
typedef enum mlx_dtype_ {
  MLX_BOOL, MLX_UINT8, MLX_UINT16, MLX_UINT32, MLX_UINT64, MLX_INT8, MLX_INT16, MLX_INT32,
  MLX_INT64, MLX_FLOAT16, MLX_FLOAT32, MLX_FLOAT64, MLX_BFLOAT16, MLX_COMPLEX64,
} mlx_dtype;
#endif
""",
    "optional.h": """
#ifndef MLX_OPTIONAL_H
#define MLX_OPTIONAL_H
#include "mlx/c/array.h"
typedef struct mlx_optional_int_ { int value; bool has_value; } mlx_optional_int;
typedef struct mlx_optional_float_ { float value; bool has_value; } mlx_optional_float;
typedef struct mlx_optional_dtype_ { mlx_dtype value; bool has_value; } mlx_optional_dtype;
#endif
""",
    "stream.h": """
#ifndef MLX_STREAM_H
#define MLX_STREAM_H
typedef struct mlx_stream_ { void* ctx; } mlx_stream;
#endif
""",
    "vector.h": """
#ifndef MLX_VECTOR_H
#define MLX_VECTOR_H
#include "mlx/c/array.h"
typedef struct mlx_vector_array_ { void* ctx; } mlx_vector_array;
#endif
""",
}

SAID = """\
[]
1 none
first %s%n [two] x must not be a null array.
1 none
freed first %s%n
1 none
inner [two] x must not be a null array.
1 none
last [array_new_data] shape must not have a negative size.
last [array_new_data] data must not be NULL, because the array has elements.
last [array_new_data] shape must not be NULL, because its size is not 0.
last [array_new_data] dim must not be negative.
last [array_new_data] dtype must be a value of mlx_dtype.
1
last [array_copy] nbytes must be the size of the array.
1
0
1
last [array_copy] data must not be NULL.
1
last [array_set] arr must not be NULL.
1
last [array_ndim] arr must not be a null array.
0 0
last [array_shape] arr must not be a null array.
1
last [array_eval] arr must not be a null array.
1
last [vector_array_get] vec must not be a null list.
1
last [vector_array_get] idx must be less than the number of arrays.
1
last [vector_array_append_value] val must not be a null array.
1
last [vector_array_new_data] data must not have a null array.
1
1
[[vector_array_new_data] data must not have a null array.]
0 0
0
freed last
1 none
"""


def test_handlers_and_arrays(kinds: ModuleType, tmp_path: Path) -> None:
    """Handlers are called, replaced and freed; a percent sign in a message is only text."""
    program = compile_c((HERE / "handlers.c").read_text(), tmp_path, kinds)
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, SAID)
    assert done.stderr == "kinds: [two] x must not be a null array.\n" * 2


def test_threads(kinds: ModuleType, tmp_path: Path) -> None:
    """Each thread has its own last error, and the handler can be set during calls."""
    program = compile_c(
        (HERE / "threads.c").read_text(), tmp_path, kinds, "gcc", "-std=c99", "-pthread"
    )
    assert subprocess.check_output([program], text=True) == "0\n"


def in_rust(op: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether Rust's types allow the values: known choices, and lists of a fixed size."""
    types = {arg["name"]: arg["resolved"] for arg in op["args"]}
    given = {name: (types[name], value) for name, value in values.items() if value is not None}
    return all(
        ("choices" not in type or not isinstance(value, str) or value in type["choices"])
        and (type.get("length", 1) == 1 or len(value) == type["length"])
        for type, value in given.values()
    )


@needs_cargo
def test_calls_in_rust(kinds: ModuleType, tmp_path: Path) -> None:
    """The crate makes the same calls, and its examples run."""
    program = RustProgram("kinds")
    for name, given in CALLS:
        call = call_of(kinds, name, given)
        if in_rust(call.op, call.values):
            program.add(call)
    assert len(program.calls) == len(CALLS) - 4
    crate = tmp_path / "kinds"
    shutil.copytree(folder_of(kinds) / "rust", crate)
    (crate / "tests").mkdir()
    (crate / "tests" / "calls.rs").write_text(program.source(), encoding="utf-8")
    (tmp_path / "given").write_bytes(b"".join(program.arrays))
    places = {"CALLS_GIVEN": str(tmp_path / "given"), "CALLS_WRITTEN": str(tmp_path / "written")}
    done = cargo(crate, "test", KINDS_DIR=str(folder_of(kinds)), **places)
    assert passed(done) == [1, len(operators(kinds)) + 1]
    require_same(program, (tmp_path / "written").read_bytes())
