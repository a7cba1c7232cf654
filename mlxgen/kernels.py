"""Hand-written kernels held against their entries: does what `dispatch` names exist, and fit?

Four cases. On the CPU a *scalar function* (elementwise op) or a function over *views*
(``mlxgen/kernel.h``); on Metal a scalar function, or a ``[[kernel]]`` whose buffers are bound by
parameter name. What does not fit is reported here, in the words of the entry, so that neither the
C++ compiler nor Metal ever gets to complain about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from . import cxx, metal
from .diagnostics import Diagnostics, suggest
from .formula import Expr, Scope, Want, compile_formula
from .model import Binding, Kernel, Parameter
from .schema import KernelEntry
from .settings import Settings
from .signature import Kind, Type

if TYPE_CHECKING:
    from .resolve import OpResolver

# How an MLX dtype is spelled.
CPP_TYPES = {
    "bool_": "bool",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
    "float16": "mx::float16_t",
    "bfloat16": "mx::bfloat16_t",
    "float32": "float",
    "float64": "double",
    "complex64": "mx::complex64_t",
}
METAL_TYPES: dict[str, tuple[str, ...]] = {
    "bool_": ("bool",),
    "int8": ("int8_t", "char"),
    "int16": ("int16_t", "short"),
    "int32": ("int", "int32_t"),
    "int64": ("int64_t", "long"),
    "uint8": ("uint8_t", "uchar"),
    "uint16": ("uint16_t", "ushort"),
    "uint32": ("uint", "uint32_t", "unsigned int"),
    "uint64": ("uint64_t", "ulong"),
    "float16": ("half", "float16_t"),
    "bfloat16": ("bfloat16_t", "bfloat"),
    "float32": ("float",),
}
# Metal scalar types that `set_bytes` may fill, and the C++ type of the same size.
_BYTES = {
    "float": "float",
    "int": "int",
    "int32_t": "int",
    "uint": "uint32_t",
    "uint32_t": "uint32_t",
    "bool": "bool",
    "int64_t": "int64_t",
    "long": "int64_t",
    "size_t": "uint64_t",
    "uint64_t": "uint64_t",
    "ulong": "uint64_t",
}
# Attributes that a scalar function or Metal kernel can take, and the parameter types they fit.
_SCALARS: dict[Kind, tuple[str, ...]] = {
    Kind.FLOAT: ("T", "float", "double"),
    Kind.INT: ("int", "int64_t", "T"),
    Kind.BOOL: ("bool",),
    Kind.ENUM: ("int",),
}
_VIEW = re.compile(r"(In|Out)<(?:const )?([\w:]+)>\Z")


class Sources:
    """The hand-written C++ and Metal of a project, scanned when first asked for."""

    def __init__(self, settings: Settings, diags: Diagnostics, mlx_include: Path | None) -> None:
        self.settings = settings
        self.diags = diags
        self.mlx_include = mlx_include

    def cpp_files(self) -> list[Path]:
        """Headers and sources of the csrc folder."""
        folder = self.settings.csrc
        found = [*folder.rglob("*.h"), *folder.rglob("*.cpp")] if folder.is_dir() else []
        return sorted(found)

    def metal_files(self) -> list[Path]:
        """The .metal files."""
        folder = self.settings.metal
        return sorted(folder.rglob("*.metal")) if folder.is_dir() else []

    @cached_property
    def functions(self) -> list[cxx.Function]:
        """Every function declared in csrc."""
        found: list[cxx.Function] = []
        for path in self.cpp_files():
            try:
                found += cxx.scan_cpp([path], [self.settings.csrc])
            except cxx.SourceError as error:
                self._report(error)
        return found

    @cached_property
    def metal(self) -> list[tuple[Path, metal.MetalFile]]:
        """Every Metal file with what it declares."""
        found = []
        for path in self.metal_files():
            try:
                found.append((path, metal.scan_metal([path], self.metal_includes)))
            except cxx.SourceError as error:
                self._report(error)
        return found

    @property
    def metal_includes(self) -> list[Path]:
        """Where Metal includes are looked up."""
        return [self.settings.metal, *([self.mlx_include] if self.mlx_include else [])]

    def _report(self, error: cxx.SourceError) -> None:
        self.diags.error("MG501", error.message, error.span, help=error.help, notes=error.notes)


def match_kernels(op: OpResolver) -> tuple[Kernel, ...]:
    """The op's kernels, each checked against the entry; reports what does not fit."""
    out = []
    for backend, spec in (op.raw.dispatch or {}).items():
        entry = spec if isinstance(spec, KernelEntry) else KernelEntry(kernel=spec)
        path: tuple[str | int, ...] = ("dispatch", backend)
        at = (*path, "kernel") if isinstance(spec, KernelEntry) else path
        matcher = _Cpu(op, backend, entry, path, at) if backend == "cpu" else _Metal(
            op, backend, entry, path, at
        )
        kernel = matcher.match()
        if kernel is not None:
            out.append(kernel)
    return tuple(out)


