"""`mlxgen.load`: operators in a script or notebook, without a project around them.

    ops = mlxgen.load('''
    - name: softsign
      signature: "softsign(array x) -> array"
      dispatch: softsign
      grad: {x: grad / square(1 + abs(x))}
    ''', cpp="template <typename T> T softsign(T x) { return x / (1 + mlxgen::math::fabs(x)); }")

What was built once is found again by its content, without the generator and the compiler: this
module imports neither. module.py builds what is new.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..command.inputs import base_hash, digest, mlxgen_hash
from ..diagnostics import install
from . import compat
from .cache import Cache, folder
from .request import KIND, Excerpt, LoadError, Request, Say
from .toolchain import ENVIRONMENT, FROM_ENVIRONMENT

if TYPE_CHECKING:
    from ..testing.report import Report


def load(source: str | os.PathLike[str], *, cpp: str = "", metal: str = "") -> ModuleType:
    """Operators from YAML: built if they are new, and found again afterwards.

    Args:
        source: Entries of YAML, or the path of a file of them (`.yaml`), with what belongs to it:
            `csrc/` and `kernels/metal/` beside it, or what its project says.
        cpp: Functions of C++ that the entries name. `mlxgen/scalar.h` is included.
        metal: Functions or kernels of Metal that they name.

    Returns:
        A module with the operators. The same content gives the same module; another one leaves
        those that were loaded before as they are.

    Raises:
        LoadError: What is wrong with the entries or the functions, where; or what is missing here.
        OSError: If the file cannot be read.
        TypeError: If an argument is no text.
        ValueError: If functions are given for a file, or a text is not valid Unicode.
    """
    _check_text("cpp", cpp)
    _check_text("metal", metal)
    if not isinstance(source, os.PathLike):
        _check_text("source", source, "the YAML of entries, or a path")
    text = os.fsdecode(source)
    if isinstance(source, os.PathLike) or re.fullmatch(r"[^\n]+\.ya?ml", text):
        if cpp or metal:
            raise ValueError("cpp and metal go with a text, not with a file")
        return obtain(Request(Path(text).absolute(), {}), progress)
    texts = {"yaml": Excerpt(text, "<yaml>")}
    texts |= {"cpp": Excerpt(cpp, "<cpp>")} if cpp else {}
    texts |= {"metal": Excerpt(metal, "<metal>")} if metal else {}
    return obtain(Request(None, texts), progress)


def _check_text(name: str, value: object, what: str = "the text of functions") -> None:
    """Raise ``TypeError`` for what is no text, and ``ValueError`` for one that no file can hold."""
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
    """Show a step in one line of the terminal; elsewhere print only the steps of a first run."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text and f'mlxgen: {text}'}", end="", file=sys.stderr, flush=True)
    elif once:
        print(f"mlxgen: {text}", file=sys.stderr, flush=True)


def obtain(request: Request, say: Say) -> ModuleType:
    """The module; ``say`` is told what takes a while, and "" at the end."""
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
    """Of everything that a module depends on but the compiler, which may be another one since."""
    core = compat.core_module()
    if core is None:
        raise LoadError(install.no_mlx())
    stat = core.stat()
    texts = {kind: source.content for kind, source in request.texts.items()}
    return digest(
        *(mlxgen_hash(), texts, sysconfig.get_config_var("EXT_SUFFIX")),
        *(str(core), stat.st_size, stat.st_mtime_ns, compat.version("mlx")),
        *(os.environ.get(name) for name in (*ENVIRONMENT, *FROM_ENVIRONMENT)),
        *(_around(request.file) if request.file is not None else ()),
    )


def _around(file: Path) -> Sequence[object]:
    """A file of entries, and what belongs to it."""
    from ..command.operators import settings_of
    from ..diagnostics import Diagnostics

    yaml = file.read_bytes()
    diags = Diagnostics()
    settings = settings_of(None, file, diags)
    if settings is None:
        raise LoadError(diags.render_text(), diags.render_text(color=True))
    return [yaml, base_hash(settings)]


def imported(name: str, package: Path) -> ModuleType:
    """Import the package in a folder, which is not in sys.path."""
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
    # Of the module, not of the package in the cache: an operator called `check` is the operator.
    vars(module).setdefault("check", _check_of(module))
    return module


def _check_of(module: ModuleType) -> Callable[[], Report]:
    def check() -> Report:
        """Run the generated checks of these operators: `mlxgen.testing.check` of this module.

        Returns:
            A report: true if no check failed, and a table of those that did.
        """
        from ..testing import check as run

        return run(module)

    return check
