"""Timing side by side, and what a measurement is: a value, an aim and whether it is met."""

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
    met: bool | None = None  # None: there is no aim
    data: Mapping[str, float] = field(default_factory=dict)  # the numbers, for --json
    cells: Mapping[str, str] = field(default_factory=dict)  # columns in place of value and aim


@dataclass(frozen=True)
class Options:
    """What the command line says to every measurement."""

    quick: bool
    progress: Callable[[str], None]
    only: frozenset[str] = frozenset()  # the special functions to measure; empty: all


class Timings:
    """Seconds per call of several things, measured alternately."""

    def __init__(self, rounds: Mapping[str, list[float]]) -> None:
        self.rounds = rounds

    def seconds(self, name: str) -> float:
        """The median."""
        return statistics.median(self.rounds[name])

    def least(self, name: str) -> float:
        """The least, for what takes long: other processes only add to a time."""
        return min(self.rounds[name])

    def quartile(self, name: str) -> float:
        """The lower one, for times of the processor, of which some are too short."""
        times = sorted(self.rounds[name])
        return times[len(times) // 4]

    def ratio(self, name: str, to: str) -> float:
        """``name`` as a multiple of ``to``: the median over the rounds."""
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
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Time functions in turns.

    Args:
        functions: What to time, by name. Each is called once beforehand.
        rounds: How often the turn goes round.
        calls: Calls in a row that one timing is the mean of.
        collect: Let Python's garbage collector run during the calls, as it does for everybody.
        budget: Seconds after which no round begins any more. Where the calls beforehand have taken
            that long already, they are the only round.
        turn: Seconds that a function has in each round: what is quicker is timed several times.
        clock: Gives the seconds: of the wall, or of the processor (``time.process_time``), which
            goes on for this process alone.
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
        # Nobody is always the first, or behind the same one: memory that it has just used is near.
        for name, function in random.Random(i).sample(list(functions.items()), len(functions)):
            gc.collect()
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
    """Let this process keep what it frees, where the C library is glibc.

    Otherwise arrays of 32 MB are new memory at every call: what the kernel takes to hand it out
    differs from minute to minute, and is more than what the fastest functions take.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc.mallopt(m_mmap_threshold, 2**30)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def run_command(command: list[str], **variables: str) -> str:
    """Run a program to its end, with variables of the environment; what it printed.

    ``RuntimeError`` with that when it fails.
    """
    env = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds >= 180:
        return f"{seconds / 60:.0f} min"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def machine() -> dict[str, str]:
    """What the results depend on."""
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
