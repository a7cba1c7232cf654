"""The table of functions matches the installed MLX, and every overload compiles."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from formula import formula_samples as samples
from formula.test_formula import check_cpp, compiled, errors, mlx_root

from mlxgen.formula.compile import Expr
from mlxgen.formula.mlx import MODULES, PARTS, MlxFunction, PythonParam, Slot, table
from tools.mlx_table import derive, from_mlx

TABLE = table(samples.RELEASE)

# Formulas of a value for a slot: constants, and values known only at run time.
CONSTANTS = {
    "array": "x",
    "arrays": "[x, y]",
    "int": "2",
    "ints": "(0, 1)",
    "ints1": "1",
    "shape": "(2, 3)",
    "shape1": "4",
    "strides": "(3, 1)",
    "bool": "True",
    "float": "0.5",
    "double": "0.5",
    "exact": "0.5",
    "str": "'constant'",
    "dtype": "float16",
    "pair": "(1, 2)",
    "pair1": "2",
    "triple": "(1, 2, 3)",
    "triple1": "2",
    "pairs": "((0, 1), (2, 3))",
    "size": "3",
    "fftnorm": "'ortho'",
    "weak": "y",
    "value": "0.5",
    "value@dtype": "0.5",
    "value@a": "0.5",
    "flag": "True",
    "category": "floating",
    "key": "y",
}
VARIABLES = {
    **CONSTANTS,
    "array": "exp(x)",
    "arrays": "xs",
    "int": "n",
    "ints": "ints",
    "ints1": "n",
    "shape": "x.shape",
    "shape1": "big",
    "strides": "ints",
    "bool": "flag",
    "float": "alpha",
    "double": "n",
    "exact": "n",
    "str": "name",
    "dtype": "x.dtype",
    "pair": "ints",
    "pair1": "x.ndim",
    "triple": "ints",
    "size": "x.size",
    "fftnorm": "name",
    "weak": "2",
    "value": "n",
    "value@dtype": "x",
    "category": "x.dtype",
    "pairs": "lists",
}
OPTIONALS = {
    **VARIABLES,
    "array": "w",
    "int": "axis0",
    "ints": "axis",
    "dtype": "dt",
    "weak": "low",
    "key": "w",
}


def choice(param: PythonParam, text: str) -> str:
    """Return a constant for a parameter with enumerated strings."""
    if param.annotation.startswith("Literal["):
        return repr(ast.literal_eval(f"({param.annotation[8:-1]},)")[0])
    return text


def value_of(slot: Slot, values: dict[str, str]) -> str:
    """Return a formula of the kind of a slot."""
    if slot.only:
        return repr(slot.only)
    if slot.optional and values is OPTIONALS:
        return values.get(slot.type, "None")
    return values[slot.type] if values is not OPTIONALS else VARIABLES[slot.type]


def call(function: MlxFunction, slots: tuple[Slot, ...], values: dict[str, str]) -> str | None:
    """Return a call of a function that needs the overload with these slots."""
    given: dict[str, str] = {}
    arrays = 0
    for slot in slots:
        if not slot.type:
            continue
        name = slot.param
        text = value_of(slot, values)
        if slot.type == "weak":
            arrays += 1
            text = "x" if arrays == 1 else text
        if slot.item is not None:
            text = f"{given[name][:-1]}, {text})" if slot.item else f"({text})"
        given[name] = text
    for signature in function.signatures:
        names = {p.name for p in signature}
        if not given.keys() <= names:
            continue
        arguments = []
        for param in signature:
            if param.name in given:
                text = choice(param, given[param.name])
                if param.kind == "*":
                    text = text[1:-1] if text.startswith("[") else f"*{text}"
                arguments.append(text if param.kind in ("/", "*") else f"{param.name}={text}")
            elif param.kind == "/":
                arguments.append("None")
            elif param.takes_none and param.default not in (None, "None"):
                arguments.append(f"{param.name}=None")
        if any(p.kind == "*" for p in signature):
            arguments = [a.partition("=")[2] if "subscripts=" in a else a for a in arguments]
        return f"{function.name}({', '.join(arguments)})"
    return None


def calls() -> list[tuple[str, str]]:
    """Return C++ function and formula of a call per overload, for three kinds of arguments."""
    found = []
    for name in TABLE.names:
        function = TABLE.function(name)
        assert function is not None
        for overload in function.overloads:
            for values in (CONSTANTS, VARIABLES, OPTIONALS):
                text = call(function, overload.slots, values)
                if text is not None:
                    found.append((overload.cpp, text))
    return list(dict.fromkeys(found))


def test_every_overload_compiles(tmp_path: Path) -> None:
    items: list[tuple[str, str, Expr]] = []
    for cpp, text in calls():
        several = TABLE.function(text.partition("(")[0])
        assert several is not None
        kind = {"array": "array", "bool": "cond"}.get(several.result, "arrays")
        want, result = samples.RESULTS[kind]
        expr = compiled(text, want)
        assert cpp.rpartition("::")[2] in samples.written(expr), text
        items.append((text, result, expr))
    assert len(items) > 500
    check_cpp(samples.translation_unit(items), tmp_path)


def test_methods_are_functions() -> None:
    for name in TABLE.methods:
        method = TABLE.method(name)
        assert method is not None
        required = [p for p in method.signatures[0][1:] if p.default is None and p.kind != "*"]
        values = {"int": "1", "Dtype": "float16", "int | tuple[int, ...]": "2"}
        arguments = ", ".join(values[p.annotation] for p in required)
        arguments = arguments or ("2, 3" if name == "reshape" else "")
        compiled(
            f"x.{name}({arguments})", samples.RESULTS["arrays" if name == "split" else "array"][0]
        )


def test_the_table_is_that_of_the_installed_mlx() -> None:
    derived = derive(mlx_root())
    assert table(derived["mlx"]).release == derived["mlx"], "not one of the table's releases"
    for part in PARTS:
        assert from_mlx()[part] == derived[part]


def test_every_function_is_there_or_left_out_with_a_reason() -> None:
    root = mlx_root()
    aside = {  # no functions of arrays at all
        *("default_device", "set_default_device", "is_available", "device_count", "device_info"),
        *("default_stream", "set_default_stream", "new_stream", "new_thread_unsafe_stream"),
        *("new_thread_local_stream", "clear_streams", "stream", "synchronize", "set_printoptions"),
        *("get_printoptions", "printoptions", "disable_compile", "enable_compile"),
        *("random.__getattr__",),
    }
    known = {*TABLE.names, *TABLE.omitted, *aside}
    for module in ("", *MODULES):
        stub = ast.parse((root / "core" / f"{module or '__init__'}.pyi").read_text())
        for node in stub.body:
            if isinstance(node, ast.FunctionDef):
                name = f"{module}.{node.name}" if module else node.name
                memory = "memory" in name or "cache" in name or name in ("set_wired_limit",)
                assert name in known or memory or name == "get_array_buffer_size", name


def test_functions_left_out_are_refused_with_the_reason() -> None:
    for name, reason in TABLE.omitted.items():
        if TABLE.function(name):  # another one of that name, in an older release
            continue
        if name == "grad":  # a bare one is a cotangent
            name = "mx.grad"
        (report,) = errors(f"{name}(x)")
        assert report[0] == "MG305" and reason in report[1]


def test_aliases_and_names() -> None:
    api = table()
    assert api.function("acos") is api.function("arccos")
    assert api.function("matrix_norm") is api.function("linalg.norm")
    assert api.function("no_such_function") is None and api.method("matmul") is None
    assert "linalg.norm" in api.names and "acos" in api.names


def test_releases() -> None:
    assert table("0.32.9").release == table("1.0").release == table().release
    assert table("0.32.3.dev20260101").release == "0.32.3" and table("0.31").release == "0.31.0"
    older = samples.SCOPE._replace(release="0.31.0")
    for text, name, since in (
        ("logical_xor(x > 0, y > 0)", "logical_xor", "0.32.0"),
        ("diff(x)", "diff", "0.32.0"),
        ("sum(fft.fftfreq(n))", "fft.fftfreq", "0.31.2"),
        ("x.mT", "matrix_transpose", "0.32.3"),
        ("+x", "positive", "0.32.0"),
    ):
        ((code, message, *_),) = errors(text, scope=older)
        reason = f"MLX {since} has it, but MLX 0.31.0 does not"
        assert (code, message) == ("MG305", f"'{name}' cannot be used in a formula: {reason}")
        assert not errors(text, scope=samples.SCOPE._replace(release=None))
    ((code, message, *_),) = errors("cumsum(x, dtype=float32)", scope=older)
    assert code == "MG306" and "'dtype'" in message


def test_the_table_is_read_lazily() -> None:
    code = (
        "import sys, mlxgen.formula.compile, mlxgen.formula.mlx as api\n"
        "assert api.table.cache_info().currsize == 0 and 'mlx' not in sys.modules\n"
        "assert api.stored.cache_info().currsize == 0\n"
        "assert api.table().function('sum').overloads\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
