"""ATen's operators for MLX."""

from mlx_aten._load import *
from mlx_aten._load import __version__ as __version__
from mlx_aten.exported import ExportedModel as ExportedModel
from mlx_aten.exported import ExportError as ExportError
from mlx_aten.exported import from_exported as from_exported
