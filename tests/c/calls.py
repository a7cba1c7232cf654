"""C programs that call a package's operators with the same arguments as Python.

A program is written from ``ops.json`` and the samples of the generated checks, independently of the
generator. It reads the arrays of all calls from one file and writes their results to another one.
Python makes the same calls; results are compared as bytes, and errors as text.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import struct
import subprocess
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import mlx.core as mx
from evaluation import in_thread

from mlxgen.testing.cases import Subject

HERE = Path(__file__).parent
# The command that finds lost memory and invalid access; empty where it is not installed, and under
# another sanitizer.
VALGRIND: tuple[str, ...] = ()
if shutil.which("valgrind") and "LD_PRELOAD" not in os.environ:
    VALGRIND = ("valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full")
    VALGRIND += ("--show-leak-kinds=definite", "--errors-for-leak-kinds=definite")
DTYPES = (
    *(mx.bool_, mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.int8, mx.int16, mx.int32, mx.int64),
    *(mx.float16, mx.float32, mx.float64, mx.bfloat16, mx.complex64),
)
_SCALARS = {"float": "double", "int": "int", "bool": "bool", "number": "number", "dtype": "dtype"}


def as_bytes(a: mx.array) -> bytes:
    """Return dtype, shape and elements as in the files of the programs."""
    with mx.stream(mx.cpu):
        flat = a.reshape(-1).view(mx.uint8)
        mx.eval(flat)
    head = [DTYPES.index(a.dtype), a.ndim, *a.shape, flat.size]
    return struct.pack(f"{len(head)}i", *head) + bytes(memoryview(flat))


def result_bytes(result: Any) -> bytes:
    """Return the bytes of an operator's result: an array, a tuple, or one list."""
    if isinstance(result, list):
        return struct.pack("i", -2 - len(result)) + b"".join(map(as_bytes, result))
    return b"".join(map(as_bytes, result if isinstance(result, tuple) else [result]))


def error_bytes(message: str) -> bytes:
    """Return the bytes of an error."""
    text = message.encode()
    return struct.pack("2i", -1, len(text)) + text


class InC(NamedTuple):
    """An argument that only C can have, as its text."""

    text: str


@dataclass
class Call:
    """A call in Python and in C."""

    label: str
    op: Mapping[str, Any]
    function: Callable[..., Any]
    values: Mapping[str, Any]  # of the arguments; the others have their defaults
    results: bool = True  # false: the pointers to the results are NULL
    error: str = ""  # the message, for a call that Python cannot make

    @in_thread
    def expected(self) -> bytes:
        """Return the result of the call in Python, or its error."""
        if self.error:
            return error_bytes(self.error)
        given, first = dict(self.values), []
        star = any(arg["resolved"].get("variadic") for arg in self.op["args"])
        for arg in self.op["args"]:
            if arg["resolved"].get("variadic"):
                first += given.pop(arg["name"])
                break
            if (star or arg["pos_only"]) and arg["name"] in given:
                first.append(given.pop(arg["name"]))
        try:
            with mx.stream(mx.cpu), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                result = self.function(*first, **given)
                mx.eval(result)
        except (ValueError, IndexError, RuntimeError, OverflowError) as error:
            return error_bytes(str(error))
        if self.op["outputs"][0]["resolved"]["kind"] == "arrays":
            result = [result] if isinstance(result, mx.array) else list(result)
        return result_bytes(result)


