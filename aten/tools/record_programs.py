"""Records programs of torch.export, with torch's outputs and gradients, for aten/tests.

    python aten/tools/record_programs.py [NAME ...]

Needs torch, transformers and torchao. Each program gets two files in aten/tests/programs: NAME.pt2,
the program with small random weights, and NAME.npz, what torch computes with it: `in.I` and `out.I`
(leaves of the arguments and results), `dtype.I` of the results, `loss`, `grad.PATH` for each
parameter, and `new.PATH` for each parameter and buffer that the program changes. The loss is
`loss_of(results)`, which the tests repeat.
The archives are compressed, and stack traces lose the folder of the installed packages, so that
another machine records the same text.
"""

import io
import sys
import sysconfig
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch.utils import _pytree as pytree

FOLDER = Path(__file__).parents[1] / "tests/programs"
FIXED = (1980, 1, 1, 0, 0, 0)  # so that equal content gives equal archives


@dataclass(frozen=True)
class Program:
    """A module with example arguments; `dynamic` names the dimensions that may vary."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    dynamic: Any = None
    decompose: bool = False  # torch's core ATen operators instead of those that were called
    inference: bool = False  # export as for inference only, with the operators of its fast paths


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Register a function that makes a program under the function's name."""
    PROGRAMS[make.__name__] = make
    return make


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, 32),
            nn.ReLU(),
            nn.LayerNorm(32),
            nn.Dropout(0.1),
            nn.Linear(32, 32),
            nn.GELU(),
        )
        self.classes = nn.Linear(32, 5)
        self.value = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, label: torch.Tensor, target: torch.Tensor) -> Any:
        hidden = self.body(x)
        logits = self.classes(hidden)
        loss = F.cross_entropy(logits, label, label_smoothing=0.1) + F.mse_loss(
            self.value(hidden)[:, 0], target
        )
        return {"loss": loss, "logits": logits}


def _mlp(decompose: bool) -> Program:
    batch = torch.export.Dim("batch", min=2, max=64)
    args = (torch.randn(6, 8), torch.randint(5, (6,)), torch.randn(6))
    return Program(
        Mlp().eval(), args, dynamic=({0: batch}, {0: batch}, {0: batch}), decompose=decompose
    )


@program
def mlp() -> Program:
    return _mlp(False)


