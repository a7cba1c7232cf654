"""A project in an editor, checked after every edit as ``mlxgen check`` would check it.

Each check resolves only the edited entries and the entries with errors (command/memo.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...command import operators
from ...command.inputs import base_hash
from ...command.memo import Memo
from ...diagnostics import Diagnostic, Diagnostics, TooMany
from ...model.op import Op
from ...model.used import UsedOperator
from ...read.settings import Settings
from ...read.sources import Sources, near
from ...read.used import packages
from ...read.yaml import Documents


class Project:
    """The files of operators of a project; the attributes describe the last ``check``.

    ``unsaved`` maps absolute paths to strings that replace the contents of hand-written files.
    ``read`` returns the text of the files after the first.
    """

    def __init__(
        self,
        yaml: Path,
        unsaved: Mapping[str, str],
        read: Callable[[Path], str] = Path.read_text,
    ) -> None:
        self.yaml, self.unsaved, self.read = yaml, unsaved, read
        self.settings: Settings | None = None
        self.document: Documents | None = None
        self.sources: Sources | None = None
        self.ops: dict[str, Op] = {}  # by name; for an invalid entry, its last valid version
        self.diagnostics: list[Diagnostic] = []
        self._memo: Memo[Op] = Memo()

    @property
    def release(self) -> str | None:
        """The release of MLX that the entries target."""
        return self.settings.mlx if self.settings else None

    @property
    def used(self) -> Mapping[str, Sequence[UsedOperator]]:
        """The overloads of the packages that the project uses, by dotted name."""
        return (packages(self.settings, Diagnostics()) if self.settings else None) or {}

    def called(self, word: str) -> list[Op]:
        """Return the operators of that name in C++ or Python, in order; also former versions."""
        entries = self.document.entries if self.document else ()
        names = [entry.name for entry in entries if word in (entry.name, entry.python_name)]
        return [self.ops[name] for name in names if name in self.ops]

    def check(self, text: str) -> None:
        """Check a new version of the first file.

        ``diagnostics`` are then those of ``mlxgen check``.
        """
        diags = Diagnostics()
        with suppress(TooMany):
            self._check(text, diags)
        self.diagnostics = diags.sorted()

    def _check(self, text: str, diags: Diagnostics) -> None:
        settings = operators.settings_of(None, self.yaml, diags)
        if settings is None:
            return
        more = {near(path): self.read(path) for path in settings.more}
        document = Documents.parse({near(self.yaml): text} | more, diags)
        sources = Sources(settings, diags, operators.mlx_include(), self.unsaved)
        self.settings, self.sources = settings, sources
        if document is None:
            return
        self.document = document
        base = base_hash(settings, sorted(self.unsaved.items()))
        ops = self._memo.look(base, document, sources)
        self.ops |= {op.name: op for op in ops}
        self._memo.keep(ops)
