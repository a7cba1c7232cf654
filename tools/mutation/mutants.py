"""The mutants of Metal kernels and launchers, with one change each.

`source_mutants` mutates a kernel's source: it removes each barrier; increments each index and
pointer offset; shifts each comparison by one (`<` to `<=`, `>=` to `>`); and changes the dtype of
each instantiation or removes it. It mutates only functions that the selected kernels call, and no
headers of MLX. It does not mutate the scalar functions of elementwise operators, which have no
index and have tests of their accuracy.

All mutants of a library are in one source, in which the number of a mutant activates it
(`Switched`, changes.h). It is therefore compiled once, not once per mutant.

`launch_mutants` mutates launches, from records of them: each binding is dropped, exchanged with
another one, or bound as an output instead of an input; each set_bytes gets another size or other
numbers; and each dimension of the grid and the threadgroup, and the dtype of the kernel, changes.
These are instructions to the substitute for MLX's Metal device (mutation.h), so that nothing is
compiled again.

`plugin` runs the tests on the mutants.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from mlxgen.emulator.source import Token, lex

_BARRIERS = frozenset({"threadgroup_barrier", "simdgroup_barrier"})
_MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_SWITCHED = {"<": "less", "<=": "at_most", ">": "greater", ">=": "at_least"}  # in changes.h
_OTHER_TYPE = {
    "float": "half",
    "half": "float",
    "bfloat16_t": "half",
    "bfloat": "half",
    "bool": "int8_t",
    "uint": "int",
    "int": "uint",
    **{f"int{bits}_t": f"uint{bits}_t" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": f"int{bits}_t" for bits in (8, 16, 32, 64)},
}
_FROM_MLX = re.compile(
    r'^// ---- (?:"(?P<name>.+?)", included by .*:\d+|(?P<back>.+) again)$', re.M
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant.

    Attributes:
        name: A description of the change, unique among the mutants of an operator.
        kernels: The host names of the kernels that it may affect.
        source: The source of the kernels' library with this change only, or None for a change of
            launches.
        number: The number that activates the change in the library's switched source.
        launch: The change of launches ($MLXGEN_METAL_MUTATE), or None. With a source: the change
            that makes launches use it in the switched source.
    """

    name: str
    kernels: tuple[str, ...]
    source: str | None = None
    number: int = 0
    launch: str | None = None


@dataclass(frozen=True, slots=True)
class _Edit:
    """A replacement for the characters from `start` to `end`; `{}` in it is the switch."""

    start: int
    end: int
    alone: str
    switched: str


# ------------------------------------------------------------------------------------- sources


@dataclass(slots=True)
class _Body:
    """A function's definition: its name, the tokens in its braces, and its parameters.

    A member function has an owner. Operators have its name.
    """

    name: str
    start: int
    stop: int
    parameters: tuple[int, int]
    owner: str


@dataclass(frozen=True, slots=True)
class Switched:
    """The mutants of a library's source, and the source that contains all of them."""

    mutants: list[Mutant]
    text: str


def source_mutants(text: str, functions: Collection[str], kernels: Sequence[str]) -> Switched:
    """Return the mutants of a library's source.

    Args:
        text: Metal source with its includes embedded (`mlxgen.read.embed`).
        functions: The names of the selected kernel functions; the functions that they call are
            mutated, too.
        kernels: The host names of the kernels, for `Mutant.kernels`.
    """
    file = _File(text)
    mutants: list[Mutant] = []
    edits: list[_Edit] = []
    for body in file.called(functions):
        for what, parts in file.changes(body):
            switched = any("{}" in edit.switched for edit in parts)
            number = len(mutants) + 1 if switched else 0
            edits += [replace(e, switched=e.switched.format(_switch(number))) for e in parts]
            changed = _edited(text, [(e.start, e.end, e.alone) for e in parts])
            mutants.append(Mutant(f"{body.name}: {what}", tuple(kernels), changed, number))
    for mutant, part in file.instantiations(functions, kernels):
        mutants.append(mutant)
        edits += part
    names = _unique([mutant.name for mutant in mutants])
    named = [replace(mutant, name=name) for mutant, name in zip(mutants, names, strict=True)]
    return Switched(named, _edited(text, [(e.start, e.end, e.switched) for e in edits]))


def _switch(number: int) -> str:
    return f"mlxgen_metal::is_changed({number})"


def _edited(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with these replacements."""
    pieces, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])


def _unique(names: Iterable[str]) -> Iterator[str]:
    """Yield names, numbered if a name occurs several times."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


class _File:
    """A library's source as tokens, without directives."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = lex(text)
        self._foreign = _foreign_parts(text)
        self.bodies: list[_Body] = []
        self._statements: list[tuple[int, int]] = []
        self._scan()

    def _scan(self) -> None:
        """Find the functions, including member functions, and the other statements."""
        i = start = 0
        owner, owner_ends = "", 0
        while i < len(self.tokens):
            token = self.tokens[i]
            if token.text in ("(", "["):
                i = self._closing(i) + 1
                if self._is_macro(start, i):
                    self._statements.append((start, i))
                    start = i
                continue
            if token.text == "{":
                close = self._closing(i)
                owner = owner if i < owner_ends else ""
                opened = self._parameters(start, i)
                if opened is not None:
                    name = self.tokens[opened - 1].text
                    name = owner if name == ")" else name
                    self.bodies.append(_Body(name, i, close, (opened, i), owner))
                scopes = [n for n in range(start, i) if self._text(n) in ("namespace", "struct")]
                if opened is None and scopes:
                    if self._text(scopes[-1]) == "struct":
                        owner, owner_ends = self._text(scopes[-1] + 1), close
                    i = start = i + 1
                    continue
                i = close + 1
                if opened is not None:
                    start = i
                continue
            i += 1
            if token.text == ";":
                self._statements.append((start, i))
            if token.text in (";", "}"):
                start = i

    def _text(self, i: int) -> str:
        return self.tokens[i].text if i < len(self.tokens) else ""

    def _is_macro(self, start: int, stop: int) -> bool:
        """Return true if these tokens are a macro call without a semicolon on its own lines."""
        return (
            self.tokens[start].kind == "name"
            and self._text(start + 1) == "("
            and self._closing(start + 1) == stop - 1
            and (stop == len(self.tokens) or self.tokens[stop].before == "\n")
            and self._text(stop) != "{"
        )

    def _parameters(self, start: int, brace: int) -> int | None:
        """Return the `(` of the function whose body opens at `brace`, before its initializers."""
        last = brace - 1
        while last > start and self.tokens[last].kind == "name":
            last -= 1  # const
        while self._text(last) == ")":
            opened = self._opening(start, last)
            if self._text(opened - 2) in (",", ":"):
                last = opened - 3
                continue
            is_operator = self._text(opened - 3) == "operator"
            return opened if is_operator or self.tokens[opened - 1].kind == "name" else None
        return None

    def _opening(self, start: int, i: int) -> int:
        depth = 0
        for j in range(i, start, -1):
            depth += self.tokens[j].text == ")"
            depth -= self.tokens[j].text == "("
            if depth == 0:
                return j
        return start

    def _closing(self, i: int) -> int:
        depth = 0
        for j in range(i, len(self.tokens)):
            depth += self.tokens[j].text in ("(", "[", "{")
            depth -= self.tokens[j].text in (")", "]", "}")
            if depth == 0:
                return j
        return len(self.tokens) - 1

    def _is_foreign(self, i: int) -> bool:
        offset = self.tokens[i].offset
        return any(start <= offset < stop for start, stop in self._foreign)

    def called(self, functions: Collection[str]) -> list[_Body]:
        """Return the definitions of these functions, and of all that they call.

        A member function counts as called if its struct is named.
        """
        wanted, found = {(name, False) for name in functions}, []
        open_bodies = [body for body in self.bodies if not self._is_foreign(body.start)]
        added = True
        while added:
            added = False
            for body in list(open_bodies):
                named = (body.owner or body.name, False) in wanted
                if named and (not body.owner or {(body.name, b) for b in (False, True)} & wanted):
                    open_bodies.remove(body)
                    found.append(body)
                    wanted |= self._names_in(body)
                    added = True
        return sorted(found, key=lambda body: body.start)

    def _names_in(self, body: _Body) -> set[tuple[str, bool]]:
        """Return the names that a function may call, each with a flag for member functions.

        A generated kernel's scalar function does not count.
        """
        span = (*range(*body.parameters), *range(body.start, body.stop))
        names = [i for i in span if self.tokens[i].kind == "name"]
        if "Compute" in {self._text(i) for i in names}:
            names = [i for i in names if self._text(i - 2) == "mlxgen"]
        return {(self._text(i), self._text(i - 1) == ".") for i in names}

    # -- changes

    def _line(self, i: int) -> str:
        start = self.text.rfind("\n", 0, self.tokens[i].offset) + 1
        end = self.text.find("\n", start)
        return self.text[start:end].split("//")[0].strip()

    def changes(self, body: _Body) -> Iterator[tuple[str, list[_Edit]]]:
        """Yield the possible changes of one function, described in words and as edits."""
        pointers = self._pointers(body)
        size_ends = 0  # end of an array's size, a compile-time constant without a switch
        for i in range(body.start + 1, body.stop):
            token, where = self.tokens[i], f"in `{self._line(i)}`"
            if token.text in _BARRIERS:
                yield f"{token.text} removed", self._removed(i)
            elif token.text == "[" and self._is_index(i):
                inner, edits = self._higher(i)
                yield f"[{inner}] one higher {where}", edits
            elif token.text == "[":
                size_ends = self._closing(i)
            elif token.text in _MOVED and token.before and self.tokens[i + 1].before:
                new = _MOVED[token.text]
                switched = f"< mlxgen_metal::{_SWITCHED[token.text]}({{}}) >"
                switched = token.text if i < size_ends else switched
                yield (
                    f"{token.text} to {new} {where}",
                    [_Edit(token.offset, token.end, new, switched)],
                )
            elif token.text in pointers and self._text(i + 1) == "+" and self._text(i - 1) != ".":
                yield f"{token.text} + 1 {where}", [_Edit(token.end, token.end, " + 1", " + {}")]

    def _removed(self, i: int) -> list[_Edit]:
        """Return the edit that removes the call of the function at `i`."""
        start, end = self.tokens[i].offset, self.tokens[self._closing(i + 1)].end
        alone = _Edit(start, start, "(true ? void() : ", "({} ? void() : ")
        return [alone, _Edit(end, end, ")", ")")]

    def _higher(self, i: int) -> tuple[str, list[_Edit]]:
        """Return the index in the brackets at `i`, and edits that increment it."""
        start, end = self.tokens[i].end, self.tokens[self._closing(i)].offset
        edits = [_Edit(start, start, "(", "("), _Edit(end, end, ") + 1", ") + {}")]
        return " ".join(self.text[start:end].split()), edits

    def _pointers(self, body: _Body) -> set[str]:
        """Return the names of the pointers that a function declares: `T* name`."""
        span = (*range(*body.parameters), *range(body.start, body.stop))
        return {
            self.tokens[i + 1].text
            for i in span
            if self.tokens[i].text == "*"
            and not self.tokens[i].before
            and self.tokens[i + 1].kind == "name"
            and self.tokens[i + 1].before
        }

    def _is_index(self, i: int) -> bool:
        """Return true if the `[` at `i` subscripts; false for attributes and array declarations."""
        before, after = self.tokens[i - 1], self.tokens[i + 1]
        if before.kind != "name" or after.text in ("[", "]"):
            return False
        return not (self.tokens[i - 2].kind == "name" and self.tokens[i - 2].text != "return")

    def instantiations(
        self, functions: Collection[str], kernels: Sequence[str]
    ) -> Iterator[tuple[Mutant, list[_Edit]]]:
        """Yield each instantiation with another type, and without it."""
        all_kernels = {body.name for body in self.bodies if not body.owner}
        for start, stop in self._statements:
            tokens = self.tokens[start:stop]
            names = {token.text for token in tokens if token.kind == "name"}
            is_template = tokens[0].text == "template" and self._text(start + 1) == "["
            is_macro = len(tokens) > 1 and tokens[1].text == "(" and tokens[-1].text == ")"
            others = names & all_kernels
            if not (is_template or is_macro) or self._is_foreign(start):
                continue
            if others and not others & set(functions):
                continue
            types = [
                token
                for token, after in zip(tokens, [*tokens[1:], None], strict=True)
                if token.text in _OTHER_TYPE and after and after.text in (")", ">")
            ]
            if types:
                yield from self._instantiated(tokens, types, kernels)

    def _instantiated(
        self, tokens: Sequence[Token], types: Sequence[Token], kernels: Sequence[str]
    ) -> Iterator[tuple[Mutant, list[_Edit]]]:
        """Return the mutants of one instantiation; the switched source gives it a second name."""
        start, end = tokens[0].offset, tokens[-1].end
        shown = " ".join(self.text[start:end].split())
        shown = re.sub(r"template \[\[host_name\(\"(.*?)\"\)\]\].*", r"\1", shown)
        other = _OTHER_TYPE[types[0].text]
        changes = [(token.offset, token.end, other) for token in types]
        hosts = [token for token in tokens if token.text.strip('"') in kernels]
        concerned = tuple(kernels)
        launch = removal = None
        added = []
        if len(hosts) == 1:
            host = hosts[0].text.strip('"')
            concerned = (host,)
            launch, removal = f"{host} kernel {host}@{other}", f"{host} missing"
            named = [*changes, (hosts[0].offset, hosts[0].end, f'"{host}@{other}"')]
            added = [_Edit(end, end, "", f" {_edited(self.text[:end], named)[start:]}")]
        changed = _edited(self.text, changes)
        yield Mutant(f"{shown} for {other}", concerned, changed, 0, launch), added
        removed = _edited(self.text, [(start, end, "")])
        yield Mutant(f"{shown} removed", concerned, removed, 0, removal), []


def _foreign_parts(text: str) -> list[tuple[int, int]]:
    """Return the ranges of embedded source that come from MLX's headers."""
    parts = []
    opened: list[str] = []
    start = 0
    for match in _FROM_MLX.finditer(text):
        inside = any(name.startswith("mlx/") for name in opened)
        if match["name"] is not None:
            opened.append(match["name"])
        elif opened:
            opened.pop()
        now = any(name.startswith("mlx/") for name in opened)
        if now and not inside:
            start = match.start()
        elif inside and not now:
            parts.append((start, match.end()))
    return parts


# ------------------------------------------------------------------------------------ launches


@dataclass(slots=True)
class Buffer:
    """The bindings of launches at one index: kinds are input, output, filled and bytes."""

    name: str
    kinds: set[str] = field(default_factory=set)
    item: int = 0


@dataclass(slots=True)
class Launches:
    """The launches of one function's kernels from one library."""

    kernels: set[str] = field(default_factory=set)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    grid: list[int] = field(default_factory=lambda: [1, 1, 1])  # the maximum
    group: list[int] = field(default_factory=lambda: [1, 1, 1])
    several: list[bool] = field(default_factory=lambda: [False] * 3)  # threadgroups along it

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one line of a trace."""
        self.kernels.add(row["kernel"])
        self.grid = [max(pair) for pair in zip(self.grid, row["grid"], strict=True)]
        self.group = [max(pair) for pair in zip(self.group, row["group"], strict=True)]
        for d, (grid, group) in enumerate(zip(row["grid"], row["group"], strict=True)):
            self.several[d] |= grid > group
        for index, name, kind, item in row["buffers"]:
            buffer = self.buffers.setdefault(index, Buffer(name))
            buffer.kinds.add(kind)
            buffer.item = item


def launch_mutants(launches: Launches, function: str, library: Sequence[str]) -> list[Mutant]:
    """Return the mutants of a launcher.

    Args:
        launches: Its recorded launches.
        function: The kernel function, for names.
        library: All host names of this function: its other dtypes.
    """
    every = ",".join(sorted(launches.kernels))
    changes = [
        (f"launch of {function}: {what}", every, change) for what, change in _changes(launches)
    ]
    names = sorted(library)
    for name in sorted(launches.kernels):
        if len(names) > 1:
            other = names[(names.index(name) + 1) % len(names)]
            changes.append((f"launch of {name}: {other} instead", name, f"kernel {other}"))
    return [
        Mutant(name, tuple(kernels.split(",")), launch=f"{kernels} {change}")
        for name, kernels, change in changes
    ]


def _changes(launches: Launches) -> Iterator[tuple[str, str]]:
    buffers = dict(sorted(launches.buffers.items()))
    for i, buffer in buffers.items():
        named = f"buffer {i} ({buffer.name})"
        yield f"{named} not bound", f"drop {i}"
        if "bytes" in buffer.kinds:
            yield f"{named} of twice the size", f"resize {i} 2 1"
            if buffer.item > 1:
                yield f"{named} of half the size", f"resize {i} 1 2"
            yield f"{named} with other numbers", f"value {i}"
        else:
            yield f"{named} bound the other way (input, output)", f"role {i}"
        if "filled" in buffer.kinds:
            yield f"{named} not filled before", f"unfilled {i}"
    for (i, a), (j, b) in combinations(buffers.items(), 2):
        yield f"buffers {i} ({a.name}) and {j} ({b.name}) exchanged", f"swap {i} {j}"
    for d, axis in enumerate("xyz"):
        yield f"grid.{axis} one larger", f"grid {d} 1"
        if launches.grid[d] > 1:
            yield f"grid.{axis} one smaller", f"grid {d} -1"
        if launches.several[d]:  # otherwise the threadgroup is cut to the grid
            yield f"threadgroup.{axis} doubled", f"group {d} 2 1"
        if launches.group[d] > 1:
            yield f"threadgroup.{axis} halved", f"group {d} 1 2"
    yield "the grid in threadgroups, not threads", "by_groups 0"
