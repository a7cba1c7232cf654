"""An incremental run has the same output as a full run: files and messages, byte by byte."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample import project

from mlxgen.check import gradients
from mlxgen.command import generate
from mlxgen.command.memo import Memo
from mlxgen.command.write import MANIFEST, Manifest
from mlxgen.diagnostics import Diagnostics, Rendered
from mlxgen.read.settings import Settings

YAML = "mlx_ops.yaml"
MORE = ("ops/a.yaml", "ops/b.yaml")  # the other files of operators, which may not exist
EDITS = int(os.environ.get("MEMO_EDITS", "25"))  # of each seed; 500 for 2,000 edits

# Some names are those of MLX's functions that other entries call.
NEW = """
- signature: "{name}(x: array) -> array"
  composite: {formula}
"""
ANCHORED = """
- name: anchored
  signature: "anchored(x: array) -> array"
  composite: &c {formula}

- name: anchored_too
  signature: "anchored_too(x: array) -> array"
  composite: *c
"""
NOISE = """
- name: noise
  signature: "noise(x: array, key: array | None = None) -> array"
  composite: {formula}
- signature: "both(x: array) -> array"
  composite: noise(x) - noise(x)
"""
RANDOM = (
    "x + x if key is None else key",
    "twice(x) if key is None else key",  # of csrc, where it may draw numbers
    "random.normal(x.shape, key=key)",
)
PART = """#pragma once
#define PART {params}
"""
CALLS_PART = """#pragma once
#include "part.inl"
namespace ops {
template <typename T>
T part(PART) {
  return x;
}
}  // namespace ops
"""
PARTS = """
- signature: "part(x: array) -> array"
  dispatch: {cpu: part}
  grad: {x: grad}
