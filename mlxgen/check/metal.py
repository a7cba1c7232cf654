"""Checks hand-written ``[[kernel]]`` functions: buffers, launch and dtypes.

Parameters are bound by name, as docs/language.md lists: array arguments, outputs, attributes,
constants of the entry, properties of an array (``x_shape``, ``x_strides``, ``x_ndim``, ``x_size``),
and ``has_x`` for an optional array. ``_parameters`` yields the declaration of each.

For an absent optional array, ndim and size are 0, and its data, shape and strides are empty. The
same names set function constants; a constant of the entry is also the number of elements of a
``[[threadgroup(n)]]`` parameter. All problems of a kernel are reported together, each at its
location in the Metal file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path as FilePath
from typing import NamedTuple

from ..diagnostics import Span, did_you_mean
from ..diagnostics.messages import table
from ..formula.compile import Name, Want
from ..formula.values import INT_MAX
from ..model.cpp import BOOL, ELEMENT, INT, INT64, CppType
from ..model.dtypes import ACCUMULATOR, METAL_TYPES, metal_name
from ..model.kinds import KINDS, METAL_FLOATS, METAL_INTS, Kind
from ..model.numbers import Impossible, evaluated
from ..model.op import MOST, Binding, Expr, Holds, Kernel, Parameter, Property, Rule, Template
from ..model.signature import Type
from ..read.cpp import Function, Param, Unit
from ..read.keys import TemplateEntry
from .dispatch import MAX_BUFFERS, NUMBER, Dispatch
from .fit import Expected, Mismatch, Slot, mismatch, plain

METAL: dict[str, list[str]] = table(FilePath(__file__).with_name("metal.yaml"))  # its names
POSITIONS = frozenset(METAL["positions"])  # with up to three components
SCALAR_POSITIONS = frozenset(METAL["scalar positions"])

MAX_THREADS = 1024  # of a threadgroup

MAX_GRID = 2**32 - 1  # threads along an axis

# Positions of threads; the first and the fourth are scalars.
_POSITIONS = tuple(CppType(f"{name}{n}") for name in ("uint", "ushort") for n in ("", 2, 3))
# Metal types of numbers that `set_bytes` may fill, and the C++ type of the same size.
_NUMBERS: Mapping[str, str] = {
    plain(name, metal=True): type
    for name, type in {**METAL_INTS, **METAL_FLOATS, "bool": "bool"}.items()
}
_FUNCTION_CONSTANT = re.compile(
    r"\bconstant\s+((?:[\w:]+\s+)+)(\w+)\s*\[\[\s*function_constant\s*\(([^\]]*)\)\s*\]\]"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_TYPE_PARAMETER = ("", "typename", "class")  # kinds of template parameters


def _constant(*types: CppType, mark: str = "&") -> tuple[CppType, ...]:
    return tuple(type._replace(mark=mark, space="constant", const=mark == "*") for type in types)


_INTEGER = _constant(*map(CppType, METAL_INTS))
# Properties of an array, and their types in a kernel.
_PROPERTIES = {
    Property.SHAPE: _constant(INT, mark="*"),
    Property.STRIDES: _constant(INT64, mark="*"),
    Property.NDIM: _INTEGER,
    Property.SIZE: _INTEGER,
}


def kernel_function(item: Dispatch, function: Function | None = None) -> Expected:
    """Return the expected kernel; a template, unless ``function`` is a valid one without."""
    is_template = not function or bool(function.template) or len(item.metal_dtypes) > 1
    named: dict[str, Slot] = {}
    for want in _parameters(item, None if is_template else item.metal_dtypes[0]):
        named.setdefault(want.name, want)
    wanted = [want for want in named.values() if want.types]
    kinds = dict(zip(function.template, function.template_kinds, strict=True)) if function else {}
    others = (f"{kinds.get(n) or _kind(t)} {n}" for n, t in item.spec.template.items())
    template = ", ".join(["typename T", *others]) * is_template
    return Expected(
        wanted, template=template, metal=True, is_kernel=True, also=item.template_problem
    )


def _kind(given: TemplateEntry) -> str:
    """Return the kind of the template parameter that such values need."""
    return "typename" if given.dtype else "int" if given.values else "bool"


def _parameters(item: Dispatch, only: str | None) -> Iterator[Slot]:
    """Yield the possible parameters of a kernel, in the expected order.

    A parameter without types is not supported. ``only``: the dtype of a kernel without template.
    """
    context = item.context

    def array(dtype: str | None) -> CppType:
        of = dtype or only
        if of == ACCUMULATOR:  # Metal has no float64
            of = "float32"
        element = CppType(metal_name(of)) if of in METAL_TYPES else ELEMENT
        return element._replace(mark="*", space="device")

    for p in (p for p in item.passed if p.type.is_array):
        to = array(p.dtype)
        read = (to._replace(const=True), to._replace(space="constant"))
        yield Slot(p.declared, read, holds=Holds.INPUT, of=p.name)
    dtypes = item.outputs or [None] * len(context.output_names)
    for name, dtype in zip(context.output_names, dtypes, strict=True):
        yield Slot(name, (array(dtype),), is_output=True, holds=Holds.OUTPUT)
    for p in item.arguments.params:
        if not p.type.is_array:
            types = () if _is_unsupported(p) else _constant(*p.type.wide(KINDS[p.type.kind].metal))
            if p.is_choice and p.type.optional:  # the index of None is -1
                types = tuple(type for type in types if type.name[0] != "u")
            yield Slot(p.declared, types, holds=Holds.BYTES, of=p.name)
    for name in {**context.axes.lengths, **item.spec.constants}:
        needed = name in item.spec.constants and name not in {*item.spec.template, "T"}
        yield Slot(name, _INTEGER, needed=needed, holds=Holds.BYTES)
    for declared, name in _array_names(item).items():
        for part, types in _PROPERTIES.items():
            holds = Holds.VECTOR if types[0].mark == "*" else Holds.BYTES
            needed = part is Property.STRIDES and name in context.raw.strided
            full = f"{declared}_{part.value}"
            yield Slot(full, types, needed=needed, holds=holds, of=name, part=part)
    for p in item.arguments.arrays:
        if p.type.optional:
            name, types, holds = f"has_{p.declared}", _constant(BOOL), Holds.BYTES
            yield Slot(name, types, needed=False, holds=holds, of=p.name, part=Property.GIVEN)


def _array_names(item: Dispatch) -> dict[str, str]:
    """Return the arrays by the names of their parameters."""
    outputs = {name: name for name in item.context.output_names}
    return {p.declared: p.name for p in item.arguments.arrays} | outputs


def _is_unsupported(p: Parameter) -> bool:
    """Return whether no kernel can take an argument."""
    absent = p.type.optional and not p.is_choice
    return not p.type.is_array and (absent or not KINDS[p.type.kind].metal)


def _launched(
    item: Dispatch, include: str, function: Function, types: Mapping[str, str], bools: Set[str]
) -> Kernel:
    """Return the kernel with its launch, without bindings."""
    names = _names(item)
    templates = _templates(item, function, types)
    for name in (*(n for n, t in item.spec.template.items() if t.dtype is None), MOST):
        names.setdefault(name, Name(Type(Kind.INT, int64=True)))
    constants = _constants(item, function, names, bools)
    known = _known_constants(item, constants)
    grid, threadgroup = (_geometry(item, key, names, known) for key in ("grid", "threadgroup"))
    if not item.spec.grid:
        item.error("no_grid", name=function.name)
    return Kernel(
        backend="metal",
        name=item.name,
        function=str(function.attributes.get("host_name", function.name)).strip('"'),
        include=include,
        dtypes=tuple(item.metal_dtypes),
        scalar=False,
        templated=bool(function.template),
        constants=tuple(constants),
        grid=tuple(grid),
        threadgroup=tuple(threadgroup),
        templates=tuple(templates),
    )


def _has_dtypes(item: Dispatch) -> bool:
    """Check that Metal supports the entry's dtypes."""
    if item.outputs is None or not item.has_dtype(item.metal_dtypes):
        return False
    written = zip(item.context.output_names, item.outputs, strict=True)
    for name, dtype in [*item.fixed.items(), *written]:
        if dtype not in (None, ACCUMULATOR, *METAL_TYPES):
            item.error("not_on_metal", name=name, dtype=dtype)
            return False
    return True


