"""Commands that install missing requirements: a C++ compiler, MLX, Python packages.

Messages end with these commands, so they match the current system and can be pasted. This module
uses only the standard library, because the build backend calls it before anything is installed.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_OS_RELEASE = Path("/etc/os-release")

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
    about = _os_release()
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
    installed = (name for name in ("cuda12", "cuda13") if _is_installed(name))
    return f"[{next(installed, 'cpu')}]"


def _is_installed(extra: str) -> bool:
    try:
        importlib.metadata.version(f"mlx-{extra[:-2]}-{extra[-2:]}")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def no_mlx() -> str:
    """Return the message for a missing MLX."""
    return f"MLX is not installed for {sys.executable}: {mlx()}"


def pip(*requirements: str) -> str:
    """Return the command that installs packages for this Python."""
    quoted = " ".join(f"'{requirement}'" for requirement in requirements)
    return f"`{sys.executable} -m pip install {quoted}`"


def _os_release() -> Mapping[str, str]:
    lines: list[str] = []
    with suppress(OSError):
        lines = _OS_RELEASE.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}
