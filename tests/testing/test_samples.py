"""The numbers of the generated checks' arrays: indices, offsets, lengths and masks stay valid.

The operators are Python functions that stand for kernels without guards: each fails if the numbers
of a call are invalid, as far as they are known. In a traced call they are not.
"""

import importlib
import json
import sys

import mlx.core as mx
import numpy as np
import pytest
from testing.test_cases import arg, op

from mlxgen import testing
from mlxgen.testing import cases, to_numpy

SOURCE = """
import mlx.core as mx
import numpy as np

FAILED = []

def _known(*arrays):
    try:
        return [np.array(a) for a in arrays]
    except ValueError:  # traced
        return None

def _require(ok, what):
    if not ok:
        FAILED.append(what)

def _operator(function):  # the gradients of integers are zeros
    def call(**args):
        whole = [k for k, a in args.items() if not mx.issubdtype(a.dtype, mx.floating)]
        return function(**args | {k: mx.stop_gradient(args[k]) for k in whole})
    return call

@_operator
def csr(data, indices, indptr, x):
    if data.shape != indices.shape:
        raise ValueError("[csr] data and indices must have one shape")
    if found := _known(indices, indptr):
        ids, ends = found
        _require((ids >= 0).all() and (ids < x.shape[0]).all(), f"indices {ids} of {x.shape}")
        _require(ends[0] == 0 and (np.diff(ends) >= 0).all(), f"indptr {ends}")
        _require(ends[-1] == data.size, f"indptr {ends} of {data.size}")
    return data * x[0, 0] + indptr.astype(mx.float32).sum() * indices

@_operator
def ctc(logits, labels, input_lengths, label_lengths):
    if labels.shape[0] != logits.shape[1]:
        raise ValueError("[ctc] labels must have a row for each sequence")
    if found := _known(labels, input_lengths, label_lengths):
        ids, times, counts = found
        _require((ids > 0).all() and (ids < logits.shape[2]).all(), f"labels {ids}")
        _require((times <= logits.shape[0]).all(), f"input lengths {times} of {logits.shape}")
        _require((counts <= labels.shape[1]).all(), f"label lengths {counts} of {labels.shape}")
        _require((2 * counts <= times).all(), f"{counts} labels in {times} steps")
    return logits.sum() + labels.sum() + input_lengths.sum() + label_lengths

@_operator
def paged(q, pages, tables, lengths):
    if found := _known(tables, lengths):
        ids, counts = found
        _require((ids >= 0).all() and (ids < pages.shape[0]).all(), f"tables {ids}")
        _require(all(len(set(row)) == len(row) for row in ids.tolist()), f"tables {ids}")
        room = tables.shape[1] * pages.shape[1]
        _require((counts > 0).all() and (counts <= room).all(), f"lengths {counts} of {room}")
    return q * pages.sum() + tables.sum() + lengths[:, None]

@_operator
def walk(indptr, neighbors, start):
    if found := _known(indptr, neighbors, start):
        ends, ids, nodes = found
        count = ends.size - 1
        _require(ends[0] == 0 and (np.diff(ends) > 0).all(), f"indptr {ends}")
        _require(ends[-1] == ids.size, f"indptr {ends} of {ids.size}")
        _require((ids >= 0).all() and (ids < count).all(), f"neighbors {ids} of {count}")
        _require((nodes >= 0).all() and (nodes < count).all(), f"start {nodes} of {count}")
    return start + indptr.sum() + neighbors.sum()

@_operator
def gather(x, ids):
    if found := _known(ids):
        _require((found[0] >= 0).all() and (found[0] < x.shape[0]).all(), f"{found} of {x.shape}")
    return x[ids]

@_operator
def shuffle(x, order):
    if x.shape != order.shape:
        raise ValueError("[shuffle] x and order must have one shape")
    if found := _known(order):
        _require(sorted(found[0].tolist()) == list(range(x.shape[0])), f"order {found}")
    return x * order

def masked(x, mask):
    if found := _known(mask):
        _require(found[0].any(axis=-1).all(), f"mask {found}")
    return mx.where(mask, x, -mx.inf)

def roots(a, edges):
    if found := _known(a.astype(mx.float32), edges):
        _require((np.linalg.eigvalsh(found[0]) > 1e-6).all(), f"a {found}")
        _require((found[0] == found[0].T).all(), f"a {found}")
        _require((np.diff(found[1]) > 0).all(), f"edges {found}")
    return a.sum() * edges
"""
INT = {"dtype": "int32"}
OPS = {
    "csr": (
        op(
            "csr",
            *(arg("data"), arg("indices", **INT), arg("indptr", **INT), arg("x")),
            axes={"data": [["N"]], "indices": [["N"]], "indptr": [["P"]], "x": [["K", "D"]]},
            lengths={"N": ["data", 0], "K": ["x", 0]},
        ),
        {
            "data": {"shape": [5]},
            "indices": {"shape": [5], "low": 0, "high": 2, "bounds": {"high": "K - 1"}},
            "indptr": {"shape": [4], "low": 0, "high": 5, "bounds": {"high": "N"}, "sorted": True},
            "x": {"shape": [3, 2]},
        },
        ["N = 6", "N = 1", "P = 5", "K = 4", "K = 1", "D = 3", "D = 1"],
    ),
    "ctc": (
        op(
            "ctc",
            *(arg("logits"), arg("labels", **INT)),
            *(arg("input_lengths", **INT), arg("label_lengths", **INT)),
            axes={
                "logits": [["T", "B", "C"]],
                "labels": [["B", "L"]],
                "input_lengths": [["B"]],
                "label_lengths": [["B"]],
            },
            lengths={"T": ["logits", 0], "C": ["logits", 2], "L": ["labels", 1]},
        ),
        {
            "logits": {"shape": [7, 2, 4]},
            "labels": {"shape": [2, 3], "low": 1, "high": 3, "bounds": {"high": "C - 1"}},
            "input_lengths": {"shape": [2], "low": 6, "high": 7}
            | {"bounds": {"low": "2 * L", "high": "T"}},
            "label_lengths": {"shape": [2], "low": 1, "high": 3, "bounds": {"high": "L"}},
        },
        ["T = 8", "B = 3", "B = 1", "C = 5", "L = 1"],  # others have no valid labels or lengths
    ),
    "paged": (
        op(
            "paged",
            *(arg("q"), arg("pages"), arg("tables", **INT), arg("lengths", **INT)),
            axes={
                "q": [["B", "D"]],
                "pages": [["P", "S", "D"]],
                "tables": [["B", "N"]],
                "lengths": [["B"]],
            },
        ),
        {
            "q": {"shape": [2, 4]},
            "pages": {"shape": [5, 3, 4]},
            "tables": {"shape": [2, 2], "low": 0, "high": 4, "distinct": True}
            | {"bounds": {"high": "pages.shape[0] - 1"}},
            "lengths": {"shape": [2], "low": 1, "high": 6}
            | {"bounds": {"high": "tables.shape[1] * pages.shape[1]"}},
        },
        ["B = 3", "B = 1", "D = 5", "D = 1", "P = 6", "S = 4", "S = 1", "N = 3", "N = 1"],
    ),
    "walk": (
        op(
            "walk",
            *(arg("indptr", **INT), arg("neighbors", **INT), arg("start", **INT)),
            axes={"indptr": [["P"]], "neighbors": [["E"]], "start": [["W"]]},
            lengths={"P": ["indptr", 0], "E": ["neighbors", 0]},
        ),
        {
            "indptr": {"shape": [5], "low": 0, "high": 9, "sorted": True, "distinct": True}
            | {"bounds": {"high": "E"}},
            "neighbors": {"shape": [9], "low": 0, "high": 3, "bounds": {"high": "P - 2"}},
            "start": {"shape": [3], "low": 0, "high": 3, "bounds": {"high": "P - 2"}},
        },
        ["P = 6", "E = 10", "W = 4", "W = 1"],
    ),
    "gather": (
        op("gather", arg("x"), arg("ids", **INT), axes={"x": [["N"]], "ids": [["L"]]}),
        {"x": {"shape": [3]}, "ids": {"values": [0, 2]}},
        [],  # only the sample itself is known to be valid
    ),
    "shuffle": (
        op("shuffle", arg("x"), arg("order", **INT), axes={"x": [["N"]], "order": [["N"]]}),
        {
            "x": {"shape": [5]},
            "order": {"values": [2, 0, 1, 4, 3], "low": 0, "high": 4, "distinct": True}
            | {"bounds": {"high": "x.shape[0] - 1"}},
        },
        ["N = 6", "N = 1"],
    ),
    "masked": (
        op("masked", arg("x"), arg("mask", dtype="bool"), form="composite"),
        {"mask": {"any": True}},
        # MLX's gradient of `where` keeps the sizes of the trace: only elements change below.
        [],
    ),
    "roots": (
        op("roots", arg("a"), arg("edges"), axes={"a": [["N", "N"]], "edges": [["E"]]}),
        {
            "a": {"shape": [3, 3], "positive_definite": True},
            "edges": {"shape": [4], "sorted": True, "low": -1, "high": 1},
        },
        ["N = 4", "N = 1", "E = 5", "E = 1"],
    ),
}
for known, *_ in OPS.values():
    known["elementwise"], known["vmap"] = False, "sequential"
    known["grad"] = {a["name"]: "zero (integers)" for a in known["args"] if a["dtype"]}
    known.setdefault("axes", {})


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "indexops").mkdir()
    (folder / "indexops" / "__init__.py").write_text(SOURCE)
    table = {"operators": [known for known, *_ in OPS.values()]}
    (folder / "indexops" / "ops.json").write_text(json.dumps(table))
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("indexops")
    finally:
        sys.path.remove(str(folder))
        del sys.modules["indexops"]