def launch(item: Dispatch, path: FilePath, file: Unit, function: Function) -> Kernel | None:
    """Return the kernel with its bindings and launch; None if an error was reported."""
    context, spec = item.context, item.spec
    if lists := [p.name for p in item.arguments.arrays if p.is_list]:
        item.error("takes_list", name=lists[0])
        return None
    declared = {p.name: p.declared for p in item.arguments.params}
    params = [p._replace(name=declared.get(p.name, p.name)) for p in function.params]
    if not _has_dtypes(item):
        return None
    types = _types(item, function._replace(params=tuple(params)))
    meant = {n: function.template[0] if type == ELEMENT.name else type for n, type in types.items()}
    params = [p._replace(base=meant.get(p.base, p.base)) for p in params]
    function = function._replace(params=tuple(params))
    include = path.relative_to(context.settings.metal).as_posix()
    constants = _function_constants(file, function)
    bools = {constant.name for constant in constants if constant.type == "bool"}
    kernel = _launched(item, include, function, types, bools)
    expected = kernel_function(item, function)
    if problem := item.template_problem(function):
        item.mismatched(expected, problem)
        return None
    bindings, problems = _bind(item, file, function, expected)
    for value in _set(item, constants, expected):
        bindings += [value] if isinstance(value, Binding) else []
        problems += [] if isinstance(value, Binding) else [value]
    if constants and MOST in kernel.uses:
        problems.append(mismatch("unknown_before", function.span, constant=MOST))
    _check_constants(item, function, {*kernel.uses, *(binding.of for binding in bindings)})
    if not function.is_definition:
        problems.append(mismatch("undefined", function.span))
    zero = _zero(item)
    if function.template and spec.template.keys() <= {*function.template}:
        problems += _not_given_template(item, function, kernel.templates)
    problems += _untaken(item, function, kernel.uses | {binding.of for binding in bindings})
    if problems:
        item.mismatched(expected, *problems)
    others = {f.name for f in file.functions if f.is_kernel}
    if taken := next((name for name in kernel.variants if name in others), None):
        item.mismatched(expected, mismatch("kernel_taken", function.span, taken=taken))
    scratch = tuple(name for name in context.output_names if name in context.raw.unused)
    kernel = kernel._replace(bindings=tuple(bindings), zero=tuple(zero), scratch=scratch)
    return kernel if context.ok else None


