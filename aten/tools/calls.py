"""Calls by hand: for overloads that no sample of OpInfo reaches, and for the edges of domains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special
import torch
import torch.nn.functional as F
from generated import stored

#: Overloads that accept the arguments of another one: its calls are recorded for them too.
SAME = {
    "_addmm_activation": "addmm",
    "_logcumsumexp": "logcumsumexp",
    "_stack": "stack",
    "_upsample_bicubic2d_aa": "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa.vec": "_upsample_bilinear2d_aa.vec",
    "_upsample_bicubic2d_aa_backward": "_upsample_bilinear2d_aa_backward",
    "chain_matmul": "linalg_multi_dot",
    "clip": "clamp",
    "clip.Tensor": "clamp.Tensor",
    "nll_loss": "nll_loss_forward",
    "nll_loss2d": "nll_loss2d_forward",
    "norm.Scalar": "sgn",
    "slogdet": "linalg_slogdet",
}


def values(*shape: int, start: float = 0.3) -> torch.Tensor:
    """Return values without a pattern, of both signs."""
    count = torch.Size(shape).numel()
    return (torch.sin(torch.arange(count) * 1.7 + start) * 2).reshape(shape)


def symmetric(*shape: int) -> torch.Tensor:
    """Return symmetric, well-conditioned matrices."""
    matrix = values(*shape)
    return matrix + matrix.mT + 4 * torch.eye(shape[-1])


def depthwise(
    self: Any, weight: Any, kernel_size: Any, bias: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    """Compute _conv_depthwise2d, which torch has for CUDA only."""
    return F.conv2d(self, weight, bias, stride, padding, dilation, groups=self.shape[1])


def cudnn(
    self: Any,
    weight: Any,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: Any,
    benchmark: Any,
    deterministic: Any,
    allow_tf32: Any,
) -> Any:
    """Compute cudnn_convolution, which torch has for CUDA only."""
    convolution = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[self.ndim]
    return convolution(self, weight, None, stride, padding, dilation, groups)


def normalized(input: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: Any) -> Any:
    """Compute batch_norm_elemt, which torch has for CUDA only."""
    shape = [-1 if i == 1 else 1 for i in range(input.ndim)]
    result = (input - mean.reshape(shape)) * invstd.reshape(shape)
    result = result if weight is None else result * weight.reshape(shape)
    return result if bias is None else result + bias.reshape(shape)


#: What torch's CPU build computes otherwise, with the same arguments.
REFERENCES: dict[str, Callable[..., Any]] = {
    "_conv_depthwise2d": depthwise,
    "cudnn_convolution": cudnn,
    "batch_norm_elemt": normalized,
    "mkldnn_adaptive_avg_pool2d": F.adaptive_avg_pool2d,
}


class Digamma(torch.autograd.Function):
    """The digamma function with an infinite slope at its poles."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.digamma(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.where(grad == 0, 0, grad * in_scipy("polygamma", 1, *ctx.saved_tensors))


def in_scipy(name: str, *args: Any) -> torch.Tensor:
    """Return a result of SciPy."""
    values = (a.detach() if isinstance(a, torch.Tensor) else a for a in args)
    return torch.as_tensor(getattr(scipy.special, name)(*map(np.asarray, values)))


