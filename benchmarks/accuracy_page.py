"""Writes docs/accuracy.md, the results of ``python -m benchmarks.accuracy --write``, with plots."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # writes files without a window

import matplotlib.pyplot as plt
import numpy as np
from mlxops._build_info import COMPILER
from PIL import Image
from special.records import RECORDS
from special.reference import RELATIVE, ULPS

from . import derivatives
from .errors import Measured, compared, number
from .measure import machine

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
FLOOR, CEILING = 0.03, 1e7  # limits of the plots; values beyond are drawn at the edge
BINS = 160

INTRODUCTION = f"""# Accuracy of mlxops.special

`make accuracy ACCURACY_ARGS=--write` writes this page. It compares every function with mpmath at 40
digits. Arguments are exact in the dtype: spread over the range, close to poles and zeros, where the
method changes, subnormal, and near overflow. `tests/special/reference_*.py` defines them, and the
tests use fewer of the same points.

- **Errors** are in ulp (units in the last place) of the exact result. A correctly rounded result
  has an error of at most 0.5.
- **Limits** are {ULPS:g} ulp in float32 and a relative error of {RELATIVE:g} in float64 (450 to 900
  ulp). In a region marked *conditioned*, the limit is the change of the result when the argument
  changes by its last digit: no function of a rounded argument can be more accurate.
- **float16 and bfloat16** are computed in float32 and rounded once, so their error is little more
  than 0.5 ulp.
