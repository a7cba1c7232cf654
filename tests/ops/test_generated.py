"""The checks that were generated with mlxops; users can run them with
``pytest --pyargs mlxops.checks``."""

from mlxops.checks.test_gradients import *  # noqa: F403