class _Matcher:
    """What the backends have in common."""

    def __init__(
        self,
        op: OpResolver,
        backend: str,
        spec: KernelEntry,
        path: tuple[str | int, ...],
        at: tuple[str | int, ...],
    ) -> None:
        self.op = op
        self.backend = backend
        self.spec = spec
        self.path = path
        self.at = at
        self.sources = op.resolver.sources
        self.group = next((r.dtypes for r in op.rules if r.name == "kDtypes"), ())
        self.fixed = {p.name: p.dtype for p in op.arrays if p.dtype}

    def match(self) -> Kernel | None:
        """The kernel, or None when something was reported."""
        raise AssertionError  # pragma: no cover - each backend has its own

    def where(self, function: cxx.Function) -> str:
        """A function's place, for messages."""
        return f"{_shown(function.span.file, self.op.resolver.settings)}:{function.span.line}"

    def missing(self, names: Iterable[str], folder: Path, what: str) -> None:
        """Report that there is no such function."""
        settings = self.op.resolver.settings
        guess = suggest(self.spec.kernel, sorted(set(names)))
        self.op.error(
            "MG502",
            f"no {what} '{self.spec.kernel}' in {settings.relative(folder)}"
            + (f" (did you mean '{guess}'?)" if guess else ""),
            self.at,
            help=self.expected(),
        )

    def expected(self) -> str:
        """The declaration that would fit."""
        return ""

    def misfit(self, function: cxx.Function, problem: str) -> None:
        """Report that the function does not fit the entry."""
        self.op.error(
            "MG503",
            f"'{self.spec.kernel}' ({self.where(function)}) does not fit: {problem}",
            self.at,
            help=self.expected(),
        )

    def scalar_ready(self) -> bool:
        """Whether the entry's arguments can be passed to a scalar function at all."""
        for p in self.op.params:
            if p.type.is_array:
                if p.type.kind is Kind.ARRAY and not p.type.optional and p.dtype is None:
                    continue
                what = (
                    "a list of arrays"
                    if p.is_list
                    else "an optional array"
                    if p.type.optional
                    else f"an array of fixed dtype {p.dtype}"
                )
            elif p.type.kind in _SCALARS and not p.type.optional:
                continue
            else:
                what = f"a {p.type.python}"
            self.op.error(
                "MG504",
                f"an elementwise kernel cannot take '{p.name}', {what}",
                self.at,
                help="add a `shape` rule and write the kernel over whole arrays",
            )
            return False
        return True

    def no_geometry(self) -> None:
        """Launch geometry means nothing here."""
        for key in ("grid", "threadgroup", "constants", "zero"):
            if getattr(self.spec, key):
                self.op.error(
                    "MG505",
                    f"`{key}` is for a [[kernel]] on Metal; "
                    + (
                        "a CPU kernel has no launch geometry"
                        if self.backend == "cpu"
                        else "the launch around a scalar function is generated"
                    ),
                    (*self.path, key),
                    key=True,
                )

    def scalar_expected(self, reference: str) -> str:
        """Declaration of a fitting scalar function."""
        name = self.spec.kernel.rsplit("::", 1)[-1]
        parts = []
        for p in self.op.params:
            kind = p.type.kind
            base = "T" if kind is Kind.ARRAY else _SCALARS.get(kind, ("?",))[0]
            parts.append(f"{base} {p.name}")
        outputs = self.op.signature.outputs
        if len(outputs) > 1:
            parts += [f"{reference}T& {o.name}" for o in outputs]
        result = "T" if len(outputs) == 1 else "void"
        return f"expected: template <typename T> {result} {name}({', '.join(parts)})"

    def scalar_problem(self, function: cxx.Function, space: str | None) -> str | None:
        """Why this scalar function does not fit, if it does not."""
        outputs = self.op.signature.outputs
        params = function.params
        inputs = self.op.params
        extra = len(outputs) if len(outputs) > 1 else 0
        if len(params) != len(inputs) + extra:
            return (
                f"it takes {len(params)} parameters, the entry needs {len(inputs) + extra}"
            )
        if len(function.template) > 1:
            return "it has more than one template parameter"
        t = function.template[0] if function.template else None
        for p, param in zip(inputs, params, strict=False):
            base = "T" if t is not None and param.base == t else param.base
            if param.pointer or (param.reference and not param.const):
                return f"'{param.name}' must be passed by value"
            if p.type.is_array:
                allowed: tuple[str, ...] = ("T",) if t else ("float", "double")
            else:
                allowed = _SCALARS[p.type.kind]
            if base not in allowed:
                return (
                    f"'{param.name}' is {param.type}, '{p.name}' ({p.type.python}) needs "
                    f"{' or '.join(allowed)}"
                )
        names = [p.name for p in inputs]
        given = [q.name for q in params[: len(inputs)]]
        if given != names and sorted(given) == sorted(names):
            return f"its parameters are in the order {', '.join(given)}"
        for output, param in zip(outputs, params[len(inputs) :], strict=False):
            base = "T" if t is not None and param.base == t else param.base
            if not param.reference or param.const or base not in ("T", "float", "double"):
                return f"'{param.name}' must be a reference for the output '{output.name}'"
            if space and param.space != space:
                return f"'{param.name}' must be in the thread address space (`thread T&`)"
        result = "T" if t is not None and function.result == t else function.result
        if extra and result != "void":
            return "it must return void and write its outputs through references"
        if not extra and result not in (("T",) if t else ("float", "double")):
            return f"it returns {function.result}, not {'T' if t else 'float'}"
        return None


