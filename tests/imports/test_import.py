"""`mlxgen import torch` as a command: its output, its errors, and the files it leaves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from imports.conftest import VERSION, Run

LIST = "relu  # a comment\nadd\n\n# another\nmax\nspecial_erfcx\nsort\nmasks\nrand\n"
LIST += "_native_batch_norm_legit\n"
PREFIXES = {"half", "same", "weighted", "add", "max", "relu"}
OVERRIDES = """\
relu: mx.maximum(self, 0)
add.Tensor: self + 2 * half(alpha * other)
"half(Tensor x) -> Tensor": x / 2
"unused_helper(Tensor x) -> Tensor": x / 3
max: mx.max(self)
max.dim:
  composite: (mx.max(self, axis=dim, keepdims=keepdim), mx.argmax(self, axis=dim, keepdims=keepdim))
  doc: The largest elements along an axis and their indices, with a text that needs two lines.
"same(Tensor x) -> Tensor": half(2 * x)
"weighted(Tensor grad) -> Tensor": half(grad)
max.other:
  let: {upper: same(other)}
  composite: maximum(self, upper)
  grad: {self: weighted(grad), other: weighted(grad)}
special_erfcx: {reject: no kernel}
rand.generator: random.uniform(shape=size, dtype=dtype, key=key)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "allow.txt").write_text(LIST)
    (tmp_path / "own.yaml").write_text(OVERRIDES)
    return tmp_path


ARGUMENTS = ("--allow", "allow.txt", "--overrides", "own.yaml", "-o", "aten.yaml")


