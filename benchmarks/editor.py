"""Time from an edit to its diagnostics in `mlxgen lsp`, which receives the messages of an editor.

The time runs from the notification of an edit to the arrival of the diagnostics, and includes the
server's own delay for further edits (50 ms).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .measure import Options, Result, duration
from .synthetic import write_project

SIZE = 500
FORMULA = "x: scale * grad_wave"


class Editor:
    """A client with one file open."""

    def __init__(self, yaml: Path) -> None:
        command = [sys.executable, "-m", "mlxgen", "lsp"]
        pipe = subprocess.PIPE
        self.server = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self.uri, self.version = yaml.as_uri(), 0
        self.send("initialize", {"capabilities": {}, "rootUri": None, "processId": None}, id=1)
        self.receive()
        self.send("initialized", {})

    def send(self, method: str, params: Any, **more: Any) -> None:
        """Send a request or a notification."""
        text = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        assert self.server.stdin
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(text) + text)
        self.server.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next message of the server."""
        assert self.server.stdout
        length = 0
        while line := self.server.stdout.readline().strip():
            length = int(line.partition(b": ")[2]) if line.startswith(b"Content-Length") else length
        message: dict[str, Any] = json.loads(self.server.stdout.read(length))
        return message

    def write(self, text: str) -> tuple[float, int]:
        """Set the file's text; return the seconds until its diagnostics, and their number."""
        file: dict[str, Any] = {"uri": self.uri, "version": self.version}
        start = time.perf_counter()
        if self.version == 0:
            opened = {**file, "languageId": "yaml", "text": text}
            self.send("textDocument/didOpen", {"textDocument": opened})
        else:
            changes = [{"text": text}]
            self.send("textDocument/didChange", {"textDocument": file, "contentChanges": changes})
        self.version += 1
        while True:
            message = self.receive()
            if message.get("method") == "textDocument/publishDiagnostics":
                params = message["params"]
                if params["uri"] == self.uri:
                    return time.perf_counter() - start, len(params["diagnostics"])

    def close(self) -> None:
        """Stop the server."""
        self.send("shutdown", None, id=2)
        self.receive()
        self.send("exit", None)
        self.server.wait()


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    with tempfile.TemporaryDirectory() as folder:
        options.progress(f"edit one of {SIZE} entries in an editor")
        yaml = write_project(Path(folder), SIZE, version("mlx")).resolve()
        text = yaml.read_text(encoding="utf-8")
        editor = Editor(yaml)
        seconds, _ = editor.write(text)
        data = {"seconds": seconds}
        yield Result("editor", f"{SIZE} entries opened", duration(seconds), data=data)
        for what, wrong, reported in (
            ("one edited", FORMULA.replace("scale", "{} * scale"), False),
            ("one with a misspelled name", FORMULA.replace("scale", "scal{}"), True),
            ("one that is no YAML", FORMULA.replace("scale", "{{{} * scale"), True),
            ("one edited again", FORMULA.replace("scale", "{} * scale"), False),
        ):
            times = []
            for i in range(3 if options.quick else 9):
                seconds, count = editor.write(text.replace(FORMULA, wrong.format(i + 2), 1))
                assert (count > 0) == reported, (what, count)
                times.append(seconds)
            seconds, aim = min(times), "at most 0.3 s"
            shown = f"{what}, of {SIZE}: until its diagnostics are there"
            data = {"seconds": seconds}
            yield Result("editor", shown, duration(seconds), aim, seconds <= 0.3, data)
        editor.close()