@program
def mlp_core() -> Program:
    return _mlp(True)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = (
            nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.layers = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


def _resnet(train: bool, decompose: bool) -> Program:
    module = ResNet()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
    return Program(module.train(train), (torch.randn(4, 3, 32, 32),), decompose=decompose)


@program
def resnet() -> Program:
    return _resnet(False, False)


@program
def resnet_train() -> Program:
    return _resnet(True, False)


@program
def resnet_train_core() -> Program:
    return _resnet(True, True)


class Stage(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = Stage(2, 8)
        self.down2 = Stage(8, 16)
        self.middle = Stage(16, 16)
        self.transposed = nn.ConvTranspose2d(16, 8, 2, 2)
        self.up1 = Stage(32, 8)
        self.up2 = Stage(16, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.avg_pool2d(first, 2))
        middle = self.middle(F.max_pool2d(second, 2))
        up = F.interpolate(middle, scale_factor=2, mode="nearest")
        up = self.up1(torch.cat([up, second], 1))
        up = F.interpolate(up, scale_factor=2, mode="bilinear", align_corners=False)
        up = self.up2(torch.cat([up, first], 1))
        return self.out(up), self.transposed(middle)


@program
def unet() -> Program:
    return Program(UNet().eval(), (torch.randn(2, 2, 16, 16),))


class Tagger(nn.Module):
    def __init__(self, cell: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.rnn = cell(16, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(24, 7)

    def forward(self, tokens: torch.Tensor, label: torch.Tensor) -> Any:
        hidden, state = self.rnn(self.embedding(tokens))
        logits = F.log_softmax(self.out(hidden), dim=-1)
        return F.nll_loss(logits.transpose(1, 2), label), logits, state


@program
def lstm() -> Program:
    return Program(Tagger(nn.LSTM).eval(), (torch.randint(50, (3, 9)), torch.randint(7, (3, 9))))


@program
def gru() -> Program:
    return Program(Tagger(nn.GRU).eval(), (torch.randint(50, (3, 9)), torch.randint(7, (3, 9))))


Pair = namedtuple("Pair", ["first", "second"])
pytree._register_namedtuple(Pair, serialized_type_name="programs.Pair")


class Changes(nn.Module):
    """Changes arrays through views, with nested arguments and results of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("total", torch.zeros(4, 3).t())
        self.register_buffer("thirds", torch.arange(4).to(torch.bfloat16) / 3, persistent=False)
        self.flags = torch.tensor([True, False, True, True])

    def forward(self, x: torch.Tensor, pair: Pair, *, extra: Any, times: int = 2) -> Any:
        self.calls += 1
        self.total.add_(x[:3].detach())
        y = x.clone()
        y[:, 1:3].mul_(times)
        y.t()[0] += pair.first
        flat = y.view(-1)
        flat[2:5] = 7
        left, right = y.split(2, 1)
        right += left * 2
        left.copy_(right[:1])
        y[0].relu_()
        count = torch.zeros(3, dtype=torch.long)
        count += x.shape[0] * 2
        low = torch.ones(4, dtype=torch.bfloat16)
        low += extra["bias"][0]
        y = y * self.scale + self.thirds
        return (
            Pair(y, flat),
            {"left": left, "count": count, "rows": x.shape[0] // 2},
            low,
            self.flags,
        )


@program
def changes() -> Program:
    rows = torch.export.Dim("rows", min=3, max=20)
    kwargs = {"extra": {"bias": [torch.rand(4), None]}, "times": 3}
    return Program(
        Changes().eval(),
        (torch.randn(5, 4), Pair(torch.rand(()), None)),
        kwargs,
        dynamic={
            "x": {0: rows},
            "pair": Pair({}, None),
            "extra": {"bias": [{}, None]},
            "times": None,
        },
    )


class Layers(nn.Module):
    """Layers that torch exports as one operator, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.instance = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
        self.batch = nn.BatchNorm1d(4, momentum=0.3)
        self.same = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 4, padding="same"))
        self.bag = nn.EmbeddingBag(9, 4, mode="max", padding_idx=2)
        self.product = nn.Bilinear(4, 4, 3)
        self.projected = nn.LSTM(4, 5, proj_size=3, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(4, 4)
        self.frozen = nn.Parameter(torch.rand(4), requires_grad=False)

    def forward(self, x: torch.Tensor, bags: torch.Tensor, grid: torch.Tensor) -> Any:
        y = self.same(self.batch(self.instance(x)))  # (2, 4, 8)
        pooled = F.max_pool1d(y, 3, 2, 1) + F.adaptive_avg_pool1d(y, 4)  # (2, 4, 4)
        rows = self.bag(bags) * self.frozen  # (2, 4)
        state = self.cell(rows, pooled[:, :, 0])
        image = torch.einsum("bij,bjk->bik", pooled, pooled)[:, None]
        return {
            "hidden": self.projected(y.transpose(1, 2))[0],
            "product": self.product(rows, state),
            "linear": F.grid_sample(image, grid, padding_mode="reflection", align_corners=False),
            "cubic": F.grid_sample(image, grid, mode="bicubic", align_corners=True),
            "loss": F.triplet_margin_loss(rows, state, pooled[:, 0], swap=True)
            + F.cosine_embedding_loss(rows, state, torch.tensor([1, -1])),
        }


@program
def layers() -> Program:
    grid = torch.rand(2, 3, 3, 2) * 2.6 - 1.3
    return Program(
        Layers().train(), (torch.randn(2, 4, 8), torch.tensor([[1, 2, 3], [0, 4, 2]]), grid)
    )


class Parts(nn.Module):
    """Views, copies, ranges, and patterns that resemble those of fused operators."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, ends: torch.Tensor) -> Any:
        x = x * self.scale  # (2, 2, 4, 6)
        y = x.clone()
        copied = y.transpose(2, 3).reshape(2, -1)
        copied.mul_(2)
        y[..., 1:] *= 0.5
        y[:, :, :2].reshape(4, 12)[0].add_(1)
        y.diagonal(0, 2, 3).mul_(3)
        scores = x @ x.mT
        normed = x * torch.rsqrt(torch.add(x.pow(2).mean(-1, True), 0.1, alpha=3))
        largest, experts = x[0, 0].abs().max(1)
        return {
            "views": (y, copied, torch.where(mask, 1, 0), torch.arange(0, 1, 0.25)),
            # The second query has no keys, and its result is 0.
            "attention": F.scaled_dot_product_attention(x, x, x, mask),
            "other": torch.add(scores, scores, alpha=2).softmax(-1) @ x + normed,
            "once": F.scaled_dot_product_attention(x, x[:1], x[:1]),
            "unpooled": F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
            "padded": F.pad(x, (1, 2, 2, 1), "circular"),
            "averaged": F.avg_pool2d(x, 7, ceil_mode=True),
            "scattered": torch.zeros(6).scatter(0, experts, largest),
            "low": self.low(x.bfloat16()),
            "windows": torch.stft(x[0, 0], 4, 2, window=torch.hann_window(4), return_complex=True)
            .abs()
            .square(),
            "bits": (ends << 1) ^ 5 | ends.cumsum(0),
        }

    def low(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        return self.scale.to(x.dtype) * (
            h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        ).to(x.dtype)


@program
def parts() -> Program:
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]]).bool()
    return Program(Parts().eval(), (torch.randn(2, 2, 4, 6), mask, torch.tensor([1, 3, 6])))


class Dtypes(nn.Module):
    """Promotions, of arrays without axes among others, and changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor, count: torch.Tensor, small: torch.Tensor) -> Any:
        x = x * self.scale
        low, double = x.detach().bfloat16(), torch.tensor(0.1, dtype=torch.float64)
        hundred = torch.tensor(100)
        changed = []
        for change in (
            lambda y: y.gt_(0),
            lambda y: y.eq_(x),
            lambda y: y.le_(1).mul_(2),
            lambda y: y.mul_(x.double()),
            lambda y: y.copy_(count),
        ):
            y = x.clone()
            change(y)
            changed.append(y)
        return {
            "low": (low / torch.tensor(2.0), low * double, 2 - low, torch.maximum(low, double)),
            "powers": (low ** torch.tensor(2.0), torch.where(low > 0, low, torch.tensor(0.5))),
            "single": (x + double, torch.atan2(x, double), x < double, x.half() * count[1]),
            "small": (small + hundred, small * torch.tensor(2), small - 5, small // hundred),
            "bits": (small & torch.tensor(12), small << torch.tensor(1), small % torch.tensor(7)),
            "compared": (small < 300, small == -56, small >= -1, small > torch.tensor(255)),
            "wrapped": (small * -1, small + -1, small & -2, small / -1, count * -1),
            "filled": (small.masked_fill(small > 99, -1), small.scatter(0, count.long(), -2)),
            "made": (torch.full_like(small, -7), torch.where(small > 3, -1, small)),
            "sums": (small.sum(), small.cumsum(0), count + small, count * x, x.argmax(), -small),
            "flags": ((x > 0) + 1, (x > 0) * 2.5, (x > 0).sum(), (x > 0).cumsum(0)),
            "joined": (torch.cat([count, small]), torch.stack([x[0], count[0]])),
            "changed": changed,
            "number": count.clone().add_(hundred).le_(102),
        }


@program
def dtypes() -> Program:
    return Program(
        Dtypes(),
        (torch.randn(4), torch.arange(4, dtype=torch.int32), torch.tensor([200, 3, 44, 0]).byte()),
    )


class Frozen(nn.Module):
    """Changes of parameters and activations while torch records no gradients."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("clamped", "rows", "scaled", "copied", "factor"):
            setattr(self, name, nn.Parameter(torch.randn(4, 3) * 2))
        self.register_buffer("average", torch.zeros(4, 3))
        self.embedding = nn.Embedding(6, 4, max_norm=0.5)
        self.norm = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> Any:
        with torch.no_grad():
            self.clamped.clamp_(-1, 1)
            self.rows[0].zero_()
            self.rows[:, 1].mul_(3)
            self.scaled.div_(self.scaled.norm(dim=0, keepdim=True).clamp(min=1))
            self.average.mul_(0.9).add_(self.scaled, alpha=0.1)
        hidden = x @ self.clamped
        with torch.no_grad():
            hidden.clamp_(-1)
            mean = hidden.mean()
            self.copied.copy_(self.copied.round())
        shared = self.factor.detach()
        shared.mul_(hidden.mean())
        return (
            hidden * 2 + mean,
            x @ self.rows + x @ self.scaled + self.average.sum(),
            x @ self.copied + x @ self.factor + shared.sum(),
            self.embedding(tokens),
            self.norm(x),
        )


@program
def frozen() -> Program:
    return Program(Frozen().train(), (torch.randn(2, 4), torch.tensor([[1, 2, 1], [5, 0, 2]])))


class Places(nn.Module):
    """Places that are NaN, infinite, or far outside, and indices computed with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 3))

    def forward(self, image: torch.Tensor, grid: torch.Tensor, places: torch.Tensor) -> Any:
        found = [
            F.grid_sample(image, grid, mode, padding, align)
            for mode in ("bilinear", "nearest", "bicubic")
            for padding, align in (("zeros", False), ("border", True), ("reflection", False))
        ]
        index = (places * 4).long()
        rows = self.table[index] + F.embedding(index, self.table)
        rows = (
            rows
            + self.table.index_select(0, index)
            + torch.ops.aten._unsafe_index(self.table, [index])
        )
        zeros = torch.zeros(5, 3)
        columns = index[:, None].expand(-1, 3)
        written = (
            zeros.index_add(0, index, rows).scatter_add(0, columns, rows),
            zeros.index_copy(0, index[:1], rows[:1]).index_put((index,), rows, accumulate=True),
            zeros.scatter(0, columns[:1], 1.0) + self.table.gather(0, columns[:, :]).sum(),
            F.cross_entropy(rows, index % 3) + F.nll_loss(rows, index % 3),
            torch.take(self.table, index) + torch.take_along_dim(self.table, columns, 0).sum(),
        )
        return [x.nan_to_num(7.0) for x in found], written


@program
def places() -> Program:
    nan, infinite = float("nan"), float("inf")
    grid = torch.rand(1, 3, 4, 2) * 2.4 - 1.2
    grid[0, 0, :3, 0] = torch.tensor([nan, 1e20, infinite])
    grid[0, 1, :3, 1] = torch.tensor([nan, -1e20, -infinite])
    return Program(Places(), (torch.randn(1, 2, 5, 6), grid, torch.tensor([0.1, 0.9, 0.5])))


class Blocks(nn.Module):
    """Layers and operators of single models, and batches without samples."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(4))
        self.square = nn.Parameter(torch.randn(2, 3, 3))
        self.up = nn.ConvTranspose3d(4, 6, 3, 2, 1, 1, groups=2)
        self.down = nn.Conv3d(6, 4, 3, 2, 1, groups=2)
        self.orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
        self.images = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Upsample(scale_factor=2), nn.MaxPool2d(2)
        )
        self.pairs = nn.Bilinear(4, 4, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, volume: torch.Tensor, none: Any) -> Any:
        masked = []
        for chosen, values in (
            ((mask,), self.row),
            ((mask[:, 0],), self.row),
            ((slice(None), mask[0]), self.row),
            ((mask,), self.row[None]),
            ((mask,), self.row * torch.arange(3)[:, None]),  # three elements are chosen
            ((mask,), 2.0),
        ):
            y = x.clone()
            y[chosen] = values
            masked.append(y)
        masked.append(x.index_put((mask,), self.row, accumulate=True))
        y = x.clone()
        y[mask] *= 2
        y[y > 0.5] -= 0.25
        rows = mask[0]
        y[:, rows] = torch.sqrt(y[:, rows].abs()) + self.row * y[:, rows]
        masked.append(y)
        empty = self.images(none)
        tall = x.reshape(6, 4)
        return {
            "masked": masked,
            "spread": (
                torch.var_mean(self.square, dim=[1], keepdim=True, unbiased=False),
                torch.var_mean(self.square, 1),
                torch.var_mean(self.square, False),
                torch.var_mean(self.square, (0, 1), correction=2),
                torch.std_mean(self.square, dim=[1], unbiased=False, keepdim=True),
            ),
            "volumes": self.down(self.up(volume)),
            "exponentials": (torch.matrix_exp(self.square), self.orthogonal(self.row)),
            "adjoint": self.square[0].H + self.square[1].mH,
            "counts": torch.bincount(mask.long().sum(1), minlength=4),
            "diagonals": (
                tall.clone().fill_diagonal_(1.0),
                tall.clone().fill_diagonal_(2.0, wrap=True),
                torch.zeros(3, 3, 3).fill_diagonal_(3.0),
            ),
            "empty": (
                empty,
                self.pairs(none[:, 0, 0, :4], none[:, 1, 0, :4]),
                F.grid_sample(none, none[:, 0, :, :2].unsqueeze(1)),
            ),
            "dropped": F.scaled_dot_product_attention(x, x, x, dropout_p=1.0),
        }


@program
def blocks() -> Program:
    mask = torch.tensor([[True, False, True], [False, True, False]])
    args = (torch.randn(2, 3, 4), mask, torch.randn(2, 4, 3, 3, 3), torch.zeros(0, 3, 8, 8))
    return Program(Blocks(), args)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        options = {"batch_first": True, "norm_first": True, "activation": "gelu"}
        self.first = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.second = nn.TransformerEncoderLayer(16, 4, 32, **options)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> Any:
        hidden = self.second(self.first(x, src_key_padding_mask=padding))
        return self.attention(hidden, hidden, hidden, key_padding_mask=padding)


@program
def encoder() -> Program:
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    return Program(Encoder().eval(), (torch.randn(2, 5, 16), padding), inference=True)


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 64, 32, 64, 32)
        self.linear = nn.ModuleList(nn.Linear(n, m, bias=m == 64) for n, m in pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear in self.linear:
            x = F.gelu(linear(x))
        return x


@program
def torchao_weights() -> Program:
    """Weights of 8, 4, 4, 3 and 5 bits, the fourth in groups that MLX lacks."""
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup, quantize_
    from torchao.quantization.quant_primitives import MappingType
    from torchao.utils import unwrap_tensor_subclass

    def config(bits: int, group: int, mapping: MappingType = MappingType.SYMMETRIC) -> Any:
        dtype = getattr(torch, f"int{bits}")
        return IntxWeightOnlyConfig(
            weight_dtype=dtype, granularity=PerGroup(group), mapping_type=mapping
        )

    module = Linears()
    configs = (
        Int8WeightOnlyConfig(version=2),
        config(4, 32),
        config(4, 64, MappingType.ASYMMETRIC),
        config(3, 16),
        config(5, 32),
    )
    for i, each in enumerate(configs):
        quantize_(module.linear[i], each)
    return Program(unwrap_tensor_subclass(module), (torch.randn(3, 32),))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 64)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.out = nn.Linear(64, 12, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(tokens) * self.scale)


@program
def torchao_embedding() -> Program:
    """An embedding whose weight of 4 bits is also that of the last layer."""
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_
    from torchao.utils import unwrap_tensor_subclass

    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))
    module = Tokens()
    quantize_(module, config, lambda module, _: isinstance(module, nn.Embedding | nn.Linear))
    return Program(unwrap_tensor_subclass(module), (torch.tensor([[1, 2, 11], [0, 5, 1]]),))


@program
def torchao_dynamic() -> Program:
    """Weights of 4 and 8 bits, with activations that are quantized, too."""
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8DynamicActivationIntxWeightConfig,
        PerGroup,
        quantize_,
    )
    from torchao.utils import unwrap_tensor_subclass

    module = Linears()
    each = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    )
    quantize_(module.linear[:2], each)
    quantize_(module.linear[2:], Int8DynamicActivationInt8WeightConfig(version=2))
    return Program(unwrap_tensor_subclass(module), (torch.randn(3, 32),))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(64, 32)
        self.out = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.out(torch.relu(self.hidden(x)))


def _pt2e(train: bool, dynamic: bool = False) -> Program:
    """Quantize by pt2e; in training, the model still has the operators that learn the scales."""
    from torchao.quantization.pt2e import quantize_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    args = (torch.randn(4, 3, 6, 6),)
    exported = torch.export.export(Classifier().train(train), args, strict=True).module()
    config = x86.get_default_x86_inductor_quantization_config(is_qat=train, is_dynamic=dynamic)
    quantizer = x86.X86InductorQuantizer().set_global(config)
    prepare = quantize_pt2e.prepare_qat_pt2e if train else quantize_pt2e.prepare_pt2e
    prepared = prepare(exported, quantizer)
    prepared(torch.randn(4, 3, 6, 6))
    return Program(prepared if train else quantize_pt2e.convert_pt2e(prepared), args)


@program
def pt2e() -> Program:
    return _pt2e(False)


@program
def pt2e_dynamic() -> Program:
    return _pt2e(False, True)


@program
def pt2e_training() -> Program:
    return _pt2e(True)


class Fake(nn.Module):
    """Fake quantization with numbers, arrays, learned scales, and scales for channels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3) * 4)
        self.scale = nn.Parameter(torch.tensor([0.3]))
        self.zero = nn.Parameter(torch.tensor([1.7]))
        self.scales = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))
        self.zeros = nn.Parameter(torch.tensor([0.0, 2.0, -1.0]))

    def forward(self, x: torch.Tensor) -> Any:
        learned = self.weight, self.scale, self.zero, -8, 7, 0.5
        channels = self.weight, self.scales, self.zeros, 1, -8, 7, 1.0
        scale, zero = torch.tensor([0.1]), torch.tensor([2], dtype=torch.int32)
        on = torch.ones(1, dtype=torch.long)
        return (
            torch.fake_quantize_per_tensor_affine(self.weight, 0.05, 3, -10, 20),
            torch.fake_quantize_per_tensor_affine(x * self.weight, scale, zero, -128, 127),
            torch.fake_quantize_per_channel_affine(
                x * self.weight, self.scales.detach(), torch.tensor([0, 1, -1]).int(), 1, -8, 7
            ),
            torch._fake_quantize_learnable_per_tensor_affine(*learned),
            torch._fake_quantize_learnable_per_channel_affine(*channels),
            *torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
                self.weight, scale, zero, on, -8, 7
            ),
        )


