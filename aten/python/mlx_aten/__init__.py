"""ATen's operators for MLX, and whole models of torch.export."""

from typing import TYPE_CHECKING, Any

from mlx_aten._load import *
from mlx_aten._load import __version__ as __version__

if TYPE_CHECKING:
    from mlx_aten.exported import ExportedModel as ExportedModel
    from mlx_aten.exported import ExportError as ExportError
    from mlx_aten.exported import from_exported as from_exported

_EXPORTED = ("ExportError", "ExportedModel", "from_exported")


def __getattr__(name: str) -> Any:
    """Import mlx_aten.exported at its first use, since most programs need operators only."""
    if name in _EXPORTED:
        from mlx_aten import exported

        return getattr(exported, name)
    raise AttributeError(f"module 'mlx_aten' has no attribute '{name}'")