def with_value(result: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return another value with the derivatives of a result."""
    result.data.copy_(value)
    return result


def polygamma(n: int, x: torch.Tensor) -> torch.Tensor:
    """Return SciPy's derivatives of the digamma function, which are infinite at its poles."""
    return with_value(torch.polygamma(n, x), in_scipy("polygamma", n, x))


def zeta(x: Any, q: Any) -> torch.Tensor:
    """Return SciPy's zeta function, and its limit for infinite arguments."""
    a, b = torch.as_tensor(x), torch.as_tensor(q)
    vanishes = (a > 1) & (b > 1) & (a.isinf() | b.isinf())
    return with_value(
        torch.special.zeta(x, q), torch.where(vanishes, 0, in_scipy("zeta", x, q)).detach()
    )


def rounded(operator: Any) -> Callable[..., Any]:
    """Return an operator that computes in double precision also of integers, as float32."""
    return lambda x: operator(x if x.is_floating_point() else x.float().double())


def chebyshev(kind: str, shifted: bool) -> Callable[..., Any]:
    """Return Chebyshev's polynomials of a kind by their trigonometric definitions (DLMF 18.5.1)."""

    def polynomial(x: Any, n: Any) -> torch.Tensor:
        # Integers and numbers become float32.
        given = np.asarray(x, np.float32).astype(np.float64)
        degree = np.trunc(np.asarray(n, np.float32).astype(np.float64))
        y, size = (2 * given - 1 if shifted else given), np.abs(2 * given - 1 if shifted else given)
        odd = np.where(degree % 2 == 1, -1.0, 1.0)
        # U_n(-x) = (-1)^n U_n(x), V_n(-x) = (-1)^n W_n(x)
        other = {"t": "t", "u": "u", "v": "w", "w": "v"}[kind]
        with np.errstate(all="ignore"):
            inner, outer = np.arccos(np.minimum(size, 1)), np.arccosh(np.maximum(size, 1))
            found = [
                np.where(
                    size == 1,
                    {"t": 1.0, "u": degree + 1, "v": 1.0, "w": 2 * degree + 1}[part],
                    np.where(
                        size < 1,
                        quotient(part, degree, inner, np.cos, np.sin),
                        quotient(part, degree, outer, np.cosh, np.sinh),
                    ),
                )
                for part in (kind, other)
            ]
        value = np.where(y < 0, odd * found[1], found[0])
        value = np.where(np.isnan(y), y, value)
        # a degree below 0 is none, and torch's are integers of 64 bits
        return torch.as_tensor(np.where((degree >= 0) & (degree < 2.0**63), value, 0))

    return polynomial


def quotient(kind: str, n: Any, angle: Any, cosine: Any, sine: Any) -> Any:
    """Return a polynomial as a function of the angle, which is not 0."""
    return {
        "t": lambda: cosine(n * angle),
        "u": lambda: sine((n + 1) * angle) / sine(angle),
        "v": lambda: cosine((n + 0.5) * angle) / cosine(0.5 * angle),
        "w": lambda: sine((n + 0.5) * angle) / sine(0.5 * angle),
    }[kind]()


def soft_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """Return the loss without the overflow of an exponential."""
    losses = F.softplus(-x * target)
    return losses.mean() if reduction == 1 else losses.sum() if reduction == 2 else losses


def soft_margin_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """Return the gradient of the loss without the overflow of an exponential."""
    slope = -target * torch.sigmoid(-x * target) * grad
    return slope / x.numel() if reduction == 1 else slope


#: What is computed in double precision where torch's operator has no exact result there either.
EXACT: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(["digamma", "special_digamma", "special_psi"], Digamma.apply),
    **dict.fromkeys(["polygamma", "special_polygamma"], polygamma),
    **dict.fromkeys(["special_zeta", "special_zeta.other_scalar"], zeta),
    "soft_margin_loss": soft_margin_loss,
    "soft_margin_loss_backward": soft_margin_loss_backward,
    **{
        f"special_{name}": rounded(getattr(torch.special, name))
        for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai")
    },
    **{
        f"special_{shifted}chebyshev_polynomial_{kind}{overload}": chebyshev(kind, bool(shifted))
        for shifted in ("", "shifted_")
        for kind in "tuvw"
        for overload in ("", ".n_scalar", ".x_scalar")
    },
}


