"""Reserved names, which operators, arguments and outputs cannot have.

names.yaml lists them with the reasons. Python, YAML and the documentation have every other name as
it is written. If C++ cannot have it, ``cpp_names`` returns another one for generated C++.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from ..diagnostics.messages import table
from ..model.names import free_names

# Names by scope and reason.
_NAMES: dict[str, dict[str, list[str]]] = table(Path(__file__).with_name("names.yaml"))


def _reasons(scope: str) -> dict[str, str]:
    """Return the reasons by name."""
    return {name: reason for reason, names in _NAMES[scope].items() for name in names}


def _hole(name: str) -> str:
    """Return the placeholder in a name."""
    return next((hole for hole in ("argument", "output") if f"{{{hole}}}" in name), "")


_ANY, _CPP, _GENERATED = (
    [(why, re.compile("|".join(names), re.ASCII)) for why, names in _NAMES[scope].items()]
    for scope in ("everything", "cpp", "generated")
)
# Names that no argument or output can have, with the reason.
RESERVED = _reasons("argument")
# The beginning of a dotted name that is no overload as in torch.
PACKAGES = ("mx", "mlx", "np", "numpy", "torch", "jax")
_MODULES = ("special", "linalg", "fft", "nn", "random", "fast")
_METAL = _reasons("metal")
KEYWORDS = {*_reasons("cpp"), *_METAL}  # of C++ and Metal
NOT_IN_METAL = _reasons("not in Metal")  # keywords of C++, with the feature that Metal lacks
# Reasons by name, by scope and placeholder in the name.
_MEANINGS = {
    (scope, hole): {name: why for name, why in _reasons(scope).items() if _hole(name) == hole}
    for scope in ("gradients", "kernels")
    for hole in ("", "argument", "output")
}
# Names of arguments that always have another name in C++: the stream, and kernels' element type.
_OURS = ("s", "T", *_METAL)


def in_cpp(name: str) -> bool:
    """Return whether C++ reserves a name."""
    return any(pattern.fullmatch(name) for _, pattern in _CPP)


def generated(name: str) -> str | None:
    """Return the reason why no operator can have a name that generated C++ uses, if any."""
    return next((why for why, form in _GENERATED if form.fullmatch(name)), None)


def better(name: str, what: str) -> str:
    """Return a similar name that ``what`` can have."""
    plain = re.sub("__+", "_", name).strip("_")
    forms = (plain, plain.lower(), f"{plain}_", f"{plain.lower()}_value", f"my_{plain.lower()}")
    return next((form for form in forms if form and clash(form, what) is None), "name")


@lru_cache(maxsize=4096)
def clash(name: str, what: str) -> str | None:
    """Return the reason why ``name`` cannot be the name of ``what``, if any.

    ``what`` is an operator, whose name C++ has too, an argument or an output.
    """
    in_cpp = {"an operator": [name], "an output": [name, f"to_{name}"]}.get(what, [])
    for patterns, texts in ((_ANY, [name]), (_CPP, in_cpp)):
        for reason, pattern in patterns:
            if any(map(pattern.fullmatch, texts)):
                return reason
    if what == "an output" and name in _METAL:
        return _METAL[name]
    return None if what == "an operator" else RESERVED.get(name)


def meanings(
    arrays: Iterable[str],
    outputs: Iterable[str],
    scopes: Iterable[str] = ("gradients", "kernels"),
) -> dict[str, str]:
    """Return the names with a meaning in formulas of an entry, with reasons.

    An argument, axis or loop variable of such a name would hide them.
    """
    found: dict[str, str] = {}
    for scope in scopes:
        found |= _MEANINGS[scope, ""]
        for hole, own in ("argument", arrays), ("output", outputs):
            for name, reason in _MEANINGS[scope, hole].items():
                found |= {name.format(**{hole: of}): reason.format(**{hole: of}) for of in own}
    return found


def overload(name: str) -> tuple[str, str] | None:
    """Return the names in C++ and Python for torch's ``add.Tensor``; None for other names."""
    first, _, last = name.partition(".")
    if not (first and last.isidentifier()) or first in (*PACKAGES, *_MODULES):
        return None
    return re.sub("__+", "_", f"{first}_{last}"), first


def cpp_names(names: Sequence[str]) -> list[str]:
    """Return the names of arguments in C++: as in Python, else with the suffix ``_arg``."""
    found = free_names(names, "arg", lambda name: not _usable(name))
    return [found[name] for name in names]


def _usable(name: str) -> bool:
    """Return whether generated C++ can have a name, and names derived from it."""
    return name[0] != "_" and name not in _OURS and not in_cpp(name)
