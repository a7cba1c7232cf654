"""The language server with a real client, which starts it and sends requests like an editor."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent

import pytest
import pytest_lsp
from lsprotocol import types as lsp
from pytest_lsp import ClientServerConfig, LanguageClient, make_test_lsp_client

ROOT = Path(__file__).parents[2]


def make_client() -> LanguageClient:
    """Create an editor that records the files that it is asked to watch."""
    made = make_test_lsp_client()
    made.watched = []

    def register(params: lsp.RegistrationParams) -> None:
        made.watched += [item.method for item in params.registrations]

    made.feature(lsp.CLIENT_REGISTER_CAPABILITY)(register)
    return made


COMMAND = [sys.executable, "-m", "mlxgen", "lsp"]
CONFIG = ClientServerConfig(server_command=COMMAND, client_factory=make_client)
PROJECT = {
    "pyproject.toml": '[project]\nname = "tiny"\n[tool.mlxgen]\n',
    "python/tiny/__init__.py": "",
    "csrc/halve.h": dedent("""\
        #pragma once
        #include "mlxgen/scalar.h"
        namespace tiny {
        template <typename T>
        T halve(T x) {
          return x / 2;
        }
        } // namespace tiny
        """),
    "mlx_ops.yaml": dedent("""\
        - name: halve
          signature: "halve(array x) -> array"
          doc: Half of it.
          dispatch: halve
          composite: x / 2
          grad: {x: grad / 2}
          tags: [elementwise]

        - signature: "quarter(array x, float by=1) -> array"
          composite: halve(halve(x)) * by
        """),
}
YAML = PROJECT["mlx_ops.yaml"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project."""
    for path, text in PROJECT.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


@pytest_lsp.fixture(config=CONFIG)
async def client(lsp_client: LanguageClient) -> AsyncIterator[None]:
    """An editor connected to a server."""
    parameters = lsp.InitializeParams(
        capabilities=pytest_lsp.client_capabilities("visual_studio_code")
    )
    await lsp_client.initialize_session(parameters)
    yield
    await lsp_client.shutdown_session()


class Editor:
    """The actions of a user in an editor."""

    def __init__(self, client: LanguageClient, path: Path) -> None:
        self.client, self.uri, self.text, self.version = client, path.as_uri(), "", 0

    async def write(self, text: str) -> list[lsp.Diagnostic]:
        """Set the text of the open file; return its diagnostics."""
        self.change(text)
        file = lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(self.uri))
        await self.client.text_document_document_symbol_async(file)  # the answer is of this text
        return [*self.client.diagnostics.get(self.uri, [])]

    def change(self, text: str) -> None:
        """Set the text of the open file."""
        self.text = text
        self.version += 1
        if self.version == 1:
            item = lsp.TextDocumentItem(self.uri, "yaml", 1, text)
            self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        else:
            whole = lsp.TextDocumentContentChangeWholeDocument(text)
            of = lsp.VersionedTextDocumentIdentifier(version=self.version, uri=self.uri)
            self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(of, [whole]))

    def at(self, mark: str, inside: int = 0) -> tuple[lsp.TextDocumentIdentifier, lsp.Position]:
        """Return the position of a string."""
        return self.place(self.text.index(mark) + inside)

    def place(self, offset: int) -> tuple[lsp.TextDocumentIdentifier, lsp.Position]:
        """Return the position of a character."""
        before = self.text[:offset]
        line = before.rpartition("\n")[2]
        position = lsp.Position(
            before.count("\n"), len(line.encode("utf-16-le", "surrogatepass")) // 2
        )
        return lsp.TextDocumentIdentifier(self.uri), position

    async def complete(self, mark: str) -> dict[str, lsp.CompletionItem]:
        """Return the completions after a string."""
        where = self.at(mark, len(mark))
        found = await self.client.text_document_completion_async(lsp.CompletionParams(*where))
        return {item.label: item for item in found}

    async def hover(self, mark: str, inside: int = 1) -> str:
        """Return the hover text for the word in a string."""
        found = await self.client.text_document_hover_async(lsp.HoverParams(*self.at(mark, inside)))
        return found.contents.value if found else ""

    async def go(self, mark: str, inside: int = 1) -> list[tuple[str, int, int]]:
        """Return the definition of the word in a string: file, line and column, from 1."""
        where = lsp.DefinitionParams(*self.at(mark, inside))
        found = await self.client.text_document_definition_async(where)
        starts = [(place.uri.rpartition("/")[2], place.range.start) for place in found]
        return [(name, start.line + 1, start.character + 1) for name, start in starts]

    async def actions(self, item: lsp.Diagnostic) -> list[lsp.CodeAction]:
        """Return the code actions for a diagnostic."""
        context = lsp.CodeActionContext(diagnostics=[item])
        file = lsp.TextDocumentIdentifier(self.uri)
        asked = lsp.CodeActionParams(file, item.range, context)
        return await self.client.text_document_code_action_async(asked) or []

    async def fixed(self, item: lsp.Diagnostic) -> str:
        """Return the text with the fix of a diagnostic applied, if it has one."""
        for action in await self.actions(item):
            if action.edit.changes:
                (edit,) = action.edit.changes[self.uri]
                return self.edited(edit)
        return self.text

    def edited(self, edit: lsp.TextEdit) -> str:
        """Return the text with an edit applied."""
        lines = self.text.splitlines(keepends=True)
        line = lines[edit.range.start.line].encode("utf-16-le")
        begin, end = edit.range.start.character * 2, edit.range.end.character * 2
        line = line[:begin] + edit.new_text.encode("utf-16-le") + line[end:]
        lines[edit.range.start.line] = line.decode("utf-16-le")
        return "".join(lines)


