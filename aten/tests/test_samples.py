"""Each operator of mlx_aten on torch's recorded samples: results, gradients, compile and vmap."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
import report
from comparing import close, listed, to_mlx, to_numpy
from samples import SAMPLES, Sample, load

#: what the samples may have together
LIMIT = 20_000_000
ROWS, COUNTS = report.read()


@pytest.fixture(autouse=True)
def on_the_cpu() -> Any:
    """Torch's results are those of a CPU."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@pytest.mark.parametrize("name", report.allowed())
def test_operator(name: str) -> None:
    pytest.importorskip("mlx_aten")
    row = ROWS[name]
    wrong, right = [], []
    for index, sample in enumerate(load(name)):
        problem = report.problem(name, sample)
        if problem and not row.leaves_out(index):
            wrong.append(f"#{index} {sample.overload} ({sample.origin}): {problem}")
        if not problem and row.leaves_out(index):
            right.append(index)
    assert not wrong, "\n".join([f"{len(wrong)} samples are wrong:", *wrong[:5]])
    assert not right, f"right, although report.yaml leaves them out: {right}"


@pytest.mark.parametrize("name", report.allowed())
def test_compiled(name: str) -> None:
    package = pytest.importorskip("mlx_aten")
    seen = set()
    for index, sample in enumerate(load(name)):
        if sample.overload in seen or sample.random or ROWS[name].leaves_out(index):
            continue
        seen.add(sample.overload)
        compare_compiled(sample, getattr(package, name))


def compare_compiled(sample: Sample, function: Any) -> None:
    """Compare the compiled function with the function."""
    args, kwargs = to_mlx(sample.args), {key: to_mlx(v) for key, v in sample.kwargs.items()}
    places = [i for i, value in enumerate(args) if isinstance(value, mx.array)]

    def of(*arrays: mx.array) -> list[mx.array]:
        new = list(args)
        for place, array in zip(places, arrays, strict=False):
            new[place] = array
        return listed(function(*new, **kwargs))

    arrays = [args[place] for place in places]
    for plain, compiled in zip(of(*arrays), mx.compile(of)(*arrays), strict=False):
        assert plain.dtype == compiled.dtype
        close(to_numpy(compiled), to_numpy(plain), (1e-5, 1e-5), "compiled")


def test_every_name_has_a_row() -> None:
    assert list(ROWS) == report.allowed()


def test_every_status_is_known() -> None:
    assert {row.status for row in ROWS.values()} <= set(report.STATUSES)


@pytest.mark.parametrize("name", report.allowed())
def test_what_is_left_out_has_a_reason(name: str) -> None:
    row = ROWS[name]
    assert row.status == "right" or row.reason
    assert (row.status == "right") == (
        not row.left_out and not row.all_left_out and bool(load(name))
    )


def test_the_counts_are_right() -> None:
    assert report.counts(ROWS) == COUNTS


def test_the_page_is_up_to_date() -> None:
    assert report.PAGE.read_text() == report.page(ROWS), "run aten/tests/report.py --update"


def test_the_samples_are_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLES.iterdir()) < LIMIT
