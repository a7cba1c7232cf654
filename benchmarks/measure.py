"""Alternating measurements, and their results: a value, an aim, and whether the aim is met."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version


@dataclass(frozen=True)
class Result:
    """One line of the report."""

    group: str
    what: str
    value: str
    aim: str = ""
    met: bool | None = None  # None: without an aim
    data: Mapping[str, float] = field(default_factory=dict)  # the numbers, for --json
    cells: Mapping[str, str] = field(default_factory=dict)  # columns instead of value and aim


@dataclass(frozen=True)
class Options:
    """The command-line options for all measurements."""

    quick: bool
    progress: Callable[[str], None]
    only: frozenset[str] = frozenset()  # the special functions to measure; empty: all


class Timings:
    """Seconds per call of several things, measured alternately."""

    def __init__(self, rounds: Mapping[str, list[float]]) -> None:
        self.rounds = rounds

    def seconds(self, name: str) -> float:
        """Return the median."""
        return statistics.median(self.rounds[name])

    def least(self, name: str) -> float:
        """Return the minimum, for slow functions: other processes only add to a time."""
        return min(self.rounds[name])

    def quartile(self, name: str) -> float:
        """Return the lower quartile, for CPU times, some of which are too short."""
        times = sorted(self.rounds[name])
        return times[len(times) // 4]

    def ratio(self, name: str, to: str) -> float:
        """Return ``name`` as a multiple of ``to``: the median over the rounds."""
        pairs = zip(self.rounds[name], self.rounds[to], strict=True)
        return statistics.median(a / b for a, b in pairs)


def alternate(
    functions: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int = 1,
    collect: bool = False,
    budget: float = math.inf,
    turn: float = 0,
    pause: float = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Time functions alternately.

    Args:
        functions: The functions by name. Each is called once beforehand.
        rounds: The number of rounds.
        calls: The number of consecutive calls over which a timing is averaged.
        collect: Let Python's garbage collector run during the calls, as in normal use.
        budget: Seconds after which no new round begins. If the calls beforehand have taken that
            long, they are the only round.
        turn: Seconds for a function in each round: quick functions are timed several times.
        pause: Seconds before each turn, in which the threads of the last function fall asleep.
        clock: Returns the wall time, or the CPU time (``time.process_time``) of this process.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    begin = clock()
    beforehand = {}
    for name, function in functions.items():
        start = clock()
        function()
        beforehand[name] = [clock() - start]
    if clock() - begin > budget:
        return Timings(beforehand)
    for i in range(rounds):
        if i and clock() - begin > budget:
            break
        # In random order, because a function profits from memory that its predecessor has used.
        for name, function in random.Random(i).sample(list(functions.items()), len(functions)):
            gc.collect()
            time.sleep(pause)
            if not collect:
                gc.disable()
            first = clock()
            while True:
                start = clock()
                for _ in range(calls):
                    function()
                stop = clock()
                times[name].append((stop - start) / calls)
                if stop - first >= turn:
                    break
            gc.enable()
    return Timings(times)


def keep_memory() -> None:
    """Let this process keep freed memory, if the C library is glibc.

    Otherwise arrays of 32 MB are new memory in every call. The time that the kernel needs to
    provide it varies from minute to minute, and exceeds the time of the fastest functions.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc.mallopt(m_mmap_threshold, 2**30)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def run_command(command: list[str], **variables: str) -> str:
    """Run a program with environment variables; return its output.

    If it fails, raise ``RuntimeError`` with the output.
    """
    env = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def duration(seconds: float) -> str:
    """Format seconds."""
    if seconds >= 180:
        return f"{seconds / 60:.0f} min"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def factor(ratio: float) -> str:
    """Format a ratio with two digits, or more before the decimal point."""
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def machine() -> dict[str, str]:
    """Describe the machine and the versions that affect the results."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        **{name: version(name) for name in ("mlx", "numpy", "scipy", "nanobind")},
    }


def _processor() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
