"""The checks that were generated with mlxops, as anybody can run them with
``pytest --pyargs mlxops.checks``."""

from mlxops.checks.test_gradients import *  # noqa: F403
