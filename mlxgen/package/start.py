"""Beginning: `mlxgen new`, a package that builds and passes its tests, and `mlxgen add`, an entry.

What is written is checked before: nothing is left behind that mlxgen itself would refuse. Files
that are there are never replaced.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import rich_click as click

from ..command import operators
from ..command.cli import FOLDER, Names, cli, command, require, settings_of
from ..diagnostics import Diagnostic, Diagnostics
from ..read.settings import Settings
from ..read.settings import load as load_settings
from . import compat

_NEW = Path(__file__).parent / "new"
_MISSING = "expected: "  # how the help begins that says which kernel an entry needs
_DECLARATION = re.compile(r"(?P<head>.*?)(?P<name>\w+)\((?P<params>.*)\)$")


# ------------------------------------------------------------------------------------- new


@cli.command()
@click.argument("name")
@click.option("--folder", type=FOLDER, help="Where to make it; a folder of that name if absent.")
def new(name: str, folder: Path | None) -> None:
    """Make a package of operators: NAME is what pip calls it.

    It has one operator, with kernels for the CPU and Metal, tests, a notebook, and a workflow that
    tests it and builds wheels.
    """
    folder = folder or Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise click.UsageError(f"{folder} is there already, and not empty: nothing was written")
    near = next(parent for parent in folder.absolute().parents if parent.is_dir())
    with tempfile.TemporaryDirectory(dir=near, prefix=".mlxgen") as scratch:
        made = Path(scratch) / "package"
        files = dict(_package(name))
        for path, text in files.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_text(text, encoding="utf-8")
        diags = Diagnostics()
        settings = load_settings(made, diags)
        if settings is None or not operators.load(settings, diags)[0]:
            raise click.BadParameter(diags.sorted()[0].message, param_hint="NAME")
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        made.replace(folder)  # which is empty, if it is there
    shown = os.path.relpath(folder)
    click.echo(f"{shown}: {len(files)} files")
    click.echo(f'next: cd {shown} && pip install ".[test]" && pytest')


def _package(name: str) -> Iterator[tuple[str, str]]:
    """The files of a new package, by their paths."""
    from jinja2 import Environment

    from ..read.keys import json_schema

    package = re.sub(r"[-.]", "_", name)
    values = {"name": name, "package": package, "mlx": compat.version("mlx") or [*compat.MLX][-1]}
    environment = Environment(
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        keep_trailing_newline=True,
        autoescape=False,
    )
    for path in sorted(_NEW.rglob("*.in")):
        inside = path.relative_to(_NEW).with_suffix("").as_posix().replace("dot-", ".")
        text = environment.from_string(path.read_text(encoding="utf-8")).render(values)
        yield inside.replace("python/package", f"python/{package}"), text
    yield "docs/mlx_ops.schema.json", json.dumps(json_schema(), indent=1) + "\n"


# ------------------------------------------------------------------------------------- add


@command("project")
@click.argument("signature")
@click.option(
    "--kernel",
    type=click.Choice(["cpu", "metal", "cpu,metal", "shared"]),
    help="Backends that get a kernel, or one function for both.",
)
@click.option("--composite", metavar="FORMULA", help="The operator in MLX's operations.")
@click.option("--shape", metavar="FORMULA", help="Of the output, if it is not elementwise.")
@click.option("--grad", multiple=True, metavar="ARG=FORMULA", help="An argument's vjp.")
@click.option("--doc", help="What it computes, in a sentence.")
def add(diags: Diagnostics, signature: str, project: Path | None, **options: Any) -> None:
    """Append an operator: its SIGNATURE, such as "softsign(array x) -> array".

    Kernels are written as far as the entry says what they are; what they compute is yours. Without
    --kernel and --composite there is one for both backends.
    """
    settings = settings_of(diags, project)
    require(operators.read(settings, diags)[0] is not None and diags.ok)
    entry = _entry(signature, **options)
    before = settings.yaml.read_text(encoding="utf-8")
    after = before + "\n" * (bool(before.strip()) + (not before.endswith("\n"))) + entry
    stubs = _stubs(settings, after, before, diags, shared="cpu" not in (options["kernel"] or ""))
    _write(settings.yaml, after, stubs)
    line = before.count("\n") + 2
    click.echo(f"{settings.relative(settings.yaml)}:{line}: {entry.splitlines()[0][2:]}")
    for path in stubs:
        click.echo(f"{settings.relative(path)}: what it computes is yours")


def _write(yaml: Path, text: str, stubs: Mapping[Path, str]) -> None:
    """Write all files or, where one cannot be written, none."""
    made = yaml.with_name(f"{yaml.name}.new")
    try:
        made.write_text(text, encoding="utf-8")
        made.chmod(yaml.stat().st_mode)
        for path, stub in stubs.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(stub, encoding="utf-8")
        made.replace(yaml)
    except OSError as error:
        for path in (made, *stubs):
            with suppress(OSError):
                path.unlink()
        raise click.ClickException(f"nothing was written: {error}") from error


def _entry(
    signature: str,
    kernel: str | None,
    composite: str | None,
    shape: str | None,
    grad: Names,
    doc: str | None,
) -> str:
    """The entry's YAML."""
    match = re.search(r"\w+(?=\s*\()", signature)
    name = match[0] if match else signature
    lines = {"name": name, "signature": json.dumps(signature, ensure_ascii=False)}
    if doc:
        lines["doc"] = json.dumps(doc, ensure_ascii=False)
    if kernel is None and composite is None:
        kernel = "shared"
    if kernel == "shared" and not shape:
        lines["dispatch"] = name
    elif kernel:
        backends = ("cpu", "metal") if kernel in ("shared", "cpu,metal") else (kernel,)
        launch = {"cpu": name, "metal": f"{name}_metal"}
        if shape:
            launch["metal"] = f"{{kernel: {name}_metal, grid: [out.size]}}"
        lines["dispatch"] = "{" + ", ".join(f"{b}: {launch[b]}" for b in backends) + "}"
    if shape:
        lines["shape"] = json.dumps(shape)
    if composite:
        lines["composite"] = json.dumps(composite)
    if grad:
        pairs = (text.partition("=") for text in grad)
        given = (f"    {arg.strip()}: {json.dumps(formula.strip())}" for arg, _, formula in pairs)
        lines["grad"] = "\n" + "\n".join(given)
    elif not composite:
        lines["grad"] = "none  # or a formula of grad for each array: {x: 2 * x * grad}"
    text = "\n  ".join(f"{key}: {value}" for key, value in lines.items())
    return f"- {text}\n".replace(": \n", ":\n")


