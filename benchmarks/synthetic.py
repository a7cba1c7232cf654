"""Synthetic projects of any size: an ``mlx_ops.yaml`` of mixed entries, and the kernels.

Entry ``i`` depends on ``i`` only, so that a smaller project is the beginning of a larger one. Of
twenty entries, five bind an MLX function, seven are composites (one to six steps, some of which
call others), four are elementwise kernels with a gradient, two have two outputs, and two a shape
rule. Every kernel is a separate function, for the CPU and for Metal; half of the entries are
documented.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

KERNELS_PER_FILE = 16

PYPROJECT = """\
[project]
name = "{name}"
version = "1.0"
dependencies = ["mlx=={mlx}"]

[build-system]
requires = ["mlxgen"]
build-backend = "mlxgen.build"
"""

UNARY = (
    "exp",
    "log1p",
    "tanh",
    "sigmoid",
    "abs",
    "square",
    "sin",
    "cos",
    "rsqrt",
    "erf",
    "negative",
)
BINARY = ("maximum", "minimum", "multiply", "subtract", "logaddexp")
NOUNS = ("values", "scores", "weights", "tokens", "features", "angles", "counts", "residuals")


@dataclass(frozen=True)
class Entry:
    """One operator: its YAML and its kernels, if any."""

    yaml: str
    cpu: str = ""
    metal: str = ""


def entry(i: int) -> Entry:
    """Return entry number ``i``."""
    random = Random(i)
    kind = "bcebcosbcecebcsbceoc"[i % 20]
    make = {
        "b": _bind,
        "c": _composite,
        "e": _elementwise,
        "o": _two_outputs,
        "s": _shape_rule,
    }
    made = make[kind](i, random)
    return Entry(made.yaml + _documentation(i, random), made.cpu, made.metal)


def _documentation(i: int, random: Random) -> str:
    lines = []
    if random.random() < 0.5:
        noun = random.choice(NOUNS)
        lines += [f"  doc: Combines {noun} with {random.choice(NOUNS)}, as number {i} of its kind."]
        if random.random() < 0.5:
            lines += ["  args:", f"    x: The {noun}, of any shape."]
    if random.random() < 0.4:
        lines += [f"  tags: [{random.choice(('nn', 'special', 'fused', 'indexing'))}]"]
    if random.random() < 0.1:
        lines += [f"  module: {random.choice(('nn', 'special', 'signal.windows'))}"]
    return "".join(line + "\n" for line in lines)


def _bind(i: int, random: Random) -> Entry:
    if random.random() < 0.5:
        function = random.choice(UNARY)
        signature = f"array bound_{i}(const array& x)"
    else:
        function = random.choice(BINARY)
        signature = f"bound_{i}(x: array, y: array) -> array"
    return Entry(f'- name: bound_{i}\n  signature: "{signature}"\n  cpp: mlx::core::{function}\n')


def _steps(random: Random, count: int) -> str:
    """Return an expression in x, y and alpha."""
    text = "x"
    for _ in range(count):
        form = random.choice(
            (
                "{f}({t})",
                "alpha * {t}",
                "({t} + y)",
                "{g}({t}, y)",
                "where({t} > 0, {t2}, {f}(y))",
                "({t} - mean(y, axis=-1, keepdims=True))",
            )
        )
        text = form.format(
            f=random.choice(UNARY), g=random.choice(BINARY), t=text, t2=random.choice("xy")
        )
    return text


def _composite(i: int, random: Random) -> Entry:
    formula = _steps(random, random.randint(1, 6))
    for name in ("y", "alpha"):  # unused arguments cause warnings
        if not re.search(rf"\b{name}\b", formula):
            formula = f"{name} * ({formula})"
    if i >= 20 and random.random() < 0.3:  # an earlier composite: entries 1, 21, 41, ...
        formula += f" + composed_{20 * random.randrange(i // 20) + 1}(x, y)"
    return Entry(
        f"- name: composed_{i}\n"
        f'  signature: "composed_{i}(array x, array y, *, float alpha=1.5) -> array"\n'
        f'  composite: "{formula}"\n'
    )


def _elementwise(i: int, random: Random) -> Entry:
    a, b = random.randint(1, 9), random.randint(1, 9)
    yaml = (
        f"- name: fused_{i}\n"
        f'  signature: "fused_{i}(array x, array y, float alpha=1, float beta={b}) -> array"\n'
        f"  dispatch: {{cpu: fused_{i}, metal: fused_{i}_metal}}\n"
        f"  grad:\n"
        f"    x: {a} * alpha * y * grad\n"
        f"    y: ({a} * alpha * x + beta * exp(-y) * {b}) * grad\n"
    )
    body = f"{a} * alpha * x * y - {b} * beta * {{exp}}(-y)"
    cpu = (
        f"template <typename T>\nT fused_{i}(T x, T y, T alpha, T beta) {{\n"
        f"  return {body.format(exp='mlxgen::math::exp')};\n}}\n"
    )
    metal = (
        f"template <typename T>\nT fused_{i}_metal(T x, T y, T alpha, T beta) {{\n"
        f"  return {body.format(exp='exp')};\n}}\n"
    )
    return Entry(yaml, cpu, metal)


def _two_outputs(i: int, random: Random) -> Entry:
    a = random.randint(1, 9)
    yaml = (
        f"- name: pair_{i}\n"
        f'  signature: "pair_{i}(x: array, scale: float = 1.0) -> (wave: array, line: array)"\n'
        f"  dispatch:\n"
        f"    cpu: pair_{i}\n"
        f"    metal: pair_{i}_metal\n"
        f"  grad:\n"
        f"    x: scale * grad_wave * cos({a} * x) * {a} + grad_line / scale\n"
    )
    lines = f"  wave = scale * {{sin}}({a} * x);\n  line = x / scale;\n}}}}\n"
    cpu = (
        f"template <typename T>\nvoid pair_{i}(T x, T scale, T& wave, T& line) {{\n"
        + lines.format(sin="mlxgen::math::sin")
    )
    metal = (
        f"template <typename T>\nvoid pair_{i}_metal(T x, T scale, thread T& wave, thread T& line) "
        "{\n" + lines.format(sin="sin")
    )
    return Entry(yaml, cpu, metal)


def _shape_rule(i: int, random: Random) -> Entry:
    k = random.randint(2, 5)
    yaml = (
        f"- name: window_{i}\n"
        f'  signature: "window_{i}(array x, int width={k}, bool mean=False) -> array"\n'
        f"  shape: (*x.shape[:-1], x.shape[-1] // width)\n"
        f"  checks:\n"
        f"    - that: x.ndim > 0 and width > 0\n"
        f"      else: x needs an axis and width must be positive\n"
        f"  dispatch:\n"
        f"    cpu: window_{i}\n"
        f"    metal: {{kernel: window_{i}_metal, grid: [x.size // width], threadgroup: [64]}}\n"
        f"  vmap: batch\n"
        f"  grad:\n"
        f"    x: repeat(grad, width, -1) * (1 / width if mean else 1.0)\n"
        f"  samples:\n"
        f"    x: {{shape: [3, {4 * k}]}}\n"
    )
    cpu = (
        f"template <typename T>\n"
        f"void window_{i}(In<T> x, int width, bool mean, Out<T> out) {{\n"
        f"  for (int64_t k = 0; k < out.size(); ++k) {{\n"
        f"    mlxgen::accum_t<T> sum = 0;\n"
        f"    for (int j = 0; j < width; ++j) {{\n"
        f"      sum += x[k * width + j];\n"
        f"    }}\n"
        f"    out[k] = T(mean ? sum / width : sum);\n"
        f"  }}\n"
        f"}}\n"
    )
    name = f"window_{i}_metal"
    metal = (
        f"template <typename T>\n"
        f"[[kernel]] void {name}(\n"
        f"    device const T* x [[buffer(0)]],\n"
        f"    device T* out [[buffer(1)]],\n"
        f"    constant int& width [[buffer(2)]],\n"
        f"    constant bool& mean [[buffer(3)]],\n"
        f"    uint k [[thread_position_in_grid]]) {{\n"
        f"  float sum = 0;\n"
        f"  for (int j = 0; j < width; ++j) {{\n"
        f"    sum += float(x[k * width + j]);\n"
        f"  }}\n"
        f"  out[k] = T(mean ? sum / width : sum);\n"
        f"}}\n"
    )
    return Entry(yaml, cpu, metal)


def _files(entries: list[Entry]) -> Iterator[tuple[str, str]]:
    """Yield kernel files by path, with several kernels in each."""
    kernels = [e for e in entries if e.cpu]
    for number, first in enumerate(range(0, len(kernels), KERNELS_PER_FILE)):
        group = kernels[first : first + KERNELS_PER_FILE]
        cpu = "\n".join(e.cpu for e in group)
        yield (
            f"csrc/kernels_{number}.h",
            '#pragma once\n\n#include "mlxgen/kernel.h"\n#include "mlxgen/simd_math.h"\n\n'
            f"namespace synthetic {{\n\nusing namespace mlxgen;\n\n{cpu}\n"
            "} // namespace synthetic\n",
        )
        metal = "\n".join(e.metal for e in group)
        yield (
            f"kernels/metal/kernels_{number}.metal",
            f"#include <metal_stdlib>\n\nusing namespace metal;\n\n{metal}",
        )


def write_project(folder: Path, count: int, mlx: str) -> Path:
    """Write the project ``synthetic`` of ``count`` operators; return the path of its YAML file."""
    entries = [entry(i) for i in range(count)]
    yaml = folder / "mlx_ops.yaml"
    files = {
        "pyproject.toml": PYPROJECT.format(name="synthetic", mlx=mlx),
        "mlx_ops.yaml": "\n".join(e.yaml for e in entries),
        "python/synthetic/__init__.py": "from ._load import *\n",
        **dict(_files(entries)),
    }
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return yaml
