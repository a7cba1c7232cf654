"""Checks that formulas of shapes stay valid if `vmap: batch` adds an axis in front of every array.

The formulas are evaluated for calls that the entry accepts, and for the same calls with an axis in
front of every array. Conditions must stay true, shapes get the same axis, and dtypes stay the same.
Numbers of a launch do not change or are ranks, which increase by one. A launch uses the sizes of
whole arrays, so that its formulas are only compared with those for a batch of one.

The first calls are the samples. Each other one is a change of an earlier call, such as another size
in all arrays, because arguments often depend on each other. The random numbers have a fixed seed,
so that every run draws the same calls. Such a trial rejects no valid formula, but does not prove
one: it accepts a formula of unknown value, or an entry for which it finds no call. The generated
checks compare vmap with single calls for the samples. vmap does not pass on an empty batch.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from random import Random
from typing import Any

from ...check.context import Context, Path
from ...check.metal import MAX_THREADS
from ...check.samples import AXES, Call
from ...formula.lets import words
from ...model.numbers import ArrayFacts, Impossible, evaluated
from ...model.op import MOST, Arguments, Op, OutputRules
from ...read.keys import ArraySample, KernelEntry, Sample
from . import MESSAGES

_BATCHES = (1, 2, 1, 5, 3, 1, 1_000_003)  # sizes of the axis in front
_DRAWN, _ACCEPTED = 500, 50  # calls
_NODES = 50_000  # of the formulas of all calls
_LARGEST = 2**31 - 1  # size of an axis
_SIZES = (2, 3, 1)
_VALUES = (
    False,
    True,
    1,
    2,
    3,
    -1,
    0.5,
    (),
    (1,),
    (2, 3),
    (1, 1),
    (3, 1, 2),
    (2, 1, 3, 1),
    ((1, 2),),
)


def check_batch(context: Context, op: Op, samples: Iterable[Sample]) -> None:
    """Report formulas of a valid entry whose values are wrong with a batch."""
    arguments = op.arguments
    metal = context.raw.dispatch.get("metal") if isinstance(context.raw.dispatch, dict) else None
    launch = metal if isinstance(metal, KernelEntry) else None
    formulas = list(_formulas(context, op.output_rules, launch))
    more = {name: given.values[0] for name, given in launch.template.items()} if launch else {}
    more[MOST] = MAX_THREADS
    trees = [condition.tree for condition in op.checks]
    everything = [*trees, *(tree for _, _, tree in formulas)]
    # For each formula, the counterexamples (parts of the message) by kind of change.
    trials = defaultdict[Path, defaultdict[int, list[dict[str, str]]]](lambda: defaultdict(list))
    to_check = context.raw.shape is not None or any(path[0] != "shape" for path, _, _ in formulas)
    calls = _accepted(context, arguments, samples, trees, everything) if to_check else ()
    for (call, names), batch in zip(calls, cycle(_BATCHES), strict=False):
        one, many = names | more, call.names(arguments, batch) | more
        for path, name, tree in formulas:
            met = path[0] == "checks"  # by all calls
            before: Any = True if met else _value(tree, one)
            after = _value(tree, many)
            launched = path[0] == "dispatch"
            unknown = before is None or after is None or isinstance(before, Impossible)
            if unknown or (launched and batch > 1):
                continue
            right = (batch, *before) if path[0] == "shape" else before
            change = 0 if after == right else 1 if launched and after == before + 1 else 2
            shown = {"before": "holds", "after": "not"}
            if change and path[0] != "checks":
                wanted = f" instead of {right}" * (path[0] == "shape")
                shown = {"before": f"is {before}", "after": f"but {after}{wanted}"}
            trials[path][change].append(
                shown | _shown(arguments, call, batch, words(tree)) if change else {}
            )
            if path[0] == "shape":
                before, right = ArrayFacts(before, None), ArrayFacts(right, None)
            if name:  # which other formulas use
                one[name], many[name] = before, after if change == 1 else right
    wrong = set[str]()  # names whose wrong values other formulas use
    for path, name, tree in formulas:
        found: Mapping[int, Any] = trials.pop(path, {})
        # A number of the launch that is a rank increases in all calls.
        examples = found.get(2) or (found.get(0) and found.get(1))
        if examples and wrong.isdisjoint(words(tree)):
            about: Any = max(examples, key=lambda shown: (-len(str(shown)), str(shown)))
            context.error("vmap_formula", path, str(path[0]), table=MESSAGES, **about)
            wrong.add(name)


def _shown(arguments: Arguments, call: Call, batch: int, used: frozenset[str]) -> dict[str, str]:
    """Return the arguments that a formula uses, and the shapes of their arrays with a batch."""
    used |= {length.array for axis, length in arguments.lengths.items() if axis in used}
    arrays = {path: s for path, s in call.shapes.items() if path[0] in used} or call.shapes
    one = [f"{name}{[*index] or ''} {shape}" for (name, *index), shape in arrays.items()]
    values = {n: v for n, v in call.values.items() if n in used and (n,) not in arrays and v != ()}
    one += [f"{name} = {value!r}" for name, value in values.items()]
    many = (str((batch, *shape)) for shape in arrays.values())
    return {"one": " and ".join(one), "many": " and ".join(many)}


def _formulas(
    context: Context, rules: OutputRules, launch: KernelEntry | None
) -> Iterator[tuple[Path, str, ast.expr]]:
    """Yield the entry's formulas of shapes, and the names of their values in later ones."""
    for key, of in (("shape", rules.shapes), ("dtype", rules.dtypes)):
        whole, keys = isinstance(getattr(context.raw, key), str), context.keys(key)
        for name, rule in zip(context.output_names, of, strict=True):
            if rule and rule.tree:
                path: Path = (key,) if whole else (key, keys.get(name, name))
                yield path, name if key == "shape" else "", rule.tree
    for i, check in enumerate(context.raw.checks):
        yield ("checks", i, "that"), "", context.expanded(check.that)
    if launch:
        texts: dict[Path, str] = {
            ("constants", name): text for name, text in launch.constants.items()
        }
        for key in ("grid", "threadgroup"):
            texts |= {(key, i): text for i, text in enumerate(getattr(launch, key) or ())}
        sizes = {n: given.of for n, given in launch.template.items() if given.of}
        texts |= {("template", n, "of"): of for n, of in sizes.items()}
        for path, text in texts.items():
            name = str(path[1]) if path[0] == "constants" else ""
            yield ("dispatch", "metal", *path), name, context.expanded(text)


