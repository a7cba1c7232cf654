"""From entries as written to operators as meant: every decision of the generator is made here.

Two passes. The first reads each entry by itself (keys, names, signature) into a ``Draft``. The
second, which may look at all drafts, compiles formulas, matches kernels and builds the immutable
``model.Op``. Whatever is wrong is reported at its place in the YAML, all of it in one run; an op
with an error is left out of the result, and nothing is written when anything was reported.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..diagnostics import Diagnostics, Span, did_you_mean
from ..formula.compile import Name, Scope, Want, compile_formula
from ..formula.mlx import table
from ..model.dtypes import CATEGORIES, DTYPES, FLOATING, INTEGER
from ..model.op import (
    Condition,
    DtypeRule,
    Expr,
    Form,
    Grad,
    GradKind,
    Kernel,
    Op,
    Parameter,
    Rule,
    Written,
)
from ..model.signature import Kind, Signature, Type, with_article
from ..read.keys import ArraySample, GradFunction, OpEntry, validate
from ..read.names import clash
from ..read.settings import Settings
from ..read.signature import combine, parse_signature
from ..read.sources import Sources, metal_stem
from ..read.yaml import Document, Entry, name_of
from .kernels import (
    bound_call,
    match_kernels,
    require_function,
    require_manual,
    require_own_name,
)

# What generated functions use themselves: an argument of such a name gets a suffix in C++. A test
# finds what is missing.
LOCALS = frozenset(
    """C apply arg axes batched bfloat composite constant count dense device dtype element encoder
    eval_cpu eval_gpu forward gradient grid_x grid_y group_x group_y half has_kernel i in int32_t
    int64_t interleaved is_equivalent item joint jvp jvps k kDispatch kDtypes kKernels like name
    ndim next one op other output_shapes pipeline positive primitive pullback run_cpu run_metal
    shape shapes size_t source tag task term thread_grid thread_index to uint2 vjp vjps
    vmap""".split()  # noqa: SIM905
)
_HELPERS = ("shapes", "composite", "loop", "python", "dense", "strided")  # <op>_shapes...

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)

Path = tuple[str | int, ...]


@dataclass
class Draft:
    """An entry after the first pass."""

    entry: Entry
    raw: OpEntry
    name: str
    signature: Signature
    left_out: frozenset[str]  # keys that have an error, and are therefore not in `raw`
    ok: bool = True

    @property
    def label(self) -> str:
        """How messages about other entries name it."""
        return f"op '{self.name}'"

    @property
    def at_name(self) -> Path:
        """The key that has its name, if it is not in the signature."""
        return ("name",) if self.raw.name else ()

    @property
    def name_span(self) -> Span:
        """Where its name stands."""
        if self.raw.name:
            return self.entry.span(("name",))
        for key in ("signature", "python_signature", "cpp_signature"):
            text = getattr(self.raw, key) or ""
            if found := re.search(rf"\b{re.escape(self.name)}(?=\s*\()", text):
                return self.entry.text_span((key,), *found.span())
        return self.entry.span()


def camel(name: str) -> str:
    """Class name of an op: axpby -> Axpby, rms_norm -> RmsNorm."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_") if part)


