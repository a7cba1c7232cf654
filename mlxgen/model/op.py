"""Resolved operators, which contain every decision.

Each phase of ``check`` builds a part of ``Op`` from the YAML. Templates, ``ops.json``,
``mlxgen diff`` and the documentation read them. All classes are immutable.
"""

from __future__ import annotations

import ast
import enum
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from .cpp import CppType
from .dtypes import DTYPES, INTEGER, metal_name
from .signature import Arg, Kind, Output, Signature, Type


class Form(enum.Enum):
    """The form of the forward computation."""

    BIND = "bind"
    COMPOSITE = "composite"
    KERNELS = "kernels"


# A rank relative to the array of that name, or (with "") an absolute rank.
Rank = tuple[str, int] | None


class Fact(NamedTuple):
    """The facts about an array at generation time (formula/facts.py)."""

    rank: Rank = None
    dtype: str = ""  # its name, or a category
    degree: int = 0  # in the cotangents or the tangent
    uses: frozenset[str] = frozenset()  # arrays whose values it depends on


class Length(NamedTuple):
    """The size of a named axis: the array and axis that determine it."""

    array: str
    axis: int
    cpp: str = ""  # name of its C++ variable


def shown_axes(alternatives: Iterable[Sequence[str]]) -> str:
    """Return the axes of an array for messages: ``(B, T) or (B, T, H)``."""
    return " or ".join(
        f"({terms[0]},)" if len(terms) == 1 and terms[0] != "..." else f"({', '.join(terms)})"
        for terms in alternatives
    )


class Hole(NamedTuple):
    """A hole in C++, which is filled with the C++ name for a name of a formula."""

    name: str


# Reserved names: the stream in formulas of arrays, and the number of threads per threadgroup that
# the device allows in formulas of a launch.
STREAM, MOST = "stream", "max_threads"


class Expr(NamedTuple):
    """A compiled formula: C++ with holes, which are filled at the use of the formula."""

    type: Type
    parts: tuple[str | Hole, ...]  # C++ on one line
    names: frozenset[str] = frozenset()  # identifiers of the scope that it uses
    ops: frozenset[str] = frozenset()  # entries that it calls
    mlx: frozenset[str] = frozenset()  # MLX functions that it calls, such as "linalg.norm"
    facts: tuple[Fact, ...] = ()  # of each array of the result; the rank of a shape; a dtype
    keys: frozenset[str] = frozenset()  # names that are keys of random functions
    headers: frozenset[str] = frozenset()  # of operators of other packages that it calls
    # Operators of other packages with other inputs than arguments, and random functions that may
    # get no key.
    impure: frozenset[str] = frozenset()
    # Why a shapeless trace would keep the shapes of the first call; the same for its gradient.
    specializes: str = ""
    gradient_specializes: str = ""
    # For a dtype: the arrays and dtypes that it is promoted from; empty if unknown.
    promoted: frozenset[str] = frozenset()
    sized: frozenset[str] = frozenset()  # arrays of which it uses the sizes of single axes
    # C++ variables for arrays that it uses several times; each may use earlier ones.
    locals: tuple[tuple[str, Expr], ...] = ()
    lets: frozenset[str] = frozenset()  # the entry's `let`s that it uses

    @property
    def variable(self) -> str:
        """The C++ type of a variable for it; others than integers have the right one anyway."""
        return str(self.type.cpp) if self.type.kind is Kind.INT else "auto"

    @property
    def holes(self) -> frozenset[str]:
        """The names of the holes in its C++, including ``stream`` if it computes arrays."""
        own = frozenset(part.name for part in self.parts if isinstance(part, Hole))
        return own.union(*(expr.holes for _, expr in self.locals))

    def cpp(self, places: Mapping[str, str]) -> str:
        """Return the C++ with the holes filled from ``places``."""
        return "".join([p if isinstance(p, str) else places[p.name] for p in self.parts])


@dataclass(frozen=True, slots=True)
class Written:
    """The documentation of an entry, and values that are not resolved (samples as mappings)."""

    doc: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    returns: str | dict[str, str] | None = None
    let: Mapping[str, str] = field(default_factory=dict)
    composite: str | None = None
    samples: Sequence[Mapping[str, Any]] = field(default_factory=list)
    variants: Sequence[str] = field(default_factory=lambda: ["function"])
    aliases: Sequence[str] = field(default_factory=list)
    module: str | None = None
    tags: Sequence[str] = field(default_factory=list)
    manual: Sequence[str] = field(default_factory=list)
    deprecated: str | None = None

    @property
    def internal(self) -> bool:
        """True if only C++ and other entries can call the operator."""
        return "internal" in self.tags