def _value(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of a formula: None if it is unknown, the error if it is impossible."""
    try:
        return evaluated(tree, names, None)
    except Impossible as error:
        return error


def _accepted(
    context: Context,
    arguments: Arguments,
    samples: Iterable[Sample],
    conditions: Sequence[ast.expr],
    formulas: Sequence[ast.expr],
) -> Iterator[tuple[Call, dict[str, Any]]]:
    """Yield different calls that meet all conditions, and the names of their formulas."""
    parts = [*conditions]
    for part in parts:  # grows in the loop
        parts += (
            part.values if isinstance(part, ast.BoolOp) and isinstance(part.op, ast.And) else []
        )
    optional: Sample = {p.name: ArraySample() for p in arguments.arrays if p.type.optional}
    drawing, pool, best, seen = _Drawing(arguments, formulas), list[Call](), 0, set[Any]()
    given = (Call.of(context, arguments, sample) for sample in (*samples, {}, optional))
    calls = [*map(drawing.filled, given)]
    for alike in ((size,) * rank for rank in drawing.ranks for size in (0, 2)):
        calls.insert(0, calls[-1]._replace(shapes=dict.fromkeys(calls[-1].shapes, alike)))
    for _ in range(min(_DRAWN, _NODES // len(drawing.nodes))):
        call = calls.pop() if calls else drawing.changed(drawing.choice(pool))
        names = call.names(arguments)
        needed = parts if best < len(parts) else conditions
        met = sum(_value(part, names) is True for part in needed) + len(parts) - len(needed)
        key = *call.shapes.values(), repr(call.values)
        if met < best or key in seen:
            continue
        pool = [*pool, call] if met == best else [call]
        best = met
        seen.add(key)
        if met == len(parts):
            yield call, names
            if len(pool) == _ACCEPTED * (1 + (drawing.related != [])):
                return


class _Drawing:
    """Draws calls, also with the numbers of the entry's formulas."""

    def __init__(self, arguments: Arguments, formulas: Sequence[ast.expr]) -> None:
        self.nodes = [node for tree in formulas for node in ast.walk(tree)]
        self.random = Random(0).random
        constants = {repr(n.value): n.value for n in self.nodes if isinstance(n, ast.Constant)}
        ints = sorted({n + i for n in constants.values() if type(n) is int for i in (-1, 0, 1)})
        self.sizes = [*_SIZES, *(n for n in ints if 0 <= n <= _LARGEST)]
        self.ranks = [*range(6), *(n for n in ints if 5 < n <= AXES)]
        of_arrays = {p.name for p in arguments.arrays} | arguments.lengths.keys()
        related = [used for used in map(words, formulas) if used & of_arrays]
        self.values = dict[str, Sequence[Any]]()
        for p in arguments.attributes:
            values: Iterable[Any] = [*p.type.choices, *ints, *[*constants.values()] * 2, *_VALUES]
            values = [value for value in map(p.type.spread, values) if p.type.takes(value)]
            self.values[p.name] = [*values, *[None] * (p.type.optional or not values)]
        self.related = [n for n in self.values if any(n in used for used in related)]

    def choice(self, items: Sequence[Any]) -> Any:
        """Return an item; Random.choice is slower."""
        return items[int(self.random() * len(items))]

    def filled(self, call: Call) -> Call:
        """Return a call with values of required arguments that the sample omits."""
        missing = [n for n, of in self.values.items() if call.values[n] is None and None not in of]
        return call._replace(values=call.values | {n: self.choice(self.values[n]) for n in missing})

    def changed(self, call: Call) -> Call:
        """Return a call with other shapes, and sometimes another value."""
        choice, shapes = self.choice, call.shapes
        if self.related and self.random() < 0.4:
            name = choice(self.related)
            call = call._replace(values={**call.values, name: choice(self.values[name])})
        if not shapes:
            return call
        path, size = choice([*shapes]), choice(self.sizes)
        one, another = shapes[path], choice([*shapes.values()])
        i, old = choice(range(len(one) + 1)), choice(one or (0,))
        fresh = tuple(choice(self.sizes) for _ in range(choice(self.ranks)))
        changes = [  # of all arrays, as they may depend on each other
            lambda shape: fresh,
            lambda shape: shape[1:],
            lambda shape: (size, *shape),
            lambda shape: tuple(size if n == old else n for n in shape),
        ]
        if self.random() < 0.4:
            change = choice(changes)
            return call._replace(shapes={path: change(shape) for path, shape in shapes.items()})
        others = [(), fresh, another, another[:-1], (*another, size), (size, *another)]
        others += [(*another[:-1], size), (*one[:i], size, *one[i + 1 :]), (*one[:-1], *one[-2:-1])]
        return call._replace(shapes={**shapes, path: choice(others)})
