"""`mlxgen.metal.record` and `mlxgen import metal_kernel`: records, entries, Metal files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from emulated import Keeping, built, converted, same

from mlxgen.__main__ import cli
from mlxgen.metal import RecordError, emulate, record
from mlxgen.plugins.metal import records
from mlxgen.plugins.metal.formulas import Numbers, Sizes, size, times
from mlxgen.plugins.metal.records import Call, Kernel, Number, Record

COPY = "uint i = thread_position_in_grid.x;\nout[i] = x[i];"
F32, F16, I32 = "float32", "float16", "int32"


def array(*shape: int, dtype: str = F32, **more: int) -> records.Array:
    return records.Array(shape=shape, dtype=dtype, **more)


def number(value: float) -> records.Number:
    return records.Number(value=value)


def call(*inputs: Any, outputs: Sequence[Any] = (), **more: Any) -> Call:
    """Return a call; the output is by default as the first input."""
    given = [i if isinstance(i, records.Array) else number(i) for i in inputs]
    template = tuple(
        records.TypeName(name=name, dtype=value)
        if isinstance(value, str)
        else records.Constant(name=name, value=value)
        for name, value in more.pop("template", {}).items()
    )
    out = outputs or [array(*given[0].shape, dtype=given[0].dtype)]  # type: ignore[union-attr]
    options = {"grid": (8, 1, 1), "threadgroup": (8, 1, 1), **more}
    return Call(inputs=tuple(given), outputs=tuple(out), template=template, **options)


class Imported:
    """The files of an import."""

    def __init__(self, folder: Path, result: Result) -> None:
        self.result, self.folder = result, folder
        self.text = (folder / "ops.yaml").read_text() if (folder / "ops.yaml").exists() else ""
        self.entries: list[dict[str, Any]] = yaml.safe_load(self.text) or [] if self.text else []
        files = sorted((folder / "kernels" / "metal").glob("*.metal"))
        self.metal = {path.stem: path.read_text().replace("\n  ", "\n") for path in files}

    def check(self) -> None:
        """Check the entries with `mlxgen check`."""
        assert self.result.exit_code == 0, self.result.output
        checked = CliRunner().invoke(cli, ["check", str(self.folder / "ops.yaml")])
        assert checked.exit_code == 0, checked.output

    @property
    def entry(self) -> dict[str, Any]:
        (entry,) = self.entries
        return entry


Importing = Callable[..., Imported]


@pytest.fixture
def imported(tmp_path: Path) -> Importing:
    """Import calls of a kernel."""

    def run(*calls: Call, source: str = COPY, name: str = "copy", **more: Any) -> Imported:
        inputs = more.pop("input_names", ["x", "y", "z"][: len(calls[0].inputs)])
        outputs = more.pop("output_names", ["out"])
        names = {"input_names": tuple(inputs), "output_names": tuple(outputs)}
        kernel = Kernel(name=name, source=source, **names, **more)
        records.add(tmp_path, kernel, calls)
        return again()

    def again(*sources: Path, more: Sequence[str] = ()) -> Imported:
        given = [str(source) for source in sources] or [str(tmp_path)]
        output = str(tmp_path / "ops.yaml")
        result = CliRunner().invoke(cli, ["import", "metal_kernel", *given, "-o", output, *more])
        return Imported(tmp_path, result)

    run.again = again  # type: ignore[attr-defined]
    return run


# ------------------------------------------------------------------------------ formulas


@pytest.mark.parametrize(
    ("numbers", "formula"),
    [
        ((7, 7, 7), "7"),
        ((3, 5, 9), "N"),
        ((6, 10, 18), "2 * N"),
        ((2, 4, 10), "M // 2"),
        ((12, 40, 180), "N * M"),
        ((24, 80, 360), "2 * N * M"),
        ((1, 2, 3), "(N + 3) // 4"),
        ((4, 8, 12), "4 * ((N + 3) // 4)"),
        ((4, 16, 60), "M * ((N + 3) // 4)"),
        ((7, 13, 29), "N + M"),
        ((4, 6, 10), "N + 1"),
        ((2, 4, 8), "N - 1"),
        ((3, 5, 6), "min(N, 6)"),
        ((4, 5, 9), "max(N, 4)"),
        ((1, 17, 2), None),
    ],
)
def test_formulas(numbers: tuple[int, ...], formula: str | None) -> None:
    sizes = Sizes(3, {"N": (3, 5, 9), "M": (4, 8, 20)})
    found, axis = sizes.formula(numbers), sizes.formula(numbers, axis=True)
    assert (found and found.text) == formula
    is_axis = formula is not None and "m" not in formula
    assert (axis and axis.text) == (formula if is_axis else None)


def test_formulas_of_axes_have_no_attributes() -> None:
    total = replace(times(size("N"), size("M")), text="x.size", kind="size")
    sizes = Sizes(2, {"N": (3, 5), "M": (7, 2)}, more=[total])
    found = sizes.formula((42, 20))
    assert found is not None
    assert found.text == "2 * x.size"
    axis = sizes.formula((42, 20), axis=True)
    assert axis is not None
    assert axis.text == "2 * N * M"


TWO = {"B": (4, 3), "H": (40, 300), "K": (3, 5)}
THIRD = "only two different numbers support it; a third one confirms it"


@pytest.mark.parametrize(
    ("numbers", "known", "formula", "note"),
    [
        ((160, 900), {8}, "x.size", ""),
        ((120, 1500), {8}, "H * K", ""),
        ((40, 256), {256}, "min(H, 256)", THIRD),
        ((38, 296), set(), "H - K + 1", THIRD),
        ((14, 60), set(), "(H + K - 1) // K", THIRD),
        ((3, 19), {16, 256}, "(H + 15) // 16", THIRD),
        ((256, 512), {256}, "256 * ((H + 255) // 256)", THIRD),
        ((128, 96), set(), "32 * B", THIRD),
        ((48, 308), {8}, None, ""),  # a sum with a constant needs three different numbers
        ((1728, 1920), {64, 512}, None, ""),
        (
            (256, 256),
            {256},
            "256",
            "it can also be `256 * ((K + 255) // 256)`; a call with K = 1025 decides",
        ),
    ],
)
def test_formulas_of_two_calls(
    numbers: tuple[int, ...], known: set[int], formula: str | None, note: str
) -> None:
    total = replace(times(size("B"), size("H")), text="x.size", cost=1.2, kind="size")
    found = Sizes(2, TWO, more=[total], known=known).formula(numbers, grid=True)
    assert (found and found.text) == formula
    assert (found.notes if found else ()) == ((note,) if note else ())


@pytest.mark.parametrize(
    "text",
    [
        "H",
        "B * H * K",
        "x.size // K",
        "H // 2",
        "3 * H + 1",
        "min(H, 256)",
        "max(K, 8)",
        "min(B, K)",
        "H - K + 1",
        "H + K - 1",
        "(H - K) // 2 + 1",
        "(H + 255) // 256",
        "B * ((H + 63) // 64)",
        "(x.size + 255) // 256 * 256",
        "(H + K - 1) // K * K",
        "32 * B * ((H + 7) // 8)",
        "H * 32 // 8",
    ],
)
def test_formulas_of_programs(text: str) -> None:
    """A formula without notes gives the numbers of the program for all sizes."""

    def numbers(formula: str, rows: Sequence[dict[str, int]]) -> Numbers:
        return tuple(
            eval(formula, {"x": SimpleNamespace(size=row["B"] * row["H"] * row["K"])}, row)
            for row in rows
        )

    rows = [dict(zip("BHK", row, strict=True)) for row in ((3, 40, 5), (4, 322, 7), (11, 98, 9))]
    total = replace(times(*map(size, "BHK")), text="x.size", cost=1.2, kind="size")
    named = {name: tuple(row[name] for row in rows) for name in "BHK"}
    sizes = Sizes(3, named, more=[total], known={8, 64, 256})
    found = sizes.formula(numbers(text, rows))
    if text == "3 * H + 1":
        assert found is None
        return
    assert found is not None
    assert numbers(found.text, rows) == numbers(text, rows)
    others = [{"B": 6, "H": 1200, "K": 31}, {"B": 1, "H": 64, "K": 1}, {"B": 29, "H": 18, "K": 8}]
    assert found.notes or numbers(found.text, others) == numbers(text, others)


def test_rows_are_a_quotient() -> None:
    """The leading axes have no names, and `x.size // H` has no remainder."""
    total = replace(times(size("..."), size("H")), text="x.size", cost=1.2, kind="size")
    sizes = Sizes(2, {"H": (40, 300)}, hidden={"...": (12, 5)}, more=[total])
    found = sizes.formula((12, 5))
    assert found is not None
    assert (found.text, found.notes, found.exact) == ("x.size // H", (), ())


def test_ratio_that_is_constant() -> None:
    sizes = Sizes(2, {"H": (8, 16), "K": (2, 4)})
    ratio, found = sizes.ratio(4), sizes.formula((4, 4))
    assert ratio is not None
    assert found is not None
    assert ratio.text == "H // K"
    assert found.notes == ("it can also be `H // K`; a call with H = 10 decides",)


# ------------------------------------------------------------------------------- entries


def test_several_calls(imported: Importing) -> None:
    """Sizes that differ are axes, dtypes that differ are T, and all others are constants."""
    source = COPY.replace("x[i]", "T(x[i] * scale + y[0])") + "// x_shape"
    names = {"input_names": ["x", "y", "scale"], "source": source}
    calls = [
        call(array(n, 4, dtype=d), array(3), 2.5, grid=(4 * n, 1, 1), template={"T": d})
        for n, d in ((2, F32), (5, F16))
    ]
    found = imported(*calls, **names)
    found.check()
    entry = found.entry
    assert entry["signature"] == "copy(x: array, y: array, scale: float = 2.5) -> array"
    launch = {"kernel": "copy", "grid": ["x.size"], "threadgroup": [8]}
    assert entry["dispatch"] == {"metal": launch}
    assert entry["axes"] == {"x, out": "B 4", "y": "3"}
    assert entry["dtypes"] == {"x": [F32, F16], "y": F32}
    assert "dtype" not in entry
    assert entry["grad"] == "none"
    shapes = [sample["x"]["shape"] for sample in entry["samples"]]
    assert shapes == [[2, 4], [5, 4]]
    metal = found.metal["copy"]
    assert "template <typename T>\n[[kernel]] void copy(\n  const device T* x" in metal
    assert "const constant float* y [[buffer(1)]]" in metal  # as MLX for fewer than 8 elements
    assert "const constant float& scale [[buffer(3)]]" in metal
    assert "const constant int* x_shape [[buffer(4)]]" in metal
    assert source in metal


def test_one_call(imported: Importing) -> None:
    found = imported(call(array(2, 4), grid=(8, 2, 1)))
    found.check()
    assert found.entry["axes"] == {"x, out": "2 4"}
    assert found.entry["dispatch"]["metal"]["grid"] == [8, 2]
    assert "All sizes are constants; record calls with other sizes" in found.text
    assert "void copy(" in found.metal["copy"]
    assert "template" not in found.metal["copy"]


def test_template(imported: Importing) -> None:
    """Types are aliases, equal numbers are constants, and others are template parameters."""
    source = "S y = W; bool f = FLAG; float kept[D];" + COPY
    calls = [
        call(array(3, n), template={"T": F32, "S": I32, "W": 7, "FLAG": True, "D": n, "K": k})
        for n, k in ((32, 2), (64, 3))
    ]
    found = imported(*calls, source=source)
    found.check()
    metal, entry = found.metal["copy"], found.entry
    assert "template <typename T_arg, int D, int K>" in metal
    for line in ("using T = float;", "using S = int32_t;", "constexpr int W = 7;"):
        assert f"\n{line}\n" in metal
    assert "constexpr bool FLAG = true;" in metal
    assert "k: int" in entry["signature"]
    template = entry["dispatch"]["metal"]["template"]
    assert template == {"D": {"of": "B", "values": [32, 64]}, "K": {"of": "k", "values": [2, 3]}}
    assert [check["that"] for check in entry["checks"]] == [
        "B == 32 or B == 64",
        "k == 2 or k == 3",
    ]
    assert [sample["k"] for sample in entry["samples"]] == [2, 3]
    assert "# k: an argument, because no formula of the sizes" in found.text


def test_forms_are_entries(imported: Importing) -> None:
    """Bools of templates, and kinds of inputs: calls of one form are one entry."""
    calls = [
        call(array(2), 1.0, template={"FLAG": True}),
        call(array(3), 1.0, template={"FLAG": False}),
        call(array(4), 1, template={"FLAG": False}),
        call(array(), 1, template={"FLAG": False}),
    ]
    found = imported(*calls, source=COPY + "bool f = FLAG;")
    found.check()
    assert [*found.metal] == ["copy", "copy_2", "copy_3", "copy_4"]
    assert "constexpr bool FLAG = false" in found.metal["copy_2"]
    assert found.entries[2]["signature"].startswith("copy_3(x: array, y: int = 1)")
    assert found.result.output == "4 entries for 1 of 1 kernels\n"


def test_ranks(imported: Importing) -> None:
    """Ranks that differ in the same way are leading axes, and others are entries of their own."""
    shapes = ((3,), (2, 5), (4, 2, 7))
    calls = [
        call(array(*s), array(s[-1]), outputs=[array(*s), array(*s[:-1], 2)], grid=(n, 1, 1))
        for s, n in zip(shapes, (3, 10, 56), strict=True)
    ]
    found = imported(*calls, output_names=["a", "b"], source="a[0] = x[0] + y[0]; b[0] = 0;")
    found.check()
    assert found.entry["axes"] == {"x, a": "... B", "y": "B", "b": "... 2"}
    assert found.entry["dispatch"]["metal"]["grid"] == ["x.size"]
    other = imported(call(array(3, 2), array(4)), call(array(3), array(4, 5)), name="other")
    other.check()
    assert [entry["axes"]["x, out"] for entry in other.entries[1:]] == ["3 2", "3"]


def test_dtypes_that_vary_alone_are_entries(imported: Importing) -> None:
    """The dtype of one array is T; each dtype of the other one is an entry."""
    calls = [call(array(8, dtype=a), array(8, dtype=b)) for a in (F32, F16) for b in (F32, F16)]
    found = imported(*calls)
    found.check()
    dtypes = [{"x": [F32, F16], "y": F32}, {"x": [F32, F16], "y": F16}]
    assert sorted((e["dtypes"] for e in found.entries), key=str) == sorted(dtypes, key=str)


def test_ranks_and_dtypes(imported: Importing) -> None:
    """Ranks that differ in several ways are entries, each with all dtypes."""
    shapes = ([(6, 40), (6,)], [(9, 70), (9,)], [(40,), (1, 5)])
    calls = [
        call(array(*a, dtype=d), array(*b), outputs=[array(*b, dtype=d)], template={"T": d})
        for a, b in shapes
        for d in (F32, F16, "bfloat16")
    ]
    found = imported(*calls)
    found.check()
    assert [entry["axes"] for entry in found.entries] == [
        {"x": "B H", "y, out": "B"},
        {"x": "40", "y, out": "1 5"},
    ]
    assert all(e["dtypes"] == {"x": [F32, F16, "bfloat16"], "y": F32} for e in found.entries)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["lambda", "T", "s", "stream", "mx", "grad", "accumulator", "_x"])
def test_names_of_inputs(imported: Importing, name: str) -> None:
    """The source has the input's name also if an entry or Metal cannot have it."""
    source = COPY.replace("x[i]", f"{name}[i]") + f"int n = {name}_shape[0];"
    found = imported(call(array(9)), source=source, input_names=[name])
    found.check()
    assert source in found.metal["copy"]
    assert f" {name} = " in found.metal["copy"] or f"float* {name} [[" in found.metal["copy"]