@dataclass
class Program:
    """The calls of a C program."""

    package: ModuleType
    before: str = ""  # C before the calls
    calls: list[Call] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    arrays: list[bytes] = field(default_factory=list)

    def add(self, call: Call) -> None:
        """Add a call."""
        number = len(self.calls)
        self.calls.append(call)
        name, outputs = c_name(self.package, call.op), call.op["outputs"]
        lines, free, arguments = list[str](), list[str](), list[str]()
        results = ["res"] if len(outputs) == 1 else [f"res_{i}" for i in range(len(outputs))]
        listed = outputs[0]["resolved"]["kind"] == "arrays"
        kind = "vector_array" if listed else "array"
        for result in results:
            lines.append(f"mlx_{kind} {result} = {{NULL}};")
            free.append(f"PACKAGE({kind}_free)({result});")
        for arg in call.op["args"]:
            self._argument(name, arg, call, lines, free, arguments)
        pointers = [f"&{result}" if call.results else "NULL" for result in results]
        given = ", ".join([*pointers, *arguments, "cpu"])
        put = "put_list" if listed else "put"
        lines += [f"if ({name}({given})) {{", "put_error();", "} else {"]
        lines += [f"{put}({result});" for result in results]
        body = "\n  ".join([*lines, "}", *free])
        self.text.append(f"/* {call.label} */\nstatic void call_{number}(void) {{\n  {body}\n}}\n")

    def _argument(
        self,
        function: str,
        arg: Mapping[str, Any],
        call: Call,
        lines: list[str],
        free: list[str],
        arguments: list[str],
    ) -> None:
        name, kind = f"{arg['name']}_value", arg["kind"]
        if kind == "nested":  # of which there are no macros
            value = call.values.get(arg["name"], arg["value"])
            if isinstance(value, InC):
                arguments.append(value.text)
            elif value is None:
                arguments += ["NULL", "NULL", "0"]
            else:
                items = ", ".join(str(item) for one in value for item in one) or "0"
                sizes = ", ".join(str(len(one)) for one in value) or "0"
                lines.append(f"const int {name}[] = {{{items}}};")
                lines.append(f"const size_t {name}_sizes[] = {{{sizes}}};")
                arguments += [name, f"{name}_sizes", str(len(value))]
            return
        union = kind == "array" and arg["choices"]  # an array or a string: two arguments
        if arg["name"] not in call.values:
            names = [f"{arg['name']}_mode"] * bool(union) + [arg["name"]]
            arguments += [f"{function}__{declared}" for declared in names]
            return
        value = call.values[arg["name"]]
        if isinstance(value, InC):
            arguments.append(value.text)
            return
        if union and isinstance(value, str):
            arguments += [c_string(value), "mlxgen_no_array()"]
            return
        if union:
            arguments.append("NULL")
        if kind == "array":
            if value is None:
                arguments.append("mlxgen_no_array()")
                return
            self.arrays.append(as_bytes(value))
            lines.append(f"mlx_array {name} = take();")
            free.append(f"PACKAGE(array_free)({name});")
            arguments.append(name)
        elif kind == "arrays":
            self.arrays += map(as_bytes, value)
            lines.append(f"mlx_vector_array {name} = take_list({len(value)});")
            free.append(f"PACKAGE(vector_array_free)({name});")
            arguments.append(name)
        elif kind == "optionals":
            self.arrays += [as_bytes(item) for item in value if item is not None]
            items = ", ".join("{NULL}" if item is None else "take()" for item in value)
            lines.append(f"mlx_array {name}[] = {{{items or '{NULL}'}}};")
            free += [f"PACKAGE(array_free)({name}[{i}]);" for i in range(len(value))]
            arguments += [name, str(len(value))]
        elif kind in ("ints", "floats", "bools", "shape", "axes"):
            if value is None:
                arguments += ["NULL", "0"]
                return
            type = {"floats": "double", "bools": "bool"}.get(kind, "int")
            length = arg["resolved"].get("length") or 1
            values = value if isinstance(value, list | tuple) else [value] * length
            items = ", ".join(map(c_number, values)) or "0"
            lines.append(f"const {type} {name}[] = {{{items}}};")
            arguments += [name, str(len(values))]
        elif kind in ("str", "enum"):
            arguments.append("NULL" if value is None else c_string(value))
        else:
            arguments.append(c_scalar(arg, value))

    def source(self) -> str:
        """Return the text of the program."""
        name = self.package.__name__
        calls = "\n".join(f"  call_{i}();" for i in range(len(self.calls)))
        return (
            f'#include "{name}_c.h"\n#define PACKAGE(name) {name}_##name\n#include "calls.h"\n\n'
            f"static mlx_stream cpu;\n{self.before}\n\n" + "\n".join(self.text) + "\n"
            "int main(int count, char** names) {\n"
            "  open_files(count, names);\n"
            "  PACKAGE(set_error_handler)(count_error, &error_count, NULL);\n"
            "  cpu = PACKAGE(default_cpu_stream_new)();\n"
            f"{calls}\n"
            "  PACKAGE(stream_free)(cpu);\n"
            "  PACKAGE(set_error_handler)(NULL, NULL, NULL);\n"
            "  close_files();\n"
            '  printf("%d errors\\n", error_count);\n'
            "  return 0;\n"
            "}\n"
        )


