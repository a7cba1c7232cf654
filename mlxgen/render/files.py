"""From resolved operators to text: C++ sources, Python stubs, ``ops.json``, checks, documentation.

Templates hold the loops and the fixed text of each file; ``view.View`` spells an operator's pieces.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import jinja2

from ..emulator.frontend import metal as metal_source
from ..model.op import Form, Op
from ..read.settings import Settings
from ..read.sources import Sources, metal_stem
from .view import View, cpp_string, line_comment, raw_string

TEMPLATES = Path(__file__).parent / "templates"
SHARD = 16  # operators per binding file, about


def environment() -> jinja2.Environment:
    """The template environment: StrictUndefined, blocks that leave no trace."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        autoescape=False,
        # Compiling the templates takes longer than generating a small package.
        bytecode_cache=jinja2.FileSystemBytecodeCache(),
    )
    env.filters["cpp_string"] = cpp_string
    env.filters["line_comment"] = partial(line_comment, indent=0)
    return env


@dataclass(frozen=True)
class Output:
    """One generated file: its path below the output folder, and how to make its text."""

    path: str
    text: Callable[[], str]


def shard_count(n: int) -> int:
    """Number of binding files: a power of two, so that few ops move when some are added."""
    count = 1
    while count * SHARD < n:
        count *= 2
    return count


def shard_of(name: str, count: int) -> int:
    """The binding file of an op."""
    return zlib.crc32(name.encode()) % count


@cache
def _loops() -> str:
    """What include/mlxgen/metal.h puts between a scalar function and its kernels."""
    header = Path(__file__).parents[1] / "runtime" / "include" / "mlxgen" / "metal.h"
    found = re.search(
        r'elementwise_source = R"metal\((.*?)\)metal"', header.read_text(encoding="utf-8"), re.S
    )
    assert found is not None
    return found[1]


class Renderer:
    """All files of a package."""

    def __init__(self, ops: Sequence[Op], settings: Settings, sources: Sources) -> None:
        self.settings = settings
        self.sources = sources
        self.env = environment()
        self.views = [View(op, settings) for op in ops]
        self.public = [v for v in self.views if not v.op.is_internal]
        self._templates: dict[str, jinja2.Template] = {}

    def render(self, template: str, **context: Any) -> str:
        """One template."""
        if template not in self._templates:
            self._templates[template] = self.env.get_template(template)
        return self._templates[template].render(
            pkg=self.settings.name,
            ns=self.settings.namespace,
            api=f"{self.settings.name.upper()}_API",
            **context,
        )

    def op_source(self, view: View) -> str:
        """The .cpp of one op."""
        template = "kernels.cpp.j2" if view.op.form is Form.KERNELS else "composite.cpp.j2"
        return self.render(template, op=view, metal_text=self.metal_text)

    def op_header(self, view: View) -> str:
        """The header of one op."""
        return self.render("op.h.j2", op=view)

    def part(self, view: View, name: str) -> tuple[str, str]:
        """One part of what an op generates, and its language: for ``mlxgen show``."""
        if name == "header":
            return self.op_header(view), "cpp"
        if name == "source":
            return self.op_source(view), "cpp"
        if name == "binding":
            return self.render("bind.cpp.j2", ops=[view], shard=0), "cpp"
        if name == "stub":
            return f"def {view.op.python_name}{view.python_def}: ...\n", "python"
        if name == "doc":
            return view.docstring + "\n", "rst"
        if name == "json":
            return json.dumps(op_dict(view), indent=1, ensure_ascii=False) + "\n", "json"
        if view.metal is None:
            return f"// {view.op.name} has no Metal kernel\n", "cpp"
        return self.metal_library_source(view), "cpp"

    def metal_library_source(self, view: View) -> str:
        """What the launcher of an op with a Metal kernel lets the system compile."""
        assert view.metal is not None
        text = self.metal_text(view.metal.include)
        return f"{text}{_loops()}\n{view.metal_wrapper}" if view.metal.scalar else text

    @cached_property
    def metal_paths(self) -> dict[str, tuple[Path, str]]:
        """The .metal files and shared headers used: folder and name, by generated header's stem."""
        out = {}
        for view in self.views:
            if view.metal is not None:
                folder = self.settings.csrc if view.metal.shared else self.settings.metal
                out[metal_stem(view.metal.include)] = folder, view.metal.include
        return out

    def metal_text(self, include: str) -> str:
        """A .metal file or shared header with its includes."""
        stem = metal_stem(include)
        if stem not in self._metal:
            folder, name = self.metal_paths[stem]
            self._metal[stem] = metal_source.embed_metal(folder / name, self.sources.metal_includes)
        return self._metal[stem]

    @cached_property
    def _metal(self) -> dict[str, str]:
        return {}

    def reference(self) -> str:
        """The op reference page."""
        return self.render("reference.md.j2", modules=self.modules())

    def modules(self) -> dict[str, list[View]]:
        """Public ops by submodule; every parent of a submodule is there too."""
        out: dict[str, list[View]] = {"": []}
        for view in self.public:
            parts = view.op.module.split(".") if view.op.module else []
            for i in range(1, len(parts) + 1):
                out.setdefault(".".join(parts[:i]), [])
            out[view.op.module].append(view)
        return out

    def outputs(self) -> list[Output]:
        """Every file of the package, with its text made on demand."""
        name = self.settings.name
        files: list[Output] = []
        for view in self.views:
            files.append(Output(f"include/{name}/{view.op.name}.h", partial(self.op_header, view)))
            files.append(Output(f"src/{view.op.name}.cpp", partial(self.op_source, view)))
        count = shard_count(len(self.public))
        shards: list[list[View]] = [[] for _ in range(count)]
        for view in self.public:
            shards[shard_of(view.op.name, count)].append(view)
        for i, members in enumerate(shards):
            bind = partial(self.render, "bind.cpp.j2", ops=members, shard=i)
            files.append(Output(f"src/bind_{i}.cpp", bind))
        modules = self.modules()
        module = partial(
            self.render,
            "module.cpp.j2",
            shards=range(count),
            modules=[m for m in modules if m],
            methods=[v for v in self.public if "method" in v.op.entry.variants],
        )
        for path, template in (
            ("src/dispatch.cpp", "dispatch.cpp.j2"),
            (f"include/{name}/export.h", "export.h.j2"),
            (f"include/{name}/dispatch.h", "dispatch.h.j2"),
            ("python/checks/__init__.py", "checks_init.py.j2"),
        ):
            files.append(Output(path, partial(self.render, template)))
        files += [
            Output("src/module.cpp", module),
            Output(
                f"include/{name}/{name}.h", partial(self.render, "package.h.j2", ops=self.views)
            ),
            Output("python/ops.json", partial(ops_json, self.views)),
            Output(
                "python/checks/test_gradients.py",
                partial(self.render, "checks.py.j2", ops=self.public),
            ),
            Output("docs/operators.md", self.reference),
        ]
        for stem in sorted(self.metal_paths):
            files.append(
                Output(f"include/{name}/metal/{stem}_metal.h", partial(self.metal_header, stem))
            )
        for path, members in modules.items():
            files += self._module_files(path, members, modules)
        return files

    def metal_header(self, stem: str) -> str:
        """A .metal file's text as a C++ constant."""
        include = self.metal_paths[stem][1]
        text = raw_string(self.metal_text(include), "metal")
        return self.render("metal_source.h.j2", stem=stem, include=include, text=text)

    def _module_files(
        self, module: str, members: Sequence[View], modules: Iterable[str]
    ) -> list[Output]:
        """A submodule's stub and, if it is not the package itself, its Python file."""
        children = [m for m in modules if m and m.rpartition(".")[0] == module]
        path = "/".join(["_ext", *module.split(".")]) if module else "_ext"
        stub = partial(self.render, "stub.pyi.j2", module=module, ops=members, children=children)
        files = [Output(f"python/{path}/__init__.pyi", stub)]
        if module:
            source = partial(self.render, "submodule.py.j2", module=module, children=children)
            files.append(Output(f"python/{module.replace('.', '/')}/__init__.py", source))
        return files

    def sources_cmake(self, paths: Sequence[str], depends: Sequence[str]) -> str:
        """The lists that CMake includes."""
        return self.render(
            "sources.cmake.j2",
            ops=[p for p in paths if p.startswith("src/") and not _is_binding(p)],
            bindings=[p for p in paths if _is_binding(p)],
            headers=[p for p in paths if p.startswith("include/")],
            python=[p for p in paths if p.startswith("python/")],
            depends=depends,
        )


