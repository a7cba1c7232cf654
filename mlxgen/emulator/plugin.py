"""A pytest plugin: tests fail if an emulated Metal kernel did what it must not.

`mlxgen metal-test` uses it. Elsewhere: `pytest -p mlxgen.emulator.plugin`, in the environment that
`mlxgen.emulator.package.environment` gives. The fixture `metal_launches` tells a test which kernels
it has launched so far.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_launched: Counter[str] = Counter()
_loaded: list[ctypes.CDLL] = []


def _report() -> tuple[Counter[str], list[str]]:
    """The launches and the errors since the last call."""
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


def pytest_configure() -> None:
    """On a Mac, too, this run's kernels are emulated, in the streams of the CPU."""
    if os.environ.get("MLXGEN_METAL_LIBRARY"):
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        mx.metal.is_available = lambda: False


@pytest.fixture(autouse=True)
def metal_errors() -> Iterator[None]:
    """After each test: fail if one of its kernels did something wrong."""
    yield
    launches, errors = _report()
    _launched.update(launches)
    if errors:
        shown = "\n".join(dict.fromkeys(errors))
        pytest.fail(f"emulated Metal kernels went wrong:\n{shown}", pytrace=False)


@pytest.fixture
def metal_launches() -> Callable[[], Counter[str]]:
    """A function that returns how often each kernel was launched since it was last called."""

    def launches() -> Counter[str]:
        found, errors = _report()
        _launched.update(found)
        assert not errors, errors
        return found

    return launches


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which kernels ran: a kernel that is not in this list was not tested."""
    if not os.environ.get("MLXGEN_METAL_LIBRARY"):
        return
    terminalreporter.section("emulated Metal kernels")
    for name, count in sorted(_launched.items()):
        terminalreporter.write_line(f"{count:7d}  {name}")
    total = sum(_launched.values())
    terminalreporter.write_line(f"{total:7d}  launches of {len(_launched)} kernels")