@pytest.mark.extended
@pytest.mark.parametrize("name", ["out", "y", "lambda", "T", "s", "result", "stream"])
def test_names_of_outputs(imported: Importing, name: str) -> None:
    source = COPY.replace("out[i]", f"{name}[i]")
    imported(call(array(9)), source=source, output_names=[name]).check()


@pytest.mark.extended
@pytest.mark.parametrize("name", ["lambda", "3d", "class", "_k", "exp", "k-1.b", "x", "main", "_"])
def test_names_of_kernels(imported: Importing, name: str) -> None:
    imported(call(array(9)), source=COPY + "float e = exp(0.0f);", name=name).check()


def test_same_names(imported: Importing) -> None:
    imported(call(array(9)), name="k")
    found = imported(call(array(9)), source=COPY + " ", name="k")
    found.check()
    assert [*found.metal] == ["k", "k_2"]


def test_no_axes(imported: Importing) -> None:
    """MLX passes an array without axes by reference, and the operator a pointer."""
    source = COPY.replace("x[i]", "x[i] * y")
    found = imported(call(array(9), array()), source=source)
    found.check()
    assert "copy(x: array, y_array: array)" in found.entry["signature"]
    assert "\nconst constant float& y = *y_array;\n" in found.metal["copy"]


def test_strides(imported: Importing) -> None:
    """Inputs whose strides the kernel reads are not copied."""
    source = COPY.replace("x[i]", "x[i * x_strides[0]] + y[i]")
    found = imported(call(array(9), array(9)), source=source, ensure_row_contiguous=False)
    found.check()
    assert found.entry["strided"] == ["x"]
    assert "Copied if not row-contiguous, as their strides are not read: y." in found.text
    other = imported(call(array(9), array(9)), source=source, name="copies")
    other.check()
    assert "strided" not in other.entries[0]  # in the order of the names


