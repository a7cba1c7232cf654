"""Tests of mlxops.nn run on each available device, and in every floating dtype of it."""

from ops.conftest import device as device
from ops.conftest import dtype as dtype
