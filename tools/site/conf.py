"""Sphinx's settings for the site (``make site``): README.md and docs/, which GitHub shows too.

Sphinx fails on a link to a missing heading, checks links to other hosts, and runs pages (MyST-NB).
The furo theme is readable on phones, has a dark mode, and loads nothing from other hosts. The
source folder is the repository's root, so that all relative links work on GitHub and on the site.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from pygments.lexers.c_cpp import CppLexer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.site import operators, pages  # noqa: E402 - needs the path

project = "mlxgen"
html_title = "mlxgen"
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    f"{operators.FOLDER}/*.md",
    "examples/*.ipynb",
    "mlxgen/diagnostics/errors.md",
]
exclude_patterns = [".*", "build", "dist", "mlxgen/build"]  # not searched

extensions = ["myst_nb"]
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"  # browsers draw it; MathJax would come from another host
myst_heading_anchors = 4  # with GitHub's names
suppress_warnings = ["misc.highlighting_failure"]  # errors.md shows invalid YAML and TOML
nb_custom_formats = {"docs/tutorial.md": "tools.site.pages.notebook"}
nb_execution_timeout = 300
nb_execution_raise_on_error = True

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/favicon.svg"
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_use_index = False
html_show_copyright = False
linkcheck_anchors = False


def _read(app: Any, name: str, source: list[str]) -> None:
    """Add the content that GitHub does not show to a page."""
    if name == root_doc:
        source[0] += pages.contents(ROOT)
    elif name == operators.FOLDER:
        source[0] = operators.index(ROOT)


def _started(app: Any) -> None:
    """Write the pages that Sphinx finds next."""
    operators.write(ROOT)


def _finished(app: Any, error: Exception | None) -> None:
    """Make the README the site's first page."""
    if not error and app.builder.name == "html":
        shutil.copy(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def _inline(translator: Any, node: Any) -> None:
    translator.body.append(convert(node.astext()))
    raise SkipNode


def _block(translator: Any, node: Any) -> None:
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="formula">{formula}</div>')
    raise SkipNode


def setup(app: Any) -> None:
    """Register the extensions; Sphinx calls this function."""
    app.add_lexer("metal", CppLexer)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("builder-inited", _started)
    app.connect("source-read", _read)
    app.connect("build-finished", _finished)
