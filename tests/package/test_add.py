"""`mlxgen add`: every signature yields an accepted entry with compilable kernels, or one message.

Everything but the last test runs in this process and compiles nothing.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import mlx.core as mx
import pytest
import yaml
from click.testing import CliRunner, Result

import mlxgen
from mlxgen.__main__ import cli
from mlxgen.emulator import library
from mlxgen.emulator.translate import translate

pytestmark = pytest.mark.extended

# Arguments in Python's, C++'s and torch's spelling.
ARGUMENTS = [
    ("x: array", "const array& x", "Tensor x"),
    ("w: array | None = None", "std::optional<array> w = std::nullopt", "Tensor? w=None"),
    ("xs: list[array]", "std::vector<array> xs", "Tensor[] xs"),
    ("a: float = 1.5", "float a = 1.5", "float a=1.5"),
    ("n: int", "int n", "int n"),
    ("m: int | None = None", "std::optional<int> m = std::nullopt", "int? m=None"),
    ("axis: int = -1", "int axis = -1", "int axis=-1"),
    ("dim: int | None = None", "std::optional<int> dim = std::nullopt", "int? dim=None"),
    ("b: bool = True", "bool b = true", "bool b=True"),
    ("s: str", "std::string s", "str s"),
    ('t: str | None = "x"', 'std::optional<std::string> t = "x"', 'str? t="x"'),
    ('mode: Literal["p", "q"] = "q"', 'enum("p", "q") mode = "q"', 'enum("p", "q") mode="q"'),
    ("k: list[int]", "std::vector<int> k", "int[] k"),
    ("pair: int | tuple[int, int] = 2", "int[2] pair = 2", "int[2] pair=2"),
    ("shape: shape", "Shape shape", "shape shape"),
    ("axes: axes = None", "axes axes = std::nullopt", "axes axes=None"),
    ("dtype: Dtype = float32", "Dtype dtype = float32", "ScalarType dtype=float32"),
    ("i: array", "const array& i", "Tensor i"),
    ("In: array", "const array& In", "Tensor In"),
    ("Out: array", "const array& Out", "Tensor Out"),
    ("size: array", "const array& size", "Tensor size"),
]
# Arguments that torch cannot spell, or whose index is -1 for None.
IN_PYTHON = [
    ('mask: array | Literal["p", "q"] | None = None', "", ""),
    ('gate: array | Literal["p"]', "", ""),
    ('maybe: Literal["p", "q"] | None = None', "", ""),
]
OUTPUTS = [
    ("array", "array", "Tensor"),
    ("(y: array, z: array)", "std::pair<array, array>", "(Tensor y, Tensor z)"),
    ("list[array]", "std::vector<array>", "Tensor[]"),
]
KERNELS: list[list[str]] = [
    [],
    ["--kernel", "cpu"],
    ["--kernel", "metal"],
    ["--kernel", "cpu,metal"],
    ["--kernel", "shared"],
    ["--composite", "x"],
]


def spelled(name: str, arguments: list[int], output: int, spelling: int) -> str:
    """Return a signature."""
    # Arguments with a default are last.
    given = sorted((ARGUMENTS[i] for i in arguments), key=lambda words: "=" in words[0])
    listed = ", ".join(words[spelling] for words in given)
    if spelling == 0 and len(given) > 2:
        listed = ", ".join(w[0] for w in given[:-1]) + f", *, {given[-1][0]}"
    result = OUTPUTS[output][spelling]
    return f"{result} {name}({listed})" if spelling == 1 else f"{name}({listed}) -> {result}"


def signatures() -> list[str]:
    """Return signatures with each argument alone and with an array, and some with several."""
    draw = random.Random(0)
    count = len(ARGUMENTS)
    several = [draw.sample(range(count), draw.randint(2, 5)) for _ in range(25)]
    alone = [[i] for i in range(count)] + [[0, i] for i in range(1, count)]
    return [
        spelled("f", arguments, number % 7 // 3, number % 3)
        for number, arguments in enumerate([*alone, *several])
    ]


def add(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["add", *arguments])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new package."""
    folder = tmp_path_factory.mktemp("add") / "my-ops"
    done = CliRunner().invoke(cli, ["new", "my-ops", "--folder", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def restore(folder: Path, before: dict[str, bytes]) -> None:
    for name in contents(folder).keys() - before.keys():
        (folder / name).unlink()
    (folder / "mlx_ops.yaml").write_bytes(before["mlx_ops.yaml"])


@pytest.mark.parametrize("turn", range(2))
def test_every_signature(turn: int, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package)
    before = contents(package)
    written = 0
    for number, signature in enumerate(signatures()):
        kernel = KERNELS[(number + 3 * turn) % len(KERNELS)]
        done = add(signature, *kernel)
        about = f"{signature} {kernel}\n{done.output}"
        if done.exit_code == 0:
            written += 1
            entry = yaml.safe_load(Path("mlx_ops.yaml").read_text())[-1]
            assert entry["signature"] == signature, about
            checked = CliRunner().invoke(cli, ["check"]).output
            # A composite may leave out arguments, which causes warnings.
            assert checked.startswith("2 operators, no errors\n"), about + checked
            assert "warning" not in checked or "--composite" in kernel, about + checked
            has_axis = re.search(r"\b(axis|dim|axes)\b", signature)
            if has_axis and "--composite" not in kernel and re.search(r"\bx\b", signature):
                assert "checks" in entry, about
            restore(package, before)
        else:
            assert contents(package) == before, about
            assert len(re.findall(r"error\[MG", done.output)) == 1, about
            # The message shows the entry, which is not in a file.
            assert "mlx_ops.yaml" not in done.output and "<entry>:" in done.output, about
    assert written > 20


@pytest.mark.parametrize("options", [[], ["--kernel", "metal"], ["--kernel", "cpu,metal"]])
@pytest.mark.parametrize(
    "words", [*ARGUMENTS, *IN_PYTHON], ids=lambda words: words[0].partition(":")[0]
)
def test_metal_kernels_of_every_argument(
    words: tuple[str, str, str],
    options: list[str],
    package: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arguments that a [[kernel]] cannot take are passed as constants."""
    if "list[array]" in words[0]:
        pytest.skip("no [[kernel]] takes a list of arrays")
    monkeypatch.chdir(package)
    before = contents(package)
    given = [] if words[0] == "x: array" else [words[0]]
    taken = words[0].partition(":")[0]
    try:
        for more in ([], [f"{taken}_count: array", f"{taken}_or_0: array"]):
            listed = ", ".join(["x: array", *more, *given])
            done = add(f"f({listed}) -> array", "--shape", "x.shape", *options)
            assert done.exit_code == 0, done.output
            checked = CliRunner().invoke(cli, ["check"]).output
            assert checked.startswith("2 operators, no errors\n"), checked
            assert "warning" not in checked
            for path in Path("kernels/metal").glob("f*.metal"):
                translate(path)
            restore(package, before)
    finally:
        restore(package, before)


# One entry of each kind whose kernels are compiled. The names also occur in generated skeletons.
COMPILED = {
    "scaled(array x, array i, float a=1, int n=2, bool b=True) -> array": [],
    "parts(array x, array data) -> (array y, array size)": [],
    "whole(array? i, array In, array Out, int? m, str s, int[] k, int[2] j, axes axes) -> array": [
        *("--kernel", "cpu"),
    ],
    "listed(array[] xs, ScalarType dtype, int[]? k=None) -> (array i, array z)": [],
    'masked(x: array, mask: array | Literal["p"], way: Literal["u"] | None = None) -> array': [
        *("--kernel", "cpu,metal"),
    ],
    'only(mask: array | Literal["p", "q"] | None) -> array': ["--kernel", "cpu"],
    "typed(array x, int axis=-1) -> array": ["--dtype", "float32", "--kernel", "cpu"],
    "told(array x, int? m, str s, int[] k, axes k_count, ScalarType d, bool? b) -> array": [
        *("--kernel", "cpu,metal"),
    ],
    "both(array x, array? i, shape k, float n) -> (array j, array z)": ["--kernel", "cpu,metal"],
}


def test_kernels_compile(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package)
    before = contents(package)
    try:
        for signature, options in COMPILED.items():
            done = add(signature, *options)
            assert done.exit_code == 0, done.output
        ops = mlxgen.load("mlx_ops.yaml")
        x = mx.array([[1.0, 2.0], [3.0, 4.0]])
        with mx.stream(mx.cpu):
            assert ops.scaled(x, x).tolist() == x.tolist()
            assert ops.typed(x.astype(mx.float16)).dtype == mx.float32
            assert ops.only(x).shape == x.shape
            with pytest.raises(ValueError, match="At least one array"):
                ops.only("q")
            with pytest.raises(ValueError, match="axis is out of range for x"):
                ops.typed(x, axis=2)
        # The Metal kernels, as C++.
        for path in sorted(Path("kernels/metal").glob("*.metal")):
            library.build(translate(path).text, str(path), package / "cache")
    finally:
        restore(package, before)


@pytest.mark.parametrize(
    ("yaml", "begins"),
    [
        (b"# nothing\n", b"- name: f\n"),
        (b"- name: g\n  signature: g(array x) -> array\n  composite: x", b"\n- name: f\n"),
        (
            b"  - name: g\r\n    signature: g(array x) -> array\r\n    composite: x\r\n",
            b"  - name: f\r\n    sig",
        ),
        (
            b"\xef\xbb\xbf- {name: g, signature: g(array x) -> array, composite: x}\n",
            b"\n- name: f\n",
        ),
        (b"[]\n", None),
        (b"[{name: g, signature: g(array x) -> array, composite: x}]\n", None),
        (b"- name: g\n  signature: g(array x) -> array\n  composite: x\n...\n", None),
    ],
    ids=["comment", "no end", "indented", "mark", "empty list", "list", "end mark"],
)
def test_files_that_entries_are_added_to(
    yaml: bytes, begins: bytes | None, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package)
    before = contents(package)
    try:
        Path("mlx_ops.yaml").write_bytes(yaml)
        doc = 'A \u2028 b \U0001f600 "c"'
        done = add("f(array x) -> array", "--composite", "x", "--doc", doc)
        after = Path("mlx_ops.yaml").read_bytes()
        if begins is None:
            assert done.exit_code == 1 and "Error" in done.output.title() and after == yaml
        else:
            assert done.exit_code == 0, done.output
            assert after.startswith(yaml) and begins in after[len(yaml) :]
            assert CliRunner().invoke(cli, ["check"]).exit_code == 0
            line = int(done.output.split(":")[1])
            assert "name: f" in after.decode().splitlines()[line - 1]
    finally:
        restore(package, before)


def test_a_link_stays_one(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(package)
    before = contents(package)
    Path("mlx_ops.yaml").rename("real.yaml")
    Path("mlx_ops.yaml").symlink_to("real.yaml")
    try:
        assert add("f(array x) -> array", "--composite", "x").exit_code == 0
        assert Path("mlx_ops.yaml").is_symlink()
        assert b"name: f\n" in Path("real.yaml").read_bytes()
    finally:
        Path("mlx_ops.yaml").unlink()
        restore(package, before)
