"""Builds a package's operators so that their Metal kernels run on the CPU, and runs its tests.

The operators' library is built a second time, with the substitute for MLX's Metal device
(`include/mlx`, `device.cpp`) instead of MLX's own, and all kernels are compiled. A copy of the
installed package contains this library. Tests that import the copy run the Metal kernels through
their generated launchers, instead of the CPU kernels. Nothing else of the package differs.

The build folder is kept, so that the next run compiles only changed files:

    build/     CMake's build folder
    package/   the copy of the package, with the library
    kernels/   compiled kernels, by the hash of their source
    libraries/ the source of each operator's Metal library, and the compiled one
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..command import operators
from ..diagnostics import Diagnostics, install
from ..model.op import Kernel, Op
from ..read.cpp import Reader
from ..read.preprocess import OWN_INCLUDES, SourceError
from ..read.settings import Settings
from . import library
from .cxx import EmulationError
from .cxx import command as compiler
from .rules import broken_rules
from .translate import translate

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class EmulatedPackage:
    """A package whose Metal kernels run on the CPU.

    Attributes:
        settings: The project.
        folder: The build folder.
        kernels: For each operator with a Metal kernel, the host names that its launcher may use,
            for the dtypes of its entry.
        broken: The errors of libraries that do not compile, whose operators raise them.
    """

    settings: Settings
    folder: Path
    kernels: Mapping[str, tuple[str, ...]]
    broken: Sequence[str] = ()

    @property
    def path(self) -> Path:
        """The folder to put on PYTHONPATH."""
        return self.folder / "package"

    @property
    def library(self) -> Path:
        """The operators' library."""
        suffix = "dylib" if sys.platform == "darwin" else "so"
        name = self.settings.name
        return self.path / name / "lib" / f"lib{name}.{suffix}"

    def environment(self) -> dict[str, str]:
        """The environment in which the package's Metal kernels run on the CPU."""
        path = os.environ.get("PYTHONPATH")
        return {
            **os.environ,
            "MLXGEN_METAL_EMULATION": "1",
            "MLXGEN_METAL_LIBRARY": str(self.library),
            "MLXGEN_METAL_PREBUILT": str(self.folder / "libraries"),
            "MLXGEN_METAL_CACHE": str(self.folder / "kernels"),
            "PYTHONPATH": os.pathsep.join([str(self.path), *([path] if path else [])]),
        }


def installed(name: str) -> list[Path]:
    """Return the folders of the installed package; an editable install can have several.

    Raises:
        EmulationError: If it is not installed.
    """
    # find_spec does not import the package: importing an editable install can build it.
    found = importlib.util.find_spec(name)
    folders = [Path(path) for path in (found and found.submodule_search_locations) or ()]
    if not any((folder / "ops.json").is_file() for folder in folders):
        raise EmulationError(f"{name} is not installed here: install it first (pip install .)")
    return folders


def check_rules(
    path: str | os.PathLike[str], folders: Sequence[str | os.PathLike[str]] = ()
) -> list[SourceError]:
    """Return the rules of Metal that a file and its project's headers break (`rules.py`).

    Args:
        path: The file.
        folders: The include folders.

    Returns:
        An error for each; for an unreadable file, the reason.
    """
    try:
        return broken_rules(Reader([os.fspath(f) for f in folders], metal=True), os.fspath(path))
    except SourceError as error:
        return [error]


def check_kernels(settings: Settings) -> list[SourceError]:
    """Return the rules that the kernels of a project break."""
    folders = [settings.metal, settings.csrc, Path(OWN_INCLUDES), mlx_include()]
    return [
        error
        for path in sorted(settings.metal.rglob("*.metal"))
        for error in check_rules(path, folders)
    ]


def mlx_include() -> Path:
    """Return the folder of the installed MLX's headers.

    Raises:
        EmulationError: If MLX is not installed.
    """
    folder = operators.mlx_include()
    if folder is None:
        raise EmulationError(install.no_mlx())
    return folder


