"""Parses the declarations of hand-written C++ and Metal with tree-sitter.

Generated code calls hand-written kernels. Their declarations are compared with the entry, so that a
mismatch is reported before it causes a compile error in generated code. ``Reader(folders)`` parses
files, and ``file(path).functions`` are the functions of one.

Metal is C++ with additional attributes, address spaces and stages. These are masked before parsing,
and then read from the text around a declaration. Bodies of functions and classes are skipped. Types
are strings in a normalized spelling: `float const *x` has the type "const float*", and a Metal
address space comes first, as in "device const T*".
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from tree_sitter import Node

from ..diagnostics import Span
from . import MESSAGES
from .preprocess import PARSER, Preprocessor, SourceError, SourceText, calculated

Attribute = int | str | None  # the argument: [[buffer(0)]] has 0, [[kernel]] None
Names = tuple[str, ...]

# The compiler's macros of this machine, for which the package is built.
_SYSTEM = {"darwin": ("__APPLE__", "__MACH__"), "linux": ("__linux__", "__gnu_linux__")}
_MACHINE = {
    **{"x86_64": ("__x86_64__",), "aarch64": ("__aarch64__",)},
    "arm64": ("__arm64__", "__aarch64__"),
}
_PLATFORM = (*_SYSTEM.get(sys.platform, ()), *_MACHINE.get(platform.machine(), ()))
CPP = {"__cplusplus": "202002L", **dict.fromkeys(_PLATFORM, "1")}
# Macros of Metal's compiler and <metal_stdlib>, for the oldest supported version.
METAL = {
    "__METAL__": "1",
    "__METAL_VERSION__": "310",
    "__HAVE_BFLOAT__": "1",
    "METAL_FUNC": "inline",
}

_SPACES = "device|constant|threadgroup_imageblock|threadgroup|thread|object_data|ray_data"
_SPACE = re.compile(rf"\b(?:{_SPACES})\b")
LISTED = r"\[\[((?:(?!\[\[)[^;{}])*?)\]\]"
_BLANKED = (
    rf"{LISTED}|__attribute__\s*\(\((?:(?!__attr)[^;{{}}])*?\)\)"  # attributes
    r"|\b[A-Z][A-Z0-9_]*_(?:API|EXPORT)\b"  # linkage macros of headers that are not parsed
    r"|=\s*\{\s*\}(?=\s*[,)])"  # a default that tree-sitter's grammar does not support
)
_BLANKED_CPP = re.compile(_BLANKED, re.S)
_BLANKED_METAL = re.compile(
    rf"{_BLANKED}|\b(?:{_SPACES})\b(?=\s+[\w:*&]|[*&]|\s*[{{;]|\s*=\s*default\b)"
    r"|\b(?:kernel|vertex|fragment)\b(?=\s+\w+\s+\w+\s*[(<]|\s+decltype\b)"
    r"|\bcoherent\b(?:\s*\(\w+\))?(?=\s+\w)",
    re.S,
)
_ATTRIBUTE = re.compile(r"(\w+)(?:\s*\(\s*((?:[^()]|\([^()]*\))*?)\s*\))?")
# The enumerators of an enum; the name and the value of a constant.
_CONSTANT = re.compile(
    r"\benum\b[^;{}()]*\{([^{}]*)\}"
    r"|\b(?:constant|constexpr|const)\b[^;=(){}]*?\b(\w+)\s*=\s*([^;{}]+);"
)
_NAMED = re.compile(r"(?:\w+\s*::\s*)*\b([A-Za-z_]\w*)")
_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(")
LINE = re.compile(r"^[ \t]*([A-Za-z_]\w*)\((?:[^()\n]|\([^()\n]*\))*\)[ \t]*(;?)[ \t]*$", re.M)
_REQUIRES = re.compile(r"\brequires\b")
_INLINE = re.compile(r"\b(?:inline|static|constexpr|consteval)\b")
_MAX_FUNCTIONS = 10_000  # in a file
_MAX_DEPTH = 200  # of nested namespaces
_TOKEN = re.compile(r'"[^"]*"|\w+|::|&&|\.\.\.|\S')
_NO_TYPE = re.compile(
    r"\b(?:inline|static|constexpr|constinit|extern|virtual|friend|mutable|register"
    r"|explicit|volatile|restrict|__restrict|__restrict__|thread_local|typename|class|struct|union"
    r"|enum|typedef)\b"
)


class Param(NamedTuple):
    """A function's parameter, for example `device const T* x [[buffer(0)]]`."""

    type: str  # the whole type: "device const T*"
    name: str  # "x", or "" without a name
    base: str  # without const, address space, pointers and references: "T"
    space: str | None  # the Metal address space that it points or refers to: "device"
    const: bool  # the pointee or referent (else the value itself) is const
    pointer: bool  # the outermost part of the type is a pointer (or an array)
    reference: bool  # the outermost part of the type is a reference
    attributes: Mapping[str, Attribute]  # {"buffer": 0}
    default: str | None  # the text of the default argument
    span: Span


