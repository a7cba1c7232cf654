"""Links from operators to the pages of torch's documentation.

ATen has operators that users never call: gradients, forwards with additional results, copies. Their
link leads to the function that they belong to. The installed torch says which functions exist.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import suppress

from .schema import Overload

_SITE = "https://docs.pytorch.org/docs/stable"
_INTERNAL = f"{_SITE}/torch.compiler_ir.html"
_SUFFIXES = ("_backward_data", "_backward", "_forward", "_with_indices", "_copy", "_functional")
_MODULES = ("linalg", "special", "fft", "nn.functional")


def sentence(overload: Overload) -> str:
    """Return one line of documentation with a link."""
    name = overload.base.removeprefix("_")
    suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")
    plain = name.removesuffix(suffix) if suffix else name
    for function in _functions(plain):
        kind = "Gradient of " if suffix.startswith("_backward") else "As "
        return f"{kind}[{function}]({_page(function)})."
    return f"ATen's [internal operator]({_INTERNAL}) ``{overload.name}``."


def _page(function: str) -> str:
    if function.startswith("torch.special."):
        return f"{_SITE}/special.html#{function}"
    return f"{_SITE}/generated/{function}.html"


def _functions(name: str) -> Iterator[str]:
    """Yield the public functions of torch with an operator's name."""
    for module in _MODULES:
        prefix = f"{module.partition('.')[0]}_"
        if name.startswith(prefix) and _exists(f"torch.{module}", name.removeprefix(prefix)):
            yield f"torch.{module}.{name.removeprefix(prefix)}"
    for path in ("torch", "torch.nn.functional", "torch.Tensor"):
        if _exists(path, name):
            yield f"{path}.{name}"


def _exists(path: str, name: str) -> bool:
    owner: object = None
    with suppress(ImportError):
        owner = importlib.import_module(path.removesuffix(".Tensor"))
    if path.endswith(".Tensor"):
        owner = getattr(owner, "Tensor", None)
    return bool(getattr(getattr(owner, name, None), "__doc__", None))
