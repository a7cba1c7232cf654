"""The sections of a docstring that are generated from the entry."""

from __future__ import annotations

import doctest
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sample import project

from mlxgen.command.operators import load
from mlxgen.diagnostics import Diagnostics
from mlxgen.render.files import docstring
from mlxgen.render.reference import Reference, python_args


def documented(entry: str, folder: Path) -> tuple[str, list[str]]:
    """Return the docstring of an entry, and the arguments of its signature."""
    (folder / "mlx_ops.yaml").write_text(entry, encoding="utf-8")
    settings, diags = project.settings(folder / "mlx_ops.yaml"), Diagnostics()
    ops, _ = load(settings, diags)
    assert diags.ok, diags.render_text()
    (op,) = ops
    return docstring(Reference(op, settings), settings), python_args(op)


def example(text: str) -> list[str]:
    """Return the lines of the example, without the imports."""
    lines = [line.strip() for line in text.partition("Example:\n")[2].splitlines()]
    assert not lines or lines[:2] == [">>> import mlx.core as mx", ">>> import ops"]
    return lines[2:]


# Signature and samples, with the arguments of the call in the example.
CALLS = {
    "values": ("x: array", "x: {values: [[1, .inf], [-.inf, .nan]]}", "f(x)"),
    "optional": ("x: array, y: array | None = None", "y: {shape: []}", "f(x, y)"),
    "omitted": ("x: array, y: array | None = None, n: int = 2", "n: 3", "f(x, n=3)"),
    "null": ("x: array, y: array | None = None", "y: null", "f(x)"),
    "required_none": ("x: array, y: array | None", "y: null", "f(x, None)"),
    "keyword": ("x: array, *, low: float = 0", "low: -.inf", "f(x, low=-mx.inf)"),
    "list": ("xs: list[array]", "xs: [{shape: [2]}, {}, {}]", "f(xs)"),
    "variadic": ("*xs: array", "xs: [{}, {shape: [3, 4]}]", "f(*xs)"),
    "string": ('x: array, mode: Literal["a", "b"] = "a"', "mode: b", 'f(x, "b")'),
    "union": ('x: array, by: array | Literal["a", "b"] = "a"', "by: b", 'f(x, "b")'),
    "dtype": ("x: array, dtype: Dtype = float32", "dtype: float16", "f(x, mx.float16)"),
    "axis": ("x: array, axis: axes = None", "axis: [0, -1]", "f(x, [0, -1])"),
    "position": ("x: array, n: int = 2, m: int = 3, /", "m: 1", "f(x, 2, 1)"),
    "integers": ("x: array", "x: {dtype: int32, low: 0, high: 11, sorted: true}", "f(x)"),
    "bools": ("x: array", "x: {dtype: bool, low: 0, high: 1, any: true}", "f(x)"),
    "definite": ("x: array", "x: {shape: [2, 3, 3], positive_definite: true}", "f(x)"),
    "empty": ("x: array", "x: {shape: [0, 3]}", "f(x)"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, tmp_path: Path) -> None:
    """The example calls the function with the arrays that its sample describes."""
    arguments, sample, call = CALLS[name]
    first = "xs[0]" if "xs" in arguments else "x"
    entry = (
        f"- signature: 'f({arguments}) -> array'\n  composite: {first} + 0\n"
        f"  samples: {{{sample}}}\n"
    )
    text, _ = documented(entry, tmp_path)
    lines = example(text)
    assert lines[-1] == f">>> out = ops.{call}"
    given: dict[str, Any] = {}

    def f(*args: Any, **more: Any) -> None:
        given.update(more, args=args)

    ops = SimpleNamespace(f=f)
    test = doctest.DocTestParser().get_doctest("\n".join(lines), {"ops": ops}, name, None, None)
    exec("import mlx.core as mx", test.globs)
    said = io.StringIO()
    result = doctest.DocTestRunner(verbose=False).run(test, out=said.write)
    assert result.attempted and not result.failed, said.getvalue()
    (array, *_) = [*given["args"][0]] if name == "list" else given["args"]
    if name == "values":
        assert str(array.tolist()) == "[[1.0, inf], [-inf, nan]]"
    elif name == "integers":
        assert array.shape == (3, 4) and array.flatten().tolist() == [*range(12)]
    elif name == "definite":
        assert array.shape == (2, 3, 3)
    elif name == "empty":
        assert array.shape == (0, 3)


def test_shapes_of_rules(tmp_path: Path) -> None:
    entry = """
- signature: "f(x: array, n: int) -> (y: array, z: array)"
  composite: (x.sum(axis=0), x[:, :n] > 0)
  axes: {x: N D, y: D, z: N n}
  dtype: {z: bool_}
  checks: [{that: n <= D, else: n must be at most D}]
  dtypes: {x: [float16, float32]}
  samples: {x: {shape: [3, 5]}, n: 2}
"""
    text, args = documented(entry, tmp_path)
    assert args[0] == "x: array"  # a scalar would be an error
    assert "    x (array of shape (N, D)): Input array." in text
    assert "    tuple[array, array]: y of shape (D,); z of shape (N, n), of dtype bool_\n" in text
    assert "Dtypes:\n    x: float16, float32\n" in text
    assert "    ValueError: Arrays must have the shapes and dtypes above.\n" in text
    assert "    ValueError: n must be at most D.\n" in text
    assert example(text)[-2:] == [">>> y.shape, z.shape", "((5,), (3, 2))"]


def test_scalars(tmp_path: Path) -> None:
    """An array for which a check rejects scalars is not annotated as a scalar."""
    entry = """
- signature: "f(a: array, b: array, c: array | None = None, d: array | None = None) -> array"
  composite: a + b + (a if c is None else c) + (a if d is None else d)
  checks:
    - {that: "a.ndim >= 2 and a.shape[-1] == b.ndim", else: a must have 2 axes}
    - {that: "b.shape[-1] == 2 or b.size < a.size", else: b must have 2 columns}
    - {that: c is None or c.ndim <= 1, else: c must have at most 1 axis}
    - {that: d is None or d.ndim == a.ndim, else: d must have the axes of a}
  samples: {a: {shape: [1, 2]}, b: {shape: [1, 2]}}
"""
    _, args = documented(entry, tmp_path)
    types = ["a: array", "b: array", "c: scalar | array | None = None"]
    assert args[:3] == types and args[3].startswith("d: scalar | array")


def test_own_sections(tmp_path: Path) -> None:
    """A section that the entry's documentation has is not generated."""
    entry = """
- signature: "f(x: array) -> array"
  composite: x + 1
  tags: [elementwise]
  doc: |
    One more.

    Example:
        >>> f(mx.array(1))
        array(2, dtype=int32)

    Dtypes: all of them.
"""
    text, args = documented(entry, tmp_path)
    assert args[0] == "x: scalar | array"
    assert text.count("Example:") == 1 and "import mlx.core" not in text
    assert "Dtypes:\n    x: any" in text  # a sentence is no section
    assert "array of the shape of x: The output array." in text


@pytest.mark.parametrize("section", ["Args", "Returns", "Dtypes", "Raises", "Example"])
def test_each_section_once(section: str, tmp_path: Path) -> None:
    """Written in `doc`, a section replaces the generated one; the others remain."""
    entry = """
- signature: "f(x: array, y: array) -> array"
  composite: x + y
  tags: [elementwise]
  doc: "The sum."
"""
    generated, _ = documented(entry, tmp_path)
    sections = [line for line in generated.splitlines() if line[:1].isupper() and line[-1] == ":"]
    own = f'"The sum.\\n\\n{section}:\\n    Own text."'
    text, _ = documented(entry.replace('"The sum."', own), tmp_path)
    found = [line for line in text.splitlines() if line[:1].isupper() and line[-1] == ":"]
    assert sections == ["Args:", "Returns:", "Dtypes:", "Raises:", "Example:"]
    assert sorted(found) == sorted(sections)
    assert f"{section}:\n    Own text." in text


def test_entries_without_examples(tmp_path: Path) -> None:
    """Without a sample, only an elementwise operator has an example."""
    for tags, count in (("[]", 0), ("[elementwise]", 6), ("[internal, elementwise]", 0)):
        entry = f'- signature: "f(x: array) -> array"\n  composite: x + 1\n  tags: {tags}\n'
        text, _ = documented(entry, tmp_path)
        assert len(text.partition("Example:\n")[2].splitlines()) == count