def test_remainders_are_checked(imported: Importing) -> None:
    """A quotient has no remainder in the recorded calls, and so in no call of the operator."""
    calls = [call(array(n), outputs=[array(n // 2)], grid=(n // 2, 1, 1)) for n in (6, 10, 34)]
    found = imported(*calls)
    found.check()
    assert found.entry["axes"] == {"x": "B", "out": "B//2"}
    assert found.entry["dispatch"]["metal"]["grid"] == ["out.size"]
    assert found.entry["checks"] == [{"that": "B % 2 == 0", "else": "B must be a multiple of 2"}]


def test_equal_sizes_are_named_in_the_comment(imported: Importing) -> None:
    found = imported(*(call(array(n, 64), array(64)) for n in (3, 5)))
    found.check()
    assert found.entry["axes"] == {"x, out": "B 64", "y": "64"}
    assert "Equal in all calls, so constants: 64. Calls with others make axes." in found.text


def test_samples_have_all_values(imported: Importing) -> None:
    source = COPY + "float kept[D];"
    calls = [call(array(n), template={"D": n}) for n in (32, 96, 64, 128)]
    found = imported(*calls, source=source)
    found.check()
    assert [sample["x"]["shape"] for sample in found.entry["samples"]] == [[32], [64], [96], [128]]


def test_outputs(imported: Importing) -> None:
    outputs = [[array(n, 2, dtype=I32), array()] for n in (3, 5)]
    calls = [call(array(n), outputs=o, init_value=0) for n, o in zip((3, 5), outputs, strict=True)]
    source = "a[0] = 0; b[0] = 0; float y = x[0];"
    options = {"source": source, "output_names": ["a", "b"], "atomic_outputs": True}
    found = imported(*calls, **options)
    found.check()
    assert found.entry["init"] == {"a, b": 0}
    assert found.entry["axes"] == {"x": "B", "a": "B 2", "b": "()"}
    assert found.entry["dtype"] == {"a": I32, "b": F32}
    assert "device atomic<int32_t>* a [[buffer(1)]]" in found.metal["copy"]


@pytest.mark.parametrize("value", [True, 3, -2, 0.1, 1e-30, float("-inf"), float("nan")])
def test_numbers_as_inputs(imported: Importing, value: float) -> None:
    found = imported(call(array(9), value))
    found.check()
    kind = type(value).__name__
    default = f" = {value}" if np.isfinite(value) else ""
    assert f"y: {kind}{default})" in found.entry["signature"]
    assert f"const constant {kind}& y [[" in found.metal["copy"]
    np.testing.assert_equal(found.entry["samples"][0]["y"], value)


@pytest.mark.parametrize(
    ("value", "dtype", "init"),
    [(0, F32, 0), (-2, I32, -2), (0.5, F16, 0.5), (2.5, I32, 2), (float("-inf"), F32, "-inf")],
)
def test_initial_values(imported: Importing, value: float, dtype: str, init: Any) -> None:
    found = imported(call(array(9, dtype=dtype), init_value=value))
    found.check()
    assert found.entry["init"] == {"out": init}


def test_integers(imported: Importing) -> None:
    found = imported(call(array(9, dtype=I32, low=-3, high=4)))
    found.check()
    assert found.entry["samples"] == [{"x": {"shape": [9], "low": -3, "high": 4}}]
    assert "grad" not in found.entry


def test_gradient_is_left_to_write(imported: Importing) -> None:
    found = imported(call(array(9), with_gradient=True))
    found.check()
    assert found.entry["grad"] == "todo"
    checked = CliRunner().invoke(cli, ["check", str(found.folder / "ops.yaml")])
    assert "warning[MG403]: op 'copy': the gradient is left to write" in checked.output


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (call(1.0, outputs=[array(8)]), "no array as an input"),
        (call(array(8, dtype="complex64")), "no complex64"),
        (call(array(8, dtype="uint8"), init_value=-1), "initial value -1.0"),
        (call(array(8, dtype=I32), init_value=float("inf")), "initial value inf"),
        (call(array(8), 2**40), "y has more than 32 bits"),
    ],
)
def test_left_out(imported: Importing, tmp_path: Path, given: Call, reason: str) -> None:
    found = imported(given)
    assert found.result.exit_code == 1
    assert "MG906" in found.result.output
    assert reason in found.result.output
    assert not found.text
    assert not (tmp_path / "kernels").exists()
    report = tmp_path / "report.yaml"
    records.add(
        tmp_path,
        Kernel(name="other", input_names=("x",), output_names=("out",), source=COPY),
        [call(array(9))],
    )
    found = imported.again(more=["--report", str(report)])  # type: ignore[attr-defined]
    found.check()
    assert "# Calls without an entry." in found.text
    assert reason in found.text
    assert yaml.safe_load(report.read_text())["other"] == {"entries": "other"}
    assert reason in yaml.safe_load(report.read_text())["copy"]["left out"]


# ------------------------------------------------------------------------------ commands


@pytest.mark.extended
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise KeyError('it')", "fails: KeyError in line 1: 'it'"),
        ("def (", "fails: SyntaxError in line 1"),
        ("import sys; sys.exit('no file')", "fails: it ends with: no file"),
        ("import os; os._exit(3)", "fails: it ends with status 3"),
        ("import mlx.core", "has no recorded call of a kernel"),
    ],
)
def test_programs_that_fail(
    imported: Importing, tmp_path: Path, program: str, message: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    found = imported.again(path)  # type: ignore[attr-defined]
    assert found.result.exit_code == 1
    assert message in found.result.output
    assert "help: " in found.result.output
    assert [*tmp_path.iterdir()] == [path]


OTHER = Record.model_construct(
    kernel=Kernel(name="k", input_names=("x", "y"), output_names=("out",), source=COPY),
    calls=(call(array(8)),),
).model_dump_json()


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"kernel": {}, "calls": 3}', "\xff", OTHER], ids=range(6)
)
def test_damaged_record(imported: Importing, tmp_path: Path, content: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content.encode("latin-1"))
    found = imported.again()  # type: ignore[attr-defined]
    assert found.result.exit_code == 1
    assert "record.json is not a record of a kernel" in found.result.output
    assert [*tmp_path.iterdir()] == [path]


