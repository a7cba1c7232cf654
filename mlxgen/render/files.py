"""Renders resolved operators as the files of a package.

``pieces`` renders the output of one operator. It depends only on the ``Op``, so that it can be
cached while the entry is unchanged. ``package_files`` combines the output of all operators.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..model.dtypes import FLOATING
from ..model.languages import Package, language
from ..model.op import Form, Op, metal_stem
from ..model.used import SCHEMA
from .cpp import FILTERS, View, raw_string
from .python import check_samples, docstring_item, op_dict, python_def
from .reference import InPlace, Reference, inplace
from .templates import Templates

MACROS = ("arguments.j2", "operator.j2", "primitive.j2")
TEMPLATES = Templates(
    Path(__file__).parent / "templates",
    {**FILTERS, "docstring_item": docstring_item},
    MACROS,
    floating=FLOATING,
)
# The module that writes the reference; the generator imports no plug-in.
PAGES = "mlxgen.plugins.reference.pages"
LARGE = 256  # number of composites from which on fewer and larger files are compiled
SHARD = 16  # approximate number of operators per binding file; four times as many if LARGE
MANY = 64  # number of quickly compiled sources from which on these are compiled in groups
# The approximate number of sources in a group. Kernels take longer; a LARGE package has more of
# the composites.
COMPOSITES, COMPOSITES_IF_LARGE, KERNELS = 8, 24, 4

_to_json = json.JSONEncoder(ensure_ascii=False).encode

# Returns a .metal file, or a header in csrc (True), with its includes inlined.
MetalText = Callable[[str, bool], str]

T = TypeVar("T")
_render, _blocks = TEMPLATES.render, TEMPLATES.blocks


class Pieces(NamedTuple):
    """The rendered output of one operator; only text, so that it can be cached."""

    name: str
    python_name: str
    paths: Sequence[str]  # dotted names in Python, without the package: its own and the aliases
    public: bool  # available in Python
    method: bool  # also a method of arrays
    deprecated: bool
    composite: bool  # without kernels
    elementwise: bool  # with kernels of scalar functions
    by_sign: bool  # its kernel is also compiled for positive inputs
    headers: Sequence[str]  # those in csrc and of other packages that its source includes
    draws_keys: bool  # random functions of its formulas may get no key
    metal: str  # the .metal file of its kernel, or (if shared) a header in csrc
    shared: bool
    arguments: Sequence[str]  # the arrays
    calls: Mapping[str, bool]  # other entries; true if only derivatives call one
    refuses: bool  # internal, and differentiating may raise
    file: str  # of the entry, relative to the project
    line: int  # the first line of the entry
    header: str  # text of its own files; empty if these are up to date
    source: str
    binding: tuple[str, str]  # the function that Python calls, and its registration
    stubs: Sequence[str]  # one for each of `paths`
    # Functions whose names end in an underscore: registration and stub by item of `paths`.
    inplace: Mapping[str, tuple[str, str]]
    languages: Mapping[str, Any]  # by name; empty for an internal operator
    summary: str  # one line of Markdown for the index of the reference
    usage: str  # Markdown: the signature and the entry's documentation
    details: str  # Markdown: arguments, results and the rest of the reference
    checks: Sequence[str]  # samples of the generated checks
    json: str  # its items in ops.json, without the line

    @property
    def path(self) -> str:
        """The dotted name in Python, without the package."""
        return self.paths[0]

    @property
    def private(self) -> bool:
        """True if Python's convention for names makes it private."""
        return self.python_name.startswith("_")

    @property
    def modules(self) -> list[str]:
        """The submodules that have the function."""
        return [path.rpartition(".")[0] for path in self.paths]

    def at_line(self, line: int) -> Pieces:
        """Return a copy for an entry at another line."""
        return self._replace(line=line)


