"""Runs Metal kernels on the CPU, so that they can be tested on a machine without a GPU.

A `.metal` file is translated to C++, compiled with the system's compiler, and run with Metal's
thread positions, barriers and simdgroups:

    library = load_metal("kernels/metal/segment.metal", include_dirs)
    library.run("segment_sum_sorted_float32",
                [x, ids, order, out, np.int32(rows), np.int32(width)],
                grid=(32, 8 * segments, 1), threadgroup=(32, 8, 1), outputs=[3])

`translate` rewrites the source; `library` compiles and runs it. `include/` contains Metal's library
in C++ and the substitute for MLX's Metal device, with which generated launchers run. `runtime.cpp`
runs threads. `rules.py` rejects code that is valid C++ but not valid Metal.
docs/emulation.md explains which errors the emulation can find.
"""

from .cxx import EmulationError
from .library import SCHEDULES, Library, Schedule, load_metal
from .package import check_rules
from .translate import Translation, translate

__all__ = [
    "SCHEDULES",
    "EmulationError",
    "Library",
    "Schedule",
    "Translation",
    "check_rules",
    "load_metal",
    "translate",
]