def by_hand() -> dict[str, list[tuple[Any, ...]]]:
    """Return calls by overload: positional arguments, the last one a dict of keywords."""
    image, volume = values(2, 3, 7, 6), values(1, 2, 5, 6, 4)
    weight, bias = values(4, 3, 3, 2, start=1.0), values(4, start=2.0)
    weight3, bias3 = values(3, 2, 2, 3, 2, start=1.0), values(3, start=2.0)
    none: dict[str, Any] = {}
    conv2d = [
        (image, weight, [3, 2], bias, [1, 1], [0, 0], none),
        (image, weight, [3, 2], None, [2, 1], [1, 0], none),
        (image, weight, [3, 2], bias, [1, 2], [1, 1], none),
    ]
    conv3d = [
        (volume, weight3, [2, 3, 2], bias3, [1, 1, 1], [0, 0, 0], none),
        (volume, weight3, [2, 3, 2], None, [2, 1, 1], [1, 0, 1], none),
    ]
    up, up3 = values(3, 2, 3, 3), values(2, 3, 2, 3, 2)
    transposed = (
        [(image, up, [3, 3], none)]
        + [(image, up, [3, 3], b, [2, 1], [1, 0], [1, 0], [1, 1], none) for b in (None, values(2))]
        + [(image, up, [3, 3], None, [1, 1], [0, 0], [0, 0], [2, 1], none)]
    )
    transposed3 = [
        (volume, up3, [2, 3, 2], none),
        (volume, up3, [2, 3, 2], values(3), [2, 1, 1], [1, 0, 0], [1, 0, 0], [1, 1, 2], none),
    ]
    deep = values(3, 1, 3, 3)
    matrix = values(4, 4)
    rows = torch.tensor([0, 0, 1, 3, 3], dtype=torch.int64)
    starts = torch.tensor([0, 2, 3, 3, 5], dtype=torch.int64)
    integers = (values(17, 8) * 30).to(torch.int8), (values(8, 16) * 30).to(torch.int8)
    ldl, pivots = torch.linalg.ldl_factor(symmetric(4, 4))
    where = torch.tensor([[True, False, True], [False, True, False]])
    x = values(2, 3)
    norms = [(x, p) for p in (2, 1, 0, float("inf"), -float("inf"), 3.5)]
    targets = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2]])
    return {
        "_add_relu.Tensor": [
            (x, values(2, 3, start=1.0), none),
            (x, values(3), {"alpha": 2}),
            (x, values(2, 1), {"alpha": -0.5}),
        ],
        "_add_relu.Scalar": [(x, 0.5, none), (x, 1, 2, none)],
        "_addmm_activation": [
            (values(4), values(3, 5), values(5, 4), {"use_gelu": True, "beta": 0.5, "alpha": 2}),
        ],
        "_compute_linear_combination": [
            (values(3, 4), values(2, 3), none),
            (values(2, 3, 2), values(4, 2), none),
        ],
        "_conv_depthwise2d": [
            (image, deep, [3, 3], values(3), [1, 1], [0, 0], [1, 1], none),
            (image, deep, [3, 3], None, [2, 1], [1, 1], [1, 2], none),
        ],
        "_convert_indices_from_coo_to_csr": [
            (rows, 4, none),
            (rows, 6, {"out_int32": True}),
            (rows[:0], 3, none),
        ],
        "_convert_indices_from_csr_to_coo": [
            (starts, torch.tensor([0, 2, 1, 0, 3]), none),
            (starts, torch.tensor([0, 2, 1, 0, 3]), {"out_int32": True, "transpose": True}),
        ],
        "_int_mm": [(*integers, none), (integers[0][:, :8], integers[1][:8, :8], none)],
        "_slow_conv2d_backward.output_mask": [
            (values(2, 4, 5, 5), image, weight, [3, 2], [1, 1], [0, 0], [True, True, True], none),
            (values(2, 4, 4, 5), image, weight, [3, 2], [2, 1], [1, 0], [True, True, True], none),
        ],
        "_slow_conv2d_forward": conv2d,
        "batch_norm_elemt": [
            (image, values(3), values(3), values(3), values(3).abs() + 0.5, 1e-5, none),
            (image, None, None, values(3), values(3).abs() + 0.5, 1e-5, none),
        ],
        "bernoulli.p": [(x, 0.0, none), (x, 1.0, none), (x, 0.3, none)],
        "cudnn_convolution": [
            (image, weight, [0, 0], [1, 1], [1, 1], 1, False, False, False, none),
            (image, deep, [1, 1], [2, 1], [1, 2], 3, False, True, True, none),
            (volume, weight3, [0, 1, 0], [1, 1, 1], [1, 1, 1], 1, False, False, False, none),
        ],
        "fft_fftfreq": [(n, d, none) for n in (5, 8) for d in (1.0, 0.25)],
        "fft_rfftfreq": [(n, d, none) for n in (5, 8) for d in (1.0, 0.25)],
        "frobenius_norm.dim": [
            (matrix, [0, 1], none),
            (matrix, [1], True, none),
            (image, [-1, -2], False, none),
            (torch.tensor([[1 + 2j, 3j], [2.0, 1 - 1j]]), [0, 1], none),
        ],
        "linalg_cond.p_str": [(symmetric(4, 4), p, none) for p in ("fro", "nuc")],
        "linalg_ldl_factor": [(symmetric(4, 4), none), (symmetric(2, 3, 3), none)],
        "linalg_ldl_factor_ex": [(symmetric(4, 4), none), (symmetric(2, 3, 3), none)],
        "linalg_ldl_solve": [(ldl, pivots, values(4, 2), none)],
        "linalg_matrix_rank": [
            (matrix, 1e-5, none),
            (torch.ones(3, 4), 1e-5, none),
            (symmetric(3, 3), 0.5, True, none),
        ],
        "linalg_matrix_rank.tol_tensor": [(matrix, torch.tensor(0.5), none)],
        "linalg_pinv": [
            (values(4, 3), 1e-5, none),
            (values(2, 3, 5), 1e-5, none),
            (symmetric(3, 3), 1e-3, True, none),
        ],
        "linalg_pinv.rcond_tensor": [(values(4, 3), torch.tensor(1e-3), none)],
        "mkldnn_adaptive_avg_pool2d": [(image, [3, 2], none), (image, [7, 6], none)],
        "nll_loss": [
            (values(4, 3), torch.tensor([0, 2, 1, 1]), None, reduction, -100, none)
            for reduction in (0, 1, 2)
        ],
        "nll_loss2d": [
            (values(2, 3, 1, 4), targets[:, None], values(3).abs(), reduction, 2, none)
            for reduction in (0, 1, 2)
        ],
        "norm.Scalar": [(x, none), *((*call, none) for call in norms)],
        "norm.ScalarOpt_dtype": [(*call, {"dtype": torch.float32}) for call in norms],
        "norm.ScalarOpt_dim_dtype": [
            (x, 2, [0], keepdim, {"dtype": torch.float32}) for keepdim in (False, True)
        ],
        "nuclear_norm": [(symmetric(4, 4), none), (values(3, 4), True, none)],
        "nuclear_norm.dim": [
            (values(2, 3, 4), [1, 2], none),
            (values(2, 3, 4), [0, 1], True, none),
        ],
        "normal.float_Tensor": [(0.5, values(3).abs(), none)],
        "randperm": [(5, none), (0, none), (4, {"dtype": torch.int32})],
        "range": [(0, 5, none), (-1.5, 2, none)],
        "range.step": [(0, 5, 2, none), (3, 0, -0.5, none)],
        "scatter.value_reduce": [
            (x, 1, torch.tensor([[0, 1], [2, 2]]), 2.5, {"reduce": reduce})
            for reduce in ("add", "multiply")
        ],
        "slow_conv3d": conv3d,
        "slow_conv3d_forward": conv3d,
        "slow_conv_transpose2d": transposed,
        "slow_conv_transpose3d": transposed3,
        "split_copy.Tensor": [(image, 2, none), (image, 3, 2, none), (image, 4, -1, none)],
        "thnn_conv2d": conv2d,
        "where": [(where, none), (torch.tensor([0.0, 1.0, 2.0]), none)],
        "where.Scalar": [
            (where, 1.5, 2.5, none),
            (where, 1, 2, none),
            (where, 1, 2.5, none),
            (where, True, False, none),
        ],
    }


