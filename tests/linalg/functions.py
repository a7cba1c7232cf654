"""Functions of decompositions that do not depend on the phases of vectors or on the order of
eigenvalues, as in data/torch_results.py. They accept batches, and the module of operators."""

import mlx.core as mx


def adjoint(x):
    return mx.conj(mx.swapaxes(x, -1, -2))


def cubes(x):
    return x * x * x  # MLX's power has a wrong gradient for complex numbers


def svd(ops, a, full_matrices=False):
    u, s, vh = ops.svd(a, full_matrices)
    k = s.shape[-1]
    return (u[..., :k] * (s**3)[..., None, :]) @ vh[..., :k, :], s


def eigh(ops, a):
    w, v = ops.eigh((a + adjoint(a)) / 2)
    return w, mx.square(mx.abs(v)), (v * (w**2)[..., None, :]) @ adjoint(v)


def eig(ops, a):
    w, v = ops.eig(a)
    return (mx.square(mx.abs(v)) @ (w * w)[..., None])[..., 0]


def qr(ops, a):
    q, r = ops.qr(a)
    sign = mx.stop_gradient(mx.sign(mx.diagonal(r, 0, -2, -1)))
    return q * sign[..., None, :], r * sign[..., :, None]


FUNCTIONS = {
    "svd": svd,
    "full_svd": lambda ops, a: svd(ops, a, full_matrices=True),
    "eigh": eigh,
    "eig": eig,
    "eigvals": lambda ops, a: cubes(ops.eigvals(a)).sum(-1),
    "qr": qr,
    "lu": lambda ops, a: ops.lu(a)[1:],
    "lu_factor": lambda ops, a: ops.lu_factor(a)[0],
    "slogdet": lambda ops, a: ops.slogdet(a)[1],
    "multi_dot": lambda ops, *arrays: ops.multi_dot(list(arrays)),
}


def call(ops, name, *arrays, **options):
    """Call a function, and return its outputs as a list."""
    if name in FUNCTIONS:
        out = FUNCTIONS[name](ops, *arrays, **options)
    else:
        out = getattr(ops, name)(*arrays, **options)
    return list(out) if isinstance(out, tuple | list) else [out]
