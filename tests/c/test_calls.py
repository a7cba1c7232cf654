"""mlxops from C: the samples of all operators, invalid arguments, and memory.

The C programs are generated (calls.py), and compiled against the installed package.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import mlx.core as mx
import mlxops
import pytest
from c.calls import (
    VALGRIND,
    Call,
    InC,
    Program,
    compile_c,
    functions,
    require_same,
    run,
    subjects,
)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


def samples(*dtypes: mx.Dtype) -> Program:
    """Return a program with all samples of the generated checks, in all dtypes they support."""
    program = Program(mlxops)
    for dtype in dtypes:
        for subject in subjects(mlxops):
            if subject.has_dtype(str(dtype).rpartition(".")[2]):
                label = f"{subject.path}-{subject.number} {dtype}"
                values = subject.keywords(subject.draw(dtype))
                program.add(Call(label, subject.op, subject.case.function, values))
    return program


def test_samples(tmp_path: Path) -> None:
    program = samples(mx.float32, mx.float64, mx.bfloat16)
    called = {call.op["name"] for call in program.calls}
    assert called == {op["name"] for op, _ in functions(mlxops)}
    compile_c(program.source(), tmp_path, mlxops)
    require_same(program, run(program, tmp_path))


def test_errors(tmp_path: Path) -> None:
    """Every operator with null handles, arrays of another dtype, and unknown choices."""
    program = Program(mlxops)
    first = {subject.op["name"]: subject for subject in reversed(subjects(mlxops))}
    for subject in first.values():
        op, function = subject.op, subject.case.function
        values = subject.keywords(subject.draw(mx.float32))
        name = op["python_name"]

        def add(label: str, more: dict[str, object], error: str = "", results: bool = True) -> None:
            text = f"{subject.path}: {label}"  # noqa: B023
            program.add(Call(text, op, function, {**values, **more}, results, error))  # noqa: B023

        for arg in op["args"]:
            label = arg["name"]
            if arg["kind"] == "array" and not arg["optional"]:
                error = f"[{name}] {label} must not be a null array."
                add(f"no {label}", {label: InC("mlxgen_no_array()")}, error)
                add(f"complex {label}", {label: values[label].astype(mx.complex64)})
                add(f"another shape of {label}", {label: mx.zeros((2, 3, 5, 7))})
            if arg["kind"] == "arrays":
                null = InC("mlxgen_no_vector_array()")
                add(f"no {label}", {label: null}, f"[{name}] {label} must not be a null list.")
                add(f"empty {label}", {label: []})
            if arg["kind"] == "enum":
                add(f"unknown {label}", {label: "no such choice"})
                add(f"no {label}", {label: InC("NULL")}, f"[{name}] {label} must not be NULL.")
        result = "res" if len(op["outputs"]) == 1 else "res_0"
        add("no results", {}, f"[{name}] {result} must not be NULL.", results=False)
    compile_c(program.source(), tmp_path, mlxops)
    require_same(program, run(program, tmp_path))


@pytest.mark.extended
@pytest.mark.skipif(not VALGRIND, reason="there is no valgrind, or another sanitizer")
def test_memory(tmp_path: Path) -> None:
    """valgrind finds no invalid access and no lost memory in the calls of all operators."""
    program = samples(mx.float32)
    compile_c(program.source(), tmp_path, mlxops)
    run(program, tmp_path, *VALGRIND)
