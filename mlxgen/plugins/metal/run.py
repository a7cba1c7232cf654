"""Runs a Python program and records its kernels, for `mlxgen import metal_kernel`.

A program is run and not only read, because shapes, dtypes and template arguments are known at its
calls only. Without a GPU, the kernels are emulated, and MLX answers as on a Mac.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

import mlx.core as mx

from .emulation import emulate
from .record import record


def main(program: str, folder: str, reason: str) -> int:
    """Run a program, and write the reason to a file if it fails.

    Returns:
        The exit status.
    """
    sys.argv, sys.path[0] = [program], str(Path(program).resolve().parent)
    on_gpu = mx.metal.is_available()
    try:
        with record(folder) if on_gpu else emulate(pretend=True, record=folder):
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            Path(reason).write_text(f"it ends with: {end.code}", "utf-8")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == program]
        line = error.lineno if isinstance(error, SyntaxError) else own[-1].lineno if own else None
        text = str(error).split("\nhelp: ")[0]
        where = f" in line {line}" if line else ""
        Path(reason).write_text(f"{type(error).__name__}{where}: {text}", "utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