def test_no_records(imported: Importing, tmp_path: Path) -> None:
    found = imported.again()  # type: ignore[attr-defined]
    assert "has no recorded call of a kernel" in found.result.output
    assert not [*tmp_path.iterdir()]


def test_several_sources(imported: Importing, tmp_path: Path) -> None:
    """Calls of a kernel in several sources become one entry."""
    kernel = Kernel(name="copy", input_names=("x",), output_names=("out",), source=COPY)
    for n in (5, 9):
        (tmp_path / str(n)).mkdir()
        records.add(tmp_path / str(n), kernel, [call(array(n), grid=(n, 1, 1))])
    found = imported.again(tmp_path / "5", tmp_path / "9")  # type: ignore[attr-defined]
    found.check()
    assert found.entry["axes"] == {"x, out": "B"}


def test_files_of_others(imported: Importing, tmp_path: Path) -> None:
    imported(call(array(9))).check()
    imported(call(array(5))).check()  # its own files are replaced
    metal = tmp_path / "kernels" / "metal" / "copy.metal"
    metal.write_text("// mine")
    found = imported.again()  # type: ignore[attr-defined]
    assert "refusing to overwrite" in found.result.output
    assert "copy.metal" in found.result.output
    assert metal.read_text() == "// mine"


def test_folder_of_a_project(imported: Importing, tmp_path: Path) -> None:
    settings = '[project]\nname = "p"\n[tool.mlxgen]\nmetal = "shaders"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "python" / "p").mkdir(parents=True)
    (tmp_path / "python" / "p" / "__init__.py").touch()
    imported(call(array(9)))
    assert (tmp_path / "shaders" / "copy.metal").exists()
    (tmp_path / "shaders" / "copy.metal").unlink()
    below = tmp_path / "shaders" / "imported"
    imported.again(more=["--kernels", str(below)]).check()  # type: ignore[attr-defined]
    assert (below / "copy.metal").exists()