class Function(NamedTuple):
    """A function declared or defined at namespace scope."""

    name: str  # without namespace and class: "axpby", "operator+"
    namespace: str  # "mlxops::cpu", or "" for the global one; without inline and unnamed ones
    class_name: str | None  # X in `X::vjp`
    template: tuple[str, ...]  # names of the template parameters ("" for one without a name)
    template_defaults: tuple[str | None, ...]  # their defaults
    template_kinds: tuple[str, ...]  # "bool" for `bool positive`; the concept or "" for a type
    requires: str  # the requires clause of the template
    inline: bool  # several sources may include the definition
    result: str  # the return type; "" for constructors and the like
    params: tuple[Param, ...]
    attributes: Mapping[str, Attribute]  # {"kernel": None} for a Metal kernel
    body: tuple[int, int] | None  # the slice of the body in the text of the file
    span: Span  # the location of the name

    @property
    def is_kernel(self) -> bool:
        """True for a Metal kernel."""
        return "kernel" in self.attributes

    @property
    def is_definition(self) -> bool:
        """True if the declaration has a body."""
        return self.body is not None

    @property
    def qualified_name(self) -> str:
        """The name with its namespace and class."""
        return "::".join(filter(None, (self.namespace, self.class_name, self.name)))


@dataclass(eq=False)
class File:
    """The declarations of a file.

    Attributes:
        source: its text.
        functions: the functions at namespace scope.
        instances: the slices of explicit instantiations in the original text of the file.
        aliases: the types that other names stand for.
        unread: the first unparsed place, or None.
        root: the root of the syntax tree; its byte offsets are character offsets.
    """

    source: SourceText
    root: Node
    functions: list[Function] = field(default_factory=list)
    instances: list[tuple[int, int]] = field(default_factory=list)
    aliases: dict[str, Param] = field(default_factory=dict)
    unread: Span | None = None


@dataclass(eq=False)
class Unit:
    """The declarations of a file and of the project's files that it includes, its own first."""

    files: list[File]

    @cached_property
    def functions(self) -> list[Function]:
        """The functions, with types and numbers in place of names."""
        aliases = {name: type for file in self.files for name, type in file.aliases.items()}

        def meant(function: Function) -> Function:
            params = (_without(aliases, function, param) for param in function.params)
            if function.is_kernel:
                params = (p._replace(attributes=self._numbers(p.attributes)) for p in params)
            attributes = self._numbers(function.attributes)
            return function._replace(params=tuple(params), attributes=attributes)

        functions = [function for file in self.files for function in file.functions]
        return [meant(f) if aliases or f.is_kernel else f for f in functions]

    def _numbers(self, given: Mapping[str, Attribute]) -> Mapping[str, Attribute]:
        """Return attributes with the values of constants."""
        if not any(isinstance(value, str) for value in given.values()):
            return given
        found = {name: self.number(v) for name, v in given.items() if isinstance(v, str)}
        return {**given, **{name: number for name, number in found.items() if number is not None}}

    def number(self, text: str) -> int | None:
        """Return the value of an expression of constants and enumerators, if it is known."""
        return _number(text, self.constants)

    @cached_property
    def constants(self) -> Mapping[str, int]:
        """The constants and enumerators whose values are known."""
        found: dict[str, int] = {}
        for file in reversed(self.files):
            for listed, constant, value in _CONSTANT.findall(file.source.text):
                last: int | None = -1
                for one in (listed or f"{constant} = {value}").split(","):
                    name, _, given = map(str.strip, one.partition("="))
                    following = None if last is None else last + 1
                    last = _number(given, found) if given else following
                    if last is not None:
                        found[name] = last
        return found