class _Cpu(_Matcher):
    """Kernels in csrc."""

    def expected(self) -> str:
        if self.op.elementwise:
            return self.scalar_expected("")
        parts = []
        for p in self.op.params:
            parts.append(f"{self.view_of(p) if p.type.is_array else _attribute(p.type)} {p.name}")
        parts += [f"Out<{e}> {o.name}" for o, e in zip(
            self.op.signature.outputs, self.output_elements() or (), strict=False
        )]
        name = self.spec.kernel.rsplit("::", 1)[-1]
        return f"expected: template <typename T> void {name}({', '.join(parts)})"

    def view_of(self, p: Parameter) -> str:
        """Type of the view of an array argument."""
        element = CPP_TYPES[p.dtype].removeprefix("mx::") if p.dtype else "T"
        return f"const std::vector<In<{element}>>&" if p.is_list else f"In<{element}>"

    def output_elements(self) -> tuple[str, ...] | None:
        """Element type of each output's view."""
        texts = self.op._per_output(self.op.raw.dtype, "dtype")
        out = []
        for output in self.op.signature.outputs:
            text = texts.get(output.name, "").strip().removeprefix("mx.")
            if text in CPP_TYPES:
                out.append(CPP_TYPES[text].removeprefix("mx::"))
            else:
                argument = text.removesuffix(".dtype")
                fixed = self.fixed.get(argument)
                out.append(CPP_TYPES[fixed].removeprefix("mx::") if fixed else "T")
        return tuple(out)

    def match(self) -> Kernel | None:
        self.no_geometry()
        functions = self.sources.functions
        candidates = [
            f for f in cxx.find_function(functions, self.spec.kernel) if f.class_name is None
        ]
        if not candidates:
            self.missing(
                (f.name for f in functions if f.class_name is None),
                self.op.resolver.settings.csrc,
                "function",
            )
            return None
        if self.op.elementwise and not self.scalar_ready():
            return None
        problems = []
        for function in candidates:
            problem = (
                self.scalar_problem(function, None)
                if self.op.elementwise
                else self.view_problem(function)
            )
            if problem is None:
                return self.kernel(function, candidates)
            problems.append((function, problem))
        self.misfit(*problems[0])
        return None

    def kernel(self, function: cxx.Function, candidates: Sequence[cxx.Function]) -> Kernel | None:
        """The kernel around a fitting function."""
        header = Path(function.span.file)
        if header.suffix != ".h":
            self.misfit(function, "it must be in a header (.h), so that generated code can use it")
            return None
        dtypes = self.group or (next(iter(self.fixed.values())) or "float32",)
        if self.op.elementwise and not function.template:
            # Overloads instead of a template: the dtypes are those that they compute.
            types = {c.params[0].base for c in candidates if c.params}
            wide = {"float32", "float16", "bfloat16"} if "float" in types else set()
            wide |= {"float64"} if "double" in types else set()
            dtypes = tuple(d for d in dtypes if d in wide)
        return Kernel(
            backend="cpu",
            name=self.spec.kernel,
            function="::".join(part for part in (function.namespace, function.name) if part),
            include=header.resolve().relative_to(self.op.resolver.settings.csrc).as_posix(),
            dtypes=tuple(dtypes),
            scalar=self.op.elementwise,
            templated=bool(function.template),
            by_reference=len(self.op.signature.outputs) > 1,
            elements=self.output_elements() or (),
        )

    def view_problem(self, function: cxx.Function) -> str | None:
        """Why this function over views does not fit, if it does not."""
        inputs, outputs = self.op.params, self.op.signature.outputs
        if len(function.params) != len(inputs) + len(outputs):
            return (
                f"it takes {len(function.params)} parameters, "
                f"the entry needs {len(inputs) + len(outputs)}"
            )
        if len(function.template) > 1:
            return "it has more than one template parameter"
        t = function.template[0] if function.template else None
        if t is None and self.group and len(self.group) > 1:
            return "it must be a template over the dtype: template <typename T>"
        if function.result != "void":
            return "it must return void"
        for p, param in zip(inputs, function.params, strict=False):
            wanted = self.view_of(p) if p.type.is_array else _attribute(p.type)
            if not _same_type(param.type, wanted, t, p.type):
                return f"'{param.name}' is {param.type}, '{p.name}' needs {wanted}"
        elements = self.output_elements() or ()
        rest = function.params[len(inputs) :]
        for output, element, param in zip(outputs, elements, rest, strict=False):
            if not _same_type(param.type, f"Out<{element}>", t, output.type):
                return f"'{param.name}' is {param.type}, the output '{output.name}' needs " + (
                    f"Out<{element}>"
                )
        names = [p.name for p in inputs] + [o.name for o in outputs]
        given = [q.name for q in function.params]
        if given != names and sorted(given) == sorted(names):
            return f"its parameters are in the order {', '.join(given)}"
        return None


