"""Compares a function over MLX arrays with the recorded results and gradients of torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from generated import TOLERANCES
from samples import Array, Dtype, Sample, arrays_of

#: MLX computes in single precision
NARROWER = {"float64": "float32", "complex128": "complex64"}
#: results that are places of elements, by name: torch does not define which of equal elements is
#: the first one, so that the elements at the places are compared
PLACES = {"argsort": 0, "sort": 1, "topk": 1, "kthvalue": 1, "mode": 1, "multinomial": 0}
#: those with a gradient, by name, with the axis if it is no argument: equal elements may exchange
#: their gradients
EXCHANGED = {"sort": None, "topk": None, "kthvalue": None, "mode": None, "msort": 0}
#: integers up to this size have a float32
EXACT = 2**24
#: results whose first array has eigenvalues in an order that torch does not define
UNORDERED = ("linalg_eig", "linalg_eigvals")
#: results that are R of a QR decomposition, by name
TRIANGLES = {"linalg_qr": 1, "qr": 1, "geqrf": 0}
#: inverses, solutions and products of several matrices
SOLUTIONS = (
    r"(ormqr|inverse|cholesky_inverse|cholesky_solve|lu_solve)$"
    r"|_?linalg_(inv|inv_ex|pinv|solve|solve_ex|solve_triangular|lu_solve|tensorinv|ldl)"
)
#: these and products of two matrices: their elements are sums, in which larger terms cancel
SUMS = re.compile(rf"(matmul|bmm|mm|addmm|baddbmm|linalg_matmul)$|{SOLUTIONS}")
#: eigenvalues and singular values that differ by less, relative to the largest one, are equal
NEAR = 1e-5
#: a gradient is a sum of several terms, each with the errors of a value
GRADIENT = 10


#: errors that only torch reports, by its messages: the reason for the page
UNSEEN = {
    r"(?i)(target|index|indices element) .*out of (data )?(bounds|range)|out of range: .* index": (
        "An index is outside of an axis: its value is not known before the evaluation."
    ),
    r"(same dtype|scalar type|Input type|[Ff]loating.point|[Dd]type|[Dd]ata ?types?)": (
        "A dtype is not that of another array, or not one of PyTorch's: MLX converts arrays."
    ),
    r"probability tensor contains|sum of probabilities": (
        "Probabilities are negative, not finite, or all 0: their values are not known before."
    ),
}


class Mismatch(AssertionError):
    """A function's result is not torch's."""

    kind = "values"
    gradient = False


class Nan(Mismatch):
    """A function's result is NaN where torch's is finite."""

    kind = "NaN"


class Form(Mismatch):
    """A function's result has another dtype, shape or number than torch's."""

    kind = "dtypes or shapes"


class NoError(Mismatch):
    """A function accepts a call that torch rejects."""

    kind = "no error"


def dtype_of(name: str) -> mx.Dtype:
    """Return MLX's dtype for torch's, single precision for double."""
    name = NARROWER.get(name, name)
    dtype: mx.Dtype = getattr(mx, "bool_" if name == "bool" else name)
    return dtype


def to_mlx(value: Any) -> Any:
    """Return a recorded value as an argument; an array with gaps where torch's tensor had them."""
    if isinstance(value, list):
        return [to_mlx(part) for part in value]
    if isinstance(value, Dtype):
        return dtype_of(value.name)
    if not isinstance(value, Array):
        return value
    data = value.data if value.contiguous or not value.shape else np.repeat(value.data, 2, axis=-1)
    array = mx.array(data)
    array = array.view(mx.bfloat16) if value.dtype == "bfloat16" else array
    array = array if data is value.data else array[..., ::2]
    return array.astype(dtype_of(value.dtype))


def to_numpy(value: mx.array) -> np.ndarray[Any, Any]:
    """Return an array's values, of bfloat16 in single precision."""
    return np.array(value.astype(mx.float32) if value.dtype == mx.bfloat16 else value)


