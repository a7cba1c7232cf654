"""The pytest plugin of `mlxgen.metal`: tests run with emulated kernels, whose errors fail them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from .emulation import Emulation

_session: list[Emulation] = []
_launched: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("metal", "emulated Metal kernels")
    help = "answer as on a Mac: mx.metal.is_available() is true, and the default device is mx.gpu"
    group.addoption("--metal-pretend", action="store_true", help=help)
    help = "do not report elements of outputs that no thread writes"
    group.addoption("--metal-unwritten", action="store_true", help=help)
    help = "record calls of kernels in this folder, for `mlxgen import metal_kernel`"
    group.addoption("--metal-record", metavar="FOLDER", help=help)


def pytest_configure(config: pytest.Config) -> None:
    """Emulate kernels until the session ends, also while test modules are imported."""
    pretend = config.getoption("--metal-pretend")
    unwritten = not config.getoption("--metal-unwritten")
    record = config.getoption("--metal-record")
    emulation = Emulation(pretend=pretend, unwritten=unwritten, record=record)
    _session.append(emulation.__enter__())


def pytest_unconfigure() -> None:
    """End the emulation."""
    _session.pop().__exit__(None, None, None)


@pytest.fixture(autouse=True)
def metal() -> Iterator[Emulation]:
    """The emulation, with the launches and errors of the test.

    A test that expects an error removes it: ``metal.update(); metal.errors.clear()``.
    """
    (seen,) = _session
    seen.update()
    seen.launches.clear()
    seen.errors.clear()
    yield seen
    mx.synchronize()
    seen.update()
    _launched.update(seen.launches)
    errors = dict.fromkeys(seen.errors)
    seen.errors.clear()
    if errors:
        shown = "\n".join(errors)
        pytest.fail(f"errors of emulated Metal kernels:\n{shown}", pytrace=False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of launches."""
    if _launched:
        terminalreporter.section("emulated Metal kernels")
        total = f"{sum(_launched.values())} launches of {len(_launched)} kernels"
        terminalreporter.write_line(total)