@pytest.fixture
def editor(client: LanguageClient, folder: Path) -> Editor:
    """An editor with the project's file of operators."""
    return Editor(client, folder / "mlx_ops.yaml")


def slice_of(text: str, range: lsp.Range) -> str:
    """Return the slice of a line in a range of UTF-16 code units."""
    assert range.start.line == range.end.line
    line = text.split("\n")[range.start.line].encode("utf-16-le")
    return line[range.start.character * 2 : range.end.character * 2].decode("utf-16-le")


@pytest.mark.asyncio
async def test_diagnostics(editor: Editor) -> None:
    """Unsaved text is checked; the message contains everything that the command line shows."""
    assert await editor.write(YAML) == []
    (item,) = await editor.write(YAML.replace("tags: [elementwise]", "tags: [elementwize]"))
    assert slice_of(editor.text, item.range) == "elementwize"
    assert (item.code, item.severity, item.source) == (
        "MG105",
        lsp.DiagnosticSeverity.Error,
        "mlxgen",
    )
    assert "did you mean 'elementwise'?" in item.message and "\nhelp: " in item.message
    assert await editor.write(YAML) == []


@pytest.mark.asyncio
async def test_several_files(client: LanguageClient, folder: Path) -> None:
    """The files of a project are one; open ones are read from the editor."""
    settings = '[tool.mlxgen]\nyaml = ["mlx_ops.yaml", "ops/*.yaml"]\n'
    text = PROJECT["pyproject.toml"]
    assert text.count("[tool.mlxgen]\n") == 1
    (folder / "pyproject.toml").write_text(text.replace("[tool.mlxgen]\n", settings))
    (folder / "ops").mkdir()
    path = folder / "ops" / "more.yaml"
    eighth = '- signature: "eighth(array x) -> array"\n  composite: halve(quarter(x))\n'
    path.write_text(eighth.replace("quarter", "quart"))
    first, more = Editor(client, folder / "mlx_ops.yaml"), Editor(client, path)
    assert await first.write(YAML) == []
    (item,) = client.diagnostics[path.as_uri()]
    assert item.code == "MG304" and "quart" in item.message
    assert await more.write(eighth) == []
    assert await more.go("quarter(") == [("mlx_ops.yaml", 9, 3)]
    assert "quarter" in await more.complete("composite: ")
    assert "Half of it" in await more.hover("halve(")
    symbols = await client.text_document_document_symbol_async(
        lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(more.uri))
    )
    assert [(found.name, found.location.uri) for found in symbols] == [("eighth", more.uri)]
    # An edit of one file changes the messages of the other.
    assert await first.write(YAML.replace("quarter", "eighth")) == []
    item = client.diagnostics[more.uri][0]
    (there,) = item.related_information
    assert (item.code, there.location.uri) == ("MG601", first.uri)
    assert await first.write(YAML.replace("quarter", "quarters")) == []
    (item,) = client.diagnostics[more.uri]
    assert item.code == "MG304"
    assert await more.fixed(item) == eighth.replace("quarter", "quarters")
    assert await first.write(YAML + eighth.replace("eighth", "other")) == []
    assert not client.diagnostics[more.uri]


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_positions(editor: Editor, end: str) -> None:
    """Columns count UTF-16 code units, and edits use the line ends of the file."""
    right = "- {doc: '\U0001f600 é', signature: f(array x) -> array, cpp: mlx::core::exp}"
    text = end.join(["# \U0001f600é", "", right, ""])
    assert await editor.write(text) == []
    (item,) = await editor.write(text.replace("-> array", "-> aray"))
    assert item.range.start.line == 2 and slice_of(editor.text, item.range) == "aray"
    assert await editor.fixed(item) == text
    assert "### MG203" in await editor.hover("aray")
    await editor.write(text.replace("cpp: mlx::core::exp", "composite: so"))
    assert "softmax" in await editor.complete("composite: so")