def subject(package, name, sample=None):
    known, given, _ = OPS[name]
    case = cases.case(getattr(package, name), given if sample is None else sample)
    return cases.Subject(package, known, case, 0)


@pytest.mark.parametrize("name", OPS)
def test_checks_pass_valid_numbers(package, name, monkeypatch):
    """All checks run, and other shapes are those that are listed."""
    shapes = []
    check = cases.check_shapeless

    def recorded(fn, args, others, **more):
        others = [*others]
        shapes.append([other.what for other in others])
        check(fn, args, others, **more)

    monkeypatch.setattr(cases, "check_shapeless", recorded)
    package.FAILED.clear()
    tests = cases.make_tests(package, [cases.case(getattr(package, name), OPS[name][1])])
    for kind, test in tests.items():
        if name == "masked" and kind == "test_shapeless":
            continue
        ((s,),) = [test.pytestmark[0].args[1]]
        assert not s.problem
        test(s)
        assert not package.FAILED, kind
    assert {"test_layouts", "test_vmap", "test_compile", "test_shapeless"} <= tests.keys()
    if name != "masked":
        assert sorted(shapes[0]) == sorted(OPS[name][2] or ["the same shapes"])


@pytest.mark.parametrize("name", OPS)
def test_draws_differ(package, name):
    """Numbers are random, apart from given ones."""
    s = subject(package, name)
    for slot, *drawn in zip(s.slots, *(s.draw(mx.float32, seed) for seed in range(6)), strict=True):
        same = all(np.array_equal(to_numpy(a), to_numpy(drawn[0])) for a in drawn)
        assert same == (slot.values is not None), slot.name
        assert slot.values is not None or s.is_valid(s.draw(mx.float32, 7))


