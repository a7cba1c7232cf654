"""C++ expression trees, printed the way clang-format prints them in MLX's style.

Templates hold statements; an expression that was compiled from a formula can be of any size, so its
line breaks are decided here: 80 columns, a break after the opening bracket, then all arguments on
one line or one a line, 4 more columns per level. A tree also knows its text on one line (``flat``),
made once, when the node is made.

Nodes are few on purpose: names and literals (``Text``), calls and braced lists (``Call``),
operators (``Unary``, ``Binary``, ``Ternary``) and lambdas (``Lambda``). Parentheses follow from
precedence and are never written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

COLUMNS = 80
STEP = 4

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

    def layout(self, column: int, base: int, tail: int, hang: bool = False) -> str:
        """The text from ``column`` on, where further lines are indented from ``base``.

        ``tail`` columns are kept free after it. ``hang``: nothing but brackets follows, so that a
        lambda at its end may keep its head on the first line.
        """
        if column + len(self.flat) + tail <= COLUMNS:
            return self.flat
        return self.broken(column, base, tail, hang)

    def broken(self, column: int, base: int, tail: int, hang: bool) -> str:
        """The text on several lines."""
        return self.flat

    def hanging(self, column: int, base: int) -> str | None:
        """The text with the body of a lambda at its end below, if it has one and that fits."""
        return None

    def __repr__(self) -> str:
        return f"<{self.flat}>"


class Text(Node):
    """A name, a literal, or anything else that is never broken."""

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

    def broken(self, column: int, base: int, tail: int, hang: bool) -> str:
        if not self.args:
            return self.flat
        opening, close = self.head + self.brackets[0], self.brackets[1] + self.post
        if not self.head:
            return self._aligned(column, close, tail)
        inner = base + STEP
        line = ", ".join([a.flat for a in self.args])
        if inner + len(line) + len(close) + tail <= COLUMNS:
            return f"{opening}\n{' ' * inner}{line}{close}"
        alone = self.args[0] if len(self.args) == 1 else None
        if isinstance(alone, Call) and (self.head.endswith(">") or self.brackets == "{}"):
            # Casts and lists of one call break inside of it.
            return (
                opening + alone.layout(column + len(opening), base, len(close) + tail, hang) + close
            )
        hanging = self.hanging(column, base) if hang else None
        if hanging is not None:
            return hanging
        if hang and isinstance(self.args[-1], Lambda):
            hanging = self.hanging(inner - len(opening), inner)
            if hanging is not None:
                return f"{opening}\n{' ' * inner}{hanging[len(opening) :]}"
        # An operator that is the only argument is not indented once more.
        under = base if isinstance(alone, Binary) else inner
        *before, last = self.args
        lines = [a.layout(inner, inner, 1) for a in before]
        lines.append(last.layout(inner, under, len(close) + tail, hang))
        return f"{opening}\n{' ' * inner}" + f",\n{' ' * inner}".join(lines) + close

    def _aligned(self, column: int, close: str, tail: int) -> str:
        """Parentheses and bare braces do not break after the bracket: what they hold is aligned."""
        inner = column + 1
        last = len(self.args) - 1
        lines = [
            a.layout(
                inner,
                inner - STEP if isinstance(a, Binary) else inner,
                len(close) + tail if i == last else 1,
            )
            for i, a in enumerate(self.args)
        ]
        return self.brackets[0] + f",\n{' ' * inner}".join(lines) + close

    def hanging(self, column: int, base: int) -> str | None:
        if not self.args or self.brackets != "()":
            return None
        before = f"{self.head}(" + "".join([f"{a.flat}, " for a in self.args[:-1]])
        last = self.args[-1].hanging(column + len(before), base)
        return f"{before}{last}){self.post}" if last is not None else None


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

    def broken(self, column: int, base: int, tail: int, hang: bool) -> str:
        operand = self.operand
        if isinstance(operand, Call) and operand.head == "" and operand.brackets == "()":
            inner = base + STEP
            content = operand.args[0].layout(inner, base, 1 + tail)
            return f"{self.op}(\n{' ' * inner}{content})"
        return self.op + operand.layout(column + len(self.op), base, tail, hang)


class Binary(Node):
    """A chain of operands joined by operators of one precedence: ``a + b - c``."""

    __slots__ = ("operands", "ops")

    operands: list[Node]
    ops: list[str]

    def __init__(self, op: str, left: Node, right: Node) -> None:
        prec = PRECEDENCE[op]
        if isinstance(left, Binary) and left.prec == prec and prec not in (EQUALITY, RELATION):
            self.operands = [*left.operands, _operand(right, prec, True)]
            self.ops = [*left.ops, op]
        else:
            self.operands = [_operand(left, prec, False), _operand(right, prec, True)]
            self.ops = [op]
        self.prec = prec
        self.flat = self.operands[0].flat + "".join(
            [f" {o} {x.flat}" for o, x in zip(self.ops, self.operands[1:], strict=True)]
        )

    def broken(self, column: int, base: int, tail: int, hang: bool) -> str:
        hanging = self.hanging(column, base) if hang else None
        if hanging is not None:
            return hanging
        inner = base + STEP
        out: list[str] = []
        at = column
        last = len(self.operands) - 1
        several = False  # lines in the operand before
        for i, operand in enumerate(self.operands):
            after = tail if i == last else len(self.ops[i]) + 1
            fits = at + 1 + len(operand.flat) + after <= COLUMNS
            if i > 0 and fits and not (several and self.prec not in (EQUALITY, RELATION)):
                text = f" {operand.flat}"
            elif i > 0:
                below = self._below(operand, column, base, after, hang and i == last)
                text = f"\n{' ' * inner}{below}"
            else:
                text = operand.layout(at, base if isinstance(operand, Binary) else at, after)
            first, newline, end = text.rpartition("\n")
            several = "\n" in first if i > 0 else bool(newline)
            at = len(end) if newline else at + len(end)
            out.append(text)
            if i < last:
                out.append(f" {self.ops[i]}")
                at += len(self.ops[i]) + 1
        return "".join(out)

    def _below(self, operand: Node, column: int, base: int, after: int, hang: bool) -> str:
        """An operand that starts a line."""
        inner = base + STEP
        under = self._under(column, base, inner)
        hanging = operand.hanging(inner, under) if hang else None
        if hanging is not None:
            return hanging
        if isinstance(operand, Binary):
            under = base if hang and column != base else inner
        elif not isinstance(operand, Call):
            under = inner
        return operand.layout(inner, under, after, hang)

    def _under(self, column: int, base: int, otherwise: int) -> int:
        """Where the arguments of an operand are indented from: in a statement, where it starts."""
        unary = self.operands[0].flat[0] in "-!*"
        return column if column != base and not unary else otherwise

    def hanging(self, column: int, base: int) -> str | None:
        before = self.flat[: len(self.flat) - len(self.operands[-1].flat)]
        under = self._under(column, base, base)
        last = self.operands[-1].hanging(column + len(before), under)
        return before + last if last is not None else None


def _operand(node: Node, prec: int, right: bool) -> Node:
    """Parenthesized where C++ needs it, and where gcc warns without (``&&`` in ``||``)."""
    bare = node.prec > prec or (node.prec == prec and not right and prec in (SUM, PRODUCT, AND, OR))
    if bare and not (prec == OR and node.prec == AND):
        return node
    return Call("", [node])


class Ternary(Node):
    """``test ? yes : no``."""

    __slots__ = ("no", "test", "yes")

    def __init__(self, test: Node, yes: Node, no: Node) -> None:
        self.test = _operand(test, TERNARY, True)
        self.yes = _operand(yes, TERNARY, True)
        self.no = _operand(no, TERNARY, True)
        self.prec = TERNARY
        self.flat = f"{self.test.flat} ? {self.yes.flat} : {self.no.flat}"

    def broken(self, column: int, base: int, tail: int, hang: bool) -> str:
        mark = column + len(self.test.flat) + 1  # of the question mark
        aligned = self._branches(f"{self.test.flat} ", mark, mark, tail)
        if aligned.count("\n") == 1 and _width(aligned, column) <= COLUMNS:
            return aligned
        inner = base + STEP
        under = inner if isinstance(self.test, Binary) else column
        test = self.test.layout(column, under, 0)
        below = self._branches(f"{test}\n{' ' * inner}", inner, inner, tail)
        fewer = aligned.count("\n") < below.count("\n")
        return aligned if fewer and _width(aligned, column) <= COLUMNS else below

    def _branches(self, before: str, question: int, colon: int, tail: int) -> str:
        """The branches, with their signs at these columns."""
        yes = self.yes.layout(question + 2, question + 2, 0)
        no = self.no.layout(colon + 2, colon + 2, tail)
        return f"{before}? {yes}\n{' ' * colon}: {no}"


def _width(text: str, column: int) -> int:
    """Columns of the longest line of a text that starts at ``column``."""
    first, *rest = text.split("\n")
    return max([column + len(first), *map(len, rest)])


class Lambda(Node):
    """``[&](params) { return body; }``."""

    __slots__ = ("body", "head")

    def __init__(self, params: Sequence[str], body: Node) -> None:
        self.head = f"[&]({', '.join(params)}) {{"
        self.body = body
        self.prec = POSTFIX
        self.flat = f"{self.head} return {body.flat}; }}"

    def hanging(self, column: int, base: int) -> str | None:
        return self.broken(column, base, 0, True) if column + len(self.head) <= COLUMNS else None

    def broken(self, column: int, base: int, tail: int, hang: bool) -> str:
        inner = base + 2
        body = self.body.layout(inner + len("return "), inner, 1, True)
        return f"{self.head}\n{' ' * inner}return {body};\n{' ' * base}}}"
