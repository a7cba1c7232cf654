"""Each operator of mlx_aten on torch's recorded samples: results, gradients, vmap and compile."""

from __future__ import annotations

import io
import re
from typing import Any

import mlx.core as mx
import mlx_aten
import numpy as np
import pytest
import report
import yaml
from comparing import close, listed, to_mlx, to_numpy
from samples import SAMPLES, Sample, arrays_of, load

#: what the samples may have together
LIMIT = 30_000_000
ROWS, COUNTS = report.read()
FLOATS = (mx.float16, mx.bfloat16, mx.float32, mx.complex64)
#: by overload, the forms of its function
FORMS = {
    entry["signature"].partition("(")[0]: entry.get("variants", ())
    for entry in yaml.load((report.ATEN / "aten.yaml").read_text(), yaml.CSafeLoader)
}
#: MLX has no vmap of its LU and QR decompositions, nor of these arguments.
NO_VMAP = {
    **dict.fromkeys(["histogram"], "Cannot vmap over the sorted sequence"),
    "_convert_indices_from_coo_to_csr": "Cannot vmap over the sorted sequence",
    "_convert_indices_from_csr_to_coo": "Cannot vmap over the sorted sequence",
    **dict.fromkeys(["linalg_qr", "qr"], "Not implemented for QRF"),
    "linalg_lstsq": "Not implemented for QRF",
    **dict.fromkeys(["_linalg_solve_ex", "linalg_inv_ex", "linalg_lu"], "for LUF"),
    **dict.fromkeys(["linalg_lu_factor", "linalg_lu_factor_ex", "linalg_solve_ex"], "for LUF"),
    **dict.fromkeys(["slow_conv3d", "slow_conv3d_forward", "slow_conv_transpose3d"], "groups != 1"),
}