"""
NAMES = ("extra", "tanh", "square", "zeros_like", "sum", "full", "softcap", "helper_too", "Square")
FORMULAS = ("x + x", "softcap(x)", "tanh(x)", "helper_too(x)", "mx.square(x)", "dense(x, x)", "y")
SHADOWS = ("tanh", "exp", "log", "sum", "mean", "zeros_like", "round", "rsqrt")
SIGNATURES = (
    ("helper(x: array)", "helper(x: array, y: float = 1)"),
    ("softcap(x: array, cap: float = 50.0)", "softcap(x: array, cap: int = 50)"),
    ("softcap(x: array, cap", "softcap(y: array, x: array, cap"),
    ("array square(const array& x)", "array square(const array& x, int n = 2)"),
)
REPLACED = (
    (r"\b\d+\b", ("1", "2", "7")),
    (r"\bx\b", ("x", "y", "xx")),
    (r"\bexp\b|\btanh\b|\bsum\b", ("sin", "softcap", "cos")),
    (r"\bfloat\b", ("int", "array", "float | None")),
    (r"\bgrad\b", ("grad", "2 * grad", "gard")),
    (r"\bmetal\b", ("cpu", "metal")),
    (r"\btags\b", ("tags", "variants")),
    (r"nn\.activations", ("nn", "nn.other")),
    (r"(?<=[\" ])(scale2?|softcap|helper|square|moments)(?=\()", ("scale", "renamed", "helper")),
)


def entries(text: str) -> list[str]:
    """Split a file at the beginning of each entry."""
    return re.split(r"^(?=- )", text, flags=re.MULTILINE)


class Edits:
    """Random edits of a project."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.name = "ops"
        self.kinds: list[Callable[[], None]] = [self.entry] * 8
        self.kinds += [self.add, self.remove, self.move, self.comment, self.doc, self.anchor] * 2
        self.kinds += [self.shadow, self.signature, self.tag, self.noise, self.part] * 3
        self.kinds += [self.transfer] * 4
        self.kinds += [self.cpp, self.metal, self.settings, self.output, self.undo]

    def edit(self) -> None:
        self.random.choice(self.kinds)()

    @property
    def project(self) -> Settings:
        """The settings of the project."""
        more = tuple(self.folder / name for name in self.files[1:])
        return project.settings(self.folder / YAML, self.name)._replace(more=more)

    @property
    def files(self) -> list[str]:
        """The files of operators."""
        return [YAML, *(name for name in MORE if (self.folder / name).exists())]

    def entry(self) -> None:
        name = self.random.choice(self.files)
        parts = entries(self.read(name))
        fitting = [[r for r in REPLACED if re.search(r[0], part)] for part in parts]
        at = self.random.choice([i for i in range(1, len(parts)) if fitting[i]] or [0])
        if not fitting[at]:
            return
        pattern, texts = self.random.choice(fitting[at])
        places = [*re.finditer(pattern, parts[at])]
        place = self.random.choice(places)
        new = self.random.choice(texts)
        parts[at] = parts[at][: place.start()] + new + parts[at][place.end() :]
        self.write(name, "".join(parts))

    def add(self) -> None:
        name, formula = self.random.choice(NAMES), self.random.choice(FORMULAS)
        parts = entries(self.read(YAML))
        parts.insert(self.random.randrange(1, len(parts)), NEW.format(name=name, formula=formula))
        self.write(YAML, "".join(parts))

    def shadow(self) -> None:
        """Rename an entry to a function of MLX, or back."""
        text = self.read(YAML)
        new = NEW.format(name=self.random.choice(SHADOWS), formula="x + x")
        self.write(YAML, text.replace(new, "") if new in text else text + new)

    def signature(self) -> None:
        """Change a signature, so that calls of the entry are compiled differently."""
        texts = self.random.choice(SIGNATURES)
        old, new = self.random.choice([texts, texts[::-1]])
        self.write(YAML, self.read(YAML).replace(old, new))

    def remove(self) -> None:
        parts = entries(self.read(YAML))
        del parts[self.random.randrange(1, len(parts))]
        self.write(YAML, "".join(parts))

    def move(self) -> None:
        parts = entries(self.read(YAML))
        part = parts.pop(self.random.randrange(1, len(parts)))
        parts.insert(self.random.randrange(1, len(parts)), part)
        self.write(YAML, "".join(parts))

    def transfer(self) -> None:
        """Move an entry to another file, possibly a new one, or all entries of a file."""
        source = self.random.choice(self.files)
        target = self.random.choice([name for name in (YAML, *MORE) if name != source])
        there = entries(self.read(target) if target in self.files else "")
        parts = entries(self.read(source))
        count = 1 if source == YAML or self.random.random() < 0.7 else len(parts) - 1
        for _ in range(count):
            part = parts.pop(self.random.randrange(1, len(parts))).rstrip("\n") + "\n"
            there.insert(self.random.randrange(1, len(there) + 1), part)
        self.write(target, "".join(there))
        self.write(source, "".join(parts))
        if len(parts) == 1 and source != YAML:
            (self.folder / source).unlink()

    def comment(self) -> None:
        name = self.random.choice(self.files)
        self.write(name, "# A line more.\n" + self.read(name))

    def doc(self) -> None:
        doc = f"  doc: Number {self.random.randrange(5)}, of `softcap`.\n"
        text = self.read(YAML).rstrip("\n") + "\n"
        self.write(YAML, text if "Number" in text.splitlines()[-1] else text + doc)

    def anchor(self) -> None:
        """Write an entry with an alias to another one."""
        text = re.sub(r"\n- name: anchored.*?(?=\n- |\Z)", "", self.read(YAML), flags=re.DOTALL)
        formula = self.random.choice(FORMULAS)
        self.write(YAML, text + ANCHORED.format(formula=formula))

    def tag(self) -> None:
        """Remove an entry from Python, or put it back."""
        parts = entries(self.read(YAML))
        at = self.random.randrange(1, len(parts))
        line = "  tags: [internal]\n"
        part = parts[at].rstrip("\n") + "\n"
        parts[at] = part.replace(line, "") if line in part else part + line
        self.write(YAML, "".join(parts))

    def noise(self) -> None:
        """Make an entry that is called twice deterministic, or random."""
        text = re.sub(r"\n- name: noise.*?(?=\n- name|\Z)", "", self.read(YAML), flags=re.DOTALL)
        formula = self.random.choice(RANDOM)
        self.write(YAML, text + NOISE.format(formula=formula))

    def part(self) -> None:
        """Change a file of another ending that a header includes."""
        text = self.read(YAML)
        self.write("csrc/part.h", CALLS_PART)
        self.write("csrc/part.inl", PART.format(params=self.random.choice(("T x", "T x, T y"))))
        self.write(YAML, text if PARTS in text else text + PARTS)

    def cpp(self) -> None:
        text = self.read("csrc/kernels.h")
        old, new = self.random.choice(
            [
                ("a * x", "x * a"),
                ("T scale(T x, T a)", "T scale(T x)"),
                ("#pragma", "// x\n#pragma"),
            ]
        )
        self.write("csrc/kernels.h", text.replace(old, new))

    def metal(self) -> None:
        text = self.read("kernels/metal/kernels.metal")
        pairs = [("a * x", "x * a"), ("T a)", "double a)"), ("using", "// x\nusing")]
        old, new = self.random.choice(pairs)
        self.write("kernels/metal/kernels.metal", text.replace(old, new, 1))

    def settings(self) -> None:
        self.name = "other" if self.name == "ops" else "ops"

    def output(self) -> None:
        """Edit or remove a generated file."""
        files = sorted(path for path in (self.folder / "out").rglob("*") if path.is_file())
        path = self.random.choice(files)
        if self.random.random() < 0.5:
            path.unlink()
        else:
            path.write_text(path.read_text() + "mine\n")

    def undo(self) -> None:
        """Restore the initial state."""
        self.name = "ops"
        for name in (YAML, "csrc/kernels.h", "kernels/metal/kernels.metal"):
            shutil.copy(project.HERE / name, self.folder / name)
        shutil.rmtree(self.folder / "ops", ignore_errors=True)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder; of the manifest, only the cached entries."""
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    found = {name: path.read_bytes() for name, path in files.items()}
    if MANIFEST in found:
        found[MANIFEST] = Manifest.load(folder).entries.encode()
    return found


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (1, 2, 3))]


@pytest.mark.parametrize("seed", SEEDS)
def test_as_a_run_over_everything(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(project.HERE, folder)
    after_edit: list[bool] = []
    look = Memo.look

    def count(memo: Memo[Any], *arguments: Any) -> Any:
        after_edit.append(bool(memo.kept))
        return look(memo, *arguments)

    monkeypatch.setattr(Memo, "look", count)
    edits = Edits(folder, seed)
    last = contents(folder / "out")
    for number in range(EDITS):
        said = []
        for output in (folder / "out", tmp_path / f"fresh{number}"):
            diags = Diagnostics()
            generate.generate(edits.project, output, diags)
            said.append(diags.render_text())
        assert said[0] == said[1]
        if not diags.ok:
            assert contents(folder / "out") == last
            edits.undo()
        else:
            assert contents(folder / "out") == contents(tmp_path / f"fresh{number}")
        edits.edit()
        last = contents(folder / "out")
    assert sum(after_edit) > EDITS // 5


@pytest.mark.parametrize("elsewhere", [False, True])
def test_warnings_are_given_by_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Every run repeats warnings, even if an alias moves them into another entry."""
    folder = tmp_path / "project"
    shutil.copytree(project.HERE, folder)
    looked_at: list[str] = []
    derivatives = gradients.derivatives

    def warned(context: Any, known: Any) -> Any:
        looked_at.append(context.name)
        if context.name == "softcap":
            entry = context.entry.document.entries[0] if elsewhere else context.entry
            span = entry.span()
            said = Rendered("MG403", "doubtful", None)
            context.diags.error(said, span, op=context.name, severity="warning")
        return derivatives(context, known)

    monkeypatch.setattr(gradients, "derivatives", warned)
    changed = []
    for old, new in (("", ""), ("", ""), ("2 * x", "3 * x"), ("", "# A line.\n")):
        text = (folder / YAML).read_text()
        assert old in text
        (folder / YAML).write_text(text.replace(old, new, 1))
        diags = Diagnostics()
        looked_at.clear()
        result = generate.generate(project.settings(folder / YAML), folder / "out", diags)
        assert [(item.severity, item.op) for item in diags.sorted()] == [("warning", "softcap")]
        assert result is not None and result.changes is not None
        changed.append((len(looked_at), bool(result.changes.written)))
    more = 1 + elsewhere
    assert changed[1:] == [(more, False), (1 + more, True), (more, True)] and changed[0][0] > 10