def _attribute(type: Type) -> str:
    """Type of an attribute's parameter in a CPU kernel."""
    if type.kind is Kind.ENUM:
        return "int"
    return type.cpp_param.replace("mx::", "")


def _same_type(given: str, wanted: str, t: str | None, type: Type) -> bool:
    def plain(text: str) -> str:
        text = re.sub(r"\b(mlxgen|mx|std|mlx::core|mlx|core)::", "", text)
        text = re.sub(r"\bconst\b|&", " ", text)
        if t:
            text = re.sub(rf"\b{re.escape(t)}\b", "T", text)
        return re.sub(r"\s+", "", text)

    if plain(given) == plain(wanted):
        return True
    if type.kind is Kind.FLOAT and not type.optional:
        return plain(given) in ("float", "double", "T", "accum_t<T>")
    if type.kind is Kind.INT and not type.optional:
        return plain(given) in ("int", "int64_t", "int32_t")
    return False


class _Metal(_Matcher):
    """Kernels in .metal files."""

    def expected(self) -> str:
        if self.op.elementwise:
            return self.scalar_expected("thread ")
        return "a [[kernel]] whose parameters are named after the entry's arguments and outputs"

    def match(self) -> Kernel | None:
        name = self.spec.kernel.rsplit("::", 1)[-1]
        for path, file in self.sources.metal:
            for function in file.kernels:
                if function.name == name:
                    return self.launch(path, file, function)
        for path, file in self.sources.metal:
            found = [f for f in cxx.find_function(file.functions, self.spec.kernel)]
            if found:
                return self.scalar(path, found)
        names = [f.name for _, file in self.sources.metal for f in (*file.kernels, *file.functions)]
        what = "function or [[kernel]]" if self.op.elementwise else "[[kernel]]"
        self.missing(names, self.op.resolver.settings.metal, what)
        return None

    def scalar(self, path: Path, found: Sequence[cxx.Function]) -> Kernel | None:
        """A scalar function, around which the kernels are generated."""
        if not self.op.elementwise:
            self.misfit(
                found[0], "it is a scalar function, and an op with a `shape` rule needs a [[kernel]]"
            )
            return None
        self.no_geometry()
        if not self.scalar_ready():
            return None
        problems = []
        for function in found:
            problem = self.scalar_problem(function, "thread")
            if problem is None:
                dtypes = tuple(d for d in self.group if d in METAL_TYPES)
                return Kernel(
                    backend="metal",
                    name=self.spec.kernel,
                    function="::".join(p for p in (function.namespace, function.name) if p),
                    include=path.relative_to(self.op.resolver.settings.metal).as_posix(),
                    dtypes=dtypes,
                    scalar=True,
                    templated=bool(function.template),
                    by_reference=len(self.op.signature.outputs) > 1,
                )
            problems.append((function, problem))
        self.misfit(*problems[0])
        return None

    def launch(self, path: Path, file: metal.MetalFile, function: cxx.Function) -> Kernel | None:
        """A hand-written [[kernel]] with its buffers, grid and instantiations."""
        op = self.op
        grid = self.geometry("grid", self.spec.grid)
        group = self.geometry("threadgroup", self.spec.threadgroup)
        if not self.spec.grid and not op.elementwise:
            op.error(
                "MG506",
                f"the [[kernel]] '{function.name}' needs a `grid`",
                self.at,
                help="e.g. {kernel: %s, grid: [out.size], threadgroup: [256]}" % function.name,
            )
        constants = self.constants()
        bindings = self.bindings(function, dict(constants))
        zero = []
        for i, name in enumerate(self.spec.zero):
            names = [o.name for o in op.signature.outputs]
            if name in names:
                zero.append(names.index(name))
            else:
                op._unknown_argument("MG507", name, (*self.path, "zero", i), names, "output")
        dtypes = self.instantiated(file, function)
        if not op.ok:
            return None
        return Kernel(
            backend="metal",
            name=self.spec.kernel,
            function=function.name,
            include=path.relative_to(op.resolver.settings.metal).as_posix(),
            dtypes=dtypes,
            scalar=False,
            templated=bool(function.template),
            bindings=tuple(bindings),
            grid=tuple(e.cpp(4) for e in grid),
            threadgroup=tuple(e.cpp(4) for e in group),
            zero=tuple(zero),
            uses=frozenset(n for e in (*grid, *group, *(c for _, c in constants)) for n in e.names),
        )

    def scope(self) -> Scope:
        """Names in launch geometry: arguments, and outputs for their shapes and sizes."""
        from .formula import Name

        names = self.op._scope(member=True)
        for i, output in enumerate(self.op.signature.outputs):
            names[output.name] = Name(output.type, f"outputs[{i}]")
        return self.op._make_scope(names, None)

    def geometry(self, key: str, texts: list[str] | None) -> list[Expr]:
        """Three integers, the missing ones 1."""
        out = []
        for i, text in enumerate(texts or []):
            expr = self.op.formula((*self.path, key, i), text, self.scope(), Want.int())
            if expr is not None:
                out.append(expr)
        return out

    def constants(self) -> list[tuple[str, Expr]]:
        """Formulas passed by parameter name."""
        out = []
        for name, text in self.spec.constants.items():
            expr = self.op.formula((*self.path, "constants", name), text, self.scope(), Want.int())
            if expr is not None:
                out.append((name, expr))
        return out

    def bindings(self, function: cxx.Function, constants: dict[str, Expr]) -> list[Binding]:
        """The encoder call for each buffer, found by the parameter's name."""
        op = self.op
        t = function.template[0] if function.template else None
        arrays = {p.name: p for p in op.arrays}
        attributes = {p.name: p for p in op.params if not p.type.is_array}
        outputs = {o.name: i for i, o in enumerate(op.signature.outputs)}
        elements = _Cpu.output_elements(self)  # type: ignore[arg-type]
        out: list[Binding] = []
        order: list[str] = []
        used: set[int] = set()
        next_index = 0
        for param in function.params:
            if param.attributes and "buffer" not in param.attributes:
                if "threadgroup" in param.attributes:
                    self.misfit(
                        function,
                        f"'{param.name}' is threadgroup memory given by the launch; declare a "
                        "threadgroup array of fixed size inside the kernel",
                    )
                continue
            index = param.attributes.get("buffer", next_index)
            if not isinstance(index, int):
                index = next_index
            next_index = index + 1
            if index in used:
                self.misfit(function, f"two parameters have [[buffer({index})]]")
                continue
            used.add(index)
            problem, call = None, ""
            name = param.name
            base, _, suffix = name.rpartition("_")
            if name in arrays:
                p = arrays[name]
                order.append(name)
                if p.is_list:
                    problem = f"'{name}' is a list of arrays, which a Metal kernel cannot take"
                elif param.space not in ("device", "constant") or not param.pointer:
                    problem = f"'{name}' must be `device const {self.metal_type(p.dtype)}*`"
                elif not param.const and param.space != "constant":
                    problem = f"the input '{name}' must be const"
                elif not _metal_element(param.base, t, p.dtype):
                    problem = f"'{name}' is {param.type}, the entry needs {self.metal_type(p.dtype)}"
                else:
                    first = next((q for q in op.arrays if not q.type.optional), None)
                    value = (
                        f"{p.cpp} ? *{p.cpp} : {first.cpp if first else 'outputs[0]'}"
                        if p.type.optional
                        else p.cpp
                    )
                    call = f"encoder.set_input_array({value}, {index});"
            elif name in outputs:
                i = outputs[name]
                order.append(name)
                element = (elements or ())[i]
                dtype = next((d for d, c in CPP_TYPES.items() if c.removeprefix("mx::") == element), None)
                inner = re.sub(r"^(metal::)?(atomic|mlx_atomic)<(.*)>$", r"\3", param.base)
                if param.const or not param.pointer or param.space != "device":
                    problem = f"the output '{name}' must be `device {self.metal_type(dtype)}*`"
                elif not _metal_element(inner, t, dtype):
                    problem = f"'{name}' is {param.type}, the entry needs {self.metal_type(dtype)}"
                else:
                    call = f"encoder.set_output_array(outputs[{i}], {index});"
            elif name in constants:
                problem, call = _bytes(param, constants[name].cpp(4), index)
            elif name in attributes:
                a = attributes[name]
                if a.type.kind not in _SCALARS or a.type.optional:
                    problem = f"'{name}' ({a.type.python}) cannot be passed to a Metal kernel"
                else:
                    value = a.member
                    if a.type.kind is Kind.ENUM:
                        value = _choice(op, a)
                    kinds = ("float",) if a.type.kind is Kind.FLOAT else tuple(
                        b for b in _BYTES if b != "float" and (b == "bool") == (a.type.kind is Kind.BOOL)
                    )
                    if param.base not in kinds:
                        problem = f"'{name}' is {param.type}, the entry needs constant {kinds[0]}&"
                    else:
                        problem, call = _bytes(param, value, index)
            elif name.startswith("has_") and name[4:] in arrays:
                problem, call = _bytes(param, f"{arrays[name[4:]].cpp}.has_value()", index)
                if param.base != "bool":
                    problem = f"'{name}' must be `constant bool&`"
            elif suffix in ("shape", "strides", "ndim", "size") and (
                base in arrays or base in outputs
            ):
                owner = arrays[base].cpp if base in arrays else f"outputs[{outputs[base]}]"
                if base in arrays and (arrays[base].type.optional or arrays[base].is_list):
                    problem = f"'{base}' may be absent, so it has no '{suffix}' to bind"
                elif suffix in ("shape", "strides"):
                    wanted = ("int", "int32_t") if suffix == "shape" else ("int64_t", "long")
                    if param.space != "constant" or not param.pointer or param.base not in wanted:
                        problem = f"'{name}' must be `constant const {wanted[0]}*`"
                    else:
                        call = f"mlxgen::metal::set_vector(encoder, {owner}.{suffix}(), {index});"
                else:
                    problem, call = _bytes(param, f"{owner}.{suffix}()", index)
            else:
                known = [*arrays, *outputs, *attributes, *constants]
                guess = suggest(name, known)
                problem = f"nothing is called '{name}'" + (
                    f" (did you mean '{guess}'?)" if guess else ""
                ) + "; name it after an argument or output, or list it under `constants`"
            if problem:
                self.misfit(function, problem)
            else:
                out.append(Binding(index, call))
        if used and used != set(range(max(used) + 1)):
            absent = sorted(set(range(max(used) + 1)) - used)
            self.misfit(function, f"no parameter has [[buffer({absent[0]})]]")
        if len(used) > 31:
            self.misfit(function, f"it has {len(used)} buffers, Metal allows 31")
        for name in [*arrays, *outputs]:
            if name not in order:
                self.misfit(function, f"it has no parameter '{name}'")
        wanted_order = [n for n in [*arrays, *outputs] if n in order]
        if order != wanted_order:
            self.misfit(
                function,
                f"its arrays are in the order {', '.join(order)}; "
                f"the entry has {', '.join(wanted_order)}",
            )
        for name in constants:
            if name not in {p.name for p in function.params}:
                op.error(
                    "MG508",
                    f"the [[kernel]] '{function.name}' has no parameter for the constant '{name}'",
                    (*self.path, "constants", name),
                    key=True,
                )
        return out

    def metal_type(self, dtype: str | None) -> str:
        """A dtype in Metal's words."""
        return METAL_TYPES[dtype][0] if dtype in METAL_TYPES and dtype else "T"

    def instantiated(self, file: metal.MetalFile, function: cxx.Function) -> tuple[str, ...]:
        """The dtypes for which the kernel has a host name; reports those that are missing."""
        wanted = [d for d in self.group if d in METAL_TYPES] or ["float32"]
        if not function.template:
            hosts = {i.host_name for i in file.instantiations}
            plain = function.name in hosts or not any(
                i.function.rsplit("::", 1)[-1] == function.name for i in file.instantiations
            )
            if len(wanted) > 1 or not plain:
                self.misfit(
                    function,
                    f"it is no template, and the entry allows {', '.join(wanted)}",
                )
            return tuple(wanted)
        found = {i.host_name: i for i in file.instantiations}
        out = []
        missing = []
        for dtype in wanted:
            instance = found.get(f"{function.name}_{dtype}")
            if instance is None:
                missing.append(dtype)
                continue
            given = instance.arguments[0] if instance.arguments else ""
            if instance.function.rsplit("::", 1)[-1] != function.name:
                self.misfit(
                    function,
                    f"host name '{instance.host_name}' instantiates '{instance.function}'",
                )
            elif given not in METAL_TYPES[dtype]:
                self.misfit(
                    function, f"host name '{instance.host_name}' is instantiated with '{given}'"
                )
            else:
                out.append(dtype)
        if missing:
            host = f"{function.name}_{missing[0]}"
            self.op.error(
                "MG509",
                f"the [[kernel]] '{function.name}' ({self.where(function)}) is not instantiated "
                f"for {', '.join(missing)}",
                self.at,
                help=f'add: template [[host_name("{host}")]] [[kernel]] decltype({function.name}'
                f"<{METAL_TYPES[missing[0]][0]}>) {function.name}<{METAL_TYPES[missing[0]][0]}>; "
                "or restrict `dtypes`",
            )
        return tuple(out)


