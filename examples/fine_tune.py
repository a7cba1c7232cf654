"""Fine-tune tiny recurrent models of mlx-lm, whose own kernels have no gradient.

    pip install "mlx-lm>=0.32.2,<0.33"
    .venv/bin/python examples/fine_tune.py [qwen3_next] [mamba2] [rwkv7] [--steps 30]

Each model starts from random weights and learns the bytes of this repository's README, through
``mlxops.mlx_lm``, on the CPU. The loss of the first step and its gradients are compared with those
of mlx-lm's own compositions. The exit status is 0 if they agree and all models have learned.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn
import mlx.optimizers
from mlx.utils import tree_flatten

WORDS = 256  # bytes
# As in the files config.json of models, without the vocabulary size.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        **{"hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 48},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
        **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_conv_kernel_dim": 4},
        **{"linear_key_head_dim": 8, "linear_value_head_dim": 12, "rms_norm_eps": 1e-6},
        **{"num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1},
        **{"shared_expert_intermediate_size": 16, "moe_intermediate_size": 16},
        **{"mlp_only_layers": [], "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        **{"max_position_embeddings": 64},
    },
    "mamba2": {
        **{"num_heads": 4, "head_dim": 16, "hidden_size": 32},
        **{"intermediate_size": 64, "state_size": 8, "num_hidden_layers": 2, "n_groups": 2},
        **{"layer_norm_epsilon": 1e-5, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True},
        **{"tie_word_embeddings": True, "time_step_limit": (0.0, float("inf"))},
        **{"time_step_rank": "auto"},
    },
    "rwkv7": {
        **{"hidden_size": 32, "intermediate_size": 64, "norm_eps": 1e-5},
        **{"head_dim": 8, "num_hidden_layers": 2, "a_low_rank_dim": 8, "v_low_rank_dim": 8},
        **{"gate_low_rank_dim": 8, "decay_low_rank_dim": 8},
    },
}
CLOSE = 1e-4  # relative to the largest number of a gradient


def build(name: str, words: int = WORDS) -> Any:
    """Return a model with random weights, also for weights that start at zero."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    configuration = {"model_type": name, "vocab_size": words, **CONFIGURATIONS[name]}
    model = module.Model(module.ModelArgs.from_dict(configuration))
    for key, value in tree_flatten(model.trainable_parameters()):
        if not value.any():  # random, so that the weight affects the result
            model.load_weights([(key, mx.random.normal(value.shape) * 0.3)], strict=False)
    model.train()
    return model


def gradients(model: Any, batch: Any, loss: Any) -> dict[str, mx.array]:
    """Return the loss of a batch by mlx-lm's trainer, and the gradients by name of the weight."""
    (mean, count), found = mlx.nn.value_and_grad(model, loss)(model, *batch)
    found = {"loss": mean, "count": count.astype(mx.float32), **dict(tree_flatten(found))}
    mx.eval(found)
    return found


def difference(found: dict[str, mx.array], expected: dict[str, mx.array]) -> float:
    """Return the largest difference of all gradients, relative to the largest number of each."""
    return max(
        mx.abs(found[key] - value).max().item() / max(mx.abs(value).max().item(), 1e-3)
        for key, value in expected.items()
    )


def batch_of(text: mx.array, size: int, length: int) -> tuple[mx.array, mx.array]:
    """Return random parts of the text, and the range of each that counts."""
    begins = mx.random.randint(0, text.size - length, (size, 1))
    return text[begins + mx.arange(length)], mx.array([[1, length - 1]] * size)


def main() -> int:
    """Run the example; return 0 if the gradients agree and every model has learned."""
    parser = argparse.ArgumentParser(description="Fine-tune tiny models of mlx-lm.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(CONFIGURATIONS))
    parser.add_argument("--steps", type=int, default=30, help="training steps (default 30)")
    args = parser.parse_args()
    if unknown := set(args.models) - set(CONFIGURATIONS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if args.steps < 1:
        parser.error("there must be a step")
    try:
        from mlx_lm.tuner.trainer import default_loss
    except ImportError:
        parser.error('mlx-lm is not installed: pip install "mlx-lm>=0.32.2,<0.33"')
    import mlxops.mlx_lm as ours

    mx.set_default_device(mx.cpu)
    text = mx.array(list(Path(__file__).resolve().parents[1].joinpath("README.md").read_bytes()))
    good = True
    for name in args.models or CONFIGURATIONS:
        mx.random.seed(0)
        model = build(name)
        batch = batch_of(text, 4, 64)
        start = time.perf_counter()
        found = gradients(model, batch, ours.loss)
        seconds = time.perf_counter() - start
        ours.uninstall()
        start = time.perf_counter()
        expected = gradients(model, batch, default_loss)
        beside = time.perf_counter() - start
        ours.install()
        apart = difference(found, expected)
        print(
            f"{name}: gradients {apart:.0e} of their size from mlx-lm's own, "
            f"in {seconds:.2f} s instead of {beside:.2f} s"
        )
        optimizer = mlx.optimizers.Adam(1e-2)
        step = mlx.nn.value_and_grad(model, ours.loss)
        for i in range(args.steps):
            (loss, _), grads = step(model, *batch_of(text, 4, 64))
            optimizer.update(model, grads)
            mx.eval(model.parameters(), optimizer.state, loss)
            if i % 10 == 9 or i + 1 == args.steps:
                print(f"  step {i + 1}: loss {loss.item():.3f}")
        good &= apart < CLOSE and loss.item() < 0.8 * found["loss"].item()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