def _number(text: str, known: Mapping[str, int]) -> int | None:
    text = _NAMED.sub(lambda match: str(known.get(match[1], match[0])), text)
    return calculated(re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text))


class Reader(Preprocessor):
    """Parses the files of one language, each once.

    Args:
        folders: search path of includes, after the folder of the file.
        metal: the files are Metal.
        unread: prefixes of includes that are skipped.
    """

    def __init__(
        self, folders: Sequence[str], *, metal: bool = False, unread: tuple[str, ...] = ()
    ) -> None:
        super().__init__(folders, METAL if metal else CPP, unread, inherits=metal)
        # Returns the declarations of a preprocessed file; raises ``SourceError``.
        self.declared = cache(lambda source: _Walk(source, metal).file)

    def file(self, path: str) -> File:
        """Return the declarations of a file; raises ``SourceError``."""
        return self.declared(self.read(path))

    def unit(self, path: str) -> Unit:
        """Return the declarations of a file and its includes; raises ``SourceError``."""
        return Unit([self.declared(source) for source in self.closure(path)])


def _without(aliases: Mapping[str, Param], function: Function, param: Param) -> Param:
    """Return a parameter with the type that the name of its type stands for."""
    for _ in range(9):  # aliases of aliases
        name = param.base.rsplit("::", 1)[-1]
        if name in function.template or (type := aliases.get(name)) is None:
            break
        if type.pointer or type.reference:
            if param.pointer or param.reference:
                break  # a pointer to a pointer
            param = param._replace(pointer=type.pointer, reference=type.reference, const=type.const)
        param = param._replace(base=type.base, space=param.space or type.space)
    return param


def find_function(functions: Iterable[Function], name: str) -> list[Function]:
    """Return the functions called ``name``, which may omit outer namespaces (``cpu::axpby``).

    A member function is found only with its class (``Axpby::vjp``). A leading ``::`` means the
    global namespace.
    """
    parts = name.replace(" ", "").split("::")

    def meant(function: Function) -> bool:
        members = len(function.class_name.split("::")) if function.class_name else 0
        own = ["", *function.qualified_name.split("::")]
        return own[-len(parts) :] == parts and len(parts) > members

    return list(filter(meant, functions))


@cache
def normalised(text: str) -> str:
    """Normalize the spelling of a type or an expression: "vec<T, 4>" for "vec < T,4>"."""
    out = ""
    for word in _TOKEN.findall(_NO_TYPE.sub(" ", text)):
        apart = r"[\w>*&]$" if word in ("const", "auto") else r"\w$"
        if re.match(r"\w", word) and re.search(apart, out):
            out += " "
        out += ", " if word == "," else word
    return re.sub(r"^::", "", out)


def _declared(text: str) -> tuple[bool, str]:
    """Return whether a type without its `*` and `&` is const, and the type without const."""
    text = normalised(text)
    plain = text.removeprefix("const ").removesuffix(" const")
    return plain != text, plain


