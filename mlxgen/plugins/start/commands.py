"""`mlxgen new` makes a package that builds and passes its tests; `mlxgen add` appends an entry.

All output is checked before it is written, so that mlxgen never writes something that it would
reject itself. Existing files are never replaced.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from ...command import operators
from ...command.cli import FOLDER, Names, command, reason, require, settings_of
from ...command.write import replace_file
from ...diagnostics import LINE_BREAK, Diagnostics, Span
from ...model.cpp import Declaration
from ...package import compat
from ...read.settings import Settings
from ...read.settings import load as load_settings
from ...read.sources import Sources
from ..common.stub import kernel_stub
from . import origin

if TYPE_CHECKING:
    from ...model.signature import Arg, Output, Signature
    from ...read.yaml import Document, Documents

_NEW = Path(__file__).parent / "new"


# ------------------------------------------------------------------------------------- new


@click.command()
@click.argument("name")
@click.option("--folder", type=FOLDER, help="The new folder; the default is NAME.")
def new(name: str, folder: Path | None) -> None:
    """Make a package of operators. NAME is its name for pip.

    The package has one operator with kernels for the CPU and Metal, tests, a notebook, and a
    workflow that runs the tests and builds wheels.
    """
    folder = folder or Path(name)
    try:
        if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
            raise click.UsageError(f"{folder} exists and is not empty: nothing was written")
        count = _make(name, folder)
    except OSError as error:
        why = error.strerror or error
        raise click.ClickException(f"nothing was written: {folder}: {why}") from error
    shown = os.path.relpath(folder)
    source = origin.find()
    click.echo(f"{shown}: {count} files")
    click.echo(f"Next, with {source.about}:")
    for line in _commands(shown, source.requirement):
        click.echo(f"  {line}")


def _commands(folder: str, generator: str) -> list[str]:
    """Shell commands that build and test the package in an environment of its own.

    They call Python by its path: `pip` and `python` may be those of another environment.
    """
    build = [sys.executable, "-m", "venv", ".venv"]
    pip = [".venv/bin/python", "-m", "pip", "install"]
    return [
        shlex.join(words)
        for words in (
            ["cd", folder],
            build,
            [*pip, generator, f"mlx[cpu]=={_mlx()}"],
            [*pip, "--no-build-isolation", ".[test]"],
            [".venv/bin/python", "-m", "pytest"],
        )
    ]


def _mlx() -> str:
    """Return the release of MLX for a new package: the installed or else the newest known one."""
    return compat.version("mlx") or [*compat.MLX][-1]


def _make(name: str, folder: Path) -> int:
    """Make the package atomically: all of its files or none. Return the number of files."""
    near = next(parent for parent in folder.absolute().parents if parent.is_dir())
    files = dict(_package(name))
    with tempfile.TemporaryDirectory(dir=near, prefix=".mlxgen") as scratch:
        made = Path(scratch) / "package"
        for path, text in files.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_text(text, encoding="utf-8")
        diags = Diagnostics()
        settings = load_settings(made, diags)
        if settings is None or not operators.load(settings, diags)[0]:
            raise click.BadParameter(diags.sorted()[0].message, param_hint="NAME")
        parents = [path for path in folder.absolute().parents if not path.exists()]
        try:
            folder.absolute().parent.mkdir(parents=True, exist_ok=True)
            made.replace(folder)  # an existing folder is empty
        except OSError:
            for parent in parents:
                with suppress(OSError):
                    parent.rmdir()
            raise
    return len(files)


def _package(name: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a new package, by path."""
    from jinja2 import Environment

    from ...read.keys import json_schema

    package = re.sub(r"[-.]", "_", name)
    values = {"name": name, "package": package, "mlx": _mlx()}
    values["install"] = origin.REPOSITORY and f"{origin.REPOSITORY}/blob/main/docs/install.md"
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
@click.option("--composite", metavar="FORMULA", help="The operator as a formula of MLX operations.")
@click.option("--shape", metavar="FORMULA", help="Output shape of a non-elementwise operator.")
@click.option("--dtype", metavar="FORMULA", help="Output dtype, if not the promoted dtype.")
@click.option(
    "--checks",
    nargs=2,
    multiple=True,
    metavar="CONDITION MESSAGE",
    help="A condition on the arguments, and the message if it is false.",
)
@click.option("--grad", multiple=True, metavar="ARG=FORMULA", help="An argument's vjp.")
@click.option("--doc", help="The first sentence of the docstring.")
def add(diags: Diagnostics, signature: str, project: Path | None, **options: Any) -> None:
    """Append an operator with a SIGNATURE such as "softsign(array x) -> array".

    mlxgen writes kernels as far as the entry determines them; you write the computation. Without
    --kernel and --composite, one kernel serves both backends.
    """
    for text in _texts([signature, *options.values()]):
        if text != text.encode(errors="replace").decode():
            raise click.UsageError(f"{text!a} is not valid Unicode")
    settings = settings_of(diags, project)
    document = operators.read(settings, diags)[0]
    require(document is not None and diags.ok)
    assert document is not None
    # Bytes, so that line endings stay unchanged.
    before = settings.yaml.read_bytes().decode()
    margin = _margin(document.parts[0], settings)
    plan = _Plan(signature, _parsed(signature), margin=margin, **options)
    gap = "\n" * (bool(before.strip()) + (before.rstrip(" ")[-1:] not in ("\n", "")))
    line = len(LINE_BREAK.findall(before + gap)) + 1
    new = _New(settings, document, before + gap, plan.entry(), plan.shared, diags)
    stubs = new.stubs()
    end = "\r\n" if "\r\n" in before else "\n"
    after = before + (gap + plan.entry()).replace("\n", end)
    _write(Path(os.path.realpath(settings.yaml)), after, stubs)
    click.echo(f"{settings.relative(settings.yaml)}:{line}: name: {plan.name}")
    if plan.guessed:
        click.echo(f"shape: {plan.guessed} is a guess (--shape FORMULA sets another)")
    for path in stubs:
        click.echo(f"{settings.relative(path)}: write the computation here")


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif value is not None:
            yield from _texts(value)


