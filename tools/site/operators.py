"""The operators' pages: an index, and one page with a plot for each operator.

GitHub shows ``docs/operators.md``, one page that ``mlxgen docs`` writes. The site renders the same
parts as many pages, so that each operator has a short page, an address and a search result.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from mlxgen.command.operators import load
from mlxgen.diagnostics import Diagnostics
from mlxgen.plugins.reference.pages import reference, reference_modules, reference_page
from mlxgen.read.settings import Settings
from mlxgen.read.settings import load as load_settings
from mlxgen.render.files import Pieces, pieces

from . import plots

FOLDER = "docs/operators"


@cache
def _public(root: Path) -> tuple[Settings, list[Pieces]]:
    """Return the project's settings and its public operators."""
    diags = Diagnostics()
    settings = load_settings(root, diags)
    if settings is None or not diags.ok:
        raise ValueError(diags.render_text())
    ops, _ = load(settings, diags)
    return settings, [pieces(op, settings) for op in ops if not op.entry.internal]


def write(root: Path) -> None:
    """Write the pages of single operators into a folder that git ignores.

    Args:
        root: The folder of the repository.
    """
    shutil.rmtree(root / FOLDER, ignore_errors=True)
    (root / FOLDER).mkdir()
    settings, made = _public(root)
    drawable = plots.drawable(*settings.files)
    for overloads in (found for _, module in reference_modules(made) for found in module):
        path = overloads[0].path
        subjects = drawable.get(path)
        page = reference_page(overloads, plots.figure(subjects) if subjects else "")
        (root / FOLDER / f"{path}.md").write_text(page, encoding="utf-8")


def index(root: Path) -> str:
    """Return the index with Sphinx's table of contents.

    Args:
        root: The folder of the repository.
    """
    settings, made = _public(root)
    text = reference(made, settings, Path(FOLDER).name)
    functions = [overloads[0] for _, module in reference_modules(made) for overloads in module]
    pages = "\n".join(f"/{FOLDER}/{function.path}" for function in functions)
    return f"{text}\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
