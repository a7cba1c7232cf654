"""Imported kernels of many kinds: the recorded calls bitwise, other calls against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from emulated import Keeping, built, converted, same
from kernel_kinds import KINDS

from mlxgen.__main__ import cli
from mlxgen.metal import emulate
from mlxgen.plugins.metal.convert import Entry
from mlxgen.plugins.metal.records import Call, Constant

# The formulas of the programs, from two or three calls.
LAUNCHES = {
    "softmax_rows": ([32, "x.size // H"], [32]),
    "layer_norm": (["min(H, 256)", "B"], ["min(H, 256)"]),
    "rope": (["K // 2", "D", "B * H"], ["K // 2"]),
    "gather_rows": (["256 * ((out.size + 255) // 256)"], [256]),
    "scatter_bins": (["H", "B"], ["H"]),
    "top_k": (["B"], [1]),
    "dequantize": (["out.shape[1]", "B"], [32]),
    "conv1d": (["D", "out.shape[1]", "B"], ["D"]),
    "segment_max": (["out.size"], ["out.size"]),
    "attention_scores": (["N", "K", "B * H"], [32]),
    "block_scale": (["sums.size"], [1]),
}
AXES = {
    "softmax_rows": {"x, out": "... B H"},
    "layer_norm": {"x, y": "B H", "w, b": "H", "mean, scale": "B"},
    "scatter_bins": {"x": "B H", "ids": "B", "out": "out_size H"},
    "top_k": {"x": "B H", "values, ids": "B k"},
    "dequantize": {"w": "B H", "scales, biases": "B D", "out": "B 32*H//bits"},
    "conv1d": {"x": "B H D", "w": "D K", "out": "B H-K+1 D"},
    "segment_max": {"x": "B", "offsets": "H", "out": "H-1"},
    "block_scale": {"x, y": "B", "sums": "(B+block-1)//block"},
}
TEMPLATES = {
    "top_k": {"K": ("k", [2, 4, 8])},
    "dequantize": {"BITS": ("bits", [4, 8]), "GROUP": ("(32 * H // bits) // D", [32, 64])},
    "attention_scores": {"D": ("L", [8, 16]), "GQA": ("H // M", [2, 4, 6])},
    "block_scale": {"BLOCK": ("block", [16, 64])},
}


def numbers(value: Any) -> Any:
    """Return an array for NumPy, in float32 if it has half precision."""
    if not isinstance(value, mx.array):
        return value
    return np.array(value.astype(mx.float32) if value.dtype == mx.float16 else value)


def asked(entry: Entry, call: Call) -> dict[str, int]:
    """Return the further arguments: numbers of the template, or an axis of the output."""
    template = {a.name.lower(): int(a.value) for a in call.template if isinstance(a, Constant)}
    return {name: template.get(name, call.outputs[0].shape[0]) for name in entry.asked}


@pytest.mark.extended
def test_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with emulate(), Keeping(tmp_path / "calls") as recording:
        for kind in KINDS.values():
            mx.eval([kind.run(*given) for given in kind.recorded])
    output = tmp_path / "ops.yaml"
    given = ["import", "metal_kernel", str(recording.folder), "-o", str(output)]
    assert CliRunner().invoke(cli, given).output == "12 entries for 11 of 11 kernels\n"
    checked = CliRunner().invoke(cli, ["check", str(output)])
    assert checked.output == "12 operators, no errors\n"
    written = {
        entry["signature"].partition("(")[0]: entry for entry in yaml.safe_load(output.read_text())
    }
    for name, (grid, threadgroup) in LAUNCHES.items():
        launch = written[name]["dispatch"]["metal"]
        assert (launch["grid"], launch["threadgroup"]) == (grid, threadgroup)
        template = launch.get("template", {}).items()
        assert {n: (own["of"], own["values"]) for n, own in template} == TEMPLATES.get(name, {})
    assert {name: written[name]["axes"] for name in AXES} == AXES
    assert written["gather_rows"]["strided"] == ["table", "ids"]

    entries = converted(recording.folder)
    module = built(output, monkeypatch, {entry.name for entry, _ in entries.values()})
    for kept in recording.kept:
        assert not same(module, kept, *entries[kept.kernel, kept.call]), kept.kernel.name
    by_name = {entry.name: entry for entry, _ in entries.values()}
    with emulate(), Keeping(tmp_path / "others") as others:
        for name, kind in KINDS.items():
            for arguments in kind.others:
                kind.run(*arguments)
                kept, entry = others.kept[-1], by_name[name]
                found = getattr(module, name)(*kept.inputs, **asked(entry, kept.call))
                outputs = [found] if isinstance(found, mx.array) else found
                for ours, expected in zip(
                    outputs, kind.expected(*map(numbers, arguments)), strict=True
                ):
                    assert ours.shape == expected.shape
                    np.testing.assert_allclose(np.array(ours), expected, rtol=1e-5, atol=1e-5)
