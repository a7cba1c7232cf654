"""Cores share large elementwise kernels: results do not depend on the number of threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import mlx.core as mx
import mlxops
import numpy as np
import pytest

# More than a kernel computes on one thread, and not a multiple of any unit.
SIZE = 3 * 101 * 1009

PROGRAM = """
import sys
import mlx.core as mx
sys.path.insert(0, sys.argv[1])
import test_threads
mx.set_default_device(mx.cpu)
print(test_threads.digest())
"""


def cases() -> list[mx.array]:
    """Return results for every kind of layout: dense, strided, broadcast, converted, and so on."""
    x = mx.sin(mx.arange(SIZE, dtype=mx.float32) * 0.37) * 9
    cube = x.reshape(3, 101, 1009)
    row = mx.linspace(0.5, 3, 1009)
    return [
        mlxops.lgamma(x),
        mlxops.lgamma(x[::-1]),
        mlxops.lgamma(x[5:-7:3]),
        mlxops.digamma(cube.transpose(2, 0, 1)),
        mlxops.swiglu(cube, row),
        mlxops.swiglu(cube[:, :, ::2], mx.broadcast_to(row[:505], (3, 101, 505))),
        mlxops.lgamma(x.astype(mx.float16)),
        mlxops.swiglu(cube.astype(mx.bfloat16)[:, ::-1], row.astype(mx.bfloat16)),
        mlxops.lgamma(x.astype(mx.float64)),
        *mlxops.sincos(cube.transpose(1, 2, 0)),
    ]


def digest() -> str:
    """Return the bits of all results."""
    hashed = hashlib.sha256()
    for result in cases():
        bits = result if result.dtype != mx.bfloat16 else result.view(mx.uint16)
        hashed.update(np.ascontiguousarray(np.array(bits)).tobytes())
    return hashed.hexdigest()


@pytest.mark.parametrize("count", ["1", "2", "5", "no number"])
def test_results_do_not_depend_on_the_number_of_threads(count: str) -> None:
    folder = str(Path(__file__).parent)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder],
        env={**os.environ, "MLXGEN_NUM_THREADS": count},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == digest()


def test_each_element_is_computed_once_and_in_its_place() -> None:
    x = mx.sin(mx.arange(SIZE, dtype=mx.float32) * 0.37) * 9
    whole = mlxops.lgamma(x.reshape(3, 101, 1009).transpose(2, 1, 0))
    # Parts so small that no other thread is used.
    parts = [mlxops.lgamma(x[i : i + 4096]) for i in range(0, SIZE, 4096)]
    wanted = mx.concatenate(parts).reshape(3, 101, 1009).transpose(2, 1, 0)
    assert mx.array_equal(whole, wanted)


def test_streams_at_the_same_time() -> None:
    """While one stream uses the workers, others compute on their own threads."""
    x = mx.linspace(0.1, 50, SIZE)
    wanted = mlxops.digamma(x)
    mx.eval(wanted)
    results: dict[int, bool] = {}

    def run(i: int) -> None:
        stream = mx.new_stream(mx.cpu)
        results[i] = all(
            bool(mx.array_equal(mlxops.digamma(x, stream=stream), wanted, stream=stream))
            for _ in range(4)
        )

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), True)


ENDING = """
import threading
import mlx.core as mx
import mlxops
mx.set_default_device(mx.cpu)

def work(i):
    with mx.stream(mx.new_stream(mx.cpu)):
        x = mx.linspace(0.1, 50, 100_003)
        mx.eval(mlxops.digamma(x), mx.grad(lambda x: mlxops.lgamma(x).sum())(x))
        mx.async_eval(mlxops.swiglu(x, x))

threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_process_ends_after_threads_with_streams() -> None:
    run = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
