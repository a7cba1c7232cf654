"""Tests of tools/site and of links between pages; ``tests/site`` opens the site itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
import mlxops
import numpy as np
import pytest
import scipy.special
import scipy.stats

from mlxgen.testing.cases import Case, Subject
from tools.site import operators, pages, plots

ROOT = Path(__file__).resolve().parents[2]
OPS = {
    op["name"]: op
    for op in json.loads(files("mlxops").joinpath("ops.json").read_text("utf-8"))["operators"]
}
PUBLIC = [op for op in OPS.values() if "internal" not in op["tags"]]


def subject(name: str, **sample: object) -> Subject:
    """Return an operator of mlxops.special with a sample."""
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


def test_figures() -> None:
    """Elementwise operators have plots with readable axes, in HTML without line breaks."""
    names = ("lgamma", "airy", "betainc", "nextafter", "ive")
    drawable = plots.drawable(ROOT / "mlx_ops.yaml", *(ROOT / "ops").glob("*.yaml"))
    drawn = [plots.figure(drawable[f"special.{name}"]) for name in names]
    assert "swiglu" in drawable and "block_diag" not in drawable and "trigamma" not in drawable
    assert [figure.count("<svg ") for figure in drawn] == [2, 2, 4, 1, 2]
    assert [figure.count('class="key"') for figure in drawn] == [0, 1, 1, 1, 1]
    assert "bip</p>" in drawn[1]
    for figure in drawn:
        first, content, last = figure.split("\n")
        assert (first, last) == ("```{raw} html", "```")
        assert "currentColor" in content and plots.TEXT not in content
        for svg in content.split("<svg ")[1:]:
            left = re.findall(r"text-anchor: end[^>]*>([^<]+)<", svg)  # the numbers of the y axis
            assert len(left) == len({*left}) > 1
    assert drawn[0] == plots.figure(drawable["special.lgamma"])


def test_operator_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each public operator has a page in the index and in the table of contents."""
    for name in ("pyproject.toml", "mlx_ops.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc", "kernels", "ops", "python"):
        shutil.copytree(ROOT / name, tmp_path / name)
    old = tmp_path / operators.FOLDER / "removed.md"
    old.parent.mkdir(parents=True)
    old.touch()
    monkeypatch.setattr(plots, "drawable", lambda *yaml: {"special.lgamma": ["a sample"]})
    monkeypatch.setattr(plots, "figure", lambda subjects: "FIGURE")
    operators.write(tmp_path)
    found = {path.stem: path.read_text("utf-8") for path in old.parent.iterdir()}
    # Overloads share a page.
    paths = {".".join(filter(None, (op["module"], op["python_name"]))) for op in PUBLIC}
    assert sorted(found) == sorted(paths)
    assert all(text.startswith(f"# {name}\n") for name, text in found.items())
    assert [name for name, text in found.items() if "FIGURE" in text] == ["special.lgamma"]
    index, contents = operators.index(tmp_path).split("```{toctree}")
    for path in paths:
        assert f"](operators/{path}.md)" in index
        assert f"\n/docs/operators/{path}\n" in contents


def test_contents(tmp_path: Path) -> None:
    """The contents list the existing pages, including those without an entry."""
    for name in ("docs/language", "docs/new", "docs/train", "CONTRIBUTING"):
        path = tmp_path / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    text = pages.contents(tmp_path)
    how_to, reference = text.split("How-to\n")[1].split("Reference\n")
    assert how_to.split("```")[0].split() == ["/docs/train", "/docs/new"]
    assert reference.split("```")[0].split() == ["/docs/language"]
    assert text.split("Contributing\n")[1].split("```")[0].split() == ["/CONTRIBUTING"]
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


def without_code(text: str) -> str:
    """Return Markdown without blocks of code."""
    return re.sub(r"^ *(`{3,}).*?^ *\1 *$", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page, as GitHub derives them from its headings."""
    found: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.+)$", without_code(path.read_text("utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)  # the text of a link
        name = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        found[f"{name}-{found[name]}" if found[name] else name] += 1
    return {*found}


def pages_of_the_project() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True)
    paths = [ROOT / name for name in listed.stdout.split()]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def broken(path: Path) -> list[str]:
    """Return the relative links of a page whose file or heading does not exist."""
    text = re.sub(r"`[^`\n]*`", "", without_code(path.read_text("utf-8")))
    found = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]*)\)", text):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize(
    "path", pages_of_the_project(), ids=lambda p: p.relative_to(ROOT).with_suffix("").as_posix()
)
def test_links(path: Path) -> None:
    """Relative links lead to files and headings that exist, as on GitHub."""
    assert broken(path) == []


def test_broken_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    links = "[a](page.md#one) [b](#two-words) [c](#two) [d](other.md) [e](#two-words-1) [f](#code)"
    page.write_text(f"# One\n\n## Two `words`\n\n## Two *words*\n\n```sh\n# code\n```\n{links}\n")
    assert broken(page) == ["#two", "other.md", "#code"]