- **Derivatives**, the first and second, are measured in [Derivatives](#derivatives), which also
  lists where they are less accurate than the tests' limits or NaN.
- **SciPy** is the error of the same function in the same dtype at the same points. *wrong* marks,
  for example, an infinity where the result is finite; *none* marks a function that SciPy lacks.

The numbers are from one compiler and one processor. Other compilers fuse different products and
sums, and arm64 evaluates polynomials in another order, so results differ in their last digits
within the same limits. The tests have been run with g++ 12 and clang 19 on x86-64, and with clang
19 for Linux on arm64 under QEMU (`make arm64`). They have not been run on a Mac; the workflow in
`.github/workflows` runs them there with Apple's clang.
"""


def write_page(items: Sequence[Measured], page: Path = PAGE) -> None:
    """Write the page, and a plot per function to the folder with the page's name.

    The section on derivatives, which takes another run, stays as it is.
    """
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    by_function: dict[str, list[Measured]] = {}
    for item in items:
        by_function.setdefault(item.task.record, []).append(item)
    metal = any(item.metal is not None for item in items)
    versions = machine()
    parts = [
        INTRODUCTION,
        "Measured with "
        + ", ".join(f"{k} {versions[k]}" for k in ("Python", "mlx", "scipy"))
        + f", on {versions['system']}, mlxops compiled by {COMPILER}.\n",
        "## Summary\n\n" + _summary(by_function, metal),
    ]
    worse = [item for item in items if compared(item)]
    if worse:
        parts.append(
            "## Less accurate than SciPy\n\n"
            "Regions with an error of more than 4 ulp and more than 4 times SciPy's:\n\n"
            "| function | region | dtype | ulp | SciPy | why |\n|---|---|---|---|---|---|\n"
            + "\n".join(
                f"| {_code(i)} | {i.task.region} | {i.task.format} | {number(i.worst()[0])} | "
                f"{_largest(i.scipy)} | {compared(i)} |"
                for i in worse
            )
            + "\n"
        )
    old_page = page.read_text(encoding="utf-8") if page.exists() else ""
    parts.append(derivatives.section_of(old_page) or derivatives.section([]))
    for name, group in by_function.items():
        picture = folder / f"{re.sub(r'[^a-z0-9_]+', '_', name.lower()).strip('_')}.png"
        plot(name, group, picture)
        parts.append(
            f"## {name}\n\n![errors of {name}]({folder.name}/{picture.name})\n\n"
            + _regions(group, metal)
        )
    page.write_text("\n".join(parts), encoding="utf-8")


def write_derivatives(rows: Sequence[derivatives.Row], page: Path = PAGE) -> None:
    """Write the page's section on derivatives, and nothing else."""
    text = page.read_text(encoding="utf-8")
    old = derivatives.section_of(text)
    if not old:
        raise ValueError(f"{page} must contain the section '{derivatives.HEADING}'")
    page.write_text(text.replace(old, derivatives.section(rows)), encoding="utf-8")


def _code(item: Measured) -> str:
    return f"`{item.task.record}`"


def _largest(errors: np.ndarray | None) -> str:
    return "none" if errors is None else number(float(errors.max(initial=0)))


def _summary(by_function: dict[str, list[Measured]], metal: bool) -> str:
    """Return one row per function: the largest errors; float64 without and with conditioning."""
    columns = ["float32", "SciPy", "float64", "SciPy", "conditioned", "float16", "bfloat16"]
    columns += ["Metal float32 (emulated)"] * metal
    lines = [
        "| function | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, group in by_function.items():
        cells = []
        for format in ("float32", "float64"):
            of = [
                i
                for i in group
                if i.task.format == format and not (format == "float64" and _hard(i))
            ]
            cells.append(number(max((i.worst()[0] for i in of), default=0)))
            theirs = [i.scipy.max(initial=0) for i in of if i.scipy is not None]
            cells.append(number(float(max(theirs))) if theirs else "none")
        hard = [i.worst()[0] for i in group if i.task.format == "float64" and _hard(i)]
        cells.append(number(max(hard)) if hard else "")
        for format in ("float16", "bfloat16"):
            cells.append(number(max(i.worst()[0] for i in group if i.task.format == format)))
        if metal:
            of = [i.metal for i in group if i.metal is not None and i.task.format == "float32"]
            cells.append(number(float(max(e.max(initial=0) for e in of))) if of else "")
        anchor = re.sub(r"[^a-z0-9_-]", "", name.lower())
        lines.append(f"| [{name}](#{anchor}) | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _hard(item: Measured) -> bool:
    return bool(RECORDS[item.task.record].regions[item.task.region].conditioned)


def _regions(group: Sequence[Measured], metal: bool) -> str:
    """Return one row per region and dtype; the two half precisions are alike and share a row."""
    lines = [
        "| region | dtype | points | ulp | at | SciPy |" + " Metal |" * metal,
        "|---|---|---|---|---|---|" + "---|" * metal,
    ]
    for item in group:
        if item.task.format not in ("float32", "float64"):
            continue
        marks = " (conditioned)" if _hard(item) and item.task.format == "float64" else ""
        error, at = item.worst()
        row = [item.task.region + marks, item.task.format, f"{len(item.ours):,}", number(error), at]
        row.append(_largest(item.scipy))
        if metal:
            row.append("" if item.metal is None else number(float(item.metal.max(initial=0))))
        lines.append("| " + " | ".join(row) + " |")
    reasons = {
        f"*{name}*: {reason}."
        for name, region in RECORDS[group[0].task.record].regions.items()
        for reason in (region.because, region.conditioned)
        if reason
    }
    return "\n".join(lines) + "\n" + "".join(f"\n{reason}\n" for reason in sorted(reasons))


def plot(name: str, group: Sequence[Measured], path: Path) -> None:
    """Plot the largest error of neighboring arguments, ours and SciPy's, in float32 and float64."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained", sharey=True)
    for axis, format in zip(axes, ("float32", "float64"), strict=True):
        items = [i for i in group if i.task.format == format and len(i.ours)]
        scale = Scale(np.concatenate([i.points[-1] for i in items]))
        axis.axhline(0.5, color="0.8", lw=0.8)
        for errors, colour, label in (("scipy", "C1", "SciPy"), ("ours", "C0", "mlxops")):
            pairs = [(i.points[-1], getattr(i, errors)) for i in items]
            pairs = [(x, e) for x, e in pairs if e is not None]
            if pairs:
                x, e = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
                x, e = maxima(scale.place(x), np.clip(e, FLOOR, CEILING))
                axis.plot(x, e, ".", color=colour, ms=2.5, label=label)
        axis.set_xticks(*scale.ticks())
        axis.set_yscale("log")
        axis.set_ylim(FLOOR / 1.5, CEILING * 1.5)
        axis.set_title(f"{name}, {format}", fontsize=9)
        axis.tick_params(labelsize=7)
    axes[0].set_ylabel("ulp", fontsize=8)
    axes[1].legend(frameon=False, fontsize=7, loc="upper right")
    data = io.BytesIO()
    figure.savefig(data, dpi=85)
    plt.close(figure)
    # A small palette saves two thirds of the bytes.
    Image.open(data).convert("RGB").quantize(32, dither=Image.Dither.NONE).save(path, optimize=True)


def maxima(place: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest error in each of many bins along the axis."""
    bins = ((place - place.min()) / (np.ptp(place) or 1) * BINS).astype(int)
    order = np.lexsort((errors, bins))
    last = order[np.append(np.diff(bins[order]) > 0, True)]
    return place[last], errors[last]


class Scale:
    """Positions on an axis: linear for a small range, else roots of decades, widest around 1."""

    def __init__(self, x: np.ndarray) -> None:
        sizes = np.abs(x[x != 0])
        self.linear = not len(sizes) or (sizes.max() <= 2000 and sizes.min() >= 1e-2)
        self.low, self.high = x.min(), x.max()
        self.exponents = np.log10([sizes.min(), sizes.max()]) if len(sizes) else np.zeros(2)

    def place(self, x: np.ndarray) -> np.ndarray:
        """Return the positions of arguments."""
        if self.linear:
            return x
        exponent = np.log10(np.where(x == 0, 1, np.abs(x)))
        from_zero = _root(exponent) - _root(self.exponents[0]) + 0.3
        return np.where(x == 0, 0, np.sign(x) * from_zero)

    def ticks(self) -> tuple[np.ndarray, list[str]]:
        """Return the positions and labels of ticks."""
        if self.linear:
            places = plt.MaxNLocator(7).tick_values(self.low, self.high)
            return places, [f"{x:g}" for x in places]
        low, high = self.exponents
        decades = [
            d for d in (0, -100, 100, -10, 10, -300, 300, -3, 3, -30, 30) if low <= d <= high
        ]
        signs = [s for s in (-1, 1) if (self.low < 0 if s < 0 else self.high > 0)]
        ends = self.place(np.array([self.low, self.high]))
        places: list[float] = []
        labels: list[str] = []
        for d in decades:
            for s in signs:
                place = float(self.place(np.array([s * 10.0**d]))[0])
                # Less important ticks are added if there is enough space.
                if all(abs(place - other) > 0.09 * (ends[1] - ends[0]) for other in places):
                    places.append(place)
                    labels.append(f"{'-' if s < 0 else ''}1e{d}" if d else f"{s}")
        return np.array(places), labels


def _root(exponent: np.ndarray | float) -> np.ndarray:
    """Return the root of decades, so that 600 of them leave enough space for those around 1."""
    return np.cbrt(exponent)