@program
def fake() -> Program:
    return Program(Fake(), (torch.randn(2, 3) * 3,))


TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE = {"image_size": 16, "patch_size": 4, "num_channels": 3}


@program
def bert() -> Program:
    config = transformers.BertConfig(
        **TEXT, intermediate_size=64, max_position_embeddings=32, attn_implementation="eager"
    )
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 7:] = 0
    return Program(
        transformers.BertForSequenceClassification(config).eval(),
        (),
        {"input_ids": torch.randint(99, (2, 10)), "attention_mask": mask},
    )


@program
def gpt2() -> Program:
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=32, use_cache=False
    )
    tokens = torch.randint(99, (2, 12))
    batch = torch.export.Dim("batch", min=2, max=16)
    return Program(
        transformers.GPT2LMHeadModel(config).eval(),
        (),
        {"input_ids": tokens, "labels": tokens},
        dynamic={"input_ids": {0: batch}, "labels": {0: batch}},
    )


@program
def llama() -> Program:
    config = transformers.LlamaConfig(
        **TEXT,
        intermediate_size=64,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
        tie_word_embeddings=True,
    )
    tokens = torch.randint(99, (2, 12))
    return Program(
        transformers.LlamaForCausalLM(config).eval(), (), {"input_ids": tokens, "labels": tokens}
    )


