"""A pytest plugin that puts generated functions in place of MLX's, and records outcomes.

    MLX_FUNCTIONS=mlx_functions OUTCOMES=out.json pytest -p conformance.plugin test_ops.py

``MLX_FUNCTIONS`` names a package that mlxgen built, or a file of entries, which is compiled by
``mlxgen.load``. Each of its functions replaces ``mlx.core.<name>`` before any test is imported.
``OUTCOMES`` is a file for the outcome of each test and the number of calls of each function.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import pytest

import mlxgen

SUBMODULES = ("linalg", "fft", "random", "fast")

calls: Counter[str] = Counter()  # of each replaced function
outcomes: dict[str, str] = {}


def functions(package: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of a package that MLX has too, with their dotted names."""
    for module in ("", *SUBMODULES):
        theirs = getattr(mx, module) if module else mx
        ours = getattr(package, module, None) if module else package
        for name, function in vars(ours).items() if ours else ():
            if callable(function) and not name.startswith("_") and hasattr(theirs, name):
                yield f"{module}.{name}".lstrip("."), function


def replace(package: ModuleType) -> None:
    """Put the functions of a package in place of MLX's."""
    for path, function in functions(package):
        module, _, name = path.rpartition(".")
        setattr(getattr(mx, module) if module else mx, name, _counted(path, function))


def _counted(path: str, function: Callable[..., Any]) -> Callable[..., Any]:
    calls[path] = 0

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        calls[path] += 1
        return function(*args, **keywords)

    return call


def pytest_configure() -> None:
    """Replace the functions."""
    name = os.environ.get("MLX_FUNCTIONS", "")
    if name.endswith(".yaml"):
        replace(mlxgen.load(Path(name)))
    elif name:
        replace(importlib.import_module(name))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of a test: that of its call, unless its setup or a subtest fails."""
    if report.when == "call" or report.outcome != "passed":
        name = report.nodeid.rpartition("/")[2]
        if outcomes.get(name) != "failed":
            outcomes[name] = report.outcome


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    if path := os.environ.get("OUTCOMES"):
        found = {"outcomes": outcomes, "calls": dict(sorted(calls.items()))}
        Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")