@pytest.mark.asyncio
async def test_fix(editor: Editor) -> None:
    for right, wrong in [
        ("tags: [elementwise]", "tags: [elementwize]"),
        ("composite: x / 2", "compsite: x / 2"),
        ("halve(halve(x)) * by", "halve(halv(x)) * by"),
        ("dispatch: halve", "dispatch: halvee"),
        ("(array x, float by", "(aray x, float by"),
        ("grad: {x: grad / 2}", "grad: {x: grad ÷ 2}"),
    ]:
        found = await editor.write(YAML.replace(right, wrong))
        assert YAML in [await editor.fixed(item) for item in found], wrong


@pytest.mark.asyncio
async def test_fix_that_is_not_certain(editor: Editor) -> None:
    (item,) = await editor.write(YAML.replace("dispatch: halve", "dispatch: halvee"))
    found = [(action.title, action.is_preferred) for action in await editor.actions(item)]
    assert found == [("Replace 'halvee' by 'halve'", False), ("Write csrc/halvee.h", False)]
    (item,) = await editor.write(YAML.replace("tags: [", "tagss: ["))
    (action,) = await editor.actions(item)
    assert (action.title, action.is_preferred) == ("Replace 'tagss' by 'tags'", True)
    assert [found.code for found in action.diagnostics] == ["MG101"]


@pytest.mark.asyncio
async def test_missing_kernel(editor: Editor, folder: Path) -> None:
    """A code action adds the missing kernel, after which the entry is valid."""
    other = '- signature: "twice(array x) -> array"\n  dispatch: twice\n  grad: none\n'
    (item,) = await editor.write(YAML + "\n" + other)
    assert item.code == "MG502"
    (action,) = await editor.actions(item)
    created, edit = action.edit.document_changes
    assert (action.title, action.is_preferred) == ("Write csrc/twice.h", False)
    assert created.uri == edit.text_document.uri == (folder / "csrc" / "twice.h").as_uri()
    (folder / "csrc" / "twice.h").write_text(edit.edits[0].new_text)
    assert await editor.write(editor.text + "\n") == []


@pytest.mark.asyncio
async def test_related_places(editor: Editor) -> None:
    """A diagnostic with two locations links to both."""
    (item,) = await editor.write(YAML.replace("  tags:", "  doc: Twice.\n  tags:"))
    (related,) = item.related_information
    assert (item.code, item.range.start.line, related.location.range.start.line) == ("MG003", 6, 2)