@program
def mixtral() -> Program:
    """A mixture of experts; queries of padding on the left see no keys."""
    config = transformers.MixtralConfig(
        **TEXT | {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 33},
        intermediate_size=16,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
        use_cache=False,
    )
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, :2] = 0
    return Program(
        transformers.MixtralForCausalLM(config).eval(),
        (),
        {"input_ids": torch.randint(33, (2, 6)), "attention_mask": mask},
    )


@program
def vit() -> Program:
    config = transformers.ViTConfig(
        **IMAGE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    config.num_labels = 5
    return Program(
        transformers.ViTForImageClassification(config).eval(),
        (),
        {"pixel_values": torch.randn(2, 3, 16, 16)},
    )


@program
def convnext() -> Program:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], num_labels=5
    )
    return Program(
        transformers.ConvNextForImageClassification(config).eval(),
        (),
        {"pixel_values": torch.randn(2, 3, 32, 32)},
    )


@program
def clip() -> Program:
    shared = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    text = transformers.CLIPTextConfig(
        **shared, vocab_size=99, max_position_embeddings=16, num_attention_heads=4, eos_token_id=98
    )
    vision = transformers.CLIPVisionConfig(**shared, **IMAGE, num_attention_heads=4)
    config = transformers.CLIPConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16
    )
    tokens = torch.randint(98, (2, 8))
    tokens[:, -1] = 98
    mask = torch.ones(2, 8, dtype=torch.long)
    return Program(
        transformers.CLIPModel(config).eval(),
        (),
        {
            "input_ids": tokens,
            "pixel_values": torch.randn(2, 3, 16, 16),
            "attention_mask": mask,
            "return_loss": True,
        },
    )


