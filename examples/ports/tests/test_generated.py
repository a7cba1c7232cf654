"""The generated checks: kernels against the composite, gradients against finite differences,
vmap, compile, dtypes, memory layouts."""

from mlx_ports.checks.test_gradients import *  # noqa: F403
