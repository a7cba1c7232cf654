"""Runs the generated checks of a package in the current process, without pytest's output."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from .crashes import reported_if_endless, reported_if_fatal
from .report import Failure, Report


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

    module = importlib.import_module(f"{package.__name__}.checks.test_gradients")
    passed = 0
    failures = []
    with reported_if_fatal(Path(module.__file__ or "").parent):
        for name, test in vars(module).items():
            if not name.startswith("test_"):
                continue
            (parametrised,) = test.pytestmark
            names = parametrised.kwargs["ids"]
            for subject, place in zip(parametrised.args[1], names, strict=True):
                try:
                    with reported_if_endless():
                        test(subject)
                    passed += 1
                except pytest.skip.Exception:
                    pass
                except Exception as error:
                    failures.append(Failure.of(place, name.removeprefix("test_"), error))
    return Report(passed, tuple(failures))
