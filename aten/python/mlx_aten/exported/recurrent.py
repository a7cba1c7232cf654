"""torch's recurrent layers (LSTM, GRU and RNN) as functions: loops over time, layers, directions.

The steps use mlxops' fused kernels if `fused` is true, else MLX's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mlx.core as mx

# (gates (batch, steps, n * width), weight, bias, state) -> (outputs (batch, steps, width), state)
Cell = Callable[[mx.array, mx.array, mx.array, list[mx.array]], tuple[mx.array, list[mx.array]]]


def lstm(
    input: mx.array,
    hx: list[mx.array],
    params: list[mx.array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    fused: bool = False,
) -> tuple[mx.array, mx.array, mx.array]:
    """Return the outputs and the last hidden and cell states, as `torch.lstm`."""
    cell = _fused_lstm if fused else _lstm
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    output, states = _layers(input, hx, params, *options, cell)
    return output, states[0], states[1]


def gru(
    input: mx.array,
    hx: mx.array,
    params: list[mx.array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    fused: bool = False,
) -> tuple[mx.array, mx.array]:
    """Return the outputs and the last hidden state, as `torch.gru`."""
    cell = _fused_gru if fused else _gru
    output, states = _layers(
        input,
        [hx],
        params,
        has_biases,
        num_layers,
        dropout,
        train,
        bidirectional,
        batch_first,
        cell,
    )
    return output, states[0]


def rnn_tanh(
    input: mx.array,
    hx: mx.array,
    params: list[mx.array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[mx.array, mx.array]:
    """Return the outputs and the last hidden state, as `torch.rnn_tanh`."""
    output, states = _layers(
        input,
        [hx],
        params,
        has_biases,
        num_layers,
        dropout,
        train,
        bidirectional,
        batch_first,
        _tanh,
    )
    return output, states[0]


def rnn_relu(
    input: mx.array,
    hx: mx.array,
    params: list[mx.array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[mx.array, mx.array]:
    """Return the outputs and the last hidden state, as `torch.rnn_relu`."""
    output, states = _layers(
        input,
        [hx],
        params,
        has_biases,
        num_layers,
        dropout,
        train,
        bidirectional,
        batch_first,
        _relu,
    )
    return output, states[0]


def _layers(
    x: mx.array,
    first: list[mx.array],
    params: list[mx.array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    cell: Cell,
) -> tuple[mx.array, list[mx.array]]:
    """Run all layers; `first` are the states before the first step, (layers, batch, width)."""
    alone = x.ndim == 2
    if alone:
        x, first = x[None], [state[:, None] for state in first]
    elif not batch_first:
        x = x.swapaxes(0, 1)
    directions = 1 + bidirectional
    each = len(params) // (num_layers * directions)
    projected = each > (4 if has_biases else 2)  # of LSTMs: the last matrix
    last: list[list[mx.array]] = [[] for _ in first]
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            w_in, w, *rest = params[at * each : (at + 1) * each]
            b_in, b = rest[:2] if has_biases else [mx.zeros(w.shape[0], w.dtype)] * 2
            run = partial(_lstm, projection=rest[-1]) if projected else cell
            steps = x[:, ::-1] if direction else x
            output, states = run(steps @ w_in.T + b_in, w, b, [state[at] for state in first])
            outputs.append(output[:, ::-1] if direction else output)
            for known, state in zip(last, states, strict=True):
                known.append(state)
        x = mx.concatenate(outputs, axis=-1) if bidirectional else outputs[0]
        if train and dropout > 0 and layer + 1 < num_layers:
            x = mx.where(mx.random.bernoulli(1 - dropout, x.shape), x / (1 - dropout), 0)
    stacked = [mx.stack(states) for states in last]
    if alone:
        return x[0], [state[:, 0] for state in stacked]
    return x if batch_first else x.swapaxes(0, 1), stacked


def _lstm(
    x: mx.array,
    w: mx.array,
    b: mx.array,
    state: list[mx.array],
    projection: mx.array | None = None,
) -> tuple[mx.array, list[mx.array]]:
    hidden, cell = state
    outputs = []
    for step in range(x.shape[1]):
        i, f, g, o = mx.split(x[:, step] + (hidden @ w.T + b), 4, axis=-1)
        cell = mx.sigmoid(f) * cell + mx.sigmoid(i) * mx.tanh(g)
        hidden = mx.sigmoid(o) * mx.tanh(cell)
        hidden = hidden if projection is None else hidden @ projection.T
        outputs.append(hidden)
    return mx.stack(outputs, axis=1), [hidden, cell]


def _fused_lstm(
    x: mx.array, w: mx.array, b: mx.array, state: list[mx.array]
) -> tuple[mx.array, list[mx.array]]:
    import mlxops

    hidden, cell = mlxops.nn.lstm(x + b, w, *state)
    return hidden, [hidden[:, -1], cell[:, -1].astype(hidden.dtype)]


def _gru(
    x: mx.array, w: mx.array, b: mx.array, state: list[mx.array]
) -> tuple[mx.array, list[mx.array]]:
    (hidden,) = state
    outputs = []
    for step in range(x.shape[1]):
        r, z, n = mx.split(x[:, step], 3, axis=-1)
        r_hidden, z_hidden, n_hidden = mx.split(hidden @ w.T + b, 3, axis=-1)
        z = mx.sigmoid(z + z_hidden)
        n = mx.tanh(n + mx.sigmoid(r + r_hidden) * n_hidden)
        hidden = (1 - z) * n + z * hidden
        outputs.append(hidden)
    return mx.stack(outputs, axis=1), [hidden]


def _fused_gru(
    x: mx.array, w: mx.array, b: mx.array, state: list[mx.array]
) -> tuple[mx.array, list[mx.array]]:
    import mlxops

    width = w.shape[1]
    # The last third of the bias is inside of the reset gate's product.
    outside = mx.concatenate([b[: 2 * width], mx.zeros(width, b.dtype)])
    hidden = mlxops.nn.gru(x + outside, w, b[2 * width :], *state)
    return hidden, [hidden[:, -1]]


def _simple(activation: Callable[[mx.array], mx.array]) -> Cell:
    def cell(
        x: mx.array, w: mx.array, b: mx.array, state: list[mx.array]
    ) -> tuple[mx.array, list[mx.array]]:
        (hidden,) = state
        outputs = []
        for step in range(x.shape[1]):
            hidden = activation(x[:, step] + (hidden @ w.T + b))
            outputs.append(hidden)
        return mx.stack(outputs, axis=1), [hidden]

    return cell


_tanh = _simple(mx.tanh)
_relu = _simple(lambda x: mx.maximum(x, 0))


def _step(cell: Cell) -> Callable[..., list[mx.array]]:
    """Return a function of one step from the states, a list, to the new states."""

    def step(
        input: mx.array,
        hx: list[mx.array],
        w_ih: mx.array,
        w_hh: mx.array,
        b_ih: mx.array | None = None,
        b_hh: mx.array | None = None,
    ) -> list[mx.array]:
        gates = input @ w_ih.T if b_ih is None else input @ w_ih.T + b_ih
        bias = mx.zeros(w_hh.shape[0], w_hh.dtype) if b_hh is None else b_hh
        return cell(gates[:, None], w_hh, bias, hx)[1]

    return step


def _step_of_one(cell: Cell) -> Callable[..., mx.array]:
    """Return a function of one step from the only state to the new state."""
    step = _step(cell)
    return lambda input, hx, *weights: step(input, [hx], *weights)[0]


lstm_cell = _step(_lstm)
gru_cell = _step_of_one(_gru)
rnn_tanh_cell = _step_of_one(_tanh)
rnn_relu_cell = _step_of_one(_relu)
