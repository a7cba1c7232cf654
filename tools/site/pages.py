"""Prepares pages for the site: the table of contents, and the tutorial as a notebook."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

CONTENTS = {
    "Tutorial": ["docs/first-operator", "docs/tutorial", "examples/beta_binomial"],
    "How-to": [
        "docs/install",
        "docs/notebook",
        "examples/own_operator",
        "docs/own-package",
        "docs/cpu-kernel",
        "docs/reduction",
        "docs/outputs",
        "docs/metal-kernel",
        "docs/ports",
        "docs/test-metal",
        "docs/run-metal",
        "docs/gradcheck",
        "docs/train",
        "docs/cpp",
        "docs/c",
        "docs/rust",
        "docs/pytensor",
        "docs/aten-import",
        "docs/import-mlx",
        "docs/exported",
        "examples/port_torch_model",
        "docs/editor",
        "docs/troubleshooting",
    ],
    "Reference": [
        "docs/cli",
        "docs/language",
        "docs/settings",
        "docs/operators",
        "docs/train-reference",
        "docs/train-comparison",
        "docs/accuracy",
        "aten/README",
        "docs/aten",
        "mlxgen/diagnostics/errors",
        "docs/releases-of-mlx",
        "docs/stability",
        "docs/glossary",
    ],
    "Explanation": [
        "docs/architecture",
        "docs/plugins",
        "docs/design",
        "docs/emulation",
        "docs/mutation",
        "docs/mutation-results",
        "docs/run-metal-results",
        "docs/benchmarks",
        "docs/benchmark-results",
        "docs/torchgen",
    ],
    "Contributing": [
        "CONTRIBUTING",
        "docs/add-operator",
        "docs/releasing",
        "CHANGELOG",
        "SECURITY",
        "CODE_OF_CONDUCT",
    ],
}
"""The pages in their order. Pages without an entry follow those of "How-to"."""

OTHERS = (
    *("mlxgen/diagnostics/errors", "aten/README"),
    *("CONTRIBUTING", "CHANGELOG", "SECURITY", "CODE_OF_CONDUCT"),
)
"""The pages outside of docs/ and examples/."""

CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def contents(root: Path) -> str:
    """Return Sphinx's table of contents, as Markdown for the end of the first page.

    Args:
        root: The folder of the repository.
    """
    files = [*root.glob("docs/*.md"), *root.glob("examples/*.ipynb")]
    named = [page for pages in CONTENTS.values() for page in pages]
    there = {str(file.relative_to(root).with_suffix("")) for file in files}
    there.update(page for page in OTHERS if (root / f"{page}.md").is_file())
    text = ""
    for caption, pages in CONTENTS.items():
        more = sorted(there.difference(named)) if caption == "How-to" else []
        lines = "\n".join(f"/{page}" for page in [*pages, *more] if page in there)
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"
    return text


def notebook(text: str) -> Any:
    """Return a Markdown page as a notebook with its Python blocks as cells, which MyST-NB runs.

    The page is ordinary Markdown for GitHub, unlike a page in MyST's own notebook format.
    """
    v4: Any = importlib.import_module("nbformat.v4")  # installed only for the site
    cells, starts, line = [], [], 0
    for i, part in enumerate(CODE.split(text)):
        line += i % 2  # the line that opens the code
        if part.strip():
            starts.append(line)
            cells.append(v4.new_code_cell(part.rstrip()) if i % 2 else v4.new_markdown_cell(part))
        line += part.count("\n")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "source_map": starts})
