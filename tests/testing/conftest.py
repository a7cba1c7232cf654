"""The checks, too, run on each device that there is."""

from ops.conftest import device as device