GROUP = "kDtypes"  # C++ name of the dtype rule for arguments that are promoted together


class Parameter(NamedTuple):
    """An argument in generated C++."""

    arg: Arg
    name: str  # in the entry
    type: Type  # in the entry
    cpp: str  # name of the parameter or variable
    declared: str  # name in the header, and of the parameter of a [[kernel]]
    # Position of an array among a primitive's inputs: after ``place`` required ones and ``after``.
    place: int = 0
    after: tuple[Parameter, ...] = ()
    # Fixed dtype such as int32, or the accumulator dtype; None: the op's promoted dtype.
    dtype: str | None = None
    integral: bool = False  # fixed to integers, therefore not differentiable
    strided: bool = False  # kernels receive it with any strides
    rule: str = GROUP  # C++ name of its dtype rule: its own, or that of its group

    @property
    def member(self) -> str:
        """Name of the primitive's member that stores an attribute."""
        return f"{self.cpp}_"

    @property
    def present(self) -> str:
        """Name of the member that stores whether an optional array is present, else empty."""
        optional = self.type.kind is Kind.ARRAY and self.type.optional
        return f"{self.counter}_" if optional else ""

    @property
    def counter(self) -> str:
        """Name of the variable for the presence of an array, or the length of a list."""
        return f"{self.cpp}_size" if self.is_list else f"has_{self.cpp}"

    @property
    def position(self) -> str:
        """C++ of its first index among a primitive's inputs, inside the primitive."""
        return f"{self.cpp}_at()" if self.after else str(self.place)

    @property
    def counted_position(self) -> str:
        """The result of the function that ``position`` calls."""
        return " + ".join([str(self.place), *(p.size for p in self.after)])

    @property
    def position_in_call(self) -> str:
        """C++ of its first index among a primitive's inputs, in the op function."""
        return " + ".join([str(self.place), *(p.counted for p in self.after)])

    @property
    def counted(self) -> str:
        """C++ of the number of its inputs, if that depends on the call."""
        return f"{self.cpp}.size()" if self.is_list else f"{self.cpp}.has_value()"

    @property
    def is_list(self) -> bool:
        """True for a list of arrays."""
        return self.type.kind is Kind.ARRAYS

    @property
    def is_plain(self) -> bool:
        """True for a single required array."""
        return self.type.kind is Kind.ARRAY and not self.present

    @property
    def is_choice(self) -> bool:
        """True for an enumerated string, of which kernels receive the index."""
        return self.type.kind is Kind.ENUM

    @property
    def size(self) -> str:
        """Name of the member for ``counter``."""
        return f"{self.counter}_"


class Integers(enum.Enum):
    """The conversion of integers passed to a group of arguments."""

    FLOAT32 = "to_float32"
    KEEP = "keep"
    ERROR = "error"


class DtypeRule(NamedTuple):
    """The dtypes that a group of arguments may be promoted to."""

    name: str  # C++ name
    dtypes: tuple[str, ...]
    integers: Integers
    params: tuple[Parameter, ...]

    @property
    def promotes(self) -> bool:
        """True if its arguments are promoted together."""
        return self.params[0].dtype is None

    def resolve(self, dtype: str) -> str | None:
        """Return the dtype to compute with (runtime/src/op.cpp), or None if it is not accepted."""
        if dtype in self.dtypes:
            return dtype
        if dtype not in (*INTEGER, "bool_"):
            return None
        if self.integers is Integers.FLOAT32:
            return "float32"
        kept = (
            self.integers is Integers.KEEP and len(self.dtypes) == 1 and self.dtypes[0] in INTEGER
        )
        return self.dtypes[0] if kept else None


@dataclass(frozen=True)
class Arguments:
    """The arguments of an operator."""

    params: tuple[Parameter, ...]
    rules: tuple[DtypeRule, ...]
    lengths: Mapping[str, Length]  # sizes of named axes, which all formulas can use

    @cached_property
    def arrays(self) -> tuple[Parameter, ...]:
        """The array parameters, in order."""
        return tuple(p for p in self.params if p.type.is_array)

    @cached_property
    def attributes(self) -> tuple[Parameter, ...]:
        """The parameters other than arrays, in order."""
        return tuple(p for p in self.params if not p.type.is_array)

    @cached_property
    def modes(self) -> tuple[tuple[str, str], ...]:
        """The strings that replace arrays, with the names of these arrays."""
        return tuple((p.name, p.arg.mode_of) for p in self.params if p.arg.mode_of)

    @cached_property
    def by_name(self) -> Mapping[str, Parameter]:
        """The parameters by their names in the entry."""
        return {p.name: p for p in self.params}

    @property
    def group(self) -> DtypeRule | None:
        """The dtype rule of the arguments that are promoted together; of kernels the only one."""
        return next((rule for rule in self.rules if rule.name == GROUP), None)


