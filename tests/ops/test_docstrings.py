"""Docstrings: shapes and dtypes of all arrays, what is raised, and an example that runs.

They are generated here from the entries. The examples contain ``import mlxops``, the installed
operators.
"""

import doctest
import io
import re
from pathlib import Path

import mlx.core as mx
import pytest

from mlxgen.command.operators import load
from mlxgen.diagnostics import Diagnostics
from mlxgen.read.settings import load as load_settings
from mlxgen.render.files import docstring
from mlxgen.render.reference import Reference

ROOT = Path(__file__).parents[2]
SHAPE = r"\bshapes?\b"
DTYPE = r"\b(dtype|bool_?|u?int\d+|b?float\d+|complex64|any)\b"


def documented():
    """The public operators with the sections of their docstrings, by name."""
    diags = Diagnostics()
    settings = load_settings(ROOT, diags)
    ops, _ = load(settings, diags)
    for op in ops:
        if not op.entry.internal:
            text = docstring(Reference(op, settings), settings)
            parts = re.split(r"^(Args|Returns|Dtypes|Raises|Example):\n", text, flags=re.MULTILINE)
            yield op, dict(zip(parts[1::2], parts[2::2], strict=True))


OPS = list(documented())
each = pytest.mark.parametrize(("op", "sections"), OPS, ids=[op.name for op, _ in OPS])


def items(section):
    """The items of a section, each on one line, by name."""
    found = re.split(r"^    (?! )", section, flags=re.MULTILINE)[1:]
    return {" ".join(item.split()).partition(" (")[0]: " ".join(item.split()) for item in found}


@each
def test_arrays_have_shapes_and_dtypes(op, sections):
    args, dtypes = items(sections["Args"]), " ".join(sections["Dtypes"].split())
    for p in op.arguments.arrays:
        assert re.search(SHAPE, args[p.name]), args[p.name]
        assert re.search(rf"\b{p.name}\b.*: .*{DTYPE}", dtypes), p.name


@each
def test_results_have_shapes_and_dtypes(op, sections):
    text = " ".join(sections["Returns"].split())
    results = text.split("; ") if len(op.outputs) > 1 else [text]
    assert len(results) == len(op.outputs)
    for result in results:
        assert re.search(SHAPE, result), result
        assert re.search(DTYPE, result), result


@each
def test_errors(op, sections):
    messages = [check.message for check in op.checks if not check.array]
    raised = " ".join(sections.get("Raises", "").split())
    assert all(f"ValueError: {' '.join(message.split())}" in raised for message in messages)
    assert bool(raised) >= bool(op.checks or op.dtype_rules)


@each
def test_example(op, sections):
    """The example runs, shows shapes for which the entry has rules, and can be computed."""
    names, out = {}, io.StringIO()
    example = doctest.DocTestParser().get_doctest(sections["Example"], names, op.path, None, None)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(example, out=out.write, clear_globs=False)
    assert not runner.failures, out.getvalue()
    mx.eval([example.globs[output.name] for output in op.outputs])
    assert bool(example.examples[-1].want) == bool(op.broadcasts or op.output_rules.shapes)