def at_edges() -> dict[str, list[tuple[Any, ...]]]:
    """Return calls that OpInfo lacks: NaN, infinities, empty arrays, other dtypes, rounding."""
    none: dict[str, Any] = {}
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.5, -2.5, 1e30])
    x, square = values(2, 3), values(3, 3)
    halves = torch.tensor([1.0, nan, 3.0, 2.0, nan, 0.5, 7.0], dtype=torch.float16)
    bytes_ = torch.tensor([0, 1, 2, 200, 255], dtype=torch.uint8)
    integers = torch.tensor([-7, -1, 0, 3, 2**31 - 1], dtype=torch.int32)
    whole = torch.tensor([2**53 + 1, -(2**53) - 1, 2**40 + 3])
    tenths = torch.tensor([6.0, 1.0, -1.0, 0.3, 7.0, -7.0])
    empty = torch.zeros(0, 3)
    places = torch.tensor([[2, 0, 1]])
    rounding = [{"rounding_mode": mode} for mode in ("floor", "trunc")]
    divisions = [
        *((tenths, 0.1, mode) for mode in rounding),
        *((special, torch.tensor([[3.0], [inf], [-inf]]), mode) for mode in rounding),
        *((whole, torch.tensor([3, -2, 5]), mode) for mode in rounding),
        *((integers, torch.tensor([3], dtype=torch.int32), mode) for mode in rounding),
    ]
    shifts = [(integers, torch.tensor([n], dtype=torch.int32), none) for n in (-1, 0, 31, 32, 40)]
    shifts += [(bytes_, torch.tensor([n], dtype=torch.uint8), none) for n in (1, 7, 8, 200)]
    bounds = torch.tensor([0.0, nan, -1.0, 1.0, 2.0, 1.5, nan, 0.0])
    # one array of half precision among wider ones, in each place
    wide, small = values(3, 4, start=1.0), values(3, 4).bfloat16()
    row = values(1, 4, start=2.0).abs() + 0.5
    mixed = [(small, wide, row), (wide, small, row), (wide, wide, row.bfloat16())]
    slopes = [(small, wide), (wide, small)]
    # a few samples of half precision, and statistics and weights of their channels
    batch, means, scales = values(3, 2, 3, 4), values(2), values(2, start=1.0)
    spreads = scales.abs() + 0.1
    halved = [
        [array.to(kind) for array in (batch, scales, means, means, spreads)]
        for kind in (torch.float16, torch.bfloat16)
    ]
    large = torch.tensor([88.0, 89.0, -90.0, 91.5])
    poles = torch.tensor([-1.0, -2.0, -30.0, 0.5])
    logs = values(6, 3, 2, 2, start=2.5)
    classes = (torch.arange(24) * 7 % 3).reshape(6, 2, 2)
    impossible = torch.log_softmax(torch.tensor([[-inf, 0.5, 1.0], [0.2, -inf, 1.5]]), 1)
    counted = torch.tensor([1, -100])
    singular = torch.tensor([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]])
    nothing = torch.zeros(2, 0, 3)
    return {
        "_chunk_cat": [([values(5, 2), values(3, 4)], 0, 4, none)],
        "_linalg_eigh": [(symmetric(2, 3, 3), "L", False, none)],
        "_native_batch_norm_legit": [
            (*arrays, training, 0.1, 1e-5, none) for arrays in halved for training in (False, True)
        ],
        "_slow_conv2d_forward": [
            (values(0, 3, 7, 6), values(4, 3, 3, 2), [3, 2], values(4), [1, 1], [0, 0], none)
        ],
        "add.Tensor": [(bytes_, bytes_, {"alpha": 3}), (bytes_, bytes_, {"alpha": -3})],
        "addcdiv": [(*arrays, {"value": 3.14}) for arrays in mixed],
        "addcmul": [(*arrays, {"value": 3.14}) for arrays in mixed],
        "arange": [(5.0, none), (3.1, {"dtype": torch.int64})],
        "arange.start_step": [
            (-1.0, 1.0, 0.001, none),
            (0.0, -8.000001, -4.0, {"dtype": torch.int64}),
            (0, 10, 3, {"dtype": torch.float16}),
        ],
        "argmax": [(torch.zeros(3, 0, 2), 0, none), (torch.zeros(3, 0, 2), 2, True, none)],
        "atan2": [(torch.zeros(2, 1), torch.tensor([0.0, -0.0, 2.0]), none)],
        "bitwise_left_shift.Tensor": shifts,
        "bitwise_right_shift.Tensor": shifts,
        "cat": [([torch.zeros(0), torch.zeros(1, 0)], none), ([empty[:, 0], places], 1, none)],
        "clamp": [(special, -1.0, 2, none), (special, nan, none)],
        "clamp.Tensor": [(special, bounds, bounds + 1, none)],
        "clamp_max.Tensor": [(special, bounds, none)],
        "clamp_min.Tensor": [(special, bounds, none)],
        "cummax": [(halves, 0, none), (halves.float(), 0, none)],
        "cummin": [(halves, 0, none), (halves.float(), 0, none)],
        "diag": [(empty, none), (empty, 1, none), (torch.zeros(0), 2, none)],
        "digamma": [(poles, none)],
        "div.Tensor_mode": divisions,
        "fft_fftfreq": [(0, none)],
        "fft_rfftfreq": [(0, none)],
        "floor_divide": [(a, torch.as_tensor(b), none) for a, b, _ in divisions],
        "fmod.Tensor": [(a, torch.as_tensor(b), none) for a, b, _ in divisions],
        "fractional_max_pool2d": [
            (values(2, 6, 5), [3, 2], [2, 2], torch.tensor([[[0.1, 0.9], [0.5, 0.3]]]), none)
        ],
        "frexp.Tensor": [(torch.tensor([0.0, -0.0, inf, 1e-40, 3e38, -0.75, 1.0]), none)],
        "full": [([2, 3], 7, none), ([2], True, none), ([2], 2.5, none), ([], -1, none)],
        "gather": [(values(4), 0, torch.zeros(2, 0, dtype=torch.int64), none)],
        "gelu_backward": [
            (g.half(), x.half(), {"approximate": approximate})
            for g, x in [(values(40), values(40, start=1.0))]
            for approximate in ("none", "tanh")
        ],
        "glu_backward": [(values(4, 6).half(), values(4, 12, start=1.0).half(), 1, none)],
        "hardshrink_backward": [(*arrays, 0.5, none) for arrays in slopes],
        "hardsigmoid_backward": [(*arrays, none) for arrays in slopes],
        "hardtanh_backward": [
            *((*arrays, -1.0, 1.0, none) for arrays in slopes),
            (torch.ones(8), special, -1.0, 1.0, none),
        ],
        "histc": [
            (torch.arange(12.0), 11, none),
            (empty, 4, none),
            (values(3) * 0, 4, none),
            (values(9) + 3, 3, 3, 3, none),
        ],
        "histogram.bin_ct": [
            (torch.arange(12.0), 11, none),
            (empty, 3, none),
            (torch.ones(4), 3, none),
            (x, 4, {"range": [-1.0, 1.5], "weight": values(2, 3).abs(), "density": True}),
        ],
        "histogram.bins_tensor": [
            (torch.arange(5.0), torch.tensor([0.0, 1.0, 3.5, 4.0]), none),
            (special, torch.tensor([-1.0, 0.0, 2.0]), {"weight": special.nan_to_num() / 1e30}),
        ],
        "huber_loss": [(x * 1e30, x, 1, 2.0, none)],
        "i0": [(large, none)],
        "index_add": [(bytes_, 0, torch.tensor([1, 1]), bytes_[:2], {"alpha": -2})],
        "index_select": [(x, 1, torch.tensor(2), none), (x, -1, torch.tensor([0, 0]), none)],
        "kron": [(x, torch.zeros(0, 2), none), (torch.zeros(2, 0, 1), x, none)],
        "leaky_relu_backward": [(*arrays, 0.1, False, none) for arrays in slopes],
        "lerp.Scalar": [(torch.tensor([1e8, -1e8]), torch.tensor([1.0, 0.3]), 1.0, none)],
        "lerp.Tensor": [
            (torch.tensor([1e8, 0.1]), torch.tensor([0.3, 1e8]), torch.tensor([1.0, 0.0]), none)
        ],
        "lgamma": [(special, none)],
        "linalg_cond": [(torch.zeros(2, 0, 0), none)],
        "linalg_lstsq": [
            (singular[:1].expand(2, 2, 2).contiguous(), values(2, 2, 1), {"driver": driver})
            for driver in ("gelsy", "gelsd", "gelss")
        ]
        + [
            (values(4, 2)[:, :1] * torch.tensor([1.0, 2.0]), values(4, 3), {"driver": "gelsy"}),
        ],
        "linalg_lu_factor_ex": [(empty, none)],
        "linalg_matrix_rank": [(torch.triu(torch.ones(3, 3), 1), 1e-5, True, none)],
        "linspace": [
            (0, 7, 50, {"dtype": torch.int64}),
            (4.3, -3, 50, {"dtype": torch.int32}),
            (-1, 1, 101, {"dtype": torch.bfloat16}),
            (2, 5, 1, none),
        ],
        "logaddexp": [(*arrays, none) for arrays in slopes],
        "logspace": [
            (4.3, 1.2, 4, {"dtype": torch.float16}),
            (4.3, 0, 1, {"dtype": torch.float16}),
            (2.5, 0, 1, {"dtype": torch.int64}),
        ],
        "logit": [(torch.tensor([-0.1, 0.0, 0.3, 1.0, 1.2]), eps, none) for eps in (None, 0.1)],
        "logsumexp": [(empty, [0], none), (empty, [0], True, none), (empty, [1], none)],
        "median.dim": [(nothing, 0, none), (nothing, 2, True, none)],
        "multi_margin_loss": [(values(3), torch.tensor([2]), 1, 1.0, None, 0, none)],
        "mvlgamma": [(torch.tensor([-inf, -2.0, 2.5, inf]), 3, none)],
        "nanmedian.dim": [(nothing, 0, none), (nothing, 2, True, none)],
        "nll_loss": [(impossible, counted, None, reduction, -100, none) for reduction in (0, 1, 2)],
        "nll_loss2d": [
            (logs.to(kind), classes, None, 1, -100, none)
            for kind in (torch.float16, torch.bfloat16)
        ],
        "nll_loss2d_forward": [
            (logs.to(kind), classes, None, 1, -100, none)
            for kind in (torch.float16, torch.bfloat16)
        ],
        "nll_loss_forward": [(impossible, counted, None, 1, -100, none)],
        "nonzero_static": [
            (torch.tensor([[0.0, nan], [2.0, 0.0]]), {"size": 4, "fill_value": -7}),
            (torch.tensor(3.0), {"size": 2}),
            (empty, {"size": 2}),
        ],
        "polygamma": [(1, poles, none)],
        "range": [(-1.5, 2, none), (0, 5, {"dtype": torch.int64})],
        "searchsorted.Scalar": [(torch.tensor([0.0, 1.0, 2.0]), nan, none)],
        "searchsorted.Tensor": [
            (torch.tensor([0.0, 1.0, 2.0]), special, {"right": right}) for right in (False, True)
        ],
        "smooth_l1_loss": [(x * 1e30, x, 1, 2.0, none)],
        "softshrink_backward": [(*arrays, 0.5, none) for arrays in slopes],
        "special_digamma": [(poles, none)],
        "special_gammaln": [(special, none)],
        "special_i0": [(large, none)],
        "special_i1": [(large, none)],
        "special_modified_bessel_i0": [(large, none)],
        "special_modified_bessel_i1": [(large, none)],
        "special_polygamma": [(1, poles, none)],
        "special_psi": [(poles, none)],
        "special_shifted_chebyshev_polynomial_t": [(bytes_[:3], torch.tensor(4), none)],
        "special_spherical_bessel_j0": [(special, none)],
        "sub.Tensor": [(bytes_, bytes_, {"alpha": -3}), (integers, integers, {"alpha": -2})],
        "take": [(torch.zeros(0), torch.zeros(0, 2, dtype=torch.int64), none)],
        "take_along_dim": [(square, places, 1, none)],
        "threshold": [(integers, 2.5, -0.8, none)],
        "threshold_backward": [(*arrays, 0.5, none) for arrays in slopes],
    }


