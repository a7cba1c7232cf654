"""One operator, spelled: the pieces of C++, Metal and Python that templates insert.

A template loops and inserts; whatever depends on more than one fact of an operator is a property of
``View``. C++ comes out as clang-format would leave it (MLX's style, 80 columns).
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..formula.compile import Expr
from ..model.dtypes import CPP_TYPES, METAL_TYPES
from ..model.kinds import BY_VALUE, KINDS
from ..model.op import Binding, Grad, GradKind, Kernel, Op, Parameter
from ..model.signature import Kind
from ..read.keys import ArraySample
from ..read.settings import Settings
from ..read.sources import metal_stem

WIDTH = 80


# Control characters as octal escapes, the only ones that end.
_ESCAPES = {c: f"\\{c:03o}" for c in (*range(32), 127)}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t"}


def cpp_string(text: str) -> str:
    """A C++ string literal."""
    return f'"{text.translate(_ESCAPES)}"'


def cpp_call(head: str, args: Sequence[str], tail: str = ";", indent: int = 0) -> str:
    """``head(args)tail`` as clang-format breaks it: on one line, below the head, or one each."""
    pad = " " * indent
    line = f"{pad}{head}({', '.join(args)}){tail}"
    if len(line) <= WIDTH and "\n" not in line:
        return line
    below = f"{pad}    {', '.join(args)}){tail}"
    if len(below) <= WIDTH and "\n" not in below:
        return f"{pad}{head}(\n{below}"
    inner = f",\n{pad}    ".join(args)
    return f"{pad}{head}(\n{pad}    {inner}){tail}"


def cpp_declare(result: str, name: str, params: Sequence[str], tail: str, indent: int = 0) -> str:
    """A function's declaration or head, with MLX's way of breaking after the result type."""
    pad = " " * indent
    line = f"{pad}{result} {name}({', '.join(params)}){tail}"
    if len(line) <= WIDTH:
        return line
    folded = f"{pad}{name}({', '.join(params)}){tail}"
    if len(folded) <= WIDTH and len(params) > 2 and result != "auto":
        return f"{pad}{result}\n{folded}"
    inner = f",\n{pad}    ".join(params)
    return f"{pad}{result} {name}(\n{pad}    {inner}){tail}"


def cpp_comment(text: str) -> str:
    """A documentation comment, its paragraphs wrapped."""
    lines: list[str] = []
    for line in _joined(text.strip().replace("*/", "* /").splitlines()):
        lines += textwrap.wrap(line, WIDTH - 3, break_long_words=False) or [""]
    if len(lines) == 1 and len(lines[0]) + 7 <= WIDTH:
        return f"/** {lines[0]} */"
    body = "\n".join(f" * {line}".rstrip() for line in lines)
    return f"/**\n{body}\n */"


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Paragraphs as one line each; lists, code and whatever else is indented line by line."""
    plain = re.compile(r"(?!\d+[.)] )[A-Za-z0-9`\"'(\[]")
    for is_plain, group in itertools.groupby(lines, lambda line: plain.match(line) is not None):
        same = list(group)
        yield from [" ".join(same)] if is_plain else same


def line_comment(text: str, indent: int) -> str:
    """``//`` lines, wrapped, with the white space of formulas in YAML folded."""
    lead = " " * indent + "// "
    text = " ".join(text.split())
    if len(lead) + len(text) <= WIDTH:
        return (lead + text).rstrip()
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=lead,
        subsequent_indent=lead,
        break_long_words=False,
        break_on_hyphens=False,
    )


def braces(items: Iterable[str]) -> str:
    """A braced list."""
    return "{" + ", ".join(items) + "}"


def raw_string(text: str, mark: str) -> str:
    """A raw C++ string literal; ``mark`` must not occur in the text."""
    while f"){mark}" in text:
        mark += "_"
    return f'R"{mark}({text}){mark}"'