def test_constant_bounds_hold_for_larger_arrays(package):
    """Below them, an index may be out of range; the last of sorted offsets is a size."""
    bounds = {"shape": [2], "low": 0, "high": 2, "dtype": "int32"}
    s = subject(package, "gather", {"x": {"shape": [3]}, "ids": bounds})
    x, ids = s.draw(mx.float32)
    assert s.resized([mx.zeros(4), ids]) and s.resized([x, mx.zeros(3, mx.int32)])
    assert s.resized([x[:1], ids]) is None
    s = subject(package, "gather", {"x": {"shape": [3]}, "ids": bounds | {"sorted": True}})
    assert s.resized([mx.zeros(4), ids]) is None
    # Numbers of the whole range of their dtype are data.
    whole = {"shape": [2], "low": 0, "high": 255, "dtype": "uint8"}
    s = subject(package, "gather", {"x": {"shape": [3]}, "ids": whole})
    assert s.resized([x[:1], ids[:1]])


@pytest.mark.parametrize(
    ("given", "values", "right"),
    [
        ({"low": 0, "high": 3}, [3, 0], True),
        ({"low": 0, "high": 3}, [4, 0], False),
        ({"low": 0, "high": 3}, [-1, 0], False),
        ({"values": [2, 0]}, [2, 0], True),
        ({"values": [2, 0]}, [0, 2], False),
        ({"values": [2, 0], "low": 0, "high": 2}, [1, 1], True),
        ({"low": 0, "high": 3, "sorted": True}, [0, 3], True),
        ({"low": 0, "high": 3, "sorted": True}, [0, 2], False),
        ({"low": 0, "high": 3, "sorted": True}, [3, 0], False),
        ({"low": 0, "high": 3, "distinct": True}, [3, 1], True),
        ({"low": 0, "high": 3, "distinct": True}, [1, 1], False),
        ({"low": 0, "high": 3, "any": True}, [0, 1], True),
        ({"low": 0, "high": 3, "any": True}, [0, 0], False),
    ],
)
def test_valid_numbers(package, given, values, right):
    s = subject(package, "gather", {"x": {"shape": [4]}, "ids": {"shape": [2], **given}})
    assert s.is_valid([mx.zeros(4), mx.array(values, mx.int32)]) == right