def _types(item: Dispatch, function: Function) -> dict[str, str]:
    """Return further template types: given by the entry, or those of the arrays that use them."""
    slots = {want.name: want.types[0].name for want in _parameters(item, None) if want.types}
    kinds = dict(zip(function.template[1:], function.template_kinds[1:], strict=True))
    found = {
        p.base: slots[p.name]
        for p in reversed(function.params)
        if kinds.get(p.base) in _TYPE_PARAMETER and p.name in slots
    }
    given = {name: t.dtype for name, t in item.spec.template.items()}
    own = {n: d for n, d in given.items() if d in METAL_TYPES and kinds.get(n) in _TYPE_PARAMETER}
    return found | {name: metal_name(dtype) for name, dtype in own.items() if dtype}


class FunctionConstant(NamedTuple):
    """A function constant in a Metal file; its place is None if that is not a known number."""

    type: str
    name: str
    place: int | None
    span: Span
    optional: bool  # a kernel tests whether it is set


def _function_constants(file: Unit, kernel: Function) -> list[FunctionConstant]:
    """Return the function constants that a kernel may use."""
    found = [
        FunctionConstant(
            plain(match[1], metal=True),
            match[2],
            file.number(match[3]),
            part.source.span(*match.span(2)),
            any(f"is_function_constant_defined({match[2]})" in p.source.text for p in file.files),
        )
        for part in file.files
        if "function_constant" in part.source.text
        for match in _FUNCTION_CONSTANT.finditer(part.source.text)
    ]
    words = Counter[str]()
    for part in file.files if found else ():
        words.update(_WORD.findall(part.source.text))
        for other in part.functions:
            body = _WORD.findall(part.source.text, *(other.body or (0, 0)))
            own = {p.name for p in other.params}  # hides a constant
            cut = other.is_kernel and other.span != kernel.span
            words.subtract([*own, *(word for word in body if cut or word in own)])
    return [constant for constant in found if words[constant.name] > 1]


def _set(
    item: Dispatch, constants: Iterable[FunctionConstant], expected: Expected
) -> Iterator[Binding | Mismatch]:
    """Yield the values of function constants, and the problems."""
    wanted = {want.name: want for want in expected.params if want.holds is Holds.BYTES}
    declared = {p.name: p.declared for p in item.arguments.params}
    for type, name, place, span, optional in constants:
        want = wanted.get(declared.get(name, name))
        accepted = {"bool", *(plain(t.name, metal=True) for t in want.types)} if want else ()
        if want is None and optional:
            continue
        if want is None:
            yield mismatch("constant_not_set", span, constant=name)
        elif place is None:
            yield mismatch("constant_index", span, constant=name)
        elif type in _NUMBERS and type in accepted:
            of = want.of or want.name
            yield Binding(name, place, Holds.CONSTANT, of, want.part, _NUMBERS[type])
        else:
            yield mismatch("constant_type", span, constant=name, type=type)


