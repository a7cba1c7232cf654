"""Every test of operators runs on each available device."""

import mlx.core as mx
import pytest
from ops.accuracy import FLOATS, name

from mlxgen.testing import metal_backend

# These test the CPU's loops and threads, which emulated kernels lack; and emulation is slow.
collect_ignore = ["test_threads.py", "test_hostile.py"] if metal_backend() == "emulation" else []

DEVICES = {"cpu": mx.cpu, **({"gpu": mx.gpu} if metal_backend() == "gpu" else {})}


@pytest.fixture(params=DEVICES, autouse=True)
def device(request):
    """The default device during the test."""
    with mx.stream(DEVICES[request.param]):
        yield DEVICES[request.param]


@pytest.fixture(params=FLOATS, ids=name)
def dtype(request, device):
    """Every floating dtype of the device."""
    if request.param == mx.float64 and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    return request.param