def compare(sample: Sample, function: Callable[..., Any]) -> None:
    """Raise Mismatch if the function's results or gradients for a sample are not torch's."""
    args, kwargs = to_mlx(sample.args), {key: to_mlx(v) for key, v in sample.kwargs.items()}
    if sample.raises:
        rejects(sample, function, args, kwargs)
        return
    result = listed(function(*args, **kwargs))
    if is_too_narrow(sample):
        return
    if len(result) != len(sample.out):
        raise Form(f"{len(result)} results instead of {len(sample.out)}")
    result = ordered(sample, result, order(sample, result))
    for index, (actual, expected) in enumerate(zip(result, sample.out, strict=False)):
        where = f"result {index}" if len(result) > 1 else "result"
        if not isinstance(actual, mx.array):
            raise Form(f"{where}: {type(actual).__name__} is no array")
        if actual.dtype != dtype_of(expected.dtype):
            raise Form(f"{where}: dtype {actual.dtype} instead of {expected.dtype}")
        if tuple(actual.shape) != expected.shape:
            raise Form(f"{where}: shape {tuple(actual.shape)} instead of {expected.shape}")
        if places_are_free(sample, index) and not sample.random:
            same_elements(sample, to_numpy(actual), to_numpy(to_mlx(expected)), where)
        elif not sample.random:
            got, wanted, *others = (
                unique(sample, index, spaces(sample, index, value))
                for value in compared(sample, actual, expected, str(index))
            )
            limits = allowed(sample, expected.dtype, sample.slack[0])
            if np.iscomplexobj(wanted):
                # torch multiplies zeros and infinities
                got = np.where(np.isnan(wanted) & ~nan_given(sample, wanted), wanted, got)
            close(got, wanted, limits, where, others, is_sum(sample, expected.dtype))
    if sample.gradients:
        try:
            compare_gradients(sample, function, args, kwargs)
        except Mismatch as error:
            error.gradient = True
            raise


