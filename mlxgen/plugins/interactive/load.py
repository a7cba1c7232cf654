"""`mlxgen.load`: operators in a script or notebook, without a project.

    ops = mlxgen.load('''
    - name: softsign
      signature: "softsign(array x) -> array"
      dispatch: softsign
      grad: {x: grad / square(1 + abs(x))}
    ''', cpp="template <typename T> T softsign(T x) { return x / (1 + mlxgen::math::fabs(x)); }")

A module that was built before is loaded from the cache, by a hash of the content, without the
generator and the compiler. This module therefore imports neither; module.py builds new modules.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ...command.inputs import base_hash, digest
from ...diagnostics import install
from ...package.cache import Cache, folder
from .request import KIND, Excerpt, LoadError, Request, Say, machine

if TYPE_CHECKING:
    from ...testing.report import Report


def load(source: str | os.PathLike[str], *, cpp: str = "", metal: str = "") -> ModuleType:
    """Return a module with the operators of some YAML entries: build it, or load it from the cache.

    Args:
        source: YAML entries, or the path of a `.yaml` file of entries. A file is used with the
            folders `csrc/` and `kernels/metal/` next to it, or those that its project names. A file
            of a project stands for all files of the project.
        cpp: C++ functions that the entries name. `mlxgen/scalar.h` is included.
        metal: Metal functions or kernels that the entries name.

    Returns:
        A module with the operators. The same content returns the same module. Other content leaves
        the modules that were loaded before unchanged.

    Raises:
        LoadError: If the entries or the functions have an error, or a tool is missing.
        OSError: If the file cannot be read.
        TypeError: If an argument is not a string.
        ValueError: If functions are given for a file, or a string is not valid Unicode.
    """
    _check_text("cpp", cpp)
    _check_text("metal", metal)
    if not isinstance(source, os.PathLike):
        _check_text("source", source, "YAML entries or a path")
    text = os.fsdecode(source)
    if isinstance(source, os.PathLike) or re.fullmatch(r"[^\n]+\.ya?ml", text):
        if cpp or metal:
            raise ValueError("cpp and metal can be used with YAML entries, but not with a file")
        return obtain(Request(Path(text).absolute(), {}), progress)
    texts = {"yaml": Excerpt(text, "<yaml>")}
    texts |= {"cpp": Excerpt(cpp, "<cpp>")} if cpp else {}
    texts |= {"metal": Excerpt(metal, "<metal>")} if metal else {}
    return obtain(Request(None, texts), progress)


def _check_text(name: str, value: object, what: str = "the source code of functions") -> None:
    """Raise ``TypeError`` for a non-string, ``ValueError`` for a string that is not Unicode."""
    if not isinstance(value, str):
        decode = f": write {name}.decode()" if isinstance(value, bytes | bytearray) else ""
        given = type(value).__name__
        raise TypeError(f"mlxgen.load: {name} must be a str, {what}, not {given}{decode}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        line = value.count("\n", 0, error.start) + 1
        raise ValueError(
            f"mlxgen.load: {name} has a character in line {line} that is not valid Unicode: "
            f"{value[error.start]!a}"
        ) from None


def progress(text: str, once: bool = False) -> None:
    """Show a slow step in one line of the terminal; elsewhere, print the steps of a first run."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text and f'mlxgen: {text}'}", end="", file=sys.stderr, flush=True)
    elif once:
        print(f"mlxgen: {text}", file=sys.stderr, flush=True)


def obtain(request: Request, say: Say) -> ModuleType:
    """Return the module. ``say`` is called before slow steps, and with "" at the end."""
    key = _key(request)
    name = f"ops_{key[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    place = Cache(folder()).find(KIND, key)
    if place is None:
        from . import module

        try:
            place = module.build(request, key, name, say)
        finally:
            say("")
    if (warned := place / "warnings.txt").exists():
        print(warned.read_text(encoding="utf-8"), end="", file=sys.stderr)
    try:
        return imported(name, place / name)
    except ImportError as error:
        raise LoadError(f"the operators cannot be imported: {error}") from error


def _key(request: Request) -> str:
    """Hash all inputs of a module except the compiler, which may have changed since."""
    texts = {kind: source.content for kind, source in request.texts.items()}
    around = _around(request.file) if request.file is not None else ()
    return digest(*machine(), texts, *around)


def _around(file: Path) -> Sequence[object]:
    """Return all files of operators of the project of a file, and their inputs."""
    from ...command.operators import settings_of
    from ...diagnostics import Diagnostics

    file.read_bytes()  # raises OSError if it cannot be read
    diags = Diagnostics()
    settings = settings_of(None, file, diags)
    if settings is None:
        raise LoadError(diags.render_text(), diags.render_text(color=True))
    texts = [(str(path), path.read_bytes()) for path in settings.files]
    return [texts, base_hash(settings)]


def imported(name: str, package: Path) -> ModuleType:
    """Import the package in a folder that is not in sys.path."""
    spec = importlib.util.spec_from_file_location(
        name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for other in [other for other in sys.modules if f"{other}.".startswith(f"{name}.")]:
            del sys.modules[other]
        raise
    # Set on the module, not in the cached package: an operator named `check` takes precedence.
    vars(module).setdefault("check", check_of(module))
    return module


def check_of(module: ModuleType) -> Callable[[], Report]:
    """Return the function that runs a module's generated checks."""

    def check() -> Report:
        """Run the generated checks of these operators: `mlxgen.testing.check` for this module.

        Returns:
            A report: true if no check failed, and a table of the failed checks.

        Raises:
            LoadError: NumPy or pytest is not installed.
        """
        try:
            from ...testing import check as run

            return run(module)
        except ModuleNotFoundError as error:
            if error.name not in ("numpy", "pytest"):
                raise
            missing = install.pip("numpy", "pytest")
            raise LoadError(f"the generated checks need NumPy and pytest: run {missing}") from None

    return check
