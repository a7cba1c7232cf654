"""Compiles formulas (gradients, composites, shapes, launch geometry) from Python to C++.

A formula is parsed with ``ast``, checked node by node, and translated: ``grad * result`` becomes
``mlxgen::multiply(cotangents[0], outputs[0], s)``. Names are holes in the C++, filled at the use.

Invariants, which tests prove: a formula means the same as in Python after ``from mlx.core import
*``, and the C++ of every accepted formula compiles. All errors of a formula are reported.
docs/language.md describes the language.

An array computed several times is stored in a C++ variable, unless a condition or loop might skip
it. A second visit of the formula inserts these variables for parts with equal C++.

The first visit writes a hole for each use of a `let`, counts them, and notes which `let`s are
computed in any case. In the second visit these are C++ variables too. A `let` that only conditions
use is inserted, or, if they use it several times, computed by ``mlxgen::Lazy`` at its first use.
The C++ therefore grows with the text of a formula and its `let`s, not with its paths.

The formulas of one function, such as a vjp, share these variables (``compile_together``). A
variable that some calls of the function do not need is computed by ``mlxgen::Lazy``.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, reduce
from itertools import count, product
from operator import attrgetter
from typing import NamedTuple

from ..diagnostics import Report, did_you_mean
from ..model.dtypes import DTYPES
from ..model.kinds import KINDS
from ..model.op import Expr as Expr  # what compile_formula gives
from ..model.op import Fact, Hole
from ..model.signature import Kind, Type
from . import explain
from .explain import Wrong, require
from .facts import MIXED, dtype_of, joint, length, operands
from .facts import Need as Need
from .lets import words
from .lists import Lists, concatenated, condition, joined, repeated
from .mlx import MODULES
from .mlx import VALUES as VALUES
from .source import Formula, parsed
from .translator import Facts, T, both
from .translator import Let as Let
from .translator import Name as Name
from .translator import Scope as Scope
from .translator import names_of as names_of
from .values import (
    CPP_TYPES,
    INT64_MAX,
    INT_MAX,
    LEVEL,
    NOTHING,
    NUMBERS,
    PRESENT,
    Cpp,
    State,
    Value,
    argument,
    binary,
    call,
    constant,
    dereferenced,
    fit,
    hole,
    named,
    present,
    remaining,
    ternary,
    unary,
    unwritten,
)

LARGEST = 40_000  # characters of C++
DEEPEST = 100  # nested nodes
MOST_VISITS = 50_000  # nodes, each `let` counted for each set of known facts
SHORT = 60  # characters of C++ that may be written several times
CHAINED = 10  # `let`s that are computed by recursion
MOST_FORKS = 4  # conditions whose outcomes are checked separately
# Fields of ``Expr``; "": dropped.
USED = ("names", "ops", "headers", "impure", "mlx", "keys", "sized", "lets", "")

# Operators: AST node, symbol, and name in the table of rules and in MLX.
_OPERATORS = """
Add + add, Sub - subtract, Mult * multiply, Div / divide, FloorDiv // floor_divide, Mod % remainder,
Pow ** power, MatMult @ matmul, BitAnd & bitwise_and, BitOr | bitwise_or, BitXor ^ bitwise_xor,
LShift << left_shift, RShift >> right_shift, USub - negative, UAdd + positive,
Invert ~ bitwise_invert, Eq == equal, NotEq != not_equal, Lt < less, LtE <= less_equal,
Gt > greater, GtE >= greater_equal
"""
OPERATORS = {name: (sign, of) for name, sign, of in map(str.split, _OPERATORS.split(","))}


def _power(a: int, b: int) -> int:
    return int(a ** (b if abs(a) < 2 else min(b, 64)))  # larger powers exceed 64 bits anyway


# Operators on int constants, which are computed at generation time.
INT_CONSTANTS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "**": _power}

_NOT_IN_CPP = re.compile("[\\0\ud800-\udfff]")  # the end of a literal, and half a character

_type = cache(Type)  # few types exist, and creating one is slow


class Want(NamedTuple):
    """The required result of a formula."""

    kind: Kind
    length: int | None = None  # ARRAYS: the number of arrays; None: any
    needs: Sequence[Need] = ()  # requirements on the arrays; one for all arrays of a list

    @classmethod
    def arrays(cls, lists: Sequence[bool], needs: Sequence[Need] = ()) -> Want:
        """Require one or several arrays; ``lists`` tells for each whether it is a list."""
        kind = Kind.ARRAYS if len(lists) > 1 or lists[0] else Kind.ARRAY
        return cls(kind, len(lists) if len(lists) > 1 else None, needs)


class Task(NamedTuple):
    """A formula to compile."""

    formula: Formula
    scope: Scope
    want: Want
    report: Report
    always: bool = True  # every call of its C++ function computes it


def compile_formula(formula: Formula, scope: Scope, want: Want, report: Report) -> Expr | None:
    """Compile a formula to C++ with the required result; return None if an error was reported."""
    return compile_together([Task(formula, scope, want, report)])[0]


def compile_together(tasks: Sequence[Task]) -> list[Expr | None]:
    """Compile the formulas of a C++ function, with variables that they share.

    Variables of the same name are the same. None: an error was reported.
    """
    variables = Variables([task.scope for task in tasks])
    compilers = [Compiler(task, variables) for task in tasks]
    for compiler in compilers:
        compiler.attempt(compiler.read)
    variables.plan([compiler for compiler in compilers if not compiler.failed])
    return [None if one.failed else one.attempt(one.compile) for one in compilers]


# A `let` in a context: its name, the known facts about the names that it uses, and whether it is
# inside of `hint`.
Use = tuple[str, frozenset[tuple[str, frozenset[tuple[frozenset[State], bool]]]], bool]


class Call(NamedTuple):
    """A part of a formula that computes arrays."""

    of: Compiler
    node: ast.AST
    cpp: Cpp
    inner: int  # index of the first ``Call`` inside of it
    place: int  # its own index
    used: slice  # its items in ``Translator.used``
    certain: bool  # computed exactly once, regardless of conditions and lists
    use: Use | None  # the `let` that it is a part of


class Local(NamedTuple):
    """The value of a `let` in some context, and its effects on the formula."""

    value: Value
    used: Sequence[tuple[str, str]]  # items of ``Translator.used``
    always: frozenset[str]  # `let`s that are computed whenever it is
    nonlinear: bool  # it is nonlinear in ``grad`` or ``tangent``


class Variable(NamedTuple):
    """A C++ variable."""

    name: str
    expr: Expr
    uses: frozenset[str]  # earlier variables, by the keys of ``Variables.found``
    lazy: bool


class Variables:
    """The C++ variables of the formulas of one function."""

    def __init__(self, scopes: Sequence[Scope]) -> None:
        self.calls: list[Call] = []  # of all formulas, inner ones first
        self.found: dict[str, Variable] = {}  # by the C++ of its use: `t0`, or lazy `t0()`
        self.same: dict[tuple[Hashable, tuple[str | Hole, ...]], str] = {}  # by key and C++
        self.lazy: set[Cpp] = set()  # repeated parts that some calls of the function do not need
        self.lazy_lets: set[str] = set()
        self.owners: dict[Use | None, Compiler] = {}  # the first formulas that use `let`s
        self.taken: set[str] = set()  # names that variables cannot have
        for scope in scopes:
            self.taken |= {*scope.names, *scope.lengths}
        lets = {let.cpp for scope in scopes for let in scope.lets.values()}
        self.free = (t for i in count() if (t := f"t{i}") not in self.taken | lets)

    def plan(self, compilers: Sequence[Compiler]) -> None:
        """Decide which parts and `let`s are variables, after the first visits."""

        def needed(some: Collection[Compiler]) -> bool:
            """Return whether every call of the function computes a part that some formulas do."""
            return len(some) == len(compilers) or any(one.task.always for one in some)

        groups: dict[Cpp, list[Call]] = {}
        for one in self.calls:
            used = {part for part, _ in one.of.used[one.used]}
            if not one.of.failed and used & {"mlx", "ops", "headers"}:  # not dropped
                group = groups.setdefault(one.cpp, [])
                while group and group[-1].place >= one.inner:  # an argument with the same C++
                    group.pop()
                group.append(one)
        inside = set[int]()  # parts inside of variables
        for same in sorted(groups, key=attrgetter("size"), reverse=True):  # outer parts first
            certain = {one.of for one in groups[same] if one.certain}
            group = [one for one in groups[same] if len(certain) > 1 or one.of in certain]
            calls = [one for one in group if one.place not in inside]
            # A `let` is one variable, even if several formulas use it.
            calls = [one for one in calls if self.owners.get(one.use, one.of) is one.of]
            if len(calls) > 1 and calls[0].of.is_pure(calls[0]):
                for one in group:
                    one.of.shared[one.node] = same
                inside.update(i for one in calls[1:] for i in range(one.inner, one.place))
                if not needed(certain) and len(certain) > 1:
                    self.lazy.add(same)
        if len(compilers) > 1:
            users = Counter(name for one in compilers for name in {name for name, *_ in one.uses})
            for name, times in users.items():
                if times > 1 and not needed([one for one in compilers if name in one.always]):
                    self.lazy_lets.add(name)

    def add(self, key: Hashable, name: str, expr: Expr, lazy: bool = False) -> Cpp:
        """Return the use of a variable: of one with this key and C++, or of a new one.

        Args:
            key: Its part of the formula or its `let`.
            name: The preferred name; empty: a new one.
            expr: Its value.
            lazy: It is computed at its first use.
        """
        parts, uses = self.filled(expr.parts)
        if lazy:
            result = f"() -> {expr.variable}" if expr.type.kind is Kind.INT else ""
            parts = (f"mlxgen::Lazy([&]{result} {{ return ", *parts, "; })")
            expr = Expr(_type(Kind.ARRAY), parts)
        use = self.same.get((key, parts))
        if use is None:
            name = next(self.free) if not name or name in self.taken else name
            self.taken.add(name)
            use = self.same[key, parts] = f"{name}()" if lazy else name
            self.found[use] = Variable(name, expr._replace(parts=parts), uses, lazy)
        return hole(use)

    def filled(
        self, parts: tuple[str | Hole, ...]
    ) -> tuple[tuple[str | Hole, ...], frozenset[str]]:
        """Return C++ in which the names of variables are filled in, and these names."""
        uses = frozenset([p.name for p in parts if isinstance(p, Hole) and p.name in self.found])
        if uses:
            parts = tuple([p.name if isinstance(p, Hole) and p.name in uses else p for p in parts])
        return parts, uses

    def of(self, uses: frozenset[str]) -> list[Variable]:
        """Return the variables that a formula needs, in order."""
        needed, found = {*uses}, []
        for use, one in reversed(self.found.items()):
            if use in needed:
                needed |= one.uses
                found.append(one)
        return found[::-1]


class Compiler(Lists):
    """Visits the parts of one formula."""

    def __init__(self, task: Task, variables: Variables) -> None:
        super().__init__(task.formula, task.scope, task.report)
        self.task = task
        self.variables = variables  # of the C++ function
        self.shared: dict[ast.AST, Cpp] = {}  # parts stored in variables, and their C++
        self.stored: dict[Hashable, Cpp] = {}  # the variables, by part or use of a `let`
        self.uncertain = 0  # conditions around the current part
        self.made: dict[Use, Local] = {}  # the values of `let`s
        self.inner: Use | None = None  # the `let` that is being translated
        self.uses: Counter[Use] = Counter()  # how often the formula and its `let`s use them
        self.several: Collection[Use] | None = None  # those to store, in the second visit
        self.always_computed: Collection[str] = ()  # `let`s that become variables
        self.followed: dict[tuple[str, bool], Facts] = {}  # what follows from `let`s
        self.visits = 0

    def attempt(self, step: Callable[[], T]) -> T | None:
        """Return the result of a step, or report its error."""
        try:
            return step()
        except Wrong as wrong:
            self.error(wrong)
        except RecursionError:
            self.error(Wrong("too_deep"))
        return None

    @property
    def tree(self) -> ast.expr:
        """The syntax tree."""
        return self.built or parsed(self.text)

    def read(self) -> None:
        """Visit the formula for the first time, and check its result."""
        self.value = self.whole(self.tree)
        self.cpp = self.written(self.value)
        self.result_facts = self.result(self.value)

    def compile(self) -> Expr | None:
        """Return the expression, after the first visit and the plan of variables."""
        written, value, want = self.cpp, self.value, self.task.want
        if self.shared or self.made:
            second = Compiler(self.task, self.variables)
            second.shared = self.shared
            lazy = self.variables.lazy_lets
            second.several = {u for u, times in self.uses.items() if times > 1 or u[0] in lazy}
            second.always_computed = self.always if self.scope.variables else ()
            written = second.written(second.whole(self.tree))
            if second.failed:
                return None
        type_ = _type(want.kind, int64=want.kind is Kind.INT and value.type == "int64_t")
        used: dict[str, set[str]] = {part: set() for part in USED}
        for part, name in self.used:
            used[part].add(name)
        del used[""]
        parts, uses = self.variables.filled(written.parts)
        needed = self.variables.of(uses)
        locals = tuple([(one.name, one.expr) for one in needed])
        if any(one.lazy for one in needed) and not (self.scope.variables and not self.scope.shared):
            pieces: list[str | Hole] = ["[&] { "]
            for name, local in locals:
                pieces += [f"const {local.variable} {name} = ", *local.parts, "; "]
            parts, locals = (*pieces, "return ", *parts, "; }()"), ()
        return Expr(
            type_,
            parts,
            facts=self.result_facts,
            specializes=self.specializes[0],
            gradient_specializes=self.specializes[1],
            promoted=value.promoted,
            locals=locals,
            **{part: frozenset(names) for part, names in used.items()},
        )

    def written(self, value: Value) -> Cpp:
        """Return the C++ of the result."""
        want = self.task.want
        value = condition(value) if value.kind == "truth" and want.kind is Kind.BOOL else value
        slot = "int64" if want.kind is Kind.INT else KINDS[want.kind].slot
        fitted = fit(value, slot)
        if fitted is None:
            raise explain.result(value, slot, want.length)
        for item in value.items if want.kind is Kind.SHAPE else ():
            if item.const is not None and not 0 <= item.const <= INT_MAX:
                raise Wrong("extent", item.at, value=item)
        if want.length is not None and value.length is None:  # known only at run time
            return call("mlxgen::exactly", fitted, str(want.length))
        if want.length not in (None, value.length):
            raise Wrong("result_count", value.at, given=value.length, count=want.length)
        return fitted

    def is_pure(self, call: Call) -> bool:
        """Return whether a part always has the same result.

        Functions of MLX are deterministic, because random ones have keys in formulas.
        """
        used = self.used[call.used]
        pure = all(self.scope.pure(name) for part, name in used if part == "ops")
        return pure and "impure" not in dict(used)

    def result(self, value: Value) -> tuple[Fact, ...]:
        """Return the facts about the result, after checking them against the requirements."""
        want = self.task.want
        if want.kind in (Kind.SHAPE, Kind.DTYPE):
            return (Fact(length(value), dtype_of(value)),)
        found = known_of(value)
        needs = [*want.needs, *[*want.needs][-1:] * len(found)]

        def compare(each: tuple[tuple[Fact, ast.expr], Need]) -> None:
            (fact, at), need = each
            if wrong := need.unmet(fact, at, self.nonlinear):
                raise wrong

        if self.forks and not self.failed and any(need.linear for need in needs):
            self.compare_cases()
        else:
            self.each(compare, list(zip(found, needs, strict=False)))
        return tuple(fact for fact, _ in found)

    def compare_cases(self) -> None:
        """Check the result for each combination of the conditions' outcomes."""
        for outcomes in product((True, False), repeat=len(self.forks)):
            case = Compiler(self.task, Variables(()))
            case.assumed = dict(zip(self.forks, outcomes, strict=True))
            try:
                case.result(case.whole(self.tree))
            finally:
                self.failed |= case.failed
            if case.failed:
                return

    def branch(self, test: Cpp, kind: str, yes: Value, no: Value) -> Fact | list[Fact] | None:
        """Return the facts about a conditional value."""
        if test in self.assumed and kind in ("array", "arrays"):
            yes = no = yes if self.assumed[test] else no
        fact = joint(kind, yes, no)
        several = fact if isinstance(fact, list) else [fact] if isinstance(fact, Fact) else []
        mixed = any(one.degree == MIXED for one in several) and test not in self.forks
        if mixed and len(self.forks) < MOST_FORKS:
            self.forks.append(test)
        return fact

    def whole(self, tree: ast.expr) -> Value:
        """Return the value of the formula.

        A long chain of `let`s is computed from its beginning, because Python limits recursion.
        """
        lets = self.scope.lets
        if not lets:
            return self.visit(tree)
        used = words(tree)
        used = used.union(*(lets[name].words for name in used & lets.keys()))
        for name, let in lets.items():
            if name in self.always_computed:
                self.declare(name)
            elif let.depth % CHAINED == CHAINED - 1 and name in used:
                self.prepare(name)
        return self.visit(tree)

    def visit(self, node: ast.expr | ast.keyword) -> Value:
        """Return the value of a part of the formula."""
        handler = getattr(self, f"visit_{type(node).__name__}", None)
        if handler is None:
            raise explain.foreign(node, node)
        self.depth += 1
        if self.depth > DEEPEST:
            raise RecursionError
        self.visits += 1
        if self.visits > MOST_VISITS:
            raise Wrong("too_large", node)
        before, inner = len(self.used), len(self.variables.calls)
        value: Value = handler(node)
        self.depth -= 1
        if value.kind == "tuple":  # its C++ depends on its use, and contains that of its items
            value = replace(value, cpp=unwritten(value.items))
        if value.cpp.size > LARGEST:  # optional values are written twice, which can double the size
            raise Wrong("too_large", node)
        if value.kind not in ("array", "arrays") or value.cpp.level == LEVEL["name"]:
            return value
        if same := self.shared.get(node):
            if same not in self.stored:
                lazy = same in self.variables.lazy
                self.stored[same] = self.variables.add(same, "", held(value), lazy)
            return replace(value, cpp=self.stored[same])
        if self.several is None:
            used, certain = slice(before, len(self.used)), not (self.uncertain or self.locals)
            place = len(self.variables.calls)
            call = Call(self, node, value.cpp, inner, place, used, certain, self.inner)
            self.variables.calls.append(call)
        return value

    # Named subexpressions

    def declare(self, name: str) -> None:
        """Make a C++ variable of a `let`, unless only a condition allows to compute it."""
        with self.silently():
            value = self.made[self.use(name, ast.Name(name, lineno=1, col_offset=0))].value
            is_lazy = name in self.variables.lazy_lets and is_long(value)
            if is_variable(value) and not is_lazy:
                cpp = self.scope.lets[name].cpp
                self.stored[name] = self.variables.add(name, cpp, held(value))

    @contextmanager
    def silently(self) -> Iterator[None]:
        """Ignore the errors of a `let` that is computed before its use."""
        before = self.report, self.scope, self.failed, self.said, self.hints
        self.report, self.said = lambda *_: None, set()
        self.scope = self.scope._replace(let_report=lambda *_: None)
        try:
            yield
        except Wrong:
            pass
        finally:
            self.report, self.scope, self.failed, self.said, self.hints = before

    def prepare(self, name: str) -> None:
        """Compute a `let` before its use, for which this has no effect."""
        start, self.uncertain = len(self.used), self.uncertain + 1
        with self.silently():
            self.use(name, ast.Name(name, lineno=1, col_offset=0))
            for holds in (True, False):
                self.facts(ast.Name(name), holds)
        self.uncertain -= 1
        self.used[start:] = [("", "")] * (len(self.used) - start)

    def visit_let(self, name: str, node: ast.expr) -> Value:
        """Return the value of a `let` of the entry."""
        order = [*self.scope.lets]
        if self.inside and order.index(name) >= order.index(self.inside[-1][0]):
            user = self.inside[-1][0]
            raise Wrong("let_itself" if name == user else "let_order", node, name=name, user=user)
        if self.scope.lets[name].broken:
            raise Wrong
        self.used.append(("lets", name))
        use = self.use(name, node)
        self.uses[use] += 1
        made = self.made[use]
        self.used += made.used
        self.always |= {name, *made.always}
        self.nonlinear = node if self.nonlinear is None and made.nonlinear else self.nonlinear
        value = located(made.value, node)
        if value.kind == "tuple":
            self.visits += value.cpp.size
        if is_variable(value) and (stored := self.in_variable(use, value)):
            value = replace(value, cpp=stored, cases=None)
        named = value.optional or value.kind == "union"
        return self.narrowed(replace(value, name=name)) if named else value

    def use(self, name: str, node: ast.expr) -> Use:
        """Return the key of a `let` in the current context, with its value in ``made``."""
        let = self.scope.lets[name]
        known = frozenset(pair for pair in self.known.items() if pair[0] in let.words)
        use = name, known, self.hints > 0
        if use not in self.made:
            outer, self.inner = self.inner, use
            try:
                self.made[use] = self.make(name, let, node)
            finally:
                self.inner = outer
            if is_variable(self.made[use].value):
                self.variables.owners.setdefault(use, self)
        return use

    def in_variable(self, use: Use, value: Value) -> Cpp | None:
        """Return the C++ of the variable for a `let`, or None if its C++ is inserted."""
        name = use[0]
        if self.several is None:
            return hole(name)
        if name in self.stored:
            return self.stored[name]
        if use not in self.several or not is_long(value):
            return None
        if use not in self.stored:
            cpp = self.scope.lets[name].cpp
            self.stored[use] = self.variables.add(use, cpp, held(value), lazy=True)
        return self.stored[use]

    def make(self, name: str, let: Let, node: ast.expr) -> Local:
        """Translate the text of a `let`; its errors are located there."""
        before = self.text, self.report, self.locals, self.depth, self.always, self.nonlinear
        start = len(self.used)
        self.inside.append((name, node, self.text, self.report))
        self.text, self.report = let.text, partial(self.scope.let_report, name)
        self.locals, self.depth, self.always, self.nonlinear = {}, 0, set(), None
        try:
            value = self.visit(parsed(let.text))
            used = [*dict.fromkeys(self.used[start:])]
            return Local(value, used, frozenset(self.always), self.nonlinear is not None)
        except Wrong as wrong:
            self.error(wrong)
            raise Wrong from None
        finally:
            self.text, self.report, self.locals, self.depth, self.always, self.nonlinear = before
            self.inside.pop()

    # Constants and names

    def visit_Constant(self, node: ast.Constant) -> Value:
        value = node.value
        if value is not None and not isinstance(value, bool | int | float | str):
            raise explain.foreign(value, node)
        if isinstance(value, int) and abs(value) > INT64_MAX:
            raise Wrong("long_int", node)
        if value == float("inf"):
            raise Wrong("large_float", node)
        if isinstance(value, str) and _NOT_IN_CPP.search(value):
            raise Wrong("bad_string", node)
        return constant(value, node)

    def visit_Name(self, node: ast.Name) -> Value:
        name = node.id
        if name in self.locals:
            return self.narrowed(replace(self.locals[name], at=node))
        if name in self.scope.lets:
            return self.visit_let(name, node)
        found = self.scope.names.get(name)
        if found is None and name in self.scope.lengths:
            self.used.append(("names", self.scope.lengths[name].array))
            self.specialize(node)
            return Value("int", hole(name), node)
        if found is None:
            self.not_cotangent(name, node)
            return self.constant_name(name, node)
        self.used += [("names", each) for each in (name, found.mode) if each]
        value = argument(found.type, node, name, found.length, found.fact, found.mode)
        return self.narrowed(value)

    def narrowed(self, value: Value) -> Value:
        """Return the value of a name, without the states that conditions exclude."""
        tests = self.known.get(value.name or "", ())
        states = value.states if value.kind == "union" else frozenset({None, PRESENT})
        left = frozenset(s for s in states if all((s in among) is holds for among, holds in tests))
        if value.kind == "union":
            return remaining(value, left)
        if not value.optional or left == states:
            return value
        return constant(None, value.at) if PRESENT not in left else dereferenced(value)

    def not_cotangent(self, name: str, node: ast.expr) -> None:
        """Raise for a bare `grad` without a cotangent, which does not mean mx.grad."""
        if name == "grad":
            raise Wrong("no_cotangent", node, "jvp" * ("tangent" in self.scope.names))

    def constant_name(self, name: str, node: ast.expr) -> Value:
        """Return the value of a name of mlx.core other than a function."""
        if name in DTYPES:
            return Value("dtype", named(f"mx::{name}"), node, const=name, fact=Fact(dtype=name))
        value = self.rule(name, [], node)
        if value is not None:
            return value
        if name in MODULES or name == "mx":
            raise Wrong("module", node, name=name)
        word = explain.word(name) if explain.word(name).isidentifier() else ""
        entries = {*self.scope.ops, *self.scope.overloads}
        if (name in entries or self.scope.api.is_function(name)) and not word:
            raise Wrong("function", node, name=name)
        self.scope.api.require(name, node)
        known = [*self.locals, *self.scope.names, *self.scope.lengths, *self.scope.lets]
        choice = any(name in given.type.choices for given in self.scope.names.values())
        keys = "choice" * choice, "axis" * (name in self.scope.unsized)
        meant = did_you_mean(name, [*known, *VALUES])
        about = {"name": name, "word": word, "guess": meant, "names": ", ".join(known) or "none"}
        raise Wrong("unknown_name", node, *keys, **about)

    def path(self, node: ast.expr) -> str | None:
        """``linalg.norm`` for mx.linalg.norm or linalg.norm; None for what is no name of MLX."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not parts or not isinstance(node, ast.Name):
            return None
        if node.id in self.locals or node.id in self.scope.names or node.id in self.scope.lets:
            return None
        names = [*reversed(parts)]
        if node.id in self.scope.packages:
            return ".".join([node.id, *names])
        if explain.word(f"{node.id}."):  # of another library
            tails = [".".join(names[i:]) for i in range(len(names))]
            own = next((f"{t}(...)" for t in tails if self.scope.api.is_function(t)), "")
            word = own or explain.word(names[-1])
            if names[-1] in (*VALUES, *self.scope.names, *self.scope.ops):
                word = names[-1]
            raise Wrong("other_module", node, name=node.id, word=word)
        if node.id not in ("mx", *MODULES):
            self.check_package(node, names[0])
            return None
        return ".".join([*([] if node.id == "mx" else [node.id]), *names])

    def check_package(self, node: ast.Name, name: str) -> None:
        """Report an unknown name in front of what only a package can contain."""
        scope, api = self.scope, self.scope.api
        known = VALUES, scope.lengths, scope.ops, scope.overloads, scope.unsized
        is_known = any(node.id in names for names in known)
        if name not in {*api.attributes, *api.methods, "at"} and not is_known:
            self.not_cotangent(node.id, node)
            if not (api.is_function(node.id) or did_you_mean(node.id, scope.names)):
                raise Wrong("unknown_package", node, name=node.id)

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        path = self.path(node)
        if path is not None:
            return self.constant_name(path, node)
        value = self.visit(node.value)
        require(value)
        found = self.rule(f".{node.attr}", [value], node)
        if found is None:
            api = self.scope.api
            raise explain.attribute(value, node, api.attributes, api.methods)
        if value.is_array and node.attr in ("shape", "size", "nbytes"):
            self.specialize(node)
        return found

    # Operators

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return Value("bool", unary("!", condition(value).cpp), node)
        sign, name = OPERATORS[type(node.op).__name__]
        if name == "negative" and value.const is not None and value.kind in ("int", "float"):
            return constant(-value.const, node)
        found = self.rule(name, [value], node)
        if found is None:
            require(value)
            raise Wrong("apply", node, f"{sign}{value.kind}", sign=sign, value=value)
        return found

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        sign, name = OPERATORS[type(node.op).__name__]
        pair = self.each(self.visit, [node.left, node.right])
        if sign in "//%" and pair[1].const == 0 and pair[0].kind in ("int", "float"):
            raise Wrong("by_zero", node, sign=sign)
        known = all(v.kind == "int" and v.const is not None for v in pair)
        if known and sign in INT_CONSTANTS and (sign != "**" or pair[1].const >= 0):
            result = ast.Constant(INT_CONSTANTS[sign](pair[0].const, pair[1].const))
            return self.visit_Constant(ast.copy_location(result, node))
        found = self.rule(name, pair, node)
        if found is None and name in ("add", "multiply"):
            parts = pair if name == "add" else repeated(*pair)
            if parts and (all(v.is_ints for v in parts) or all(v.is_arrays for v in parts)):
                found = concatenated(parts, node)
        if found is None:
            raise explain.pair("join", sign, pair[0], pair[1], node)
        return found

    # Conditions

    def visit_knowing(self, node: ast.expr, more: Facts, *computed: set[str]) -> Value:
        """Return the value of a conditional part, given more facts about optional arguments.

        The `let`s that it computes are added to ``computed``.
        """
        before, self.known = self.known, both(self.known, more)
        always, self.always = self.always, set()
        self.uncertain += 1
        try:
            return self.visit(node)
        finally:
            for one in computed:
                one |= self.always
            self.known, self.always = before, always
            self.uncertain -= 1

    def facts(self, node: ast.expr, holds: bool) -> Facts:
        """Return which optional names are None if the condition ``node`` is true (or false)."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.facts(node.operand, not holds)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) is holds:
            return reduce(both, [self.facts(part, holds) for part in node.values])
        if isinstance(node, ast.Name) and node.id in self.scope.lets and node.id not in self.locals:
            let, key = self.scope.lets[node.id], (node.id, holds)
            if key not in self.followed:
                self.followed[key] = {} if let.broken else self.facts(parsed(let.text), holds)
            return self.followed[key]
        match node:
            case ast.Name(name) if holds and self.can_be_narrowed(name):  # None is false
                return {name: frozenset({(frozenset({None}), False)})}
            case ast.Compare(ast.Name(name), [op], [other]) | ast.Compare(
                other, [ast.Eq() | ast.NotEq() as op], [ast.Name(name)]
            ):
                states = _states(op, other)
                is_positive = isinstance(op, ast.Is | ast.Eq | ast.In)
                if states and self.can_be_narrowed(name):
                    return {name: frozenset({(states, is_positive is holds)})}
        return {}

    def can_be_narrowed(self, name: str) -> bool:
        """Return whether conditions can exclude states of a name."""
        if name in self.locals:
            return self.locals[name].optional
        given = self.scope.names.get(name)
        return name in self.scope.lets or bool(given and (given.type.optional or given.mode))

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        is_and = isinstance(node.op, ast.And)
        first, *others = node.values
        visits, known = [partial(self.visit, first)], self.facts(first, is_and)
        for part in others:
            visits.append(partial(self.visit_knowing, part, known))
            known = both(known, self.facts(part, is_and))
        values = self.all(*visits)
        found = joined("&&" if is_and else "||", [condition(value) for value in values], node)
        # Python returns one of the lists, which differs from their truth outside of conditions.
        lists = any(value.kind != "bool" for value in values)
        return replace(found, kind="truth") if lists else found

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        if_true, if_false = set[str](), set[str]()
        test, yes, no = self.all(
            partial(self.visit, node.test),
            partial(self.visit_knowing, node.body, self.facts(node.test, True), if_true),
            partial(self.visit_knowing, node.orelse, self.facts(node.test, False), if_false),
        )
        self.always |= if_true & if_false
        test = condition(test)
        require(*(value for value in (yes, no) if value.kind == "union"))
        case = self.assumed.get(test.cpp)
        at = node if case is None else node.body if case else node.orelse
        optional, kinds = yes.optional or no.optional, {yes.kind, no.kind}
        if not optional and len(kinds) == 2 and kinds <= {*NUMBERS}:
            # The condition decides about the kind of the number.
            a = yes.cpp if yes.kind == "scalar" else call("mlxgen::Scalar", yes.cpp)
            return Value("scalar", ternary(test.cpp, a, no.cpp), at, cases=(test.cpp, yes, no))
        for kind in ("shape", "arrays"):
            a, b = fit(yes, kind), fit(no, kind)
            same = yes.kind == no.kind and yes.kind not in (kind, "tuple")  # no conversion needed
            if a and b and not same:
                count = yes.count if yes.count == no.count else None
                fact = self.branch(test.cpp, kind, yes, no)
                return Value(kind, ternary(test.cpp, a, b), at, count=count, fact=fact)
        kind = no.kind if yes.kind == "none" else yes.kind
        optional = optional or "none" in kinds
        unwritten = kind in ("tuple", "category", "finfo") or (optional and kind not in CPP_TYPES)
        if not kinds <= {kind, "none"} or unwritten:
            raise Wrong("branches", node, "+".join(sorted((yes.kind, no.kind))), yes=yes, no=no)
        # Both have the same kind; one or both may be None.
        type_ = "int64_t" if "int64_t" in (yes.type, no.type) else ""
        head = f"std::optional<{type_ or CPP_TYPES[kind]}>" if optional else type_
        if kind == "str" and not optional:
            head = "std::string"
        a, b = [v.cpp if v.kind == "none" or not head else call(head, v.cpp) for v in (yes, no)]
        either = ternary(test.cpp, a, b)
        choices = yes.choices if yes.choices == no.choices else ()
        fact = self.branch(test.cpp, kind, yes, no)
        cases = (test.cpp, yes, no) if optional else None
        return Value(kind, either, at, optional, type_, choices=choices, fact=fact, cases=cases)

    # Comparisons

    def visit_Compare(self, node: ast.Compare) -> Value:
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return self.compare_none(node)
        certain = 1 if isinstance(node.ops[0], ast.In | ast.NotIn) else 2  # operands
        operands_ = [node.left, *node.comparators]
        visits = [partial(self.visit, one) for one in operands_[:certain]]
        visits += [partial(self.visit_knowing, one, {}) for one in operands_[certain:]]
        sides = self.all(*visits)
        if len(node.ops) > 1 and any(v.kind == "array" for v in sides):
            raise Wrong("chained", node)
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        tests = [self.compare(type(op).__name__, a, b, node) for op, a, b in pairs]
        return tests[0] if len(tests) == 1 else joined("&&", tests, node)

    def compare(self, op: str, left: Value, right: Value, node: ast.expr) -> Value:
        """Return the value of one comparison."""
        if op in ("In", "NotIn"):
            return self.contained(op == "In", left, right, node)
        sign, name = OPERATORS[op]
        found = self.rule(name, [left, right], node)
        if found is not None:
            return found
        equality = sign in ("==", "!=")
        union, string = (right, left) if left.kind == "str" else (left, right)
        of_union = union.mode is not NOTHING  # even if it is known to be an array
        if equality and of_union and string.kind == "str":
            require(string)
            if string.const is not None and string.const not in union.choices:
                raise explain.choice(string, union.name or "this", union.choices)
            return Value("bool", binary(sign, union.mode, string.cpp), node)
        if left.kind == right.kind == "str" and equality:
            require(left, right)
            if left.const is not None and right.const is not None:
                return constant((left.const == right.const) is (sign == "=="), node)
            for value, other in ((left, right), (right, left)):
                if value.const is not None and other.choices and value.const not in other.choices:
                    raise explain.choice(value, other.name or "this", other.choices)
        found = self.rule(sign, [left, right], node)
        if found is None:
            raise explain.pair("compare", sign, left, right, node)
        return found

    def contained(self, positive: bool, left: Value, right: Value, node: ast.expr) -> Value:
        """Return the value of ``left in right`` or ``left not in right``."""
        require(right) if left.mode is not NOTHING else require(left, right)
        if right.kind == "tuple" and right.items:
            op = "Eq" if positive else "NotEq"
            tests = [self.compare(op, left, item, node) for item in right.items]
            if any(test.kind != "bool" for test in tests):
                raise Wrong("in_arrays", node)
            return joined("||" if positive else "&&", tests, node)
        found = self.rule("in", [left, right], node)
        if found is None:
            raise Wrong("in", node, right.kind, left=left, right=right)
        return found if positive else replace(found, cpp=unary("!", found.cpp))

    def compare_none(self, node: ast.Compare) -> Value:
        """Return the value of ``x is None`` or ``x is not None``."""
        if len(node.ops) != 1 or not is_none(node.comparators[0]):
            self.each(self.visit, node.comparators)
            raise Wrong("is", node)
        value, positive = self.visit(node.left), isinstance(node.ops[0], ast.Is)
        if None in value.states:
            tests = [present(part) for part in (value.mode, value.cpp)]
            tests = [unary("!", test) for test in tests] if positive else tests
            return Value("bool", binary("&&" if positive else "||", *tests), node)
        if value.optional and value.name is None:
            raise Wrong("compared_to_none", node.left)
        if not value.optional:
            problem = "none" if value.kind == "none" else "never"
            raise Wrong("never_none", node, name=value.name or "this", problem=problem)
        test = present(value.cpp)
        return Value("bool", unary("!", test) if positive else test, node)

    # Calls

    def visit_Call(self, node: ast.Call) -> Value:
        function = node.func
        if isinstance(function, ast.Name):
            return self.call_name(function.id, node)
        if not isinstance(function, ast.Attribute):
            raise Wrong("no_function", function, type(function).__name__)
        path = self.path(function)
        if path is not None and path.partition(".")[0] in self.scope.packages:
            return self.call_used(path, node)
        if path is not None:
            return self.call_named(path, node)
        match function.value:
            case ast.Subscript(value=ast.Attribute(value=array, attr="at")) as at:
                return self.update_array(at, array, node, function.attr)
        return self.call_method(function, node)

    def visit_keyword(self, node: ast.keyword) -> Value:
        """Return the value of a keyword argument."""
        if node.arg is None:
            raise Wrong("two_stars", node.value)
        if node.arg == "stream":
            raise Wrong("stream_given", node)
        return self.visit(node.value)

    def call_name(self, name: str, node: ast.Call) -> Value:
        """Translate a call by bare name: of an entry, a Python function or an MLX function."""
        if name in self.locals or name in self.scope.names or name in self.scope.lets:
            key: str = self.visit(node.func).kind
            if self.scope.api.is_function(name):
                key = "function"
            if name in {*self.scope.ops, *self.scope.overloads}:
                key = "entry"
            called = "let_called" if name in self.scope.lets else "argument_called"
            raise Wrong(called, node.func, key, name=name)
        if name in self.scope.overloads or name in self.scope.ops:
            args = self.arguments(node, name)
            of_numbers = not any(value.kind == "array" for value in args.positional)
            if of_numbers and name in self.scope.api.python:  # min(2, n), next to an entry `min`
                return self.call_builtin(name, node, args)
            if name in self.scope.overloads:
                return self.call_overload(name, args)
            return self.call_op(name, args)
        if name in self.scope.api.python or name in self.scope.api.loops:
            return self.call_builtin(name, node)
        self.not_cotangent(name, node.func)
        return self.call_named(name, node)

    def call_method(self, function: ast.Attribute, node: ast.Call) -> Value:
        """Translate a method call such as ``x.sum(axis=-1)``."""
        name = function.attr
        receiver, args = self.all(
            partial(self.visit, function.value), partial(self.arguments, node, name)
        )
        require(receiver)
        if receiver.kind != "array":
            raise Wrong("no_methods", function, value=receiver)
        method = self.scope.api.method(name)
        if method is None:
            if name in ("item", "tolist"):
                raise Wrong("no_value", last(function), name=name)
            self.scope.api.require(name, last(function))
            word, meant = explain.word(name), did_you_mean(name, self.scope.api.methods)
            known = self.scope.api.function(name) is not None
            attribute = name in self.scope.api.attributes and not args.positional
            entry = name in self.scope.ops or name in self.scope.overloads
            keys = ("attribute" * attribute, name, "function" * known, "entry" * entry)
            about = {"name": name, "word": word, "guess": meant}
            raise Wrong("unknown_method", last(function), *keys, **about)
        args.positional.insert(0, receiver)
        args.method = True
        return self.call_mlx(method, args)