def test_folder_that_is_not_searched(imported: Importing, tmp_path: Path) -> None:
    imported(call(array(9))).check()
    again = imported.again  # type: ignore[attr-defined]
    found = again(more=["--kernels", str(tmp_path / "other")])
    assert found.result.exit_code == 1
    assert "where mlxgen finds the kernels of the entries" in found.result.output
    assert not (tmp_path / "other").exists()


def test_selected_kernels(imported: Importing) -> None:
    for name in ("a", "b", "c"):
        found = imported(call(array(9)), name=name)
    again = imported.again  # type: ignore[attr-defined]
    (found.folder / "kernels" / "metal" / "b.metal").unlink()
    found = again(more=["--select", "a", "-s", "c"])
    found.check()
    assert [entry["signature"][0] for entry in found.entries] == ["a", "c"]
    found = again(more=["--select", "d"])
    assert found.result.exit_code == 1
    assert "no call of a kernel 'd' is recorded" in found.result.output
    assert "help: select one of a, b, c" in found.result.output


# ------------------------------------------------------------------------------- records


def run(x: mx.array, **more: Any) -> mx.array:
    kernel = mx.fast.metal_kernel("copy", ["x"], ["out"], COPY)
    given = {"grid": (x.size, 1, 1), "threadgroup": (8, 1, 1), **more}
    shapes = {"output_shapes": [x.shape], "output_dtypes": [x.dtype]}
    outputs: list[mx.array] = kernel(inputs=[x], **shapes, **given)
    return outputs[0]