class _Walk:
    """A traversal of a file's syntax tree, down to the declarations of functions."""

    def __init__(self, source: SourceText, metal: bool) -> None:
        self.source = source
        self.metal = metal
        self.known: dict[str, tuple[Param, int, int]] = {}  # parameters by source text
        self.text = source.text
        blanked = _BLANKED_METAL if metal else _BLANKED_CPP
        plain = blanked.sub(lambda m: " " * len(m[0]), self.text)
        if metal:  # without a semicolon, a macro's call looks like a part of what follows
            # An `else` may need the semicolon.
            macros = source.macros
            plain = LINE.sub(
                lambda m: m[0] if macros.get(m[1], m) else m[2].rjust(len(m[0])), plain
            )
        # Byte offsets of the syntax tree then equal character offsets.
        self.plain = re.sub(r"[^\x00-\x7f]", "_", plain)
        root = PARSER.parse(self.plain.encode()).root_node
        self.file = File(source, root)
        self.scope(root, (), ())
        if root.has_error:
            source.check_brackets()
            error = root
            while inner := next((c for c in error.children if c.has_error or c.is_missing), None):
                error = inner
            self.file.unread = source.span(error.start_byte, max(error.end_byte, 1))

    def scope(self, node: Node, namespace: Names, template: Sequence[Node], depth: int = 0) -> None:
        """Read the declarations in a node."""
        if depth > _MAX_DEPTH:
            raise SourceError(MESSAGES("deep_source"), self.span(node))
        for child in node.named_children:
            call = _CALL.match(self.plain, child.start_byte)
            if call and self.source.macros.get(call[1], call) is None:
                continue  # a macro
            match child.type:
                case "function_definition" | "declaration":
                    for declarator in child.children_by_field_name("declarator"):
                        self.declaration(child, declarator, namespace, template)
                case "template_declaration":
                    params = child.child_by_field_name("parameters")
                    inner = params.named_children if params else ()
                    self.scope(child, namespace, inner, depth + 1)
                case "namespace_definition":
                    body = child.child_by_field_name("body") or child
                    head = self.plain[child.start_byte : body.start_byte]
                    names = re.findall(r"\w+", re.sub(r"\binline\b.*?(\w+)\s*(::|$)", "", head))
                    self.scope(child, (*namespace, *(names[1:] or [""])), (), depth + 1)
                case "template_instantiation":
                    instance = self.source.origin(child.start_byte, child.end_byte)
                    self.file.instances.append(instance)
                case "type_definition" | "alias_declaration":
                    self.alias(child)
                case "declaration_list" | "linkage_specification" | "ERROR":
                    self.scope(child, namespace, template, depth + 1)

    def alias(self, node: Node) -> None:
        """Store a name for a type."""
        type, stop = node.child_by_field_name("type"), node.end_byte - 1  # before the semicolon
        if type is None or type.child_by_field_name("body"):
            return  # the name of a class or an enum
        if node.type == "type_definition":
            param, _, _ = self.param(node, node.start_byte, stop)
            self.file.aliases[param.name] = param
        elif type.prev_sibling:  # using name = type;
            name = self.spelled(node.child_by_field_name("name"))
            self.file.aliases[name], _, _ = self.param(type, type.prev_sibling.end_byte, stop)

    def span(self, node: Node) -> Span:
        """Return the location of a node."""
        return self.source.span(node.start_byte, node.end_byte)

    def spelled(self, node: Node | None) -> str:
        """Return the normalized text of a node."""
        return normalised(self.plain[node.start_byte : node.end_byte]) if node else ""

    def path(self, node: Node | None) -> list[str]:
        """Return the components of a declared name."""
        names: list[str] = []
        while node is not None and node.type == "qualified_identifier":
            names.append(self.spelled(node.child_by_field_name("scope")).partition("<")[0])
            node = node.child_by_field_name("name")
        if node is not None and node.type == "template_function":
            node = node.child_by_field_name("name")
        return [*filter(None, names), self.spelled(node)]

    def declaration(
        self, node: Node, declarator: Node, namespace: Names, template: Sequence[Node]
    ) -> None:
        """Store a declaration if it is a function."""
        start = declarator.start_byte
        while declarator.type in ("pointer_declarator", "reference_declarator"):
            declarator = declarator.named_children[-1]
        name = declarator.child_by_field_name("declarator")
        listed = declarator.child_by_field_name("parameters")
        if name is None or listed is None or name.type == "parenthesized_declarator":
            return  # not a function, or a pointer to one
        *outer, last = self.path(name)
        classes = [part for part in outer if part not in self.source.namespaces]
        const, result = _declared(self.plain[node.start_byte : start])
        result = "const " * const + result + self.plain[start : declarator.start_byte]
        for child in declarator.named_children:
            if child.type == "trailing_return_type":
                if not result:
                    return  # a deduction guide
                result = self.plain[child.start_byte + 2 : child.end_byte]
        if node.parent and node.parent.type == "template_declaration" and not template:
            return  # a specialization, which calls of the template use
        named = [self.template_parameter(p) for p in template]
        before = node.prev_sibling
        body = node.child_by_field_name("body")
        outer_node = node.parent if template and node.parent else node
        head = self.plain[outer_node.start_byte : body.start_byte if body else node.end_byte]
        attributes = self.attributes(before.end_byte if before else 0, name.start_byte)
        function = Function(
            name=last,
            namespace="::".join(filter(None, (*namespace, *outer[: len(outer) - len(classes)]))),
            class_name="::".join(classes) or None,
            template=tuple(name for name, _, _ in named),
            template_defaults=tuple(default for _, default, _ in named),
            template_kinds=tuple(kind for _, _, kind in named),
            requires="".join(_REQUIRES.split(head, 1)[1:]),
            inline=bool(template or "" in namespace or _INLINE.search(head)),
            result=normalised(result),
            params=tuple(self.params(listed)),
            attributes=attributes,
            body=(body.start_byte, body.end_byte) if body else None,
            span=self.span(name),
        )
        self.file.functions.append(function)
        if len(self.file.functions) > _MAX_FUNCTIONS:
            raise SourceError(MESSAGES("many_functions", most=_MAX_FUNCTIONS), function.span)

    def attributes(self, start: int, stop: int) -> dict[str, Attribute]:
        """Return the attributes in a part of the text, including `kernel` without brackets."""
        text = self.text[start:stop]
        found: dict[str, Attribute] = {}
        for inside in re.findall(LISTED, text) if "[[" in text else ():
            for name, given in _ATTRIBUTE.findall(inside):
                found[name] = int(given) if given.isdecimal() else given or None
        if self.metal and "kernel" in re.findall(r"\w+", re.sub(LISTED, "", text)):
            found["kernel"] = None
        return found

    def template_parameter(self, node: Node) -> tuple[str, str | None, str]:
        """Return the name, the default and the kind of a template parameter."""
        text, _, default = self.plain[node.start_byte : node.end_byte].partition("=")
        words = _TOKEN.findall(text)
        name = words[-1] if len(words) > 1 and words[-1].isidentifier() else ""
        pack = "..." if name and words[-2] == "..." else ""
        kind = normalised(" ".join(words[: -1 if name else None]))
        return name + pack, normalised(default) or None, kind

    def params(self, listed: Node) -> Iterable[Param]:
        """Yield the parameters between parentheses."""
        children = listed.children
        for i, node in enumerate(children[1:-1], 1):
            if node.type != ",":
                start, stop = children[i - 1].end_byte, children[i + 1].start_byte
                text = self.text[start:stop]
                if self.plain[start:stop].strip() == "void":
                    continue
                if text not in self.known:
                    self.known[text] = self.param(node, start, stop)
                param, begin, end = self.known[text]
                yield param._replace(span=self.source.span(start + begin, start + end))

    def param(self, node: Node, start: int, stop: int) -> tuple[Param, int, int]:
        """Parse the parameter in a slice of the text; also return its location in the slice."""
        declarator = name = node.child_by_field_name("declarator")
        while name is not None and name.type not in ("identifier", "type_identifier"):
            name = name.child_by_field_name("declarator") or next(
                (c for c in name.named_children if not c.type.startswith("type_q")), None
            )
        before = name.start_byte if name else stop
        assign = self.text.find("=", node.start_byte, stop)
        end = node.end_byte if assign < 0 else assign
        first = declarator.start_byte if declarator else end
        const, base = _declared(self.plain[node.start_byte : first])
        front = self.plain[first : name.start_byte if name else end]
        behind = self.plain[name.end_byte : end] if name else ""
        space = self.metal and _SPACE.search(re.sub(LISTED, "", self.text[start:before]))
        mark = "".join(c for c in front.partition("[")[0] if c in "*&")[-1:]
        words = [space[0] if space else "", "const" if const else "", base]
        attributes = self.attributes(start, stop)
        inside = self.text[start : stop if assign < 0 else assign]
        begin = len(inside) - len(inside.lstrip())
        param = Param(
            type=" ".join(filter(None, words)) + normalised(front + behind),
            name=self.spelled(name),
            base=base,
            space=space[0] if space else None,
            const=const,
            pointer=mark == "*" or (not mark and "[" in front + behind),
            reference=mark == "&",
            attributes=attributes,
            default=normalised(self.text[assign + 1 : stop]) if assign > 0 else None,
            span=self.span(node),
        )
        return param, begin, begin + len(inside.strip())