@pytest.mark.parametrize(
    "given",
    [
        {"low": 0, "high": -1},
        {"low": 0.2, "high": 0.8},
        {"low": 0, "high": 0, "distinct": True},
        {"low": 0, "high": 1, "sorted": True, "distinct": True, "shape": [3]},
        {"low": 0, "high": 0, "any": True},
    ],
)
def test_impossible_numbers(package, given):
    s = subject(package, "gather", {"x": {"shape": [4]}, "ids": {"shape": [2], **given}})
    with pytest.raises(ValueError, match="of 'ids'"):
        s.draw(mx.float32)


def _lower(gradient):
    """Return an operator that reads the lower triangle, and whose vjp is given."""

    @mx.custom_function
    def lower(a):
        return mx.square(mx.tril(a))

    @lower.vjp
    def _(a, cotangent, out):
        return gradient(2 * cotangent * mx.tril(a))

    return lambda a: lower(a)


@pytest.mark.parametrize(
    ("gradient", "right"),
    [
        (lambda g: g, True),
        (lambda g: (g + mx.swapaxes(g, -1, -2)) / 2, True),  # the convention of linear algebra
        (lambda g: g + mx.swapaxes(g, -1, -2), False),
        (lambda g: mx.zeros_like(g), False),
    ],
)
def test_kernels_of_one_triangle(package, gradient, right):
    """Their gradient is that of the triangle, or symmetric: derivatives are along symmetric
    matrices."""
    known = op("lower", arg("a"), elementwise=False, vmap="sequential")
    given = {"a": {"shape": [2, 3, 3], "positive_definite": True}}
    s = cases.Subject(package, known, cases.case(_lower(gradient), given), 0)
    if right:
        cases.CHECKS["vjp"][0](s)
    else:
        with pytest.raises(testing.Mismatch, match=r"vjp of 'a'"):
            cases.CHECKS["vjp"][0](s)


def test_rounding_makes_no_matrix_definite():
    """All elements of a broadcast matrix are equal: its other eigenvalues are rounding errors."""
    for dtype in (np.float32, np.float64):
        for number in np.linspace(0.1, 3, 30, dtype=dtype):
            assert not cases.ORDERS["positive_definite"](np.full((2, 3, 3), number))
        assert cases.ORDERS["positive_definite"](np.eye(3, dtype=dtype) * dtype(0.01))