def only(folder: Path) -> Record:
    (path,) = folder.glob("*.json")
    return records.read(path)


def test_record(tmp_path: Path) -> None:
    ones = mx.ones((2, 3), dtype=mx.int32)
    with emulate(record=tmp_path / "ops"):
        assert mx.array_equal(run(ones), ones)
        run(ones)
        run(-3 * ones)
        run(mx.ones(4), template=[("T", mx.float16), ("N", 3), ("B", True)], init_value=-mx.inf)
        mx.custom_function(run)(mx.zeros(2))
        mx.eval(mx.compile(run)(mx.ones(5, dtype=mx.int32)))
    assert mx.fast.metal_kernel.__module__ == "mlx.core.fast"
    found = only(tmp_path / "ops")
    assert found.kernel == Kernel(
        name="copy", input_names=("x",), output_names=("out",), source=COPY
    )
    first, second, _, fourth = found.calls
    assert first.inputs == (array(2, 3, dtype=I32, low=-3, high=1),)
    assert first.outputs == (array(2, 3, dtype=I32),)
    assert (first.grid, first.threadgroup, first.init_value) == ((6, 1, 1), (8, 1, 1), None)
    assert [type(a).__name__ for a in second.template] == ["TypeName", "Constant", "Constant"]
    assert second.init_value == -mx.inf
    assert second.template[2].value is True  # type: ignore[union-attr]
    assert [c.with_gradient for c in found.calls] == [False, False, True, False]
    assert fourth.inputs == (array(5, dtype=I32),)  # the elements are not known
    # A further run adds its calls.
    with emulate(), record(tmp_path / "ops"):
        run(mx.ones(7))
        run(ones)
    assert [c.grid[0] for c in only(tmp_path / "ops").calls] == [6, 4, 2, 5, 7]


