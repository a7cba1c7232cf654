"""The language server: answers LSP requests from the results of ``project`` and ``cursor``.

An edit is checked after 50 ms, together with any edits that follow it, or as soon as a request
needs the result. Positions use the encoding that the client requests, by default UTF-16 code
units. Every edit sends the whole text, because clients disagree on line endings. If a handler
fails, it logs the error in the editor and returns nothing, so that no input ends the server.
"""

from __future__ import annotations

import asyncio
import os
import re
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls import uris
from pygls.lsp.server import LanguageServer

from ... import __version__
from ...check.context import SIGNATURES
from ...diagnostics import Diagnostic, Diagnostics, Span, Text, sections
from ...formula.mlx import MODULES
from ...model.op import camel
from ...read import settings
from ...read.settings import MAX_BYTES, PATHS
from ...read.sources import last_name
from ...render.files import definition
from ...render.format import formatted
from ..common.stub import kernel_stub
from . import cursor
from .cursor import Cursor
from .project import Project

_DELAY = 0.05  # seconds after an edit
_EDITS = ("Open", "Change", "Save", "Close")
_SOURCES = (".h", ".cpp", ".metal")
_SCHEMA = re.compile(r"\A(?:#.*\n)*?#.*mlx_ops\.schema\.json")
_KERNEL_NAME = re.compile(r"[\w:]*")

_text = lru_cache(8)(partial(Text, ""))


