"""Named axes: their conditions and shapes, compared with axes that are matched one by one."""

from __future__ import annotations

import ast
import itertools
import random
from pathlib import Path

import pytest
from sample import project

from mlxgen.check.axes import Axes, NamedAxes
from mlxgen.model.numbers import ArrayFacts, evaluated
from mlxgen.read.signature import parse_signature

SIGNATURE = "f(x: array, y: array, z: array | None = None, k: int = 2) -> (a: array, b: array)"
GIVEN = [
    {"x": "B T D", "y": "B T", "z": "D", "a": "T B", "b": "B T D"},
    {"x": "4*H T", "y": "H", "z": "H+1 2 | H", "a": "H H", "b": "3"},  # x is after y
    {"x": "... D", "y": "... 2*D", "z": "...", "a": "...", "b": "... D 2"},
    {"x": "N N", "y": "M N", "z": "S S M", "a": "M", "b": "N"},
    {"x": "N k", "y": "k*k N", "z": "k S", "a": "N k", "b": "k+1"},
    {"x": "A B | B", "y": "B", "z": "B//2", "a": "B", "b": "B-1+B"},
    {"x": "N ...", "y": "... 2", "z": "() | N ... N", "a": "2 ... 2", "b": "N ... k"},
    {"x, y": "B D", "z": "... D", "a, b": "D B"},
    {"x": "A B", "y": "(A+k-1)//k (B)", "z": "2*(B-(A-1))", "a": "A//(B+k)", "b": "k*(A)"},
]


def named(given: dict[str, str]) -> NamedAxes:
    signature = parse_signature(SIGNATURE, "any", lambda *_: None)
    assert signature is not None
    return NamedAxes(given, signature)


def fitted(
    axes: Axes, shape: tuple[int, ...], known: dict[str, object]
) -> dict[str, object] | None:
    """Return sizes with which an array has these axes, or None."""
    known, names = dict(known), list(axes.names)
    if "..." in names:
        at, others = names.index("..."), len(shape) - len(names) + 1
        if (
            others < 0
            or known.setdefault("...", shape[at : at + others]) != shape[at : at + others]
        ):
            return None
        shape, names = (*shape[:at], *shape[at + others :]), [n for n in names if n != "..."]
    if len(shape) != len(names):
        return None
    for axis, length in zip(names, shape, strict=True):
        if axis.isidentifier() and axis != "k":
            known.setdefault(axis, length)
    for axis, length in zip(names, shape, strict=True):
        if eval(axis, {}, known) != length:
            return None
    return known


def whole(axes: Axes, known: dict[str, object]) -> tuple[int, ...]:
    """Return the shape for these sizes."""
    parts = [known["..."] if axis == "..." else (eval(axis, {}, known),) for axis in axes.names]
    return tuple(length for part in parts for length in part)


def lengths(axes: NamedAxes, shapes: dict[str, tuple[int, ...]]) -> dict[str, object] | None:
    """Return sizes with which all arguments have their axes; determining arrays come first."""
    order = [*axes.sure, *(name for name in shapes if name not in axes.sure)]
    for names in itertools.permutations(order[: len(axes.sure)]):
        known: dict[str, object] | None = {"k": 2}
        try:
            for name in (*names, *order[len(axes.sure) :]):
                found = [fitted(form, shapes[name], known) for form in axes.of[name]]
                fits = [one for one in found if one is not None]
                if not fits:
                    known = None
                    break
                if name in axes.sure:
                    known = fits[0]
        except NameError:  # a length that comes later
            continue
        return known
    raise AssertionError("no order")


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_conditions_and_shapes(given: dict[str, str]) -> None:
    axes, draw = named(given), random.Random(7)
    conditions = list(axes.conditions())
    assert [name for name, *_ in conditions if name in axes.keys] and len(conditions) == 3
    met = missed = 0
    for _ in range(5000):
        known = dict.fromkeys("ABDHMNST", 0)
        known = {name: draw.randint(1, 4) for name in known} | {"k": 2}
        lead = tuple(draw.choices([1, 2], k=draw.randint(0, 2)))
        shapes = {}
        for name in "xyz":
            shapes[name] = whole(draw.choice(axes.of[name]), {**known, "...": lead})
        if draw.random() < 0.2:
            del shapes["z"]
        if draw.random() < 0.8:
            name = draw.choice(list(shapes))
            shapes[name] = tuple(draw.choices([1, 2, 3, 4, 8], k=draw.randint(0, 3)))
        names = {n: ArrayFacts(shapes[n], None) if n in shapes else None for n in "xyz"}
        names["k"] = 2
        fits = lengths(axes, shapes)
        holds = True
        for name, tree, _ in conditions:  # each lets the following know its array's lengths
            holds = holds and bool(evaluated(tree, names, None))
            for axis, length in axes.lengths.items():
                if holds and length.array == name:
                    names[axis] = shapes[name][length.axis]
        assert holds == (fits is not None), (shapes, conditions)
        met, missed = met + holds, missed + (not holds)
        if fits is not None:
            for output in "ab":
                wanted = whole(axes.of[output][0], fits)
                assert evaluated(axes.shape(output), names, None) == wanted
            known = {n: v for n, v in fits.items() if n != "..."}
            for axis, length in known.items():
                if axis == "k":
                    continue
                assert names[axis] == length
    assert met > 1000 and missed > 1000, (met, missed)


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        (GIVEN[0], ["x must be (B, T, D).", "y must be (B, T), where x is (B, T, D)."]),
        (GIVEN[1], ["y must be (H,).", "x must be (4*H, T), where y is (H,)."]),
        (GIVEN[7], ["x must be (B, D).", "y must be (B, D), as x is."]),
    ],
)
def test_messages(given: dict[str, str], messages: list[str]) -> None:
    assert [message for *_, message in named(given).conditions()][:2] == messages


def test_ranks_are_known(tmp_path: Path) -> None:
    """The rank of a gradient is checked against the axes."""
    yaml = tmp_path / "mlx_ops.yaml"
    for axes, wrong in [("x: D N, y: N", True), ("x: D N, y: ... N", False)]:
        yaml.write_text(
            '- signature: "f(x: array, y: array) -> array"\n  dispatch: {cpu: somewhere_else}\n'
            f"  axes: {{{axes}, out: D N}}\n  grad: {{x: grad, y: grad * x}}\n"
        )
        found = {item.code for item in project.run(yaml, tmp_path / "out").sorted()}
        assert ("MG413" in found) == wrong, found


def test_ints_of_64_bits_are_lengths() -> None:
    signature = parse_signature("array f(const array& x, int64_t k)", "any", lambda *_: None)
    assert signature is not None
    (condition,) = NamedAxes({"x": "N k"}, signature).conditions()
    assert ast.unparse(condition[1]) == "x.ndim == 2 and x.shape[1] == k"
