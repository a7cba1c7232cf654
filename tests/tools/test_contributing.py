"""CONTRIBUTING.md lists every make target, in existing files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z0-9-]+):.*## ", MAKEFILE, re.MULTILINE)


def test_every_make_target_is_listed() -> None:
    assert sorted(re.findall(r"^\| `make ([\w-]+)` \|", TEXT, re.MULTILINE)) == sorted(TARGETS)


def test_every_make_target_is_called() -> None:
    """A workflow runs each target, for a change or once a week: what no run calls decays."""
    called = set[str]()
    for path in (ROOT / ".ci" / "run", *(ROOT / ".github" / "workflows").glob("*.yml")):
        called |= {*re.findall(r"\bmake ([a-z0-9-]+)", path.read_text(encoding="utf-8"))}
    called |= {*re.findall(r"\$\(MAKE\) --no-print-directory ([a-z0-9-]+)", MAKEFILE)}
    assert not set(TARGETS) - called


def test_layers_are_those_of_the_linter() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"^layers = \[(.+)\]", settings, re.MULTILINE)
    order = re.search(r"those before it:\s+((?:`\w+`[,.]\s+)+)", TEXT)
    assert layers and order
    assert re.findall(r"\w+", order[1]) == re.findall(r"\w+", layers[1])[::-1]


def test_named_files_exist() -> None:
    text = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    names = re.findall(r"\]\(([\w./-]+)\)|`((?:tests|docs|mlxgen)/[\w./-]+)`", text)
    for link, name in names:
        assert (ROOT / (link or name)).exists(), link or name
