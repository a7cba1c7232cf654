"""Loads a package's compiled operators; mlxgen installs this file into every package it builds.

The package's ``__init__`` imports all public names from here; internal names begin with an
underscore::

    from mypackage._load import *
    from mypackage._load import __version__ as __version__

The extension is linked with one release of MLX, whose C++ interface changes even between patch
releases. The versions are therefore compared before the extension is loaded. A wrong version
would otherwise cause an undefined symbol, or worse. The extension for another release is in
``releases/<release>``, or `mlxgen rebuild` has compiled it into mlxgen's cache.
"""

import functools as _functools
import importlib as _importlib
import sys as _sys
from collections.abc import Callable as _Callable
from importlib.machinery import PathFinder as _PathFinder
from importlib.util import module_from_spec as _module_from_spec
from pathlib import Path as _Path
from types import ModuleType as _ModuleType
from typing import Any as _Any

from . import _build_info

try:
    import mlx.core as _mx
except ImportError as _error:
    if _sys.platform != "linux" or "libmlx" not in str(_error):
        raise
    raise ImportError(
        f"MLX is installed without a backend: run `{_sys.executable} -m pip install 'mlx[cpu]'`, "
        "or with an NVIDIA GPU the same command for 'mlx[cuda12]' or 'mlx[cuda13]'"
    ) from _error


def _load_for(release: str) -> None:
    """Load the extension for another release of MLX than that of ``_build_info``.

    Raises:
        ImportError: If there is none; the message says how to build it.
    """
    here = _Path(__file__).parent
    folder = here / "releases" / release
    if not folder.is_dir():
        folder = _rebuilt(here, release)
    name = f"{__package__}._ext"
    spec = _PathFinder.find_spec(name, [str(folder)])
    assert spec is not None and spec.loader is not None
    module = _sys.modules[name] = _module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(_sys.modules[str(__package__)])["_ext"] = module


def _rebuilt(here: _Path, release: str) -> _Path:
    """Return the folder into which `mlxgen rebuild` has compiled the extension."""
    command = f"`{_sys.executable} -m mlxgen rebuild {__package__}`"
    try:
        from mlxgen.package.rebuild import find
    except ImportError:
        # No package index has mlxgen.
        install = f"`{_sys.executable} -m pip install './mlxgen[build]'`"
        command = f"{install} in a clone of mlxgen, then {command}"
    else:
        if found := find(here, release):
            return found
    known = sorted({_build_info.MLX_VERSION, *(path.name for path in here.glob("releases/*"))})
    raise ImportError(
        f"{__package__} {_build_info.VERSION} was built for MLX {', '.join(known)}, but "
        f"MLX {release} is installed: run {command}"
    )


# The operators call those of other packages, whose libraries must be loaded before. These packages
# check that they are built for the installed MLX.
for _name, _version in _build_info.USES.items():
    try:
        _importlib.import_module(_name)
    except ModuleNotFoundError as _error:
        if _error.name != _name:
            raise
        raise ImportError(
            f"{__package__} needs the package {_name}, which is not installed: install it, for "
            f"example version {_version}"
        ) from _error

if _mx.__version__ != _build_info.MLX_VERSION:
    _load_for(_mx.__version__)

try:
    from . import _ext
except ImportError as _error:
    _others = [
        f"{_name} {_version}, but {_installed} is installed"
        for _name, _version in _build_info.USES.items()
        if (_installed := getattr(_sys.modules[_name], "__version__", None)) != _version
    ]
    if not _others:
        raise
    raise ImportError(
        f"{__package__} {_build_info.VERSION} was built with {' and '.join(_others)}: install that "
        f"version, or build {__package__} again"
    ) from _error
from ._ext import *

__version__ = _build_info.VERSION
# With operators whose names begin with an underscore. mypy reads only lists of strings, so that the
# list is not written as `__all__`, without which it finds the other names.
_names = ["install_methods", *_ext.__all__]
globals()["__all__"] = _names


def install_methods() -> list[str]:
    """Make each operator with ``variants: [function, method]`` a method of ``mx.array``.

    Returns:
        list[str]: The names of the methods. Repeated calls change nothing.

    Raises:
        AttributeError: If ``mx.array`` already has such a method, from MLX or another package.
    """
    methods = dict(_ext._methods())
    for name in methods:
        present = getattr(_mx.array, name, None)
        if present is not None and getattr(present, "__module__", None) != __package__:
            raise AttributeError(
                f"mx.array already has a method '{name}'; {__package__} does not replace it"
            )
    for name, path in methods.items():
        function = _functools.reduce(getattr, path.split("."), _ext)
        setattr(_mx.array, name, _as_method(name, function))
    return sorted(methods)


def _as_method(name: str, function: _Callable[..., _Any]) -> _Callable[..., _Any]:
    # Unlike Python functions, functions of an extension do not bind to an instance.
    def method(self: _mx.array, *args: _Any, **kwargs: _Any) -> _Any:
        return function(self, *args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"array.{name}"
    method.__module__ = str(__package__)
    method.__doc__ = function.__doc__
    return method


# Submodules of the extension, which are generated too, appear as the package's own.
for _name, _value in list(vars(_ext).items()):
    if isinstance(_value, _ModuleType) and not _name.startswith("_"):
        globals()[_name] = _importlib.import_module(f"{__package__}.{_name}")
        _names += [_name]

_sys.modules[str(__package__)].__dict__.setdefault("__all__", _names)
