"""Layers of ``mlx.nn`` that compute with operators of mlxops.

    >>> from mlxops import layers
    >>> lstm = layers.LSTM(64, 128, num_layers=2, bidirectional=True)
    >>> hidden, cell = lstm(mx.random.normal((8, 100, 64)))  # both (8, 100, 256)

- ``LSTM`` and ``GRU`` compute all time steps in one operator; ``mlx.nn``'s compute each step with
  several operations. They have the parameters and the call of ``mlx.nn``'s layers, so that weights
  of these load. They also have several layers, both directions, and ``with_state``.
- ``RMSNormResidual``, ``LayerNormResidual``, ``NormAddNorm`` and ``RMSNormGate`` are norms in one
  pass with the operation before or after.
- ``linear_cross_entropy`` is the loss of a layer's logits, which are never all stored.

Parameters are float32; ``set_dtype`` changes that. The operators determine the dtypes of results:
those of the arguments, promoted. Cell states are at least float32. Arguments of the wrong shape
raise a ``ValueError`` in the call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
import mlx.nn

import mlxops
from mlxops import nn

__all__ = [
    "GRU",
    "LSTM",
    "LayerNormResidual",
    "NormAddNorm",
    "RMSNormGate",
    "RMSNormResidual",
    "linear_cross_entropy",
]

_MOST_UNITS = 1024  # of the kernels
_Sequences = tuple[mx.array, ...]  # the results of all time steps, such as hidden and cell states


class _Recurrent(mlx.nn.Module):
    """Layers of a recurrence, in one or both directions."""

    gates: int

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_layers: int, bidirectional: bool
    ) -> None:
        super().__init__()
        if not 0 < hidden_size <= _MOST_UNITS:
            raise ValueError(
                f"[{self._name}] hidden_size must be from 1 to {_MOST_UNITS}, not {hidden_size}."
            )
        if num_layers < 1:
            raise ValueError(f"[{self._name}] num_layers must be at least 1, not {num_layers}.")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bidirectional = bidirectional
        self.has_bias = bias
        if not self._is_stack:
            limit = 1 / math.sqrt(hidden_size)
            self.Wx = _uniform(limit, self.gates * hidden_size, input_size)
            self.Wh = _uniform(limit, self.gates * hidden_size, hidden_size)
            self._set_biases(limit)
            return
        directions = 2 if bidirectional else 1
        sizes = [input_size, *[directions * hidden_size] * (num_layers - 1)]
        self.layers = [self._layer(size) for size in sizes]
        if bidirectional:
            self.backward_layers = [self._layer(size) for size in sizes]

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _is_stack(self) -> bool:
        """True if the parameters are those of other layers."""
        return self.num_layers > 1 or self.bidirectional

    def _set_biases(self, limit: float) -> None:
        raise NotImplementedError

    def _layer(self, input_size: int) -> _Recurrent:
        """Return a single layer."""
        raise NotImplementedError

    def _steps(
        self, x: mx.array, states: Sequence[mx.array | None], cu_seqlens: mx.array | None
    ) -> _Sequences:
        """Compute a single layer for x, ``(B, L, D)``, and states, ``(B, H)``."""
        raise NotImplementedError

    def _extra_repr(self) -> str:
        return (
            f"input_dims={self.input_size}, hidden_size={self.hidden_size}, bias={self.has_bias}, "
            f"num_layers={self.num_layers}, bidirectional={self.bidirectional}"
        )

    def _sequences(
        self,
        x: mx.array,
        names: Sequence[str],
        states: Sequence[mx.array | None],
        cu_seqlens: mx.array | None = None,
    ) -> tuple[_Sequences, list[_Sequences]]:
        """Return the results of the last layer, and those of each layer and direction.

        The latter are in the order of their computation, which begins at the end in a backward
        direction.
        """
        self._check(x, names, states)
        if not self._is_stack:
            results = self._batched(x, states, cu_seqlens)
            return results, [results]
        # The starts in the backward direction.
        turned_starts = None if cu_seqlens is None else x.shape[-2] - cu_seqlens[::-1]
        last: _Sequences = ()
        every: list[_Sequences] = []
        for n, layer in enumerate(self.layers):
            both: list[_Recurrent] = [layer]
            if self.bidirectional:
                both.append(self.backward_layers[n])
            turned: list[_Sequences] = []
            for backward, one in enumerate(both):
                at = len(every)
                results = one._batched(
                    x[..., ::-1, :] if backward else x,
                    [None if state is None else state[at] for state in states],
                    turned_starts if backward else cu_seqlens,
                )
                every.append(results)
                turned.append(
                    tuple(a[..., ::-1, :] for a in results) if backward else tuple(results)
                )
            last = tuple(mx.concatenate(list(pair), axis=-1) for pair in zip(*turned, strict=True))
            x = last[0]
        return last, every

    def _last(
        self, x: mx.array, states: Sequence[mx.array | None], every: list[_Sequences]
    ) -> list[mx.array]:
        """Return the states after all steps, in the shape of the argument."""
        if x.shape[-2] == 0:
            return [
                mx.zeros(self._shape_of_states(x), every[0][n].dtype) if state is None else state
                for n, state in enumerate(states)
            ]
        ends = [[results[n][..., -1, :] for results in every] for n in range(len(states))]
        return [mx.stack(end) if self._is_stack else end[0] for end in ends]

    def _shape_of_states(self, x: mx.array) -> tuple[int, ...]:
        shape = (*x.shape[:-2], self.hidden_size)
        return (self.num_layers * (1 + self.bidirectional), *shape) if self._is_stack else shape

    def _check(self, x: mx.array, names: Sequence[str], states: Sequence[mx.array | None]) -> None:
        if x.ndim < 2 or x.shape[-1] != self.input_size:
            raise ValueError(
                f"[{self._name}] x must be (..., L, {self.input_size}), not {x.shape}."
            )
        wanted = self._shape_of_states(x)
        for name, state in zip(names, states, strict=True):
            if state is not None and state.shape != wanted:
                raise ValueError(
                    f"[{self._name}] {name} must be {wanted} for x of shape {x.shape}, "
                    f"not {state.shape}."
                )

    def _batched(
        self, x: mx.array, states: Sequence[mx.array | None], cu_seqlens: mx.array | None
    ) -> _Sequences:
        """Compute a single layer for x, ``(..., L, D)``, and states, ``(..., H)``."""
        batch = x.shape[:-2]
        if len(batch) == 1:
            return self._steps(x, states, cu_seqlens)
        if not batch:
            alone = [None if s is None else s[None] for s in states]
            rows = self._steps(x[None], alone, cu_seqlens)
            return tuple(a.squeeze(0) for a in rows)
        flat = [None if s is None else s.flatten(0, -2) for s in states]
        rows = self._steps(x.flatten(0, -3), flat, cu_seqlens)
        return tuple(mx.unflatten(a, 0, batch) for a in rows)


class LSTM(_Recurrent):
    """Long short-term memory (``nn.lstm``), with the parameters and the call of ``mlx.nn.LSTM``.

    A single layer has the parameters ``Wx``, ``(4 H, D)``, ``Wh``, ``(4 H, H)``, and ``bias``,
    ``(4 H,)``: those of torch's layer, whose two biases are added. Several layers, or both
    directions, have a list of single layers, ``layers``, and one for the other direction,
    ``backward_layers``. As in ``torch.nn.LSTM``, the next layer gets the hidden states of both
    directions, and the first state of the backward direction is at the end.

    Args:
        input_size: D.
        hidden_size: H, at most 1024.
        bias: If false, there is no bias.
        num_layers: The number of layers.
        bidirectional: If true, each layer has a second one that begins at the end.
    """

    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, num_layers, bidirectional)

    def __call__(
        self,
        x: mx.array,
        hidden: mx.array | None = None,
        cell: mx.array | None = None,
        *,
        cu_seqlens: mx.array | None = None,
    ) -> tuple[mx.array, mx.array]:
        """Return the hidden and the cell states of the last layer after every step.

        Args:
            x: Inputs, ``(..., L, D)``: any number of sequences, or one.
            hidden: The first hidden state, ``(..., H)``, zeros by default. With several layers or
                both directions it is ``(num_layers * directions, ..., H)``, each layer's forward
                direction before the backward one.
            cell: The first cell state, of the same shape.
            cu_seqlens: The starts of packed sequences and the end of the last one, for all rows.
                The first state is that of the first sequence, and in the backward direction that of
                the last one.

        Returns:
            Two arrays, ``(..., L, directions * H)``.
        """
        (y, cells), _ = self._sequences(x, ("hidden", "cell"), (hidden, cell), cu_seqlens)
        return y, cells

    def with_state(
        self, x: mx.array, hidden: mx.array | None = None, cell: mx.array | None = None
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Return the hidden states of the last layer, and both states after all steps.

        The states have the shape of ``hidden``, and are the arguments for the steps that follow.
        """
        states = (hidden, cell)
        (y, _), every = self._sequences(x, ("hidden", "cell"), states)
        last_hidden, last_cell = self._last(x, states, every)
        return y, last_hidden, last_cell

    def _set_biases(self, limit: float) -> None:
        self.bias = _uniform(limit, self.gates * self.hidden_size) if self.has_bias else None

    def _layer(self, input_size: int) -> LSTM:
        return LSTM(input_size, self.hidden_size, self.has_bias)

    def _steps(
        self, x: mx.array, states: Sequence[mx.array | None], cu_seqlens: mx.array | None
    ) -> _Sequences:
        return nn.lstm(nn.linear(x, self.Wx, self.bias), self.Wh, *states, cu_seqlens)


