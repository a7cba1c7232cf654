"""From entries as written to operators as meant: every decision of the generator is made here.

Two passes. The first reads each entry by itself (keys, names, signature) into a ``Draft``. The
second, which may look at all drafts, compiles formulas, matches kernels and builds the immutable
``model.Op``. Whatever is wrong is reported at its place in the YAML, all of it in one run; an op
with an error is left out of the result, and nothing is written when anything was reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .diagnostics import Diagnostics, suggest
from .formula import Expr, Name, Scope, Want, compile_formula
from .kernels import Sources, bound_call, match_kernels, require_function, require_manual
from .model import (
    Condition,
    DtypeRule,
    Form,
    Grad,
    GradKind,
    Kernel,
    Op,
    Parameter,
    Rule,
)
from .schema import ArraySample, GradFunction, OpEntry, validate
from .settings import Settings
from .signature import RESERVED, Kind, Signature, Type, combine, parse_signature
from .source import Document, Entry

FLOATING = ("float16", "bfloat16", "float32", "float64")
INTEGER = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
DTYPES = ("bool_", *INTEGER, *FLOATING, "complex64")
CATEGORIES = {
    "floating": FLOATING,
    "integer": INTEGER,
    "signedinteger": INTEGER[4:],
    "unsignedinteger": INTEGER[:4],
    "inexact": (*FLOATING, "complex64"),
    "number": (*INTEGER, *FLOATING, "complex64"),
    "generic": DTYPES,
}

# Locals and members of generated functions: an argument of such a name gets a suffix in C++.
LOCALS = frozenset(
    """arg argnums args axes cotangents dtype dtypes encoder fun inputs joint kernel other outputs
    primals primitive s shape shapes stream tag tangent tangents term threads to types values vjps
    vmap jvp vjp name device eval_cpu eval_gpu run_cpu run_metal is_equivalent output_shapes
    kDispatch mx std mlxgen nb m in out_shape self batched loop begin data size index""".split()
)
# Names that generated namespaces use themselves.
NAMESPACES = frozenset({"mx", "std", "mlxgen", "mlx", "cpu", "metal", "detail", "nb", "nanobind"})

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")

Path = tuple[str | int, ...]


@dataclass
class Draft:
    """An entry after the first pass."""

    entry: Entry
    raw: OpEntry
    name: str
    signature: Signature
    ok: bool = True

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"op '{self.name}'"


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

    def run(self) -> list[Op]:
        """All operators, in the order of the file."""
        for entry in self.document.entries:
            draft = self._draft(entry)
            if draft is None:
                continue
            known = self.drafts.get(draft.name)
            if known is not None:
                self.diags.error(
                    "MG601",
                    f"{draft.label} is defined twice",
                    entry.span(("name",) if draft.raw.name else ()),
                    op=draft.name,
                    help=f"first defined on line {known.entry.span().line}",
                )
                continue
            self.drafts[draft.name] = draft
        for draft in self.drafts.values():
            self.signatures[draft.name] = draft.signature
            # Qualified: unqualified calls would find MLX's function of the same name as well.
            self.op_cpp[draft.name] = f"{self.settings.namespace}::{draft.name}"
        self._check_python_names()
        ops = []
        for draft in self.drafts.values():
            op = OpResolver(self, draft).run()
            if op is not None:
                ops.append(op)
        self._check_cycles(ops)
        return ops

    # First pass

    def _draft(self, entry: Entry) -> Draft | None:
        given = entry.data.get("name")
        label = f"op '{given}'" if isinstance(given, str) else "entry"
        raw = validate(entry, label, self.diags)
        if raw is None:
            return None
        signature = self._signature(entry, raw, label)
        if signature is None:
            return None
        name = raw.name or signature.name
        if name is None:
            self.diags.error(
                "MG107",
                "entry has no name",
                entry.span(),
                help="add `name: my_op`, or write the name in the signature",
            )
            return None
        if raw.name and signature.name and signature.name not in (raw.name, raw.python_name):
            key = "python_signature" if raw.python_signature else "signature"
            self.diags.error(
                "MG109",
                f"op '{raw.name}': the signature is called '{signature.name}'",
                entry.span((key,)),
                help=f"use one name: '{raw.name}'",
                op=raw.name,
            )
            return None
        draft = Draft(entry, raw, name, signature)
        self._check_name(draft, name, ("name",) if raw.name else ())
        if raw.python_name:
            self._check_name(draft, raw.python_name, ("python_name",))
        for i, alias in enumerate(raw.aliases):
            self._check_name(draft, alias, ("aliases", i))
        if raw.module is not None and not _MODULE.match(raw.module):
            self.diags.error(
                "MG115",
                f"{draft.label}: '{raw.module}' is not a module path",
                entry.span(("module",)),
                help="write names joined by dots, such as `special` or `nn.losses`",
                op=name,
            )
            draft.ok = False
        return draft

    def _check_name(self, draft: Draft, name: str, path: Path) -> None:
        problem = None
        if not _IDENTIFIER.match(name):
            problem = "is not an identifier"
        elif name in NAMESPACES:
            problem = "is used by the generated code itself"
        elif name in _OP_RESERVED:
            problem = _OP_RESERVED[name]
        elif name.startswith("__") or not name.strip("_"):
            problem = "is reserved"
        if problem:
            self.diags.error(
                "MG110",
                f"{draft.label}: the name '{name}' {problem}",
                draft.entry.span(path),
                help="choose another name; `python_name` can give Python a different one",
                op=draft.name,
            )
            draft.ok = False

    def _signature(self, entry: Entry, raw: OpEntry, label: str) -> Signature | None:
        def report_at(key: str) -> Callable[[str, str, int, int, str | None], None]:
            def report(code: str, message: str, start: int, end: int, help: str | None) -> None:
                span = entry.text_span((key,), start, end)
                self.diags.error(code, f"{label}: {message}", span, help=help, op=raw.name)

            return report

        if raw.signature is not None:
            for other in ("cpp_signature", "python_signature"):
                if getattr(raw, other) is not None:
                    self.diags.error(
                        "MG108",
                        f"{label}: `signature` and `{other}` are both given",
                        entry.span((other,), key=True),
                        help="keep `signature`, or the pair `cpp_signature`/`python_signature`",
                        op=raw.name,
                    )
                    return None
            return parse_signature(raw.signature, "any", report_at("signature"))
        cpp = python = None
        if raw.cpp_signature is not None:
            cpp = parse_signature(raw.cpp_signature, "cpp", report_at("cpp_signature"))
            if cpp is None:
                return None
        if raw.python_signature is not None:
            python = parse_signature(raw.python_signature, "python", report_at("python_signature"))
            if python is None:
                return None
        if cpp and python:
            return combine(cpp, python, report_at("python_signature"))
        if cpp is None and python is None:
            self.diags.error(
                "MG107",
                f"{label} has no signature",
                entry.span(("name",)) if raw.name else entry.span(),
                help='add e.g. `signature: "my_op(array x, float alpha=1) -> array"`',
                op=raw.name,
            )
        return cpp or python

    def _check_python_names(self) -> None:
        seen: dict[str, Draft] = {}
        classes: dict[str, Draft] = {}
        for draft in self.drafts.values():
            raw = draft.raw
            prefix = f"{raw.module}." if raw.module else ""
            names = [(raw.python_name or draft.name, ("python_name",) if raw.python_name else ())]
            names += [(alias, ("aliases", i)) for i, alias in enumerate(raw.aliases)]  # type: ignore[misc]
            for name, path in names:
                other = seen.setdefault(prefix + name, draft)
                if other is not draft or names[0][0] == name and path[:1] == ("aliases",):
                    self.diags.error(
                        "MG603",
                        f"{draft.label}: the Python name '{prefix}{name}' is taken by "
                        f"op '{other.name}'",
                        draft.entry.span(path),
                        op=draft.name,
                    )
                    draft.ok = False
            other = classes.setdefault(camel(draft.name), draft)
            if other is not draft:
                self.diags.error(
                    "MG602",
                    f"{draft.label} and op '{other.name}' have the same C++ class name "
                    f"'{camel(draft.name)}'",
                    draft.entry.span(("name",) if raw.name else ()),
                    op=draft.name,
                )
                draft.ok = False
        modules = {d.raw.module.split(".")[0] for d in self.drafts.values() if d.raw.module}
        for module in modules & set(seen):
            draft = seen[module]
            self.diags.error(
                "MG604",
                f"{draft.label}: '{module}' is also the name of a submodule",
                draft.entry.span(("name",) if draft.raw.name else ()),
                op=draft.name,
            )
            draft.ok = False

    def _check_cycles(self, ops: list[Op]) -> None:
        """Composites that call each other without end."""
        calls = {op.name: _forward_calls(op) for op in ops}
        done: set[str] = set()
        for op in ops:
            trail: list[str] = []

            def visit(name: str, trail: list[str] = trail) -> list[str] | None:
                if name in trail:
                    return [*trail[trail.index(name) :], name]
                if name in done or name not in calls:
                    return None
                trail.append(name)
                for callee in calls[name]:
                    if cycle := visit(callee):
                        return cycle
                trail.pop()
                done.add(name)
                return None

            if cycle := visit(op.name):
                draft = self.drafts[cycle[0]]
                self.diags.error(
                    "MG605",
                    f"{draft.label}: composites call each other in a circle: "
                    + " -> ".join(cycle),
                    draft.entry.span(("composite",)),
                    help="give one of them kernels, or write it with MLX ops only (mx.name)",
                    op=draft.name,
                )
                done.update(cycle)


_OP_RESERVED = {
    name: why
    for name, why in RESERVED.items()
    if name not in ("s", "stream", "grad", "grads", "result", "results", "out", "self")
}


def _forward_calls(op: Op) -> list[str]:
    return sorted(op.forward.ops) if op.forward is not None else []


class OpResolver:
    """The second pass over one entry."""

    def __init__(self, resolver: Resolver, draft: Draft) -> None:
        self.resolver = resolver
        self.draft = draft
        self.raw = draft.raw
        self.entry = draft.entry
        self.signature = draft.signature
        self.ok = draft.ok
        self.extra_includes: list[str] = []

    def error(
        self, code: str, message: str, path: Path, *, key: bool = False, help: str | None = None
    ) -> None:
        """Report at a key or value of the entry."""
        self.ok = False
        self.resolver.diags.error(
            code,
            f"{self.draft.label}: {message}",
            self.entry.span(path, key=key),
            help=help,
            op=self.draft.name,
        )

    def formula(self, path: Path, text: str, scope: Scope, want: Want) -> Expr | None:
        """Compile one formula of the entry; problems are reported inside its text."""

        def report(code: str, message: str, start: int, end: int, help: str | None) -> None:
            self.ok = False
            self.resolver.diags.error(
                code,
                f"{self.draft.label}: {message}",
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
        self._check_keys()
        self.elementwise = self.form is Form.KERNELS and raw.shape is None
        self.rules, self.params = self._parameters()
        self.arrays = [p for p in self.params if p.type.is_array]
        by_name = {p.name: p for p in self.params}
        self._check_documentation(by_name)
        self._check_samples(by_name)
        if not self.ok:
            return None
        forward, text = self._forward()
        shapes = self._shapes()
        out_dtypes = self._out_dtypes()
        checks = self._checks()
        kernels: tuple[Kernel, ...] = ()
        if self.form is Form.KERNELS:
            kernels = self._kernels()
        grads, own_gradient = self._grads(by_name)
        jvp, jvp_exprs = self._jvp(by_name, grads)
        vmap = self._vmap()
        for part in raw.manual:
            require_manual(self, part, camel(self.draft.name))
        if not self.ok:
            return None
        exprs: list[Expr | None] = [forward, *(g.expr for g in grads), *(e for _, e in jvp_exprs)]
        calls = sorted({name for e in exprs if e for name in e.ops} - {self.draft.name})
        return Op(
            entry=raw,
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
        if self.form is Form.KERNELS and any(
            o.type.kind is Kind.ARRAYS for o in self.signature.outputs
        ):
            self.error(
                "MG117",
                "kernels cannot return a list of arrays whose number only the call knows",
                ("signature",),
                help="name the outputs, or give a composite",
            )
        if "method" in raw.variants and not (
            self.signature.args and self.signature.args[0].type.kind is Kind.ARRAY
        ):
            self.error(
                "MG118", "a method needs an array as its first argument", ("variants",), key=True
            )
        if "internal" in raw.tags and (raw.module or raw.aliases or "method" in raw.variants):
            self.error(
                "MG119",
                "an internal op is not bound in Python, so it has no module, alias or method",
                ("tags",),
            )

    def _parameters(self) -> tuple[tuple[DtypeRule, ...], list[Parameter]]:
        fixed, group = self._dtypes()
        params: list[Parameter] = []
        position = 0
        dynamic: list[str] = []
        for arg in self.signature.args:
            cpp = f"{arg.name}_arg" if arg.name in LOCALS else arg.name
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
                    rule=f"k{camel(arg.name)}Dtypes" if own else "kDtypes",
                )
            )
        arrays = [p for p in params if p.type.is_array]
        rules = []
        grouped = tuple(p for p in arrays if p.dtype is None)
        if grouped:
            integers = self.raw.integers
            takes_integers = any(d in INTEGER for d in group)
            default = "keep" if takes_integers else "to_float32"
            chosen = {"float32": "to_float32", None: default}.get(integers, integers)
            rules.append(DtypeRule("kDtypes", group, str(chosen), grouped))
        for p in arrays:
            if p.dtype is not None:
                rules.append(DtypeRule(p.rule, (p.dtype,), "keep", (p,)))
        if self.form is Form.KERNELS and arrays and not grouped:
            # Every array has a dtype of its own: the first one's is the kernel's.
            pass
        return tuple(rules), params

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
                continue
            dtypes = self._expand(names, ("dtypes", name))
            if len(dtypes) == 1:
                fixed[name] = dtypes[0]
            elif dtypes:
                chosen[name] = dtypes
        for name, dtypes in chosen.items():
            if dtypes != next(iter(chosen.values())):
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
        for i, name in enumerate(names):
            name = {"bool": "bool_", "any": "generic"}.get(name, name)
            if name in CATEGORIES:
                out += [d for d in CATEGORIES[name] if d not in out]
            elif name in DTYPES:
                if name not in out:
                    out.append(name)
            else:
                guess = suggest(name, [*DTYPES, *CATEGORIES])
                at = (*path, i) if isinstance(self._value(path), list) else path
                self.error(
                    "MG113",
                    f"unknown dtype '{name}'" + (f" (did you mean '{guess}'?)" if guess else ""),
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
        self, code: str, name: str, path: Path, known: Iterable[str], what: str = "array argument"
    ) -> None:
        names = list(known)
        guess = suggest(name, names)
        self.error(
            code,
            f"there is no {what} '{name}'" + (f" (did you mean '{guess}'?)" if guess else ""),
            path,
            key=True,
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
                    self.error("MG122", f"sample of '{name}': {problem}", (*base, name))
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
            if text is None:
                self.error(
                    "MG125",
                    f"`shape` has no rule for the output '{output.name}'",
                    ("shape",),
                    help="every output needs a shape",
                )
                continue
            path: Path = ("shape",) if isinstance(self.raw.shape, str) else ("shape", output.name)
            expr = self.formula(path, text, scope, Want.shape())
            if expr is not None:
                rules.append(Rule(text, expr))
        return tuple(rules)

    def _out_dtypes(self) -> tuple[Rule | None, ...]:
        texts = self._per_output(self.raw.dtype, "dtype")
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
                names[p.name] = Name(p.type, f"inputs[{p.position}]")
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
        names["grads"] = Name(arrays, "cotangents")
        names["results"] = Name(arrays, "outputs")
        if outputs[0].type.kind is Kind.ARRAY:
            for i, output in enumerate(outputs):
                names[f"grad_{output.name}"] = Name(array, grad_cpp or f"cotangents[{i}]")
                names[f"result_{output.name}"] = Name(array, f"outputs[{i}]")
        return names

    def _grads(self, by_name: Mapping[str, Parameter]) -> tuple[list[Grad], bool]:
        raw = self.raw
        given = raw.grad
        manual = "vjp" in raw.manual
        if given is not None and manual:
            self.error("MG405", "`grad` is given although vjp is manual", ("grad",), key=True)
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
        if manual:
            return [], False
        composite = raw.composite is not None
        for p in missing:
            if p.integral:
                grads.append(Grad((p,), GradKind.NONE, "none (integers)"))
            elif self.form is Form.KERNELS and composite:
                grads.append(Grad((p,), GradKind.COMPOSITE, "of the composite"))
            elif self.form is Form.KERNELS or given is not None:
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
        for name in (part.strip() for part in key.split(",")):
            param = by_name.get(name)
            if param is None:
                self._unknown_argument("MG401", name, path, [p.name for p in self.arrays])
                return None
            if not param.type.is_array:
                self.error(
                    "MG402",
                    f"'{name}' is a {param.type.python}, and gradients exist for arrays only",
                    path,
                    key=True,
                    help="make it an array argument, or remove the gradient",
                )
                return None
            if name in seen:
                self.error("MG404", f"two gradients for '{name}'", path, key=True)
                return None
            seen[name] = key
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
        if grads and all(g.kind is GradKind.COMPOSITE for g in grads if g.kind is not GradKind.NONE):
            return ("none" if all(g.kind is GradKind.NONE for g in grads) else "composite"), []
        return "vjp", []

    def _jvp_formulas(
        self, given: dict[str, str], by_name: Mapping[str, Parameter]
    ) -> list[tuple[Parameter, Expr]]:
        names = self._scope(member=True)
        names["tangent"] = Name(Type(Kind.ARRAY), "tangents[i]")
        array = Type(Kind.ARRAY)
        names["results"] = Name(Type(Kind.ARRAYS), "outputs")
        if len(self.signature.outputs) == 1:
            names["result"] = Name(array, "outputs[0]")
        out = []
        for name, text in given.items():
            param = by_name.get(name)
            if param is None or not param.type.is_array:
                self._unknown_argument(
                    "MG409", name, ("jvp", name), [p.name for p in self.arrays]
                )
                continue
            if param.is_list:
                self.error("MG410", f"'{name}' is a list of arrays", ("jvp", name), key=True)
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


def _sample_problem(type: Type, value: Any) -> str | None:
    """What is wrong with a sample's value for an argument of this type."""
    if value is None:
        return None if type.optional else "it is not optional"
    if type.kind is Kind.ARRAY:
        return None if isinstance(value, ArraySample) else "give a mapping (shape, low, high, ...)"
    if type.kind is Kind.ARRAYS:
        listed = isinstance(value, list) and all(isinstance(v, ArraySample) for v in value)
        return None if listed else "give a list of mappings (shape, low, high, ...)"
    fits = {
        Kind.FLOAT: isinstance(value, (int, float)) and not isinstance(value, bool),
        Kind.INT: isinstance(value, int) and not isinstance(value, bool),
        Kind.BOOL: isinstance(value, bool),
        Kind.STR: isinstance(value, str),
        Kind.ENUM: isinstance(value, str) and value in type.choices,
        Kind.DTYPE: isinstance(value, str) and value in DTYPES,
        Kind.INTS: isinstance(value, list),
        Kind.SHAPE: isinstance(value, list),
        Kind.AXES: isinstance(value, (int, list)),
    }[type.kind]
    if fits:
        return None
    if type.kind is Kind.ENUM:
        return f"one of: {', '.join(type.choices)}"
    return f"a {type.python} is wanted"


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
