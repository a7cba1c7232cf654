"""Samples and the tests generated from them, for a package of plain Python operators."""

import importlib
import json
import re
import sys
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from mlxgen import testing
from mlxgen.testing import cases, to_numpy

SOURCE = """
import mlx.core as mx

def good(x, y, scale=2.0):
    return scale * mx.sin(x) * y

def bad_forward(x):
    return mx.exp(x) * 1.001

@mx.custom_function
def _bad_vjp(x):
    return mx.sin(x)

@_bad_vjp.vjp
def _(x, cotangent, _):
    return -cotangent * mx.cos(x)

def bad_vjp(x):
    return _bad_vjp(x)

@mx.custom_function
def _refuses(x, ids):
    return x[ids]

@_refuses.vjp
def _(primals, cotangent, _):
    raise ValueError("[refuses] Not differentiable with respect to 'x'.")

def refuses(x, ids):
    return _refuses(x, ids)

def calls_refuses(x, ids):
    return 2 * _refuses(x, ids)

def half_refuses(x, y):
    return _refuses(x, mx.array([0, 2])) * mx.exp(y[:2])

def logs(x, n=1):
    if n < 1:
        raise ValueError("[logs] n must be positive")
    return mx.log(x)

def hidden(x):
    return mx.sin(x)

def whole(x):
    return x

def matrix(x, y):
    if x.ndim != 2 or y.ndim != 2:
        raise ValueError("[matrix] x must be a matrix")
    return x * y

def straight(x):
    return mx.stop_gradient(x)

def masked(x, mask=None, side="left"):
    return x

def lists(arrays, weight=None):
    out = arrays[0] + arrays[1].sum()
    return out if weight is None else out * weight
"""


def arg(name, kind="array", default=None, **given):
    has_default = default is not None
    base = {"name": name, "kind": kind, "default": default, "has_default": has_default}
    return {**base, "optional": False, "dtype": None, **given}


def op(name, *args, **given):
    base = {"name": name, "python_name": name, "module": "", "args": args, "form": "kernels"}
    return {
        **base,
        "outputs": [{"name": "out"}],
        "composite": None,
        "let": {},
        "lengths": {},
        "kernels": {},
        "dtypes": {},
        "elementwise": True,
        "grad": {},
        "jvp": "vjp",
        "vmap": "elementwise",
        "tags": [],
        **given,
    }


X, Y = arg("x"), arg("y")
OPS = [
    op(
        "good",
        X,
        Y,
        arg("scale", "float", "2.0"),
        composite="scale * sin(x) * y * sqrt(1.0) * D / x.shape[-1]",
        lengths={"D": ["x", -1]},
    ),
    op("bad_forward", X, composite="exp(x)"),
    op("bad_vjp", X),
    op(
        "refuses",
        X,
        arg("ids", dtype="int32"),
        grad={"x": "none", "ids": "none (integers)"},
        elementwise=False,
    ),
    op("straight", X, grad={"x": "zero"}, composite="stop_gradient(x)"),
    op(
        "lists",
        arg("arrays", "arrays"),
        arg("weight", optional=True),
        composite="sum(a for a in arrays[:1]) + sum(arrays[1]) if weight is None else weight",
        elementwise=False,
    ),
    op("logs", X, arg("n", "int", "1")),
    op("whole", X, dtypes={"x": ["uint8", "int32"]}, grad={"x": "none (integers)"}),
    op("matrix", X, Y),
    op(
        "masked",
        X,
        arg("mask", default="None", choices=["causal"], value=None),
        arg("side", default="'left'", choices=["left"], value="left"),
        elementwise=False,
    ),
    op("inner", X, tags=["internal"]),
    op("hidden", X, composite="inner(x)", form="composite"),
    op("half_refuses", X, Y, elementwise=False),
    op("calls_refuses", X, arg("ids", dtype="int32"), grad={"ids": "none"}, elementwise=False),
]


FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "pyops").mkdir()
    (folder / "pyops" / "__init__.py").write_text(SOURCE)
    (folder / "pyops" / "ops.json").write_text(json.dumps({"operators": OPS}))
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("pyops")
    finally:
        sys.path.remove(str(folder))
        del sys.modules["pyops"]


