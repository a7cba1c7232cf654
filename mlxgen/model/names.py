"""Chooses names for generated code in place of names that are reserved or in use."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable


def free(name: str, kind: str, taken: Callable[[str], bool]) -> str:
    """Return ``name``, or the first similar name that is free: ``name_arg``, ``arg_name``...

    The search ends, because no pattern of reserved names matches a name that begins with ``kind``.

    Args:
        name: The preferred name.
        kind: ``arg``, ``axis`` or ``let``.
        taken: Returns whether a name is reserved or in use.
    """
    plain = re.sub(r"[\W_]+", "_", name).strip("_") or "x"
    numbered = (f"{kind}_{plain}_{i}" for i in itertools.count(2))
    forms = itertools.chain((name, f"{plain}_{kind}", f"{kind}_{plain}"), numbered)
    return next(form for form in forms if form.isidentifier() and not taken(form))


def free_names(names: Iterable[str], kind: str, taken: Callable[[str], bool]) -> dict[str, str]:
    """Return a free name for each of several names; names that are not taken stay as they are."""
    names = list(names)
    found = {name: name for name in names if not taken(name)}
    used = {*found}

    def is_taken(name: str) -> bool:
        return name in used or taken(name)

    for name in names:
        if name not in found:
            found[name] = free(name, kind, is_taken)
            used.add(found[name])
    return found
