"""Errors are raised when the graph is built, and name the operator and the cause."""

import re
from functools import partial
from itertools import product

import mlx.core as mx
import mlxops
import pytest
from mlxops.checks import test_gradients as checks

from mlxgen import testing

X = mx.ones((2, 3))


def raises(message, kind=ValueError):
    return pytest.raises(kind, match=message)


def test_shapes_that_do_not_broadcast():
    with raises(
        r"^\[axpby\] The shapes cannot be broadcast together\. "
        r"Got x: float32 \(2, 3\), y: float32 \(2,\)\.$"
    ):
        mlxops.examples.axpby(X, mx.ones((2,)))


def test_dtypes_without_a_kernel():
    with raises(r"^\[lgamma\] dtype complex64 is not supported \(supported: .*float32.*\)\. Got x"):
        mlxops.lgamma(mx.array(1j))


def test_wrong_arguments_list_the_signature():
    for call in (
        lambda: mlxops.examples.axpby(X),
        lambda: mlxops.examples.axpby(X, X, gamma=2),
        lambda: mlxops.examples.axpby(X, X, "1"),
        lambda: mlxops.examples.axpby(X, X, 1.0, 1.0, 1.0),
        lambda: mlxops.examples.axpby(X, X, stream="cpu"),
    ):
        with raises(r"axpby\(x: scalar \| array, y: scalar \| array", TypeError):
            call()


def test_errors_come_before_evaluation():
    lazy = mx.ones((2, 3)) + 1
    with raises(r"^\[swiglu\] The shapes cannot"):
        mlxops.swiglu(lazy, mx.ones((7,)))


def test_errors_inside_transforms():
    with raises(r"^\[add\] The shapes cannot be broadcast together"):
        mx.grad(lambda x: mlxops.examples.add(x, mx.ones((7,))).sum())(X)
    with raises(r"^\[add\] The shapes cannot be broadcast together"):
        mx.vmap(lambda x: mlxops.examples.add(x, mx.ones((7,))))(X)
    with raises(r"^\[add\] The shapes cannot be broadcast together"):
        mx.compile(lambda x: mlxops.examples.add(x, mx.ones((7,))))(X)


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a GPU backend")
def test_backend_without_a_kernel():
    """For a missing GPU, MLX raises its error before evaluation."""
    with raises("gpu|GPU", (ValueError, RuntimeError)):
        mlxops.lgamma(X, stream=mx.gpu)


def test_not_differentiable_arguments():
    order = mx.array([1.0, 2.0])
    for derivative in (mx.vjp, mx.jvp):
        with raises(r"^\[iv\] Not differentiable with respect to 'v'"):
            derivative(lambda v: mlxops.special.iv(v, order), [order], [order])


def test_errors_of_derivatives_name_the_operator():
    """Also if an internal operator of its second derivative lacks one. Nothing is computed."""
    (subjects,) = (mark.args[1] for mark in checks.test_sample.pytestmark)
    refused = set()
    for subject in subjects:
        with mx.stream(mx.cpu):
            args = subject.draw(subject.dtype)
            floats = [i for i, a in enumerate(args) if testing.is_float(a)]
            cotangents = [mx.ones_like(out) for out in subject.function(*args)]
            pulls = {i: testing.pullback(subject.function, args, [i]) for i in floats}
            given = [*args, *cotangents]
            others = [j for j, a in enumerate(given) if testing.is_float(a)]
            seconds = product(floats, others)  # MLX rejects indices by itself
            for derivative in (
                *(partial(pull, *given) for pull in pulls.values()),
                *(partial(_vjp, pulls[i], given, j) for i, j in seconds),
            ):
                try:
                    derivative()
                except ValueError as error:
                    text = str(error)
                    if "Not implemented" in text:  # MLX's
                        continue
                    names, how = re.match(r"\[(.*)\] Not differentiable(.*)", text).groups()
                    assert subject.op["python_name"] in re.split(", | or ", names), text
                    assert "internal" not in subject.op["tags"]
                    assert re.search(r"\. Use ", how), text
                    refused.add(subject.op["name"])
    assert {"gammainc", "grid_sample", "zeta", "cross_entropy"} <= refused


def _vjp(pull, given, j):
    testing.pullback(pull, given, [j])(*given, *pull(*given))
