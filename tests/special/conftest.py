"""Tests of special functions run on each available device."""

import mlx.core as mx
import pytest
from special.reference import FORMATS

from mlxgen.testing import metal_backend

DEVICES = {"cpu": mx.cpu, **({"gpu": mx.gpu} if metal_backend() == "gpu" else {})}


@pytest.fixture(params=DEVICES, autouse=True)
def device(request):
    """The default device during the test."""
    with mx.stream(DEVICES[request.param]):
        yield DEVICES[request.param]


@pytest.fixture(params=FORMATS)
def format(request, device):
    """Every floating dtype of the device."""
    if request.param == "float64" and device == mx.gpu:
        pytest.skip("the GPU has no float64")
    return FORMATS[request.param]
