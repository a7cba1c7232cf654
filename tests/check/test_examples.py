"""The examples in errors.md have the errors that they explain."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import PAGES
from sample import project

# Codes whose examples are not entries, or show only one line of an entry.
ELSEWHERE = ("MG0", "MG2", "MG3", "MG7", "MG8")
SOURCES = [c for c, page in PAGES.items() if page.language == "cpp" and c[:3] not in ELSEWHERE]
ENTRIES = [c for c, page in PAGES.items() if page.language == "yaml" and c[:3] not in ELSEWHERE]
FRAGMENTS = [c for c, page in PAGES.items() if page.language == "yaml" and c[:3] in ELSEWHERE]
FRAGMENTS.remove("MG007")  # the encoding of the file


def codes_of(text: str, folder: Path) -> set[str]:
    yaml = folder / "mlx_ops.yaml"
    yaml.write_text(text, encoding="utf-8")
    return {item.code for item in project.run(yaml, folder / "out").sorted()}


@pytest.mark.parametrize("code", ENTRIES)
def test_example_has_this_error_alone(code: str, tmp_path: Path) -> None:
    assert codes_of(PAGES[code].bad, tmp_path) == {code}


@pytest.mark.parametrize("code", ENTRIES)
def test_mended_example_is_accepted(code: str, tmp_path: Path) -> None:
    assert codes_of(PAGES[code].good, tmp_path) == set()


@pytest.mark.parametrize("code", FRAGMENTS)
def test_fragment(code: str, tmp_path: Path) -> None:
    assert code in codes_of(PAGES[code].bad, tmp_path)
    assert code not in codes_of(PAGES[code].good, tmp_path)


@pytest.mark.parametrize("code", SOURCES)
def test_sources(code: str, tmp_path: Path) -> None:
    entry = '- signature: "scale(x: array, a: float) -> array"\n  dispatch: {cpu: scale}\n'
    (tmp_path / "csrc").mkdir()
    for text, expected in ((PAGES[code].bad, {code}), (PAGES[code].good, set())):
        (tmp_path / "csrc" / "scale.h").write_text(text)
        assert codes_of(entry + "  grad: {x: a * grad}", tmp_path) == expected


def test_sample_project_has_no_error(tmp_path: Path) -> None:
    assert project.run(project.YAML, tmp_path / "out").sorted() == []