@pytest.mark.asyncio
async def test_completion(editor: Editor) -> None:
    await editor.write(YAML)
    for typed, mark, some, none in [
        # keys, those of this place
        ("  tags: [elementwise]\n  v", "\n  v", {"vmap", "variants"}, {"cpu", "x", "softmax"}),
        ("  dispatch: {", "dispatch: {", {"cpu", "metal"}, {"vmap", "x"}),
        ("  dispatch:\n    metal: {kernel: halve, gr", "gr", {"grid", "kernel"}, {"cpu", "metal"}),
        ("  checks:\n    - th", "- th", {"that", "else"}, {"vmap"}),
        ("  samples: {x: {sh", "{sh", {"shape", "low"}, {"that"}),
        # arguments
        ("  grad: {", "grad: {", {"x"}, {"vmap", "exp"}),
        ("  args:\n    x", "    x", {"x"}, {"out"}),
        ("  axes:\n    ou", "    ou", {"out", "x"}, {"exp"}),
        ("  axes: {x: N D, out: ", "out: ", {"N", "D"}, {"exp"}),
        ("  axes: {x: N D}  # as: y\n  shape: [", "shape: [", {"N", "D", "x"}, {"axes", "y"}),
        ("  axes:\n    x: N D\n  grad: {x: D * gr", "D * gr", {"N", "D"}, set()),
        ("  shape:\n    ou", "    ou", {"out", "x", "broadcast_shapes"}, set()),
        ("  let: {inner: 2 * x}\n  composite: in", "composite: in", {"inner", "x"}, {"grad"}),
        ("  let:\n    inner: 2\n    b: in", "b: in", {"inner", "exp"}, {"vmap"}),
        # words
        ("  tags: [elementwise, ", "wise, ", {"fused", "linalg"}, {"vmap", "x"}),
        ("  tags:\n    - elementwise\n    - ", "wise\n    - ", {"fused", "linalg"}, {"vmap", "x"}),
        ("  dtypes: [", "dtypes: [", {"float32", "floating"}, {"x"}),
        ("  dtypes: {x: fl", "x: fl", {"float32", "floating"}, set()),
        ('  dtypes: {"x, y": fl', 'y": fl', {"float32", "floating"}, {"x"}),
        ("  dtypes:\n    'x, y': fl", "y': fl", {"float32", "floating"}, {"x"}),
        ("  dtypes: {\"x\": integer, 'y': fl", "y': fl", {"float32", "floating"}, {"x"}),
        ("  dtypes: [{x: integer}, {", "}, {", {"x"}, {"floating"}),
        ("  dtypes: [{x: integer}, {y: fl", "y: fl", {"float32", "floating"}, {"x"}),
        ("  dtypes:\n    - x: fl", "x: fl", {"float32", "floating"}, set()),
        ("  vmap: ", "vmap: ", {"batch", "none"}, {"x"}),
        # formulas: arguments, entries, MLX's functions and what has a dot before it
        ("  grad: {x: gr", "x: gr", {"grad", "x", "quarter", "softmax", "pi"}, {"vmap"}),
        ("  composite: where(x > 0, so", "0, so", {"x", "softmax"}, {"grad", "vmap"}),
        ("  composite: >-\n    x +\n    ex", "    ex", {"x", "exp", "linalg"}, {"vmap"}),
        ('  composite: "x +\n    ex', "    ex", {"x", "exp"}, {"vmap"}),
        ("  composite: x.s", "x.s", {"sum", "shape"}, {"softmax", "x"}),
        ("  composite: linalg.n", "linalg.n", {"norm"}, {"softmax", "linalg.norm"}),
        ("  composite: mx.fft.", "mx.fft.", {"rfft"}, {"norm"}),
        ("  checks: [{that: x.ndim == 2 and x.sh", "x.sh", {"shape"}, set()),
        # functions by hand
        ("  dispatch: h", "dispatch: h", {"halve"}, {"x", "exp"}),
    ]:
        entry = '- signature: "third(array x) -> array"\n' + typed
        for after in ("", "\n\n" + YAML):
            await editor.write(YAML + entry + after)
            found = {*await editor.complete(entry[entry.rindex(mark) - 10 :])}
            assert some <= found and not none & found, (typed, sorted(found)[:20])
    for typed, name, done in [
        ("  comp: x", "composite", "  composite: x"),
        ("  comp", "composite", "  composite: "),
        (
            "  doc: é\n  shape: 'é\U0001f600' + x.sh",
            "shape",
            "  doc: é\n  shape: 'é\U0001f600' + x.shape",
        ),
        ("  composite: exp(", "quarter", "  composite: exp(quarter"),
    ]:
        head = '- signature: "third(array x) -> array"\n'
        await editor.write(f"{head}{typed}\n{YAML}")
        chosen = (await editor.complete(typed.removesuffix(": x")))[name]
        assert editor.edited(chosen.text_edit) == f"{head}{done}\n{YAML}"
    await editor.write(YAML.replace("tags", "# tags"))
    assert await editor.complete("# ta") == {}
    await editor.write(YAML + "\n")
    where = lsp.CompletionParams(*editor.place(len(YAML) + 1))  # where another entry may begin
    assert [*await editor.client.text_document_completion_async(where)] == []
    await editor.write("# nothing\n")
    assert await editor.complete("nothing") == {}


