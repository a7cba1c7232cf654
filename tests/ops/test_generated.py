"""The checks that were generated with mlxops; users can run them with
``pytest --pyargs mlxops.checks``."""

import pytest
from mlxops.checks import test_gradients
from mlxops.checks.test_gradients import *  # noqa: F403

test_second = pytest.mark.extended(test_gradients.test_second)
test_layouts_vjp = pytest.mark.extended(test_gradients.test_layouts_vjp)
