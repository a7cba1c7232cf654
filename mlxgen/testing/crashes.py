"""Names the check in which a process dies or hangs, because of an error in a kernel.

A kernel that reads outside of its arrays can end the process. Python's ``faulthandler``, which
pytest enables, then writes the names of the running functions. A check therefore runs below a
function whose name is that of the check and its operator.
"""

from __future__ import annotations

import contextlib
import faulthandler
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

PATIENCE = 60
"""Seconds until the running functions of a check that has not ended are written."""


def _call(function: Callable[[T], R], argument: T) -> R:
    __tracebackhide__ = True
    return function(argument)


def named(name: str, function: Callable[[T], R], argument: T) -> R:
    """Call a function below one of the given name."""
    __tracebackhide__ = True
    result: R = FunctionType(_call.__code__.replace(co_name=name), {})(function, argument)
    return result


@contextlib.contextmanager
def reported_if_endless() -> Iterator[None]:
    """Write the running functions to standard error if the block takes longer than `PATIENCE`."""
    with contextlib.suppress(Exception):  # standard error is not a file
        faulthandler.dump_traceback_later(PATIENCE)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def reported_if_fatal(folder: Path) -> Iterator[None]:
    """Write the running functions if the process dies in the block.

    A notebook shows no output of a kernel that dies: its next run shows the file in ``folder``.
    """
    was_enabled, note = faulthandler.is_enabled(), folder / "died.txt"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ValueError):  # a file that cannot be written
            if _in_notebook():
                if note.is_file() and (text := note.read_text("utf-8").strip()):
                    print(f"The kernel died when these checks ran before:\n{text}\n", flush=True)
                file = stack.enter_context(note.open("w", encoding="utf-8"))
                stack.callback(note.unlink)
                faulthandler.enable(file)
                stack.callback(faulthandler.enable if was_enabled else faulthandler.disable)
            elif not was_enabled:
                faulthandler.enable()
                stack.callback(faulthandler.disable)
        yield


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