@pytest.mark.asyncio
async def test_an_array_or_a_string_is_one_argument(editor: Editor) -> None:
    entry = """\
- signature: 'third(x: array, mask: array | Literal["causal"] | None = None) -> array'
  composite: x if mask is None else x * mask
  grad: {x: grad}
- signature: "fourth(array x) -> array"
  composite: third(x, "causal")
"""
    (found,) = [d for d in await editor.write(entry) if d.code == "MG311"]
    assert found.message.startswith("op 'third': 'mask' may be a string here")
    for mark in ("x if ", "{x: ", "  grad: {"):
        labels = await editor.complete(mark)
        assert "mask" in labels and "mask_mode" not in labels
    right = entry.replace("x * mask", 'x if mask == "causal" else x * mask')
    assert await editor.write(right.replace("{x: grad}", "{x: grad, mask: none}")) == []
    text = 'third(x: array, mask: array | Literal["causal"] | None = None) -> array'
    assert text in await editor.hover("third(x, ")


@pytest.mark.asyncio
async def test_hover(editor: Editor) -> None:
    await editor.write(YAML)
    await editor.write(
        YAML.replace("x / 2\n", "softmax(x, axis=-1) + linalg.norm(x) + x.sum() + xx\n")
    )
    assert "softmax(a: array, axis: int | Seq" in await editor.hover("softmax")
    assert "linalg.norm(a: array" in await editor.hover("linalg.norm", 9)
    assert "sum(axis: int | Sequence" in await editor.hover("x.sum", 3)
    assert "### MG303" in await editor.hover("xx")
    assert await editor.hover("tags:") == "`tags`: Labels for `--select` and the reference."
    assert "halve(x: array) -> array" in await editor.hover("halve(halve(x))")
    await editor.write(
        YAML.replace("composite: x / 2", "let: {part: x / 3}\n  composite: x - part")
    )
    assert await editor.hover("part\n") == "```python\npart = x / 3\n```"
    await editor.write(YAML)
    assert await editor.hover("Half of") == ""
    await editor.write(YAML)
    shown = await editor.hover("quarter")
    assert shown.startswith("```cpp\nnamespace tiny {") and "array quarter(" in shown


@pytest.mark.asyncio
async def test_definition(editor: Editor, folder: Path) -> None:
    await editor.write(YAML)
    assert await editor.go("halve\n  comp") == [("halve.h", 5, 3)]
    assert await editor.go("halve(halve(x))") == [("mlx_ops.yaml", 1, 3)]
    assert await editor.go("x / 2") == []
    source = Editor(editor.client, folder / "csrc" / "halve.h")
    await source.write(PROJECT["csrc/halve.h"])
    assert await source.go("halve(T") == [("mlx_ops.yaml", 1, 3), ("mlx_ops.yaml", 9, 3)]


@pytest.mark.asyncio
async def test_unsaved_kernel(editor: Editor, folder: Path) -> None:
    """The unsaved text of a kernel's file is used, and diagnostics link to it."""
    assert await editor.write(YAML) == []
    source = Editor(editor.client, folder / "csrc" / "halve.h")
    await source.write(PROJECT["csrc/halve.h"].replace("halve(T x)", "halve(T x, int n)"))
    await editor.hover("halve")
    (item,) = editor.client.diagnostics[editor.uri]
    assert item.code == "MG503"
    (related,) = item.related_information
    assert related.message == "it is declared here"
    start, end = related.location.range.start, related.location.range.end
    assert (related.location.uri, start.line) == (source.uri, 4)
    line = PROJECT["csrc/halve.h"].splitlines()[4]
    assert line[start.character : end.character] == "halve"
    closed = lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(source.uri))
    editor.client.text_document_did_close(closed)
    await editor.hover("halve")
    assert [*editor.client.diagnostics[editor.uri]] == []


