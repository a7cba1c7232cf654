"""Checks of a function of arrays: its derivatives, transforms, dtypes and memory layouts.

``gradcheck`` checks any function of MLX arrays::

    import mlx.core as mx
    from mlxgen.testing import gradcheck

    gradcheck(mx.sin, mx.array([0.5, 1.5]))

The generated checks of a package use the same checks: ``cases`` applies them to the operators, and
``check`` runs all of them. Each check can also be called directly::

    from mlxgen import testing

    x = mx.array([0.5, 1.5])
    testing.check_vjp(mx.sin, [x])
    testing.check_vmap(mx.add, [[x, x], [x + 1, x - 1]])

Every check raises ``AssertionError`` with the operator, the argument or output, and the element
with the largest error. The checks need NumPy and MLX.
"""

from __future__ import annotations

import os
from typing import Literal

import mlx.core as mx

from .checks import check as check
from .compare import Arrays as Arrays
from .compare import Floats as Floats
from .compare import Function as Function
from .compare import Mismatch as Mismatch
from .compare import element_of as element_of
from .compare import is_float as is_float
from .compare import replaced as replaced
from .compare import require_same as require_same
from .compare import subsets as subsets
from .compare import to_numpy as to_numpy
from .derivatives import COORDINATES as COORDINATES
from .derivatives import SAMPLES as SAMPLES
from .derivatives import STENCIL as STENCIL
from .derivatives import STEP as STEP
from .derivatives import check_jvp as check_jvp
from .derivatives import check_not_differentiable as check_not_differentiable
from .derivatives import check_second as check_second
from .derivatives import check_vjp as check_vjp
from .derivatives import pullback as pullback
from .derivatives import require_finite as require_finite
from .gradients import GradcheckError as GradcheckError
from .gradients import gradcheck as gradcheck
from .layouts import LAYOUTS as LAYOUTS
from .layouts import check_layouts as check_layouts
from .layouts import check_long as check_long
from .layouts import check_sizes as check_sizes
from .layouts import contiguous as contiguous
from .layouts import reductions as reductions
from .report import Failure as Failure
from .report import Report as Report
from .transforms import AXES as AXES
from .transforms import check_checkpoint as check_checkpoint
from .transforms import check_compile as check_compile
from .transforms import check_forward as check_forward
from .transforms import check_precision as check_precision
from .transforms import check_vmap as check_vmap
from .transforms import check_vmap_vjp as check_vmap_vjp


def metal_backend() -> Literal["gpu", "emulation"] | None:
    """Return the executor of Metal kernels: a GPU, the emulation (`mlxgen metal-test`), or None."""
    if os.environ.get("MLXGEN_METAL_EMULATION"):
        return "emulation"
    return "gpu" if mx.metal.is_available() else None
