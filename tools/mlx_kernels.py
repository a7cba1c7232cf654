"""Tests derivatives of MLX's GPU kernels without a GPU: ``python -m tools.mlx_kernels``.

``mx.fast`` calls a kernel, or composes the function of MLX's operations if the kernel's
``use_fallback`` returns true, which it always does on the CPU. This program loads a copy of MLX in
which it returns false. The graphs are then those of a GPU with kernels for all arguments. The CPU
cannot compute a kernel's result or first gradient, but most other derivatives consist of MLX's
operations, and are compared with those of a composition.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KERNELS = ("CrossEntropy", "GatedDeltaUpdate", "ScaledDotProductAttention")
RETURN_FALSE = {62: b"\x31\xc0\xc3", 183: b"\x00\x00\x80\x52\xc0\x03\x5f\xd6"}  # x86-64, arm64
SYMBOL_TABLE, LOADED = 2, 1


def conditions(library: bytes | bytearray) -> Iterator[int]:
    """Yield where the functions ``use_fallback`` of the kernels are in an ELF file."""
    at_segments, at_sections = struct.unpack_from("<QQ", library, 32)
    segment_size, segments, section_size, count = struct.unpack_from("<4H", library, 54)
    loaded = []
    for i in range(segments):
        kind, _, start, address, _, size = struct.unpack_from(
            "<IIQQQQ", library, at_segments + i * segment_size
        )
        if kind == LOADED:
            loaded.append((address, size, start))
    sections = [
        struct.unpack_from("<IIQQQQII", library, at_sections + i * section_size)
        for i in range(count)
    ]
    for _, kind, _, _, start, size, names, _ in sections:
        if kind != SYMBOL_TABLE:
            continue
        for entry in range(start, start + size, 24):
            text, _, _, _, address = struct.unpack_from("<IBBHQ", library, entry)
            begin = sections[names][4] + text
            name = library[begin : library.index(b"\0", begin)].decode()
            if "12use_fallback" in name and "cold" not in name and any(k in name for k in KERNELS):
                yield next(address - a + s for a, n, s in loaded if a <= address < a + n)


def changed_copy(folder: Path) -> None:
    """Write MLX into a folder, with links to all files but its library."""
    found = find_spec("mlx")
    assert found and found.submodule_search_locations
    package = Path(next(iter(found.submodule_search_locations))).resolve()
    (folder / "mlx" / "lib").mkdir(parents=True)
    for path in package.iterdir():
        if path.name != "lib":
            (folder / "mlx" / path.name).symlink_to(path)
    for path in package.parent.glob("mlx*.libs"):
        (folder / path.name).symlink_to(path)
    library = bytearray((package / "lib" / "libmlx.so").read_bytes())
    code = RETURN_FALSE[struct.unpack_from("<H", library, 18)[0]]
    places = list(conditions(library))
    if len(places) != 5:  # cross_entropy's gradient has none
        raise SystemExit(f"expected 5 functions use_fallback in libmlx.so, found {len(places)}")
    for place in places:
        library[place : place + len(code)] = code
    (folder / "mlx" / "lib" / "libmlx.so").write_bytes(library)


def results() -> dict[str, dict[str, str]]:
    """Return what each derivative of each function gives: "right", "wrong", or an error."""
    with tempfile.TemporaryDirectory() as folder:
        changed_copy(Path(folder))
        paths = os.pathsep.join([folder, str(ROOT)])
        command = [sys.executable, "-m", "tools.mlx_kernels", "--lines"]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": paths},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    table: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        function, derivative, outcome = line.split("\t")
        table.setdefault(function, {})[derivative] = outcome
    return table


def functions() -> dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]]:
    """Return pairs of a function of ``mx.fast`` and a composition, and arrays."""
    import mlx.core as mx

    mx.random.seed(0)
    heads = [mx.random.normal((1, 2, 3, 4)) for _ in range(3)]
    words = mx.array([1, 0, 4])
    logits = mx.random.normal((3, 5))
    steps = [mx.random.normal((1, 3, 2, 4)) / 2 for _ in range(3)]
    shares = [mx.sigmoid(mx.random.normal((1, 3, 2))) for _ in range(2)]

    def attention(q: mx.array, k: mx.array, v: mx.array) -> Any:
        return mx.softmax(q @ k.swapaxes(-1, -2) / 2, axis=-1) @ v

    def entropy(x: mx.array) -> Any:
        return mx.logsumexp(x, axis=-1) - mx.take_along_axis(x, words[:, None], axis=-1)[:, 0]

    def delta(q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array) -> Any:
        state, outputs = mx.zeros((1, 2, 4, 4)), []
        for t in range(3):
            state = state * g[:, t, :, None, None]
            error = v[:, t] - (state * k[:, t, :, None]).sum(-1)
            state = state + (beta[:, t, :, None] * error)[..., None] * k[:, t, :, None]
            outputs.append((state * q[:, t, :, None]).sum(-1))
        return mx.stack(outputs, axis=1)

    return {
        "scaled_dot_product_attention": (
            lambda *x: mx.fast.scaled_dot_product_attention(*x, scale=0.5),
            attention,
            heads,
        ),
        "cross_entropy": (lambda x: mx.fast.cross_entropy(x, words), entropy, [logits]),
        "gated_delta_update": (
            lambda *x: mx.fast.gated_delta_update(*x)[0],
            delta,
            steps + shares,
        ),
    }


def derivatives() -> dict[str, Callable[..., Any]]:
    """Return functions of a function and of its arrays, each linear in the first gradient."""
    import mlx.core as mx

    def loss(f: Callable[..., Any], *x: mx.array) -> Any:
        y = f(*x)
        return (y * mx.cos(mx.arange(y.size)).reshape(y.shape)).sum()

    def gradient(f: Callable[..., Any], *x: mx.array) -> Any:
        return mx.grad(lambda *x: loss(f, *x))(*x)

    def again(f: Callable[..., Any], *x: mx.array) -> Any:
        return mx.grad(lambda first: loss(lambda y: gradient(f, y, *x[1:]), first))(x[0])

    def jvp(f: Callable[..., Any], *x: mx.array) -> Any:
        return mx.jvp(lambda first: f(first, *x[1:]), [x[0]], [mx.sin(x[0])])[1][0]

    return {
        "jvp": jvp,
        "vmap": lambda f, *x: mx.vmap(lambda first: f(first, *x[1:]))(x[0][None]),
        "gradient of gradient": again,
        "jvp of gradient": lambda f, *x: jvp(lambda *x: gradient(f, *x), *x),
        "vmap of gradient": lambda f, *x: mx.vmap(lambda first: gradient(f, first, *x[1:]))(
            x[0][None]
        ),
        "gradient of vmap": lambda f, *x: gradient(
            lambda first: mx.vmap(lambda y: f(y, *x[1:]))(first), x[0][None]
        ),
    }


def outcome(derivative: Callable[..., Any], f: Any, composed: Any, arrays: list[Any]) -> str:
    """Return whether a derivative of two functions is the same, or the error."""
    import mlx.core as mx

    try:
        found = derivative(f, *arrays)
        mx.eval(found)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "right" if mx.allclose(found, derivative(composed, *arrays), atol=1e-5) else "wrong"


def main() -> None:
    """Print the results, as lines for ``results`` or as text."""
    if sys.argv[1:] == ["--lines"]:
        for function, (f, composed, arrays) in functions().items():
            for name, derivative in derivatives().items():
                print(function, name, outcome(derivative, f, composed, arrays), sep="\t")
        return
    for function, row in results().items():
        print(function)
        for name, text in row.items():
            print(f"    {name:22}{text}")


if __name__ == "__main__":
    main()
