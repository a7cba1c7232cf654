"""Imports recorded kernels, and calls the operators with emulated kernels."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.emulator import plugin
from mlxgen.plugins.interactive.built import chosen
from mlxgen.plugins.interactive.load import imported
from mlxgen.plugins.interactive.test import build
from mlxgen.plugins.metal import records
from mlxgen.plugins.metal.convert import Entry, Names, convert
from mlxgen.plugins.metal.record import Recording
from mlxgen.plugins.metal.records import Call, Kernel


class Kept(NamedTuple):
    """A call with its arrays."""

    kernel: Kernel
    call: Call
    inputs: Sequence[Any]
    outputs: Sequence[mx.array]


class Keeping(Recording):
    """A recording that keeps inputs and outputs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kept: list[Kept] = []

    def note(self, kernel: Kernel, given: dict[str, Any], outputs: Sequence[mx.array]) -> Call:
        call = super().note(kernel, given, outputs)
        self.kept.append(Kept(kernel, call, given["inputs"], outputs))
        return call


def converted(folder: Path) -> Mapping[tuple[Kernel, Call], tuple[Entry, int]]:
    """Return the entry of each call without its elements, and the call's position in it."""
    read = map(records.read, folder.glob("*.json"))
    names, found = Names(), {}
    for record in sorted(read, key=lambda record: (record.kernel.name, record.kernel.file)):
        for entry in convert(record, names):
            if isinstance(entry, Entry):
                for i, call in enumerate(entry.calls):
                    found[record.kernel, call.plain] = entry, i
    return found


def built(file: Path, patch: pytest.MonkeyPatch, names: Collection[str]) -> ModuleType:
    """Build operators of a file so that their Metal kernels run on the CPU."""
    diags = Diagnostics()
    settings = operators.settings_of(None, file, diags)
    assert settings is not None
    settings = settings._replace(languages=(), mlx=operators.installed_mlx())
    document, sources = operators.read(settings, diags)
    assert document is not None
    found = chosen(settings, document, sources, names)
    assert diags.ok, diags.render_text()
    package = build(found, True, False, diags)
    patch.setenv("MLXGEN_METAL_EMULATION", "1")
    patch.setenv("MLXGEN_METAL_LIBRARY", str(next(package.glob("_ext.*so"))))
    patch.setattr(plugin, "_loaded", [])
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package.name}.")]:
        del sys.modules[name]  # of an earlier build of the same name
    return imported(package.name, package)


def same(module: ModuleType, kept: Kept, entry: Entry, position: int) -> str:
    """Return the difference between an operator and the kernel that it was imported from, if any.

    Numbers are compared bitwise; all NaN are equal.
    """
    named = dict(zip(entry.inputs, kept.inputs, strict=True))
    more = {name: numbers[position] for name, numbers in entry.asked.items()}
    result = getattr(module, entry.name)(**named, **more)
    found = [result] if isinstance(result, mx.array) else list(result)
    mx.eval(found)
    launched, errors = plugin.report()
    if errors or launched.total() != 1:
        return errors[0] if errors else f"{launched.total()} launches"
    for ours, theirs in zip(found, kept.outputs, strict=True):
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            return f"{ours.dtype} {ours.shape}, not {theirs.dtype} {theirs.shape}"
        wide = mx.float32 if ours.dtype == mx.bfloat16 else ours.dtype
        a, b = np.array(ours.astype(wide)), np.array(theirs.astype(wide))
        if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            return "other numbers"
    return ""