def larger_weights(module: nn.Module) -> nn.Module:
    """Draw larger matrices: with the initial ones of transformers, attention is nearly uniform."""
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, 0, 1.5 / parameter[0].numel() ** 0.5)
    return module


class Control(nn.Module):
    """A scanned cell, a loop, and branches of which one must not run: its slopes are NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.deep = nn.Linear(7, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> Any:
        def step(hidden: torch.Tensor, row: torch.Tensor) -> Any:
            hidden = torch.tanh(self.cell(torch.cat([hidden, row], -1)))
            return hidden, 2 * hidden

        last, every = scan(step, torch.zeros(2, 4), x, dim=0)
        zero = (0 * last).sum()
        chosen = [
            torch.cond(zero == 0, self.safe, self.unsafe, (last,)),
            torch.cond(zero != 0, self.unsafe, self.safe, (last,)),
        ]
        count, grown = torch.while_loop(
            lambda i, y: (i < steps).all(),
            lambda i, y: (i + 1, 1.5 * y),
            (torch.tensor(0), last.detach()),
        )
        return every, chosen, count, grown, map_over(lambda row: row.sin() * 2, x)

    def unsafe(self, y: torch.Tensor) -> torch.Tensor:
        return y / (0 * y).sum()

    def safe(self, y: torch.Tensor) -> torch.Tensor:
        return torch.where(y > 0, y, self.deep(y))


@program
def control() -> Program:
    return Program(Control(), (torch.randn(5, 2, 3), torch.tensor([3, 5])))


class Autocast(nn.Module):
    """Numbers that bfloat16 has exactly, after the conversions of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        with torch.no_grad():
            self.body.weight.copy_(torch.randint(-3, 4, (4, 4)) * 1.001)
            self.body.bias.copy_(torch.randint(-3, 4, (4,)) * 1.001)
            self.norm.weight.mul_(1.001)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            changed = self.body(x)
            changed += x
            with torch.autocast("cpu", enabled=False):
                exact = self.body(x)
            loss = F.mse_loss(self.body(x), x)
            return changed, exact, loss, self.norm(self.body(x)), torch.cat([x, self.body(x)])


