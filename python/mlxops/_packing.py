"""Packed rows for the models of ``mlx_lm`` and ``mlx_vlm``: several sequences in one row.

``Packing.packed`` is a context in which a package's masks, attention, short convolutions, token
shifts and recurrences know the starts of the sequences, of which each sees only itself. Positions
continue from one sequence to the next, so that the family must depend on differences of positions
only, as with RoPE, M-RoPE and ALiBi. ``families`` are those whose results and gradients the tests
compare with those of the sequences alone. Others are an error, as those with learned positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn

from mlxops import _models, nn
from mlxops._models import Place, too_many_states


class _Row:
    """The starts of the sequences of a row, and the masks for them."""

    def __init__(self, cu_seqlens: mx.array, convolutions: set[int], limit: int | None) -> None:
        self.cu_seqlens = cu_seqlens
        self.convolutions = convolutions  # of the language model, by their id
        self.limit = limit  # of the steps
        self._masks: dict[tuple[int, int | None], mx.array] = {}

    def mask(self, steps: int, window: int | None) -> mx.array:
        """Return the mask of causal attention. MLX computes it only if something reads it."""
        if self.limit is not None and steps > self.limit:
            raise ValueError(
                f"[packed] The model scales RoPE otherwise in rows of more than {self.limit} "
                f"steps, and this row has {steps}."
            )
        key = steps, window
        if key not in self._masks:
            at = mx.arange(steps)
            number = self.sequence_of(at)
            mask = (at[:, None] >= at) & (number[:, None] == number)
            self._masks[key] = mask if window is None else mask & (at[:, None] < at + window)
        return self._masks[key]

    def window(self, mask: Any) -> tuple[bool, int | None]:
        """Return whether a mask is one of ``mask``, and its window."""
        return next(((True, key[1]) for key, m in self._masks.items() if m is mask), (False, None))

    def sequence_of(self, steps: mx.array) -> mx.array:
        """Return the numbers of the sequences of steps; those behind the last one have the next."""
        return (steps[:, None] >= self.cu_seqlens).sum(-1)

    def starts(self, steps: int) -> mx.array:
        """Return for each step whether a sequence starts there."""
        return (mx.arange(steps)[:, None] == self.cu_seqlens).any(-1)


_row: _Row | None = None
_CONVOLUTION = ("mlx.nn.layers.convolution", "Conv1d.__call__")


def _active() -> _Row:
    assert _row is not None
    return _row


class Packing:
    """The packed rows of a package.

    ``base`` is the module of its masks and attention, ``shift`` that of RWKV-7's ``TokenShift``.
    """

    def __init__(
        self, package: str, requires: str, base: str, shift: str, families: Iterable[str]
    ) -> None:
        self.families = frozenset(families)
        self._models = package.replace("-", "_") + ".models."
        self._attention: Place = (base, "scaled_dot_product_attention")
        self._shift: Place = (shift, "TokenShift.__call__")
        replaced = {
            (base, "create_attention_mask"): self._masks(),
            self._attention: self._attend(),
            _CONVOLUTION: self._convolve(),
            self._shift: self._shifted(),
        }
        self._patch = _models.Patch(f"{package}, packed", requires, replaced, {}, {}, {})

    def _masks(self) -> Any:
        def create_attention_mask(
            h: mx.array,
            cache: Any = None,
            window_size: int | None = None,
            return_array: bool = False,
        ) -> mx.array:
            """Return the mask of causal attention within each sequence."""
            steps = h.shape[1]
            window = window_size if window_size and steps > window_size else None
            return _active().mask(steps, window)

        return create_attention_mask

    def _attend(self) -> Any:
        def scaled_dot_product_attention(
            queries: mx.array,
            keys: mx.array,
            values: mx.array,
            cache: Any,
            scale: float,
            mask: Any,
            sinks: mx.array | None = None,
        ) -> mx.array:
            """Compute attention within each sequence; the package computes other masks."""
            known, window = _active().window(mask)
            if cache is not None or not known:
                own = self._patch.own(self._attention)
                return own(queries, keys, values, cache, scale, mask, sinks)  # type: ignore[no-any-return]
            return nn.attention(
                *(queries, keys, values, None, sinks, _active().cu_seqlens),
                **{"scale": scale, "causal": True, "window": window},
            )

        return scaled_dot_product_attention

    def _convolve(self) -> Any:
        def conv1d(layer: Any, x: mx.array) -> mx.array:
            """Compute a short convolution after its zeros with ``nn.causal_conv1d``."""
            if id(layer) not in _active().convolutions:
                return self._patch.own(_CONVOLUTION)(layer, x)  # type: ignore[no-any-return]
            channels, taps, inputs = layer.weight.shape
            if inputs > 1 or channels != x.shape[-1] or layer.stride != 1 or layer.padding != 0:
                raise ValueError(
                    "[packed] The model has a convolution that is not one of single channels."
                )
            x, weight = x[:, taps - 1 :], layer.weight[..., 0]
            bias = layer.get("bias")
            return nn.causal_conv1d(x, weight, bias, cu_seqlens=_active().cu_seqlens)[0]

        return conv1d

    def _shifted(self) -> Any:
        def token_shift(layer: Any, x: mx.array, state: mx.array | None) -> mx.array:
            """Return the step before each step, and zeros for the first one of a sequence."""
            before = self._patch.own(self._shift)(layer, x, state)
            return mx.where(_active().starts(x.shape[1])[:, None], 0, before)

        return token_shift

    @contextmanager
    def packed(self, model: Any, cu_seqlens: mx.array) -> Iterator[None]:
        """Compute rows of several sequences in this context; see ``mlxops.mlx_lm.packed``."""
        global _row
        family = type(model).__module__.removeprefix(self._models).partition(".")[0]
        if family not in self.families:
            raise ValueError(
                f"[packed] Models of {family} are not known to separate the sequences of a row: "
                "train them with one sequence per row."
            )
        if any(type(m).__name__ == "DynamicNTKScalingRoPE" for m in model.modules()):
            raise ValueError("[packed] The model scales RoPE by the length of a row.")
        if any("x_proj" in m and "A_log" in m and too_many_states(m) for m in model.modules()):
            raise ValueError("[packed] nn.selective_scan has at most 64 states.")
        if cu_seqlens.ndim != 1 or cu_seqlens.size < 2:
            raise ValueError(
                "[packed] cu_seqlens must have the starts of the sequences and the end."
            )
        if not mx.issubdtype(cu_seqlens.dtype, mx.integer):
            raise ValueError(f"[packed] cu_seqlens must be integers, not {cu_seqlens.dtype}.")
        if _row is not None:
            raise RuntimeError("[packed] The context is already active.")
        language = getattr(model, "language_model", model)
        convolutions = {id(m) for m in language.modules() if isinstance(m, mlx.nn.Conv1d)}
        # mlx-vlm's LongRoPE; that of mlx-lm is the same for all rows.
        limits = [
            m.original_max_position_embeddings
            for m in model.modules()
            if hasattr(m, "_short_freqs")
        ]
        _row = _Row(cu_seqlens.astype(mx.int32), convolutions, min(limits, default=None))
        _models.cu_seqlens = _row.cu_seqlens
        self._patch.install()
        try:
            yield
        finally:
            self._patch.uninstall()
            _row = _models.cu_seqlens = None
