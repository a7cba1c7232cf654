"""`mlxgen.metal.emulate`: kernels of `mx.fast.metal_kernel` on any machine (docs/run-metal.md).

`record` writes their calls to a folder, for `mlxgen import metal_kernel` (docs/metal-kernel.md).

The module is a pytest plugin, too: `pytest -p mlxgen.metal`.
"""

from .emulator import EmulationError
from .plugins.metal.emulation import Emulation, emulate
from .plugins.metal.record import Recording, record
from .plugins.metal.records import RecordError

__all__ = ["Emulation", "EmulationError", "RecordError", "Recording", "emulate", "record"]

pytest_plugins = ["mlxgen.plugins.metal.plugin"]
