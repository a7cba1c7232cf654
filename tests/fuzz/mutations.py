"""Breaks entries in likely and unlikely ways: their text, keys, values and kernels."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import yaml
from sample import project

PIECES = """
    array Tensor float int bool str list[array] array|None Literal["a","b"] shape axes Dtype Tensor?
    int[2] const& std::vector<array> -> ( ) [ ] { } , : ; = == * ** / // % @ . ... & | ~ ^ < > ! ? "
    ' ` # \\ \\n \\t ? - --- ... &a *a <<: !t %d @x | > null ~ true no on 0 1 -1 1e-5 .inf 0x1F
    x y a n mode grad grads result tangent out low high none zero linear elementwise sum exp tanh
    linalg.norm helper(x) square(x) cube scale total segments lambda x: None True float32 x.shape
    x.dtype x[0] x[:,None] x.T if else and or not is in for import class NULL errno T s self stream
    mx std python dispatch é \u4e2d \u2028 \x00 \x7f \U0001f600 my::scale one::twin mlx::core::exp
    cpu metal cuda kernel grid threadgroup constants name signature composite dispatch shape dtype
""".split()  # noqa: SIM905
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.5, float("inf"), "", " ", "none", "zero", "x", "grad", "0"),
    *([], {}, [[]], [None], {"x": "grad"}, {"x": None}, {"": ""}, ["x", "x"], [{}], {"x": [1]}),
    *("exp(x)", "x + ", "(x, x)", "x.shape", "float32", "method", "elementwise", "my::scale"),
    *({"kernel": "total"}, {"kernel": "total", "grid": ["x.size"]}, {"function": "scale2_vjp"}),
    *([{"that": "x.ndim > 0", "else": "bad"}], {"shape": [2], "low": 3}, 10**30, "a" * 300),
]


@cache
def entries() -> list[str]:
    """Return the text of every entry of the sample project."""
    text = project.YAML.read_text(encoding="utf-8")
    return re.findall(r"^- .*\n(?:(?:  .*)?\n)*", text, re.MULTILINE)


@cache
def words() -> list[str]:
    """Return the words and operators that the sample's entries consist of."""
    return sorted(set(re.findall(r"\w+|[^\w\s]", "".join(entries()))))


@cache
def keys() -> list[str]:
    """Return every key of the sample's entries."""
    return sorted({key for text in entries() for key in yaml.safe_load(text)[0]})


class Mutator:
    """Creates files from some of the sample's entries; ``rng`` makes all decisions."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def file(self) -> str:
        """Return a file of some entries, with mistakes."""
        count = self.rng.randrange(1, 4)
        parts = [self.rng.choice(entries()) for _ in range(count)]
        at = self.rng.randrange(count)
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            if self.rng.random() < 0.3:
                parts[at] = self.text(parts[at], PIECES)
            else:
                parts[at] = self.structure(parts[at])
        return "\n".join(parts)

    def text(self, text: str, pieces: list[str]) -> str:
        """Return the text with a piece changed, removed, doubled or inserted."""
        tokens = re.findall(r"\w+|\s+|.", text)
        i = self.rng.randrange(len(tokens))
        j = self.rng.randrange(len(tokens))
        kind = self.rng.randrange(7)
        if kind == 0:
            tokens[i] = self.rng.choice(pieces)
        elif kind == 1:
            tokens.insert(i, self.rng.choice(pieces))
        elif kind == 2:
            del tokens[i]
        elif kind == 3:
            tokens[i], tokens[j] = tokens[j], tokens[i]
        elif kind == 4:
            tokens.insert(i, tokens[j])
        elif kind == 5:
            word = list(tokens[i])
            word[self.rng.randrange(len(word))] = self.rng.choice("abxyz_01 \t\n:,'\"{}[]é")
            tokens[i] = "".join(word)
        else:  # a name in all its occurrences
            names = [token for token in tokens if token.isidentifier()] or ["x"]
            old, new = self.rng.choice(names), self.rng.choice(pieces)
            tokens = [new if token == old else token for token in tokens]
        return "".join(tokens)

    def structure(self, text: str) -> str:
        """Return the entry with a key or value changed."""
        try:
            data = yaml.load(text, Loader=yaml.BaseLoader)
        except (yaml.YAMLError, ValueError):
            return self.text(text, PIECES)
        if not isinstance(data, list) or not data or not isinstance(data[0], dict):
            return self.text(text, PIECES)
        node = data[0]
        while node and self.rng.random() < 0.4:
            inner = [value for value in node.values() if isinstance(value, dict) and value]
            if not inner:
                break
            node = self.rng.choice(inner)
        self.change(node)
        dumped: str = yaml.safe_dump(
            data,
            sort_keys=False,
            allow_unicode=self.rng.random() < 0.5,
            default_flow_style=self.rng.choice((None, True, False)),
            width=self.rng.choice((20, 80, 1000)),
        )
        return dumped

    def change(self, node: dict[Any, Any]) -> None:
        """Change one key or value of a mapping."""
        key = self.rng.choice([*node, "x"])
        kind = self.rng.randrange(10)
        if kind == 0:
            node.pop(key, None)
        elif kind == 1:
            node[self.rng.choice(keys())] = self.rng.choice(VALUES)
        elif kind == 2:
            node[key] = self.rng.choice(VALUES)
        elif kind == 3:
            node[self.rng.choice(PIECES)] = node.pop(key, "x")
        elif kind == 4:
            other = yaml.safe_load(self.rng.choice(entries()))[0]
            chosen = self.rng.choice(list(other))
            node[chosen] = other[chosen]
        elif isinstance(node.get(key), str):
            near = re.findall(r"\w+", str(node))
            pieces = self.rng.choice((near, words(), words(), PIECES))
            node[key] = self.text(node[key] or "x", pieces)
        elif kind == 5:
            node[key] = [node.get(key)]