def is_pure(expr: Expr, pure: Callable[[str], bool]) -> bool:
    """Return whether a result depends only on the arguments; ``pure`` tells it of an entry."""
    return not expr.impure and all(map(pure, expr.ops))


def known_of(value: Value) -> list[tuple[Fact, ast.expr]]:
    """Return the facts about each array of a result, with its node."""
    parts = value.items if value.kind == "tuple" else [value]
    return [(fact, part.at) for part in parts for fact in operands([part])]


def last(node: ast.Attribute) -> ast.Name:
    """Return a node for the name after the dot, as a location."""
    name = ast.copy_location(ast.Name(node.attr), node)
    name.col_offset = (node.end_col_offset or 0) - len(node.attr.encode())
    return name


def is_none(node: ast.expr) -> bool:
    """Return whether the node is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def _states(op: ast.cmpop, other: ast.expr) -> frozenset[State]:
    """Return the states of a name with which a comparison is true, or for `!=` false."""
    if isinstance(op, ast.Is | ast.IsNot):
        return frozenset({None}) if is_none(other) else frozenset()
    items = [other] if isinstance(op, ast.Eq | ast.NotEq) else []
    if isinstance(op, ast.In | ast.NotIn) and isinstance(other, ast.Tuple | ast.List):
        items = other.elts
    found = [item.value for item in items if isinstance(item, ast.Constant)]
    strings = [value for value in found if isinstance(value, str)]
    return frozenset(strings) if len(strings) == len(items) else frozenset()


def is_variable(value: Value) -> bool:
    """Return whether a value can be a C++ variable that is worth a name."""
    bare = value.const is not None or value.cpp.level == LEVEL["name"]
    return not bare and value.kind not in ("tuple", "none", "category")


def is_long(value: Value) -> bool:
    """Return whether it is worth a variable that is computed at its first use."""
    return value.kind in ("array", "arrays") or value.cpp.size > SHORT


def held(value: Value) -> Expr:
    """Return the expression of a C++ variable for a value."""
    if value.kind == "int" and not value.optional:
        return Expr(_type(Kind.INT, int64=value.type == "int64_t"), value.cpp.parts)
    return Expr(_type(Kind.ARRAY), value.cpp.parts)


def located(value: Value, node: ast.expr) -> Value:
    """Return a value of a `let` at the location of its use."""
    return replace(value, at=node, items=[located(item, node) for item in value.items])
