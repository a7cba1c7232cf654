"""`%%mlxgen` cells of IPython: YAML, with C++ and Metal in fenced blocks.

%load_ext mlxgen

%%mlxgen ops
- name: softsign
  signature: "softsign(array x) -> array"
  dispatch: softsign
  grad: {x: grad / square(1 + abs(x))}
```cpp
template <typename T>
T softsign(T x) {
  return x / (1 + mlxgen::math::fabs(x));
}
```
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from . import MESSAGES
from .load import check_of, obtain, progress
from .request import Excerpt, LoadError, Request

_FENCE = re.compile(r"(```+|~~~+)\s*([\w+]*)\s*")
_LANGUAGES = dict.fromkeys(("", "yaml", "yml"), "yaml") | {"cpp": "cpp", "c++": "cpp"}
_LANGUAGES |= {"metal": "metal"}
_NAME = "<cell>"
_CHECK = "--check"


def load_ipython_extension(ipython: Any) -> None:
    """Register the cell magic; `%load_ext mlxgen` calls this function."""

    def mlxgen(line: str, cell: str) -> None:
        """Build operators: YAML, with C++ and Metal in blocks between ```cpp or ```metal and ```.

        %%mlxgen [--check] [NAME]

        The module with them becomes the variable NAME, or ops. --check runs the generated checks.
        """
        words = line.split()
        checked = _CHECK in words
        names = [word for word in words if word != _CHECK] or ["ops"]
        name = " ".join(names)
        if name.startswith("-"):
            raise LoadError(f"%%mlxgen {line.strip()}: the only option is {_CHECK}")
        if not name.isidentifier():
            raise LoadError(f"%%mlxgen {name}: '{name}' is not the name of a variable")
        shown = _Shown(hasattr(ipython, "kernel"))
        begun = time.perf_counter()
        module = obtain(Request(None, parts(cell)), shown.say)
        ipython.push({name: module})
        took = time.perf_counter() - begun
        advice = "" if checked else f"; {name}.check() compares gradients with finite differences"
        shown.end(f"{_summary(name, module)}\n({took:.1f} s{advice})")
        if checked:
            _show_report(module)

    ipython.register_magic_function(mlxgen, "cell", "mlxgen")


def parts(cell: str) -> dict[str, Excerpt]:
    """Return the parts of a cell, by language; in each, lines of other parts are empty.

    Raises:
        LoadError: If a block has no end or has another language.
    """
    lines: dict[str, list[str]] = {}
    fence, kind = "", "yaml"
    begun = 0
    for number, line in enumerate(cell.splitlines()):
        found = _FENCE.fullmatch(line)
        if fence:
            if line.strip() == fence:
                fence, kind = "", "yaml"
                continue
        elif found:
            fence, language, begun = found[1], found[2].lower(), number
            if language not in _LANGUAGES:
                raise _wrong(cell, number, "foreign_block", language=found[2])
            kind = _LANGUAGES[language]
            continue
        of_kind = lines.setdefault(kind, [])
        of_kind += [""] * (number - len(of_kind)) + [line]
    if fence:
        raise _wrong(cell, begun, "open_block", fence=fence)
    lines.setdefault("yaml", [])
    # The line of the magic itself is the first line.
    return {kind: Excerpt("\n".join(text) + "\n", _NAME, 1, cell) for kind, text in lines.items()}


def _wrong(cell: str, number: int, wrong: str, **about: str) -> LoadError:
    from ...diagnostics import Diagnostics, Span

    diags = Diagnostics()
    diags.add_source(_NAME, f"\n{cell}")
    length = len(cell.splitlines()[number])
    span = Span(_NAME, number + 2, 1, number + 2, length + 1)
    diags.error(MESSAGES(wrong, **about), span)
    return LoadError(diags.render_text(), diags.render_text(color=True))


def _summary(name: str, module: ModuleType) -> str:
    """Return the usage of the operators."""
    ops = json.loads((Path(module.__path__[0]) / "ops.json").read_text(encoding="utf-8"))[
        "operators"
    ]
    public = [op for op in ops if "internal" not in op["tags"]]
    return "\n".join(".".join(filter(None, (name, op["module"], op["signature"]))) for op in public)


def _show_report(module: ModuleType) -> None:
    from IPython import display

    show: Any = display.display
    show(check_of(module)())


class _Shown:
    """A display line with the progress and, at the end, the result."""

    def __init__(self, notebook: bool) -> None:
        self.notebook = notebook
        self.handle: Any = None

    def say(self, text: str, once: bool = False) -> None:
        """Show the current step; "" at the end."""
        if self.notebook:
            self._show(f"mlxgen: {text}" if text else "")
        else:
            progress(text, once)

    def end(self, text: str) -> None:
        """Show the result."""
        if self.notebook:
            self._show(text)
        else:
            print(text)

    def _show(self, text: str) -> None:
        from IPython import display

        data = {"text/plain": text}
        if self.handle is None:
            show: Any = display.display
            self.handle = show(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)
