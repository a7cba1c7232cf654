"""What the documentation site adds to the pages; ``tests/site`` opens the site itself."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
import mlxops
import numpy as np
import pytest
import scipy.special
import scipy.stats

from mlxgen.testing.cases import Case, Subject
from tools.site import pages, plots

ROOT = Path(__file__).resolve().parents[2]
OPS = {op["name"]: op for op in json.loads(files("mlxops").joinpath("ops.json").read_text("utf-8"))}


def subject(name: str, **sample: object) -> Subject:
    """An operator of mlxops.special with a sample."""
    return Subject(mlxops, OPS[name], Case(getattr(mlxops.special, name), sample), 0)


def test_curves() -> None:
    x = np.linspace(0.05, 0.95, 7)
    with mx.stream(mx.cpu):
        one = subject("lgamma")
        (value,), (slope,) = plots.curves(one, x).values(), plots.curves(one, x, 0).values()
        range_ = {"low": 1, "high": 7}
        two = subject("betainc", a=range_, b=range_, x={"low": 0.05, "high": 0.95})
        slopes = plots.curves(two, x, 2)
        airy = plots.curves(subject("airy"), x, 0)
    np.testing.assert_allclose(value, scipy.special.gammaln(x))
    np.testing.assert_allclose(slope, scipy.special.digamma(x))
    assert [*slopes] == ["a = 2, b = 6", "a = 4, b = 4", "a = 6, b = 2"]
    np.testing.assert_allclose(slopes["a = 2, b = 6"], scipy.stats.beta.pdf(x, 2, 6))
    np.testing.assert_allclose(airy["ai"], scipy.special.airy(x)[1])
    np.testing.assert_allclose(airy["bip"], x * scipy.special.airy(x)[2])


def test_with_plots() -> None:
    functions = ("lgamma", "airy", "betainc", "nextafter", "ive")
    names = ["block_diag", *(f"special.{name}" for name in functions)]
    page = "# Operators\n\n" + "".join(
        f"## {n}\n\n```python\n{n}()\n```\n\nText.\n\n" for n in names
    )
    made = plots.with_plots(page, ROOT / "mlx_ops.yaml")
    parts = re.split(r"^## .*\n", made, flags=re.MULTILINE)[1:]
    assert [part.count("<svg ") for part in parts] == [0, 2, 2, 4, 1, 2]
    assert [part.count('class="key"') for part in parts] == [0, 0, 1, 1, 1, 1]
    assert "bip</p>" in parts[2]
    for part in parts[1:]:
        for svg in part.split("<svg ")[1:]:
            left = re.findall(r"text-anchor: end[^>]*>([^<]+)<", svg)  # the numbers of the y axis
            assert len(left) == len({*left}) > 1
    assert "currentColor" in made and plots.TEXT not in made
    assert not re.search(r"<div[^\n]*\n[^`]", made)  # no line ends inside HTML
    drawn = re.compile(r"\n```\{raw\} html\n.*?\n```\n", re.DOTALL)
    assert drawn.sub("", made) == page
    assert made == plots.with_plots(page, ROOT / "mlx_ops.yaml")


def test_contents(tmp_path: Path) -> None:
    """All pages are there, those that nobody named too, and no others."""
    (tmp_path / "docs").mkdir()
    for name in ("language", "new", "metal"):
        (tmp_path / "docs" / f"{name}.md").touch()
    text = pages.contents(tmp_path)
    how_to, reference = text.split("How to\n")[1].split("Reference\n")
    assert how_to.split("```")[0].split() == ["/docs/metal", "/docs/new"]
    assert reference.split("```")[0].split() == ["/docs/language", "/mlxgen/diagnostics/errors"]
    there = {path.stem for path in ROOT.glob("docs/*.md")}
    assert there <= set(re.findall(r"/docs/([\w-]+)", pages.contents(ROOT)))


def test_notebook() -> None:
    page = "# Title\n\n```python\nx = 1\n```\n\nText.\n\n```yaml\na: 1\n```\n\n```python\nx\n```\n"
    made = pages.notebook(page)
    cells = made.cells
    lines = page.splitlines()
    assert [lines[i] for i in made.metadata.source_map] == ["# Title", "x = 1", "```", "x"]
    assert [cell.cell_type for cell in cells] == ["markdown", "code", "markdown", "code"]
    assert [cells[1].source, cells[3].source] == ["x = 1", "x"]
    assert "```yaml" in cells[2].source


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda p: p.stem
)
def test_links(path: Path) -> None:
    """What a page links to is there, as GitHub follows it; the site's own check needs Sphinx."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)\s]*)\)", re.sub(r"`[^`\n]*`", "", text))
    assert [link for link in links if not (path.parent / link.split("#")[0]).exists()] == []