def pieces(op: Op, package: Package) -> Pieces:
    """Render the output of an operator."""
    view = View(op)
    kernel = op.forward.kernel("metal")
    declarations = dict[str, str]()
    page = Reference(op, package)
    texts: dict[str, Any] = {
        "python_def": python_def(op),
        "docstring": docstring(page, package),
    }
    variant = inplace(op)
    facts = op_dict(op)
    del facts["line"]  # depends on other entries
    # For packages that use this one (read/used.py).
    facts["cpp_name"] = f"{package.namespace}::{op.name}"
    facts["header"] = f"{package.name}/{op.name}.h"
    function, registration = _blocks("binding.cpp.j2", package, op=view, **texts)

    def stub(path: str, variant: InPlace | None = None) -> str:
        return _render("stub.pyi.j2", package, op=view, path=path, inplace=variant, **texts)

    languages: dict[str, Any] = {}
    for name in () if op.entry.internal else package.languages:
        declarations[name], languages[name] = language(name).renderer.piece(op, package)
    summary, usage, details = import_module(PAGES).parts(op, package, declarations)
    return Pieces(
        name=op.name,
        python_name=op.python_name,
        paths=op.paths,
        public=not op.entry.internal,
        method="method" in op.entry.variants,
        deprecated=bool(op.entry.deprecated),
        composite=not op.has_primitive,
        elementwise=op.elementwise,
        by_sign=view.cpu is not None and view.cpu.by_sign,
        headers=sorted(op.headers),
        draws_keys=op.draws_keys,
        metal=kernel.include if kernel is not None else "",
        shared=kernel is not None and kernel.shared,
        arguments=[p.name for p in op.arguments.arrays],
        calls={name: name not in op.calls_of_result for name in sorted(op.calls)},
        refuses=op.refuses,
        file=op.file,
        line=op.line,
        header=_render("op.h.j2", package, op=view),
        source=op_source(view, package),
        binding=(function, registration),
        stubs=[stub(path) for path in op.paths],
        inplace={
            path: (
                _render("inplace.cpp.j2", package, path=path, inplace=variant),
                stub(path, variant),
            )
            for path in op.paths
            if variant is not None
        },
        languages=languages,
        summary=summary,
        usage=usage,
        details=details,
        checks=[repr(sample) for sample in check_samples(op)],
        json=_to_json(facts)[1:-1],
    )


def docstring(page: Reference, package: Package) -> str:
    """Render the docstring of an op."""
    return _render("docstring.j2", package, op=page).strip()


def _source_template(op: Op) -> str:
    return "kernels.cpp.j2" if op.forward.form is Form.KERNELS else "composite.cpp.j2"


def op_source(view: View, package: Package) -> str:
    """Render the .cpp file of one op."""
    return _render(_source_template(view.op), package, op=view)


def definition(op: Op, package: Package) -> str:
    """Render the .cpp file of one op without its includes."""
    (code,) = _blocks(_source_template(op), package, op=View(op))
    return code


def metal_element(op: Op) -> str:
    """Render the statement that computes one element with a scalar function on Metal."""
    return str(TEMPLATES.macro("element")(View(op), op.forward.kernel("metal")))


# ------------------------------------------------------------------------------ the whole package


def package_files(
    made: Sequence[Pieces],
    package: Package,
    metal_text: MetalText,
    as_before: Container[str] = (),
) -> dict[str, str | None]:
    """Render all files of the package except sources.cmake, by path below the output folder.

    None means that a file is up to date: an operator's own file, or a file with the source of
    kernels that is in ``as_before``.
    """
    name = package.name
    public = [p for p in made if p.public]
    files: dict[str, str | None] = {}
    for p in made:
        files[f"include/{name}/{p.name}.h"] = p.header or None
        files[f"src/{p.name}.cpp"] = p.source or None
    # Functions of equal types share their code, so that large files compile in less time per
    # function.
    shard = 4 * SHARD if _is_large(made) else SHARD
    first = _first_overloads(public)
    shards = sharded(public, shard, lambda p: first[p.name])
    for i, members in enumerate(shards):
        files[f"src/bind_{i}.cpp"] = bindings(members, i, package)
    for language_name in package.languages:
        of = [p.languages[language_name] for p in public]
        files |= language(language_name).renderer.files(of, package)
    modules = _modules(public)
    methods = {p.path: p.python_name for p in public if p.method}
    methods |= {f"{p.path}_": f"{p.python_name}_" for p in public if p.method and p.inplace}
    overloaded = {path for of in modules.values() for path, ops in of.items() if len(ops) > 1}
    internal = internal_operators(made)
    for path, template in (
        ("src/dispatch.cpp", "dispatch.cpp.j2"),
        ("src/module.cpp", "module.cpp.j2"),
        (f"include/{name}/export.h", "export.h.j2"),
        (f"include/{name}/dispatch.h", "dispatch.h.j2"),
        (f"include/{name}/{name}.h", "package.h.j2"),
        ("python/checks/__init__.py", "checks_init.py.j2"),
        ("python/checks/test_gradients.py", "checks.py.j2"),
    ):
        files[path] = _render(
            template,
            package,
            ops=made,
            public=public,
            shards=range(len(shards)),
            modules=list(modules),
            methods=methods,
            overloaded=overloaded,
            internal=internal,
            draws_keys=any(p.draws_keys for p in made),
        )
    files["python/ops.json"] = _table(made, internal)
    files["docs/operators.md"] = import_module(PAGES).reference(made, package)
    for include, shared in sorted({(p.metal, p.shared) for p in made if p.metal}):
        stem = metal_stem(include)
        path = f"include/{name}/metal/{stem}_metal.h"
        files[path] = None
        if path not in as_before:
            text = raw_string(metal_text(include, shared), "metal")
            files[path] = _render(
                "metal_source.h.j2", package, stem=stem, include=include, text=text
            )
    for module, functions in modules.items():
        children = [m for m in modules if m and m.rpartition(".")[0] == module]
        stubs = {}
        for path, ops in functions.items():
            stubs[path] = [p.stubs[p.paths.index(path)] for p in ops]
            if variants := [p.inplace[path][1] for p in ops if p.inplace]:
                stubs[f"{path}_"] = variants
        inside = {
            "module": module,
            "children": [child.rpartition(".")[2] for child in children],
            "names": [path.rpartition(".")[2] for path in stubs],
            "stubs": stubs.values(),
            "deprecated": any(p.deprecated for ops in functions.values() for p in ops),
            "overloaded": any(len(ops) > 1 for ops in functions.values()),
        }
        path = "/".join(["_ext", *module.split(".")]) if module else "_ext"
        files[f"python/{path}/__init__.pyi"] = _render("stubs.pyi.j2", package, **inside)
        if module:
            path = f"python/{module.replace('.', '/')}/__init__.py"
            files[path] = _render("submodule.py.j2", package, **inside)
    return files