def _metal_element(base: str, t: str | None, dtype: str | None) -> bool:
    if dtype is None:
        return (t is not None and base == t) or (t is None and base == "float")
    return base in METAL_TYPES.get(dtype, ())


def _bytes(param: cxx.Param, value: str, index: int) -> tuple[str | None, str]:
    if param.space != "constant" or not param.reference:
        return f"'{param.name}' must be `constant {param.base}&`", ""
    ctype = _BYTES.get(param.base)
    if ctype is None:
        return f"'{param.name}' has type {param.base}; use one of {', '.join(_BYTES)}", ""
    return None, f"encoder.set_bytes(static_cast<{ctype}>({value}), {index});"


def _choice(op: OpResolver, p: Parameter) -> str:
    choices = ", ".join(f'"{c}"' for c in p.type.choices)
    return f'mlxgen::choice("{op.draft.name}", "{p.name}", {p.member}, {{{choices}}})'


def _shown(file: str, settings: Settings) -> str:
    return settings.relative(Path(file))


def bound_call(op: OpResolver, scope: Scope, want: Want) -> tuple[Expr | None, str]:
    """The call of the function that a `bind` entry names, checked against MLX's API."""
    target = op.raw.cpp or f"mlx::core::{op.draft.name}"
    path: tuple[str | int, ...] = ("cpp",) if op.raw.cpp else ("name",)
    plain = re.sub(r"^(mlx::core|mx)::", "", target)
    if plain == target and "::" in target or (op.raw.cpp and plain == target):
        return _own_call(op, target, path)
    name = "mx." + plain.replace("::", ".")
    positional = [a.name for a in op.signature.args]
    attempts = [f"{name}({', '.join(positional)})"]
    arrays = [a.name for a in op.signature.args if a.type.is_array]
    rest = [a.name for a in op.signature.args if not a.type.is_array]
    if rest:
        attempts.append(f"{name}({', '.join([*arrays, *(f'{a}={a}' for a in rest)])})")
    problems: list[tuple[str, str | None]] = []
    for text in attempts:
        found: list[tuple[str, str | None]] = []
        expr = compile_formula(
            text, scope, want, lambda _c, m, _s, _e, h, found=found: found.append((m, h))
        )
        if expr is not None:
            return expr, text
        problems = problems or found
    message, hint = problems[0] if problems else ("it does not fit the signature", None)
    op.error(
        "MG510",
        f"cannot bind {target}: {message}",
        path,
        help=hint or "give `cpp`, `composite` or `dispatch`, or mend the signature",
    )
    return None, ""


