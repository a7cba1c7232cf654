"""The text of crates: rustfmt's layout at every length of line, names, and documentation."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from rust.crate import needs_cargo, require_format, require_style
from sample import project

from mlxgen.command.generate import generate
from mlxgen.diagnostics import Diagnostics

FORMS: Mapping[str, tuple[str, str]] = {
    "array": ("x: array", "array"),
    "option": ("x: array, alpha: float = 1.5", "array"),
    "borrowed": ("x: array, weight: array | None = None, axis: axes = None", "array"),
    "pair": ("x: array, n: int", "(low: array, high: array)"),
    "three": ("x: array", "(first: array, second: array, third: array)"),
    "list": ("xs: list[array], a: float", "list[array]"),
    "choice": ("x: array, mode: Literal['one', 'two'] = 'one'", "array"),
    "text": ("x: array, text: str, maybe: str | None = None", "array"),
    "fixed": ("x: array, size: int | tuple[int, int] | None = 1, n: int | None = None", "array"),
    "number": ("x: array, by: int | float = 1, dtype: Dtype = float32", "array"),
}
RESULTS = {
    "array": "x",
    "(low: array, high: array)": "(x, x)",
    "(first: array, second: array, third: array)": "(x, x, x)",
    "list[array]": "[x for x in xs]",
}
HOSTILE = r"""
- signature: >-
    match(self: array, type: int = 1, out: int = 2, options: int = 3, call: int = 4) -> array
  composite: self * (type + out + options + call)
- signature: "plain(Ok: array, box: int, ffi: str, s: float = inf, error: float = -inf) -> array"
  composite: Ok * box * s * error if ffi == '' else Ok
- signature: >-
    some(res: array, crate: Literal['self', 'Self', '1 d', '+', '-', 'a_b', 'A b'] = '+')
    -> array
  composite: res if crate == '+' else 2 * res
  module: error.super
  doc: |
    Intervals as [0, 1), a type List<int>, a `quote`, and "text" with a backslash \.

    Code::

        fn not_rust() {

        }

    ```
    not rust
    ```

    - An item

          let code = in an item;
- signature: >-
    defaults(x: array, a: float | None = 0.5, n: int | None = -2, b: bool | None = True,
    c: int | float | None = 2, text: str | None = 'a"', mode: Literal['p'] | None = 'p',
    dtype: Dtype | None = float16, list: Sequence[float] | None = [0.5, 1e300],
    pair: int | tuple[int, int] | None = 3, shape: shape | None = (1, -1)) -> array
  composite: x
- signature: "both(x: array) -> (type: array, self: array)"
  composite: (x, x)
  deprecated: use "plain" \ or 'match'
"""


def crate(yaml: str, folder: Path) -> Path:
    """Generate the crate of some entries; its library is an empty file."""
    (folder / "ops.yaml").write_text(yaml, encoding="utf-8")
    diags = Diagnostics()
    settings = project.settings(folder / "ops.yaml")._replace(languages=("c", "rust"))
    generate(settings, folder / "out", diags)
    assert diags.ok, diags.render_text()
    (folder / "lib").mkdir()
    (folder / "lib" / "libops_c.so").touch()
    return folder / "out" / "rust" / "ops"


@pytest.mark.skipif(shutil.which("rustfmt") is None, reason="rustfmt is not installed")
@pytest.mark.parametrize("form", FORMS)
def test_layout(form: str, tmp_path: Path) -> None:
    arguments, result = FORMS[form]
    entries = [
        f'- signature: "{name}({arguments}) -> {result}"\n  composite: "{RESULTS[result]}"\n'
        for name in ("f" * length for length in range(1, 64))
    ]
    require_format(crate("".join(entries), tmp_path))


@needs_cargo
def test_hostile(tmp_path: Path) -> None:
    require_style(crate(HOSTILE, tmp_path), OPS_DIR=str(tmp_path))