def test_calls_of_what_may_draw(tmp_path: Path) -> None:
    """Composites share calls of entries whose composites are deterministic."""
    folder = tmp_path / "project"
    shutil.copytree(project.HERE, folder)
    text = (folder / YAML).read_text()
    text += NEW.format(name="sums", formula="inner(x) + inner(x)")
    found = []
    for formula in ("x + x", "twice(x)", "x * x"):  # twice is a function of csrc
        (folder / YAML).write_text(text + NEW.format(name="inner", formula=formula))
        diags = Diagnostics()
        generate.generate(project.settings(folder / YAML), folder / "out", diags)
        assert diags.ok
        found.append((folder / "out/src/sums.cpp").read_text().count("ops::inner("))
    assert found == [1, 2, 1]


def test_headers_outside_of_the_project(tmp_path: Path) -> None:
    """The hash does not cover such headers, so entries that include one are not cached."""
    folder = tmp_path / "project"
    shutil.copytree(project.HERE, folder)
    outside = folder / "outside.h"
    outside.write_text("#pragma once\n#define VALUE T\n")
    kernels = folder / "csrc/kernels.h"
    kernel = "template <typename T>\nT scale("
    assert kernel in kernels.read_text()
    text = kernels.read_text().replace(kernel, "template <typename T>\nVALUE scale(")
    kernels.write_text('#include "../outside.h"\n' + text)
    codes = []
    for value in ("T", "int"):
        outside.write_text(outside.read_text().replace("VALUE T", f"VALUE {value}"))
        (folder / YAML).write_text("# A line.\n" + (folder / YAML).read_text())
        diags = Diagnostics()
        generate.generate(project.settings(folder / YAML), folder / "out", diags)
        codes.append([item.code for item in diags.sorted()])
    assert codes == [[], ["MG503"]]


