"""ATen's operators for MLX."""

from mlx_aten._load import *
from mlx_aten._load import __version__ as __version__
