"""Every test of operators runs on each device that there is."""

import mlx.core as mx
import pytest
from ops.accuracy import FLOATS, name

from mlxgen.testing import metal_backend

# They are about the CPU's loops and threads. Emulated kernels have none, and take long.
collect_ignore = ["test_threads.py", "test_hostile.py"] if metal_backend() == "emulation" else []

DEVICES = {"cpu": mx.cpu, **({"gpu": mx.gpu} if metal_backend() == "gpu" else {})}


@pytest.fixture(params=DEVICES, autouse=True)
def device(request):
    """The default device during the test."""
    with mx.stream(DEVICES[request.param]):
        yield DEVICES[request.param]


@pytest.fixture(params=FLOATS, ids=name)
def dtype(request, device):
    """Every floating dtype that the device has."""
    if request.param == mx.float64 and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    return request.param