class GRU(_Recurrent):
    """Gated recurrent units (``nn.gru``), with the parameters and the call of ``mlx.nn.GRU``.

    A single layer has the parameters ``Wx``, ``(3 H, D)``, ``Wh``, ``(3 H, H)``, ``b``,
    ``(3 H,)``, and ``bhn``, ``(H,)``. ``bhn`` is the last third of torch's ``bias_hh``, and ``b``
    is the sum of torch's biases without it. Several layers and both directions are those of
    ``LSTM``.

    Args:
        input_size: D.
        hidden_size: H, at most 1024.
        bias: If false, there are no biases.
        num_layers: The number of layers.
        bidirectional: If true, each layer has a second one that begins at the end.
    """

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, num_layers, bidirectional)

    def __call__(
        self,
        x: mx.array,
        hidden: mx.array | None = None,
        *,
        cu_seqlens: mx.array | None = None,
    ) -> mx.array:
        """Return the hidden states of the last layer after every step.

        Args:
            x: Inputs, ``(..., L, D)``: any number of sequences, or one.
            hidden: The first hidden state, ``(..., H)``, zeros by default. With several layers or
                both directions it is ``(num_layers * directions, ..., H)``, each layer's forward
                direction before the backward one.
            cu_seqlens: The starts of packed sequences and the end of the last one, for all rows.
                The first state is that of the first sequence, and in the backward direction that of
                the last one.

        Returns:
            Hidden states, ``(..., L, directions * H)``.
        """
        (y,), _ = self._sequences(x, ("hidden",), (hidden,), cu_seqlens)
        return y

    def with_state(self, x: mx.array, hidden: mx.array | None = None) -> tuple[mx.array, mx.array]:
        """Return the hidden states of the last layer, and the state after all steps.

        The state has the shape of ``hidden``, and is the argument for the steps that follow.
        """
        (y,), every = self._sequences(x, ("hidden",), (hidden,))
        (last,) = self._last(x, (hidden,), every)
        return y, last

    def _set_biases(self, limit: float) -> None:
        self.b = _uniform(limit, self.gates * self.hidden_size) if self.has_bias else None
        self.bhn = _uniform(limit, self.hidden_size) if self.has_bias else None

    def _layer(self, input_size: int) -> GRU:
        return GRU(input_size, self.hidden_size, self.has_bias)

    def _steps(
        self, x: mx.array, states: Sequence[mx.array | None], cu_seqlens: mx.array | None
    ) -> _Sequences:
        inputs = nn.linear(x, self.Wx, self.b)
        return (nn.gru(inputs, self.Wh, self.bhn, *states, cu_seqlens),)