class GradKind(enum.Enum):
    """The form of a gradient."""

    FORMULA = "formula"
    FUNCTION = "function"
    ZERO = "zero"
    NONE = "none"
    COMPOSITE = "composite"


class Grad(NamedTuple):
    """The gradient of one argument, or the joint gradient of several."""

    params: tuple[Parameter, ...]
    kind: GradKind
    text: str = ""
    expr: Expr | None = None
    function: str = ""
    include: str = ""  # the function's header in csrc

    @property
    def joint(self) -> bool:
        """True if one expression computes several gradients (or the gradients of a list)."""
        return (
            self.kind is GradKind.FUNCTION
            or len(self.params) > 1
            or (self.kind is GradKind.FORMULA and self.params[0].is_list)
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """A formula of an output's shape or dtype, or of a launch's threads along an axis."""

    text: str
    expr: Expr
    # Of a shape or dtype, with the entry's `let`s inserted; equal trees are different objects.
    tree: ast.expr | None = field(default=None, compare=False)


class Holds(enum.Enum):
    """A kind of parameter that a launch binds."""

    INPUT = "input"
    OUTPUT = "output"
    BYTES = "bytes"  # a number
    VECTOR = "vector"  # of numbers
    CONSTANT = "constant"  # the number of a function constant
    MEMORY = "memory"  # of a threadgroup: a number of elements


class Property(enum.Enum):
    """The part of an array that a buffer of a Metal launch holds."""

    ELEMENTS = ""
    SHAPE = "shape"
    STRIDES = "strides"
    NDIM = "ndim"
    SIZE = "size"
    GIVEN = "given"  # whether it is present


class Binding(NamedTuple):
    """A buffer, a function constant or threadgroup memory of a Metal launch."""

    name: str  # the kernel's parameter
    place: int  # its index
    holds: Holds
    of: str  # the argument, output or constant
    part: Property = Property.ELEMENTS
    type: str = ""  # BYTES, CONSTANT: the number's C++ type; MEMORY: bytes per element, or T


def metal_stem(include: str) -> str:
    """Return the C++ name for the source of a .metal file, or of a header shared with Metal."""
    return re.sub(r"[/.-]", "_", include.removesuffix(".metal"))


class Template(NamedTuple):
    """A template parameter of a Metal kernel: the least value not below the formula, or a type."""

    name: str
    text: str
    expr: Expr | None
    values: tuple[int | str, ...]  # numbers, or a type; T: that of the kernel
    cast: str = ""  # of numbers to the parameter's enum, as in "(Mode)"


Backend = Literal["cpu", "metal"]


class Kernel(NamedTuple):
    """A backend's kernel."""

    backend: Backend
    name: str  # as in the entry
    function: str  # qualified C++ name, or host name prefix on Metal
    include: str  # header (CPU) or .metal file, relative to its folder
    dtypes: tuple[str, ...]
    scalar: bool  # a scalar function; mlxgen generates the loop
    shared: bool = False  # `include` is a header in csrc, also on Metal
    templated: bool = True
    by_sign: bool = False  # a scalar function that is also compiled for positive inputs
    by_reference: bool = False  # a scalar function that returns through references
    elements: tuple[CppType, ...] = ()  # element types of the outputs (CPU views)
    bindings: tuple[Binding, ...] = ()
    constants: tuple[tuple[str, Expr], ...] = ()
    grid: tuple[Rule, ...] = ()
    threadgroup: tuple[Rule, ...] = ()
    zero: tuple[int, ...] = ()
    scratch: tuple[str, ...] = ()  # outputs that are only memory for the kernel
    templates: tuple[Template, ...] = ()

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """The formulas of the launch."""
        numbers = [*(expr for _, expr in self.constants), *(t.expr for t in self.templates)]
        return (*(rule.expr for rule in (*self.grid, *self.threadgroup)), *filter(None, numbers))

    @property
    def uses(self) -> frozenset[str]:
        """The names that formulas of the launch use."""
        return frozenset(name for expr in self.formulas for name in expr.names)

    @property
    def holes(self) -> frozenset[str]:
        """The names of the holes in the C++ of these formulas."""
        return frozenset(name for expr in self.formulas for name in expr.holes)

    @property
    def on_demand(self) -> bool:
        """True for a [[kernel]] that its launcher instantiates."""
        return self.backend == "metal" and self.templated and not self.scalar

    @property
    def variants(self) -> dict[str, tuple[str, ...]]:
        """The instantiations of the launcher: template arguments by host name."""
        return {
            "_".join((self.function, dtype, *values)): (
                metal_name(dtype),
                *(metal_name(dtype) if v == "T" else t.cast + v for t, v in pairs),
            )
            for dtype in (self.dtypes if self.on_demand else ())
            for values in itertools.product(*(map(str, t.values) for t in self.templates))
            for pairs in [list(zip(self.templates, values, strict=True))]
        }


@dataclass(frozen=True, slots=True)
class Condition:
    """A check of the arguments."""

    tree: ast.expr = field(compare=False)  # with the entry's `let`s inserted
    expr: Expr
    message: str
    array: str = ""  # the array whose axes it checks, if it comes from `axes`
    whole: frozenset[str] = frozenset()  # arrays that are integers or bools if it is true


class Initial(NamedTuple):
    """The values of an output before a kernel runs: a number, or those of a donated array."""

    output: int
    number: Expr | None = None
    donor: Parameter | None = None


@dataclass(frozen=True)
class OutputRules:
    """The rules of the shapes, dtypes and initial values of an operator with kernels."""

    shapes: tuple[Rule, ...] = ()  # empty for an elementwise op
    dtypes: tuple[Rule | None, ...] = ()  # None: the promoted dtype
    initial: tuple[Initial, ...] = ()

    @property
    def donors(self) -> frozenset[str]:
        """The donated arrays, which kernels do not receive: outputs have their values."""
        return frozenset(each.donor.name for each in self.initial if each.donor)


@dataclass(frozen=True)
class Forward:
    """The forward computation of an operator."""

    form: Form
    expr: Expr | None = None  # composite, or the call of the bound function
    text: str = ""
    kernels: tuple[Kernel, ...] = ()
    include: str = ""  # the header in csrc that declares the bound function

    def kernel(self, backend: str) -> Kernel | None:
        """Return the kernel of a backend, if any."""
        return next((k for k in self.kernels if k.backend == backend), None)


class Jvp(enum.Enum):
    """A rule for forward-mode derivatives."""

    MLX = ""
    ELEMENTWISE = "elementwise"
    LINEAR = "linear"
    FORMULA = "formula"
    VJP = "vjp"
    COMPOSITE = "composite"
    NONE = "none"
    MANUAL = "manual"


class Vmap(enum.Enum):
    """A rule for vmap."""

    MLX = ""
    ELEMENTWISE = "elementwise"
    SEQUENTIAL = "sequential"
    BATCH = "batch"
    NONE = "none"
    MANUAL = "manual"


@dataclass(frozen=True)
class Derivatives:
    """The gradients, the jvp and vmap of an operator."""

    grads: tuple[Grad, ...]
    own: bool  # declared for a bound function or composite: replaces MLX's
    jvp: Jvp
    tangents: tuple[tuple[Parameter, Expr], ...]  # formulas of the jvp
    vmap: Vmap

    @property
    def exprs(self) -> Iterator[Expr]:
        """All formulas."""
        yield from (grad.expr for grad in self.grads if grad.expr)
        yield from (expr for _, expr in self.tangents)


@dataclass(frozen=True)
class Op:
    """One operator."""

    entry: Written
    name: str
    python_name: str
    signature: Signature
    # The forms of each argument's and output's axes.
    axes: Mapping[str, Sequence[tuple[str, ...]]]
    arguments: Arguments
    checks: tuple[Condition, ...]
    output_rules: OutputRules
    forward: Forward
    derivatives: Derivatives
    pure: bool  # its results depend only on its arguments
    file: str  # of the entry, relative to the project
    line: int

    def __post_init__(self) -> None:
        forward, derivatives, arrays = self.forward, self.derivatives, self.arguments.arrays
        differentiated = [p.name for grad in derivatives.grads for p in grad.params]
        count = len(self.outputs)
        assert [p.arg for p in self.arguments.params] == list(self.signature.args)
        assert {*differentiated} <= {p.name for p in arrays}
        assert len({*differentiated}) == len(differentiated)
        assert self.has_primitive or forward.expr is not None
        assert self.has_primitive or not (forward.kernels or self.entry.manual)
        assert self.has_primitive == (derivatives.vmap is not Vmap.MLX)
        assert not (self.has_primitive and derivatives.own)
        assert len(self.output_rules.shapes) in (0, count)
        assert len(self.output_rules.dtypes) in (0, count)
        if self.has_primitive and not {"vjp", "jvp"} & {*self.entry.manual}:
            assert len(differentiated) == len(arrays)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs, in order."""
        return self.signature.outputs

    @property
    def class_name(self) -> str:
        """The name of its C++ class."""
        return camel(self.name)

    @property
    def has_primitive(self) -> bool:
        """True if it has its own Primitive class."""
        return self.forward.form is Form.KERNELS

    @property
    def dtype_rules(self) -> tuple[DtypeRule, ...]:
        """The rules that exclude dtypes, and all rules of kernels."""
        rules = self.arguments.rules
        return tuple(r for r in rules if self.has_primitive or len(r.dtypes) < len(DTYPES))

    @property
    def elementwise(self) -> bool:
        """True if its kernels compute each element independently."""
        return self.has_primitive and not self.output_rules.shapes

    @property
    def broadcasts(self) -> bool:
        """True if the results have the shape that the arrays are broadcast to."""
        return self.elementwise or (not self.has_primitive and "elementwise" in self.entry.tags)

    @property
    def single(self) -> bool:
        """True if the C++ function returns one array."""
        return len(self.outputs) == 1 and self.outputs[0].type.kind is Kind.ARRAY

    @property
    def path(self) -> str:
        """Dotted name in Python, without the package."""
        module = self.entry.module
        return f"{module}.{self.python_name}" if module else self.python_name

    @property
    def paths(self) -> tuple[str, ...]:
        """Its dotted names in Python: ``path`` and the aliases."""
        return self.path, *dotted_names(self.entry.aliases, self.entry.module or "")

    @property
    def calls(self) -> set[str]:
        """The other entries that its formulas call."""
        return {name for expr in self._exprs for name in expr.ops} - {self.name}

    @property
    def calls_of_result(self) -> frozenset[str]:
        """Those of the composite or of the bound function's call; gradients call the others."""
        return self.forward.expr.ops if self.forward.expr else frozenset()

    @property
    def refuses(self) -> bool:
        """True if it is internal, and differentiating may raise: hand-written C++ may, too."""
        declared = any(grad.kind is GradKind.NONE for grad in self.derivatives.grads)
        return self.entry.internal and (declared or bool(self.forward.include))

    @property
    def _exprs(self) -> list[Expr]:
        """The formulas that compute arrays."""
        return [*filter(None, [self.forward.expr]), *self.derivatives.exprs]

    @property
    def includes(self) -> set[str]:
        """The headers in csrc, and of other packages, that its formulas need."""
        found = {self.forward.include, *(grad.include for grad in self.derivatives.grads)}
        return found.union(*(expr.headers for expr in self._exprs)) - {""}

    @property
    def headers(self) -> set[str]:
        """The headers of its formulas and of its CPU kernel."""
        cpu = self.forward.kernel("cpu")
        return self.includes | ({cpu.include} if cpu else set())

    @property
    def draws_keys(self) -> bool:
        """True if a random function of its formulas may get no key."""
        return any(not expr.mlx.isdisjoint(expr.impure) for expr in self._exprs)

    @property
    def backends(self) -> tuple[str, ...]:
        """The supported backends: metal is its own kernel, gpu is MLX's ops on the GPU."""
        own = tuple(k.backend for k in self.forward.kernels)
        composed = self.forward.expr is not None
        return (*own, *(b for b in ("cpu", "gpu") if composed and not self.has_kernel(b)))

    def has_kernel(self, place: str) -> bool:
        """Return whether it has a kernel for the cpu or the gpu."""
        return self.forward.kernel("metal" if place == "gpu" else place) is not None

    def at_line(self, line: int) -> Op:
        """Return a copy for another line of the file."""
        return replace(self, line=line)


def dotted_names(aliases: Iterable[str], module: str) -> list[str]:
    """Return aliases with their submodules: a dotted one names its own."""
    return [name if "." in name or not module else f"{module}.{name}" for name in aliases]


@cache
def camel(name: str) -> str:
    """Return the class name of an op: axpby -> Axpby, rms_norm -> RmsNorm, _softmax -> Softmax_."""
    parts = "".join(part[:1].upper() + part[1:] for part in name.split("_") if part)
    return f"{parts}_" if name[0] == "_" else parts
