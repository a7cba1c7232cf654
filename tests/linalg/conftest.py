"""MLX computes linear algebra on the CPU."""

import mlx.core as mx
import pytest


@pytest.fixture(autouse=True)
def on_cpu():
    with mx.stream(mx.cpu):
        yield
