"""Nested arguments and results: torch's pytree specifications, without torch.

Tuples, lists and dictionaries keep their type. A named tuple becomes a named tuple of the same
fields. Other containers whose specification lists keys, such as dataclasses and the outputs of
transformers, become dictionaries, and all others lists.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

VERSION = 1
MAX_DEPTH = 100
BUILTIN = {"builtins.dict", "collections.OrderedDict"}


@dataclass(frozen=True)
class TreeSpec:
    """A container of children, or a leaf (type None)."""

    type: str | None
    children: tuple[TreeSpec, ...] = ()
    keys: tuple[Any, ...] | None = None  # of dictionaries and the like
    fields: tuple[str, ...] | None = None  # of named tuples
    leaves: int = field(init=False)

    def __post_init__(self) -> None:
        count = sum(child.leaves for child in self.children) if self.type is not None else 1
        object.__setattr__(self, "leaves", count)

    def build(self, leaves: Iterator[Any]) -> Any:
        """Return the tree whose leaves these are."""
        if self.type is None:
            return next(leaves)
        items = [child.build(leaves) for child in self.children]
        if self.fields is not None:
            return _named_tuple(self.type, self.fields)(*items)
        if self.keys is not None:
            return dict(zip(self.keys, items, strict=True))
        return tuple(items) if self.type == "builtins.tuple" else items

    def flatten(self, tree: Any, path: str) -> Iterator[Any]:
        """Yield the leaves of a tree of this structure; `path` names it in errors."""
        if self.type is None:
            yield tree
            return
        keys: tuple[Any, ...] = tuple(range(len(self.children)))
        if self.keys is not None:
            keys = self.keys
            if not isinstance(tree, Mapping):
                raise TypeError(f"{path} must be a dict with the keys {_listed(keys)}")
            if set(tree) != set(keys):
                raise TypeError(f"{path} has the keys {_listed(tuple(tree))}, not {_listed(keys)}")
        elif not isinstance(tree, list | tuple) or len(tree) != len(keys):
            raise TypeError(f"{path} must be a list or tuple of {len(keys)} items")
        for key, child in zip(keys, self.children, strict=True):
            yield from child.flatten(tree[key], f"{path}[{key!r}]")


@lru_cache(256)
def _named_tuple(type: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(type.rpartition(".")[2], fields)


def _listed(keys: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, keys))


def read_tree(text: str, fields: Mapping[str, Any]) -> TreeSpec:
    """Return the specification that torch wrote; `fields` are those of named tuples.

    Raises:
        ValueError, or what the access to a damaged structure raises.
    """
    version, data = json.loads(text)
    if version != VERSION:
        raise ValueError(f"the arguments have version {version} of torch's pytrees, not {VERSION}")
    return _tree(data, fields, MAX_DEPTH)


def _tree(data: dict[str, Any], fields: Mapping[str, Any], depth: int) -> TreeSpec:
    if data["type"] is None:
        return TreeSpec(None)
    if depth == 0:
        raise ValueError(f"the arguments are nested more than {MAX_DEPTH} levels deep")
    children = tuple(_tree(child, fields, depth - 1) for child in data["children_spec"])
    kind, context = data["type"], data["context"]
    if kind == "collections.namedtuple":
        names = tuple(fields[context]["field_names"])
        _named_tuple(context, names)  # raises an error for names that are not valid
        return TreeSpec(context, children, fields=_of(children, names))
    if kind == "collections.defaultdict":
        return TreeSpec(kind, children, keys=_of(children, context["dict_context"]))
    if isinstance(context, str):
        context = json.loads(context)
    if isinstance(context, list) and len(context) == 2 and kind not in BUILTIN:
        # A dataclass has the names of its fields, and those of fields that are None.
        context = context[0] if isinstance(context[0], list) else context
    is_keys = isinstance(context, list) and len(context) == len(children)
    if kind in ("builtins.tuple", "builtins.list") or not is_keys:
        return TreeSpec(kind, children)
    return TreeSpec(kind, children, keys=_of(children, context))


def _of(children: tuple[TreeSpec, ...], keys: Iterable[Any]) -> tuple[Any, ...]:
    """Return the keys of the children, checked."""
    listed = tuple(keys)
    if len(set(listed)) != len(children) or len(listed) != len(children):
        raise ValueError(f"{len(children)} items have the keys {_listed(listed)}")
    return listed