def _margin(document: Document, settings: Settings) -> str:
    """Return the text before the dash of an entry."""
    lines = LINE_BREAK.split(document.text)
    if not document.entries and all(not line.strip() or line[0] == "#" for line in lines):
        return ""
    last = lines[document.entries[-1].span().line - 1] if document.entries else ""
    if found := re.match(r"( *)-\s", last):
        return found[1]
    name = settings.relative(settings.yaml)
    message = f"the entries of {name} do not begin with '- ' on lines of their own"
    raise click.ClickException(f"nothing was written: {message}")


def _write(yaml: Path, text: str, stubs: Mapping[Path, str]) -> None:
    """Write all files or, if one cannot be written, none."""
    written: list[Path] = []
    try:
        for path, stub in stubs.items():
            written += [folder for folder in path.parents if not folder.exists()][::-1]
            path.parent.mkdir(parents=True, exist_ok=True)
            written.append(path)
            path.write_text(stub, encoding="utf-8")
        replace_file(yaml, text.encode())
    except BaseException as error:
        for path in reversed(written):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            raise click.ClickException(f"nothing was written: {reason(error)}") from error
        raise


def _parsed(text: str) -> Signature | None:
    """Return the parsed signature or None; checking the entry reports syntax errors."""
    from ...read.signature import parse_signature

    return parse_signature(text, "any", lambda *_: None)