def _bind(
    item: Dispatch, file: Unit, function: Function, expected: Expected
) -> tuple[list[Binding], list[Mismatch]]:
    """Return the bindings of a kernel's parameters, and the problems."""
    wanted = {want.name: want for want in expected.params}
    bindings: list[Binding] = []
    problems: list[Mismatch] = []
    used: dict[int, str] = {}
    taken = {param.attributes.get("buffer") for param in function.params}
    following = 0  # the index of the next parameter without one
    for param in function.params:
        name = param.name
        is_position = not (POSITIONS | SCALAR_POSITIONS).isdisjoint(param.attributes)
        if problem := _not_given(param, is_position, name in item.spec.constants):
            problems.append(problem)
            continue
        if param.space == "threadgroup":
            index = int(param.attributes.get("threadgroup", 0) or 0)
            size = "T" if param.base in function.template else str(_bytes(param.base))
            if size == "0":
                problems.append(mismatch("unknown_size", param.span, param=param))
            bindings.append(Binding(name, index, Holds.MEMORY, name, type=size))
            continue
        if is_position:
            single = POSITIONS.isdisjoint(param.attributes)
            want: Slot | None = Slot(name, _POSITIONS[:: 3 if single else 1])
        else:
            free = next(i for i in range(len(taken) + 1) if i not in taken)
            index = int(param.attributes.get("buffer", following) or 0)
            following = index + 1
            taken.add(index)
            if "buffer" not in param.attributes and free != index:  # compilers may choose another
                problems.append(mismatch("index_needed", param.span, param=param))
            elif used.setdefault(index, name) != name:
                about = {"first": used[index], "param": param, "index": index}
                problems.append(mismatch("buffer_twice", param.span, **about))
            want = wanted.get(name)
        problem = want and expected.other_param(function, want, param)
        is_struct = (want is None or problem) and _is_struct(file, param)
        if want and is_struct and want.holds in (Holds.INPUT, Holds.OUTPUT):  # bytes
            problem = expected.other_param(function, want, param._replace(base="void"))
            is_struct = False
        if is_struct:
            problems.append(mismatch("is_struct", param.span, param=param))
        elif want is None:
            problems.append(_unknown(item, param, wanted.values()))
        elif problem:
            problems.append(problem)
        elif want.holds:
            is_number = want.holds is Holds.BYTES
            type = _NUMBERS[plain(param.base, metal=True)] if is_number else ""
            bindings.append(Binding(name, index, want.holds, want.of or name, want.part, type))
    names = [p.name for p in function.params]
    arrays = [p.name for p in expected.params if p.holds in (Holds.INPUT, Holds.OUTPUT)]
    if len(used) > MAX_BUFFERS:
        about = {"buffers": len(used), "limit": MAX_BUFFERS}
        problems.append(mismatch("too_many_buffers", function.span, **about))
    needed = [p.name for p in expected.params if p.needed and p.holds is Holds.VECTOR]
    missing = [name for name in [*arrays, *needed] if name not in names]
    problems += [mismatch("no_param", function.span, param=name) for name in missing]
    return bindings, [*problems, *filter(None, [expected.other_result(function)])]


def _is_struct(file: Unit, param: Param) -> bool:
    """Return whether the project declares a parameter's type, or its template, as a class."""
    name = re.escape(param.base.partition("<")[0].rpartition("::")[2])
    declared = re.compile(rf"\b(?:struct|class|union)\s+(?:\w+\s+)*{name}\s*[{{:]|}}\s*{name}\s*;")
    return any(declared.search(part.source.text) for part in file.files)


def _untaken(item: Dispatch, function: Function, taken: Set[str]) -> Iterator[Mismatch]:
    """Yield attributes that neither the kernel nor a formula uses."""
    raw = item.context.raw
    names, used = {param.name for param in function.params}, item.beside | taken
    for p in item.arguments.params:
        is_used = p.declared in names or p.name in used
        if not (p.type.is_array or is_used or p.name in raw.unused):
            problem = "unused_value" if _is_unsupported(p) else "unused_param"
            yield mismatch(problem, function.span, param=p.declared)


