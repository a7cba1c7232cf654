"""Runs the generated checks of a built package in a process of its own, for `mlxgen test`.

Each result is a line of JSON in a pipe. A line before each check, and before its preparation, names
it, so that the other process can report the check in which a kernel ends this one.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from .load import imported

SHOWN = 3  # errors of kernels in the message of a check
LONGEST = 300
"""Seconds after which a check that has not ended is stopped."""


def main(given: dict[str, Any]) -> None:
    """Run the checks of some operators, and time the operators if that is requested.

    Args:
        given: `pipe`, a file descriptor; `name` and `package`, the package and its folder;
            `operators`, their names in order; `metal` and `bench`.
    """
    with os.fdopen(given["pipe"], "w", encoding="utf-8") as pipe:

        def tell(**event: object) -> None:
            print(json.dumps(event), file=pipe, flush=True)

        _run(given, tell)
        tell(end=True)


def _run(given: dict[str, Any], tell: Callable[..., None]) -> None:
    import pytest

    from ...testing import cases, checks
    from ...testing.report import Failure

    if given["metal"]:
        from ...emulator.plugin import on_cpu, report

        on_cpu()
    try:
        package = imported(given["name"], Path(given["package"]))
    except ImportError as error:
        tell(unusable=str(error))
        return
    order = {name: i for i, name in enumerate(given["operators"])}

    def choose(op: str, check: str) -> bool:
        if op in order:
            tell(op=op, preparing=check)
        return op in order

    cases.choose = choose
    found = [*checks.checks_of(package)]
    for check in sorted(found, key=lambda check: order[check.subject.op["name"]]):
        op, begin = check.subject.op["name"], perf_counter()
        tell(op=op, place=check.place, check=check.name)
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        try:
            failure = check.run()
        except pytest.skip.Exception:
            continue
        launches = 0
        if given["metal"]:
            launched, errors = report()
            launches = launched.total()
            if errors:  # they explain wrong numbers
                different = [*dict.fromkeys(errors)]
                more = [f"and {len(different) - SHOWN} more"] if len(different) > SHOWN else []
                message = "; ".join(different[:SHOWN] + more)
                failure = Failure(check.place, check.name, message)
        shown = failure and asdict(replace(failure, error=None))
        tell(op=op, failure=shown, seconds=perf_counter() - begin, launches=launches)
    faulthandler.cancel_dump_traceback_later()
    if given["bench"]:
        from ...testing.timing import timed

        for check in found:
            if check.name == "sample" and check.subject.number == 0:
                tell(op=check.subject.op["name"], place=check.place, check="bench")
                if timing := timed(check.subject):
                    tell(op=check.subject.op["name"], timing=timing)