def test_record_of_numpy(tmp_path: Path) -> None:
    with emulate(record=tmp_path):
        made = mx.fast.metal_kernel("copy", ["x", "n"], ["out"], COPY)
        made(
            inputs=[np.ones(3, np.int32), np.float64(2)],
            output_shapes=[(3,)],
            output_dtypes=[mx.int32],
            grid=(3, 1, 1),
            threadgroup=(3, 1, 1),
        )
    x, n = only(tmp_path).calls[0].inputs
    assert x == array(3, dtype=I32, low=1, high=1) and n == Number(value=2.0)


def test_record_without_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac, the kernels are those of MLX."""

    def metal_kernel(*arguments: Any) -> Callable[..., Any]:
        return lambda **given: [given["inputs"][0] + 1]

    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)

    @record(tmp_path)
    def program() -> mx.array:
        return run(mx.zeros(3))

    assert program().tolist() == [1, 1, 1]
    assert mx.fast.metal_kernel is metal_kernel
    assert only(tmp_path).calls == (call(array(3), grid=(3, 1, 1)),)


def test_kernels_outside_of_the_recording(tmp_path: Path) -> None:
    with emulate():
        with record(tmp_path):
            kernel = mx.fast.metal_kernel("copy", ["x"], ["out"], COPY)
        given = {"output_shapes": [(2,)], "output_dtypes": [mx.float32], "grid": (2, 1, 1)}
        kernel(inputs=[mx.ones(2)], threadgroup=(2, 1, 1), **given)
    assert not [*tmp_path.iterdir()]


def test_errors_of_calls_are_not_recorded(tmp_path: Path) -> None:
    with emulate(record=tmp_path), pytest.raises(ValueError, match="grid"):
        run(mx.ones(2), grid=(0, 1, 1))
    assert not [*tmp_path.iterdir()]


def test_record_in_place_of_a_file(tmp_path: Path) -> None:
    with emulate(record=tmp_path):
        run(mx.ones(2))
    (path,) = tmp_path.iterdir()
    path.write_text("mine")
    before = mx.fast.metal_kernel
    with pytest.raises(RecordError, match="is not a record"), emulate(record=tmp_path):
        run(mx.ones(2))
    assert path.read_text() == "mine"
    with pytest.raises(OSError), emulate(record=path):
        pass
    assert mx.fast.metal_kernel is before


# ------------------------------------------------------------------------------- numbers


def launch(
    name: str, source: str, inputs: dict[str, Any], shape: Sequence[int], **more: Any
) -> mx.array:
    """Call a kernel with a thread for each element of its output."""
    made = mx.fast.metal_kernel(name, [*inputs], ["out"], source, more.pop("header", ""))
    given = {"grid": (int(np.prod(shape)), 1, 1), "threadgroup": (32, 1, 1), **more}
    dtype = next(x.dtype for x in inputs.values() if isinstance(x, mx.array))
    shapes = {"output_shapes": [shape], "output_dtypes": [dtype]}
    outputs: list[mx.array] = made(inputs=[*inputs.values()], **shapes, **given)
    return outputs[0]


SCALE = """
    uint i = thread_position_in_grid.x;
    uint row = i / x_shape[1];
    out[i] = T(twice(float(x[i])) * w + eps * lambda[row] + (SQUARED ? x[i] * x[i] : T(0)));
