"""Golden files: golden/ contains the generated code of two projects, formatted by clang-format.

``golden/sample`` is the whole package of tests/sample, which uses every feature of the language
once, with the interfaces for all languages. ``golden/mlxops`` has some of the shipped operators,
with all entries that they call. After a change of the generator, update the files and review the
difference::

    UPDATE_GOLDEN=1 pytest tests/render/test_golden.py
    git diff tests/render/golden

Metal kernels, and files of the Rust crate without names, are omitted, because they are copied
unchanged.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sample import project

from mlxgen.command.generate import generate
from mlxgen.diagnostics import Diagnostics
from mlxgen.model.languages import LANGUAGES
from mlxgen.plugins.languages import rust
from mlxgen.read.keys import json_schema
from mlxgen.read.settings import Settings
from mlxgen.read.settings import load as load_settings
from mlxgen.render.format import STYLE

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
# An elementwise kernel with attributes and several outputs; kernels over whole arrays with optional
# arguments, lists, `axes`, checks and Metal templates; gradients by formulas and kernels; a
# composition of internal operators with its own gradient.
SHIPPED = ("axpby", "lgamma", "sincos", "segment_sum", "gated_delta", "block_diag", "embedding_bag")


def output(settings: Settings, include: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Return the formatted files by name; for mlxops without files that list all operators."""
    diags = Diagnostics()
    generate(settings, folder, diags, include=include)
    assert diags.ok, diags.render_text()
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    found = [path for path in found if path.parent.name != "metal" and path.name[0] != "."]
    cpp = [path for path in found if path.suffix in (".cpp", ".h")]
    tool = Path(sys.executable).with_name("clang-format")
    subprocess.run([tool, f"--style={STYLE}", "-i", *cpp], check=True)
    fixed = {path.name for path in rust.TEMPLATES.folder.iterdir() if path.suffix != ".j2"}
    found = [path for path in found if path.name not in fixed]
    texts = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in found}
    ops = json.loads(texts.pop("python/ops.json"))
    cmake = texts.pop("sources.cmake")
    if not include:
        texts["python/ops.json"] = json.dumps(ops, indent=1, ensure_ascii=False) + "\n"
        texts["sources.cmake"] = cmake.replace(str(settings.root), "<project>")
    return texts


@pytest.mark.parametrize("case", ["sample", "mlxops"])
def test_generated_code(case: str, tmp_path: Path) -> None:
    golden = GOLDEN / case
    sample = case == "sample"
    settings = project.settings(project.YAML) if sample else load_settings(ROOT, Diagnostics())
    assert settings is not None
    settings = settings._replace(languages=tuple(LANGUAGES) if sample else ())
    texts = output(settings, () if sample else SHIPPED, tmp_path / "out")
    if "UPDATE_GOLDEN" in os.environ:
        shutil.rmtree(golden, ignore_errors=True)
        for name, text in texts.items():
            (golden / name).parent.mkdir(parents=True, exist_ok=True)
            (golden / name).write_text(text, encoding="utf-8")
    there = [path for path in golden.rglob("*") if path.is_file()]
    assert sorted(path.relative_to(golden).as_posix() for path in there) == sorted(texts)
    for path in there:
        assert texts[path.relative_to(golden).as_posix()] == path.read_text("utf-8"), path


def test_every_key_is_there() -> None:
    entries = yaml.safe_load(project.YAML.read_text("utf-8"))
    used = {key for entry in entries for key in entry}
    assert used == set(json_schema()["items"]["properties"])
