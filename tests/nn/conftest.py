"""Tests of mlxops.nn run on each device that there is, and in every floating dtype it has."""

from ops.conftest import device as device
from ops.conftest import dtype as dtype