def _bytes(type: str) -> int:
    """Return the size of a Metal type; 0 if it is not known."""
    found = re.fullmatch(r"(?:atomic<|atomic_)?(\w+?)([234]?)>?", plain(type, metal=True))
    name, length = found.groups() if found else ("", "")
    dtype = next((dtype for dtype, names in METAL_TYPES.items() if name in names), "0")
    bits = int("".join(filter(str.isdigit, dtype)) or 8)
    return bits // 8 * (4 if length == "3" else int(length or 1))


def _not_given(param: Param, is_position: bool, has_length: bool) -> Mismatch | None:
    """Return the reason why the launch cannot bind a parameter with such attributes, if any."""
    span, index = param.span, param.attributes.get("buffer", 0)
    for name in param.attributes:
        if name not in METAL["attributes"]:
            near = did_you_mean(name, METAL["attributes"])
            return mismatch("unknown_attribute", span, attribute=name, near=near)
    if param.space == "threadgroup":
        return None if has_length else mismatch("unknown_length", span, param=param)
    known = {"buffer", "function_constant", *POSITIONS, *SCALAR_POSITIONS}
    if other := {*param.attributes} - known:
        return mismatch("no_buffer", span, param=param, attribute=min(other))
    if not isinstance(index, int):
        return mismatch("no_index" if index is None else "bad_index", span, index=index)
    if not 0 <= index < MAX_BUFFERS:
        return mismatch("no_such_buffer", span, index=index, last=MAX_BUFFERS - 1)
    return None if param.name or is_position else mismatch("nameless", span, param=param)


def _unknown(item: Dispatch, param: Param, wanted: Iterable[Slot]) -> Mismatch:
    """Return the reason why the launch cannot bind a parameter of such a name."""
    name, span = param.name, param.span
    for p in item.arguments.params:
        if p.declared == name and p not in item.passed:
            return mismatch("donated", span, param=param)
        if p.declared == name:
            return mismatch("unsupported", span, param=param, type=p.type)
        if p.type.is_array and name == f"has_{p.declared}":
            return mismatch("not_optional", span, param=param, array=p.name)
    guess = did_you_mean(name, [want.name for want in wanted if want.needed])
    return mismatch("unknown_param", span, param=param, guess=guess)


def _names(item: Dispatch) -> dict[str, Name]:
    """Return the names in launch formulas: arguments, and outputs for their shapes and sizes."""
    outputs = item.context.signature.outputs
    return item.env.names() | {output.name: Name(output.type) for output in outputs}


def _known_constants(item: Dispatch, constants: Sequence[tuple[str, Expr]]) -> dict[str, int]:
    """Return the values of constants that are equal in all launches."""
    known: dict[str, int] = {}
    for name, expr in constants:
        value = _value(item, item.spec.constants[name], expr, known)
        known |= {} if value is None else {name: value}
    return known


def _value(item: Dispatch, text: str, expr: Expr, known: Mapping[str, int]) -> int | None:
    """Return the value of an integer formula of known constants; None for other formulas."""
    if not expr.names <= known.keys():
        return None
    try:
        value = evaluated(item.context.expanded(text), known, None)
    except Impossible:  # C++ reports it at the first call
        return None
    return value if isinstance(value, int) else None


def _geometry(
    item: Dispatch, key: str, names: Mapping[str, Name], known: Mapping[str, int]
) -> list[Rule]:
    """Compile up to three integer formulas; missing ones mean 1."""
    context, path = item.context, item.at(key)
    texts: list[str] = getattr(item.spec, key) or []
    rules, ok = [], True
    threads = 1
    for i, text in enumerate(texts):
        expr = context.formula((*path, i), text, Want(Kind.INT), names, stream=False)
        if expr is None:
            continue
        rules.append(Rule(text, expr))
        value = _value(item, text, expr, known)
        if value is not None and not 1 <= value <= MAX_GRID:
            wrong = "no_threads" if value < 1 else "long_grid"
            shown = str(value) if text.strip() == str(value) else f"`{text}` = {value}"
            context.error(wrong, (*path, i), what=key, length=shown)
            ok = False
        threads *= value or 1
    if ok and key == "threadgroup" and threads > MAX_THREADS:
        context.error("too_many_threads", path, threads=threads, limit=MAX_THREADS)
    return rules