class Server:
    """Serves one editor, with any number of projects."""

    def __init__(self) -> None:
        full = lsp.TextDocumentSyncKind.Full
        self.lsp = LanguageServer("mlxgen", __version__, text_document_sync_kind=full)
        self.projects: dict[Path, Project] = {}
        self.unsaved: dict[str, str] = {}  # hand-written files that are open, by their paths
        self.waiting: set[Path] = set()  # projects with an edit to check
        self.shown: dict[Path, set[str]] = {}  # files for which the editor has diagnostics
        typed = lsp.CompletionOptions(trigger_characters=[".", "{", "[", " "])
        fixes = lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix])
        requests: list[tuple[str, Callable[[Any], Any], Any]] = [
            (lsp.TEXT_DOCUMENT_COMPLETION, self.completion, typed),
            (lsp.TEXT_DOCUMENT_HOVER, self.hover, None),
            (lsp.TEXT_DOCUMENT_DEFINITION, self.definition, None),
            (lsp.TEXT_DOCUMENT_CODE_ACTION, self.fixes, fixes),
            (lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL, self.symbols, None),
            *((f"textDocument/did{what}", self.edited, None) for what in _EDITS),
            (lsp.INITIALIZED, self.watch, None),
            (lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES, self.saved, None),
        ]
        for name, handler, options in requests:
            self.lsp.feature(name, options)(partial(self.guarded, handler))

    def run(self) -> None:
        """Serve on standard input and output until the editor disconnects."""
        self.lsp.start_io()

    def guarded(self, handler: Callable[[Any], Any], params: Any) -> Any:
        """Return the result of a handler. If it fails, log the error in the editor; return None."""
        try:
            return handler(params)
        except Exception:
            error = lsp.LogMessageParams(lsp.MessageType.Error, traceback.format_exc())
            self.lsp.window_log_message(error)
            return None

    # Files

    def open(self, path: Path) -> Any:
        """Return the editor's document of a file; None if the file is not open."""
        documents = self.lsp.workspace.text_documents.values()
        return next(
            (found for found in documents if os.path.realpath(found.path) == str(path)), None
        )

    def text(self, path: Path) -> Text:
        """Return the text of a file: from the editor if it is open, else from disk."""
        if document := self.open(path):
            return _text(str(document.source).encode(errors="replace").decode())
        try:
            return _text(path.read_bytes()[: MAX_BYTES + 1].decode(errors="replace"))
        except OSError:
            return _text("")

    def project(self, path: Path) -> Project | None:
        """Return the project of a file of operators or hand-written code; None for other files."""
        root = settings.find(path.parent)
        found = settings.load(root, Diagnostics()) if root else None
        yaml = None
        if path.suffix in _SOURCES:
            if found and any(map(path.is_relative_to, (found.csrc, found.metal))):
                yaml = found.yaml
        elif path.suffix in (".yaml", ".yml"):
            named = path.name == PATHS["yaml"] or _SCHEMA.match(self.text(path).text)
            yaml = found.yaml if found and path in found.files else path if named else None
        if yaml and yaml not in self.projects:
            self.projects[yaml] = Project(yaml, self.unsaved, lambda path: self.text(path).text)
        return self.projects[yaml] if yaml else None

    def edited(self, params: Any) -> None:
        """Schedule a check after a file was opened, edited, saved or closed."""
        path = _path(params)
        self.unsaved.pop(str(path), None)
        if path.suffix in _SOURCES and self.open(path):
            self.unsaved[str(path)] = "\n".join(self.text(path).lines)
        self.later(self.project(path))

    def watch(self, _: Any) -> None:
        """Ask the editor to report changes of files on disk."""
        workspace = self.lsp.client_capabilities.workspace
        watches = workspace and workspace.did_change_watched_files
        if watches and watches.dynamic_registration:
            files = [lsp.FileSystemWatcher("**/*.{h,cpp,metal,toml,yaml,yml}")]
            options = lsp.DidChangeWatchedFilesRegistrationOptions(files)
            asked = lsp.Registration("files", lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
            self.lsp.client_register_capability(lsp.RegistrationParams([asked]))

    def saved(self, _: Any) -> None:
        """Check again after a file was written; each project detects its own changed files."""
        for project in self.projects.values():
            self.later(project)

    def later(self, project: Project | None) -> None:
        """Schedule a check of a project."""
        if project and project.yaml not in self.waiting:
            self.waiting.add(project.yaml)
            asyncio.get_running_loop().call_later(_DELAY, self.guarded, self.now, project)

    def now(self, project: Project) -> Project:
        """Return a project that includes all edits; check it first if one is pending."""
        if project.yaml in self.waiting:
            self.waiting.remove(project.yaml)
            project.check(self.text(project.yaml).text)
            found: dict[str, list[lsp.Diagnostic]] = {self.uri(project.yaml): []}
            for item in project.diagnostics:
                place = self.location(item.span, project)
                found.setdefault(place.uri, []).append(self.diagnostic(item, place, project))
            for uri in self.shown.get(project.yaml, set()) | {*found}:
                sent = lsp.PublishDiagnosticsParams(uri=uri, diagnostics=found.get(uri, []))
                self.lsp.text_document_publish_diagnostics(sent)
            self.shown[project.yaml] = {*found}
        return project

    def diagnostic(self, item: Diagnostic, at: lsp.Location, project: Project) -> lsp.Diagnostic:
        """Convert a diagnostic to LSP; its related locations become links."""
        related = [
            lsp.DiagnosticRelatedInformation(
                location=self.location(place.span, project), message=place.message
            )
            for place in item.related
        ]
        return lsp.Diagnostic(
            range=at.range,
            message="\n".join([item.text, *[f"help: {item.help}"][: bool(item.help)], *item.notes]),
            severity=lsp.DiagnosticSeverity[item.severity.capitalize()],
            code=item.code,
            source="mlxgen",
            related_information=related,
        )

    # Locations

    def uri(self, path: Path) -> str:
        """Return the editor's URI of a file."""
        document = self.open(path)
        return str(document.uri if document else uris.from_fs_path(str(path)))

    def file(self, span: Span, project: Project) -> Path:
        """Return the file of a span."""
        root = settings.find(project.yaml.parent) or project.yaml.parent
        path = root / span.file if span.file == "pyproject.toml" else span.file
        return Path(os.path.realpath(path))

    def location(self, span: Span, project: Project) -> lsp.Location:
        """Convert a span to an LSP location."""
        path = self.file(span, project)
        return lsp.Location(uri=self.uri(path), range=self.range(self.text(path), span))

    def range(self, text: Text, span: Span) -> lsp.Range:
        """Convert a span to an LSP range; an empty span becomes one character long."""
        units = self.lsp.workspace.position_codec.client_num_units
        _, line, column, end_line, end_column = span
        end_column += (line, column) == (end_line, end_column)
        starts = text.offset(line, 1), text.offset(end_line, 1)
        before = text.text[starts[0] : text.offset(line, column)]
        inside = text.text[starts[1] : text.offset(end_line, end_column)]
        begin = lsp.Position(max(line - 1, 0), units(before))
        return lsp.Range(begin, lsp.Position(max(end_line - 1, 0), units(inside)))

    def offset(self, text: Text, position: lsp.Position) -> int:
        """Return the index of the character at an LSP position."""
        line = text.lines[position.line] if position.line < len(text.lines) else ""
        units = accumulate(map(self.lsp.workspace.position_codec.client_num_units, line), initial=0)
        return text.offset(position.line + 1, 1 + bisect_left([*units], position.character))

    def asked(self, params: Any) -> tuple[Project | None, Path, Text, int]:
        """Return the subject of a request: the project, the file, its text and the position."""
        path = _path(params)
        text, project = self.text(path), self.project(path)
        offset = self.offset(text, params.position)
        return self.now(project) if project else None, path, text, offset

    # Requests

    def completion(self, params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        """Return the completions at the cursor."""
        project, path, text, offset = self.asked(params)
        place = Cursor.at(text.text, offset) if path.suffix not in _SOURCES else None
        if project is None or place is None:
            return []
        # The replaced range is explicit, because editors disagree on the extent of a YAML word.
        written = len(place.word.rpartition(".")[2])
        begin = self.range(text, text.at(offset - written, offset)).start
        has_colon = re.compile(r"\w*\s*:").match(text.text, offset)
        found = {item.name: item for item in reversed([*cursor.items(place, project)])}
        return [
            lsp.CompletionItem(
                label=item.name,
                kind=lsp.CompletionItemKind[item.kind],
                detail=item.detail or None,
                text_edit=lsp.TextEdit(
                    range=lsp.Range(begin, params.position),
                    new_text=item.name if has_colon else item.insert or item.name,
                ),
            )
            for item in found.values()
        ]

    def hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        """Describe the symbol at the cursor and the errors there."""
        project, path, text, offset = self.asked(params)
        if project is None:
            return None
        said = []
        for item in project.diagnostics:
            _, *begin, end_line, end_column = item.span
            reach = range(text.offset(*begin), text.offset(end_line, end_column) + 1)
            if offset in reach and self.file(item.span, project) == path:
                said.append(sections()[item.code])
        if path.suffix not in _SOURCES:
            said += self.about(text.text, offset, project)
        contents = lsp.MarkupContent(lsp.MarkupKind.Markdown, "\n---\n".join(dict.fromkeys(said)))
        return lsp.Hover(contents=contents) if said else None

    def about(self, text: str, offset: int, project: Project) -> Iterator[str]:
        """Yield the facts about the word at a position, in Markdown."""
        while text[offset : offset + 1].isidentifier() or text[offset : offset + 1].isdecimal():
            offset += 1
        place = Cursor.at(text, offset)
        if place is None or not place.word or not project.settings:
            return
        if (used := project.used.get(place.word)) and cursor.is_formula(place.path):
            for operator in used:
                yield f"```python\n{operator.signature.python()}\n```\n{operator.doc}"
            return
        before, _, word = place.word.removeprefix("mx.").rpartition(".")
        named = project.called(word)
        is_formula = cursor.is_formula(place.path)
        if place.key and (said := cursor.keys(place.path).get(place.word)):
            yield f"`{place.word}`: {said}"
        elif named and place.path[:1] and place.path[0] in ("name", *SIGNATURES):
            for op in named:
                yield f"```cpp\n{formatted(definition(op, project.settings))}```"
        elif is_formula and (let := place.lets().get(place.word)):
            yield f"```python\n{place.word} = {let}\n```"
        elif named and is_formula:
            for op in named:
                yield f"```python\n{op.signature.python()}\n```\n{op.entry.doc or ''}"
        elif is_formula:
            module = f"{before}." if before in MODULES else ""
            of_array = bool(before) and not module
            if said := cursor.usage(module + word, project.release, of_array):
                yield f"```python\n{said}\n```"

    def definition(self, params: lsp.DefinitionParams) -> list[lsp.Location]:
        """Return the definition of the word at the cursor: an entry or a hand-written function.

        For a function in hand-written code, return the entries that name it.
        """
        project, path, text, offset = self.asked(params)
        if project is None or project.document is None or project.sources is None:
            return []
        entries = project.document.entries
        around = (found for found in _KERNEL_NAME.finditer(text.text) if found.end() >= offset)
        name = next(around)[0].strip(":")
        word = last_name(name)
        if path.suffix in _SOURCES:
            mentions = re.compile(rf"\b{re.escape(word)}\b")
            spans = [e.span() for e in entries if word and mentions.search(e.text)]
        else:
            spans = [e.span() for e in entries if word in (e.name, e.python_name)]
            place = Cursor.at(text.text, offset)
            if place and place.path and not cursor.is_formula(place.path):
                sources, signature = project.sources, place.signature()
                manual = place.path[0] == "manual" and signature
                of = camel(signature.name or "") if manual and signature else None
                named = [*sources.cpp.named(name), *sources.metal.named(name)]
                spans = [f.span for _, _, f in named if f.class_name == of] or spans
        return [self.location(span, project) for span in dict.fromkeys(spans)]

    def fixes(self, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        """Return the fixes for errors in a range, certain fixes first, and the command that creates
        a missing kernel file."""
        path, project = _path(params), self.project(_path(params))
        found: list[lsp.CodeAction] = []
        if project is None:
            return found
        for item in self.now(project).diagnostics:
            place, asked = self.location(item.span, project), params.range
            if self.file(item.span, project) != path:
                continue
            if place.range.end < asked.start or asked.end < place.range.start:
                continue
            for title, edit, certain in self.edits(item, project):
                action = lsp.CodeAction(
                    title=title,
                    kind=lsp.CodeActionKind.QuickFix,
                    diagnostics=[self.diagnostic(item, place, project)],
                    edit=edit,
                    is_preferred=certain,
                )
                found.append(action)
        return sorted(found, key=lambda action: not action.is_preferred)

    def edits(
        self, item: Diagnostic, project: Project
    ) -> Iterator[tuple[str, lsp.WorkspaceEdit, bool]]:
        """Yield possible fixes: the title, the edit, and whether the fix is certain."""
        if fix := item.fix:
            place = self.location(fix.span, project)
            text, (_, *begin, line, column) = self.text(self.file(fix.span, project)), fix.span
            old = text.text[text.offset(*begin) : text.offset(line, column)]
            title = f"Replace '{old}' by '{fix.text}'" if fix.text else f"Remove '{old}'"
            edit = lsp.TextEdit(range=place.range, new_text=fix.text)
            yield title, lsp.WorkspaceEdit(changes={place.uri: [edit]}), fix.certain
        wanted, known = item.expected, project.settings
        if item.code == "MG502" and wanted and wanted.missing_in and known and project.document:
            dispatch = [e.words("dispatch") for e in project.document.entries if e.name == item.op]
            path, stub = kernel_stub(known, wanted, shared=any(dispatch))
            if not os.path.lexists(path) and self.creates_files:
                uri, start = self.uri(path), lsp.Position(0, 0)
                inserted = lsp.TextEdit(range=lsp.Range(start, start), new_text=stub)
                named = lsp.OptionalVersionedTextDocumentIdentifier(uri=uri)
                made, filled = lsp.CreateFile(uri=uri), lsp.TextDocumentEdit(named, [inserted])
                edits = lsp.WorkspaceEdit(document_changes=[made, filled])
                yield f"Write {known.relative(path)}", edits, False

    @property
    def creates_files(self) -> bool:
        """Return true if the editor supports edits that create files."""
        workspace = self.lsp.client_capabilities.workspace
        edits = workspace and workspace.workspace_edit
        return lsp.ResourceOperationKind.Create in ((edits and edits.resource_operations) or ())

    def symbols(self, params: lsp.DocumentSymbolParams) -> list[lsp.SymbolInformation]:
        """Return the entries, for the outline and for symbol search."""
        project = self.project(_path(params))
        document = self.now(project).document if project else None
        if project is None or document is None:
            return []
        path, kind = _path(params), lsp.SymbolKind.Function
        named = ((e.span(), e.name or "?") for e in document.entries)
        own = ((at, name) for at, name in named if self.file(at, project) == path)
        return [lsp.SymbolInformation(self.location(at, project), name, kind) for at, name in own]


def _path(params: Any) -> Path:
    """Return the file that a message refers to."""
    return Path(os.path.realpath(uris.to_fs_path(params.text_document.uri) or ""))
