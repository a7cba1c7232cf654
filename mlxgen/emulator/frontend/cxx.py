"""Reads function declarations out of hand-written Metal, token by token.

The emulator rewrites kernels as C++, and so needs every token of a declaration and its place, where
the generator (`read.cpp`) needs what is declared only. `Scanner` finds that at namespace scope.

Prominent characteristics:

* Nothing is skipped unless it is known not to be a function: variables, types, aliases. A construct
  that is not understood, or a macro whose definition is not in the files, is a `SourceError`.
* Bodies of functions and of classes are not looked into: member functions are seen where they are
  defined out of their class (`std::vector<array> Axpby::vjp(...) {...}`).
* Types are normalised text (see `cxx_types`).
* `Scanner` is shared with `metal`, which adds kernels and instantiations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...diagnostics import Span
from .cxx_types import (
    BUILTIN,
    CLASS_KEYS,
    NO_NAMES,
    QUALIFIERS,
    SPECIFIERS,
    STAGES,
    UNKNOWN_MACRO,
    WITH_PARENTHESES,
    Attribute,
    Attributes,
    Param,
    Path,
    Reader,
    normalise_type,
)
from .tokens import SourceError, Token

__all__ = [
    "Function",
    "Param",
    "SourceError",
    "find_function",
    "normalise_type",
]

TO_SEMICOLON = ("using", "typedef", "static_assert", "_Static_assert", "concept", "asm", "__asm__")

_AFTER_RESULT = ("{", ";", "=", "[", ":", "requires", "try", "override", "final")
_VALUES = ("{", "-", "!", "&", "nullptr", "true", "false", "sizeof", "new")


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is declared or defined at namespace scope.

    Attributes:
        name: without its namespace and class: "axpby", "operator+".
        namespace: "mlxops::cpu", or "" for the global one; inline and unnamed ones do not count.
        class_name: X of `X::vjp`, or None.
        template: the names of its template parameters ("" for one without a name).
        template_defaults: their defaults as text, None for those without.
        specialization: the arguments of `f` in `template <> void f<float>(...)`, or None.
        result: its return type, normalised; "" for constructors and the like.
        params: its parameters.
        attributes: of the function, {"kernel": None} for one.
        is_kernel: whether it is a Metal kernel.
        is_definition: whether it has a body here.
        unit: the path given to the scan: the file itself, or one that includes it.
        span: its name.
    """

    name: str
    namespace: str
    class_name: str | None
    template: tuple[str, ...]
    template_defaults: tuple[str | None, ...]
    specialization: tuple[str, ...] | None
    result: str
    params: tuple[Param, ...]
    attributes: Attributes
    is_kernel: bool
    is_definition: bool
    unit: str
    span: Span

    @property
    def qualified_name(self) -> str:
        """The name with its namespace and class."""
        return "::".join(filter(None, (self.namespace, self.class_name, self.name)))


def find_function(functions: Iterable[Function], name: str) -> list[Function]:
    """The functions called `name`, which may leave out outer namespaces (`cpu::axpby`).

    A member function is found only with its class (`Axpby::vjp`); a leading `::` asks for the
    global namespace.
    """
    parts = name.replace(" ", "").split("::")
    found = []
    for function in functions:
        own = ["", *function.qualified_name.split("::")]
        members = len(function.class_name.split("::")) if function.class_name else 0
        if own[-len(parts) :] == parts and len(parts) > members:
            found.append(function)
    return found


def deduced(function: Function, types: Sequence[str]) -> tuple[str, ...] | None:
    """The template arguments with which the parameters have these types; None if there are none."""
    values: dict[str, str] = {}
    for param, given in zip(function.params, types, strict=True):
        seen: set[str] = set()

        def group(match: re.Match[str], seen: set[str] = seen) -> str:
            name = match[0]
            if name not in function.template:
                return name
            first = name not in seen
            seen.add(name)
            return f"(?P<{name}>.+)" if first else f"(?P={name})"

        pattern = re.sub(r"[A-Za-z_]\w*", group, re.escape(param.type).replace("\\ ", " "))
        match = re.fullmatch(pattern, given)
        if not match:
            return None
        for name, value in match.groupdict().items():
            if values.setdefault(name, value) != value:
                return None
    pairs = zip(function.template, function.template_defaults, strict=True)
    arguments = [values.get(name, default) for name, default in pairs]
    return None if None in arguments else tuple(value for value in arguments if value is not None)


