"""C++ expressions as text on one line: parentheses follow from precedence, never written by hand.

clang-format lays out what people read. Nodes are few on purpose: names and literals (``Text``),
calls and braced lists (``Call``), operators (``Unary``, ``Binary``, ``Ternary``), ``Lambda``.
"""

from __future__ import annotations

from collections.abc import Sequence

# Precedence, as in C++; higher binds tighter.
TERNARY, OR, AND, EQUALITY, RELATION, SUM, PRODUCT, UNARY, POSTFIX = range(1, 10)
PRECEDENCE = {
    "||": OR,
    "&&": AND,
    "==": EQUALITY,
    "!=": EQUALITY,
    "<": RELATION,
    "<=": RELATION,
    ">": RELATION,
    ">=": RELATION,
    "+": SUM,
    "-": SUM,
    "*": PRODUCT,
    "/": PRODUCT,
}


class Node:
    """A C++ expression: its text on one line, and how tightly its outermost operator binds."""

    __slots__ = ("flat", "prec")

    flat: str
    prec: int

    def __repr__(self) -> str:
        return f"<{self.flat}>"


class Text(Node):
    """A name, a literal, or anything else that binds as tightly."""

    __slots__ = ()

    def __init__(self, text: str, prec: int = POSTFIX) -> None:
        self.flat = text
        self.prec = prec


class Call(Node):
    """``head(args)post``: a call, or a braced list with ``brackets="{}"``."""

    __slots__ = ("args", "brackets", "head", "post")

    def __init__(
        self, head: str, args: Sequence[Node], brackets: str = "()", post: str = ""
    ) -> None:
        self.head = head
        self.args = args
        self.brackets = brackets
        self.post = post
        self.prec = POSTFIX
        inside = ", ".join([a.flat for a in args])
        self.flat = f"{head}{brackets[0]}{inside}{brackets[1]}{post}"


class Unary(Node):
    """``!x``, ``-x`` or ``*x``."""

    __slots__ = ("op", "operand")

    def __init__(self, op: str, operand: Node) -> None:
        if operand.prec < UNARY or (op == "-" and operand.flat.startswith("-")):
            operand = Call("", [operand])
        self.op = op
        self.operand = operand
        self.prec = UNARY
        self.flat = op + operand.flat


class Binary(Node):
    """``left op right``"""

    __slots__ = ()

    def __init__(self, op: str, left: Node, right: Node) -> None:
        self.prec = prec = PRECEDENCE[op]
        self.flat = f"{_operand(left, prec, False)} {op} {_operand(right, prec, True)}"


def _operand(node: Node, prec: int, right: bool) -> str:
    """Parenthesized where C++ needs it, and where gcc warns without (``&&`` in ``||``)."""
    bare = node.prec > prec or (node.prec == prec and not right and prec in (SUM, PRODUCT, AND, OR))
    if bare and not (prec == OR and node.prec == AND):
        return node.flat
    return f"({node.flat})"


class Ternary(Node):
    """``test ? yes : no``"""

    __slots__ = ()

    def __init__(self, test: Node, yes: Node, no: Node) -> None:
        parts = [_operand(part, TERNARY, True) for part in (test, yes, no)]
        self.prec = TERNARY
        self.flat = "{} ? {} : {}".format(*parts)


class Lambda(Node):
    """``[&](params) { return body; }``"""

    __slots__ = ()

    def __init__(self, params: Sequence[str], body: Node) -> None:
        self.prec = POSTFIX
        self.flat = f"[&]({', '.join(params)}) {{ return {body.flat}; }}"
