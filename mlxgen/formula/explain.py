"""What is wrong with a formula, and what to write instead.

``Wrong`` is raised where a part of a formula cannot be translated, and reported by whoever goes on
with the other parts. The functions here make those whose message or help depends on what is there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from ..diagnostics import suggest
from .values import Value

ATTRIBUTES = ("shape", "ndim", "size", "dtype", "T", "mT", "itemsize", "nbytes", "real", "imag")
HERE = "{here}"  # in a help: the text of the place


class Wrong(Exception):
    """Code, message, place and help; without a code all is reported already."""

    def __init__(
        self, code: str = "", message: str = "", at: ast.AST | None = None, help: str | None = None
    ) -> None:
        self.code, self.message, self.at, self.help = code, message, at, help


# Parts of Python that formulas do not have: what they are, and what to write instead.
FOREIGN = {
    "Lambda": ("a lambda", "write the expression out, or use a comprehension"),
    "Dict": ("a dict", "write a tuple or a list"),
    "Set": ("a set", "write a tuple or a list"),
    "DictComp": ("a dict comprehension", "write a list comprehension"),
    "SetComp": ("a set comprehension", "write a list comprehension"),
    "NamedExpr": ("an assignment", "write the expression where it is used"),
    "JoinedStr": ("an f-string", "write a plain string"),
    "Await": ("await", "write the call alone"),
    "Yield": ("yield", "write the expression alone"),
    "YieldFrom": ("yield", "write the expression alone"),
    "Starred": ("a star", "it stands in calls and in tuples only: (*x.shape[:-1], 1)"),
    "Slice": ("a slice", "it stands in an index only: x[1:]"),
    "complex": ("a complex number", None),
    "bytes": ("bytes", None),
    "ellipsis": ("an ellipsis", "it stands in an index only: x[..., 0]"),
}
# Python's functions that formulas do not have, and those that stand in comprehensions only.
PYTHON = {
    "tuple": "write the tuple or list itself",
    "list": "write the tuple or list itself",
    "isinstance": "types of arguments are known from the signature",
    "reversed": "write x[::-1]",
    "sorted": "use sort",
    "map": "use a comprehension",
    "filter": "use a comprehension",
    "str": "strings are for comparing with and passing on",
    "print": "a formula computes one value",
}
LOOPS = {
    "zip": "write [a * b for a, b in zip(xs, ys)]",
    "enumerate": "write [a * i for i, a in enumerate(xs)]",
    "range": "write [x.shape[i] for i in range(2)]",
}
# What to write when a formula gives one kind and another is needed.
_NUMBER = "write full_like(x, 0) or zeros_like(x), with an array in the place of x"
RESULTS = {
    ("array", "int"): _NUMBER,
    ("array", "float"): _NUMBER,
    ("array", "bool"): _NUMBER,
    ("array", "arrays"): "take one of them with [0]",
    ("array", "tuple"): "write one expression",
    ("shape", "int"): "a shape of one dimension is written (n,)",
    ("int64", "float"): "write // to divide ints, or int(...)",
    ("bool", "array"): "conditions are about shapes, dtypes and attributes: arrays have no "
    "values when the graph is built",
    ("bool", "int"): "compare it: n != 0",
}
WANTED = {
    "array": "an array",
    "shape": "a shape",
    "int64": "an int",
    "bool": "a condition",
    "float": "a number",
    "dtype": "a dtype",
}


def foreign(what: object, at: ast.AST) -> Wrong:
    """A part of Python that formulas do not have."""
    text, help = FOREIGN.get(type(what).__name__, ("this", None))
    return Wrong("MG302", f"a formula cannot contain {text}", at, help)


def may_be_none(value: Value) -> Wrong:
    """An optional value where one has to be there."""
    what = f"'{value.name}' may be None here" if value.name else "this may be None"
    help = "decide before with `if`"
    if value.name:
        help = f"write `... if {value.name} is not None else ...`"
    return Wrong("MG311", what, value.at, help)


def require(*values: Value) -> None:
    """Raise ``Wrong`` if a value may be None."""
    for value in values:
        if value.optional:
            raise may_be_none(value)


def guessed(message: str, name: str, known: Iterable[str]) -> str:
    """A message, with the name that was probably meant."""
    guess = suggest(name, [*known])
    return f"{message} (did you mean '{guess}'?)" if guess else message


def no_stream(function: str, at: ast.AST) -> Wrong:
    """An operation on arrays where none can be."""
    message = f"'{function}' computes an array, and this formula cannot"
    help = "it is about shapes, dtypes and attributes: x.shape[-1], x.dtype, n"
    return Wrong("MG315", message, at, help)


def not_a_choice(value: Value, name: str, choices: Sequence[str]) -> Wrong:
    """A string that is none of those possible."""
    listed = ", ".join(repr(c) for c in choices)
    message = guessed(f"'{name}' is never {value.const!r}", value.const, choices)
    return Wrong("MG316", message, value.at, f"it is one of {listed}")


def result(value: Value, wanted: str) -> Wrong:
    """A formula that gives something else than is needed."""
    require(value)
    message = f"this is {value.text}, and {WANTED[wanted]} is needed here"
    return Wrong("MG313", message, value.at, RESULTS.get((wanted, value.kind)))


def result_arrays(value: Value, count: int | None) -> Wrong:
    """A formula that gives no list of arrays."""
    require(value)
    for item in value.items:
        if not item.is_array:
            return Wrong("MG313", f"this is {item.text}, and an array is needed here", item.at)
    wanted = f"{count} arrays are" if count is not None else "a list of arrays is"
    help = f"write a tuple of {count}: (a, b)" if count == 2 else None
    code = "MG314" if value.kind == "array" else "MG313"
    return Wrong(code, f"this is {value.text}, and {wanted} needed here", value.at, help)


def operands(sign: str, pair: Sequence[Value], at: ast.AST) -> Wrong:
    """Operands that do not go together."""
    require(*pair)
    left, right = pair
    kinds, help = {left.kind, right.kind}, None
    if kinds == {"array", "tuple"} and sign != "@":
        help = "write array([...]) for a constant array"
    elif sign == "@":
        help = "both sides have to be arrays"
    elif kinds <= {"arrays", "array"} or kinds <= {"arrays", "int", "float"}:
        help = "write [a * 2 for a in arrays], or take one with [0]"
    elif kinds == {"bool"} and sign in "&|":
        help = f"write `{'and' if sign == '&' else 'or'}`"
    elif "bool" in kinds and kinds <= {"bool", "int", "float"}:
        help = "write int(flag) to count with a bool"
    elif kinds <= {"int", "float"}:
        help = "numbers have + - * / // % and **"
    return Wrong("MG308", f"{sign} cannot join {left.text} and {right.text}", at, help)


def comparison(sign: str, left: Value, right: Value, at: ast.AST) -> Wrong:
    """Values that cannot be compared."""
    require(left, right)
    kinds, help = {left.kind, right.kind}, None
    if "none" in kinds and sign in ("==", "!="):
        help = "write `is None`"
    elif kinds == {"dtype", "category"} and sign in ("==", "!="):
        help = "write issubdtype(x.dtype, floating)"
    return Wrong("MG308", f"{sign} cannot compare {left.text} and {right.text}", at, help)


def condition(value: Value) -> Wrong:
    """Something else than a bool in the place of a condition."""
    message, help = f"a condition is needed here, and this is {value.text}", None
    if value.is_array:
        message = "an array cannot be a condition: it has no value when the graph is built"
        help = "write where(condition, a, b), and & | ~ between conditions on arrays"
    elif value.kind == "none" or value.optional:
        help = "write `is not None`"
    elif value.kind in ("int", "float"):
        help = "compare it: n != 0"
    elif value.is_ints or value.is_arrays:
        help = "compare len(...) with 0"
    return Wrong("MG312", message, value.at, help)


def index(value: Value) -> Wrong:
    """Something that is no index of an array."""
    require(value)
    help = None
    if value.kind == "array":
        help = "index along one axis with take(x, indices, axis) or take_along_axis"
    elif value.kind == "tuple":
        help = "write take(x, array([0, 1]), axis)"
    return Wrong("MG310", f"an index of an array cannot be {value.text} here", value.at, help)


def argument(label: str, name: str, annotation: str, value: Value) -> Wrong:
    """An argument of the wrong kind, or the item that makes a list so."""
    wanted = "array" if "array" in annotation else "int"
    if value.kind == "tuple" and re.search(r"(Sequence|list|tuple)\[", annotation):
        others = [i for i in value.items if i.optional or i.kind != wanted]
        if others and (len(others) < len(value.items) or any(i.optional for i in others)):
            value = others[0]
    require(value)
    help = None
    if value.is_number and "array" in annotation:
        help = f"write array({HERE}) for a constant array"
    elif value.kind == "arrays" and "array" in annotation:
        help = "take one of them with [0]"
    elif value.kind == "tuple" and annotation == "array":
        help = "write array([...]) for a constant array"
    elif value.kind == "float" and "int" in annotation:
        help = "write // to divide ints, or int(...)"
    elif value.kind == "array" and "int" in annotation:
        help = "it has to be known when the graph is built: an int attribute, or a size"
    message = f"'{name}' of '{label}' is `{annotation}`, and this is {value.text}"
    return Wrong("MG307", message, value.at, help)


def builtin(label: str, value: Value) -> Wrong:
    """Something that one of Python's functions does not take."""
    require(value)
    name = label if label in ("len", "int", "float", "bool") else f"'{label}'"
    help = None
    if label == "len":
        help = "len is for lists, shapes and arrays"
    elif label == "float" and value.kind == "str":
        help = "write inf and nan as they are"
    elif label in ("int", "float", "bool") and value.kind == "array":
        help = "the value of an array does not exist when the graph is built"
        if label != "bool":
            help += f"; write x.astype({label}32) to change the dtype"
    elif label in ("all", "any"):
        help = f"write {label}(a.ndim == 2 for a in arrays)"
    return Wrong("MG307", f"{name} of {value.text}", value.at, help)


