"""The commands show, list, schema, explain and docs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from ...command.cli import EXISTING_FILE, Names, command, load, require
from ...diagnostics import Diagnostics, sections
from ...model import languages as known
from ...model.op import GradKind, Op

if TYPE_CHECKING:
    from ...read.settings import Settings


@command("project")
@click.argument("words", nargs=-1, required=True, metavar="[FILE] OP [PART]")
def show(diags: Diagnostics, project: Path | None, words: Names) -> None:
    """Print the generated code of an operator and its overloads, without building.

    PART is one of header, source, binding, stub, doc, metal, json, or a language such as c or rust.
    Default: header and source.
    """
    from . import show as parts

    file = None
    if Path(words[0]).suffix in (".yaml", ".yml") or not all(map(parts.is_part, words[1:2])):
        file, words = EXISTING_FILE.convert(words[0], None, None), words[1:]
    if not words or len(words) > 2 or not all(map(parts.is_part, words[1:])):
        listed = ", ".join([*parts.PARTS, *known.names()])
        raise click.UsageError(f"expected [FILE] OP [PART]; PART is one of {listed}")
    ops, sources, settings = load(diags, project, file, words[:1], strict=False, partly=True)
    require(bool(ops))
    for op in ops:
        for name in words[1:] or ("header", "source"):
            say(parts.part(op, name, settings, sources.metal_text), parts.PARTS.get(name, name))


def say(text: str, language: str) -> None:
    """Print code, in color on a terminal."""
    if not sys.stdout.isatty():
        click.echo(text, nl=not text.endswith("\n"))
        return
    from rich.console import Console
    from rich.syntax import Syntax

    wrapped = language == "markdown"
    Console().print(Syntax(text, language, background_color="default", word_wrap=wrapped))


def gradient_summary(op: Op) -> str:
    """Describe an operator's gradient in a few words."""
    kinds = {g.kind for g in op.derivatives.grads}
    if "vjp" in op.entry.manual:
        return "hand-written"
    if not kinds or kinds == {GradKind.COMPOSITE}:
        return "of the composite" if op.forward.expr is not None else "MLX's own"
    if kinds == {GradKind.NONE}:
        return "none"
    return "function" if GradKind.FUNCTION in kinds else "formula"


@command("file", "project", "select", "exclude", "format", name="list")
def list_command(diags: Diagnostics, form: str, **chosen: Any) -> None:
    """List the operators: name, signature, backends, gradient."""
    from ...render.python import op_dict

    ops, _, _ = load(diags, **chosen, partly=True)
    if form == "json":
        click.echo(json.dumps([op_dict(op) for op in ops], indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("operator", "signature", "backends", "gradient", "tags")
    for op in ops:
        backends, tags = ", ".join(op.backends), ", ".join(sorted(op.entry.tags))
        table.add_row(op.path, op.signature.python(), backends, gradient_summary(op), tags)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@click.command()
def schema() -> None:
    """Print the JSON Schema of the YAML file, for editors."""
    from ...read.keys import json_schema

    click.echo(json.dumps(json_schema(), indent=1))


@click.command()
@click.argument("code")
def explain(code: str) -> None:
    """Explain an error code, such as MG403, with an example and its fix."""
    if code.upper() not in sections():
        raise click.BadParameter(f"unknown code {code}")
    say(sections()[code.upper()], "markdown")


@command("project")
@click.option("--check", "dry_run", is_flag=True, help="Write nothing; exit 1 if pages differ.")
def docs(diags: Diagnostics, project: Path | None, dry_run: bool) -> None:
    """Write the reference of the operators and the JSON Schema."""
    from ...command.write import differing, put, reported

    ops, _, settings = load(diags, project)
    with reported(settings.docs, diags):
        stale = differing(settings.docs, doc_pages(ops, settings), {})
        if not dry_run:
            put(settings.docs, stale)
    require(diags.ok)
    paths = ", ".join(settings.relative(settings.docs / name) for name in stale)
    verb = "out of date" if dry_run else "written"
    click.echo(f"{verb}: {paths}" if stale else "all pages are up to date")
    if stale and dry_run:
        sys.exit(1)


def doc_pages(ops: Sequence[Op], settings: Settings) -> dict[str, str]:
    """Return the generated pages of the docs folder: reference and JSON Schema."""
    from ...read.keys import json_schema
    from ...render.files import PAGES, pieces

    return {
        "operators.md": import_module(PAGES).reference(
            (pieces(op, settings) for op in ops), settings
        ),
        f"{settings.yaml.stem}.schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }
