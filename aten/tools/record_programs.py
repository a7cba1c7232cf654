"""Records programs of torch.export, with torch's outputs and gradients, for aten/tests.

    python aten/tools/record_programs.py [NAME ...]

Needs torch and transformers. Each program gets two files in aten/tests/programs: NAME.pt2, the
program with small random weights, and NAME.npz, what torch computes with it: `in.I` and `out.I`
(leaves of the arguments and results), `loss`, `grad.PATH` for each parameter, and `new.PATH` for
each buffer that the program changes. The loss is `loss_of(results)`, which the tests repeat.
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
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import nn
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


def loss_of(results: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return a number that depends on all results that are floating-point arrays."""
    loss = torch.zeros(())
    for result in results:
        if isinstance(result, torch.Tensor) and result.is_floating_point():
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
    exported = torch.export.export(
        module, made.args, kwargs, dynamic_shapes=made.dynamic, strict=False
    )
    if made.decompose:
        exported = exported.run_decompositions()
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    compress(buffer.getvalue(), FOLDER / f"{name}.pt2")

    before = {key: value.clone() for key, value in module.named_buffers()}
    results = pytree.tree_leaves(module(*made.args, **kwargs))
    loss = loss_of(results)
    loss.backward()
    data = {f"in.{i}": leaf for i, leaf in enumerate(pytree.tree_leaves((made.args, kwargs)))}
    data |= {f"out.{i}": leaf for i, leaf in enumerate(results) if isinstance(leaf, torch.Tensor)}
    data["loss"] = loss
    for key, parameter in module.named_parameters():
        if parameter.grad is not None:
            data[f"grad.{key}"] = parameter.grad
    for key, value in module.named_buffers():
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
