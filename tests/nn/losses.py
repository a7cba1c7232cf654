"""The losses of mlxops.nn in NumPy, in float64, as documented."""

import mlx.core as mx
import numpy as np

EPSILON = {mx.float16: 2**-10, mx.bfloat16: 2**-7, mx.float32: 2**-23, mx.float64: 2**-52}


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(z):
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def cross_entropy(
    logits,
    targets,
    weight=None,
    ignore_index=-100,
    label_smoothing=0.0,
    z_loss=0.0,
    logit_softcap=None,
    reduction="mean",
    row_weight=None,
):
    """Return the loss, and the gradient of its sum."""
    words = logits.shape[-1]
    weight = np.ones(words) if weight is None else np.asarray(weight, np.float64)
    of_rows = np.ones(targets.shape) if row_weight is None else np.asarray(row_weight, np.float64)
    z, slope = logits, np.ones_like(logits)
    if logit_softcap:
        z = logit_softcap * np.tanh(logits / logit_softcap)
        slope = 1 - (z / logit_softcap) ** 2
    losses = np.zeros(targets.shape)
    gradient = np.zeros(logits.shape)
    total = 0.0
    for row in np.ndindex(targets.shape):
        y = targets[row]
        if y == ignore_index or of_rows[row] == 0:
            continue
        total += weight[y] * of_rows[row]
        log_p = log_softmax(z[row])
        lse = z[row][0] - log_p[0]
        one = np.arange(words) == y
        wanted = (1 - label_smoothing) * weight[y] * one + label_smoothing / words * weight
        losses[row] = of_rows[row] * (-(wanted * log_p).sum() + weight[y] * z_loss * lse**2)
        p = np.exp(log_p)
        of_z = wanted.sum() * p - wanted + 2 * weight[y] * z_loss * lse * p
        gradient[row] = of_rows[row] * of_z * slope[row]
    if reduction == "none":
        return losses, gradient
    divisor = total if reduction == "mean" else 1
    return losses.sum() / divisor, gradient / divisor
