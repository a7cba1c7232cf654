"""Resolving some entries of a file returns the same operators, and checks all names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from sample import project

from mlxgen.check.file import resolve, resolve_changed
from mlxgen.command.operators import mlx_include
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.op import Op
from mlxgen.read.sources import Sources
from mlxgen.read.yaml import Documents

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
    document = Documents.parse({"ops.yaml": text}, diags)
    assert document is not None
    ops = resolve(document, settings, Sources(settings, diags, mlx_include()), diags, only)
    return ops, diags.render_text()


def test_the_generator_needs_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(project.YAML).read_text()
    ops, _ = looked_at(text, None)
    monkeypatch.setattr("mlxgen.plugins.rules.check", lambda *_: None)
    monkeypatch.setattr("mlxgen.plugins.rules.check_names", lambda *_: None)
    assert looked_at(text, None)[0] == ops != []


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


def test_what_is_read() -> None:
    """An entry is resolved again after a change of something that it read, and of nothing else."""

    def parsed(text: str) -> tuple[Documents, Sources]:
        diags = Diagnostics()
        document = Documents.parse({"ops.yaml": text}, diags)
        assert document is not None
        return document, Sources(project.settings(project.YAML), diags, mlx_include())

    def changed(before: str, after: str) -> set[str]:
        kept = resolve_changed(*parsed(before), {})[1]
        edited = {entry.name for entry in parsed(before)[0].entries if entry.key not in keys(after)}
        kept = {name: reads for name, reads in kept.items() if name not in edited}
        _, reads = resolve_changed(*parsed(after), kept)
        assert reads == resolve_changed(*parsed(after), {})[1]  # as if nothing was kept
        return {name for name in kept if reads.get(name) is not kept[name]}

    def keys(text: str) -> set[str]:
        return {entry.key for entry in parsed(text)[0].entries}

    assert changed(CALLS, CALLS.replace("x + x", "2 * x")) == set()
    gradient = '- signature: "g(x: array) -> array"\n  composite: x\n  grad: {x: four(grad)}\n'
    more = CALLS + gradient
    assert changed(more, more.replace("x + x", "x * x")) == {"g"}  # no longer linear
    assert changed(CALLS, CALLS.replace("twice(x: array)", "twice(x: array, n: int = 2)")) == {
        "four"
    }
    shadow = '- signature: "exp(x: array) -> array"\n  composite: mx.exp(x)\n'
    assert changed(CALLS, CALLS + shadow) == {"other"}
    assert changed(CALLS + shadow, CALLS) == {"other"}
    noise = '- signature: "noise(x: array, key: array | None = None) -> array"\n'
    noise += "  composite: zeros_like(x) if key is None else key\n"
    noise += '- signature: "zero(x: array) -> array"\n  composite: noise(x) - noise(x)\n'
    drawn = noise.replace(
        "zeros_like(x) if key is None else key", "random.normal(x.shape, key=key)"
    )
    assert changed(noise, drawn) == {"zero"}
    assert changed(CALLS, CALLS.replace("x + x", "x + x\n  tags: [internal]")) == {"four"}