def _own_call(
    op: OpResolver, target: str, path: tuple[str | int, ...]
) -> tuple[Expr | None, str]:
    """The call of a hand-written C++ function from csrc."""
    functions = [
        f for f in cxx.find_function(op.resolver.sources.functions, target) if not f.class_name
    ]
    args = op.signature.args
    if not functions:
        guess = suggest(target, [f.name for f in op.resolver.sources.functions])
        op.error(
            "MG511",
            f"no function '{target}' in {op.resolver.settings.relative(op.resolver.settings.csrc)}"
            + (f" (did you mean '{guess}'?)" if guess else ""),
            path,
            help="write mlx::core::name to bind one of MLX's",
        )
        return None, ""
    function = functions[0]
    wanted = [a.type.cpp_param for a in args] + ["mx::StreamOrDevice"]
    given = [p.type for p in function.params]
    result = "mx::array" if len(op.signature.outputs) == 1 and (
        op.signature.outputs[0].type.kind is Kind.ARRAY
    ) else "std::vector<mx::array>"
    fits = len(given) == len(wanted) and all(
        _same_type(g, w, None, Type(Kind.STR)) for g, w in zip(given, wanted, strict=True)
    )
    if not fits or not _same_type(function.result, result, None, Type(Kind.STR)):
        op.error(
            "MG512",
            f"'{target}' ({_shown(function.span.file, op.resolver.settings)}:"
            f"{function.span.line}) does not fit the signature",
            path,
            help=f"expected: {result} {function.name}({', '.join(wanted)})",
        )
        return None, ""
    qualified = "::".join(part for part in (function.namespace, function.name) if part)
    values = [*(p.cpp for p in op.params), "s"]
    header = Path(function.span.file).resolve().relative_to(op.resolver.settings.csrc).as_posix()
    op.extra_includes.append(header)
    expr = Expr.call(qualified, values, op.signature.outputs[0].type)
    return expr, f"{qualified}({', '.join(values)})"