def compare_gradients(
    sample: Sample, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Compare the gradients of all arrays for the recorded cotangents."""
    keys = list(sample.gradients)
    if not any(size_of(expected) for expected in sample.out):
        # MLX's gradient of a broadcast to an empty array is undefined, and may never end
        keys = [key for key in keys if sample.gradients[key] and not size_of(sample.gradients[key])]
    if not keys:
        return
    names = sample.names
    used = [i for i, c in enumerate(sample.cotangents) if c is not None]
    places = order(sample, listed(function(*args, **kwargs)))

    def of(*arrays: mx.array) -> list[mx.array]:
        new_args = [list(a) if isinstance(a, list) else a for a in args]
        new_kwargs = {k: list(v) if isinstance(v, list) else v for k, v in kwargs.items()}
        for key, array in zip(keys, arrays, strict=False):
            name, _, index = key.partition(".")
            where: Any = new_kwargs if name in new_kwargs else new_args
            place = name if name in new_kwargs else names.index(name)
            if index:
                where[place][int(index)] = array
            else:
                where[place] = array
        outputs = ordered(sample, listed(function(*new_args, **new_kwargs)), places)
        rank = ranks(sample)
        return [gauged(outputs[i], sample.gauge[i] if sample.gauge else None, rank) for i in used]

    arrays = [argument(sample, key, args, kwargs) for key in keys]
    cotangents = [to_mlx(sample.cotangents[i]) for i in used]
    _, grads = mx.vjp(of, arrays, cotangents)
    for key, array, grad in zip(keys, arrays, grads, strict=False):
        compare_gradient(sample, key, array, grad)


def argument(sample: Sample, key: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return the argument that a gradient is for."""
    name, _, index = key.partition(".")
    value = kwargs[name] if name in kwargs else args[sample.names.index(name)]
    return value[int(index)] if index else value


def compare_gradient(sample: Sample, key: str, array: mx.array, grad: mx.array) -> None:
    """Raise Mismatch if the gradient of an array is not torch's."""
    expected, where = sample.gradients[key], f"gradient of {key}"
    if expected is None:
        close(to_numpy(grad), np.zeros(array.shape), (0, 0), where)
        return
    if is_exchanged(sample) and expected.step > 1:
        return  # a part of the gradient
    found = compared(sample, grad, expected, key)
    if is_exchanged(sample):
        found = [by_elements(sample, value) for value in found]
    got, wanted, *others = found
    limits = allowed(sample, expected.dtype, GRADIENT * sample.slack[1])
    # what torch cannot say is free, and an element that makes its result NaN has no slope
    free = np.isnan(wanted) | nan_to_nan(sample, array, wanted.shape)
    free |= free_vectors(sample) | dependent(sample)
    got = np.where(free, wanted, got) if got.shape == wanted.shape else got
    close(got, wanted, limits, where, others, is_sum(sample, expected.dtype))


def nan_to_nan(sample: Sample, given: mx.array, shape: tuple[int, ...]) -> Any:
    """Return where elements are NaN and results of the same shape are, too."""
    of_elements = [out for out in sample.out if out.shape == shape == tuple(given.shape)]
    results = [np.isnan(to_numpy(to_mlx(out))) for out in of_elements if out.step == 1]
    return np.isnan(to_numpy(given)) & np.any(results, axis=0) if results else False


def size_of(array: Array) -> int:
    """Return the number of elements of a recorded array."""
    return math.prod(array.shape)


def places_are_free(sample: Sample, index: int) -> bool:
    """Return whether a result is an array of places where equal elements can be exchanged."""
    return PLACES.get(sample.overload.partition(".")[0]) == index and not sample.kwargs.get(
        "stable"
    )


def is_exchanged(sample: Sample) -> bool:
    """Return whether equal elements may exchange their gradients."""
    return sample.overload.partition(".")[0] in EXCHANGED and not sample.kwargs.get("stable")


def by_elements(sample: Sample, gradient: Any) -> Any:
    """Return a gradient in the order of the elements, and of equal ones in its own order."""
    given = dict(zip(sample.names, sample.args, strict=False)) | sample.kwargs
    axis = EXCHANGED[sample.overload.partition(".")[0]]
    axis = given.get("dim", -1) if axis is None else axis
    x = to_numpy(to_mlx(given["self"]))
    if not x.ndim:
        return gradient
    return np.take_along_axis(gradient, np.lexsort((gradient, x), axis=axis), axis)


def is_too_narrow(sample: Sample) -> bool:
    """Return whether a call converts integers to float64 that have no float32."""
    given = [*sample.args, *sample.kwargs.values()]
    integers = [a.data for a in given if isinstance(a, Array) and a.dtype.startswith("int")]
    large = any((np.abs(data.astype(float)) > EXACT).any() for data in integers)
    return large and Dtype("float64") in given


def same_elements(sample: Sample, actual: Any, expected: Any, where: str) -> None:
    """Raise Mismatch unless two arrays of places, all different, lead to equal elements."""
    given = dict(zip(sample.names, sample.args, strict=False)) | sample.kwargs
    x, axis = to_numpy(to_mlx(given["self"])), given.get("dim", -1)
    if x.ndim == 0:
        close(actual, expected, (0, 0), where)
        return
    reduced = expected.ndim < x.ndim
    places = [np.expand_dims(a, axis) if reduced else a for a in (actual, expected)]
    ordered = np.sort(places[0], axis)
    if ordered.size and (ordered.min() < 0 or ordered.max() >= x.shape[axis]):
        raise Mismatch(f"{where}: a place outside of the array")
    once = (np.diff(np.sort(places[1], axis), axis=axis) != 0).all()
    if once and (np.diff(ordered, axis=axis) == 0).any():
        raise Mismatch(f"{where}: a place twice")
    found, wanted = (np.take_along_axis(x, a, axis) for a in places)
    close(found, wanted, (0, 0), f"element at {where}")


def rejects(
    sample: Sample, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Raise NoError unless a call that torch rejects raises an exception here too."""
    assert sample.raises
    if any(re.search(pattern, sample.raises[1]) for pattern in UNSEEN):
        return
    try:
        mx.eval(function(*args, **kwargs))
    except Exception:
        return
    raise NoError(f"no error; torch: {': '.join(sample.raises)}")


def compared(
    sample: Sample, actual: mx.array, expected: Array, key: str
) -> list[np.ndarray[Any, Any]]:
    """Return the values to compare (recorded ones of large results), and torch's others."""
    kinds = (sample.double, sample.scalar, sample.decomposed)
    others = [kind[key] for kind in kinds if key in kind]
    got = to_numpy(actual)
    got = got.reshape(-1)[:: expected.step] if expected.step > 1 else got
    wanted = to_numpy(to_mlx(expected))
    if re.match(SOLUTIONS, sample.overload.partition(".")[0]) and got.shape == wanted.shape:
        # infinite numbers of an overflow or a singular matrix cancel or not, by the order of steps
        got = np.where(~np.isfinite(got) & ~np.isfinite(wanted), wanted, got)
    return [got, wanted, *(to_numpy(to_mlx(value)) for value in others)]


def nan_given(sample: Sample, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return where an argument is NaN and not infinite; everywhere if its shape is another one."""
    given = np.zeros(like.shape, bool)
    for array in arrays_of(sample):
        values = to_numpy(to_mlx(array))
        nan = np.isnan(values) & ~np.isinf(values)
        fits = nan.ndim <= like.ndim and nan.shape == like.shape[like.ndim - nan.ndim :]
        given |= nan if fits else nan.any()
    return given


def listed(result: Any) -> list[Any]:
    """Return the results as a list."""
    return list(result) if isinstance(result, (list, tuple)) else [result]


def ranks(sample: Sample) -> int:
    """Return how many vectors are defined, where results are free up to a phase."""
    return int(sample.out[sample.gauge.index(None)].shape[-1]) if sample.gauge else 0


def gauged(array: mx.array, gauge: str | None, rank: int) -> mx.array:
    """Return what does not depend on a phase: absolute values of the vectors that are defined."""
    if gauge is None or array.size == 0:
        return array
    return mx.abs(array[..., :rank] if gauge == "columns" else array[..., :rank, :])


def order(sample: Sample, result: list[mx.array]) -> np.ndarray[Any, Any] | None:
    """Return the places of torch's eigenvalues among the result's, where their order is free."""
    expected = sample.out[0] if sample.out else None
    if sample.overload not in UNORDERED or not expected or not size_of(expected):
        return None
    if tuple(result[0].shape) != expected.shape:
        return None
    found, wanted = to_numpy(result[0]), to_numpy(to_mlx(expected))
    gaps = np.abs(wanted[..., :, None] - found[..., None, :])
    places = np.zeros(wanted.shape, np.int32)
    for row in range(wanted.shape[-1]):
        place = np.argmin(np.nan_to_num(gaps[..., row, :], nan=0), axis=-1)[..., None]
        places[..., row] = place[..., 0]
        np.put_along_axis(gaps, place[..., None, :], np.inf, axis=-1)
    return places


def ordered(
    sample: Sample, result: list[mx.array], places: np.ndarray[Any, Any] | None
) -> list[mx.array]:
    """Return the results with eigenvalues, and their vectors, in an order."""
    if places is None:
        return result
    index = mx.array(places)
    values = mx.take_along_axis(result[0], index, axis=-1)
    vectors = [mx.take_along_axis(x, index[..., None, :], axis=-1) for x in result[1:]]
    return [values, *vectors]


def equal_values(sample: Sample) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return which values of a factorization are equal, in pairs, and which ones are 0."""
    values = to_numpy(to_mlx(sample.out[sample.gauge.index(None)]))
    limit = NEAR * np.abs(values).max(axis=-1, keepdims=True, initial=0)
    gaps = np.abs(values[..., :, None] - values[..., None, :])
    return (gaps <= limit[..., None]) | np.eye(values.shape[-1], dtype=bool), values <= limit


def spaces(sample: Sample, index: int, array: np.ndarray[Any, Any]) -> Any:
    """Return what does not depend on phases, nor on a basis for equal values.

    This is, for each vector, the projection onto the space of its value, times its length. The
    space of the value 0 is free where there are further vectors.
    """
    if not sample.gauge or sample.gauge[index] is None or array is None or array.size == 0:
        return array
    columns = array if sample.gauge[index] == "columns" else np.swapaxes(array.conj(), -1, -2)
    equal, zero = equal_values(sample)
    count = equal.shape[-1]
    found = np.zeros((*equal.shape[:-1], columns.shape[-2], columns.shape[-2]), columns.dtype)
    for place in np.ndindex(equal.shape[:-1]):
        *batch, j = place
        if columns.shape[-2] > count and zero[place]:
            continue
        vectors = columns[(*batch, slice(None), slice(count))][:, equal[place]]
        basis = np.linalg.qr(vectors)[0]
        found[place] = basis @ basis.conj().T * np.linalg.norm(columns[(*batch, slice(None), j)])
    return found


def free_vectors(sample: Sample) -> Any:
    """Return the matrices in which vectors are free, so that gradients through them are too."""
    if not any(g and c for g, c in zip(sample.gauge, sample.cotangents, strict=False)):
        return False
    equal, zero = equal_values(sample)
    others = any(
        array.shape[-1 if gauge == "rows" else -2] > equal.shape[-1]
        for array, gauge in zip(sample.out, sample.gauge, strict=True)
        if gauge and size_of(array)
    )
    free = equal.sum(axis=(-2, -1)) > equal.shape[-1]
    for array, gauge in zip(sample.out, sample.gauge, strict=True):
        if gauge and size_of(array):
            # the absolute value of an element that is 0 has no slope
            lengths = to_numpy(gauged(to_mlx(array), gauge, ranks(sample)))
            free |= (lengths <= NEAR).any(axis=(-2, -1))
    return (free | (zero.any(axis=-1) & others))[..., None, None]


def independent(sample: Sample) -> Any:
    """Return how many first columns are independent, where a decomposition is unique for these."""
    index = TRIANGLES.get(sample.overload)
    if index is None or not size_of(sample.out[index]):
        return None
    r = np.abs(to_numpy(to_mlx(sample.out[index])))
    pivots = np.diagonal(r, axis1=-2, axis2=-1)
    small = pivots <= NEAR * np.triu(r).max(axis=(-2, -1))[..., None]
    return np.where(small.any(axis=-1), small.argmax(axis=-1), small.shape[-1])


def dependent(sample: Sample) -> Any:
    """Return the matrices whose decomposition is not unique, and has no gradient."""
    count = independent(sample)
    if count is None:
        return False
    shape = sample.out[TRIANGLES[sample.overload]].shape
    return (count < min(shape[-2:]))[..., None, None]


def unique(sample: Sample, index: int, array: np.ndarray[Any, Any]) -> Any:
    """Return the vectors of a decomposition of independent columns, and zeros for the others."""
    count = independent(sample)
    if count is None or array is None or array.size == 0 or not dependent(sample).any():
        return array
    vector = array.ndim == count.ndim + 1
    columns = np.arange(array.shape[-1])
    rows = columns if vector else np.arange(array.shape[-2])[:, None]
    triangle = index == TRIANGLES[sample.overload]
    # geqrf has vectors in columns below the diagonal
    place = np.minimum(rows, columns) if index == 0 and triangle else rows if triangle else columns
    return np.where(place < (count[..., None] if vector else count[..., None, None]), array, 0)


def is_sum(sample: Sample, dtype: str) -> bool:
    """Return whether an element's error is relative to the largest element of its matrix."""
    name = sample.overload.partition(".")[0]
    return dtype in ("float32", "complex64") and SUMS.match(name) is not None


def allowed(sample: Sample, dtype: str, slack: float) -> tuple[float, float]:
    """Return the relative and absolute tolerance of a result."""
    rtol, atol = TOLERANCES.get(NARROWER.get(dtype, dtype), (0.0, 0.0))
    if sample.tolerance:
        rtol, atol = max(rtol, sample.tolerance[0]), max(atol, sample.tolerance[1])
    return rtol * slack, atol * slack


def close(
    actual: Any,
    expected: Any,
    limits: tuple[float, float],
    where: str,
    others: Sequence[Any] = (),
    of_sums: bool = False,
) -> None:
    """Raise Mismatch with the first place where two arrays differ by more than allowed.

    ``others`` are further results of torch for the same arguments: each of them is right. Elements
    ``of_sums`` have errors relative to the largest element of their matrix.
    """
    if actual.shape != expected.shape:
        raise Mismatch(f"{where}: shape {actual.shape} instead of {expected.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        good = np.isclose(actual, expected, rtol=limits[0], atol=limits[1], equal_nan=True)
        for other in others:
            good |= np.isclose(actual, other, rtol=limits[0], atol=limits[1], equal_nan=True)
        if of_sums and expected.ndim > 1 and expected.size:
            largest = np.abs(np.where(np.isfinite(expected), expected, 0)).max((-2, -1))
            good |= np.abs(actual - expected) <= limits[0] * largest[..., None, None]
    if np.iscomplexobj(expected):
        # an infinite complex number has many forms, which depend on the order of the operations
        good |= ~np.isfinite(actual) & ~np.isfinite(expected)
    if not good.all():
        nan = np.isnan(actual) & np.isfinite(expected) & ~good
        kind, good = (Nan, ~nan) if nan.any() else (Mismatch, good)
        place = tuple(int(i) for i in np.argwhere(~good)[0])
        raise kind(
            f"{where}: {actual[place]} instead of {expected[place]} at {list(place)}, "
            f"{int((~good).sum())} of {good.size}"
        )