class View:
    """One operator, spelled."""

    def __init__(self, op: Op, settings: Settings) -> None:
        self.op = op
        self.settings = settings
        self.ns = settings.namespace
        # What templates read most, without a way through the op's properties.
        self.arrays = op.arrays
        self.attributes = op.attributes
        for name in op.__slots__:
            setattr(self, name, getattr(op, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.op, name)

    # Names

    @property
    def origin(self) -> str:
        """Where the entry stands."""
        return Path(self.op.file).name

    @cached_property
    def cpu(self) -> Kernel | None:
        """The CPU kernel."""
        return self.op.kernel("cpu")

    @cached_property
    def metal(self) -> Kernel | None:
        """The Metal kernel."""
        return self.op.kernel("metal")

    @property
    def result(self) -> str:
        """C++ return type."""
        return "mx::array" if self.op.single else "std::vector<mx::array>"

    # C++ signatures

    def parameters(self, defaults: bool) -> list[str]:
        """The op function's parameters."""
        out = []
        trailing = True
        declared: list[str] = []
        for p in reversed(self.op.params):
            default = p.arg.default
            if default is None:
                trailing = False
            text = f"{p.type.cpp_param} {p.cpp}"
            if defaults and trailing and default is not None:
                text += f" = {default.cpp}"
            declared.append(text)
        out = list(reversed(declared))
        out.append("mx::StreamOrDevice s = {}" if defaults else "mx::StreamOrDevice s")
        return out

    @property
    def declaration(self) -> str:
        """The op function's declaration."""
        api = f"{self.settings.name.upper()}_API "
        deprecated = ""
        if self.op.entry.deprecated:
            deprecated = f"[[deprecated({cpp_string(self.op.entry.deprecated)})]]\n"
        return deprecated + cpp_declare(api + self.result, self.op.name, self.parameters(True), ";")

    @property
    def definition(self) -> str:
        """The head of the op function's definition."""
        return cpp_declare(self.result, self.op.name, self.parameters(False), " {")

    @property
    def composite_definition(self) -> str:
        """The head of the reference composition's definition."""
        return cpp_declare(self.result, f"{self.op.name}_composite", self.parameters(False), " {")

    @property
    def composite_name(self) -> str:
        """The function that holds the composition."""
        return f"{self.op.name}_composite"

    @property
    def forward_comment(self) -> str:
        """The composite's formula, as comment lines."""
        return line_comment(self.op.forward_text, 0)

    @property
    def forward_return(self) -> str:
        """The statement that returns the composition."""
        assert self.op.forward is not None
        return "  return " + self.op.forward.cpp + ";"

    @property
    def doc_comment(self) -> str:
        """The documentation above the declaration."""
        doc = (self.op.entry.doc or f"{self.op.name}.").strip()
        return cpp_comment(doc)

    # The primitive

    @property
    def constructor(self) -> str:
        """The primitive's constructor."""
        params = ["mx::Stream stream"]
        inits = ["mx::Primitive(stream)"]
        for name, type in self.state:
            passed = type if type in BY_VALUE else f"const {type}&"
            params.append(f"{passed} {name[:-1]}")
            inits.append(f"{name}({name[:-1]})")
        head = cpp_declare("explicit", self.op.class_name, params, "", 2)
        line = f"{head} : {', '.join(inits)} {{}}"
        if len(line) <= WIDTH and "\n" not in head:
            return line
        below = f"      : {', '.join(inits)} {{}}"
        if len(below) > WIDTH:
            below = "      : " + ",\n        ".join(inits) + " {}"
        return f"{head}\n{below}"

    @cached_property
    def state(self) -> list[tuple[str, str]]:
        """Members: the attributes, and which inputs are there."""
        members = [(p.member, p.type.cpp) for p in self.attributes]
        for p in self.arrays:
            if p.present:
                members.append((p.present, "bool"))
            elif p.is_list:
                members.append((f"{p.cpp}_size_", "int"))
        return members

    @property
    def equivalent(self) -> list[str]:
        """Comparisons of is_equivalent."""
        return [f"{name} == op.{name}" for name, _ in self.state]

    @property
    def simple(self) -> bool:
        """Whether the inputs are plain arrays, one per argument."""
        return not any(p.present or p.is_list for p in self.arrays)

    def unpack(self, source: str, uses: Iterable[str] | None = None, indent: int = 2) -> str:
        """Locals for the arguments among a primitive's inputs; ``uses``: those that are needed."""
        wanted = None if uses is None else set(uses)
        pad = " " * indent
        lines = []
        if self.simple:
            for p in self.arrays:
                if wanted is None or p.name in wanted:
                    lines.append(f"{pad}const auto& {p.cpp} = {source}[{p.position}];")
            return "\n".join(lines) + ("\n" if lines else "")
        needed = [p for p in self.arrays if wanted is None or p.name in wanted]
        if not needed:
            return ""
        lines.append(f"{pad}mlxgen::Unpack next({source});")
        for p in self.arrays[: self.arrays.index(needed[-1]) + 1]:
            unused = "" if p in needed else "[[maybe_unused]] "
            if p.is_list:
                lines.append(f"{pad}{unused}auto {p.cpp} = next.many({p.cpp}_size_);")
            elif p.present:
                lines.append(f"{pad}{unused}auto {p.cpp} = next.optional({p.present});")
            else:
                lines.append(f"{pad}{unused}const auto& {p.cpp} = next.one();")
        return "\n".join(lines) + "\n"

    def call(self, function: str, stream: str, indent: int, prefix: str, tail: str) -> str:
        """A call of a function with the op's parameters, from inside the primitive."""
        args = [p.cpp if p.type.is_array else p.member for p in self.op.params] + [stream]
        if function == self.op.name:  # MLX may have one of that name as well
            function = f"{self.ns}::{function}"
        return cpp_call(prefix + function, args, tail, indent)

    @property
    def apply_body(self) -> str:
        """The op on other inputs, with this primitive's attributes."""
        out = self.unpack("inputs")
        if self.op.single:
            return out + self.call(self.op.name, "stream()", 2, "return {", "};")
        return out + self.call(self.op.name, "stream()", 2, "return ", ";")

    @property
    def composite_body(self) -> str:
        """The reference composition on a primitive's inputs."""
        out = self.unpack("inputs")
        if self.op.single:
            return out + self.call(self.composite_name, "stream()", 2, "return {", "};")
        return out + self.call(self.composite_name, "stream()", 2, "return ", ";")

    @cached_property
    def needs_apply(self) -> bool:
        """Whether vmap or jvp call the op again."""
        return (
            self.op.vmap in ("elementwise", "batch", "sequential")
            or self.op.jvp in ("linear", "vjp")
            or (self.op.jvp in ("elementwise", "formula") and self.jvp_uses_result)
        )

    # The op function with kernels

    @property
    def own_transforms(self) -> bool:
        """Whether the entry declares transforms that are not those of its composite."""
        derived = self.op.jvp == "composite" and self.op.vmap not in ("manual", "none")
        return not (self.all_composite and derived)

    @property
    def named_arrays(self) -> str:
        """Arguments with their names, for messages."""
        items = [f'{{"{p.name}", {p.cpp}}}' for p in self.arrays if not p.is_list]
        return braces(items)

    @property
    def construct(self) -> str:
        """The statement that makes the primitive, with its attributes."""
        args = ["stream"]
        for p in self.attributes:
            args.append(p.cpp)
        for p in self.arrays:
            if p.present:
                args.append(f"{p.cpp}.has_value()")
            elif p.is_list:
                args.append(f"static_cast<int>({p.cpp}.size())")
        return _assign("auto primitive", f"std::make_shared<{self.op.class_name}>", args, 2)

    @property
    def result_return(self) -> str:
        """The statement that returns the outputs."""
        n = len(self.op.outputs)
        if self.op.single:
            shape = "std::move(shape)" if self.op.elementwise else "shapes[0]"
            args = [shape, self.dtypes_list, "std::move(primitive)", "std::move(inputs)"]
            return cpp_call("return mx::array", args, ";", 2)
        shapes = braces(["shape"] * n) if self.op.elementwise else "std::move(shapes)"
        args = [shapes, braces(self.dtypes_list.split(", ")), "primitive", "inputs"]
        return cpp_call("return mx::array::make_arrays", args, ";", 2)

    @property
    def include_lines(self) -> list[str]:
        """Headers of the source file, sorted."""
        found = {"mlxgen/formula.h", "mlxgen/op.h", *self.op.includes}
        found |= {f"{self.settings.name}/{callee}.h" for callee in self.op.calls}
        if self.cpu is not None:
            found |= {"mlxgen/cpu.h", self.cpu.include}
        return sorted(found)

    def member_head(self, result: str, name: str, params: Sequence[str], tail: str) -> str:
        """Head of a member function's definition."""
        return cpp_declare(result, f"{self.op.class_name}::{name}", params, tail)

    @property
    def equivalent_head(self) -> str:
        """Head of is_equivalent."""
        unused = "" if self.state else "[[maybe_unused]] "
        return self.member_head(
            "bool", "is_equivalent", [f"{unused}const mx::Primitive& other"], " const {"
        )

    @property
    def equivalent_return(self) -> str:
        """Its result."""
        if not self.state:
            return "  return true;"
        line = f"  return {' && '.join(self.equivalent)};"
        if len(line) <= WIDTH:
            return line
        lines = ["  return"]
        for i, item in enumerate(self.equivalent):
            last = i == len(self.equivalent) - 1
            piece = item + (";" if last else " &&")
            if len(lines[-1]) + 1 + len(piece) > WIDTH:
                lines.append("     ")
            lines[-1] += f" {piece}"
        return "\n".join(lines)

    @property
    def elementwise_inputs(self) -> str:
        """The prologue of an elementwise op."""
        names = braces(f'"{p.name}"' for p in self.arrays)
        values = braces(p.cpp for p in self.arrays)
        args = [f'"{self.op.python_name}"', "kDtypes", names, values, "stream"]
        return _assign("auto inputs", "mlxgen::elementwise_inputs", args, 2)

    @property
    def group_named(self) -> str:
        """The arguments promoted together, with their names."""
        rule = self.op.rules[0]
        lists = [p for p in rule.params if p.is_list]
        if lists:
            return f'mlxgen::named("{lists[0].name}", {lists[0].cpp})'
        return braces(f'{{"{p.name}", {p.cpp}}}' for p in rule.params)

    @property
    def has_group(self) -> bool:
        """Whether some arguments are promoted together."""
        return bool(self.op.rules) and self.op.rules[0].name == "kDtypes"

    @property
    def dtype_statement(self) -> str:
        """The dtype in which the kernel computes."""
        if not self.has_group:
            return f"  auto dtype = mx::{self.arrays[0].dtype};"
        args = [f'"{self.op.python_name}"', self.group_named]
        return _assign("auto dtype", "kDtypes.resolve", args, 2)

    def push_input(self, p: Parameter) -> str:
        """Statements that add one argument to the primitive's inputs."""
        out = ""
        dtype = "dtype"
        if p.dtype is not None:
            dtype = f"{p.cpp}_dtype"
            named = f'{{{{"{p.name}", {p.cpp}}}}}'
            if p.is_list:
                named = f'mlxgen::named("{p.name}", {p.cpp})'
            args = [f'"{self.op.python_name}"', named]
            out = _assign(f"auto {dtype}", f"{p.rule}.resolve", args, 2) + "\n"
        tail = f"{dtype}, stream, has_kernel" if self.forward else f"{dtype}, stream"
        if p.is_list:
            push = f"    inputs.push_back(mlxgen::ready(item, {tail}));"
            return f"{out}  for (const auto& item : {p.cpp}) {{\n{push}\n  }}"
        value = f"mlxgen::ready({'*' if p.present else ''}{p.cpp}, {tail})"
        if p.present:
            push = cpp_call("inputs.push_back", [value], ";", 4)
            return f"{out}  if ({p.cpp}) {{\n{push}\n  }}"
        return out + cpp_call("inputs.push_back", [value], ";", 2)

    @property
    def rule_params(self) -> list[Parameter]:
        """What the shape function needs: the arguments that its formulas name."""
        used = {n for rule in self.op.shapes for n in rule.expr.names}
        return [p for p in self.op.params if p.name in used]

    @property
    def shape_definition(self) -> str:
        """The head of the shape function."""
        params = [f"{p.type.cpp_param} {p.cpp}" for p in self.rule_params]
        return cpp_declare("std::vector<mx::Shape>", f"{self.op.name}_shapes", params, " {")

    @property
    def shape_return(self) -> str:
        """Its result."""
        return "  return {" + ", ".join(rule.expr.cpp for rule in self.op.shapes) + "};"

    def shape_statement(self, member: bool) -> str:
        """The shapes, for the operation or as the member function's result."""
        values = [p.member if member and not p.type.is_array else p.cpp for p in self.rule_params]
        names = braces(cpp_string(p.name) for p in self.rule_params)
        rule = f"{self.op.name}_shapes"
        args = [cpp_string(self.op.python_name), rule, names, *values]
        if member:
            return cpp_call("return mlxgen::shapes_of", args, ";", 2)
        return _assign("auto shapes", "mlxgen::shapes_of", args, 2)

    @property
    def dtypes_list(self) -> str:
        """The outputs' dtypes."""
        items = []
        for i, _ in enumerate(self.op.outputs):
            rule = self.op.out_dtypes[i] if self.op.out_dtypes else None
            items.append(rule.expr.cpp if rule else "dtype")
        return ", ".join(items)

    def check_statement(self, index: int) -> str:
        """One condition on the arguments; the message shows those that it names."""
        check = self.op.checks[index]
        shown = [
            f'{{"{p.name}", mlxgen::show({p.cpp})}}'
            for p in self.op.params
            if p.name in check.expr.names
        ]
        args = [f'"{self.op.python_name}"', cpp_string(check.message)]
        values = "std::vector<mlxgen::Shown>"
        fail = cpp_call("mlxgen::fail", [*args, values + braces(shown)], ";", 4)
        if max(map(len, fail.splitlines())) > WIDTH:
            inner = " " * 12 + ", ".join(shown) + "});"
            if len(inner) > WIDTH:
                inner = ",\n".join(" " * 12 + item for item in shown) + "});"
            fail = f"    mlxgen::fail(\n        {args[0]},\n        {args[1]},\n"
            fail += f"        {values}{{\n{inner}"
        condition = check.expr.cpp
        if len(condition) + 9 > WIDTH:
            local = _local(f"bool valid{index}", check.expr)
            return f"{local}\n  if (!valid{index}) {{\n{fail}\n  }}"
        return f"  if (!({condition})) {{\n{fail}\n  }}"

    @property
    def enums(self) -> list[Parameter]:
        """String enumerations, whose values are checked when the graph is built."""
        return [p for p in self.attributes if p.type.kind is Kind.ENUM]

    @property
    def length_checks(self) -> list[str]:
        """Statements that check lists of a fixed number of integers, such as torch's int[2]."""
        out = []
        for p in self.attributes:
            if p.type.length is None:
                continue
            value = f"(*{p.cpp})" if p.type.optional else p.cpp
            given = f"{p.cpp} && " if p.type.optional else ""
            message = f"{p.name} must hold {p.type.length} integers."
            shown = f'std::vector<mlxgen::Shown>{{{{"{p.name}", mlxgen::show({p.cpp})}}}}'
            args = [f'"{self.op.python_name}"', cpp_string(message), shown]
            fail = cpp_call("mlxgen::fail", args, ";", 4)
            out.append(f"  if ({given}{value}.size() != {p.type.length}) {{\n{fail}\n  }}")
        return out

    def choice_check(self, p: Parameter) -> str:
        """The statement that checks one."""
        if p.type.optional:
            inner = cpp_call("mlxgen::choice", self._choice_args(p, f"*{p.cpp}"), ";", 4)
            return f"  if ({p.cpp}) {{\n{inner}\n  }}"
        return cpp_call("mlxgen::choice", self._choice_args(p, p.cpp), ";", 2)

    def _choice_args(self, p: Parameter, value: str) -> list[str]:
        choices = braces(cpp_string(c) for c in p.type.choices)
        return [f'"{self.op.python_name}"', f'"{p.name}"', value, choices]

    # Dtypes and dispatch

    def dtype_rules(self) -> list[str]:
        """Definitions of the dtype rules."""
        out = []
        for rule in self.op.rules:
            dtypes = braces(f"mx::{d}" for d in rule.dtypes)
            integers = f"mlxgen::Integers::{rule.integers}"
            line = f"const mlxgen::DtypeRule {rule.name}{{{dtypes}, {integers}}};"
            if len(line) > WIDTH:
                line = (
                    f"const mlxgen::DtypeRule {rule.name}{{\n    "
                    + _fill(dtypes, 4)
                    + f",\n    mlxgen::Integers::{rule.integers}}};"
                )
            out.append(line)
        return out

    def row(self, kernel: Kernel) -> str:
        """One row of the dispatch table."""
        run = f"run_{kernel.backend}"
        dtypes = braces(f"mx::{d}" for d in kernel.dtypes)
        return (
            f"        {{mlxgen::Backend::{kernel.backend},\n"
            f'         "{kernel.name}",\n'
            f"         {_fill(dtypes, 9)},\n"
            f"         &mlxgen::Launch<&{self.op.class_name}::{run}>::run}},"
        )

    # CPU kernels

    def cpp_types(self, kernel: Kernel) -> str:
        """Types<...> of a kernel's dtypes."""
        types = [CPP_TYPES[d] for d in kernel.dtypes]
        line = f"mlxgen::Types<{', '.join(types)}>{{}}"
        if len(line) + 7 <= WIDTH:
            return line
        return "mlxgen::Types<\n          " + ",\n          ".join(types) + ">{}"

    @property
    def loop_params(self) -> list[str]:
        """Parameters of the loop over an elementwise kernel."""
        out = [f"const T* {p.cpp}" for p in self.arrays]
        out += [f"T* {name}" for name in self.out_names]
        out.append("int64_t count")
        for p in self.attributes:
            out.append(f"{KINDS[p.type.kind].scalars[0]} {p.cpp}")
        return out

    @property
    def out_names(self) -> list[str]:
        """Names of the outputs' pointers in loops."""
        if len(self.op.outputs) == 1:
            return ["to"]
        return [f"to_{o.name}" for o in self.op.outputs]

    @property
    def loop_head(self) -> str:
        """Head of the loop function."""
        return cpp_declare(
            "MLXGEN_MULTIVERSION void", f"{self.op.name}_loop", self.loop_params, " {"
        )

    @property
    def loop_statement(self) -> str:
        """Its body: one element."""
        assert self.cpu is not None
        args = [f"{p.cpp}[k]" if p.type.is_array else p.cpp for p in self.op.params]
        function = self.cpu.function + ("<T, positive>" if self.cpu.by_sign else "")
        if self.cpu.by_reference:
            args += [f"{name}[k]" for name in self.out_names]
            return cpp_call(function, args, ";", 4)
        return _assign("to[k]", function, args, 4)

    @property
    def loop_lambda(self) -> str:
        """Head of the lambda that elementwise() runs."""
        params = ["const auto& in", "const auto& out", "int64_t count"]
        if self.cpu is not None and self.cpu.by_sign:
            params.append("auto positive")
        captures = "[" + ", ".join(self.captures(False)) + "]"
        return cpp_call(captures, params, " {", 6)

    @property
    def loop_call(self) -> str:
        """The call of the loop from the lambda that elementwise() runs."""
        args = [f"in[{i}]" for i in range(len(self.arrays))]
        args += [f"out[{i}]" for i in range(len(self.op.outputs))]
        args.append("count")
        for p in self.attributes:
            args.append(f"static_cast<T>({p.cpp})" if p.type.kind is Kind.FLOAT else p.cpp)
        assert self.cpu is not None
        types = "T, positive()" if self.cpu.by_sign else "T"
        return cpp_call(f"{self.op.name}_loop<{types}>", args, ";", 8)

    def captures(self, views: bool) -> list[str]:
        """Captures of the lambda that runs a CPU kernel."""
        out = []
        for p in self.op.params:
            if not p.type.is_array:
                if p.type.kind is Kind.ENUM:
                    out.append(p.cpp)
                else:
                    out.append(f"{p.cpp} = {p.member}")
            elif views:
                element = CPP_TYPES[p.dtype] if p.dtype else "T"
                function = (
                    f"mlxgen::list_in<{element}>"
                    if p.is_list
                    else f"mlxgen::optional_in<{element}>"
                    if p.present
                    else f"mlxgen::In<{element}>"
                )
                out.append(f"{p.cpp} = {function}({p.cpp})")
        if views:
            assert self.cpu is not None
            for i, (output, element) in enumerate(
                zip(self.op.outputs, self.cpu.elements, strict=True)
            ):
                spelled = {"T": "T"}.get(element) or _qualified(element)
                out.append(f"{self.view_out(output.name)} = mlxgen::Out<{spelled}>(outputs[{i}])")
        return out

    def view_out(self, name: str) -> str:
        """Name of an output's view in a lambda."""
        return "out" if len(self.op.outputs) == 1 else f"to_{name}"

    @property
    def task_head(self) -> str:
        """Head of the lambda that runs a kernel over views."""
        items = self.captures(True)
        line = f"        auto task = [{', '.join(items)}] {{"
        if len(line) <= WIDTH:
            return line
        wrapped = []
        for item in items:
            if len(item) + 24 > WIDTH:
                target, _, value = item.partition(" = ")
                item = f"{target} =\n{' ' * 25}{value}"
            wrapped.append(item)
        inner = (",\n" + " " * 21).join(wrapped)
        return f"        auto task = [{inner}] {{"

    @property
    def choice_locals(self) -> list[str]:
        """Locals with the indices of enumerated strings, for kernels."""
        return [
            _assign(f"auto {p.cpp}", "mlxgen::choice", self._choice_args(p, p.member), 2)
            for p in self.enums
        ]

    @property
    def kernel_call(self) -> str:
        """The call of a kernel over views."""
        assert self.cpu is not None
        args = [p.cpp for p in self.op.params]
        args += [self.view_out(o.name) for o in self.op.outputs]
        suffix = "<T>" if self.cpu.templated else ""
        return cpp_call(self.cpu.function + suffix, args, ";", 10)

    @property
    def tag_source(self) -> str:
        """An input whose dtype is the kernel's type parameter."""
        if not self.has_group:
            return "inputs[0]"
        p = next((q for q in self.op.rules[0].params if not q.present), self.op.rules[0].params[0])
        return f"inputs[{p.position}]"

    # Metal kernels

    def metal_source_name(self) -> str:
        """The constant that holds the .metal file's text."""
        assert self.metal is not None
        return f"metal_{metal_stem(self.metal.include)}"

    @property
    def metal_include(self) -> str:
        """The generated header with the .metal file's text."""
        assert self.metal is not None
        return f"{metal_stem(self.metal.include)}_metal.h"

    @cached_property
    def metal_wrapper(self) -> str:
        """Generated [[kernel]]s around a scalar Metal function."""
        assert self.metal is not None
        arrays, attributes = self.arrays, self.attributes
        outs = self.out_names
        lines = []
        for variant in ("dense", "strided"):
            params = [f"device const T* {p.cpp} [[buffer({i})]]" for i, p in enumerate(arrays)]
            n = len(arrays)
            params += [f"device T* {name} [[buffer({n + i})]]" for i, name in enumerate(outs)]
            n += len(outs)
            params.append(f"constant int64_t& count [[buffer({n})]]")
            n += 1
            for p in attributes:
                params.append(f"constant {KINDS[p.type.kind].metal_type}& {p.cpp} [[buffer({n})]]")
                n += 1
            if variant == "strided":
                params.append(f"constant const int* shape [[buffer({n})]]")
                params.append(f"constant int& ndim [[buffer({n + 1})]]")
                n += 2
                for p in arrays:
                    params.append(f"constant const int64_t* strides_{p.cpp} [[buffer({n})]]")
                    n += 1
            params += [
                "uint2 thread_index [[thread_position_in_grid]]",
                "uint2 thread_grid [[threads_per_grid]]",
            ]
            lines.append("template <typename T>")
            lines.append(f"[[kernel]] void {self.op.name}_{variant}(")
            lines.append("    " + ",\n    ".join(params) + ") {")
            lines.append("  using C = typename mlxgen::Compute<T>::type;")
            lines.append("  int64_t k = thread_index.x + int64_t(thread_grid.x) * thread_index.y;")
            lines.append("  if (k >= count) {")
            lines.append("    return;")
            lines.append("  }")
            values = []
            for p in self.op.params:
                if not p.type.is_array:
                    values.append(f"C({p.cpp})" if p.type.kind is Kind.FLOAT else p.cpp)
                elif variant == "dense":
                    values.append(f"C({p.cpp}[k])")
                else:
                    values.append(f"C({p.cpp}[mlxgen::offset_of(k, shape, strides_{p.cpp}, ndim)])")
            call = self.metal.function + ("<C>" if self.metal.templated else "")
            if self.metal.by_reference:
                for name in outs:
                    lines.append(f"  C value_{name};")
                values += [f"value_{name}" for name in outs]
                lines.append(cpp_call(call, values, ";", 2))
                lines += [f"  {name}[k] = T(value_{name});" for name in outs]
            else:
                inner = cpp_call(call, values, "", 2).lstrip()
                lines.append(f"  to[k] = T({inner});")
            lines.append("}")
            lines.append("")
            for dtype in self.metal.dtypes:
                metal = METAL_TYPES[dtype][0].replace("bfloat16_t", "bfloat")
                name = f"{self.op.name}_{variant}"
                lines.append(f'template [[host_name("{name}_{dtype}")]] [[kernel]]')
                lines.append(f"decltype({name}<{metal}>) {name}<{metal}>;")
            lines.append("")
        return "\n".join(lines)

    @property
    def metal_bindings(self) -> list[str]:
        """Encoder calls of the launch."""
        assert self.metal is not None
        if not self.metal.scalar:
            return ["  " + _binding_call(b) for b in self.metal.bindings]
        out = []
        n = len(self.arrays)
        out += [f"  encoder.set_input_array(inputs[{i}], {i});" for i in range(n)]
        for i, _ in enumerate(self.op.outputs):
            out.append(f"  encoder.set_output_array(outputs[{i}], {n});")
            n += 1
        out.append(f"  encoder.set_bytes(static_cast<int64_t>(outputs[0].size()), {n});")
        n += 1
        for p in self.attributes:
            ctype = KINDS[p.type.kind].metal_type
            value = p.cpp if p.type.kind is Kind.ENUM else p.member
            out.append(
                cpp_call("encoder.set_bytes", [f"static_cast<{ctype}>({value})", str(n)], ";", 2)
            )
            n += 1
        out.append("  if (!dense) {")
        out.append(f"    mlxgen::metal::set_vector(encoder, inputs[0].shape(), {n});")
        out.append(f"    encoder.set_bytes(static_cast<int>(inputs[0].ndim()), {n + 1});")
        n += 2
        for i, _ in enumerate(self.arrays):
            out.append(f"    mlxgen::metal::set_vector(encoder, inputs[{i}].strides(), {n});")
            n += 1
        out.append("  }")
        return out

    @property
    def metal_uses(self) -> list[str]:
        """Arguments that a hand-written kernel's launch needs as locals."""
        assert self.metal is not None
        text = "\n".join(b.value for b in self.metal.bindings)
        return [
            p.name
            for p in self.arrays
            if p.name in self.metal.uses or re.search(rf"\b{re.escape(p.cpp)}\b", text)
        ]

    @property
    def metal_name(self) -> str:
        """The statement that spells the kernel's host name."""
        assert self.metal is not None
        if self.metal.scalar:
            name = self.op.name
            start, choice = "  std::string name =", f'dense ? "{name}_dense_" : "{name}_strided_";'
            between = " " if len(start) + 1 + len(choice) <= WIDTH else "\n      "
            return (
                f"{start}{between}{choice}\n  name += mlxgen::metal::type_name(inputs[0].dtype());"
            )
        if not self.metal.templated:
            return f'  std::string name = "{self.metal.function}";'
        return (
            f'  std::string name = "{self.metal.function}_";\n'
            f"  name += mlxgen::metal::type_name({self.tag_source}.dtype());"
        )

    @property
    def metal_pipeline(self) -> str:
        """The statements that get the pipeline."""
        assert self.metal is not None
        text = self.metal_source_name()
        sources = [f'"{self.settings.name}.{self.op.name}"', text]
        sources += ["kKernels"] if self.metal.scalar else []
        library = cpp_call("static const mlxgen::metal::Library library", sources, ";", 2)
        return f"{library}\n  auto pipeline = library.pipeline(stream(), name);"

    @property
    def metal_geometry(self) -> list[str]:
        """Statements with the constants, the grid and the threadgroup of a launch."""
        assert self.metal is not None
        out = []
        for name, expr in self.metal.constants:
            out.append(_local(f"int64_t const_{name}", expr))
        for part, exprs in (("grid", self.metal.grid), ("group", self.metal.threadgroup)):
            for axis, expr in zip("xyz", exprs, strict=False):
                out.append(_local(f"int64_t {part}_{axis}", expr))
        return out

    @property
    def metal_dispatch(self) -> str:
        """The launch."""
        assert self.metal is not None
        grid = [*(f"grid_{a}" for a, _ in zip("xyz", self.metal.grid, strict=False)), "1", "1"]
        group = [*(f"group_{a}" for a, _ in zip("xyz", self.metal.threadgroup, strict=False))]
        group = [*(group or ["0"]), "1", "1"]
        args = ["encoder", "pipeline", braces(grid[:3]), braces(group[:3])]
        return cpp_call("mlxgen::metal::dispatch", args, ";", 2)

    # Gradients

    @property
    def vjp_uses(self) -> list[str]:
        """Arguments that the gradient needs as locals."""
        used: set[str] = set()
        for grad in self.op.grads:
            if grad.kind is GradKind.FUNCTION:
                used |= {p.name for p in self.arrays}
            elif grad.expr is not None:
                used |= grad.expr.names
        return [p.name for p in self.arrays if p.name in used]

    @property
    def all_composite(self) -> bool:
        """Whether every gradient is the composite's."""
        return bool(self.op.grads) and all(g.kind is GradKind.COMPOSITE for g in self.op.grads)

    @property
    def joint_grads(self) -> list[tuple[str, Grad, str]]:
        """Name, gradient and defining statement of gradients computed together."""
        out = []
        joints = [g for g in self.op.grads if g.joint]
        for i, grad in enumerate(joints):
            name = "joint" if len(joints) == 1 else f"joint{i}"
            if grad.kind is GradKind.FUNCTION:
                args = [
                    p.cpp if p.type.is_array or not self.op.has_primitive else p.member
                    for p in self.op.params
                ]
                args += ["cotangents", "outputs", "s"]
                statement = _assign(f"auto {name}", grad.function, args, 2)
            else:
                assert grad.expr is not None
                statement = _local(f"auto {name}", grad.expr)
            out.append((name, grad, statement))
        return out

    def grad_branches(self, source: str = "primals") -> list[tuple[str, str, str]]:
        """(condition, comment, statements) for each argument of the vjp."""
        out = []
        joint_of = {
            p.name: (name, i)
            for name, grad, _ in self.joint_grads
            for i, p in enumerate(grad.params)
        }
        for grad in self.op.grads:
            for p in grad.params:
                condition = self._position_test(p)
                names = ", ".join(q.name for q in grad.params)
                comment = line_comment(f"{names}: {grad.text}", 6)
                out.append((condition, comment, self._grad_statement(grad, p, joint_of)))
        return out

    def _position_test(self, p: Parameter) -> str:
        if p.is_list:
            first = p.position
            lower = "" if first == "0" else f"arg >= {first} && "
            plus = f"{first} + " if first != "0" else ""
            return f"{lower}arg < {plus}{p.cpp}_size_"
        if p.present:
            return f"{p.present} && arg == {p.position}"
        return f"arg == {p.position}"

    def _grad_statement(
        self, grad: Grad, p: Parameter, joint_of: dict[str, tuple[str, int]]
    ) -> str:
        if grad.kind is GradKind.NONE and not self.op.own_gradient:
            return f'      mlxgen::not_differentiable("{self.op.python_name}", "{p.name}");'
        # With a gradient of its own a composite computes those of all arguments at once. There
        # NotDifferentiable, around the argument, says that this one has none.
        if grad.kind in (GradKind.NONE, GradKind.ZERO):
            return "      vjps.push_back(mx::zeros_like(primals[arg], s));"
        if grad.kind is GradKind.COMPOSITE:
            return (
                "      vjps.push_back(\n"
                "          mlxgen::composite_vjp(forward, primals, cotangents, {arg})[0]);"
            )
        if p.name in joint_of:
            name, i = joint_of[p.name]
            if p.is_list:
                index = "arg" if p.position == "0" else f"arg - ({p.position})"
            else:
                index = str(i)
            return f"      vjps.push_back(mx::astype({name}[{index}], primals[arg].dtype(), s));"
        assert grad.expr is not None
        return f"      vjps.push_back({grad.expr.cpp});"

    @property
    def jvp_uses(self) -> list[str]:
        """Arguments that jvp formulas need as locals."""
        used = {n for _, e in self.op.jvp_exprs for n in e.names}
        return [p.name for p in self.arrays if p.name in used]

    @property
    def jvp_uses_result(self) -> bool:
        """Whether jvp formulas need the outputs."""
        return any(n.startswith("result") for _, e in self.op.jvp_exprs for n in e.names)

    @property
    def jvp_branches(self) -> list[tuple[str, str]]:
        """(condition, statements) for each argument of the jvp."""
        out = []
        given = {p.name for p, _ in self.op.jvp_exprs}
        for p, expr in self.op.jvp_exprs:
            text = f"{{{expr.cpp}}}" if self.op.single else expr.cpp
            out.append((self._position_test(p), f"      term = {text};"))
        zeros = {p.name for g in self.op.grads if g.kind is GradKind.ZERO for p in g.params}
        for p in self.arrays:
            if p.name not in given and p.name not in zeros:
                out.append(
                    (
                        self._position_test(p),
                        f'      mlxgen::not_differentiable("{self.op.python_name}", "{p.name}");',
                    )
                )
        return out

    @property
    def output_shapes_head(self) -> str:
        """How the definition of output_shapes begins."""
        name = f"std::vector<mx::Shape> {self.op.class_name}::output_shapes("
        parameter = "const std::vector<mx::array>& inputs) {"
        between = "" if len(name + parameter) <= WIDTH else "\n    "
        return f"{name}{between}{parameter}"

    @property
    def same_shapes(self) -> str:
        """The shapes of an elementwise op's outputs: the first input's."""
        shapes = ["inputs[0].shape()"] * len(self.op.outputs)
        line = f"  return {{{', '.join(shapes)}}};"
        if len(line) <= WIDTH:
            return line
        inner = ",\n      ".join(shapes)
        return f"  return {{\n      {inner}}};"

    # Composites and bound functions with a gradient of their own

    @property
    def wrap_uses(self) -> bool:
        """Whether the forward is wrapped in a custom gradient."""
        return self.op.own_gradient

    @property
    def wrap_inputs(self) -> str:
        """The arrays as one vector."""
        if self.simple:
            return braces(p.cpp for p in self.arrays)
        return ""

    def undifferentiable(self, p: Parameter) -> bool:
        """Whether the entry declares `none` for an argument."""
        return any(p in g.params and g.kind is GradKind.NONE for g in self.op.grads)

    def opaque(self, p: Parameter, value: str) -> str:
        """An argument of a composite whose derivative is an error."""
        args = [value, f'"{self.op.python_name}"', f'"{p.name}"', "s"]
        return f"mlxgen::NotDifferentiable::wrap({', '.join(args)})"

    @property
    def wrapped_forward(self) -> str:
        """The composition on a vector of inputs."""
        out = self.unpack("inputs", None, 4)
        args = [p.cpp for p in self.op.params] + ["s"]
        if self.op.single:
            return out + "    return {" + cpp_call(self.composite_name, args, "", 4).lstrip() + "};"
        return out + "    return " + cpp_call(self.composite_name, args, ";", 4).lstrip()

    # Python

    @property
    def raw_docstring(self) -> str:
        """The docstring as a raw string literal."""
        return raw_string("\n" + textwrap.indent(self.docstring, "        ") + "\n      ", "pbdoc")

    @property
    def gradient_summary(self) -> str:
        """One word on the gradient, for the reference."""
        return gradient_summary(self.op)

    @property
    def check_samples(self) -> list[str]:
        """Python literals of the samples that the generated checks run on."""
        if not self.arrays:
            return []
        listed = [
            {n: _sample(v) for n, v in sample.items()} for sample in self.op.entry.samples
        ] or ([{}] if all(_has_value(p) for p in self.attributes) else [])
        return [repr(sample) for sample in listed]

    @property
    def binding_params(self) -> list[str]:
        """Parameters of the bound lambda."""
        out = []
        for p in self.op.params:
            out.append(f"{_binding_type(p)} {p.cpp}")
        out.append("const mlxgen::StreamArg& s")
        return out

    @property
    def binding_args(self) -> list[str]:
        """Arguments of the op function in the bound lambda."""
        out = []
        for p in self.op.params:
            if p.type.is_array:
                out.append(f"mlxgen::get({p.cpp}, like)")
            elif p.type.kind is Kind.SHAPE:
                out.append(f"mlxgen::to_shape({p.cpp})")
            elif p.type.kind is Kind.AXES:
                out.append(f"mlxgen::to_axes({p.cpp})")
            else:
                out.append(p.cpp)
        return [*out, "s.value"]

    @property
    def weak(self) -> str:
        """The dtype that scalars take."""
        names = [p.cpp for p in self.arrays if p.dtype is None]
        return f"mlxgen::weak_dtype({', '.join(names)})" if names else "std::nullopt"

    @property
    def binding_call(self) -> str:
        """The statement that calls the op function."""
        call = f"{self.ns}::{self.op.name}"
        if len(self.op.outputs) == 1:
            return cpp_call(f"return {call}", self.binding_args, ";", 2)
        inner = cpp_call(call, self.binding_args, "", 6).lstrip()
        return cpp_call("return mlxgen::as_tuple", [inner], ";", 2)

    @property
    def deprecation(self) -> str:
        """The statement that warns."""
        text = f"[{self.op.python_name}] Deprecated: {self.op.entry.deprecated}"
        return cpp_call("mlxgen::warn_deprecated", [cpp_string(text)], ";", 2)

    @property
    def binding_head(self) -> str:
        """Head of the bound function."""
        return cpp_declare("auto", f"{self.op.name}_python", self.binding_params, " {")

    @property
    def binding_names(self) -> list[str]:
        """nb::arg for every parameter."""
        out = []
        kw_only = False
        for p in self.op.params:
            if p.arg.kw_only and not kw_only:
                out.append("nb::kw_only()")
                kw_only = True
            text = f'"{p.name}"_a'
            default = p.arg.default
            if default is not None:
                text += f" = {_binding_default(p, default.cpp)}"
            out.append(text)
        if not kw_only:
            out.append("nb::kw_only()")
        out.append('"stream"_a = nb::none()')
        return out

    @cached_property
    def python_def(self) -> str:
        """The Python signature, as in MLX's stubs."""
        parts = []
        kw_only = False
        for p in self.op.params:
            if p.arg.kw_only and not kw_only:
                parts.append("*")
                kw_only = True
            annotation = p.type.python
            if p.type.kind is Kind.ARRAY:
                annotation = "scalar | array | None" if p.type.optional else "scalar | array"
            elif p.is_list:
                annotation = "Sequence[scalar | array]"
            text = f"{p.name}: {annotation}"
            if p.arg.default is not None:
                text += f" = {p.arg.default.python}"
            parts.append(text)
        if not kw_only:
            parts.append("*")
        parts.append("stream: StreamOrDevice = None")
        return f"({', '.join(parts)}) -> {self.python_result}"

    @property
    def python_result(self) -> str:
        """The result's annotation."""
        return self.op.signature.python_result

    @cached_property
    def docstring(self) -> str:
        """The docstring in MLX's style."""
        entry = self.op.entry
        parts = [(entry.doc or f"{self.op.python_name}.").strip()]
        if entry.deprecated:
            parts.append(f"Deprecated: {entry.deprecated}")
        args = []
        for p in self.op.params:
            type = (
                p.type.python if not p.type.is_array else ("list(array)" if p.is_list else "array")
            )
            optional = ", optional" if p.arg.default is not None or p.type.optional else ""
            text = entry.args.get(p.name, "Input array." if p.type.is_array else "")
            if p.arg.default is not None and p.arg.default.value is not None:
                text = f"{text} Default: ``{p.arg.default.python}``.".strip()
            args.append(_item(f"{p.name} ({type}{optional}): {text}".rstrip()))
        if args:
            parts.append("Args:\n" + "\n".join(args))
        returns = entry.returns
        if isinstance(returns, dict):
            lines = [f"{o.name}: {returns.get(o.name, '')}".rstrip() for o in self.op.outputs]
            parts.append("Returns:\n" + _item(f"{self.python_result}: " + "; ".join(lines)))
        else:
            text = returns or ("The output array." if self.op.single else "The outputs.")
            parts.append("Returns:\n" + _item(f"{self.python_result}: {text}"))
        return "\n\n".join(parts)


def gradient_summary(op: Op) -> str:
    """One word on an operator's gradient, for the reference."""
    kinds = {g.kind for g in op.grads}
    if "vjp" in op.manual:
        return "hand-written"
    if not kinds or kinds == {GradKind.COMPOSITE}:
        return "of the composition" if op.forward is not None else "MLX's own"
    if kinds == {GradKind.NONE}:
        return "none"
    return "function" if GradKind.FUNCTION in kinds else "formula"


def _binding_call(binding: Binding) -> str:
    """The statement that binds a buffer."""
    value, index = binding.value, binding.index
    if binding.holds == "vector":
        return f"mlxgen::metal::set_vector(encoder, {value}, {index});"
    if binding.holds == "bytes":
        return f"encoder.set_bytes(static_cast<{binding.type}>({value}), {index});"
    return f"encoder.set_{binding.holds}_array({value}, {index});"


def _sample(value: Any) -> Any:
    if isinstance(value, ArraySample):
        return value.model_dump(exclude_defaults=True)
    if isinstance(value, list):
        return [_sample(v) for v in value]
    return value


def _has_value(p: Parameter) -> bool:
    return p.arg.default is not None or p.type.optional


def _item(text: str) -> str:
    if len(text) <= 84 and "\n" not in text and "  " not in text and "\t" not in text:
        return "    " + text.strip()
    return textwrap.fill(
        text, 88, initial_indent="    ", subsequent_indent="      ", break_long_words=False
    )


def _qualified(element: str) -> str:
    if element == "accum_t<T>":
        return "mlxgen::accum_t<T>"
    return f"mx::{element}" if element in ("float16_t", "bfloat16_t", "complex64_t") else element


def _local(target: str, expr: Expr) -> str:
    """``target = expression;``"""
    return f"  {target} = {expr.cpp};"


def _assign(target: str, function: str, args: Sequence[str], indent: int) -> str:
    """``target = function(args);`` as clang-format breaks it."""
    pad = " " * indent
    line = f"{pad}{target} = {function}({', '.join(args)});"
    if len(line) <= WIDTH:
        return line
    second = f"{pad}    {function}({', '.join(args)});"
    if len(second) <= WIDTH:
        return f"{pad}{target} =\n{second}"
    one = f"{pad}    {', '.join(args)});"
    if len(one) <= WIDTH:
        return f"{pad}{target} = {function}(\n{one}"
    inner = f",\n{pad}    ".join(args)
    return f"{pad}{target} = {function}(\n{pad}    {inner});"


def _fill(text: str, indent: int) -> str:
    """A braced list over several lines, one item each, when it is too long for one."""
    if len(text) + indent + 1 <= WIDTH:
        return text
    items = text[1:-1].split(", ")
    return "{" + (",\n" + " " * (indent + 1)).join(items) + "}"


def _binding_type(p: Parameter) -> str:
    kind, optional = p.type.kind, p.type.optional
    if kind is Kind.ARRAY:
        return "const std::optional<mlxgen::ArrayArg>&" if optional else "const mlxgen::ArrayArg&"
    if kind is Kind.ARRAYS:
        return "const std::vector<mlxgen::ArrayArg>&"
    if kind is Kind.SHAPE:
        return "const std::optional<std::vector<int>>&" if optional else "const std::vector<int>&"
    if kind is Kind.AXES:
        return "const mlxgen::AxesArg&"
    return p.type.cpp_param


def _binding_default(p: Parameter, cpp: str) -> str:
    if p.arg.default is not None and p.arg.default.value is None:
        return "nb::none()"
    if p.type.kind in (Kind.SHAPE, Kind.INTS, Kind.AXES) and cpp.startswith("{"):
        return f"std::vector<int>{cpp}"
    return cpp
