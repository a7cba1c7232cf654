"""From entries as written to operators as meant: every decision of the generator is made here.

The entries of a file are read first, each by itself, and their names compared (names.py). Then
each is looked at closely, with the others' signatures at hand: its arguments, formulas, gradients
and kernels become a ``model.Op``. Whatever is wrong is reported at its place in the YAML, all of it
in one run; an op with an error is left out of the result.

``resolve`` with ``only`` looks closely at some entries. Of the others nothing is read but their
names, and the signatures of those that are called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..diagnostics import Diagnostics
from ..formula.compile import Name, compile_formula
from ..model.op import Form, Op, Written
from ..model.signature import Signature
from ..read.settings import Settings
from ..read.sources import Sources
from ..read.yaml import Document, name_of
from . import gradients, results
from .arguments import read_arguments
from .context import Context, Named, Surroundings, camel
from .entry import check_keys, decide_form, read_entry
from .fit import check_manual, check_own_name
from .kernels import match_kernels
from .names import check_names
from .samples import check_samples, plain


def resolve(
    document: Document,
    settings: Settings,
    sources: Sources,
    diags: Diagnostics,
    only: Collection[str] | None = None,
) -> list[Op]:
    """The operators of a file without errors, in the order of the file.

    Args:
        document: The parsed YAML.
        settings: Package name, namespace and paths.
        sources: The hand-written C++ and Metal sources.
        diags: Collects what is wrong.
        only: Names of the entries that are wanted; all if absent.
    """
    file = _File(document, settings, sources, diags, only)
    check_names(file.entries, settings, sources)
    wanted = [file.context(name) for name in file.entries if only is None or name in only]
    ops = [op for context in wanted if context and (op := _operator(context, document.path))]
    _check_cycles(ops, file)
    return ops


class _Signatures(Mapping[str, Signature]):
    """The signatures of a file's entries, each read when a formula calls it."""

    def __init__(self, file: _File) -> None:
        self.file = file

    def __getitem__(self, name: str) -> Signature:
        if context := self.file.context(name):
            return context.signature
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self.file.entries and self.file.context(str(name)) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.entries)

    def __len__(self) -> int:
        return len(self.file.entries)


class _CppNames(dict[str, str]):
    """The functions of a file's entries, in generated C++."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self.namespace = namespace

    def __missing__(self, name: str) -> str:
        return f"{self.namespace}::{name}"


class _File:
    """The entries of a file by name, in order; those that are wanted are contexts."""

    def __init__(
        self,
        document: Document,
        settings: Settings,
        sources: Sources,
        diags: Diagnostics,
        only: Collection[str] | None,
    ) -> None:
        self.only = only
        self.entries: dict[str, Named] = {}
        self.broken: set[str] = set()
        self.class_names: set[str] = set()
        self.around = Surroundings(
            settings,
            sources,
            diags,
            _Signatures(self),
            _CppNames(settings.namespace),
            self.class_names,
            self.broken,
        )
        for entry in document.entries:
            name = name_of(entry.data)
            if only is None or name in only:
                named: Named | None = read_entry(entry, self.around)
            else:
                named = Named(entry, name, diags) if name else None
            if named is not None:
                self._add(named)
            elif name is not None:
                self.broken.add(name)
        if not document.complete:
            self.broken |= set(document.names()) - set(self.entries)
        self.class_names |= {camel(name) for name in self.entries}

    def _add(self, named: Named) -> None:
        known = self.entries.setdefault(named.name, named)
        if known is not named:
            help = f"first defined on line {known.entry.span().line}"
            named.error("MG601", "defined twice", named.at_name, help=help)

    def context(self, name: str) -> Context | None:
        """An entry with its keys and signature, which are read when first asked for."""
        named = self.entries.get(name)
        if named is None or isinstance(named, Context):
            return named
        if name in self.broken:
            return None
        context = read_entry(named.entry, self.around)
        if context is None:
            self.broken.add(name)
        else:
            self.entries[name] = context
        return context

    def composite_calls(self, name: str) -> list[str]:
        """The entries that the composite of an entry calls that is not looked at closely."""
        context = self.context(name)
        if context is None or self.only is None or name in self.only:
            return []  # it has errors
        names = {arg.name: Name(arg.type, arg.name) for arg in context.signature.args}
        scope, text = context.scope(names, "s"), context.raw.composite or ""
        expr = compile_formula(text, scope, context.want_outputs, lambda *_: None)
        return sorted(expr.ops) if expr else []


def _operator(context: Context, path: str) -> Op | None:
    """The operator that an entry describes, or None when something was reported."""
    if not decide_form(context):
        return None
    usable = check_keys(context)
    read_arguments(context)
    check_samples(context)
    if not usable:
        return None
    raw, name = context.raw, context.name
    forward, text = results.forward(context)
    shapes = results.shapes(context)
    out_dtypes = results.out_dtypes(context)
    checks = results.checks(context)
    has_kernels = context.form is Form.KERNELS and context.dtypes_known
    kernels = match_kernels(context) if has_kernels else ()
    grads, own_gradient = gradients.gradients(context)
    jvp, jvp_exprs = gradients.jvp(context, grads)
    vmap = gradients.vmap(context)
    check_own_name(context)
    for part in raw.manual if context.form is Form.KERNELS else ():
        check_manual(context, part)
    if not context.ok:
        return None
    exprs = [forward, *(g.expr for g in grads), *(e for _, e in jvp_exprs)]
    return Op(
        entry=_written(context),
        name=name,
        python_name=context.python_name,
        class_name=camel(name),
        signature=context.signature,
        params=tuple(context.params),
        form=context.form,
        file=path,
        line=context.entry.span().line,
        elementwise=context.elementwise,
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
        rules=context.rules,
        checks=checks,
        calls=tuple(sorted({called for e in exprs if e for called in e.ops} - {name})),
        includes=tuple(context.includes),
        module=raw.module or "",
        tags=frozenset(raw.tags),
        manual=frozenset(raw.manual),
    )


def _written(context: Context) -> Written:
    """What is passed on of an entry as it stands."""
    raw = context.raw
    return Written(
        doc=raw.doc,
        args=raw.args,
        returns=raw.returns,
        composite=raw.composite,
        samples=[{name: plain(value) for name, value in s.items()} for s in raw.samples],
        variants=raw.variants,
        aliases=raw.aliases,
        tags=raw.tags,
        deprecated=raw.deprecated,
    )


def _check_cycles(ops: list[Op], file: _File) -> None:
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
                message = "composites call each other in a circle: " + " -> ".join(cycle)
                if len(cycle) == 2:
                    message = "a composite that calls itself"
                file.entries[name].error(
                    "MG605",
                    message,
                    ("composite",),
                    help="call MLX's own function of that name with mx.<name>, or give one of "
                    "them kernels without `composite`",
                )
                done.update(cycle)
            elif name not in done:
                if name not in calls:
                    calls[name] = file.composite_calls(name)
                trail.append(name)
                pending.append(iter(calls[name]))