def subject(package, name, sample=None, number=0):
    known = next(o for o in OPS if o["name"] == name)
    return cases.Subject(package, known, cases.case(getattr(package, name), sample), number)


def run(package, check, name, sample=None):
    """Run one of the tests of make_tests, without pytest's parametrization."""
    tests = cases.make_tests(package, [cases.case(getattr(package, name), sample)])
    (mark,) = tests[f"test_{check}"].pytestmark
    ((argument,),) = [mark.args[1]]
    tests[f"test_{check}"](argument)


def test_defaults_of_arrays_are_used(package):
    """A call without the array, which the sample passes, is part of the check of a sample."""

    def shifted(x, low=300):
        return x + (low if isinstance(low, mx.array) else np.uint8(low))

    known = op("shifted", X, arg("low", default="300", value=300))
    wrong = cases.Subject(package, known, cases.case(shifted), 0)
    assert wrong.numbers == ["low"] and "sample" in cases.CHECKS
    with pytest.raises(AssertionError, match="cannot be used"):
        cases.CHECKS["sample"][0](wrong)
    right = cases.Subject(package, known, cases.case(lambda x, low=3: x + low), 0)
    cases.CHECKS["sample"][0](right)


# Errors that are found


@pytest.mark.parametrize("check", ["forward", "vjp", "jvp", "second", "broadcast_vjp", "vmap"])
def test_a_good_operator_passes(package, check):
    run(package, check, "good", {"y": {"low": 1, "high": 2}})


def test_mistakes_are_found(package):
    with pytest.raises(AssertionError, match=r"\[bad_forward\] forward: out\[.* by the composite"):
        run(package, "forward", "bad_forward")
    with pytest.raises(AssertionError, match=r"\[bad_vjp\] vjp of 'x': the gradient at x\["):
        run(package, "vjp", "bad_vjp")
    run(package, "jvp", "bad_vjp")


def test_shapes_that_an_entry_refuses(package):
    """Its own `checks` define the valid calls."""
    for check in ("sizes", "sizes_vjp", "broadcast_vjp", "layouts", "vmap", "vjp"):
        run(package, check, "matrix")


def test_declared_none(package):
    sample = {"ids": {"values": [0, 2], "dtype": "int32"}}
    tests = cases.make_tests(package, [cases.case(package.refuses, sample)])
    assert "test_vjp" not in tests
    # The operator names itself in x, but does not name ids.
    with pytest.raises(AssertionError, match=r"\[refuses\] vjp of 'ids': no 'ids' in:"):
        run(package, "none", "refuses", sample)


def test_declared_zero(package):
    run(package, "vjp", "straight")
    wrong = cases.Subject(package, OPS[4] | {"grad": {"x": "zero"}}, cases.case(mx.sin), 0)
    wrong.function = testing.Function(lambda x: mx.sin(x), "straight", ("x",))
    with pytest.raises(AssertionError, match="declared zero"):
        cases.CHECKS["vjp"][0](wrong)


@mx.custom_function
def _loses_y(x, y):
    return x * y + mx.round(y)


@_loses_y.vjp
def _loses_y_vjp(primals, cotangent, _):
    y = primals[1]
    return cotangent * y, mx.zeros_like(y)


@_loses_y.jvp
def _loses_y_jvp(primals, tangents):
    return mx.zeros_like(primals[0]) if tangents[0] is None else tangents[0] * primals[1]


def _declares(package, composite, word, fn=_loses_y):
    """Return the subject of an operator of x and y that declares the gradient of y."""
    known = op("loses", X, Y, composite=composite, grad={"y": word})
    found = cases.Subject(package, known, cases.case(fn), 0)
    found.function = testing.Function(fn, "loses", ("x", "y"))
    return found


