"""python -m mlxops.bench: its pairs compute the same, and its table and file are complete.

No test measures time.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import mlx.core as mx
import mlxops.nn
import pytest
from mlxops import bench

TOLERANCE = 2e-5  # of the largest element: float32, and compositions that round more often
ROW = {
    *("operator", "size", "shapes", "dtype", "pass", "compared", "compiled", "repetitions"),
    *("ours_ms", "mlx_ms", "ratio", "ours_peak_bytes", "mlx_peak_bytes", "mlx_kernels", "note"),
}
MACHINE = {
    *("chip", "cores", "load", "memory_bytes", "os", "python", "mlx", "mlxops", "device"),
    "compile",
}


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


def pair(name: str) -> Any:
    (found,) = bench.chosen(name)
    return found


def written(path: Path, *arguments: str) -> dict[str, Any]:
    """Return the file of a run."""
    assert bench.main([*arguments, "--json", str(path)]) == 0
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def test_all_operators_are_compared() -> None:
    names = [p.name for p in bench.PAIRS]
    assert len(set(names)) == len(names)
    assert len({name.split(".")[1] for name in names}) == len(names)  # --only accepts these
    public = {f"nn.{name}" for name in dir(mlxops.nn) if not name.startswith("_")}
    public.remove("nn.attention_dropout_mask")  # MLX draws other bits
    assert {name for name in names if name.startswith("nn.")} == public
    assert all(p.compared for p in bench.PAIRS)


@pytest.mark.parametrize("what", bench.PASSES)
@pytest.mark.parametrize("name", [p.name for p in bench.PAIRS])
def test_both_compute_the_same(name: str, what: str) -> None:
    compared = pair(name)
    inputs = bench.draw(compared, compared.small, mx.float32)
    ours, theirs = (
        bench.call_of(compared, function, what, inputs, compiled=False)()
        for function in (compared.ours, compared.theirs)
    )
    gradients = sum(argument.gradient for argument in compared.arguments)
    assert len(ours) == len(theirs) > (gradients if what == "gradient" else 0)
    for x, y in zip(ours, theirs, strict=True):
        assert x.shape == y.shape and x.size
        largest = mx.max(mx.abs(y)).item()
        assert largest > 0  # else the comparison shows nothing
        assert mx.max(mx.abs(x - y)).item() < TOLERANCE * largest


def test_loop_of_older_releases_of_mlx() -> None:
    """Releases without gated_delta_update are compared with a loop."""
    compared = pair("gated_delta")
    inputs = bench.draw(compared, compared.small, mx.float32)
    (ours,), (theirs,) = (
        bench.call_of(compared, function, "forward", inputs, compiled=False)()
        for function in (compared.ours, bench._gated_delta)
    )
    assert mx.allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_sizes() -> None:
    for compared in bench.PAIRS:
        for size in bench.SIZES:
            sizes = bench.sizes_of(compared, size)
            assert all(all(bench.shape_of(a, sizes)) for a in compared.arguments), compared.name


def test_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = written(tmp_path / "numbers.json", "--seconds", "4", "--only", "geglu,special.erf")
    assert data.keys() == {"format", "machine", "seconds", "rows"}
    machine = data["machine"]
    assert machine.keys() == MACHINE and machine["device"] == {"kind": "cpu"}
    assert machine["chip"] and machine["memory_bytes"] > 2**28 and machine["load"] >= 0
    rows = data["rows"]
    measured = {(r["operator"], r["size"], r["dtype"], r["pass"]) for r in rows}
    expected = {
        (name, size, dtype, what)
        for name, dtypes in (("nn.geglu", bench.DTYPES), ("special.erf", ("float32",)))
        for size in bench.SIZES
        for dtype in dtypes
        for what in bench.PASSES
    }
    assert measured == expected and len(rows) == len(expected)
    assert all(row.keys() == ROW and row["compared"] for row in rows)
    first = rows[0]
    assert first["note"] == "" and first["repetitions"] > 0
    assert first["ratio"] == pytest.approx(first["mlx_ms"] / first["ours_ms"])
    assert first["shapes"] == [[32, 64], [32, 64]]
    assert first["ours_peak_bytes"] >= 32 * 64 * 4  # the result
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [row for row in rows if row["note"] != bench.TIME_IS_UP]
    assert sum(words[:1] in (["nn.geglu"], ["special.erf"]) for words in table) == len(shown)


def test_file_names_neither_user_nor_folder(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    written(path, "--seconds", "0.001", "--only", "erf")
    text = path.read_text(encoding="utf-8")
    words = set(re.findall(r"[\w.-]+", text))
    assert getpass.getuser() not in words and str(Path.home()) not in text
    assert str(tmp_path) not in text


def test_errors_name_no_folder() -> None:
    assert bench.one_line(OSError(f"cannot open {Path.home()}/a\nmore")) == "cannot open ~/a"


def test_time_is_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = written(tmp_path / "numbers.json", "--seconds", "0.000001")["rows"]
    assert len(rows) == sum(12 if p.name.startswith("nn.") else 4 for p in bench.PAIRS)
    assert {row["note"].partition(";")[0] for row in rows} == {"not measured: the time is up"}
    assert all(row["ours_ms"] is row["mlx_ms"] is row["ratio"] is None for row in rows)
    printed = capsys.readouterr().out
    assert "not measured" not in printed  # hundreds of lines
    assert f"0 of {len(rows)} rows have numbers" in printed


class Clock:
    """The time of a machine on which the compilations of a row take so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.budgets: list[float] = []

    def __call__(self) -> float:
        return self.now

    def measure(self, row: Any, pair: Any, inputs: Any, budget: float) -> Any:
        self.now += (self.seconds if row.compiled else min(self.seconds, 0.1)) + budget
        self.budgets.append(budget)
        call = 1e3 * budget / 10
        return replace(row, ours_ms=call, mlx_ms=call, repetitions=5)