def _table(made: Sequence[Pieces], internal: Sequence[Internal]) -> str:
    """Return ops.json, with one operator per line.

    json's C encoder does not indent, and its Python encoder is 10x slower.
    """
    refusing: dict[str, list[str]] = {}
    for one in internal:
        for caller in one.callers:
            refusing.setdefault(caller.name, []).append(one.name)
    rows = (
        f'{{{p.json}, "refusing": {json.dumps(refusing.get(p.name, []))}, "line": {p.line}}}'
        for p in made
    )
    listed = ",\n".join(rows)
    return f'{{"schema": {SCHEMA}, "operators": [\n{listed}\n]}}\n'


class Internal(NamedTuple):
    """An internal operator whose derivatives may raise, with the public operators that call it."""

    name: str
    callers: Sequence[Pieces]
    twice: bool  # only their derivatives call it
    arguments: Sequence[str]  # those with the name of a caller's argument

    @property
    def called_by(self) -> str:
        """The names of the callers for a message."""
        *first, last = dict.fromkeys(caller.python_name for caller in self.callers)
        return f"{', '.join(first)} or {last}" if first else last


def internal_operators(made: Sequence[Pieces]) -> list[Internal]:
    """Return the internal operators whose errors name the public operators that call them.

    Calls of hand-written C++ are unknown.
    """
    by_name = {p.name: p for p in made}
    callers: dict[str, list[tuple[str, bool]]] = {}
    for p in made:
        for called, derived in p.calls.items():
            callers.setdefault(called, []).append((p.name, derived))
    found = []
    for p in made:
        if not p.refuses:
            continue
        # Entries that lead to it, and whether a derivative is on the way.
        pending, ways = [(p.name, False)], {(p.name, False)}
        for name, derived in pending:  # grows in the loop
            for caller, by_derivative in callers.get(name, ()):
                way = caller, derived or by_derivative
                if way not in ways:
                    ways.add(way)
                    pending += [way] * (not by_name[caller].public or by_name[caller].private)
        public = [way for way in ways if by_name[way[0]].public]
        public = [way for way in public if not by_name[way[0]].private] or public
        if public:
            names = {name for name, _ in public}
            of = [caller for caller in made if caller.name in names]
            known = {name for caller in of for name in caller.arguments}
            twice = all(derived for _, derived in public)
            found.append(Internal(p.name, of, twice, sorted(known.intersection(p.arguments))))
    return found