class RMSNormResidual(mlx.nn.Module):
    """Add a residual, then normalize the sum as ``mlx.nn.RMSNorm`` (``rms_norm_residual``).

    Args:
        dims: The size D of the last axis; ``weight`` is ``(D,)``.
        eps: Added to the mean square.
    """

    def __init__(self, dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def _extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"

    def __call__(self, x: mx.array, residual: mx.array) -> tuple[mx.array, mx.array]:
        """Return the normalized sum, and the sum: the new residual. All are ``(..., D)``."""
        return mlxops.rms_norm_residual(x, residual, self.weight, eps=self.eps)


class LayerNormResidual(mlx.nn.Module):
    """Add a residual, then normalize as ``mlx.nn.LayerNorm`` (``nn.layer_norm_residual``).

    Args:
        dims: The size D of the last axis; ``weight`` and ``bias`` are ``(D,)``.
        eps: Added to the variance.
        affine: If false, there is neither weight nor bias.
        bias: If false, there is no bias.
    """

    def __init__(
        self, dims: int, eps: float = 1e-5, affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__()
        self.weight = mx.ones((dims,)) if affine else None
        self.bias = mx.zeros((dims,)) if affine and bias else None
        self.dims = dims
        self.eps = eps

    def _extra_repr(self) -> str:
        return f"{self.dims}, eps={self.eps}, affine={self.weight is not None}"

    def __call__(self, x: mx.array, residual: mx.array) -> tuple[mx.array, mx.array]:
        """Return the normalized sum, and the sum: the new residual. All are ``(..., D)``."""
        return nn.layer_norm_residual(x, residual, self.weight, self.bias, eps=self.eps)


class NormAddNorm(mlx.nn.Module):
    """Normalize, add to the residual, and normalize the sum (``nn.norm_add_norm``).

    It replaces two ``mlx.nn.RMSNorm`` between sublayers, such as ``post_attention_layernorm`` and
    ``pre_feedforward_layernorm`` of Gemma 2, whose weights are ``w1 - 1`` and ``w2 - 1``.

    Args:
        dims: The size D of the last axis; ``w1`` and ``w2`` are ``(D,)``.
        eps: Added to both mean squares.
    """

    def __init__(self, dims: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.w1 = mx.ones((dims,))
        self.w2 = mx.ones((dims,))
        self.eps = eps

    def _extra_repr(self) -> str:
        return f"{self.w1.shape[0]}, eps={self.eps}"

    def __call__(self, x: mx.array, residual: mx.array) -> tuple[mx.array, mx.array]:
        """Return the next layer's input, and the new residual. All are ``(..., D)``."""
        return nn.norm_add_norm(x, residual, self.w1, self.w2, eps=self.eps)


class RMSNormGate(mlx.nn.Module):
    """Normalize as ``mlx.nn.RMSNorm``, and multiply by an activated gate (``nn.rms_norm_gate``).

    Args:
        dims: The size D of the last axis; ``weight`` is ``(D,)``.
        eps: Added to the mean square.
        activation: The activation of the gate.
        norm_before_gate: If false, x is multiplied before it is normalized.
    """

    def __init__(
        self,
        dims: int,
        eps: float = 1e-5,
        activation: Literal["silu", "sigmoid"] = "silu",
        norm_before_gate: bool = True,
    ) -> None:
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps
        self.activation: Literal["silu", "sigmoid"] = activation
        self.norm_before_gate = norm_before_gate

    def _extra_repr(self) -> str:
        return (
            f"{self.weight.shape[0]}, eps={self.eps}, activation={self.activation}, "
            f"norm_before_gate={self.norm_before_gate}"
        )

    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        """Return ``rms_norm(x) * weight * act(gate)``. All are ``(..., D)``."""
        return nn.rms_norm_gate(
            x,
            gate,
            self.weight,
            eps=self.eps,
            activation=self.activation,
            norm_before_gate=self.norm_before_gate,
        )


def linear_cross_entropy(
    layer: mlx.nn.Module,
    x: mx.array,
    targets: mx.array,
    *,
    class_weight: mx.array | None = None,
    row_weight: mx.array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logit_softcap: float | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> mx.array:
    """Return the cross entropy of the logits that a layer computes, without storing all of them.

    It is ``nn.linear_cross_entropy``, or ``nn.quantized_linear_cross_entropy`` if the layer is
    quantized. The parameters of the layer have gradients, except quantized weights.

    Args:
        layer: ``mlx.nn.Linear`` or ``mlx.nn.Embedding`` with V words, also quantized.
        x: Its inputs, ``(..., D)``.
        targets: The words, ``(...)``, integers.
        class_weight: Weights of the words, ``(V,)``.
        row_weight: Weights of the rows, ``(...)``.
        ignore_index: The target of rows that are left out.
        label_smoothing: The fraction of the target that all words share.
        z_loss: Factor of the squared logarithm of the sum of exponentials.
        logit_softcap: Limit of the logits.
        reduction: The reduction of the rows' losses.

    Returns:
        The reduced loss, or the losses of the rows, ``(...)``, at least float32.
    """
    # Not isinstance: a subclass may compute other logits.
    quantized = type(layer) in (mlx.nn.QuantizedLinear, mlx.nn.QuantizedEmbedding)
    if not quantized and type(layer) not in (mlx.nn.Linear, mlx.nn.Embedding):
        raise TypeError(
            "[linear_cross_entropy] layer must be Linear, Embedding, QuantizedLinear or "
            f"QuantizedEmbedding of mlx.nn, not {type(layer).__name__}."
        )
    own: Any = layer  # its attributes have no types
    bias = own.get("bias")
    if not quantized:
        return nn.linear_cross_entropy(
            x,
            own.weight,
            targets,
            bias,
            class_weight=class_weight,
            row_weight=row_weight,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            logit_softcap=logit_softcap,
            reduction=reduction,
        )
    return nn.quantized_linear_cross_entropy(
        x,
        own.weight,
        own.scales,
        own.get("biases"),
        targets,
        bias,
        group_size=own.group_size,
        bits=own.bits,
        mode=own.mode,
        class_weight=class_weight,
        row_weight=row_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        logit_softcap=logit_softcap,
        reduction=reduction,
    )


def _uniform(limit: float, *shape: int) -> mx.array:
    return mx.random.uniform(-limit, limit, shape)