def _quoted(text: str) -> str:
    """Return a string in YAML quotes."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


class _Plan:
    """An entry for a signature; keys without an option follow from the arguments."""

    def __init__(
        self,
        text: str,
        signature: Signature | None,
        *,
        margin: str,
        kernel: str | None,
        composite: str | None,
        shape: str | None,
        dtype: str | None,
        checks: Sequence[tuple[str, str]],
        grad: Names,
        doc: str | None,
    ) -> None:
        from ...model.kinds import KINDS, Kind

        self.text, self.margin = text, margin
        self.composite, self.dtype, self.grad, self.doc = composite, dtype, grad, doc
        self.checks = list(checks)
        named = re.search(r"[A-Za-z_]\w*(?=\s*\()", text)
        self.name = (signature and signature.name) or (named[0] if named else text)
        args = signature.args if signature else ()
        outputs = signature.outputs if signature else ()
        self.first_output = outputs[0].name if outputs else "out"
        whole = dtype is not None or any(
            arg.type.optional or not (arg.type.kind is Kind.ARRAY or KINDS[arg.type.kind].scalars)
            for arg in args
        )
        has_kernel = kernel is not None or composite is None
        self.guessed = ""
        if has_kernel and shape is None and whole:
            shape = _shape(args)
            self.guessed = shape or ""
        self.shape = shape
        if kernel is None and has_kernel:
            lists = any(arg.type.kind is Kind.ARRAYS for arg in args)
            kernel = "cpu" if lists else "shared"
        if kernel == "shared" and shape:
            kernel = "cpu,metal"
        self.kernel = kernel
        self.shared = kernel == "shared"
        if has_kernel and not checks:
            self.checks += _axis_checks(args)
        texts = [shape or "", dtype or "", *(condition for condition, _ in self.checks)]
        used = {name for text in texts for name in _names(text)}
        self.constants = _constants([a for a in args if a.name not in used], args, outputs)

    def entry(self) -> str:
        """Return the YAML text."""
        name = self.name
        lines = [f"name: {name if name.isidentifier() else _quoted(name)}"]
        lines.append(f"signature: {_quoted(self.text)}")
        if self.doc:
            lines.append(f"doc: {_quoted(self.doc)}")
        if self.shared:
            lines.append(f"dispatch: {name}")
        elif self.kernel:
            launch = {"cpu": name, "metal": f"{name}_metal"}
            if self.shape:
                listed = ", ".join(f"{n}: {_quoted(text)}" for n, text in self.constants.items())
                constants = f", constants: {{{listed}}}" if listed else ""
                metal = f"kernel: {name}_metal, grid: [{self.first_output}.size]{constants}"
                launch["metal"] = f"{{{metal}}}"
            backends = ", ".join(f"{b}: {launch[b]}" for b in self.kernel.split(","))
            lines.append(f"dispatch: {{{backends}}}")
        given = {"shape": self.shape, "dtype": self.dtype, "composite": self.composite}
        lines += [f"{key}: {_quoted(text)}" for key, text in given.items() if text is not None]
        if self.checks:
            pairs = (f"{{that: {_quoted(c)}, else: {_quoted(m)}}}" for c, m in self.checks)
            lines += ["checks:", *(f"  - {pair}" for pair in pairs)]
        if self.grad:
            items = (text.partition("=") for text in self.grad)
            pairs = (f"{_quoted(arg.strip())}: {_quoted(text.strip())}" for arg, _, text in items)
            lines += ["grad:", *(f"  {pair}" for pair in pairs)]
        elif self.composite is None:
            lines.append("grad: none  # or a formula of grad for each array: {x: 2 * x * grad}")
        dash = [f"{self.margin}- ", *[f"{self.margin}  "] * len(lines)]
        return "".join(f"{before}{line}\n" for before, line in zip(dash, lines, strict=False))


def _names(formula: str) -> set[str]:
    """Return the names in a formula; none if it is invalid, which checking the entry reports."""
    try:
        tree = ast.parse(formula.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _shape(args: Sequence[Arg]) -> str | None:
    """Guess the output shape of an op: the shape of its first array."""
    from ...model.kinds import Kind

    arrays = [arg for arg in args if arg.type.kind is Kind.ARRAY]
    if always := next((arg.name for arg in arrays if not arg.type.optional), ""):
        return f"{always}.shape"
    if lists := [arg.name for arg in args if arg.type.kind is Kind.ARRAYS]:
        return f"{lists[0]}[0].shape"
    if not arrays:
        return None
    name, declared = arrays[0].name, (arrays[0].declared or arrays[0]).type
    tests = [f"{name} is not None"] * declared.optional
    tests += [f"{name} != {choice!r}" for choice in declared.choices]
    return f"{name}.shape if {' and '.join(tests)} else []"


def _constants(
    args: Sequence[Arg], every: Sequence[Arg], outputs: Sequence[Output]
) -> dict[str, str]:
    """Return integer constants for arguments that a [[kernel]] cannot take directly."""
    from ...model.kinds import KINDS, Kind

    taken = {arg.name for arg in every} | {output.name for output in outputs}
    found: dict[str, str] = {}
    for arg in args:
        kind, name = arg.type.kind, arg.name
        absent = arg.type.optional and kind is not Kind.ENUM
        if arg.type.is_array or (KINDS[kind].metal and not absent):
            continue
        suffix, formula = {
            Kind.INT: ("or_0", name),
            Kind.BOOL: ("or_false", f"1 if {name} else 0"),
            Kind.STR: ("is_empty", f"1 if {name} == '' else 0"),
            Kind.DTYPE: ("is_float32", f"1 if {name} == float32 else 0"),
            **dict.fromkeys((Kind.INTS, Kind.SHAPE, Kind.AXES), ("count", f"len({name})")),
        }.get(kind, ("given", "1"))
        if arg.type.optional:
            formula = f"0 if {name} is None else {formula}"
        constant = f"{name}_{suffix}"
        while constant in taken:
            constant += "_"
        taken.add(constant)
        found[constant] = formula
    return found


_AXIS = ("axis", "dim", "axes", "dims")


def _axis_checks(args: Sequence[Arg]) -> Iterator[tuple[str, str]]:
    """Yield checks that axis arguments are in range, because kernels do not check them."""
    from ...model.kinds import Kind

    plain = (a.name for a in args if a.type.kind is Kind.ARRAY and not a.type.optional)
    if (array := next(plain, None)) is None:
        return
    for arg in args:
        kind, name = arg.type.kind, arg.name
        if kind is Kind.AXES or (kind is Kind.INTS and name in _AXIS):
            each = next(n for n in ("i", "j", "k", "n") if n not in {a.name for a in args})
            condition = f"all(-{array}.ndim <= {each} < {array}.ndim for {each} in {name})"
        elif kind is Kind.INT and name in _AXIS:
            condition = f"-{array}.ndim <= {name} < {array}.ndim"
        else:
            continue
        if arg.type.optional:
            condition = f"{name} is None or {condition}"
        yield condition, f"{name} is out of range for {array}"


class _New:
    """An entry to append; it is checked together with all others before anything is written."""

    def __init__(
        self,
        settings: Settings,
        document: Documents,
        before: str,
        entry: str,
        shared: bool,
        diags: Diagnostics,
    ) -> None:
        self.settings, self.entry, self.shared, self.diags = settings, entry, shared, diags
        self.file = document.parts[0].path
        self.texts = {part.path: part.text for part in document.parts}
        self.texts[self.file] = before + entry
        self.above = len(LINE_BREAK.findall(before))

    def stubs(self) -> dict[Path, str]:
        """Return the files with the missing kernels of the entry."""
        files: dict[Path, str] = {}
        for declaration in self._checked({}):
            path, text = kernel_stub(self.settings, declaration, self.shared)
            if os.path.lexists(path):
                shown = self.settings.relative(path)
                message = f"{shown} already exists: write {declaration.name} yourself"
                raise click.UsageError(message)
            files[path] = text
        self._checked(files)
        return files

    def _checked(self, files: Mapping[Path, str]) -> list[Declaration]:
        """Check the entry with these files, and fail on any error. Without files, return the
        missing kernels."""
        from ...check.file import resolve
        from ...read.yaml import Documents

        found = Diagnostics()
        document = Documents.parse(self.texts, found)
        unsaved = {str(path): text for path, text in files.items()}
        sources = Sources(self.settings, found, operators.mlx_include(), unsaved)
        if document is not None and document.parts[0].entries:
            only = {document.parts[0].entries[-1].name}
            ops = resolve(document, self.settings, sources, found, only)
            operators.check_metal(ops, sources, found)
        missing: list[Declaration] = []
        self.diags.add_source(_ENTRY, self.entry)
        for item in found.sorted():
            if not files and item.expected and item.expected.missing_in:
                missing.append(item.expected)
                continue
            span = self._moved(item.span)
            if span.file == _ENTRY or item.severity == "error":
                places = tuple(it._replace(span=self._moved(it.span)) for it in item.related)
                self.diags.repeat(item._replace(span=span, related=places, fix=None))
        require(self.diags.ok)
        return missing

    def _moved(self, span: Span) -> Span:
        """Convert a span in the entry, which is not in a file yet; return other spans unchanged."""
        file, line, column, end_line, end_column = span
        if line <= self.above or file != self.file:
            return span
        return Span(_ENTRY, line - self.above, column, end_line - self.above, end_column)


_ENTRY = "<entry>"