def _constants(
    item: Dispatch, function: Function, names: dict[str, Name], bools: Set[str]
) -> list[tuple[str, Expr]]:
    """Compile the numbers that the launch computes first, for parameters and later formulas."""
    context = item.context
    found = []
    for name, text in item.spec.constants.items():
        path = item.at("constants", name)
        passed_on = name == text.strip() == MOST
        if taken := None if passed_on else _taken(item, function, name):
            context.error("constant_taken", path, key=True, name=name, problem=taken)
            continue
        want = Want(Kind.BOOL if name in bools else Kind.INT)
        if expr := context.formula(path, text, want, names, stream=False):
            found.append((name, expr))
        names[name] = Name(Type(Kind.INT, int64=True))
    return found


def _taken(item: Dispatch, function: Function, name: str) -> str | None:
    """Return why a constant or template parameter cannot have a name: a name in messages.yaml."""
    names: Mapping[str, Collection[str]] = {
        "argument": [p.name for p in item.arguments.params],
        "output": item.context.output_names,
        "axis": item.context.axes.lengths,
        "template": item.spec.constants.keys() & {*item.spec.template, *function.template},
        "threads": (MOST,),
    }
    return next((meaning for meaning, taken in names.items() if name in taken), None)


def _check_constants(item: Dispatch, function: Function, taken: Set[str]) -> None:
    """Report constants that neither the kernel nor a formula uses."""
    used = taken | {p.name for p in function.params}
    for name in item.spec.constants:
        if name not in used and not _taken(item, function, name):
            path = item.at("constants", name)
            item.context.error("constant_unused", path, key=True, name=name, function=function.name)


def _templates(item: Dispatch, function: Function, types: Mapping[str, str]) -> list[Template]:
    """Compile the template parameters after the first, in the kernel's order."""
    context = item.context
    known = dict(zip(function.template, function.template_kinds, strict=True))
    found: dict[str, Template] = {}
    for name, given in item.spec.template.items():
        path = item.at("template", name)
        taken = None if name in item.spec.constants else _taken(item, function, name)
        if taken:
            context.error("constant_taken", path, key=True, name=name, problem=taken)
        elif name not in known:
            guess = did_you_mean(name, function.template[1:])
            others = function.template[1:]
            about = {"name": name, "function": function.name, "guess": guess, "others": others}
            context.error("no_template_parameter", path, "others" * bool(others), key=True, **about)
        elif (given.dtype is not None) != (known[name] in _TYPE_PARAMETER):
            kind = known[name] or "typename"
            context.error("template_kind", path, key=True, name=name, kind=kind)
        elif given.dtype not in (None, *METAL_TYPES):
            context.error("template_dtype", (*path, "dtype"), dtype=given.dtype)
        if given.dtype is not None:
            continue
        is_bool = known.get(name) == "bool"
        values, most = given.values or [0, 1] * is_bool, 1 if is_bool else INT_MAX
        if not values or values[0] < 0 or values != sorted(set(values)):
            context.error("template_values", (*path, "values"))
        elif values[-1] > most:
            context.error("template_large", (*path, "values"), most=most)
        want = Want(Kind.BOOL if is_bool else Kind.INT)
        formula = ((*path, "of"), given.of or "0", want)
        if expr := context.formula(*formula, item.env.names(), stream=False):
            kind = known.get(name, "")
            cast = "" if NUMBER.fullmatch(kind) else f"({kind})"
            found[name] = Template(name, given.of or "0", expr, tuple(values), cast)
    found |= {name: Template(name, "", None, (type,)) for name, type in types.items()}
    return [found[name] for name in function.template if name in found]


def _not_given_template(
    item: Dispatch, function: Function, templates: Sequence[Template]
) -> Iterator[Mismatch]:
    """Yield the template parameters that need values for an instantiation but have none."""
    given = {t.name for t in templates}
    rest = list(zip(function.template, function.template_defaults, strict=True))[1:]
    while rest and rest[-1][0] not in given and rest[-1][1] is not None:
        rest.pop()
    for name, _ in rest:
        if name not in given and name not in item.spec.template:
            yield mismatch("no_values", function.span, param=name)


def _zero(item: Dispatch) -> list[int]:
    """Return the indices of the outputs that are zero-filled before the launch."""
    context, names, zero = item.context, item.context.output_names, item.spec.zero
    context.not_twice(zero, item.at("zero"))
    return [
        names.index(name)
        for i, name in enumerate(zero)
        if context.is_known("unknown_in_zero", name, names, item.at("zero", i), key=False)
    ]
