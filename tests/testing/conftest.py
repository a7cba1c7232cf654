"""The checks run on each available device, too."""

from ops.conftest import device as device