@dataclass(slots=True)
class Head:
    """The beginning of a declaration, up to its parameter list, its initialiser or its end."""

    start: int
    stop: int  # at "(" of the parameters, or where it is no function at "=", "{", "[", ";", ...
    attributes: dict[str, Attribute] = field(default_factory=dict)
    stage: str | None = None  # kernel, vertex, fragment
    path: Path | None = None  # the declared name
    has_type: bool = False
    is_class: bool = False


class Scanner(Reader):
    """Reads the declarations of one translation unit into `functions`."""

    macro_headers: Mapping[str, str] = {}  # where well-known macros are defined

    def __init__(self, tokens: Sequence[Token], unit: str, *, metal: bool = False) -> None:
        super().__init__(tokens, unit, metal=metal)
        self.functions: list[Function] = []
        self._namespaces: set[str] = set()

    # -- declarations

    def scan(self) -> None:
        """Read all declarations."""
        self._scope(0, len(self.tokens), "")

    def _scope(self, i: int, stop: int, namespace: str) -> None:
        self.enter(i)
        while i < stop:
            i = self._declaration(i, stop, namespace)
        self.leave()

    def _declaration(self, i: int, stop: int, namespace: str) -> int:
        """Read the declaration at `i`; the index behind it."""
        while self.text(i) == "extern" and self._is_string(i + 1) and self.text(i + 2) != "{":
            i += 2
        if i >= stop:
            raise self.error("expected a declaration", i)
        text = self.texts[i]
        if text == ";":
            return i + 1
        if text == "namespace" or (text == "inline" and self.text(i + 1) == "namespace"):
            return self._namespace(i, stop, namespace)
        if text == "extern" and self._is_string(i + 1):
            self._scope(i + 3, self.partner[i + 2], namespace)
            return self.partner[i + 2] + 1
        if text in TO_SEMICOLON:
            return self.semicolon(i, stop)
        if text == "extern" and self.text(i + 1) == "template":
            return self.semicolon(i, stop)
        if text == "template":
            if self.text(i + 1) != "<":
                return self.explicit_instantiation(i, stop)
            return self._template(i, stop, namespace)
        return self._simple(i, stop, namespace, None)

    def _is_string(self, i: int) -> bool:
        return i < len(self.tokens) and self.tokens[i].kind == "string"

    def semicolon(self, i: int, stop: int) -> int:
        """The index behind the `;` that ends the declaration at `i`."""
        end = i
        while end < stop and self.texts[end] != ";":
            if self.texts[end] not in ("(", "[", "{"):
                end += 1
                continue
            end = self.partner[end] + 1
            if self.texts[end - 1] == "}" and self.is_name(end, stop) and self._starts_line(end):
                break  # something else begins: it must not be skipped for a forgotten `;`
        if end >= stop or self.texts[end] != ";":
            raise self.error("expected ';' at the end of this declaration", i)
        return end + 1

    def _starts_line(self, i: int) -> bool:
        return self.tokens[i].before == "\n"

    def _namespace(self, i: int, stop: int, namespace: str) -> int:
        hidden = self.texts[i] == "inline"
        j = i + 2 if hidden else i + 1
        names = [] if not namespace else [namespace]
        while j < stop and self.texts[j] not in ("{", "=", ";"):
            if self.texts[j] == "[" and self.text(j + 1) == "[":
                j = self.partner[j] + 1
                continue
            if self.texts[j] == "inline":
                hidden = True
            elif self.is_name(j, stop):
                if not hidden:
                    names.append(self.texts[j])
                hidden = False
            elif self.texts[j] != "::":
                raise self.error("cannot read this namespace", j)
            j += 1
        if self.text(j) == "=":
            return self.semicolon(j, stop)
        if self.text(j) != "{":
            raise self.error("expected '{' after the namespace", j)
        inner = "::".join(names)
        self._namespaces.add(inner)
        self._scope(j + 1, self.partner[j], inner)
        return self.partner[j] + 1

    def _template(self, i: int, stop: int, namespace: str) -> int:
        names: list[str] = []
        defaults: list[str | None] = []
        while self.text(i) == "template" and self.text(i + 1) == "<":
            close = self.angle(i + 1)
            if close is None:
                raise self.error("this template parameter list is never closed", i + 1)
            for start, end in self.split(i + 2, close):
                name, default = self._template_parameter(start, end)
                names.append(name)
                defaults.append(default)
            i = close + 1
            if self.text(i) == "requires":
                i = self._constraint(i + 1, stop)
        if i >= stop:
            raise self.error("expected a declaration after template <...>", i)
        if self.texts[i] in TO_SEMICOLON:
            return self.semicolon(i, stop)
        return self._simple(i, stop, namespace, (tuple(names), tuple(defaults)))

    def _template_parameter(self, start: int, stop: int) -> tuple[str, str | None]:
        assign = self.find(start, stop, "=")
        default = self.spelling(assign + 1, stop) if assign < stop else None
        if self.texts[start] in ("typename", "class", "template"):
            last = self.texts[assign - 1] if assign > start else ""
            previous = self.texts[assign - 2] if assign - 1 > start else ""
            if last in ("typename", "class", "..."):
                return "", default
            if previous in ("typename", "class", "..."):
                return last + ("..." if previous == "..." else ""), default
        param = self.param(start, stop)
        pack = "..." if param.name and "..." in self.texts[start:stop] else ""
        return param.name + pack, default

    def _constraint(self, i: int, stop: int) -> int:
        """The index behind the requires-clause whose expression begins at `i`."""
        while True:
            while self.text(i) in ("!", "not"):
                i += 1
            if self.text(i) == "requires":
                i += 1
                i = self.over(i) if self.text(i) == "(" else i
                if self.text(i) != "{":
                    raise self.error("expected '{' after requires", i)
                i = self.partner[i] + 1
            elif self.text(i) == "(":
                i = self.partner[i] + 1
            elif self.is_name(i, stop) or self.text(i) == "::":
                i = self.path(i, stop).stop
            else:
                raise self.error("cannot read this constraint", i)
            if self.text(i) not in ("&&", "||", "and", "or"):
                return i
            i += 1

    def head(self, i: int, stop: int) -> Head:
        """Read a declaration's specifiers, type and name."""
        head = Head(i, i)
        while i < stop:
            text = self.texts[i]
            following = self.text(i + 1)
            if text == "[" and following == "[":
                attributes, i = self.attributes(i)
                head.attributes.update(attributes)
                continue
            if text in WITH_PARENTHESES and following == "(":
                i = self.partner[i + 1] + 1
                continue
            if text in SPECIFIERS or text in QUALIFIERS or text in self.spaces:
                i += 1
            elif self.metal and text in STAGES and following != "(":
                head.stage = text
                i += 1
            elif text in CLASS_KEYS:
                i = self._class(i, stop, head)
            elif text == "decltype" and following == "(":
                head.has_type = True
                i = self.partner[i + 1] + 1
            elif text in BUILTIN or text in ("*", "&", "&&"):
                if head.path is not None:
                    head.has_type, head.path = True, None
                head.has_type = True
                i += 1
            elif text == "typename":
                i += 1
            elif text == "(" and head.path is None and head.has_type:
                break
            elif self.tokens[i].kind == "name" or text in ("::", "~"):
                if text in NO_NAMES:
                    raise self.error(f"{text!r} cannot stand in a declaration here", i)
                if head.path is not None:
                    head.has_type = True
                head.path = self.path(i, stop)
                i = head.path.stop
            else:
                break
        if "kernel" in head.attributes:
            head.stage = "kernel"
        head.stop = i
        if i >= stop:
            raise self.error("expected ';' at the end of this declaration", head.start)
        return head

    def _class(self, i: int, stop: int, head: Head) -> int:
        """Step over a class, its body included; over the keyword alone in `struct X f();`."""
        j = i + 1
        if self.texts[i] == "enum" and self.text(j) in ("class", "struct"):
            j += 1
        while j < stop:
            if self.texts[j] == "[" and self.text(j + 1) == "[":
                j = self.partner[j] + 1
            elif self.texts[j] in WITH_PARENTHESES and self.text(j + 1) == "(":
                j = self.partner[j + 1] + 1
            elif self.is_name(j, stop) or self.texts[j] == "::":
                j = self.path(j, stop).stop
            else:
                break
        if self.text(j) == ":":
            j = self.find(j, stop, "{", ";")
        if self.text(j) == "{":
            j = self.partner[j] + 1
        elif self.text(j) != ";":
            return i + 1
        head.has_type = head.is_class = True
        return j

    def _simple(
        self,
        i: int,
        stop: int,
        namespace: str,
        template: tuple[tuple[str, ...], tuple[str | None, ...]] | None,
    ) -> int:
        """Read a function, variable or class at `i`; the index behind it."""
        head = self.head(i, stop)
        text = self.texts[head.stop]
        if head.is_class:
            if text == "(" or (text == "{" and head.path is None):
                raise self.error("expected ';' after the class", head.stop)
            return self.semicolon(head.stop, stop)
        if text == "(" and head.path is None:
            return self._pointer_variable(head, stop)
        if text == "(" and self._is_initialiser(head):
            return self.semicolon(head.stop, stop)
        if text != "(":
            if not head.has_type or (head.path is None and text != "["):
                raise self.error("cannot read this declaration", head.stop)
            self.found_variable(head)
            return self.semicolon(head.stop, stop)
        path = head.path
        assert path is not None
        if not head.has_type and not self._needs_no_type(path):
            if path.names and self.text(self.partner[head.stop] + 1) == "->":
                return self.semicolon(head.stop, stop)  # a deduction guide
            raise self.error(
                f"{path.text}(...) is no declaration and no macro that the files read define",
                path.start,
                f"if it is a macro, include {self.macro_headers.get(path.text, 'its header')}",
            )
        params = self.params(head.stop)
        result = self.type_before(head)
        end, trailing, is_definition = self._function_end(self.partner[head.stop] + 1, stop)
        class_name, own = self._scope_of(path, namespace)
        names, defaults = template or ((), ())
        function = Function(
            name=path.names[-1],
            namespace=own,
            class_name=class_name,
            template=names,
            template_defaults=defaults,
            specialization=path.arguments,
            result=trailing or result,
            params=params,
            attributes=head.attributes,
            is_kernel=head.stage == "kernel",
            is_definition=is_definition,
            unit=self.unit,
            span=self.span(path.start, path.stop),
        )
        self.found_function(function)
        return end

    def found_function(self, function: Function) -> None:
        """Called with every function."""
        self.functions.append(function)

    def found_variable(self, head: Head) -> None:
        """Called with every variable that has no parenthesised initialiser."""

    def _scope_of(self, path: Path, namespace: str) -> tuple[str | None, str]:
        """The class and namespace of a name declared as `a::b::f` inside `namespace`."""
        outer = [namespace] if namespace else []
        prefix = path.names[:-1]
        for n in range(len(prefix), 0, -1):
            candidate = "::".join(outer + prefix[:n])
            if candidate in self._namespaces:
                return "::".join(prefix[n:]) or None, candidate
        return "::".join(prefix) or None, namespace

    @staticmethod
    def _needs_no_type(path: Path) -> bool:
        """Constructors, destructors and conversions are declared without a type."""
        name = path.names[-1]
        return name.startswith(("~", "operator ")) or path.names[-2:] == [name, name]

    def _is_initialiser(self, head: Head) -> bool:
        """Whether `name(...)` initialises a variable: `Table table(1, 2);`."""
        if head.path is None or not head.has_type:
            return False
        inside = head.stop + 1
        first = self.tokens[inside]
        is_value = first.kind in ("number", "string", "character") or first.text in _VALUES
        return is_value and self.text(self.partner[head.stop] + 1) in (";", ",")

    def _pointer_variable(self, head: Head, stop: int) -> int:
        """Step over `void (*f)(int) = nullptr;`; a function that returns such is an error."""
        i = head.stop
        nested = self.find(i + 1, self.partner[i], "(") < self.partner[i]
        if self.text(i + 1) not in ("*", "&") or nested or not head.has_type:
            raise self.error("cannot read this declarator", i)
        return self.semicolon(i, stop)

    def type_before(self, head: Head) -> str:
        """The type in front of the name that a declaration declares."""
        if not head.has_type or head.path is None:
            return ""
        last = head.path.start
        found = self.declared(head.start, last, drop_macros=True)
        if found.name:
            raise self.error(f"cannot read this type: unexpected {found.name!r}", last - 1)
        return found.type

    def _function_end(self, i: int, stop: int) -> tuple[int, str, bool]:
        """What follows the parameters: the index behind all, a trailing type, is there a body?"""
        result = ""
        while i < stop:
            text = self.texts[i]
            if text == ";":
                return i + 1, result, False
            if text == "{":
                return self.partner[i] + 1, result, True
            if text == "[" and self.text(i + 1) == "[":
                i = self.partner[i] + 1
            elif text == "->":
                end = self.find(i, stop, *_AFTER_RESULT)
                result = self.type_text(i + 1, end)
                i = end
            elif text == "requires":
                i = self._constraint(i + 1, stop)
            elif text == "=" and self.text(i + 1) in ("default", "delete", "0"):
                return self.semicolon(i, stop), result, self.texts[i + 1] == "default"
            elif text == ":":
                i = self._initialisers(i + 1, stop)
            elif text == "try":
                i = self._initialisers(i + 2, stop) if self.text(i + 1) == ":" else i + 1
                if self.text(i) != "{":
                    raise self.error("expected '{' after try", i)
                i = self.partner[i] + 1
                while self.text(i) == "catch" and self.text(i + 1) == "(":
                    i = self.partner[i + 1] + 1
                    i = self.over(i) if self.text(i) == "{" else i
                return i, result, True
            elif self.text(i + 1) == "(" and (
                text in WITH_PARENTHESES or UNKNOWN_MACRO.match(text)
            ):
                i = self.partner[i + 1] + 1
            elif (
                text in QUALIFIERS
                or text in self.spaces
                or text in ("&", "&&", "noexcept", "override", "final")
                or UNKNOWN_MACRO.match(text)
            ):
                i += 1
            elif text == ",":
                raise self.error("declare one function at a time", i)
            else:
                raise self.error("expected '{' or ';' after the function's parameters", i)
        raise self.error("expected '{' or ';' after the function's parameters", i)

    def _initialisers(self, i: int, stop: int) -> int:
        """The index of the body behind a constructor's `a(1), b{2}`."""
        while i < stop:
            i = self.path(i, stop).stop
            if self.text(i) not in ("(", "{"):
                raise self.error("expected '(' or '{' after the member's name", i)
            i = self.partner[i] + 1
            if self.text(i) == "...":
                i += 1
            if self.text(i) != ",":
                break
            i += 1
        return i

    def explicit_instantiation(self, i: int, stop: int) -> int:
        """`template void f<float>(float);` declares nothing new; `metal` looks for kernels."""
        return self.semicolon(i, stop)
