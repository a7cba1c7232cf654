"""`check` ends, in bounded time and memory, for any file; and no entry of a file is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlxgen.command import operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.names import free
from mlxgen.model.op import Op
from mlxgen.read.compose import MAX_VALUES
from mlxgen.read.names import in_cpp

SECONDS = 5  # of CPU time, many times of what a correct check of these entries needs
ARRAY = "- signature: 'f(x: array) -> array'\n"
ENTRY = "- signature: 'f(x: array, n: int = 1) -> array'\n"

# Names that C++ or its libraries reserve by patterns, which may begin a name.
RESERVED = """M_1 M_K M_PI P_total L_cx PyTree SYS_x NB_x va_lue half_binop_x complex_binop he16tox
    htobe16 st_atime timeradd pthread_cleanup_x strndupa linux errno class kernel""".split()  # noqa: SIM905


def checked(text: str, folder: Path) -> tuple[list[Op], Diagnostics]:
    """Check a file of entries in bounded time."""
    path, diags = folder / "mlx_ops.yaml", Diagnostics()
    path.write_text(text, encoding="utf-8")
    start = time.process_time()
    ops, _ = operators.load(operators.plain_settings(path), diags)
    assert time.process_time() - start < SECONDS
    return list(ops), diags


@pytest.mark.parametrize("name", [*RESERVED, "_1", "_x", "a__b", "x_", "s", "t0", "M_" + "A" * 198])
@pytest.mark.parametrize("role", ["let", "axis", "argument", "mode"])
def test_every_name_has_one_in_cpp(name: str, role: str, tmp_path: Path) -> None:
    text = {
        "let": ENTRY + f"  let: {{{name}: exp(x)}}\n  composite: {name} * {name} * n\n",
        "axis": ENTRY + f"  axes: {{x: {name} 3}}\n  composite: x * {name} * n\n",
        "argument": f"- signature: 'f({name}: array) -> array'\n  composite: {name} * {name}\n",
        "mode": f"- signature: 'f({name}: array | Literal[\"a\"]) -> array'\n"
        f"  composite: ones((2,)) if {name} == 'a' else {name}\n",
    }[role]
    ops, diags = checked(text, tmp_path)
    if not diags.ok:
        assert {item.code for item in diags.sorted()} <= {
            "MG139",
            "MG131",
            "MG301",
            "MG206",
            "MG207",
        }
        return
    (op,) = ops
    expr = op.forward.expr
    assert expr is not None
    names = [name for name, _ in expr.locals] + [p.cpp for p in op.arguments.params]
    names += [length.cpp for length in op.arguments.lengths.values()]
    assert len({*names}) == len(names)
    assert all(one.isidentifier() and not in_cpp(one) for one in names)


def test_free_names() -> None:
    assert free("x", "arg", {"y"}.__contains__) == "x"
    assert free("x", "arg", {"x"}.__contains__) == "x_arg"
    assert free("_1", "arg", {"_1"}.__contains__) == "arg_1"
    assert free("M_1", "let", in_cpp) == "let_M_1"
    taken = {"x", "x_arg", "arg_x", "arg_x_2"}
    assert free("x", "arg", taken.__contains__) == "arg_x_3"


ALIASES = {
    "merge": ("{<<: *b, signature: 'g(x: array) -> array'}", "&b {composite: x}"),
    "formula": ("{signature: 'g(x: array) -> array', composite: *b}", "{composite: &b x}"),
    "block": ("signature: 'g(x: array) -> array'\n  composite: *b", "{composite: &b x}"),
    "mapping": (
        "{signature: 'g(x: array) -> array', composite: x, args: *b}",
        "{composite: x, args: &b {x: text}}",
    ),
    "item": ("{signature: 'g(x: array) -> array', aliases: [*b]}", "{aliases: [&b h]}"),
    "key": ("{signature: 'g(x: array) -> array', *b : x}", "{&b composite : x}"),
    "entry": ("*b", "&b {composite: x}"),
    "merges": ("{<<: [*a, *b], signature: 'g(x: array) -> array'}", "&b {composite: x}"),
}


@pytest.mark.parametrize("form", ALIASES)
def test_an_alias_before_its_anchor_is_an_error(form: str, tmp_path: Path) -> None:
    before, after = ALIASES[form]
    own = "{signature: 'f(x: array) -> array', "
    later = after.replace("{", own, 1)
    first = "- &a {signature: 'e(x: array) -> array', composite: x}\n"
    _, diags = checked(f"{first}- {before}\n- {later}\n", tmp_path)
    errors = [(item.code, item.span.line) for item in diags.sorted()]
    assert ("MG014", 2 if form != "block" else 3) in errors


def test_anchors(tmp_path: Path) -> None:
    shared = "- &b {signature: 'f(x: array) -> array', composite: x}\n"
    assert len(checked(shared, tmp_path)[0]) == 1  # unused
    ops, diags = checked(shared + "- {<<: *b, signature: 'g(x: array) -> array'}\n", tmp_path)
    assert diags.ok and len(ops) == 2
    for text in (
        shared + "- *b\n",  # the same entry twice
        shared + "- &b {signature: 'g(x: array) -> array', composite: x}\n",
        "- &b {<<: *b, signature: 'f(x: array) -> array', composite: x}\n",
        "- {signature: 'f(x: array) -> array', composite: *c, doc: see &c}\n",
    ):
        assert not checked(text, tmp_path)[1].ok, text


@pytest.mark.parametrize(
    ("step", "count"),
    [("{} + 1", 30), ("{} + 1", 990), ("[{}][0]", 300), ("sum(({} for _ in [1, 2]))", 30)],
)
def test_chains_of_lets(step: str, count: int, tmp_path: Path) -> None:
    lets = "".join(f"    a{i}: '{step.format(f'a{i - 1}')}'\n" for i in range(1, count))
    text = f"  let:\n    a0: x + n\n{lets}  composite: a{count - 1}\n"
    shape = f"  let:\n    a0: n\n{lets}  dispatch: {{cpu: f}}\n  shape: '[a{count - 1}]'\n"
    for entry in (text, shape + "  vmap: batch\n  grad: none\n"):
        _, diags = checked(ENTRY + entry, tmp_path)
        codes = {item.code for item in diags.sorted()}
        assert codes <= {"MG310", "MG318", "MG411", "MG502"}, codes


HEAVY = {
    "axis": ARRAY + "  axes: {x: A " + "1//(" * 40 + "A" + ")" * 40 + "}",
    "blank lines": "x:\n  y: 1" + "\n" * 60 + "  z: 1\n",
    "comments": ARRAY + "  grad:\n    x: 1" + "\n# c" * 90 + "\n    y: 1",
    "default": f"- signature: 'f(n: list[int] = [{'-' * 9000}]) -> array'\n  composite: zeros(n)",
    "arguments": f"- signature: 'f({'a, ' * 3000}) -> array'\n  composite: a",
    "name": f"- signature: '{'a.' * 200_000}'",
    "names": "- {name: a, signature: [}\n- signature: " + "a" * 400_000,
    "axes": ARRAY + "  axes: {x: '" + "A B | " * 50_000 + "'}",
    "lets": ENTRY + "  let: {" + ", ".join(f"a{i}: x" for i in range(20_000)) + "}",
    "merges": "- samples: [&a {" + ", ".join(f"k{i}: 1" for i in range(20_000)) + "}"
    ", {<<: *a}" * 5_000 + "]",
    "powers": ENTRY + "  composite: x * 9 ** 9 ** 9 ** 9 + 10 ** 10 ** 8 + x ** 1000000",
    "entries": "".join(
        f"- signature: 'e{i}({', '.join(f'x{j}: array' for j in range(14))}) -> array'\n"
        f"  composite: e{i - 1}({', '.join(f'x{(j + 1) % 14}' for j in range(14))})"
        f" + e{i - 1}(x1, x0, {', '.join(f'x{j}' for j in range(2, 13))}, x0)\n"
        for i in range(1, 20)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEAVY)
def test_check_ends(name: str, tmp_path: Path) -> None:
    assert not checked(HEAVY[name] + "\n", tmp_path)[1].ok


def test_memory(tmp_path: Path) -> None:
    """The largest file allowed needs less than 500 MB."""
    path = tmp_path / "mlx_ops.yaml"
    items = ", ".join(["a" * 28] * (MAX_VALUES - 10))
    path.write_text(f"{ARRAY}  samples: [{items}]\n")
    command = [sys.executable, "-m", "mlxgen", "check", str(path)]
    code = f"import resource, subprocess; subprocess.run({command!r}, capture_output=True)\n"
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) * (1 if sys.platform == "darwin" else 1024) < 500e6