@pytest.mark.asyncio
async def test_written_by_others(editor: Editor, folder: Path) -> None:
    """A kernel's file that changes on the disk is reloaded, if the editor reports the change."""
    assert await editor.write(YAML) == []
    assert editor.client.watched == [lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES]
    (folder / "csrc" / "halve.h").unlink()
    changes = [lsp.FileEvent((folder / "csrc" / "halve.h").as_uri(), lsp.FileChangeType.Deleted)]
    told = lsp.DidChangeWatchedFilesParams(changes)
    editor.client.workspace_did_change_watched_files(told)
    while not editor.client.diagnostics[editor.uri]:
        await asyncio.sleep(0.05)
    assert [item.code for item in editor.client.diagnostics[editor.uri]] == ["MG502"]


@pytest.mark.asyncio
async def test_half_typed(editor: Editor) -> None:
    """The server survives any text, and answers at every position."""
    texts = [YAML[:end] for end in range(0, len(YAML), 7)]
    texts += [
        "\0",
        YAML.replace("2\n", "2 # \ud800\n"),
        "\ud800",
        "- ",
        "-",
        "- {",
        "- [[[[",
        "a: b: c",
        "\t- x",
        "- name: '",
        "&a *a",
        "%",
        "---\n---",
    ]
    for text in texts:
        await editor.write(text)
        for place in {len(text) // 3, len(text)}:
            where = editor.place(place)
            await editor.client.text_document_completion_async(lsp.CompletionParams(*where))
            await editor.client.text_document_hover_async(lsp.HoverParams(*where))
            await editor.client.text_document_definition_async(lsp.DefinitionParams(*where))
    assert not editor.client.log_messages
    assert await editor.write(YAML) == []


@pytest.mark.asyncio
async def test_by_itself(editor: Editor) -> None:
    """The server publishes diagnostics shortly after the last edit, without a request."""
    await editor.write(YAML)
    said: list[str] = []
    for text in (YAML.replace("x / 2\n", "xx / 2\n"), YAML.replace("x / 2\n", "y / 2\n")):
        editor.change(text)
    while not any("'y'" in message for message in said):
        await asyncio.sleep(0.05)
        said = [item.message for item in editor.client.diagnostics[editor.uri]]


@pytest.mark.asyncio
async def test_other_files(editor: Editor, folder: Path) -> None:
    """The server ignores other YAML files."""
    other = Editor(editor.client, folder / "ci.yml")
    assert await other.write("on: push\n") == []
    assert await other.hover("push") == "" and await other.complete("pu") == {}
    alone = Editor(editor.client, folder.parent / "alone.yaml")
    schema = "# yaml-language-server: $schema=docs/mlx_ops.schema.json\n"
    assert [item.code for item in await alone.write(schema + "- name: x\n")] != []


@pytest.mark.asyncio
async def test_settings(editor: Editor, folder: Path) -> None:
    """A mistake in pyproject.toml is shown there; the operators are checked after its fix."""
    project = folder / "pyproject.toml"
    project.write_text(PROJECT["pyproject.toml"] + 'yml = "mlx_ops.yaml"\n')
    assert await editor.write(YAML + "- name: x\n") == []
    assert [item.code for item in editor.client.diagnostics[project.as_uri()]] == ["MG703"]
    project.write_text(PROJECT["pyproject.toml"])
    assert [item.range.start.line for item in await editor.write(YAML + "- name: x\n")] == [10]
    assert [*editor.client.diagnostics[project.as_uri()]] == []


@pytest.mark.asyncio
async def test_symbols(editor: Editor) -> None:
    await editor.write(YAML)
    file = lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(editor.uri))
    found = await editor.client.text_document_document_symbol_async(file)
    assert [(item.name, item.location.range.start.line) for item in found] == [
        ("halve", 0),
        ("quarter", 8),
    ]


def test_without_pygls(tmp_path: Path) -> None:
    (tmp_path / "pygls.py").write_text("raise ModuleNotFoundError(name='pygls')")
    run = [sys.executable, "-m", "mlxgen", "lsp"]
    path = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(run, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'mlxgen[lsp]'" in done.stderr
    assert "Traceback" not in done.stderr