def _is_binding(path: str) -> bool:
    return path == "src/module.cpp" or path.startswith("src/bind_")


def op_dict(view: View) -> dict[str, Any]:
    """One operator for other tools: what ``ops.json`` and ``mlxgen diff`` hold of it."""
    op = view.op
    return {
        "name": op.name,
        "python_name": op.python_name,
        "module": op.module,
        "aliases": list(op.entry.aliases),
        "signature": op.signature.python(),
        "cpp_signature": op.signature.cpp(),
        "form": op.form.value,
        "args": [
            {
                "name": p.name,
                "type": p.type.python,
                "kind": p.type.kind.value,
                "choices": list(p.type.choices),
                "optional": p.type.optional,
                "default": p.arg.default.python if p.arg.default is not None else None,
                "has_default": p.arg.default is not None,
                "kw_only": p.arg.kw_only,
                "dtype": p.dtype,
            }
            for p in op.params
        ],
        "outputs": [{"name": o.name, "type": o.type.python} for o in op.outputs],
        "composite": op.entry.composite,
        "kernels": {k.backend: {"kernel": k.name, "dtypes": list(k.dtypes)} for k in op.kernels},
        "dtypes": {p.name: list(r.dtypes) for r in op.rules for p in r.params}
        if op.form is Form.KERNELS
        else {},
        "elementwise": op.elementwise,
        "grad": {p.name: g.text for g in op.grads for p in g.params},
        "jvp": op.jvp,
        "jvp_args": [p.name for p, _ in op.jvp_exprs],
        "vmap": op.vmap,
        "doc": op.entry.doc,
        "tags": sorted(op.tags),
        "variants": list(op.entry.variants),
        "deprecated": op.entry.deprecated,
        "line": op.line,
    }


def ops_json(views: Sequence[View]) -> str:
    """The resolved model as JSON."""
    # One operator a line: json's C encoder does not indent, its Python one takes ten times as long.
    lines = [json.dumps(op_dict(v), ensure_ascii=False) for v in views]
    return "[\n" + ",\n".join(lines) + "\n]\n"
