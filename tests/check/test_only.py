"""Resolving some entries of a file returns the same operators, and checks all names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from sample import project

from mlxgen.check.file import _File, resolve, resolve_changed
from mlxgen.check.others import Reads
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


def test_recorded_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry is resolved again exactly if an answer about another entry changed."""
    diags = Diagnostics()
    settings = project.settings(project.YAML)
    asked: list[set[str]] = []
    resolve_some = _File.resolve

    def seen(file: _File, only: set[str]) -> list[Op]:
        asked.append(only)
        return resolve_some(file, only)

    monkeypatch.setattr(_File, "resolve", seen)

    def run(text: str, reads: Mapping[str, Reads]) -> tuple[set[str], dict[str, Reads]]:
        document = Document.parse(text, "ops.yaml", diags)
        assert document is not None
        sources = Sources(settings, diags, mlx_include())
        _, found = resolve_changed(document, sources, reads)
        return asked.pop(), found

    def edited(old: str, new: str, changed: str = "") -> set[str]:
        """Return the resolved entries after an edit, which changes the text of ``changed``."""
        _, reads = run(old, {})
        return run(new, {name: reads[name] for name in reads if name not in changed.split()})[0]

    calls, names = CALLS, {"twice", "four", "other"}
    assert run(calls, {})[0] == names
    assert edited(calls, calls) == set()
    assert edited(calls, calls.replace("x + x", "2 * x"), "twice") == {"twice"}
    # A gradient depends on the linearity of an entry that its composite calls indirectly.
    more = calls + '- signature: "g(x: array) -> array"\n  composite: x\n  grad: {x: four(grad)}\n'
    assert edited(more, more.replace("x + x", "x * x"), "twice") == {"twice", "four", "g"}
    after = calls.replace("twice(x: array)", "twice(x: array, n: int = 2)")
    assert edited(calls, after, "twice") == {"twice", "four"}
    # An entry that has the name of an MLX function.
    after = calls + '- signature: "exp(x: array) -> array"\n  composite: mx.exp(x)\n'
    assert edited(calls, after) == {"exp", "other"}
    # An overload appears, and becomes internal.
    name = '- name: twice_more\n  signature: "twice_more(x: array, y: array) -> array"\n'
    more = calls + name + "  python_name: twice\n  composite: x + y\n"
    assert edited(calls, more) == {"twice_more", "twice", "four"}
    after = more + "  tags: [internal]\n"
    assert edited(more, after, "twice_more") == {"twice_more", "twice", "four"}
    # Equal calls are computed once while the called entry is pure.
    draw = '- signature: "noise(x: array) -> array"\n  composite: {}\n'
    both = draw + '- signature: "both(x: array) -> array"\n  composite: noise(x) - noise(x)\n'
    draws = both.format("x + mx.random.normal(x.shape)")
    assert edited(both.format("x + x"), draws, "noise") == {"noise", "both"}
    assert edited(both.format("x + x"), both.format("x * 3"), "noise") == {"noise"}


def test_misspelled_key_of_the_signature() -> None:
    """The name of such an entry is known only after its keys were read."""
    diags = Diagnostics()
    document = Document.parse(CALLS.replace("- signature", "- signaturee", 1), "ops.yaml", diags)
    assert document is not None
    sources = Sources(project.settings(project.YAML), diags, mlx_include())
    ops, reads = resolve_changed(document, sources, {})
    assert {op.name for op in ops} == {"four", "other"} == {*reads}
    assert "MG101" in diags.render_text()