def build_package(
    settings: Settings,
    folder: Path,
    *,
    jobs: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> EmulatedPackage:
    """Build the operators for emulation in `folder`, and compile their kernels.

    Args:
        settings: The project, whose package is installed.
        folder: The build folder; an existing build is updated.
        jobs: Number of parallel compilers; by default the number of processors.
        say: Called before slow steps.

    Raises:
        EmulationError: If the package is not installed or does not build.
    """
    jobs = jobs or os.cpu_count() or 1
    sources = installed(settings.name)
    ops = _operators(settings)
    build = folder / "build"
    build.mkdir(parents=True, exist_ok=True)
    _run(
        [
            *_tool("cmake"),
            *("-S", str(HERE.parent / "package" / "cmake"), "-B", str(build), "-G", "Ninja"),
            f"-DMLXGEN_PROJECT={settings.root}",
            "-DMLXGEN_EMULATE_METAL=ON",
            f"-DPython_EXECUTABLE={sys.executable}",
        ],
        f"configuring {settings.name} for emulation",
    )
    described = build / "generated" / "python" / "ops.json"
    source = next(folder for folder in sources if (folder / "ops.json").is_file())
    if described.read_bytes() != (source / "ops.json").read_bytes():
        raise EmulationError(
            f"the operators of the installed {settings.name} (in {source}) differ from those in "
            f"{_files(settings)}: install it again (pip install .)"
        )
    say(f"Building {settings.name} for emulation")
    command = [*_tool("cmake"), "--build", str(build), "--target", "mlxgen_ops", "-j", str(jobs)]
    _run(command, f"building {settings.name} for emulation")
    say(f"Compiling the Metal kernels of {len(ops)} operators")
    broken = _compile_kernels(next((build / "lib").glob(f"lib{settings.name}.*")), folder, jobs)
    for error in broken:
        print(f"error: {error}", file=sys.stderr)
    kernels = {op.name: tuple(_host_names(op, kernel)) for op, kernel in ops}
    package = EmulatedPackage(settings, folder, kernels, broken)
    shutil.rmtree(package.path, ignore_errors=True)
    unneeded = shutil.ignore_patterns("__pycache__", "include", "lib")
    for folder in sources:
        target = package.path / settings.name
        shutil.copytree(folder, target, ignore=unneeded, dirs_exist_ok=True)
    shutil.copytree(build / "lib", package.library.parent)
    return package


def _operators(settings: Settings) -> list[tuple[Op, Kernel]]:
    """Return the operators with Metal kernels."""
    diags = Diagnostics()
    ops, _ = operators.load(settings, diags)
    if not diags.ok:
        raise EmulationError("the operators have errors: see `mlxgen check`")
    found = [(op, kernel) for op in ops if (kernel := op.forward.kernel("metal")) is not None]
    if not found:
        raise EmulationError(f"no operator in {_files(settings)} has a Metal kernel")
    return found


def _files(settings: Settings) -> str:
    """Return the names of the files of operators."""
    return ", ".join(map(settings.relative, settings.files))


def _host_names(op: Op, kernel: Kernel) -> Iterable[str]:
    """Yield the kernels that an operator's launcher may use."""
    if not kernel.scalar and not kernel.templated:
        yield kernel.function
        return
    if kernel.on_demand:
        yield from kernel.variants
        return
    for dtype in kernel.dtypes:
        # The names are those of runtime/src/metal.cpp. The layouts of an internal operator's
        # arrays depend on the formulas that call it.
        yield f"{op.name}_dense_{dtype}"
        if op.entry.internal:
            continue
        if not dtype.endswith("64"):
            yield f"{op.name}_dense_n_{dtype}"
        yield f"{op.name}_dense_large_{dtype}"
        for axes in ("1", "2", "3", "n"):
            yield f"{op.name}_strided_{axes}_{dtype}"
            yield f"{op.name}_strided_{axes}_large_{dtype}"


def _sources(built: Path) -> dict[str, str]:
    """Return the source of every Metal library in the operators' library, by name."""
    found: dict[str, str] = {}

    def take(name: bytes, source: bytes) -> None:
        found[name.decode()] = source.decode()

    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
    ctypes.CDLL(str(built)).mlxgen_metal_sources(callback(take))
    return found


def _compile_kernels(built: Path, folder: Path, jobs: int) -> list[str]:
    """Compile every operator's Metal library, as its launcher would when it first runs.

    The source is stored next to the compiled library, so that device.cpp can compare it with the
    launcher's source. Return the errors of libraries that do not compile.
    """
    prebuilt = folder / "libraries"
    shutil.rmtree(prebuilt, ignore_errors=True)
    prebuilt.mkdir()
    cache = folder / "kernels"
    runtime = library.runtime(cache)

    def compile_library(source: tuple[str, str]) -> Path | str:
        name, text = source
        path = prebuilt / f"{name}.metal"
        path.write_text(text, encoding="utf-8", newline="")
        try:
            made = library.build(translate(path).text, name, cache)
        except (SourceError, EmulationError) as error:
            return str(error)
        (prebuilt / f"{name}.so").symlink_to(made)
        return made

    with ThreadPoolExecutor(jobs) as pool:
        made = [*pool.map(compile_library, _sources(built).items())]
    used = {runtime, *made}
    for path in cache.iterdir():  # kernels of earlier versions
        if path.is_file() and path not in used:
            path.unlink()
    return [error for error in made if isinstance(error, str)]


def run_tests(
    package: EmulatedPackage,
    arguments: Sequence[str],
    *,
    complete: bool = False,
    jobs: int | None = None,
) -> int:
    """Run pytest with emulated Metal kernels, in the project's folder.

    Args:
        package: The result of `build_package`.
        arguments: Arguments for pytest. Without arguments, run the tests that the project's
            settings name, or else the package's generated checks.
        complete: Report an error for each kernel that was not launched.
        jobs: Number of processes of pytest-xdist, 0 for one per core. None: without pytest-xdist.

    Returns:
        pytest's exit status, or 1 if a library does not compile, or if pytest was killed, with an
        explanation on stderr.

    Raises:
        EmulationError: If pytest-xdist is requested but not installed.
    """
    settings = package.settings
    if jobs is not None and not importlib.util.find_spec("xdist"):
        raise EmulationError("--jobs needs pytest-xdist: pip install pytest-xdist")
    given = list(arguments) or [str(path) for path in settings.tests if path.exists()]
    given = given or ["--pyargs", f"{settings.name}.checks"]
    if jobs is not None:
        given += [f"--numprocesses={jobs or 'auto'}", "--dist=worksteal"]
    now = package.folder / "running.txt"
    now.unlink(missing_ok=True)
    expected = package.folder / "kernels.txt"
    lines = [f"{op} {name}" for op, names in package.kernels.items() for name in names]
    expected.write_text("\n".join(lines), encoding="utf-8")
    env = {**package.environment(), "MLXGEN_METAL_RUNNING": str(now)}
    if complete:
        env["MLXGEN_METAL_EXPECTED"] = str(expected)
    command = [sys.executable, "-m", "pytest", "-p", "mlxgen.emulator.plugin", *given]
    status = subprocess.run(command, cwd=settings.root, env=env, check=False).returncode
    if status >= 0:
        return status or bool(package.broken)
    test = now.read_text(encoding="utf-8") if now.exists() else "no test"
    print(f"pytest was killed by {signal.Signals(-status).name} in {test}", file=sys.stderr)
    return 1


def _tool(name: str) -> list[str]:
    beside = Path(sys.executable).with_name(name)
    return [str(beside)] if beside.exists() else [name]


def _run(command: Sequence[str], what: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CXX": " ".join(compiler()[0]), "PATH": path},
        )
    except FileNotFoundError as error:
        raise EmulationError(f"{what} needs {command[0]}: pip install cmake ninja") from error
    if done.returncode != 0:
        raise EmulationError(f"{what} failed:\n{_said(done.stdout + done.stderr)}")


def _said(text: str, most: int = 40) -> str:
    """Return a tool's errors: its output from the first error on, or else the last lines."""
    lines = text.strip().splitlines()
    for i, line in enumerate(lines):
        if "error" in line.lower() or line.startswith("FAILED"):
            return "\n".join(lines[i : i + most])
    return "\n".join(lines[-most:])