class Resolver:
    """The two passes over one file."""

    def __init__(
        self, document: Document, settings: Settings, sources: Sources, diags: Diagnostics
    ) -> None:
        self.document = document
        self.settings = settings
        self.sources = sources
        self.diags = diags
        self.drafts: dict[str, Draft] = {}
        self.signatures: dict[str, Signature] = {}
        self.op_cpp: dict[str, str] = {}
        self.class_names: set[str] = set()
        self.broken: set[str] = set()  # names of entries whose signature is not known

    def run(self) -> list[Op]:
        """All operators, in the order of the file."""
        for entry in self.document.entries:
            draft = self._draft(entry)
            if draft is None:
                continue
            known = self.drafts.get(draft.name)
            if known is not None:
                self.error(
                    "MG601",
                    "defined twice",
                    draft,
                    draft.at_name,
                    help=f"first defined on line {known.entry.span().line}",
                )
                continue
            self.drafts[draft.name] = draft
        if not self.document.complete:
            self.broken |= set(self.document.names()) - set(self.drafts)
        for draft in self.drafts.values():
            self.signatures[draft.name] = draft.signature
            self.op_cpp[draft.name] = f"{self.settings.namespace}::{draft.name}"
        self._check_cpp_names()
        self._check_python_names()
        ops = []
        for draft in self.drafts.values():
            op = OpResolver(self, draft).run()
            if op is not None:
                ops.append(op)
        self._check_cycles(ops)
        return ops

    def error(
        self, code: str, message: str, draft: Draft, path: Path = (), *, help: str | None = None
    ) -> None:
        """Report at a value of an entry, which is then not resolved."""
        draft.ok = False
        span = draft.entry.span(path) if path else draft.name_span
        self.diags.error(code, message, span, help=help, op=draft.name)

    # First pass

    def _draft(self, entry: Entry) -> Draft | None:
        shown = name_of(entry.data)
        raw, left_out = validate(entry, shown, self.diags)
        signature = self._signature(entry, raw, shown, left_out) if raw else None
        if raw is None or signature is None:
            if shown is not None:
                self.broken.add(shown)
            return None
        name = raw.name or signature.name
        if name is None:
            if "name" not in left_out:
                self.diags.error(
                    "MG107",
                    "an entry without name",
                    entry.span(),
                    help="add `name: my_op`, or write the name in the signature",
                )
            return None
        draft = Draft(entry, raw, name, signature, left_out, ok=not left_out)
        if raw.name and signature.name and signature.name not in (raw.name, raw.python_name):
            key = "python_signature" if raw.python_signature else "signature"
            key = "cpp_signature" if getattr(raw, key) is None else key
            self.error(
                "MG109",
                f"the signature is called '{signature.name}'",
                draft,
                (key,),
                help=f"use one name: '{raw.name}'",
            )
        if raw.name:
            self._check_name(draft, name)
        if raw.python_name or draft.ok:
            path = ("python_name",) if raw.python_name else draft.at_name
            self._check_python_name(draft, raw.python_name or name, path)
        for i, alias in enumerate(raw.aliases):
            self._check_python_name(draft, alias, ("aliases", i))
        for part in (raw.module or "").split(".") if raw.module is not None else ():
            problem = python_problem(part)
            if problem or part in _PACKAGE_NAMES:
                self.error(
                    "MG115",
                    f"'{raw.module}' is not a module path: '{part}' "
                    + (problem or "is taken in every package"),
                    draft,
                    ("module",),
                    help="write names joined by dots, such as `special` or `nn.losses`",
                )
                break
        return draft

    def _check_name(self, draft: Draft, name: str) -> None:
        """The name in C++, where a function, a class, a header and a source are called so."""
        problem = None
        if not _IDENTIFIER.match(name):
            problem = "is not an identifier of C++"
        elif reason := clash(name, "an operator"):
            problem = f"cannot be used: {reason}"
        if problem:
            self.error("MG110", f"the name '{name}' {problem}", draft, ("name",), help=_RENAME)

    def _check_python_name(self, draft: Draft, name: str, path: Path) -> None:
        problem = python_problem(name)
        if problem is None and name in _PACKAGE_NAMES:
            problem = "is taken in every package"
        if problem is None and name in _STUB_NAMES:
            problem = "is a type in the generated stubs"
        if problem:
            self.error(
                "MG110",
                f"the Python name '{name}' {problem}",
                draft,
                path,
                help="choose another with `python_name`" if path[:1] != ("aliases",) else None,
            )

    def _signature(
        self, entry: Entry, raw: OpEntry, op: str | None, left_out: frozenset[str]
    ) -> Signature | None:
        def report_at(key: str) -> Callable[[str, str, int, int, str | None], None]:
            def report(code: str, message: str, start: int, end: int, help: str | None) -> None:
                span = entry.text_span((key,), start, end)
                self.diags.error(code, message, span, help=help, op=op)

            return report

        if raw.signature is not None:
            for other in ("cpp_signature", "python_signature"):
                if getattr(raw, other) is not None:
                    self.diags.error(
                        "MG108",
                        f"`signature` and `{other}` are both given",
                        entry.span((other,), key=True),
                        help="keep `signature`, or the pair `cpp_signature`/`python_signature`",
                        op=op,
                    )
                    return None
            return parse_signature(raw.signature, "any", report_at("signature"))
        cpp = python = None
        if raw.cpp_signature is not None:
            cpp = parse_signature(raw.cpp_signature, "cpp", report_at("cpp_signature"))
        if raw.python_signature is not None:
            python = parse_signature(raw.python_signature, "python", report_at("python_signature"))
        if cpp and python:
            return combine(cpp, python, report_at("python_signature"))
        if raw.cpp_signature is not None and raw.python_signature is not None:
            return None
        given = raw.cpp_signature is not None or raw.python_signature is not None
        if not given and not left_out & {"signature", "cpp_signature", "python_signature"}:
            self.diags.error(
                "MG107",
                "no signature" if op else "an entry without signature",
                entry.span(("name",)) if raw.name else entry.span(),
                help='add e.g. `signature: "my_op(array x, float alpha=1) -> array"`',
                op=op,
            )
        return cpp or python

    def _check_cpp_names(self) -> None:
        """Classes, functions and files that two operators, or one and the package, would share."""
        package = self.settings.name
        taken = {package: f"include/{package}/{package}.h is the header of the whole package"}
        taken |= dict.fromkeys(("dispatch", "module"), "src has a file of that name")
        taken |= dict.fromkeys(
            (
                *("dispatch_table", "KernelInfo", "python", "cpu", "metal", "detail"),
                *("nb", "nanobind", "mx", "mlx", "mlxgen", "std"),
            ),
            "generated C++ uses it",
        )
        taken["kernel_info"] = "its class would be called KernelInfo, which generated C++ has"
        for folder, paths in (
            (self.settings.metal, self.sources.metal_files()),
            (self.settings.csrc, self.sources.cpp_files()),
        ):
            for path in paths:
                stem = metal_stem(path.relative_to(folder).as_posix())
                taken[f"metal_{stem}"] = f"the source of {path.name} is called so"
        self.class_names = {camel(name) for name in self.drafts}
        classes: dict[str, Draft] = {}
        files: dict[str, Draft] = {}
        for draft in self.drafts.values():
            name = draft.name
            reason = taken.get(name)
            if reason is None and re.fullmatch(r"bind_\d+", name):
                reason = "src has files of such names"
            if reason is None and name.endswith("_t"):
                reason = "C and C++ have types of such names"
            if reason is None and re.fullmatch(r"kDispatch|kKernels|k\w*Dtypes", name):
                reason = "generated C++ has constants of such names"
            if reason is None and camel(name) in (name, self.settings.namespace):
                reason = "its class would be called so as well; begin it with a small letter"
            if reason:
                self.error(
                    "MG110",
                    f"the name '{name}' cannot be used: {reason}",
                    draft,
                    draft.at_name,
                    help=_RENAME,
                )
                continue
            other = classes.setdefault(camel(name), draft)
            if other is not draft:
                self.error(
                    "MG602",
                    f"{other.label} has the same C++ class name '{camel(name)}'",
                    draft,
                    draft.at_name,
                    help=_RENAME,
                )
                continue
            other = files.setdefault(name.lower(), draft)
            if other is not draft:
                self.error(
                    "MG602",
                    f"{other.label} differs in capital letters only, and some file systems "
                    "cannot tell their sources apart",
                    draft,
                    draft.at_name,
                    help=_RENAME,
                )
            for part in _HELPERS:
                owner = self.drafts.get(name.removesuffix(f"_{part}"))
                if owner is not None and owner is not draft:
                    self.error(
                        "MG602",
                        f"the C++ of {owner.label} has a function '{name}' as well",
                        draft,
                        draft.at_name,
                        help=_RENAME,
                    )

    def _check_python_names(self) -> None:
        seen: dict[str, Draft] = {}
        modules: dict[str, Draft] = {}
        for draft in self.drafts.values():
            parts = draft.raw.module.split(".") if draft.raw.module else []
            for i in range(len(parts)):
                modules.setdefault(".".join(parts[: i + 1]), draft)
        for draft in self.drafts.values():
            raw = draft.raw
            if "internal" in raw.tags:
                continue
            prefix = f"{raw.module}." if raw.module else ""
            names: list[tuple[str, Path]] = [
                (raw.python_name or draft.name, ("python_name",) if raw.python_name else ()),
                *((alias, ("aliases", i)) for i, alias in enumerate(raw.aliases)),
            ]
            own: set[str] = set()
            for name, path in names:
                other = seen.setdefault(prefix + name, draft)
                if other is not draft or name in own:
                    self.error(
                        "MG603",
                        f"the Python name '{prefix}{name}' is taken by "
                        + (other.label if other is not draft else "the operator itself"),
                        draft,
                        path or draft.at_name,
                        help="choose another with `python_name`"
                        if path[:1] != ("aliases",)
                        else None,
                    )
                elif prefix + name in modules:
                    owner = modules[prefix + name]
                    self.error(
                        "MG604",
                        f"'{prefix}{name}' is a submodule as well, of {owner.label}",
                        draft,
                        path or draft.at_name,
                        help="rename one of them",
                    )
                own.add(name)

    def _check_cycles(self, ops: list[Op]) -> None:
        """Composites that call each other without end."""
        calls = {op.name: sorted(op.forward.ops) if op.forward else [] for op in ops}
        done: set[str] = set()
        for op in ops:
            trail: list[str] = []
            pending = [iter([op.name])]  # what is still to visit, from the outermost call inwards
            while pending:
                name = next(pending[-1], None)
                if name is None:
                    pending.pop()
                    if trail:
                        done.add(trail.pop())
                elif name in trail:
                    cycle = [*trail[trail.index(name) :], name]
                    self.error(
                        "MG605",
                        "a composite that calls itself"
                        if len(cycle) == 2
                        else "composites call each other in a circle: " + " -> ".join(cycle),
                        self.drafts[name],
                        ("composite",),
                        help="call MLX's own function of that name with mx.<name>, or give one of "
                        "them kernels without `composite`",
                    )
                    done.update(cycle)
                elif name in calls and name not in done:
                    trail.append(name)
                    pending.append(iter(calls[name]))


