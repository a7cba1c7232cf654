"""The order of the tests, their isolation, and small projects to build."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from evaluation import forget_lost_tasks

# The files that take longest, by CPU time: they start first, the others fill the gaps.
SLOW = (
    "tools/test_formulas.py",
    "package/test_package.py",
    "programs/test_walk.py",
    "emulator/test_host.py",
    "programs/test_ports.py",
    "package/test_load.py",
    "runtime/test_loops.py",
    "fuzz/test_fuzz.py",
    "package/test_releases.py",
    "c/test_kinds.py",
    "check/test_language.py",
    "emulator/test_cost.py",
    "emulator/test_portability.py",
    "ops/test_hostile.py",
    "metal_kernel/test_import_kinds.py",
    "command/test_memo.py",
    "runtime/test_coefficients.py",
    "package/test_uses.py",
    "render/test_generated_code.py",
    "command/test_test.py",
    "command/test_pages.py",
    "linalg/test_selected.py",
    "package/test_how_to.py",
    "emulator/test_mlx_kernels.py",
    "ops/test_generated.py",
    "special/test_accuracy.py",
    "conformance/test_selection.py",
    "programs/test_notebooks.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow files first: pytest-xdist gives whole files to its workers, in this order.

    With TEST_SHARE=3, only a third of the tests runs, the same one each time.
    """
    places = {Path(__file__).parent / name: place for place, name in enumerate(SLOW)}
    for path in places:
        assert path.is_file(), f"conftest.py names {path}, which does not exist"
    items.sort(key=lambda item: places.get(item.path, len(SLOW)))
    if share := int(os.environ.get("TEST_SHARE") or 0):
        items[:] = [item for item in items if crc32(item.nodeid.encode()) % share == 0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Let no test wait for the tasks of an earlier one."""
    forget_lost_tasks()


@pytest.fixture
def write_project(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that makes ``tmp_path`` a complete project with a given pyproject.toml."""

    def write(text: str) -> Path:
        for package in ("tiny", "my_ops", "mlxops", "ops"):
            (tmp_path / "python" / package).mkdir(parents=True, exist_ok=True)
            (tmp_path / "python" / package / "__init__.py").touch()
        (tmp_path / "mlx_ops.yaml").touch()
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
        return tmp_path

    return write
