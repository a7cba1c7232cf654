"""Builds and runs the program of docs/rust.md, and the conversions for mlx-rs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import mlxops
import pytest
from c.calls import folder_of
from rust.crate import cargo, needs_cargo

pytestmark = needs_cargo
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = (ROOT / "docs" / "rust.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?://|#) ([\w./]+)\n")


def test_program(tmp_path: Path) -> None:
    for _, code in BLOCKS:
        if name := NAMED.match(code):
            (tmp_path / name[1]).parent.mkdir(exist_ok=True)
            (tmp_path / name[1]).write_text(code, encoding="utf-8")
    commands = next(code for language, code in BLOCKS if language == "sh")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (shown,) = (code for language, code in BLOCKS if language == "text")
    assert done.stdout == shown


MAIN = """
fn main() -> mlxops::Result<()> {
    let x = into_mlx(mlxops::Array::from_slice(&[0.5f32, 1.0, 4.0], &[3])?);
    let (y, stream) = (from_mlx(&x)?, mlxops::Stream::default());
    let sum = mlxops::examples::axpby(&y, &from_mlx(&x)?, Default::default(), &stream)?;
    println!("{:?} {:?}", y.to_vec::<f32>()?, sum.to_vec::<f32>()?);
    Ok(())
}
"""


@pytest.mark.extended
def test_conversions(tmp_path: Path) -> None:
    """The conversions of the page share arrays with a substitute for mlx-rs (folder mlx_rs).

    The substitute links MLX and the operators, so that the static library has only the C functions.
    """
    package, include = folder_of(mlxops), Path(mx.__file__).parent / "include"
    sources = tmp_path / "generated"
    command = [
        sys.executable,
        "-m",
        "mlxgen",
        "generate",
        "--select",
        "axpby",
        "--language",
        "rust",
    ]
    subprocess.run([*command, "-o", sources], cwd=ROOT, check=True, capture_output=True)
    (tmp_path / "static").mkdir()
    for path in sorted((sources / "c").iterdir()):
        flags = ("-std=c++20", "-fPIC", "-c", path, "-o", tmp_path / f"{path.stem}.o")
        folders = (sources / "include", ROOT / "mlxgen" / "runtime" / "include", include)
        inside = [text for folder in folders for text in ("-I", str(folder))]
        subprocess.run(["c++", *flags, *inside], check=True)
    library = tmp_path / "static" / "libmlxops_c.a"
    subprocess.run(["ar", "rcs", library, *tmp_path.glob("*.o")], check=True)

    app = tmp_path / "app"
    (app / "src").mkdir(parents=True)
    code = next(code for language, code in BLOCKS if "fn from_mlx" in code)
    (app / "src" / "main.rs").write_text(code.replace("mlx_sys::", "mlx_rs::") + MAIN)
    (app / "Cargo.toml").write_text(
        '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2024"\n[dependencies]\n'
        f'mlx-rs = {{ path = "{HERE / "mlx_rs"}" }}\n'
        f'mlxops = {{ path = "{sources / "rust" / "mlxops"}", features = ["mlx-rs"] }}\n'
    )
    folders = f"{package / 'lib'}:{Path(mx.__file__).parent / 'lib'}"
    places = {"MLX_FOLDERS": folders, "LD_LIBRARY_PATH": folders}
    done = cargo(app, "run", MLXOPS_STATIC_DIR=str(library.parent), **places)
    assert done.stdout == "[0.5, 1.0, 4.0] [1.0, 2.0, 8.0]\n", done.stderr
    done = cargo(app, "check", **places)
    assert "error: mlxops@" in done.stderr
    assert "the feature mlx-rs needs MLXOPS_STATIC_DIR" in done.stderr