def require_function(op: OpResolver, name: str, path: tuple[str | int, ...]) -> str:
    """A hand-written gradient function: its qualified name, checked against csrc.

    It takes the op's arguments, `const std::vector<array>& cotangents`,
    `const std::vector<array>& outputs` and a stream, and returns one array per gradient.
    """
    functions = [
        f for f in cxx.find_function(op.resolver.sources.functions, name) if not f.class_name
    ]
    vector = "const std::vector<mx::array>&"
    wanted = [a.type.cpp_param for a in op.signature.args] + [vector, vector, "mx::StreamOrDevice"]
    parts = [a.name for a in op.signature.args] + ["cotangents", "outputs", "s"]
    shown = ", ".join(f"{t} {n}" for t, n in zip(wanted, parts, strict=True))
    help_text = f"expected: std::vector<mx::array> {name.rsplit('::', 1)[-1]}({shown})"
    if not functions:
        guess = suggest(name, [f.name for f in op.resolver.sources.functions])
        op.error(
            "MG511",
            f"no function '{name}' in {op.resolver.settings.relative(op.resolver.settings.csrc)}"
            + (f" (did you mean '{guess}'?)" if guess else ""),
            path,
            help=help_text,
        )
        return name
    function = functions[0]
    given = [p.type for p in function.params]
    fits = len(given) == len(wanted) and all(
        _same_type(g, w, None, Type(Kind.STR)) for g, w in zip(given, wanted, strict=True)
    )
    if not fits or not _same_type(
        function.result, "std::vector<mx::array>", None, Type(Kind.STR)
    ):
        op.error(
            "MG512",
            f"'{name}' ({_shown(function.span.file, op.resolver.settings)}:{function.span.line}) "
            "does not fit as a gradient function",
            path,
            help=help_text,
        )
        return name
    header = Path(function.span.file).resolve().relative_to(op.resolver.settings.csrc).as_posix()
    op.extra_includes.append(header)
    return "::".join(part for part in (function.namespace, function.name) if part)


def require_manual(op: OpResolver, part: str, class_name: str) -> None:
    """A part written by hand must be defined in csrc, as a member of the primitive's class."""
    for function in op.resolver.sources.functions:
        if function.class_name == class_name and function.name == part and function.is_definition:
            return
    op.error(
        "MG513",
        f"`manual: [{part}]`, but {op.resolver.settings.relative(op.resolver.settings.csrc)} does "
        f"not define {class_name}::{part}",
        ("manual",),
        help=f"define {class_name}::{part} in a .cpp file, with mlx::core::Primitive's signature",
    )
