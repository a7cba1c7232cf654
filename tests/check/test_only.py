"""Resolving some entries of a file returns the same operators, and checks all names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from sample import project

from mlxgen.check.file import resolve
from mlxgen.check.outside import Outside
from mlxgen.command.operators import mlx_include
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.op import Op
from mlxgen.read.sources import Sources
from mlxgen.read.yaml import Document

CALLS = """\
- signature: "twice(x: array) -> array"
  composite: x + x
- signature: "four(x: array) -> array"
  composite: twice(twice(x))
- signature: "other(x: array) -> array"
  composite: exp(x)
"""


def looked_at(text: str, only: Collection[str] | None) -> tuple[list[Op], str]:
    diags = Diagnostics()
    settings = project.settings(project.YAML)
    document = Document.parse(text, "ops.yaml", diags)
    assert document is not None
    ops = resolve(document, settings, Sources(settings, diags, mlx_include()), diags, only)
    return ops, diags.render_text()


def test_the_same_as_all() -> None:
    text = Path(project.YAML).read_text()
    every, _ = looked_at(text, None)
    for op in every:
        assert looked_at(text, [op.name])[0] == [op]


def test_every_array_of_kernels_has_one_gradient() -> None:
    ops, _ = looked_at(Path(project.YAML).read_text(), None)
    for op in ops:
        if op.has_primitive and "vjp" not in op.entry.manual:
            names = sorted(p.name for grad in op.derivatives.grads for p in grad.params)
            assert names == sorted(p.name for p in op.arguments.arrays), op.name  # integers, too


def test_signatures_of_the_called() -> None:
    ops, text = looked_at(CALLS, ["four"])
    assert [op.name for op in ops] == ["four"]
    assert ops[0].calls == {"twice"}
    assert not text


def test_others_are_not_looked_at() -> None:
    broken = CALLS.replace("exp(x)", "exp(y)").replace("x + x", "x + y")
    assert looked_at(broken, ["four"])[1] == ""
    assert "MG303" in looked_at(broken, ["other"])[1]


def test_names_of_all_are_compared() -> None:
    assert "MG601" in looked_at(CALLS + CALLS, ["other"])[1]
    more = CALLS + '- signature: "g(x: array) -> array"\n  composite: x\n  aliases: [twice]\n'
    assert "MG603" in looked_at(more, ["other"])[1]
    assert "MG110" in looked_at(more.replace("twice", "twice_t"), ["other"])[1]


def test_circles_through_others() -> None:
    circle = CALLS.replace("x + x", "other(x)").replace("exp(x)", "four(x)")
    assert "twice -> other -> four -> twice" in looked_at(circle, ["four"])[1]
    assert "MG605" in looked_at(circle, None)[1]


def test_what_is_outside() -> None:
    def outside(text: str) -> dict[str | None, str]:
        diags = Diagnostics()
        document = Document.parse(text, "ops.yaml", diags)
        assert document is not None
        found = Outside(document, Sources(project.settings(project.YAML), diags, mlx_include()))
        return {entry.name: found.of(entry) for entry in document.entries}

    before = outside(CALLS)
    assert outside(CALLS.replace("x + x", "2 * x")) == before
    more = CALLS + '- signature: "g(x: array) -> array"\n  composite: x\n  grad: {x: four(grad)}\n'
    whole, after = outside(more), outside(more.replace("x + x", "x * x"))  # no longer linear
    assert {name for name in whole if whole[name] != after[name]} == {"g"}
    after = outside(CALLS.replace("twice(x: array)", "twice(x: array, n: int = 2)"))
    assert {name for name in before if before[name] != after[name]} == {"twice", "four"}
    after = outside(CALLS + '- signature: "exp(x: array) -> array"\n  composite: mx.exp(x)\n')
    assert {name for name in before if before[name] != after[name]} == {"other"}