def rows_of(clock: Clock, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[Any]:
    monkeypatch.setattr(bench, "measure", clock.measure)
    monkeypatch.setattr(bench, "draw", lambda *_: [])
    rows: list[Any] = []
    done = bench.run(bench.PAIRS, 120, True, rows.append, clock=clock, **given)
    assert done == rows
    return rows


def test_the_first_rows_of_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilations take so long that most rows have no numbers: the others differ."""
    clock = Clock(1.4)
    found = [row for row in rows_of(clock, monkeypatch) if row.repetitions]
    assert clock.now < 122
    assert 75 < len(found) < 120
    assert len({row.operator for row in found}) == len(bench.PAIRS)
    assert {row.what for row in found} == set(bench.PASSES)
    training = [row for row in found if row.operator.startswith("nn.")]
    for key, values in (("dtype", bench.DTYPES), ("size", bench.SIZES)):
        counts = [sum(getattr(row, key) == value for row in training) for value in values]
        assert min(counts) >= len(training) // len(values) - 4
    text = "\n".join(bench.summary(found, 120, bench.PAIRS))
    assert f"{len(found)} of {len(bench.planned(bench.PAIRS))} rows have numbers (float32: " in text


def test_every_dtype_of_every_operator_before_the_other_size() -> None:
    plan = bench.planned(bench.PAIRS)
    assert len({(row[0].name, *row[1:]) for row in plan}) == len(plan)
    for compared in bench.PAIRS:
        rows = [row[1:] for row in plan if row[0] is compared]
        half = len(rows) // 2
        assert len({size for size, _, _ in rows[:half]}) == 1
        assert len({row[1:] for row in rows[:half]}) == half
        assert all(
            before == (size, dtype, "forward")
            for before, (size, dtype, what) in zip(rows[::2], rows[1::2], strict=True)
        )


def test_budget_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle machine uses the time for repetitions; on a busy one each row has a few."""
    idle = Clock(0.02)
    assert all(row.repetitions for row in rows_of(idle, monkeypatch))
    assert 110 < idle.now < 125 and min(idle.budgets) > 0.1
    busy = Clock(3.0)
    rows = rows_of(busy, monkeypatch)
    assert busy.now < 124 and min(busy.budgets) == bench.LEAST_BUDGET
    # Without compilations there is time for each operator, and then again for compilations.
    assert {row.operator for row in rows if row.repetitions} == {p.name for p in bench.PAIRS}
    hurried = [row for row in rows if row.note == bench.NOT_COMPILED]
    assert hurried and not any(row.compiled for row in hurried)
    assert sum(row.compiled and row.repetitions > 0 for row in rows) > 20


def test_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    texts: list[str] = []
    rows = rows_of(Clock(1.0), monkeypatch, progress=texts.append)
    assert len(texts) == sum(row.repetitions > 0 for row in rows)
    assert texts[0].startswith(f"1 of {len(rows)}, 120 s left: {rows[0].operator} ")
    bench.progress("no terminal")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bench.progress("a terminal")
    assert capsys.readouterr().err.endswith("a terminal")


@pytest.mark.parametrize(("load", "warned"), [(0.5, False), (30.0, True)])
def test_load(load: float, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    text = bench.heading(bench.machine(True))
    assert ("Warning: the machine is busy (load 30.0, 8 cores)" in text) == warned


def test_slow_rows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient is not tried if the forward pass has taken too long."""
    monkeypatch.setattr(bench, "measure", lambda row, *_: replace(row, ours_ms=1e3, mlx_ms=1e3))
    rows = bench.run([pair("erf")] * 9, 120, False, lambda row: None)
    notes = {row.what: row.note.partition(";")[0] for row in rows[:18]}
    assert notes == {"forward": "", "gradient": "not measured: may take 30 s"}


def measured(theirs: Any, what: str) -> Any:
    compared = replace(pair("erf"), theirs=theirs)
    row = bench.Row("special.erf", "small", (), "float32", what, "", compiled=False)
    return bench.measure(row, compared, [mx.ones((4, 4))], 0)


def test_kernels_of_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row names those that are in the graph; on the CPU mx.fast has none."""
    theirs = lambda x: mx.sort(mx.negative(x))  # noqa: E731
    monkeypatch.setattr(bench, "KERNEL", re.compile("Sort|Negative"))
    compared = replace(pair("erf"), theirs=theirs, compared="mx.fast.sort")
    row = bench.Row("special.erf", "small", (), "float32", "forward", "", compiled=True)
    row = bench.measure(row, compared, [mx.ones((4, 4))], 0)
    assert row.mlx_kernels == ("Negative", "Sort")
    assert bench.formatted(row).endswith("  MLX's Negative, Sort")
    assert bench.formatted(replace(row, note="x")).endswith("  MLX's Negative, Sort  x")
    monkeypatch.undo()
    assert not bench.measure(
        row,
        pair("attention"),
        bench.draw(pair("attention"), pair("attention").small, mx.float32),
        0,
    ).mlx_kernels
    for name in ("CrossEntropyVJP", "GatedDeltaUpdate", "ScaledDotProductAttention", "RMSNorm"):
        assert bench.KERNEL.fullmatch(name)
    for name in ("attention", "cross_entropy", "gated_delta"):
        assert "mx.fast." in pair(name).compared


def test_no_gradient_of_mlx() -> None:
    """MLX's QR decomposition has none."""
    row = measured(lambda x: mx.linalg.qr(x)[1], "gradient")
    assert row.note == "MLX: no gradient"
    assert row.ours_ms > 0 and row.mlx_ms is row.ratio is row.mlx_peak_bytes is None
    assert measured(lambda x: mx.linalg.qr(x)[1], "forward").note == ""


def test_an_error_is_a_note() -> None:
    row = measured(lambda x: x @ mx.ones((3, 3)), "forward")
    assert row.note.startswith("MLX: ValueError: [matmul]") and row.ours_ms > 0
    assert "matmul" in bench.formatted(row)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "gated_dleta"], "unknown operator 'gated_dleta': did you mean nn.gated_delta"),
        (["--only", "nn.erf"], "unknown operator 'nn.erf': did you mean special.erf"),
        (["--only", "RoPE"], "unknown operator 'RoPE': did you mean nn.rope?"),
        (["--only", "erf,,"], "unknown operator ''"),
        (["--only", "qqqqqq"], "choose from nn.attention, "),
        (["--seconds", "0"], "--seconds: expected a positive number, found '0'"),
        (["--seconds", "nan"], "--seconds: expected a positive number, found 'nan'"),
        (["--seconds", "1m"], "--seconds: expected a positive number, found '1m'"),
        (["--json", "no/x.json"], "--json: cannot write 'no/x.json': there is no folder 'no'"),
        (["--json", "."], "--json: cannot write '.': it is a folder"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(arguments)
    printed = capsys.readouterr()
    assert stop.value.code == 2 and message in printed.err and not printed.out


def test_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has the rows until then."""
    calls = []

    def measure(row: Any, *_: Any) -> Any:
        calls.append(row)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return row

    monkeypatch.setattr(bench, "measure", measure)
    path = tmp_path / "numbers.json"
    assert bench.main(["--only", "erf", "--json", str(path)]) == 130
    assert len(json.loads(path.read_text(encoding="utf-8"))["rows"]) == 2
    assert str(path) in capsys.readouterr().out


def test_file_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An existing file and a folder, before anything is measured."""
    path = tmp_path / "numbers.json"
    asked = []

    def access(place: Path, mode: int) -> bool:  # the root user can write everything
        asked.append((place, mode))
        return False

    monkeypatch.setattr(os, "access", access)
    for place in (tmp_path, path):
        with pytest.raises(SystemExit):
            bench.main(["--json", str(path)])
        assert asked.pop() == (place, os.W_OK)
        path.touch()
    assert capsys.readouterr().err.count("numbers.json': permission denied") == 2


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--help"])
    printed = capsys.readouterr().out
    assert all(p.name in printed for p in bench.PAIRS)


@pytest.mark.parametrize("options, rows", [([], 1), (["-u"], 0)])  # with a buffer and without
def test_closed_output(tmp_path: Path, options: list[str], rows: int) -> None:
    """The program ends silently if its table is no longer read; the file has the rows so far."""
    path = tmp_path / "numbers.json"
    command = [sys.executable, *options, "-m", "mlxops.bench", "--only", "erf", "--json", str(path)]
    variables = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=variables) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 130
    assert len(json.loads(path.read_text(encoding="utf-8"))["rows"]) == rows


def test_without_a_compiler(tmp_path: Path) -> None:
    """On the CPU, mx.compile has no effect if the command g++ is missing."""
    path = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "mlxops.bench", "--only", "erf", "--seconds", "1"]
    for variables, compiled in ((os.environ, True), ({**os.environ, "PATH": str(tmp_path)}, False)):
        done = subprocess.run(
            [*command, "--device", "cpu", "--json", str(path)],
            **{"env": variables, "capture_output": True, "text": True, "check": True},
        )
        assert ("Nothing is compiled" in done.stdout) != compiled
        data = json.loads(path.read_text(encoding="utf-8"))
        assert data["machine"]["compile"] == data["rows"][0]["compiled"] == compiled


def test_a_broken_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arrays: Any) -> None:
        raise RuntimeError("g++ has failed")

    monkeypatch.setattr(mx, "eval", fail)
    assert not bench.compiles()
