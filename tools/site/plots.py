"""Plots of elementwise operators and their gradients, for the operators' pages.

The build of the site draws them with mlxops itself, over the ranges of the entries' samples. Each
plot is SVG inside the page, so that its text has the color of the page's text, light or dark.
"""

from __future__ import annotations

import io
import json
import re
from contextlib import suppress
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import mlx.core as mx
import mlxops
import numpy as np
import yaml

from mlxgen.testing.cases import Case, SampleArray, Subject

TEXT = "#010203"  # replaced by the color of the page's text
COLORS = ("#2f7ed8", "#d9730d", "#1a9850", "#b04fc4")  # 3:1 or more against white and black
STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # included in matplotlib
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
} | {f"{name}color": TEXT for name in ("text.", "axes.edge", "axes.label", "xtick.", "ytick.")}


def drawable(*entries: Path) -> dict[str, list[Subject]]:
    """Return the samples of elementwise operators, by name in Python.

    Args:
        entries: The YAML files, for the samples.
    """
    samples = {str(entry.get("name")): entry.get("samples") for entry in _load(*entries)}
    ops = json.loads(files("mlxops").joinpath("ops.json").read_text(encoding="utf-8"))["operators"]
    return {found[0].path: found for op in ops if (found := _subjects(op, samples))}


def figure(subjects: list[Subject]) -> str:
    """Plot the function and its derivatives along the last argument, as Markdown with HTML.

    The plot covers the range of the first sample. If other samples are below this range, the plot
    extends below it by the same distance.

    Args:
        subjects: The samples of an elementwise operator.
    """
    matplotlib.use("Agg")
    with mx.stream(mx.cpu), matplotlib.rc_context(STYLE), np.errstate(all="ignore"):
        return f"```{{raw}} html\n{_html(subjects)}\n```"


def _load(*paths: Path) -> list[dict[str, Any]]:
    return [entry for path in paths for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]


def _subjects(op: dict[str, Any], samples: dict[str, Any]) -> list[Subject]:
    """Return the samples of an elementwise operator; an empty list for other operators."""
    path = ".".join(filter(None, (op["module"], op["python_name"])))
    if "internal" in op["tags"]:
        return []
    given = samples.get(op["name"]) or {}  # without the key `name`: the default samples
    function = attrgetter(path)(mlxops)
    cases = [Case(function, sample) for sample in (given if isinstance(given, list) else [given])]
    subjects = [Subject(mlxops, op, case, i) for i, case in enumerate(cases)]
    return subjects if subjects[0].is_elementwise else []


def _html(subjects: list[Subject]) -> str:
    subject = subjects[0]
    *others, slot = subject.slots
    lowest = min(s.slots[-1].low for s in subjects if s.slots[-1].name == slot.name)
    low, high = max(lowest, 2 * slot.low - slot.high), slot.high
    if others and slot.values is not None:
        low, high = low - 1, high + 1
    x = np.linspace(low, high, 401)
    name = subject.op["python_name"]
    values = curves(subject, x)
    panels = [_panel(name, slot.name, x, values)]
    for i in subject.argnums():
        title = f"\N{PARTIAL DIFFERENTIAL} {name} / \N{PARTIAL DIFFERENTIAL}{subject.slots[i].name}"
        with suppress(ValueError):  # a part of the composition may lack a derivative
            panels.append(_panel(title, slot.name, x, curves(subject, x, i)))
    key = [
        f'<span style="color: {color}">\N{HORIZONTAL BAR}</span> {label}'
        for color, label in zip(COLORS, values, strict=False)
    ]
    legend = f'<p class="key">{" &ensp; ".join(key)}</p>' if len(key) > 1 else ""
    return f'{legend}<div class="plots">{"".join(panels)}</div>'


def curves(subject: Subject, x: np.ndarray, argnum: int | None = None) -> dict[str, np.ndarray]:
    """Compute the operator along its last argument, or one of its derivatives.

    Args:
        subject: A sample of an elementwise operator.
        x: Values of the last argument.
        argnum: The argument of the derivative; None for the operator.

    Returns:
        Curves by name, one for each of three settings of the other arguments, or for each output.
    """
    others = subject.slots[:-1]
    settings = [_settings(slot)[:: -1 if i % 2 else 1] for i, slot in enumerate(others)]
    found = {}
    for setting in zip(*settings, strict=True) if others else [()]:
        arrays = [mx.array(np.full_like(x, v), dtype=subject.dtype) for v in setting]
        arrays.append(mx.array(x, dtype=subject.dtype))
        name = ", ".join(f"{s.name} = {v:.3g}" for s, v in zip(others, setting, strict=True))
        for i, output in enumerate(subject.op["outputs"]):
            y = _values(subject, i, arrays, argnum)
            found[name or output["name"]] = np.array(y.astype(mx.float64))
    return found


def _values(subject: Subject, output: int, at: list[mx.array], argnum: int | None) -> mx.array:
    """Compute one output, or one of its derivatives."""

    def value(*arrays: mx.array) -> mx.array:
        return subject.function(*arrays)[output]

    if argnum is None:
        return value(*at)
    slope: mx.array = mx.grad(lambda *arrays: value(*arrays).sum(), argnum)(*at)
    return slope


def _settings(slot: SampleArray) -> np.ndarray:
    """Return three numbers in an argument's range."""
    return np.asarray(np.linspace(slot.low, slot.high, 7)[1::2])


def _panel(title: str, along: str, x: np.ndarray, ys: dict[str, np.ndarray]) -> str:
    """Draw one pair of axes, as an SVG element."""
    finite = np.concatenate([y[np.isfinite(y)] for y in ys.values()])
    least, low, high, most = np.quantile(finite, [0, 0.1, 0.9, 1])
    margin = high - low or 1.0
    if most - least <= 6 * margin:
        low, high = least, most
    else:  # poles, which would flatten the rest
        low, high = max(low - margin, least), min(high + margin, most)
    drawing, axes = plt.subplots(figsize=(3.3, 2.1), layout="constrained")
    for y, color in zip(ys.values(), COLORS, strict=False):
        seen = (y >= low - margin) & (y <= high + margin)
        axes.plot(x, np.where(seen, y, np.nan), color=color, linewidth=1.6)
    if high > low:
        axes.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(along)
    axes.grid(color=TEXT, alpha=0.15, linewidth=0.6)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title}):  # the same ids in every run
        drawing.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    plt.close(drawing)
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(?<= d=")[^"]+', _rounded, re.sub(r"\s*\n\s*", " ", svg))
    label = f'<svg role="img" aria-label="{title} along {along}"'
    return svg.replace("<svg", label, 1).replace(TEXT, "currentColor")


def _rounded(path: re.Match[str]) -> str:
    """Round coordinates to two digits, which halves the size of a page."""
    return re.sub(r"(\.\d\d)\d+", r"\1", path[0])
