"""The time of a call in C, C++, Rust and Python, and the size of the interfaces of C and Rust."""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import mlxops

from mlxgen.render.format import STYLE

from .measure import Options, Result, alternate, duration, run_command

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("operators", "special", "nn", "examples")  # of the crate, with operators


def measure(options: Options) -> Iterator[Result]:
    """Yield the results of this group."""
    options.progress("time calls")
    rounds = 20 if options.quick else 100
    with tempfile.TemporaryDirectory() as folder:
        times = _compiled(Path(folder) / "calls", rounds)
        if shutil.which("cargo"):
            times["Rust"], build = _rust(Path(folder) / "app", rounds)
            name = "CPU time of building mlxops's crate, without debug information"
            yield Result("languages", name, f"{build:.1f} s", data={"seconds": build})
        times["Python"] = _python(rounds)
        for name, seconds in times.items():
            ratio = seconds / times["C++"]
            yield Result(
                "languages",
                f"call of `axpby` on numbers from {name}",
                f"{duration(seconds)}, {ratio:.2f}x C++",
                "at most 1.2x" if name == "C" else "",
                ratio <= 1.2 if name == "C" else None,
                {"seconds": seconds, "ratio": ratio},
            )
        options.progress("count lines")
        yield from _lines(Path(folder) / "generated")


def _compiled(program: Path, rounds: int) -> dict[str, float]:
    """Return the seconds per call in C++ and C."""
    ops, mlx = Path(str(mlxops.__file__)).parent, Path(str(mx.__file__)).parent
    linked = [
        part
        for folder, libraries in ((ops / "lib", ("mlxops_c", "mlxops")), (mlx / "lib", ("mlx",)))
        for part in (f"-L{folder}", f"-Wl,-rpath,{folder}", *(f"-l{name}" for name in libraries))
    ]
    include = ["-I", str(ops / "include"), "-I", str(mlx / "include")]
    source = ROOT / "benchmarks" / "languages.cpp"
    run_command(["c++", "-std=c++20", "-O2", *include, str(source), "-o", str(program), *linked])
    lines = run_command([str(program), str(rounds), "1000"]).splitlines()
    cpp, c = zip(*(map(float, line.split()) for line in lines), strict=True)
    return {"C++": statistics.median(cpp), "C": statistics.median(c)}


MANIFEST = """
[package]
name = "app"
version = "0.1.0"
edition = "2024"
[dependencies]
mlxops = {{ path = "{crate}" }}
"""


def _rust(app: Path, rounds: int) -> tuple[float, float]:
    """Return the seconds per call in Rust, and the CPU seconds of the crate's release build."""
    package = Path(str(mlxops.__file__)).parent
    (app / "src").mkdir(parents=True)
    (app / "Cargo.toml").write_text(MANIFEST.format(crate=package / "rust"))
    shutil.copy(ROOT / "benchmarks" / "languages.rs", app / "src" / "main.rs")
    flags = f"-Clink-arg=-Wl,-rpath,{package / 'lib'}"
    places = {"MLXOPS_DIR": str(package), "CARGO_TARGET_DIR": str(app), "RUSTFLAGS": flags}
    command = ["cargo", "build", "--offline", "--quiet", "--release"]
    used = []
    for more in (["--package=mlxops"], []):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, *more], cwd=app, env={**os.environ, **places}, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    lines = run_command([str(app / "release" / "app"), str(rounds), "1000"]).splitlines()
    return statistics.median(map(float, lines)), used[0]


def _python(rounds: int) -> float:
    """Return the seconds per call in Python."""
    x, y = mx.array(1.0), mx.array(2.0)
    axpby = mlxops.examples.axpby
    return alternate({"Python": lambda: axpby(x, y, 2.0, 3.0)}, rounds=rounds, calls=1000).seconds(
        "Python"
    )


def _lines(folder: Path) -> Iterator[Result]:
    """Yield the lines per operator: C's header and functions, Rust's declarations and crate."""
    command = [sys.executable, "-m", "mlxgen", "generate", "--project", str(ROOT)]
    run_command([*command, "--language", "rust", "--output", str(folder)])
    ops = json.loads((folder / "python" / "ops.json").read_text("utf-8"))["operators"]
    public = sum("internal" not in op["tags"] for op in ops)
    header, sources = folder / "include" / "mlxops_c.h", sorted(folder.glob("c/functions_*.cpp"))
    tool = Path(sys.executable).with_name("clang-format")
    subprocess.run([tool, f"--style={STYLE}", "-i", header, *sources], check=True)
    declared = header.read_text("utf-8").partition("/* Operators */")[2]
    defined = "".join(path.read_text("utf-8").partition("\nint ")[2] for path in sources)
    crate = folder / "rust" / "mlxops" / "src"
    ffi = (crate / "ffi.rs").read_text("utf-8").partition("// The operators.\n")[2]
    modules = "".join((crate / f"{name}.rs").read_text("utf-8") for name in MODULES)
    code = "\n".join(line for line in modules.splitlines() if not line.lstrip().startswith("//"))
    for name, text in {
        "C header, with documentation,": declared,
        "C functions": defined,
        "Rust declarations": ffi,
        "Rust functions and types": code,
        "Rust functions and types, with documentation and examples,": modules,
    }.items():
        lines = len(text.splitlines())
        yield Result(
            "languages",
            f"lines of the {name} per operator",
            f"{lines / public:.1f} ({lines} for {public} operators)",
            data={"lines": lines, "operators": public},
        )
