"""The lines that a developer writes for axpby, against MLX's tutorial on extensions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .measure import Options, Result

ROOT = Path(__file__).resolve().parents[1]

# All lines of axpby.cpp, axpby.h, axpby.metal, bindings.cpp, CMakeLists.txt and setup.py in
# examples/extensions of MLX's repository, August 2026: 306 + 90 + 47 + 39 + 78 + 18.
TUTORIAL = 578


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    options.progress("count lines")
    entry = _block(ROOT / "mlx_ops.yaml", r"^- name: axpby\n(?:(?!- name).*\n)*")
    cpu = _block(ROOT / "csrc" / "elementwise.h", r"^template <.*\nT axpby\((?:.*\n)*?}\n")
    metal = _block(
        ROOT / "kernels" / "metal" / "elementwise.metal",
        r"^template <.*\nT axpby_metal\((?:.*\n)*?}\n",
    )
    total = entry + cpu + metal
    yield Result(
        "lines",
        "lines written for axpby: entry with its documentation, CPU kernel, Metal kernel",
        f"{total} ({entry} + {cpu} + {metal}); MLX's tutorial has {TUTORIAL}, "
        f"{TUTORIAL / total:.0f} times as many",
        data={"entry": entry, "cpu": cpu, "metal": metal, "tutorial": TUTORIAL},
    )


def _block(path: Path, pattern: str) -> int:
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise LookupError(f"axpby is no longer where it was in {path}")
    return len(match[0].strip().splitlines())
