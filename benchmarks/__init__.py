"""Measurements: generation, rebuilding, call overhead, CPU kernels, lines of code.

``make bench`` runs all of them, ``python -m benchmarks calls kernels`` some, with ``--quick`` for
smaller sizes. Every ratio is taken between things measured in turns, in one run, as the median over
the rounds: the machine may have other work, which slows both. ``--write`` puts the results, with
the machine, into ``docs/benchmark-results.md``. No test asserts anything of this.
"""

import sys
from pathlib import Path

# The functions, with points, exact values and loops, are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
