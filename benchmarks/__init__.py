"""Measurements: generation, rebuilding, call overhead, CPU kernels, lines of code.

``make bench`` runs all of them and ``python -m benchmarks calls kernels`` some; ``--quick`` selects
smaller sizes. Every ratio compares things that are measured alternately in one run, as the median
over the rounds, because other work on the machine slows both. ``--write`` writes the results and a
description of the machine to ``docs/benchmark-results.md``. No test depends on these results.
"""

import sys
from pathlib import Path

# The functions, their points, exact values and loops are defined in the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