def c_name(package: ModuleType, op: Mapping[str, Any]) -> str:
    """Return the name of an operator's C function."""
    name = op["name"] + "_op" * op["name"].startswith("array_free")  # the names of helpers
    return f"{package.__name__}_{name}"


def c_string(value: str) -> str:
    """Return a string in C, where ??! is a trigraph."""
    return json.dumps(value).replace("?", r"\?")


def c_number(value: float) -> str:
    """Return a number in C."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    return "INT64_MIN" if value == -(2**63) else repr(value)


def c_scalar(arg: Mapping[str, Any], value: Any) -> str:
    """Return a number or dtype, or its optional value, in C."""
    type, resolved = _SCALARS[arg["kind"]], arg["resolved"]
    if resolved.get("single"):
        type = "float"
    if resolved.get("int64"):
        type = "int64"
    if value is None:
        return f"mlxgen_no_{type}()"
    if type == "dtype":
        text = f"(mlx_dtype){DTYPES.index(value)}"
    elif type == "number":
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        text = f"mlxgen_{kind}({c_number(value)})"
    else:
        text = c_number(value)
    return f"mlxgen_some_{type}({text})" if arg["optional"] else text


def subjects(package: ModuleType) -> list[Subject]:
    """Return the samples of the generated checks."""
    checks = importlib.import_module(f"{package.__name__}.checks.test_gradients")
    (parametrized,) = checks.test_sample.pytestmark
    return list(parametrized.args[1])


def functions(package: ModuleType) -> list[tuple[dict[str, Any], Callable[..., Any]]]:
    """Return the public operators of ops.json with their functions in Python."""
    ops = json.loads((folder_of(package) / "ops.json").read_text("utf-8"))["operators"]
    public = [op for op in ops if "internal" not in op["tags"]]
    paths = [[*op["module"].split("."), op["python_name"]] for op in public]
    return [
        (op, reduce(getattr, filter(None, path), package))
        for op, path in zip(public, paths, strict=True)
    ]


def folder_of(package: ModuleType) -> Path:
    """Return the folder of an installed package."""
    return Path(str(package.__file__)).parent


def compile_c(source: str, folder: Path, package: ModuleType, *command: str) -> Path:
    """Compile a program against the installed package, by default as C99; return its path."""
    at = folder_of(package)
    (folder / "program.c").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [
            *(command or ("gcc", "-std=c99")),
            *("-Wall", "-Wextra", "-pedantic", "-Werror", "-g"),
            "-Wno-unused-function",  # calls.h has functions that not every program uses
            "-Wno-deprecated-declarations",
            *("-I", str(at / "include"), "-I", str(HERE), "program.c", "-o", "program"),
            *("-L", str(at / "lib"), f"-Wl,-rpath,{at / 'lib'}", f"-l{package.__name__}_c"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "program"


def run(program: Program, folder: Path, *command: str) -> bytes:
    """Run a compiled program, possibly by a command; return its results."""
    (folder / "arrays").write_bytes(b"".join(program.arrays))
    done = subprocess.run(
        [*command, folder / "program", folder / "arrays", folder / "results"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "results").read_bytes()


def require_same(program: Program, results: bytes) -> None:
    """Compare all results with Python's."""
    at = 0
    for call in program.calls:
        expected = call.expected()
        found = results[at : at + len(expected)]
        assert found == expected, f"{call.label}: {found!r} instead of {expected!r}"
        at += len(expected)
    assert at == len(results)