def test_two_entries_on_one_line(tmp_path: Path) -> None:
    """Each entry gets its own output."""
    folder = tmp_path / "project"
    shutil.copytree(project.HERE, folder)
    entry = '{{name: {name}, signature: "{name}(x: array) -> array", composite: {formula}}}'
    for formula in ("x + x", "x * x"):
        first, second = (entry.format(name=name, formula=formula) for name in "ab")
        (folder / YAML).write_text(f"[{first}, {second}]")
        diags = Diagnostics()
        generate.generate(project.settings(folder / YAML), folder / "out", diags)
        assert diags.ok, diags.render_text()
        sources = [(folder / f"out/src/{name}.cpp").read_text() for name in "ab"]
        assert [("mx::square" in text or "multiply" in text) for text in sources] == [
            formula == "x * x"
        ] * 2
        assert ["a(" in sources[0], "b(" in sources[1]] == [True, True]


@pytest.mark.parametrize("folder_of_part", ["csrc", "."])
def test_included_file_of_any_ending(tmp_path: Path, folder_of_part: str) -> None:
    """Nothing is up to date after an edit of a file that a header includes, also elsewhere."""
    folder = tmp_path / "project"
    shutil.copytree(project.HERE, folder)
    Edits(folder, 0).part()
    (folder / "csrc/part.inl").unlink()
    part = folder / folder_of_part / "part.inl"
    name = "part.inl" if folder_of_part == "csrc" else "../part.inl"
    (folder / "csrc/part.h").write_text(CALLS_PART.replace("part.inl", name))
    codes = []
    for params in ("T x", "T x, T y", "T x"):
        part.write_text(PART.format(params=params))
        diags = Diagnostics()
        generate.generate(project.settings(folder / YAML), folder / "out", diags)
        codes.append([item.code for item in diags.sorted()])
    assert codes == [[], ["MG503"], []]