@pytest.mark.parametrize(
    ("composite", "message"),
    [
        (
            "x * y",
            r"\[loses\] `grad` declares 'y' zero, but the composite's gradient at y\[\d, \d\] = "
            r"\S+ is \S+; remove `zero`, so that the composite's gradient is used, or write a "
            r"formula; if 'y' has no gradient on purpose, write stop_gradient\(y\) in the comp",
        ),
        (
            None,
            r"`grad` declares 'y' zero: vjp of 'y'.* write a formula, or `none`; if 'y' has no ",
        ),
        ("inner(x, y)", r"`grad` declares 'y' zero: vjp of 'y'"),  # Python cannot evaluate it
        ("x * stop_gradient(y) + round(y)", ""),
        ("inner(x, stop_gradient(y))", ""),
        ("x * array([1.0])", ""),
    ],
)
def test_declared_zero_is_compared_with_the_composite(package, composite, message):
    wrong = _declares(package, composite, "zero")
    if message:
        with pytest.raises(testing.Mismatch, match=message):
            cases.CHECKS["vjp"][0](wrong)
    else:
        cases.CHECKS["vjp"][0](wrong)
    assert cases.CHECKS["vjp"][1](wrong)


def test_declared_zero_holds_for_the_jvp(package):
    right = _declares(package, "x * stop_gradient(y)", "zero")
    cases.CHECKS["jvp"][0](right)
    wrong = _declares(package, "x * stop_gradient(y)", "zero", lambda x, y: x * y)
    with pytest.raises(testing.Mismatch, match=r"jvp along 'y': the result.* as `grad` declares"):
        cases.CHECKS["jvp"][0](wrong)


def test_declared_none_is_compared_with_the_composite(package):
    @mx.custom_function
    def refuses(x, y):
        return x * y

    @refuses.vjp
    def _(primals, cotangent, _):
        raise ValueError("[loses] Not differentiable with respect to 'y'.")

    check = cases.CHECKS["none"][0]
    with pytest.raises(testing.Mismatch, match=r"declares 'y' none, but .*; remove `none`"):
        check(_declares(package, "x * y", "none", refuses))
    for composite in (None, "x * stop_gradient(y)", "x * round(y)", "inner(x, y)"):
        check(_declares(package, composite, "none", refuses))


NEVER = {"values": [[True, False, True], [False, False, True], [True, True, True]], "dtype": "bool"}


@pytest.mark.parametrize("composite", [None, "where(mask, x, -inf)"])
def test_infinite_outputs(package, composite):
    """A mask has a gradient: that of its finite elements."""
    given = {"x": {"shape": [3, 3]}, "mask": NEVER}
    mask = [arg("x"), arg("mask", dtype="bool")]
    names = ("x", "mask")
    known = op("hides", *mask, composite=composite, elementwise=False)

    def hides(x, mask):
        return mx.where(mask, x, -mx.inf)

    @mx.custom_function
    def doubles(x, mask):
        return hides(x, mask)

    @doubles.vjp
    def _(primals, cotangent, _):
        return mx.where(primals[1], 2 * cotangent, 0), mx.zeros_like(primals[1])

    for fn in (hides, doubles):
        s = cases.Subject(package, known, cases.case(fn, given), 0)
        s.function = testing.Function(fn, "hides", names)
        assert not s.problem
        if fn is hides:
            for name in ("vjp", "jvp", "second", "vmap_vjp", "precision_vjp", "layouts_vjp"):
                assert cases.CHECKS[name][1](s)
                cases.CHECKS[name][0](s)
        else:
            with pytest.raises(testing.Mismatch, match="all are 2 times the expected values"):
                cases.CHECKS["vjp"][0](s)


def test_a_checkpoint_differentiates_integers_too(package):
    """mx.checkpoint asks for all gradients: those of integers and bools are zeros."""
    sample = {"x": {"shape": [3]}, "ids": {"values": [0, 2], "dtype": "int32"}}
    known = op("picks", X, arg("ids", dtype="int32"), grad={"ids": "zero (integers)"})
    for pulled in (mx.zeros_like, None):

        @mx.custom_function
        def picks(x, ids):
            return x * ids.sum()

        @picks.vjp
        def _(primals, cotangent, _, pulled=pulled):
            if pulled is None:
                raise ValueError("[picks] no gradient of ids")
            return cotangent * primals[1].sum(), pulled(primals[1])

        function = partial(lambda f, x, ids: f(x, ids), picks)
        s = cases.Subject(package, known, cases.case(function, sample), 0)
        s.differentiable = [0]
        if pulled is not None:
            cases.CHECKS["checkpoint"][0](s)
            cases.CHECKS["vjp"][0](s)
        else:
            with pytest.raises(ValueError, match="no gradient of ids"):
                cases.CHECKS["checkpoint"][0](s)


