"""The regression of negative_binomial.py with rows distributed over processes, ``mx.distributed``.

    mlx.launch -n 2 .venv/bin/python examples/distributed.py

Each of n processes has every n-th row and computes the contribution of its rows to the likelihood,
gradient and Hessian, through ``mlxops.lgamma`` and its derivatives. Newton's method uses sums over
all processes, so that all of them take the same steps. Nothing else changes, because an operator
computes where its arrays are. Processes on one machine communicate over the loopback address (MLX's
backend "ring"); the option ``--hosts`` of ``mlx.launch`` distributes them over several machines.

The first process also fits all rows alone. The exit status is 0 if both fits agree.
"""

from __future__ import annotations

import sys
from functools import partial

import mlx.core as mx
import numpy as np
from negative_binomial import TOLERANCE, fit, load


def main() -> int:
    """Run the example; return 0 if the fits agree."""
    mx.set_default_device(mx.cpu)  # float64 exists on the CPU only, on every system
    group = mx.distributed.init()  # a process that is started alone is a group of one
    rank, size = group.rank(), group.size()
    x, y, names = load()
    mine = slice(rank, None, size)

    def progress(iteration: int, log_likelihood: float, gradient: float) -> None:
        if rank == 0:
            print(f"{iteration}: log-likelihood {log_likelihood:.6f}, gradient {gradient:.0e}")

    shared = fit(x[mine], y[mine], progress, partial(mx.distributed.all_sum, group=group))
    print(f"Process {rank + 1} of {size}, {len(y[mine])} rows: {shared.seconds:.2f} s", flush=True)
    if rank:
        return 0
    alone = fit(x, y, lambda *_: None)
    for name, ours, theirs in zip(names, shared.params, alone.params, strict=True):
        print(f"{name:10} {ours:12.8f} {theirs:12.8f}")
    difference = float((np.abs(shared.params - alone.params) / alone.errors).max())
    agree = difference < TOLERANCE
    print(f"Largest difference: {difference:.1e} standard errors, of {TOLERANCE:.0e} allowed")
    print("The fits agree." if agree else "The fits do NOT agree.")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