def sharded(public: Sequence[T], size: int, key: Callable[[T], str]) -> list[list[T]]:
    """Distribute operators over files of about ``size``; those with the same key are together.

    The number of files is a power of two, so that adding operators moves few others.
    """
    count = 1 << max(0, (len(public) - 1) // size).bit_length()
    shards: list[list[T]] = [[] for _ in range(count)]
    for p in public:
        shards[zlib.crc32(key(p).encode()) % count].append(p)
    return shards


def bindings(members: Sequence[Pieces], shard: int, package: Package) -> str:
    """Render a file of Python bindings.

    The in-place variant of a function calls it by name: one serves all overloads.
    """
    inplace: dict[str, str] = {}
    for p in members:
        inplace = {path: text for path, (text, _) in p.inplace.items()} | inplace
    return _render("bind.cpp.j2", package, ops=members, shard=shard, inplace=inplace.values())


def _modules(public: Iterable[Pieces]) -> dict[str, dict[str, list[Pieces]]]:
    """Return the overloads of each function of each submodule, by module and dotted name.

    The modules include all parents of submodules.
    """
    out: dict[str, dict[str, list[Pieces]]] = {"": {}}
    for p in public:
        for module, path in zip(p.modules, p.paths, strict=True):
            parts = module.split(".") if module else []
            for i in range(1, len(parts) + 1):
                out.setdefault(".".join(parts[:i]), {})
            out[module].setdefault(path, []).append(p)
    return out


def _first_overloads(public: Iterable[Pieces]) -> dict[str, str]:
    """Return for each operator the first of those that are connected by names in Python.

    They are bound in one file, because the order of overloads is that of their registration.
    """
    first: dict[str, str] = {}
    owners: dict[str, str] = {}
    for p in public:
        same = {first[owners[path]] for path in p.paths if path in owners}
        if len(same) > 1:
            earliest = min(same, key=[*first].index)
            first |= {name: earliest for name, of in first.items() if of in same}
            same = {earliest}
        first[p.name] = next(iter(same), p.name)
        owners |= dict.fromkeys(p.paths, p.name)
    return first


def sources_cmake(
    made: Sequence[Pieces],
    package: Package,
    paths: Sequence[str],
    depends: Sequence[str],
    headers: Mapping[str, set[str] | None],
) -> str:
    """Render the lists of files that CMake includes.

    Args:
        made: The operators.
        package: Their package.
        paths: The generated files, relative to the output folder.
        depends: The files that the generator read.
        headers: The headers in csrc, each with all that it includes and itself; None if one source
            cannot include it twice.
    """
    return _render(
        "sources.cmake.j2",
        package,
        ops=[p for p in paths if p.startswith("src/") and not _is_binding(p)],
        bindings=[p for p in paths if _is_binding(p)],
        c=[p for p in paths if p.startswith("c/")],
        headers=[p for p in paths if p.startswith("include/")],
        python=[p for p in paths if p.startswith("python/")],
        rust=[p for p in paths if p.startswith("rust/")],
        depends=depends,
        groups=_groups(made, headers),
    )


def _groups(made: Sequence[Pieces], headers: Mapping[str, set[str] | None]) -> dict[str, list[str]]:
    """Return the operators whose sources are compiled as one, by the name of the group.

    Most of the compile time of a short source is that of MLX's headers. Small packages compile each
    source by itself, so that an edit compiles one. So do all packages for kernels over arrays and
    for the functions of a header with a kernel by sign, or that includes one: these take longer
    than MLX's headers.

    A group has the same hand-written headers, so that the names in one header cannot clash with
    those in another. A new operator changes one group, because the names of groups do not depend on
    other groups.
    """
    slow = {header for p in made if p.by_sign for header in p.headers}
    composites = COMPOSITES_IF_LARGE if _is_large(made) else COMPOSITES
    families: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for p in made:
        own = tuple(header for header in p.headers if header in headers)
        included = [headers[header] for header in own]
        quick = p.composite or (p.elementwise and slow.isdisjoint(chain(*filter(None, included))))
        if quick and None not in included:
            families.setdefault((p.composite, own), []).append(p.name)
    if sum(map(len, families.values())) < MANY:
        return {}
    groups: dict[str, list[str]] = {}
    for (composite, own), family in families.items():
        stem = "_".join(["composites" if composite else "kernels", *map(metal_stem, own)])
        shards = sharded(family, composites if composite else KERNELS, str)
        for i, names in enumerate(shards):
            if len(names) > 1:
                groups.setdefault(f"{stem}_{i}", names)
    return groups


def _is_large(made: Iterable[Pieces]) -> bool:
    return sum(p.composite for p in made) >= LARGE


def _is_binding(path: str) -> bool:
    return path == "src/module.cpp" or path.startswith("src/bind_")
