"""Runs the generated checks of a package in the current process, without pytest's output."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from .crashes import reported_if_endless, reported_if_fatal
from .report import Failure, Report

if TYPE_CHECKING:
    from .cases import Subject


class Check(NamedTuple):
    """A generated check of one sample."""

    name: str
    place: str  # the operator and, after the first, the number of the sample
    subject: Subject
    test: Callable[[Subject], None]

    def run(self) -> Failure | None:
        """Run the check; return None if it passes.

        Raises:
            pytest.skip.Exception: If there is nothing to check.
        """
        try:
            with reported_if_endless():
                self.test(self.subject)
        except Exception as error:
            return Failure.of(self.place, self.name, error)
        return None


def checks_of(package: ModuleType) -> Iterator[Check]:
    """Yield the generated checks of a package, the most basic ones first."""
    module = importlib.import_module(f"{package.__name__}.checks.test_gradients")
    for name, test in vars(module).items():
        if name.startswith("test_"):
            (parametrised,) = test.pytestmark
            places = parametrised.kwargs["ids"]
            for subject, place in zip(parametrised.args[1], places, strict=True):
                yield Check(name.removeprefix("test_"), place, subject, test)


def check(package: ModuleType) -> Report:
    """Run the generated checks of a package, as `pytest --pyargs PACKAGE.checks` does.

    If a kernel ends the process, standard error shows the operator and the check. In a notebook,
    the next run shows them.

    Args:
        package: The result of `mlxgen.load`, or a package that mlxgen built.

    Returns:
        A report: true if no check failed. In a notebook it is a table of the failures.
    """
    import pytest

    passed = 0
    failures = []
    checks = [*checks_of(package)]
    with reported_if_fatal(Path(package.__path__[0]) / "checks"):
        for one in checks:
            try:
                failure = one.run()
            except pytest.skip.Exception:
                continue
            passed += failure is None
            failures += [failure] if failure else []
    return Report(passed, tuple(failures))