def _stubs(
    settings: Settings, after: str, before: str, diags: Diagnostics, *, shared: bool
) -> dict[Path, str]:
    """The files with the kernels that an entry still needs; what else is wrong with it fails."""
    from ..check.file import resolve
    from ..read.sources import Sources
    from ..read.yaml import Document

    shown = settings.relative(settings.yaml)
    document = Document.parse(after, shown, diags)
    require(document is not None and diags.ok)
    assert document is not None
    found = Diagnostics()
    resolve(document, settings, Sources(settings, found, operators.mlx_include()), found)
    new = [item for item in found.sorted() if item.span.line > before.count("\n")]
    missing = [i for i in new if i.code == "MG502" and (i.help or "").startswith(_MISSING)]
    for item in new:
        if item not in missing:
            diags.add_item(item)
    require(diags.ok)
    stubs: dict[Path, str] = {}
    for item in missing:
        name, path, text = _stub(settings, item, shared)
        if path.exists():
            raise click.UsageError(
                f"{settings.relative(path)} is there already: write {name} yourself"
            )
        stubs[path] = text
    return stubs


def _stub(settings: Settings, missing: Diagnostic, shared: bool) -> tuple[str, Path, str]:
    """A kernel's name, its file, and the file's text."""
    match = _DECLARATION.match((missing.help or "").removeprefix(_MISSING))
    assert match is not None
    metal = f"in {settings.relative(settings.metal)}" in missing.message
    name = match["name"]
    params = [param.rpartition(" ")[::2] for param in match["params"].split(", ")]
    views = any("<" in type for type, _ in params)
    shared = shared and not metal and not views
    if shared:
        params = [("MLXGEN_OUT(T)" if type == "T&" else type, param) for type, param in params]
    head = match["head"].replace("template <typename T> ", "template <typename T>\n")
    listed = ", ".join(f"{type} {param}" for type, param in params)
    declared = f"{head}{name}({listed})"
    if metal:
        path = settings.metal / f"{name.removesuffix('_metal')}.metal"
        text = "#include <metal_stdlib>\n\nusing namespace metal;\n"
        text += _metal_body(name, declared, params)
    else:
        path = settings.csrc / f"{name}.h"
        include = (
            '#include "mlxgen/kernel.h"\n\n' * views + '#include "mlxgen/scalar.h"\n\n' * shared
        )
        using = "using mlxgen::In;\nusing mlxgen::Out;\n\n" * views
        inside = settings.namespace if shared else f"{settings.namespace}::cpu"
        text = (
            f"#pragma once\n\n{include}namespace {inside} {{\n\n{using}"
            f"{declared} {{\n{_cpu_body(head, params)}}}\n\n}} // namespace {inside}\n"
        )
    where = "Metal" if metal else "the CPU and Metal" if shared else "the CPU"
    return name, path, f"// {name}, for {where}.\n\n{text}"


def _cpu_body(head: str, params: Sequence[tuple[str, str]]) -> str:
    """What returns something of the right type, in the place of a result."""
    first = next((name for type, name in params if type == "T"), "0")
    if "void" not in head:
        return f"  return {first}; // one element: compute it here\n"
    outputs = [name for type, name in params if type.endswith(("&", "_OUT(T)"))]
    if outputs:
        lines = [f"  {name} = {first}; // one element: compute it here" for name in outputs]
        return "\n".join(lines) + "\n"
    return "".join(
        f"  for (int64_t i = 0; i < {name}.size(); ++i) {{\n"
        f"    {name}.data[i] = {{}}; // compute it here\n  }}\n"
        for type, name in params
        if type.startswith("Out<")
    )


def _metal_body(name: str, declared: str, params: Sequence[tuple[str, str]]) -> str:
    """The same in Metal: a scalar function, or a [[kernel]]."""
    if "[[kernel]]" not in declared:
        return f"\n{declared} {{\n{_cpu_body(declared, params)}}}\n"
    outputs = [name for type, name in params if type.startswith("device T*")]
    body = "\n".join(f"  {out}[i] = T(0); // compute it here" for out in outputs)
    numbered = [f"{type} {param} [[buffer({i})]]" for i, (type, param) in enumerate(params)]
    numbered.append("uint i [[thread_position_in_grid]]")
    head = declared.partition("(")[0]
    return f"\n{head}(\n    " + ",\n    ".join(numbered) + f") {{\n{body}\n}}\n"