def test_entries(folder: Path, run: Run) -> None:
    done = run(*ARGUMENTS, "--report", "report.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    text = (folder / "aten.yaml").read_text()
    assert text.startswith(f"# Written by mlxgen import from torch {VERSION}.")
    entries = yaml.safe_load(text)
    names = [entry["signature"].partition("(")[0] for entry in entries]
    # The base table may have formulas for the other operators.
    assert [name for name in names if name.partition(".")[0] in PREFIXES] == [
        "half",
        "same",
        "weighted",
        "add.Tensor",
        "max",
        "max.dim",
        "max.other",
        "relu",
    ]
    by_name = dict(zip(names, entries, strict=True))
    assert by_name["relu"]["composite"] == "mx.maximum(self, 0)"
    assert by_name["relu"]["variants"] == ["function", "method", "inplace", "out"]
    assert by_name["half"]["tags"] == ["internal"] and "unused_helper" not in names
    assert all(len(line) <= 110 or "https:" in line for line in text.splitlines())
    report = yaml.safe_load((folder / "report.yaml").read_text())
    assert report["relu"] == {"from": "override own.yaml"}
    assert report["add.Scalar"] == {"merged": "add.Tensor"}
    assert report["special_erfcx"] == {"rejected": "no kernel"}
    assert "Dimname" in report["masks"]["rejected"]
    # One of them writes to its arguments, and has a formula nevertheless.
    norms = {report[f"_native_batch_norm_legit{part}"]["from"] for part in ("", ".no_stats")}
    assert norms == {"table norm.yaml"}


def test_same_inputs_give_the_same_bytes(folder: Path, run: Run) -> None:
    run(*ARGUMENTS)
    before = (folder / "aten.yaml").read_bytes()
    (folder / "allow.txt").write_text("\n".join(LIST.split("\n")[::-1]))
    run(*ARGUMENTS)
    assert (folder / "aten.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("file", "text", "code", "message"),
    [
        ("allow.txt", "rleu\n", "MG901",
         "allow.txt:1:1: error[MG901]: torch 2.99.0 has no operator 'rleu' (did you mean 'relu'?)"),
        ("allow.txt", "relu_\n", "MG901", "'relu_' writes to its argument"),
        ("allow.txt", "add.Tensor\n", "MG901", "'add.Tensor' is one overload"),
        ("allow.txt", "relu\nadd\nrelu\n", "MG902",
         "allow.txt:3:1: error[MG902]: 'relu' is in the list twice"),
        ("allow.txt", "# nothing\n", "MG901", "the list contains no operator"),
        ("allow.txt", b"\xff\xfe", "MG007", "UTF-8"),
        ("own.yaml", "add: self\n", "MG901",
         "own.yaml:1:1: error[MG901]: torch 2.99.0 has no functional overload 'add'"),
        ("own.yaml", "relu:\n  compsite: self\n", "MG101",
         "own.yaml:2:3: error[MG101]: op 'relu': unknown key 'compsite' (did"),
        ("own.yaml", "relu:\n  signature: relu(Tensor x) -> Tensor\n", "MG904",
         "'signature' cannot be set"),
        ("own.yaml", "relu: self\nrelu: self\n", "MG003", "given twice"),
        ("own.yaml", "relu: 'self\n", "MG001", "not closed"),
        ("own.yaml", "- relu: self\n", "MG004", "must be a mapping"),
        ("own.yaml", "relu: [self]\n", "MG102", "not a list"),
        ("own.yaml", "relu: self +\n", "MG301", "is not a Python expression"),
        ("own.yaml", "relu:\n  composite: self\n  grad: {self: grad +}\n", "MG301",
         "own.yaml:3:16: error[MG301]: op 'relu': 'grad +' is not a Python expression"),
        ("own.yaml", "relu:\n  let: {part: (self}\n  composite: part\n", "MG301",
         "own.yaml:2:15: error[MG301]: op 'relu': '(self' is not a Python expression"),
    ],
)  # fmt: skip
def test_mistakes(
    folder: Path, run: Run, file: str, text: str | bytes, code: str, message: str
) -> None:
    (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    if file == "own.yaml":
        (folder / "allow.txt").write_text("relu\nadd\n")
    elif file == "allow.txt":
        (folder / "own.yaml").write_text("")
    done = run(*ARGUMENTS, "--report", "report.yaml")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert message in done.stderr, done.stderr
    assert set(re.findall(r"error\[(MG\d+)\]", done.stderr)) == {code}
    assert not list(folder.glob("*aten.yaml*")) and not list(folder.glob("*report*"))


def test_overrides_of_two_files(folder: Path, run: Run) -> None:
    (folder / "more.yaml").write_text("relu: self\n")
    done = run(*ARGUMENTS, "--overrides", "more.yaml")
    assert done.returncode == 1
    assert "more.yaml:1:1: error[MG902]: two files have formulas for 'relu'" in done.stderr


def test_unused_override_is_a_warning(folder: Path, run: Run) -> None:
    (folder / "allow.txt").write_text("relu\n")
    done = run(*ARGUMENTS)
    assert done.returncode == 0
    assert "own.yaml:2:1: warning[MG905]: the list of operators lacks 'add'" in done.stderr


def test_what_formulas_call_is_added(folder: Path, run: Run) -> None:
    (folder / "allow.txt").write_text("relu\n")
    overrides = "relu: helper(self)\n'helper(Tensor x) -> Tensor': special_erfcx(x) + mx.exp(x)\n"
    (folder / "own.yaml").write_text(overrides + "special_erfcx: self + maximum(self, 0)\n")
    done = run(*ARGUMENTS, "--report", "report.yaml")
    assert (done.returncode, done.stderr) == (0, "")  # the override of special_erfcx is used
    assert "2 entries for 2 of 2 operators; added: special_erfcx" in done.stdout
    report = (folder / "report.yaml").read_text()
    assert "# Added, because formulas call them: special_erfcx." in report
    assert "special_erfcx: {from: override own.yaml}" in report


def test_without_torch(folder: Path, site: Path, run: Run) -> None:
    (site / "torchgen" / "packaged").rename(site / "torchgen" / "other")
    done = run(*ARGUMENTS)
    assert done.returncode == 1
    assert "error[MG903]: torch is not installed for this Python" in done.stderr
    assert "-m pip install 'torch'" in done.stderr


@pytest.mark.parametrize("text", ["func: x\n", "- func: [1]\n", "- func: 'f(Tensor\n", "\x00"])
def test_damaged_schema(folder: Path, site: Path, run: Run, text: str) -> None:
    native = site / "torchgen" / "packaged" / "ATen" / "native" / "native_functions.yaml"
    native.write_text(text)
    done = run(*ARGUMENTS)
    assert done.returncode == 1
    assert "error[MG903]: cannot read the schema of torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_files_are_not_replaced(folder: Path, run: Run) -> None:
    done = run(*ARGUMENTS[:-1], "own.yaml")
    assert done.returncode == 1 and "error[MG607]: refusing to overwrite own.yaml" in done.stderr
    assert (folder / "own.yaml").read_text() == OVERRIDES


def test_unwritable_report_leaves_the_entries(folder: Path, run: Run) -> None:
    run(*ARGUMENTS)
    before = (folder / "aten.yaml").read_bytes()
    (folder / "allow.txt").write_text("relu\n")
    done = run(*ARGUMENTS, "--report", "missing/report.yaml")
    assert done.returncode == 1 and "error[MG607]: cannot write missing/report.yaml" in done.stderr
    assert (folder / "aten.yaml").read_bytes() == before
    assert not list(folder.glob(".*"))


def test_missing_option(folder: Path, run: Run) -> None:
    assert run("-o", "aten.yaml").returncode == 2
    assert run("--allow", "missing.txt", "-o", "aten.yaml").returncode == 2
