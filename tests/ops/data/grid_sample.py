"""Writes grid_sample.json: results of torch, for tests that run without torch.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 numpy
    /tmp/torch/bin/python tests/ops/data/grid_sample.py

Arrays have the channels last, as in MLX. Everything is computed in float64 on the CPU.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import torch

SHAPE = (2, 3, 4, 2)
SPECIAL = [float("nan"), float("inf"), -float("inf"), 1e6, -1e6, 1.0, -1.0]


def sample(x, grid, **options):
    image = x.permute(0, 3, 1, 2)
    out = torch.nn.functional.grid_sample(image, grid, **options)
    return out.permute(0, 2, 3, 1)


def listed(tensor):
    """Return nested lists with 9 digits; NaN and inf become strings, because JSON lacks them."""

    def short(v):
        if isinstance(v, list):
            return [short(item) for item in v]
        return float(f"{v:.9g}") if np.isfinite(v) else str(v)

    return short(tensor.tolist())


def main():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.uniform(-1, 1, SHAPE).round(3), dtype=torch.float64)
    # Points inside, outside, far away.
    grid = torch.tensor(rng.uniform(-1.6, 1.6, (2, 3, 5, 2)).round(3), dtype=torch.float64)
    grid[0, 0] *= 4
    special = torch.tensor(list(itertools.product(SPECIAL, [0.3, *SPECIAL])), dtype=torch.float64)
    special = special.reshape(1, len(SPECIAL), -1, 2)
    cotangent = torch.tensor(rng.uniform(-1, 1, (2, 3, 5, 2)).round(3), dtype=torch.float64)
    cases = []
    for mode, padding, corners in itertools.product(
        ("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True)
    ):
        options = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        x.requires_grad_()
        grid.requires_grad_()
        out = sample(x, grid, **options)
        grad_x, grad_grid = torch.autograd.grad(out, (x, grid), cotangent)
        at_special = sample(x[:1].detach(), special, **options)
        cases.append(
            {
                **options,
                "out": listed(out),
                "grad_x": listed(grad_x),
                "grad_grid": listed(grad_grid),
                "special": listed(at_special),
            }
        )
    data = {
        "torch": torch.__version__,
        "x": listed(x),
        "grid": listed(grid),
        "special_grid": listed(special),
        "cotangent": listed(cotangent),
        "cases": cases,
    }
    Path(__file__).with_suffix(".json").write_text(text(data))


def text(data):
    """Return JSON with one line per array."""
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in data.items() if k != "cases"]
    cases = ",\n".join(
        "  {" + ",\n   ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in case.items()) + "}"
        for case in data["cases"]
    )
    return "{\n" + ",\n".join(lines) + ',\n "cases": [\n' + cases + "\n ]\n}\n"


if __name__ == "__main__":
    main()