@pytest.mark.parametrize(
    ("form", "own", "dtypes", "expected"),
    [
        ("composite", True, ["float32"], ["float32"]),  # gets arrays as they are
        ("kernels", True, ["float32"], FLOATS),  # gets converted arrays
        ("kernels", False, ["float32"], ["float32"]),  # accepts no other dtype
        ("composite", False, ["float32", "float64"], ["float32", "float64"]),
        ("kernels", False, ["float32", "float64"], ["float32", "float64"]),
        ("composite", False, None, FLOATS),
    ],
)
def test_dtypes_of_an_operator(package, form, own, dtypes, expected):
    x = arg("x", dtype="float32" if own else None)
    known = op("whole", x, form=form, dtypes={"x": dtypes} if dtypes else {})
    s = cases.Subject(package, known, cases.case(package.whole), 0)
    assert [name for name in FLOATS if s.has_dtype(name)] == expected


@pytest.mark.parametrize(("composite", "is_known"), [(None, False), ("x", True)])
def test_float64_of_a_kernel_for_metal(package, composite, is_known):
    """Without a composite, nothing computes float64."""
    about = {"kernels": {"metal": {"dtypes": ["float32"]}}, "composite": composite}
    x = arg("x", dtype="float32")
    known = op("whole", x, form="kernels", dtypes={"x": ["float32"]}, **about)
    s = cases.Subject(package, known, cases.case(package.whole), 0)
    assert s.has_dtype("float32")
    assert s.has_dtype("float64") == is_known


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        (lambda x: x - x.mean(axis=-1, keepdims=True), None),
        (lambda x: x if x.shape[1] == 1 else x - x.mean(axis=-1, keepdims=True), "N = 1: out"),
        (lambda x: x[:, :4] - x.mean(axis=-1, keepdims=True), "N = 5: out has shape"),
        (lambda x: x[:3] - x[:3].mean(axis=-1, keepdims=True), "B = 4: out has shape"),
    ],
)
def test_kernels_are_compared_for_other_sizes(package, kernel, wrong):
    """Those of the entry's named axes; elsewhere a kernel may read what it does not have."""
    composite = "x - mean(x, axis=-1, keepdims=True)"
    known = op("centers", X, axes={"x": [["B", "N"]]}, composite=composite, elementwise=False)
    for form in ("kernels", "composite"):
        s = cases.Subject(package, known | {"form": form}, cases.case(kernel), 0)
        if wrong and form == "kernels":
            with pytest.raises(testing.Mismatch, match=rf"forward, {wrong}"):
                cases.CHECKS["forward"][0](s)
        else:
            cases.CHECKS["forward"][0](s)


def test_composites_of_internal_operators_are_not_evaluated(package):
    run(package, "forward", "lists")
    tests = cases.make_tests(package, [cases.case(package.hidden)])
    assert "test_vjp" in tests and "test_forward" not in tests


def test_what_an_operator_cannot_do_is_not_tested(package):
    """Its gradient calls a function without a gradient."""
    sample = {"ids": {"values": [0, 2], "dtype": "int32"}}
    tests = cases.make_tests(package, [cases.case(package.calls_refuses, sample)])
    assert {"test_compile", "test_layouts"} <= tests.keys()
    assert not tests.keys() & {"test_vjp", "test_second", "test_jvp", "test_layouts_vjp"}


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"shape": "x.shape[:-1] + [D]", "dtype": "x.dtype"}, ""),
        ({"shape": "x.shape[1:]"}, r"shape of out is \[3, 4\], but .* x.shape\[1:\], .* \[4\]"),
        ({"dtype": "accumulator"}, "dtype of out is mlx.core.float16, but"),
    ],
)
def test_declared_results_of_composites(package, rules, problem):
    """A declared dtype must also be right for other dtypes than float32."""
    known = {"composite": "sin(x)", "form": "composite", "lengths": {"D": ["x", 1]}}
    declared = op("hidden", X, **known, outputs=[{"name": "out", **rules}])
    found = cases.Subject(package, declared, cases.case(package.hidden), 0)
    check = cases.CHECKS["sample"][0]
    if not problem:
        check(found)
        return
    with pytest.raises(AssertionError, match=problem):
        check(found)


