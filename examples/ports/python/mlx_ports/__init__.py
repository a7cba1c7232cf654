"""Operators that model packages write as custom Metal kernels."""

from mlx_ports._load import *
from mlx_ports._load import __version__ as __version__