class Generated(torch.Tensor):
    """A tensor that the samples record by its formula."""

    recipe: tuple[str, int]

    @staticmethod
    def __new__(cls, data: torch.Tensor, recipe: tuple[str, int]) -> Any:
        result = torch.Tensor._make_subclass(cls, data)
        result.recipe = recipe
        return result

    __torch_function__ = torch._C._disabled_torch_function_impl


def made(formula: str, shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> Generated:
    """Return a tensor by one of the formulas of aten/tests/generated.py."""
    name = str(dtype).removeprefix("torch.")
    values = torch.from_numpy(stored(name, list(shape), formula, seed))
    values = values.view(dtype) if dtype == torch.bfloat16 else values
    return Generated(values, (formula, seed))


def large_calls() -> dict[str, list[tuple[Any, ...]]]:
    """Return calls with 100,000 and more elements in 16 bit: sums, products, norms, places."""
    none: dict[str, Any] = {}
    long, wide = [100_000], [3, 40_000]
    found: dict[str, list[tuple[Any, ...]]] = {}

    def add(name: str, *calls: tuple[Any, ...]) -> None:
        found.setdefault(name, []).extend(calls)

    for dtype in (torch.float16, torch.bfloat16):
        ones, row = made("ones", long, dtype), made("steps", long, dtype, 1)
        rows, others = made("steps", wide, dtype, 2), made("steps", wide, dtype, 3)
        high, ties = made("threes", [4, 512], dtype), made("ties", long, dtype)
        signs, matrix = made("signs", long, dtype), made("steps", [40_000, 2], dtype, 4)
        positive = made("ties", wide, dtype, 5)
        places = made("places", wide, torch.int64, 40_000)
        image = made("steps", [2, 3, 200, 100], dtype, 6)
        for name in ("sum", "mean", "nansum", "nanmean", "prod", "std", "var", "var_mean"):
            inputs = (signs, made("ones", wide, dtype)) if name == "prod" else (ones, row, ties)
            add(name, *((x, none) for x in inputs if name != "nansum"))
        for name in ("sum.dim_IntList", "mean.dim", "nansum", "nanmean", "var.dim", "std.dim"):
            add(name, (rows, [1], none), (high, [1], none), (rows, [0], True, none))
        for name in ("var_mean.dim", "var.correction", "std.correction", "var_mean.correction"):
            keyword = {} if name.endswith("dim") else {"correction": 0}
            add(name, (rows, [1], keyword), (high, [1], keyword))
        for name in ("amax", "amin", "logsumexp", "special_logsumexp"):
            add(name, (rows, [1], none), (positive, [-1], True, none))
        for name in ("argmax", "argmin", "max", "min", "median", "nanmedian", "aminmax", "any"):
            add(name, (row, none), (ties, none))
        for name in ("max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode", "cummax",
                     "cummin", "cumsum", "logcumsumexp", "_logcumsumexp"):  # fmt: skip
            add(name, (rows, 1, none))
        add("cumprod", (made("signs", wide, dtype), 1, none))
        add("kthvalue", (rows, 20_000, 1, none))
        add("topk", (rows, 5, 1, none), (ties, 7, none))
        for name in ("argsort.stable", "sort.stable"):
            add(name, (positive, {"stable": True}))
        add("msort", (matrix, none))
        add("quantile", (made("steps", long, torch.float32, 9), 0.3, none))
        for p in (0, 1, 2, 3.0, float("inf")):
            add("linalg_vector_norm", (rows, p, [1], none), (high, p, none), (ones, p, none))
            add("norm.ScalarOpt_dim", (rows, p, [1], none))
            add("norm.Scalar", (row, p, none), (high, p, none))
        add("linalg_norm", (ones, none), (high, None, [1], none))
        add("linalg_matrix_norm", (high, none), (rows, 1, none), (rows, float("inf"), none))
        add("frobenius_norm.dim", (rows, [1], none), (high, [0, 1], none))
        add("renorm", (high, 2, 0, 5.0, none), (rows, 2, 0, 1.0, none))
        for name in ("softmax.int", "log_softmax.int"):
            add(name, (rows, 1, none), (positive, 1, none))
        for name in ("_softmax", "_log_softmax"):
            add(name, (rows, 1, False, none), (high, 1, False, none))
        for name in ("_softmax_backward_data", "_log_softmax_backward_data"):
            result = made("ties", wide, dtype, 8)
            add(name, (others, result, 1, dtype, none))
        for name in ("dot", "vdot", "inner"):
            add(name, (ones, ones, none), (row, signs, none))
        add("linalg_vecdot", (rows, others, none))
        add("mv", (rows, made("steps", [40_000], dtype, 7), none))
        for name in ("mm", "matmul", "linalg_matmul"):
            add(name, (rows, matrix, none), (made("ones", wide, dtype), matrix, none))
        add("linear", (rows, others, none))
        add("addmm", (made("ones", [3, 2], dtype), rows, matrix, none))
        add("bmm", (made("ones", [2, 3, 20_000], dtype), made("ones", [2, 20_000, 2], dtype), none))
        add("baddbmm", (made("ones", [2, 3, 2], dtype), made("ones", [2, 3, 20_000], dtype),
                        made("steps", [2, 20_000, 2], dtype), none))  # fmt: skip
        add("addbmm", (made("ones", [3, 2], dtype), made("ones", [2, 3, 20_000], dtype),
                       made("steps", [2, 20_000, 2], dtype), none))  # fmt: skip
        add("tensordot", (rows, others, [0, 1], [0, 1], none))
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
                     "soft_margin_loss"):  # fmt: skip
            target = made("signs", wide, dtype) if "margin" in name else others
            reductions = [(rows, target, reduction, none) for reduction in (1, 2)]
            add(name, *reductions, (high, made("ones", [4, 512], dtype), 1, none))
        unit = made("places", wide, dtype, 2)
        add("binary_cross_entropy", (unit, unit, None, 1, none))
        add("binary_cross_entropy_with_logits", (rows, unit, None, None, 1, none))
        classes = made("places", [40_000], torch.int64, 2)
        add("nll_loss_forward", (matrix, classes, None, 1, -100, none))
        for name in ("nll_loss", "cross_entropy_loss"):
            add(name, *((matrix, classes, None, r, -100, none) for r in (1, 2)))
        for name in ("cosine_similarity",):
            add(name, (rows, others, 1, none), (high, high, 1, none))
            add(name, (made("ones", [2, 512], dtype), made("ones", [2, 512], dtype), 1, none))
        add("rms_norm", (rows, [40_000], none), (high, [512], none))
        add("layer_norm", (rows, [40_000], none), (high, [512], none))
        add("native_layer_norm", (rows, [40_000], None, None, 1e-5, none))
        add("group_norm", (image, 3, none))
        batched = (image, None, None, None, None, True, 0.1, 1e-5)
        add("native_batch_norm", (*batched, none))
        add("batch_norm", (*batched, False, none))
        add("adaptive_avg_pool2d", (image, [1, 1], none), (image, [3, 2], none))
        add("_adaptive_avg_pool2d", (image, [1, 1], none), (image, [3, 2], none))
        add("avg_pool2d", (image, [100, 50], none))
        add("scatter_add", (made("ones", [3, 5], dtype), 1,
                            made("places", wide, torch.int64, 5), rows, none))  # fmt: skip
        add("index_add", (made("ones", [3, 2], dtype), 0,
                          made("places", [40_000], torch.int64, 3), matrix, none))  # fmt: skip
        add("gather", (rows, 1, places, none))
        tests = (made("places", [20_000], torch.int64, n) for n in (50_000, 49_999))
        add("isin.Tensor_Tensor", (*tests, none))
    return found