@program
def autocast() -> Program:
    return Program(Autocast(), (torch.randint(-2, 3, (3, 4)) * 1.001,))


def loss_of(results: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return a number that depends on all results that are floating-point arrays."""
    loss = torch.zeros(())
    for result in results:
        is_float = isinstance(result, torch.Tensor) and result.is_floating_point()
        if is_float and result.numel():
            weights = torch.cos(torch.arange(result.numel())).reshape(result.shape)
            loss = loss + (result * weights).mean()
    return loss


def compress(archive: bytes, path: Path) -> None:
    """Write torch's archive compressed, with stack traces that are equal on all machines."""
    packages = sysconfig.get_paths()["purelib"] + "/"
    here = str(FOLDER.parents[2]) + "/"
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(path, "w") as new:
        for record in old.infolist():
            content = old.read(record)
            if record.filename.endswith(".json"):
                content = content.replace(packages.encode(), b"").replace(here.encode(), b"")
            name = zipfile.ZipInfo(record.filename, FIXED)
            new.writestr(name, content, zipfile.ZIP_DEFLATED, compresslevel=9)


def to_numpy(value: Any) -> Any:
    """Return a tensor as NumPy's array, bfloat16 as float32."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def record(name: str) -> None:
    """Export one program, run it, and write both files."""
    torch.manual_seed(sum(map(ord, name.removesuffix("_core"))))
    made = PROGRAMS[name]()
    module, kwargs = made.module, made.kwargs or {}
    if isinstance(module, transformers.PreTrainedModel):
        larger_weights(module)
    with torch.set_grad_enabled(not made.inference):
        exported = torch.export.export(
            module, made.args, kwargs, dynamic_shapes=made.dynamic, strict=made.inference
        )
    if made.decompose:
        exported = exported.run_decompositions()
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    compress(buffer.getvalue(), FOLDER / f"{name}.pt2")

    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    before = {key: value.detach().clone() for key, value in tensors.items()}
    results = pytree.tree_leaves(module(*made.args, **kwargs))
    loss = loss_of(results)
    if loss.requires_grad:
        loss.backward()
    data = {f"in.{i}": leaf for i, leaf in enumerate(pytree.tree_leaves((made.args, kwargs)))}
    data |= {f"out.{i}": leaf for i, leaf in enumerate(results) if isinstance(leaf, torch.Tensor)}
    data |= {
        f"dtype.{i}": str(leaf.dtype).removeprefix("torch.")
        for i, leaf in enumerate(results)
        if isinstance(leaf, torch.Tensor)
    }
    data["loss"] = loss
    for key, parameter in module.named_parameters():
        if parameter.grad is not None:
            data[f"grad.{key}"] = parameter.grad
    for key, value in tensors.items():
        if not torch.equal(before[key], value):
            data[f"new.{key}"] = value
    np.savez_compressed(
        FOLDER / f"{name}.npz",
        **{key: to_numpy(value) for key, value in data.items() if value is not None},
    )


def main(names: list[str]) -> None:
    """Record the named programs, or all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or PROGRAMS:
        record(name)
        sizes = [(FOLDER / f"{name}{end}").stat().st_size for end in (".pt2", ".npz")]
        print(f"{name}: {sizes[0] / 1024:.0f} + {sizes[1] / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
