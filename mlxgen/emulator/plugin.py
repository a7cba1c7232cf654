"""A pytest plugin: a test fails if an emulated Metal kernel did something invalid.

`mlxgen metal-test` uses it. It can also be used as `pytest -p mlxgen.emulator.plugin`, with the
variables of `mlxgen.emulator.package.EmulatedPackage.environment`. The fixture `metal_launches`
returns the kernels that a test has launched.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_launched: Counter[str] = Counter()
_loaded: list[ctypes.CDLL] = []


def report() -> tuple[Counter[str], list[str]]:
    """Return the launches and the errors since the last call."""
    path = os.environ.get("MLXGEN_METAL_LIBRARY")
    if not path:
        return Counter(), []
    import mlx.core as mx

    mx.synchronize()
    if not _loaded:
        library = ctypes.CDLL(path)
        library.mlxgen_metal_report.restype = ctypes.c_char_p
        _loaded.append(library)
    launches: Counter[str] = Counter()
    errors = []
    for line in _loaded[0].mlxgen_metal_report().decode(errors="replace").splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "launch":
            count, _, name = rest.partition(" ")
            launches[name] += int(count)
        else:
            errors.append(rest)
    return launches, errors


class EmulatedFinder(MetaPathFinder):
    """Imports the package from the folder that was built for emulation.

    ``PYTHONPATH`` is not enough: the finder of an editable install comes before it.

    Attributes:
        folder: the package, such as ``build/metal/package/my_ops``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the package and its modules."""
        if name == self.folder.name:
            return PathFinder.find_spec(name, [str(self.folder.parent)], target)
        if name.startswith(f"{self.folder.name}."):
            return PathFinder.find_spec(name, path, target)
        return None


def pytest_configure() -> None:
    """Import the emulated package; run its kernels in the CPU's streams, also on a Mac."""
    if library := os.environ.get("MLXGEN_METAL_LIBRARY"):
        sys.meta_path.insert(0, EmulatedFinder(Path(library).parents[1]))
        on_cpu()


def on_cpu() -> None:
    """Run kernels in the CPU's streams, also on a Mac."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    mx.metal.is_available = lambda: False


@pytest.fixture(autouse=True)
def metal_errors() -> Iterator[None]:
    """Fail each test in which a kernel did something invalid."""
    yield
    launches, errors = report()
    _launched.update(launches)
    if errors:
        shown = "\n".join(dict.fromkeys(errors))
        pytest.fail(f"errors of emulated Metal kernels:\n{shown}", pytrace=False)


@pytest.fixture
def metal_launches() -> Callable[[], Counter[str]]:
    """A function that returns how often each kernel was launched since it was last called."""

    def launches() -> Counter[str]:
        found, errors = report()
        _launched.update(found)
        assert not errors, errors
        return found

    return launches


def pytest_runtest_logstart(nodeid: str) -> None:
    """Record the name of the running test, for a message if the process is killed."""
    if path := os.environ.get("MLXGEN_METAL_RUNNING"):
        Path(path).write_text(nodeid, encoding="utf-8")


def missing_kernels(expected: str, launched: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the kernels that were never launched, by operator.

    Args:
        expected: Lines with an operator and one of its kernels.
        launched: The number of launches of each kernel.
    """
    missing: dict[str, list[str]] = {}
    for line in expected.splitlines():
        op, _, name = line.partition(" ")
        if not launched.get(name):
            missing.setdefault(op, []).append(name)
    return missing


def _missing() -> dict[str, list[str]]:
    path = os.environ.get("MLXGEN_METAL_EXPECTED")
    return missing_kernels(Path(path).read_text(encoding="utf-8"), _launched) if path else {}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the launches of a pytest-xdist worker; a crashed worker reports none."""
    _launched.update(getattr(node, "workeroutput", {}).get("metal_launches", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report kernels that no test has launched as an error, if all tests ran."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["metal_launches"] = dict(_launched)
    elif _missing() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the kernels that ran; a kernel that is not in the list was not tested."""
    if not os.environ.get("MLXGEN_METAL_LIBRARY"):
        return
    terminalreporter.section("emulated Metal kernels")
    for name, count in sorted(_launched.items()):
        terminalreporter.write_line(f"{count:7d}  {name}")
    total = sum(_launched.values())
    terminalreporter.write_line(f"{total:7d}  launches of {len(_launched)} kernels")
    for op, names in sorted(_missing().items()):
        terminalreporter.write_line(
            f"ERROR {op}: no test has launched {', '.join(names)}", red=True
        )
