"""Commands that install missing requirements: a C++ compiler, MLX, Python packages.

Messages end with these commands, so they match the current system and can be pasted. This module
uses only the standard library, because the build backend calls it before anything is installed.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from contextlib import suppress

# By ID or ID_LIKE of os-release.
_COMPILERS = {
    "debian": "apt install g++",
    "ubuntu": "apt install g++",
    "fedora": "dnf install gcc-c++",
    "rhel": "dnf install gcc-c++",
    "alpine": "apk add g++",
    "arch": "pacman -S gcc",
    "suse": "zypper install gcc-c++",
    "opensuse": "zypper install gcc-c++",
}


def compiler() -> str:
    """Return advice for installing a C++ compiler: ``run `sudo apt install g++```."""
    if sys.platform == "darwin":
        return "run `xcode-select --install`"
    import platform  # only for this

    about = dict[str, str]()
    with suppress(OSError, ValueError):
        about = platform.freedesktop_os_release()
    systems = [about.get("ID", ""), *about.get("ID_LIKE", "").split()]
    command = next((_COMPILERS[name] for name in systems if name in _COMPILERS), None)
    if command is None:
        return "install g++ 12 or newer, or clang 15 or newer"
    return f"run `{'sudo ' * (os.geteuid() != 0)}{command}`"


def mlx(release: str = "") -> str:
    """Return advice for installing MLX, or a release of it: ``==0.32.4``, ``>=0.31.0``."""
    return f"run {pip(f'mlx{backend()}{release}')}"


def backend() -> str:
    """Return the extra of MLX that has its library: the installed backend's, else the CPU's.

    On Linux the backends are distributions that install the same file, so that another extra would
    replace a user's library for CUDA. On macOS MLX depends on its library.
    """
    if sys.platform == "darwin":
        return ""
    installed = (name for name in ("cuda12", "cuda13") if version(f"mlx-{name[:-2]}-{name[-2:]}"))
    return f"[{next(installed, 'cpu')}]"


def version(distribution: str) -> str | None:
    """Return the installed release of a distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def no_mlx() -> str:
    """Return the message for a missing MLX."""
    return f"MLX is not installed for {sys.executable}: {mlx()}"


def pip(*requirements: str) -> str:
    """Return the command that installs packages for this Python."""
    quoted = " ".join(f"'{requirement}'" for requirement in requirements)
    return f"`{sys.executable} -m pip install {quoted}`"