# Keys without which an entry cannot be understood further.
_FORM_KEYS = frozenset({"dispatch", "composite", "cpp", "shape", "dtype", "dtypes", "manual"})

_NO_GRADIENT = (GradKind.NONE, GradKind.ZERO)

_RENAME = "choose another name; `python_name` can give Python a different one"

# What every package has: generated or in _load.py.
_PACKAGE_NAMES = frozenset({"dispatch_table", "install_methods", "checks"})
# What stubs import or write in annotations.
_STUB_NAMES = frozenset(
    """array scalar bool int float str complex list tuple dict Sequence Literal TypeAlias Device
    DeviceType Dtype Stream ThreadLocalStream StreamOrDevice deprecated""".split()  # noqa: SIM905
)
# Members of mx.array that are no operations.
_ARRAY_MEMBERS = frozenset(
    "T at dtype imag item itemsize mT nbytes ndim real shape size tolist".split()  # noqa: SIM905
)


def python_problem(name: str) -> str | None:
    """Why ``name`` cannot be a public name in Python, if it cannot."""
    if not _IDENTIFIER.match(name):
        return "is not an identifier"
    if keyword.iskeyword(name):
        return "is a reserved word of Python"
    if name.startswith("_"):
        return "is private, by its underscore"
    return None


class OpResolver:
    """The second pass over one entry."""

    def __init__(self, resolver: Resolver, draft: Draft) -> None:
        self.resolver = resolver
        self.draft = draft
        self.raw = draft.raw
        self.entry = draft.entry
        self.signature = draft.signature
        self.ok = draft.ok
        self.unusable = False  # nothing more can be said about the entry
        self.dtypes_known = True
        self.extra_includes: list[str] = []

    def error(
        self,
        code: str,
        message: str,
        path: Path,
        *,
        key: bool = False,
        help: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Report at a key or value of the entry; at its name for an empty path."""
        self.ok = False
        span = self.entry.span(path, key=key) if path else self.draft.name_span
        self.resolver.diags.error(code, message, span, help=help, op=self.draft.name, notes=notes)

    def formula(self, path: Path, text: str, scope: Scope, want: Want) -> Expr | None:
        """Compile one formula of the entry; problems are reported inside its text."""

        def report(code: str, message: str, start: int, end: int, help: str | None) -> None:
            self.ok = False
            name = text[start:end]
            if name in self.resolver.broken:
                return  # an entry that has errors of its own
            if name == "grad" and name not in scope.names:
                # mx.grad exists, and is not what was meant.
                code, message = "MG303", "there is no cotangent in this formula"
                help = "in `jvp` the tangent is called `tangent`" if path[0] == "jvp" else None
            self.resolver.diags.error(
                code,
                message,
                self.entry.text_span(path, start, end),
                help=help,
                op=self.draft.name,
            )

        return compile_formula(text, scope, want, report)

    def run(self) -> Op | None:
        """The resolved op, or None when something was reported."""
        raw = self.raw
        if raw.dispatch is not None or {"eval_cpu", "eval_gpu"} & set(raw.manual):
            self.form = Form.KERNELS
        elif raw.composite is not None:
            self.form = Form.COMPOSITE
        else:
            self.form = Form.BIND
        if self.draft.left_out & _FORM_KEYS:
            return None  # how the forward is given is not known
        self._check_keys()
        self.elementwise = self.form is Form.KERNELS and raw.shape is None
        self.rules, self.params = self._parameters()
        self.arrays = [p for p in self.params if p.type.is_array]
        by_name = {p.name: p for p in self.params}
        self._check_documentation(by_name)
        self._check_samples(by_name)
        if self.unusable:
            return None
        forward, text = self._forward()
        shapes = self._shapes()
        before = len(self.resolver.diags)
        out_dtypes = self._out_dtypes()
        self.dtypes_known = self.dtypes_known and len(self.resolver.diags) == before
        checks = self._checks()
        kernels: tuple[Kernel, ...] = ()
        if self.form is Form.KERNELS and self.dtypes_known:
            kernels = self._kernels()
        grads, own_gradient = self._grads(by_name)
        jvp, jvp_exprs = self._jvp(by_name, grads)
        vmap = self._vmap()
        require_own_name(self)
        for part in raw.manual if self.form is Form.KERNELS else ():
            require_manual(self, part, camel(self.draft.name))
        if not self.ok:
            return None
        exprs: list[Expr | None] = [forward, *(g.expr for g in grads), *(e for _, e in jvp_exprs)]
        calls = sorted({name for e in exprs if e for name in e.ops} - {self.draft.name})
        return Op(
            entry=_written(raw),
            name=self.draft.name,
            python_name=raw.python_name or self.draft.name,
            class_name=camel(self.draft.name),
            signature=self.signature,
            params=tuple(self.params),
            form=self.form,
            file=self.resolver.document.path,
            line=self.entry.span().line,
            elementwise=self.elementwise,
            forward=forward,
            forward_text=text,
            kernels=kernels,
            grads=tuple(grads),
            own_gradient=own_gradient,
            jvp=jvp,
            jvp_exprs=tuple(jvp_exprs),
            vmap=vmap,
            shapes=shapes,
            out_dtypes=out_dtypes,
            rules=self.rules,
            checks=checks,
            calls=tuple(calls),
            includes=tuple(dict.fromkeys(self.extra_includes)),
            module=raw.module or "",
            tags=frozenset(raw.tags),
            manual=frozenset(raw.manual),
        )

    # Keys and parameters

    def _check_keys(self) -> None:
        """Keys that mean nothing in the form that the entry has."""
        raw = self.raw
        kernels_only = ("shape", "dtype", "dtypes", "integers", "vmap", "jvp", "manual")
        if self.form is not Form.KERNELS:
            for key in kernels_only:
                if getattr(raw, key) not in (None, []):
                    self.error(
                        "MG111",
                        f"`{key}` is for ops with kernels; "
                        + (
                            "a composite takes it from MLX"
                            if self.form is Form.COMPOSITE
                            else "a bound function brings its own"
                        ),
                        (key,),
                        key=True,
                        help="remove it, or add `dispatch`",
                    )
        if raw.cpp is not None and self.form is not Form.BIND:
            self.error(
                "MG111",
                f"`cpp` binds an existing function and cannot stand beside "
                f"`{'dispatch' if raw.dispatch else 'composite'}`",
                ("cpp",),
                key=True,
            )
        if not any(a.type.is_array for a in self.signature.args) and (
            self.form is Form.KERNELS or self.raw.grad is not None
        ):
            self.error("MG116", "an op with kernels or gradients needs an array argument", ())
            self.unusable = True
        if self.form is Form.KERNELS and any(
            o.type.kind is Kind.ARRAYS for o in self.signature.outputs
        ):
            self.error(
                "MG117",
                "kernels cannot return a list of arrays whose number only the call knows",
                ("signature",),
                help="name the outputs, or give a composite",
            )
            self.unusable = True
        if "method" in raw.variants:
            self._check_method()
        for key in ("tags", "variants", "manual"):
            given = getattr(raw, key)
            for i, item in enumerate(given):
                if item in given[:i]:
                    self.error("MG127", f"'{item}' is there twice", (key, i))
        self._check_manual()
        if "internal" in raw.tags and (raw.module or raw.aliases or "method" in raw.variants):
            self.error(
                "MG119",
                "an internal op is not bound in Python, so it has no module, alias or method",
                ("tags",),
            )

    def _check_method(self) -> None:
        """Whether the op can be a method of mx.array."""
        raw = self.raw
        name = raw.python_name or self.draft.name
        if "function" not in raw.variants:
            self.error(
                "MG118",
                "an operator is always a function too",
                ("variants",),
                help="write [function, method]",
            )
        if not (self.signature.args and self.signature.args[0].type.kind is Kind.ARRAY):
            self.error(
                "MG118", "a method needs an array as its first argument", ("variants",), key=True
            )
        if name in _ARRAY_MEMBERS or name in table().methods:
            self.error(
                "MG118",
                f"mx.array has '{name}' already",
                ("variants",),
                help="give it another `python_name`, or make it a function only",
            )

    def _check_manual(self) -> None:
        """Parts written by hand of which the entry says something all the same."""
        raw = self.raw
        given = {
            "vjp": ("grad",),
            "jvp": ("jvp",),
            "vmap": ("vmap",),
            "eval_cpu": ("dispatch", "cpu"),
            "eval_gpu": ("dispatch", "metal"),
        }
        for part, path in given.items():
            value = getattr(raw, path[0])
            if len(path) == 2 and isinstance(value, str):
                path = path[:1]  # one function for every backend
            elif len(path) == 2:
                value = (value or {}).get(path[1])
            if part in raw.manual and value is not None:
                self.error(
                    "MG405", f"`{path[-1]}` is given although {part} is manual", path, key=True
                )

    def _cpp_names(self, fixed: Mapping[str, str]) -> Iterator[str]:
        """What generated C++ calls each argument: its name, with a suffix where that is taken.

        Taken are the locals of generated functions, and what they are called after other arguments
        and outputs, such as ``alpha_`` for the member that keeps ``alpha``.
        """
        name = self.draft.name
        taken = {f"{name}_{part}" for part in _HELPERS} | {camel(name)}
        if len(self.signature.outputs) > 1:
            taken |= {f"{p}_{o.name}" for o in self.signature.outputs for p in ("to", "value")}
        for arg in self.signature.args:
            cpp = arg.name
            while True:
                names = {cpp}
                if arg.type.kind is Kind.ARRAYS:
                    names |= {f"{cpp}_size", f"{cpp}_size_"}
                elif not arg.type.is_array:
                    names.add(f"{cpp}_")
                elif arg.type.optional:
                    names |= {f"has_{cpp}", f"has_{cpp}_"}
                if arg.type.is_array:
                    names |= {f"strides_{cpp}"}
                if arg.name in fixed:
                    names |= {f"{cpp}_dtype", f"k{camel(cpp)}Dtypes"}
                if not names & taken and cpp not in LOCALS:
                    break
                cpp += "_arg"
            taken |= names
            yield cpp

    def _parameters(self) -> tuple[tuple[DtypeRule, ...], list[Parameter]]:
        fixed, group = self._dtypes()
        params: list[Parameter] = []
        position = 0
        dynamic: list[str] = []
        for arg, cpp in zip(self.signature.args, self._cpp_names(fixed), strict=True):
            if not arg.type.is_array:
                params.append(Parameter(arg, cpp))
                continue
            at = " + ".join([str(position), *dynamic]) if dynamic else str(position)
            present = ""
            if arg.type.kind is Kind.ARRAYS:
                dynamic.append(f"{cpp}_size_")
            elif arg.type.optional:
                present = f"has_{cpp}_"
                dynamic.append(present)
            else:
                position += 1
            own = fixed.get(arg.name)
            params.append(
                Parameter(
                    arg,
                    cpp,
                    position=at,
                    present=present,
                    dtype=own,
                    integral=own in INTEGER or own == "bool_",
                    rule=f"k{camel(cpp)}Dtypes" if own else "kDtypes",
                )
            )
        arrays = [p for p in params if p.type.is_array]
        rules = []
        grouped = tuple(p for p in arrays if p.dtype is None)
        if grouped:
            integers = self._integers(group) if self.form is Form.KERNELS else "keep"
            rules.append(DtypeRule("kDtypes", group, integers, grouped))
        for p in arrays:
            if p.dtype is not None:
                rules.append(DtypeRule(p.rule, (p.dtype,), "keep", (p,)))
        return tuple(rules), params

    def _integers(self, group: tuple[str, ...]) -> str:
        """What integer inputs become."""
        given = self.raw.integers
        if given == "float32" and "float32" not in group:
            self.error(
                "MG129",
                "integers cannot become float32, which `dtypes` does not have",
                ("integers",),
                help="add float32 to `dtypes`, or write `integers: error`",
            )
        if given == "keep" and not any(d in INTEGER for d in group):
            self.error(
                "MG129",
                "integers cannot be kept: `dtypes` has none",
                ("integers",),
                help="add them to `dtypes`, or write float32 or error",
            )
        if given is None and any(d in INTEGER for d in group):
            return "keep"
        if given is None and "float32" not in group:
            return "error"
        return "to_float32" if given in (None, "float32") else given

    def _dtypes(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Dtypes fixed per argument, and those of the promoted group."""
        given = self.raw.dtypes
        fixed: dict[str, str] = {}
        group: tuple[str, ...] = FLOATING
        if given is None:
            return fixed, group
        if isinstance(given, list):
            return fixed, self._expand(given, ("dtypes",)) or FLOATING
        arrays = {a.name: a for a in self.signature.args if a.type.is_array}
        chosen: dict[str, tuple[str, ...]] = {}
        for name, names in given.items():
            if name not in arrays:
                self._unknown_argument("MG120", name, ("dtypes", name), arrays)
                self.dtypes_known = False
                continue
            dtypes = self._expand(names, ("dtypes", name))
            if len(dtypes) == 1:
                fixed[name] = dtypes[0]
            elif dtypes:
                chosen[name] = dtypes
        for name, dtypes in chosen.items():
            if dtypes != next(iter(chosen.values())):
                self.dtypes_known = False
                self.error(
                    "MG121",
                    f"the arguments promoted together have different dtypes: '{name}'",
                    ("dtypes", name),
                    help="give them the same list, or one single dtype to fix an argument",
                )
            group = dtypes
        return fixed, group

    def _expand(self, names: Iterable[str], path: Path) -> tuple[str, ...]:
        out: list[str] = []
        seen: set[str] = set()
        listed = isinstance(self._value(path), list)
        for i, name in enumerate(names):
            at = (*path, i) if listed else path
            name = {"bool": "bool_", "any": "generic"}.get(name, name)
            if name in seen:
                self.error("MG127", f"'{name}' is there twice", at)
            seen.add(name)
            if name in CATEGORIES:
                out += [d for d in CATEGORIES[name] if d not in out]
            elif name in DTYPES:
                if name not in out:
                    out.append(name)
            else:
                self.dtypes_known = False
                self.error(
                    "MG113",
                    f"unknown dtype '{name}'" + did_you_mean(name, [*DTYPES, *CATEGORIES]),
                    at,
                    help="dtypes: " + ", ".join(DTYPES) + "; categories: " + ", ".join(CATEGORIES),
                )
        return tuple(out)

    def _value(self, path: Path) -> Any:
        node: Any = self.entry.data
        for part in path:
            node = node[part]
        return node

    def _unknown_argument(
        self,
        code: str,
        name: str,
        path: Path,
        known: Iterable[str],
        what: str = "array argument",
        *,
        key: bool = True,
    ) -> None:
        names = list(known)
        self.error(
            code,
            f"there is no {what} '{name}'" + did_you_mean(name, names),
            path,
            key=key,
            help=f"{what}s: {', '.join(names)}" if names else None,
        )

    def _check_documentation(self, by_name: Mapping[str, Parameter]) -> None:
        for name in self.raw.args:
            if name not in by_name:
                self._unknown_argument("MG112", name, ("args", name), by_name, "argument")
        if isinstance(self.raw.returns, dict):
            outputs = [o.name for o in self.signature.outputs]
            for name in self.raw.returns:
                if name not in outputs:
                    self._unknown_argument("MG112", name, ("returns", name), outputs, "output")

    def _check_samples(self, by_name: Mapping[str, Parameter]) -> None:
        listed = isinstance(self.entry.data.get("samples"), list)
        for i, sample in enumerate(self.raw.samples):
            base: Path = ("samples", i) if listed else ("samples",)
            for name, value in sample.items():
                param = by_name.get(name)
                if param is None:
                    self._unknown_argument("MG114", name, (*base, name), by_name, "argument")
                    continue
                problem = _sample_problem(param.type, value)
                if problem:
                    self.error(
                        "MG122", f"the sample of '{name}' does not fit: {problem}", (*base, name)
                    )
            for param in self.params:
                if (
                    not param.type.is_array
                    and param.arg.default is None
                    and not param.type.optional
                    and param.name not in sample
                ):
                    self.error(
                        "MG123",
                        f"the sample gives no value for '{param.name}', which has no default",
                        base,
                    )

    # Scopes

    def _scope(self, *, member: bool = False, stream: str | None = "s") -> dict[str, Name]:
        """Arguments by name; attributes are members inside a primitive's methods."""
        names = {}
        for p in self.params:
            cpp = p.member if member and not p.type.is_array else p.cpp
            names[p.name] = Name(p.type, cpp)
        return names

    def _make_scope(self, names: Mapping[str, Name], stream: str | None = "s") -> Scope:
        return Scope(
            names=names, ops=self.resolver.signatures, op_cpp=self.resolver.op_cpp, stream=stream
        )

    # Forward, shapes, dtypes, checks

    def _want_outputs(self) -> Want:
        outputs = self.signature.outputs
        if len(outputs) > 1:
            return Want.arrays(len(outputs))
        return Want.arrays(None) if outputs[0].type.kind is Kind.ARRAYS else Want.array()

    def _forward(self) -> tuple[Expr | None, str]:
        raw = self.raw
        if raw.composite is not None:
            scope = self._make_scope(self._scope())
            return self.formula(("composite",), raw.composite, scope, self._want_outputs()), (
                raw.composite
            )
        if self.form is Form.BIND:
            return bound_call(self, self._make_scope(self._scope()), self._want_outputs())
        return None, ""

    def _per_output(self, given: str | dict[str, str] | None, key: str) -> dict[str, str]:
        """A rule's text by output name."""
        outputs = self.signature.outputs
        if given is None:
            return {}
        if isinstance(given, str):
            return {o.name: given for o in outputs}
        names = [o.name for o in outputs]
        for name in given:
            if name not in names:
                self._unknown_argument("MG124", name, (key, name), names, "output")
        return given

    def _shapes(self) -> tuple[Rule, ...]:
        texts = self._per_output(self.raw.shape, "shape")
        if not texts:
            return ()
        scope = self._make_scope(self._scope(), None)
        rules = []
        for output in self.signature.outputs:
            text = texts.get(output.name)
            if text is None and set(texts) <= {o.name for o in self.signature.outputs}:
                self.error(
                    "MG125",
                    f"`shape` has no rule for the output '{output.name}'",
                    ("shape",),
                    help="every output needs a shape",
                )
            if text is None:
                continue
            path: Path = ("shape",) if isinstance(self.raw.shape, str) else ("shape", output.name)
            expr = self.formula(path, text, scope, Want.shape())
            if expr is not None:
                rules.append(Rule(text, expr))
        return tuple(rules)

    def _out_dtypes(self) -> tuple[Rule | None, ...]:
        texts = self._per_output(self.raw.dtype, "dtype")
        if not texts:
            return (None,) * len(self.signature.outputs)
        if texts and self.elementwise:
            self.error(
                "MG126",
                "`dtype` is for kernels with a `shape` rule; an elementwise kernel computes in "
                "the dtype of its inputs",
                ("dtype",),
                key=True,
                help="add `shape`, or cast in a composite",
            )
            return ()
        names = self._scope()
        for p in self.arrays:
            if p.type.kind is Kind.ARRAY and not p.type.optional:
                position = p.position
                for q in self.arrays:  # the op function has no members
                    position = position.replace(f"{q.cpp}_size_", f"{q.cpp}.size()")
                    if q.present:
                        position = position.replace(q.present, f"{q.cpp}.has_value()")
                names[p.name] = Name(p.type, f"inputs[{position}]")
        scope = self._make_scope(names, None)
        rules: list[Rule | None] = []
        for output in self.signature.outputs:
            text = texts.get(output.name)
            if text is None:
                rules.append(None)
                continue
            path: Path = ("dtype",) if isinstance(self.raw.dtype, str) else ("dtype", output.name)
            expr = self.formula(path, text, scope, Want.dtype())
            rules.append(Rule(text, expr) if expr is not None else None)
        return tuple(rules)

    def _checks(self) -> tuple[Condition, ...]:
        if not self.raw.checks:
            return ()
        scope = self._make_scope(self._scope(), None)
        checks = []
        for i, check in enumerate(self.raw.checks):
            expr = self.formula(("checks", i, "that"), check.that, scope, Want.bool())
            if expr is not None:
                checks.append(Condition(check.that, expr, check.otherwise.rstrip(".") + "."))
        return tuple(checks)

    def _kernels(self) -> tuple[Kernel, ...]:
        return match_kernels(self)

    # Gradients

    def _gradient_scope(self, member: bool, grad_cpp: str | None = None) -> dict[str, Name]:
        names = self._scope(member=member)
        outputs = self.signature.outputs
        array = Type(Kind.ARRAY)
        arrays = Type(Kind.ARRAYS)
        if len(outputs) == 1 and outputs[0].type.kind is Kind.ARRAY:
            grad = Name(array, grad_cpp or "cotangents[0]")
            names["grad"] = names["grad_out"] = grad
            names["result"] = Name(array, "outputs[0]")
        # How many a list of arrays holds, only the call knows.
        count = None if outputs[0].type.kind is Kind.ARRAYS else len(outputs)
        grads = f"std::vector<mx::array>{{{grad_cpp}}}" if grad_cpp else "cotangents"
        names["grads"] = Name(arrays, grads, count)
        names["results"] = Name(arrays, "outputs", count)
        if outputs[0].type.kind is Kind.ARRAY:
            for i, output in enumerate(outputs):
                names[f"grad_{output.name}"] = Name(array, grad_cpp or f"cotangents[{i}]")
                names[f"result_{output.name}"] = Name(array, f"outputs[{i}]")
        return names

    def _grads(self, by_name: Mapping[str, Parameter]) -> tuple[list[Grad], bool]:
        raw = self.raw
        given = raw.grad
        manual = "vjp" in raw.manual
        if given == "none":
            return [Grad((p,), GradKind.NONE, "none") for p in self.arrays], (
                self.form is not Form.KERNELS
            )
        texts: dict[str, str | GradFunction] = given if isinstance(given, dict) else {}
        member = self.form is Form.KERNELS
        grads: list[Grad] = []
        seen: dict[str, str] = {}
        for key, value in texts.items():
            path: Path = ("grad", key)
            params = self._grad_arguments(key, path, by_name, seen)
            if params is None:
                continue
            if isinstance(value, GradFunction):
                grads.append(
                    Grad(
                        tuple(params),
                        GradKind.FUNCTION,
                        value.function,
                        function=require_function(self, value.function, (*path, "function")),
                    )
                )
                continue
            text = value.strip()
            if integral := [p.name for p in params if p.integral and text != "none"]:
                self.error(
                    "MG402",
                    f"'{integral[0]}' is an array of integers, which has no gradient",
                    path,
                    key=True,
                    help=f"write `{key}: none`, or remove it",
                )
            if text in ("none", "zero"):
                kind = GradKind.NONE if text == "none" else GradKind.ZERO
                grads += [Grad((p,), kind, text) for p in params]
                continue
            names = self._gradient_scope(member)
            if len(params) == 1:
                p = params[0]
                if p.type.optional:  # asked for only when the argument was given
                    names[p.name] = Name(Type(Kind.ARRAY), f"(*{p.cpp})")
                want = Want.arrays(None) if p.is_list else Want.array()
            else:
                want = Want.arrays(len(params))
                if any(p.is_list for p in params):
                    self.error(
                        "MG406",
                        "a list of arrays cannot share a gradient formula with other arguments",
                        path,
                        key=True,
                        help="give it a formula of its own, or a hand-written function",
                    )
                    continue
            if "grad" not in names and re.search(r"\bgrad(_out)?\b", text):
                outputs = ", ".join(f"grad_{o.name}" for o in self.signature.outputs)
                self.error(
                    "MG407",
                    "`grad` is ambiguous: the op has several outputs",
                    path,
                    help=f"use {outputs} or grads[i]",
                )
                continue
            expr = self.formula(path, text, self._make_scope(names), want)
            if expr is not None:
                grads.append(Grad(tuple(params), GradKind.FORMULA, text, expr))
        missing = [p for p in self.arrays if p.name not in seen]
        unknown = [name for name in seen if name not in by_name]
        if len(unknown) >= len([p for p in missing if not p.integral]):
            missing = []  # they are there, misspelt
        if manual:
            return [], False
        composite = raw.composite is not None
        for p in missing:
            if p.integral:
                grads.append(Grad((p,), GradKind.NONE, "none (integers)"))
            elif self.form is Form.KERNELS and composite:
                grads.append(Grad((p,), GradKind.COMPOSITE, "of the composite"))
            elif "grad" not in self.draft.left_out and (
                self.form is Form.KERNELS or given is not None
            ):
                self.error(
                    "MG403",
                    f"no gradient for '{p.name}'",
                    ("grad",) if given is not None else (),
                    key=given is not None,
                    help=f"add `{p.name}: <formula>`, `{p.name}: none` (not differentiable) or "
                    f"`{p.name}: zero`"
                    + ("" if composite else ", or a `composite` from which it follows"),
                )
        own = given is not None and self.form is not Form.KERNELS
        return grads, own

    def _grad_arguments(
        self, key: str, path: Path, by_name: Mapping[str, Parameter], seen: dict[str, str]
    ) -> list[Parameter] | None:
        params = []
        names = [part.strip() for part in key.split(",")]
        twice = [name for i, name in enumerate(names) if name in seen or name in names[:i]]
        seen.update(dict.fromkeys(names, key))
        for name in names:
            param = by_name.get(name)
            if param is None:
                self._unknown_argument("MG401", name, path, [p.name for p in self.arrays])
                return None
            if not param.type.is_array:
                self.error(
                    "MG402",
                    f"'{name}' is {with_article(param.type)}, and gradients exist for arrays only",
                    path,
                    key=True,
                    help="make it an array argument, or remove the gradient",
                )
                return None
            if name in twice:
                self.error("MG404", f"two gradients for '{name}'", path, key=True)
                return None
            params.append(param)
        return params

    def _jvp(
        self, by_name: Mapping[str, Parameter], grads: list[Grad]
    ) -> tuple[str, list[tuple[Parameter, Expr]]]:
        raw = self.raw
        if "jvp" in raw.manual:
            return "manual", []
        if self.form is not Form.KERNELS:
            return "", []
        if raw.jvp in ("linear", "none"):
            return str(raw.jvp), []
        if isinstance(raw.jvp, dict):
            smooth = [p.name for g in grads for p in g.params if g.kind not in _NO_GRADIENT]
            missing = [name for name in smooth if name not in raw.jvp]
            if len(missing) <= len(raw.jvp.keys() - by_name.keys()):
                missing = []  # they are there, misspelt
            for name in missing:
                self.error(
                    "MG412",
                    f"no jvp for '{name}', which has a gradient",
                    ("jvp",),
                    key=True,
                    help=f"add `{name}: <formula>` or `{name}: none`, or remove `jvp`: it is then "
                    "derived",
                )
            return "formula", self._jvp_formulas(raw.jvp, by_name)
        formulas = [g for g in grads if g.kind is GradKind.FORMULA]
        substitutable = (
            self.elementwise
            and len(self.signature.outputs) == 1
            and all(
                g.kind in (GradKind.FORMULA, GradKind.ZERO, GradKind.NONE) and not g.joint
                for g in grads
            )
            and bool(formulas)
        )
        if raw.jvp == "elementwise" and not substitutable:
            self.error(
                "MG408",
                "`jvp: elementwise` needs an elementwise op with one output and a gradient "
                "formula per argument",
                ("jvp",),
                help="remove it: the jvp is then derived from the vjp, which is exact as well",
            )
        if substitutable:
            # The Jacobian is diagonal, hence its own transpose: the formula with the tangent
            # in the cotangent's place is the jvp.
            names = self._gradient_scope(True, "tangents[i]")
            scope = self._make_scope(names)
            out = []
            for g in formulas:
                expr = self.formula(("grad", g.params[0].name), g.text, scope, Want.array())
                if expr is not None:
                    out.append((g.params[0], expr))
            return "elementwise", out
        if grads and all(
            g.kind is GradKind.COMPOSITE for g in grads if g.kind is not GradKind.NONE
        ):
            return ("none" if all(g.kind is GradKind.NONE for g in grads) else "composite"), []
        return "vjp", []

    def _jvp_formulas(
        self, given: dict[str, str], by_name: Mapping[str, Parameter]
    ) -> list[tuple[Parameter, Expr]]:
        names = self._scope(member=True)
        names["tangent"] = Name(Type(Kind.ARRAY), "tangents[i]")
        array = Type(Kind.ARRAY)
        names["results"] = Name(Type(Kind.ARRAYS), "outputs", len(self.signature.outputs))
        if len(self.signature.outputs) == 1:
            names["result"] = Name(array, "outputs[0]")
        out = []
        for name, text in given.items():
            param = by_name.get(name)
            if param is None or not param.type.is_array:
                self._unknown_argument("MG409", name, ("jvp", name), [p.name for p in self.arrays])
                continue
            if text.strip() == "none":
                continue  # asking for it is an error
            if param.is_list:
                self.error(
                    "MG410",
                    f"'{name}' is a list of arrays, which has no jvp formula",
                    ("jvp", name),
                    key=True,
                    help="remove it: the jvp is then derived from the vjp",
                )
                continue
            scope_names = dict(names)
            if param.type.optional:
                scope_names[name] = Name(array, f"(*{param.cpp})")
            expr = self.formula(
                ("jvp", name), text, self._make_scope(scope_names), self._want_outputs()
            )
            if expr is not None:
                out.append((param, expr))
        return out

    def _vmap(self) -> str:
        raw = self.raw
        if "vmap" in raw.manual:
            return "manual"
        if self.form is not Form.KERNELS:
            return ""
        if raw.vmap == "elementwise" and not self.elementwise:
            self.error(
                "MG411",
                "`vmap: elementwise` needs an op without a `shape` rule",
                ("vmap",),
                help="use `batch` if leading axes are a batch, else `sequential`",
            )
        return raw.vmap or ("elementwise" if self.elementwise else "sequential")


def _written(raw: OpEntry) -> Written:
    """What is passed on of an entry as it stands."""
    return Written(
        doc=raw.doc,
        args=raw.args,
        returns=raw.returns,
        composite=raw.composite,
        samples=[{name: _plain(value) for name, value in s.items()} for s in raw.samples],
        variants=raw.variants,
        aliases=raw.aliases,
        tags=raw.tags,
        deprecated=raw.deprecated,
    )


def _plain(value: Any) -> Any:
    """A sample's value without models."""
    if isinstance(value, ArraySample):
        return value.model_dump(exclude_defaults=True)
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _sample_problem(type: Type, value: Any) -> str | None:
    """What is wrong with a sample's value for an argument of this type."""
    if value is None:
        return None if type.optional else f"{with_article(type)} cannot be None"
    if type.kind is Kind.ARRAY:
        if not isinstance(value, ArraySample):
            return "an array is described by a mapping, such as {shape: [3, 4], low: 0, high: 1}"
        return _array_problem(value)
    if type.kind is Kind.ARRAYS:
        if not isinstance(value, list) or not all(isinstance(v, ArraySample) for v in value):
            return "a list of arrays is a list of mappings, such as [{low: 0}, {low: 1}]"
        return next(filter(None, map(_array_problem, value)), None)
    is_int = _is_int(value)
    ints = isinstance(value, list) and all(map(_is_int, value))
    fits = {
        Kind.FLOAT: is_int or isinstance(value, float),
        Kind.INT: is_int and -(1 << 31) <= value < 1 << 31,
        Kind.BOOL: isinstance(value, bool),
        Kind.STR: isinstance(value, str),
        Kind.ENUM: isinstance(value, str) and value in type.choices,
        Kind.DTYPE: isinstance(value, str) and value in DTYPES,
        Kind.INTS: ints and type.length in (None, len(value)),
        Kind.SHAPE: ints and all(v >= 0 for v in value),
        Kind.AXES: is_int or ints,
    }[type.kind]
    if fits:
        return None
    if type.kind is Kind.ENUM:
        return f"it is one of {type.listed_choices}"
    return f"{with_article(type)} is wanted"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _array_problem(sample: ArraySample) -> str | None:
    """What is wrong with the description of an array."""
    if sample.dtype is not None and sample.dtype not in (*DTYPES, "bool"):
        return f"unknown dtype '{sample.dtype}'" + did_you_mean(sample.dtype, DTYPES)
    if any(not 0 <= n < 1 << 31 for n in sample.shape or ()):
        return f"{sample.shape} is no shape"
    if not sample.low <= sample.high:
        return f"low ({sample.low}) is above high ({sample.high})"
    if sample.values is not None:
        if {"shape", "low", "high", "away_from"} & sample.model_fields_set:
            return "values are given, so that shape, low, high and away_from say nothing"
        if _shape_of(sample.values) is None:
            return "values are numbers in lists of equal lengths"
    return None


def _shape_of(values: Any) -> tuple[int, ...] | None:
    """The shape of nested lists of numbers, or None if they are no table."""
    if isinstance(values, (bool, int, float)):
        return ()
    if not isinstance(values, list):
        return None
    shapes = {_shape_of(value) for value in values}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(values), *(shapes.pop() or () if shapes else ()))


def resolve(
    document: Document, settings: Settings, sources: Sources, diags: Diagnostics
) -> list[Op]:
    """Resolve a whole file.

    Args:
        document: The parsed YAML.
        settings: Package name, namespace and paths.
        sources: The hand-written C++ and Metal sources.
        diags: Collects what is wrong.

    Returns:
        The operators without errors, in the order of the file.
    """
    return Resolver(document, settings, sources, diags).run()