def test_what_has_a_gradient_is_tested(package):
    s = subject(package, "half_refuses")
    assert s.argnums() == [0, 1]
    assert s.differentiable == [1] and s.twice == [([1], [1])]
    run(package, "vjp", "half_refuses")
    run(package, "second", "half_refuses")


def test_an_operator_that_cannot_do_what_it_declares(package):
    """If the operator itself rejects it, the test exists and fails."""
    sample = {"ids": {"values": [0, 2], "dtype": "int32"}}
    declared = OPS[3] | {"grad": {"ids": "none"}}
    wrong = cases.Subject(package, declared, cases.case(package.refuses, sample), 0)
    assert wrong.differentiable == [0]


BAD_SAMPLES = {
    "draw": ({"x": {"low": 0, "high": 0.1, "away_from": [0.05]}}, "has no numbers from 0.0"),
    "values": ({"x": {"values": [[1, 2], [3]]}}, "inhomogeneous"),
    "dtype": ({"x": {"dtype": "flaot32"}}, "flaot32"),
    "check": ({"x": {"low": 1}, "n": 0}, r"\[logs\] n must be positive"),
    "outside": (
        {"x": {"values": [1, 5], "low": 0, "high": 4}},
        "'x' has numbers outside of 0.0 to",
    ),
    "order": ({"x": {"values": [2, 1], "sorted": True}}, "the numbers of 'x' are not sorted"),
    "no axis": ({"x": {"shape": [], "sorted": True}}, "'x' has no last axis that could be sorted"),
    "no matrix": ({"x": {"shape": [2, 3], "positive_definite": True}}, "are not square matrices"),
    "whole": ({"x": {"values": [1.5], "dtype": "int32"}}, "of 'x' are not valid .*int32"),
    "range": ({"x": {"low": 300, "high": 400, "dtype": "uint8"}}, "of 'x' are not valid .*uint8"),
    "domain": ({"x": {"values": [1.0, -1.0]}}, r"out\[1\] is nan: .* change the sample"),
    "pole": ({"x": {"values": [1.0, 0.0]}}, r"out\[1\] is -inf"),
}


@pytest.mark.parametrize(("sample", "why"), BAD_SAMPLES.values(), ids=BAD_SAMPLES)
def test_a_bad_sample_fails_one_check(package, sample, why):
    good, bad = (cases.case(package.logs, s) for s in ({"x": {"low": 1}}, sample))
    failed = {}
    for name, test in cases.make_tests(package, [good, bad]).items():
        for s in test.pytestmark[0].args[1]:
            try:
                test(s)
            except pytest.skip.Exception:
                assert s.case is bad
            except AssertionError as error:
                failed[name, s.number] = str(error)
    assert failed.keys() == {("test_sample", 1)}
    assert re.search(r"\[logs\] sample 1 \(.*\) cannot be used: .*" + why, *failed.values())


def test_infinite_samples(package):
    """They are compared where derivatives exist."""
    infinite = {"values": [0.5, np.inf, -np.inf, np.nan]}
    cases_ = [cases.case(package.good, {"x": infinite, "y": {"shape": [4], "low": 1}})]
    for name, test in cases.make_tests(package, cases_).items():
        # Python functions of this package have MLX's gradients of broadcast arrays.
        if name != "test_shapeless":
            test(test.pytestmark[0].args[1][0])
    with pytest.raises(AssertionError, match=r"vjp of 'x': the gradient at x\[0\] = 0.5 is"):
        run(package, "vjp", "bad_vjp", {"x": infinite})
    # An infinite output says nothing about the other arguments; nor does an infinite number.
    for sample in ({"x": infinite, "y": {"shape": [4]}}, {"x": {"low": 0.5}, "scale": np.inf}):
        for check in ("sample", "vjp", "jvp", "second", "broadcast_vjp", "vmap", "precision"):
            run(package, check, "good", sample)


def test_samples_without_elements(package):
    for test in cases.make_tests(
        package, [cases.case(package.good, {"x": {"shape": [0, 4]}, "y": {"shape": [4]}})]
    ).values():
        test(test.pytestmark[0].args[1][0])


