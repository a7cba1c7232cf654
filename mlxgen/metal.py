"""`mlxgen.metal.emulate`: kernels of `mx.fast.metal_kernel` on any machine (docs/run-metal.md).

The module is a pytest plugin, too: `pytest -p mlxgen.metal`.
"""

from .emulator import EmulationError
from .plugins.metal.emulation import Emulation, emulate

__all__ = ["Emulation", "EmulationError", "emulate"]

pytest_plugins = ["mlxgen.plugins.metal.plugin"]