@pytest.fixture(autouse=True)
def on_the_cpu() -> Any:
    """Torch's results are those of a CPU."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@pytest.mark.parametrize("name", report.names())
def test_operator(name: str) -> None:
    row = ROWS[name]
    wrong, right = [], []
    for index, sample in enumerate(load(name)):
        if sample.identity in row.ends:
            continue
        problem = report.problem(name, sample)
        if problem and not row.leaves_out(sample):
            wrong.append(f"#{index} {sample.overload} ({sample.origin}): {problem}")
        if not problem and row.leaves_out(sample):
            right.append(sample.identity)
    assert not wrong, "\n".join([f"{len(wrong)} samples are wrong:", *wrong[:5]])
    # results for singular matrices differ from run to run, so that one of them may be right
    unstable = set(row.left_out) - set(right)
    assert not right or unstable, f"right, although report.yaml leaves them out: {right}"


@pytest.mark.parametrize("name", report.allowed())
def test_vmap(name: str) -> None:
    lacking = False
    for sample in firsts(name, of_each_dtype=True):
        if not any(array.shape for array in arrays_of(sample)):
            continue
        of, arrays = function_of_arrays(name, sample)
        twice = [mx.stack([array] * 2) for array in arrays]
        try:
            found = mx.vmap(of)(*twice)
            mx.eval(found)
        except ValueError as error:  # for some dtypes, MLX's function is not called
            assert name in NO_VMAP and re.search(NO_VMAP[name], str(error)), error
            lacking = True
            continue
        for plain, mapped in zip(of(*arrays), found, strict=True):
            assert mapped.dtype == plain.dtype
            both = np.stack([to_numpy(plain)] * 2)
            close(to_numpy(mapped), both, (1e-4, 1e-5), f"{sample.overload} under vmap")
    assert lacking == (name in NO_VMAP)


@pytest.mark.parametrize("name", report.allowed())
def test_traced(name: str) -> None:
    """Nothing is evaluated while mx.compile traces, and the results keep their forms."""
    for sample in firsts(name):
        of, arrays = function_of_arrays(name, sample)
        for plain, traced in zip(of(*arrays), mx.compile(of)(*arrays), strict=True):
            assert (plain.shape, plain.dtype) == (traced.shape, traced.dtype)


@pytest.mark.parametrize("name", report.names())
def test_forms(name: str) -> None:
    """Results in ``out`` and in place are those of the function."""
    for sample in firsts(name):
        function, forms = getattr(mlx_aten, name), FORMS.get(sample.overload, ())
        args, kwargs = to_mlx(sample.args), {key: to_mlx(v) for key, v in sample.kwargs.items()}
        expected = function(*args, **kwargs)
        if not isinstance(expected, mx.array):
            continue
        found = []
        if "out" in forms:
            found.append(mx.zeros(expected.shape, expected.dtype))
            found.append(function(*args, **kwargs, out=found[0]))
        first = args[0] if args else None
        same = (getattr(first, key, None) == getattr(expected, key) for key in ("shape", "dtype"))
        if "inplace" in forms and all(same):
            found.append(mx.array(first))
            found.append(getattr(mlx_aten, f"{name}_")(found[-1], *args[1:], **kwargs))
        for result in found:
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
            assert mx.array_equal(result, expected, equal_nan=expected.dtype in FLOATS)


# MLX compiles each of these graphs with the C++ compiler, which takes a second.
@pytest.mark.parametrize("name", report.allowed()[::50])
def test_compiled(name: str) -> None:
    for sample in firsts(name)[:1]:
        of, arrays = function_of_arrays(name, sample)
        for plain, compiled in zip(of(*arrays), mx.compile(of)(*arrays), strict=True):
            close(to_numpy(compiled), to_numpy(plain), (1e-5, 1e-5), "compiled")


def firsts(name: str, of_each_dtype: bool = False) -> list[Sample]:
    """Return the first sample of each overload, or of each dtype, that is right and not random."""
    chosen: dict[Any, Sample] = {}
    for sample in load(name):
        dtypes = [array.dtype for array in arrays_of(sample)] if of_each_dtype else []
        random = sample.random or name in report.RANDOM
        if not (random or sample.raises or ROWS[name].leaves_out(sample)):
            chosen.setdefault((sample.overload, *dtypes[:1]), sample)
    return list(chosen.values())


def function_of_arrays(name: str, sample: Sample) -> tuple[Any, list[mx.array]]:
    """Return a call as a function of its positional arrays, also in lists, and these arrays."""
    function = getattr(mlx_aten, name)
    args, kwargs = to_mlx(sample.args), {key: to_mlx(v) for key, v in sample.kwargs.items()}
    flat = [part for value in args for part in (value if isinstance(value, list) else [value])]

    def of(*arrays: mx.array) -> list[mx.array]:
        rest = iter(arrays)

        def replaced(value: Any) -> Any:
            if isinstance(value, list):
                return [replaced(part) for part in value]
            return next(rest) if isinstance(value, mx.array) else value

        return listed(function(*replaced(args), **kwargs))

    return of, [value for value in flat if isinstance(value, mx.array)]


def test_every_name_has_a_row() -> None:
    assert list(ROWS) == report.names()


def test_every_status_is_known() -> None:
    assert {row.status for row in ROWS.values()} <= set(report.STATUSES)


@pytest.mark.parametrize("name", report.names())
def test_what_is_left_out_has_a_reason(name: str) -> None:
    row = ROWS[name]
    assert row.status == "right" or row.reason or row.differs
    assert (row.status == "right") == (
        not row.left_out and not row.all_left_out and bool(load(name))
    )


def test_the_counts_are_right() -> None:
    assert report.counts(ROWS) == COUNTS


def test_the_page_is_up_to_date() -> None:
    assert report.PAGE.read_text() == report.page(ROWS), "run aten/tests/report.py --update"


def test_the_samples_are_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLES.iterdir()) < LIMIT


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "all", "any"])
def test_reductions_of_nothing(name: str) -> None:
    """MLX's own read beyond a list, and may hang: they are not in the graph."""
    result = getattr(mlx_aten, name)(mx.zeros((5, 0)), -1)
    graph = io.StringIO()
    mx.export_to_dot(graph, result)
    assert not re.search("Reduce|Sum|Prod|And|Or", graph.getvalue())
    expected = np.array(getattr(np, name)(np.zeros((5, 0)), -1))
    np.testing.assert_array_equal(np.array(result), expected)