def test_names_of_tests(package):
    tests = cases.make_tests(
        package, [cases.case(package.good), cases.case(package.good, {"scale": 3.0})]
    )
    (mark,) = tests["test_vjp"].pytestmark
    assert mark.kwargs["ids"] == ["good", "good-1"]
    assert tests["test_vjp"].__name__ == "test_vjp"


def test_a_function_of_another_package(package):
    with pytest.raises(LookupError, match="is not an operator of pyops"):
        cases.make_tests(package, [cases.case(mx.sin)])


# Samples


def draw(package, sample, name="good", dtype=mx.float64, seed=0):
    with mx.stream(mx.cpu):
        return [to_numpy(a) for a in subject(package, name, sample).draw(dtype, seed)]


def test_defaults(package):
    x, y = draw(package, {})
    assert x.shape == y.shape == (3, 4)
    assert (np.abs([x, y]) < 2).all()
    assert len(np.unique([x, y])) == 24


def test_the_same_numbers_every_time(package):
    np.testing.assert_array_equal(draw(package, {}), draw(package, {}))
    assert not np.array_equal(draw(package, {}), draw(package, {}, seed=1))


def test_domain(package):
    sample = {"x": {"shape": [1000], "low": 0, "high": 0.5, "away_from": [0.25]}}
    slot = subject(package, "good", sample).slots[0]
    assert slot.step == 0.0025
    x, _ = draw(package, sample)
    reach = len(testing.STENCIL) * slot.step
    assert x.min() - reach >= 0
    assert x.max() + reach <= 0.5
    assert np.abs(x - 0.25).min() >= 0.1
    impossible = {"x": {"low": 0, "high": 0.1, "away_from": [0.05]}}
    with pytest.raises(ValueError, match=r"the sample of 'x' has no numbers from 0\.0 to 0\.1"):
        draw(package, impossible)


def test_values_and_scalars(package):
    x, y = draw(package, {"x": {"values": [[1, 2]]}, "y": {"shape": []}, "scale": 3})
    assert x.tolist() == [[1, 2]]
    assert y.shape == ()
    function = subject(package, "good", {"scale": 3.0}).function
    assert abs(function(mx.array(np.pi / 2), mx.array(2.0))[0].item() - 6) < 1e-5


@pytest.mark.parametrize(("dtype", "low"), [("int32", -3), ("uint8", 0), ("bool_", 0)])
def test_integers(package, dtype, low):
    sample = {"x": {"shape": [500], "low": -3, "high": 2, "dtype": dtype}}
    (x, _) = subject(package, "good", sample).draw(mx.float32)
    assert x.dtype == getattr(mx, dtype)
    assert x.min().item() == low
    assert x.max().item() == (1 if dtype == "bool_" else 2)


def test_integers_by_default(package):
    """The operator accepts no other dtype."""
    (x,) = subject(package, "whole").draw(mx.float32)
    assert x.dtype == mx.uint8
    assert subject(package, "whole", {"x": {"dtype": "bool"}}).slots[0].dtype == mx.bool_


def test_arrays_or_strings(package):
    """The keywords of a call contain the defaults of those that a sample omits."""
    for sample in ({}, {"mask": "causal"}, {"mask": {}}, {"side": {}}):
        given = subject(package, "masked", sample)
        keywords = given.keywords(given.draw(mx.float32))
        found = {k: "array" if type(v) is mx.array else v for k, v in keywords.items()}
        arrays = {name: "array" for name, value in sample.items() if value == {}}
        assert found == {"x": "array", "mask": None, "side": "left", **sample, **arrays}


def test_lists_and_optional_arrays(package):
    assert [s.name for s in subject(package, "lists", {}).slots] == ["arrays[0]", "arrays[1]"]
    sample = {"arrays": [{"shape": [2]}, {"shape": [3]}, {}], "weight": {"shape": [2]}}
    names = [s.name for s in subject(package, "lists", sample).slots]
    assert names == ["arrays[0]", "arrays[1]", "arrays[2]", "weight"]
    assert [a.shape for a in draw(package, sample, "lists")] == [(2,), (3,), (3, 4), (2,)]