def attribute(value: Value, node: ast.Attribute, known: Sequence[str]) -> Wrong:
    """An attribute that does not exist, or is none; ``known``: the methods of an array."""
    name, help = node.attr, None
    message = f"{value.text} has no attribute '{name}'"
    if value.kind == "arrays":
        help = "take one of the arrays first, with [0]"
    elif value.kind == "array" and name in known:
        message, help = f"'{name}' is a method", f"call it: .{name}(...)"
    elif value.kind == "array" and name == "at":
        message, help = "'at' stands in an update only", "write x.at[i].add(y)"
    elif value.kind == "array":
        message = guessed(f"an array has no attribute '{name}'", name, [*ATTRIBUTES, *known])
        help = f"attributes: {', '.join(ATTRIBUTES)}"
    return Wrong("MG309", message, node, help)


def method(node: ast.Attribute, known: Sequence[str], function: bool) -> Wrong:
    """A method that does not exist; ``function``: there is a function of that name."""
    name, help = node.attr, None
    if name in ("item", "tolist"):
        why = "which does not exist when the graph is built"
        message = f"'{name}' needs the value of an array, {why}"
    elif function:
        message, help = f"arrays have no method '{name}'", f"write {name}(x, ...)"
    else:
        message = guessed(f"arrays have no method '{name}'", name, known)
    return Wrong("MG309", message, node, help)


def no_key(function: str, at: ast.AST) -> Wrong:
    """Random numbers without a key."""
    help = "MLX's default key belongs to Python; add an array argument `key`, and key=key here"
    return Wrong("MG321", f"'{function}' needs a key in a formula", at, help)