"""
COUNT = """
    uint i = thread_position_in_grid.x;
    threadgroup float kept[K];
    if (thread_position_in_threadgroup.x < K) kept[thread_position_in_threadgroup.x] = x[i % K];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&out[i % out_size], kept[i % K], memory_order_relaxed);
"""


@pytest.mark.extended
def test_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators compute the same numbers as the kernels that they were imported from."""
    with emulate(), Keeping(tmp_path / "calls") as recording:
        forms = ((3, mx.float32, True), (5, mx.float16, True), (4, mx.float16, False))
        for n, dtype, squared in forms:
            x = mx.random.normal((n, 40)).astype(dtype)
            inputs = {"x": x, "w": mx.array(0.5), "eps": 0.25, "lambda": mx.random.normal((n,))}
            template = [("T", dtype), ("SQUARED", squared)]
            header = "inline float twice(float x) { return 2 * x; }"
            launch("scale", SCALE, inputs, x.shape, template=template, header=header)
        for n, k in ((64, 2), (96, 4), (32, 3)):
            inputs = {"x": mx.arange(n).astype(mx.float32), "out_size": k}
            kernel = mx.fast.metal_kernel("count", [*inputs], ["out"], COUNT, atomic_outputs=True)
            kernel(
                inputs=[*inputs.values()],
                template=[("K", k)],
                grid=(n, 1, 1),
                threadgroup=(32, 1, 1),
                output_shapes=[(k,)],
                output_dtypes=[mx.float32],
                init_value=0,
            )
        mx.eval([kept.outputs for kept in recording.kept])
    output = str(tmp_path / "ops.yaml")
    given = ["import", "metal_kernel", str(tmp_path / "calls"), "-o", output]
    assert CliRunner().invoke(cli, given).output == "3 entries for 2 of 2 kernels\n"
    entries = converted(tmp_path / "calls")
    module = built(Path(output), monkeypatch, {entry.name for entry, _ in entries.values()})
    for kept in recording.kept:
        assert not same(module, kept, *entries[kept.kernel, kept.call])
