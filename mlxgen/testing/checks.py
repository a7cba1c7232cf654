"""The generated checks of a package, run where it is: in a notebook, without pytest's output."""

from __future__ import annotations

import importlib
from types import ModuleType


def check(package: ModuleType) -> int:
    """Run the generated checks of a package, as `pytest --pyargs PACKAGE.checks` does.

    Args:
        package: What `mlxgen.load` gave, or a package that mlxgen built.

    Returns:
        How many there were, of which none failed.

    Raises:
        AssertionError: What failed.
    """
    import pytest

    module = importlib.import_module(f"{package.__name__}.checks.test_gradients")
    count = 0
    failures = []
    for name, test in vars(module).items():
        if not name.startswith("test_"):
            continue
        (parametrised,) = test.pytestmark
        for subject, place in zip(parametrised.args[1], parametrised.kwargs["ids"], strict=True):
            try:
                test(subject)
                count += 1
            except pytest.skip.Exception:
                pass
            except Exception as error:
                failures.append(f"{name}[{place}]: {error}")
    assert not failures, "\n".join(failures)
    return count
