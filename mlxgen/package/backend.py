"""The build backend (PEP 517, PEP 660) of packages made with mlxgen.

A package needs a pyproject.toml, its YAML file and its kernels; no CMake of its own::

    [build-system]
    requires = ["mlxgen"]
    build-backend = "mlxgen.build"

The work is scikit-build-core's, which runs the CMakeLists.txt that comes with mlxgen. This module
adds what it cannot know: the build requirements that depend on MLX (an extension works only with
the nanobind that fits the installed MLX, and only with that release of MLX), and the settings,
which follow from ``[tool.mlxgen]``. What a project says in its own ``[tool.scikit-build]`` table or
on the command line (``--config-settings``) still counts.

The build directory is kept: ``build/`` in the project, ``build/editable`` for editable installs, so
that building again compiles only what changed. The two are apart because an editable install goes
on using its own when it is imported, when the tools of an isolated build are gone.

A build is for one release of MLX. With ``--config-settings releases=all`` it is for all that the
package lists as ``mlx`` in ``[tool.mlxgen]``, as its wheels for others are (see releases.cmake).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..diagnostics import Diagnostics, install
from ..read import settings
from . import compat

if TYPE_CHECKING:
    from types import ModuleType

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ConfigSettings = Mapping[str, "str | list[str]"]

# What builds a package, beside MLX and nanobind; the extra "build" in mlxgen/pyproject.toml.
TOOLS = ("scikit-build-core>=0.11", "cmake>=3.26", "ninja>=1.11")

HERE = Path(__file__).resolve().parent

# The oldest macOS that MLX's wheels run on; its headers do not compile for older ones.
MACOS = "14.0"


def requirements(root: Path, every: bool = False) -> list[str]:
    """Return everything that has to be installed to build the project in the folder ``root``.

    MLX is the newest release that the project lists or pins; without these the one that is
    installed.

    Args:
        every: Whether all releases are built, of which pip downloads the others.
    """
    project = _settings(root)
    mlx = project.releases[0] if project.releases else compat.version("mlx")
    if mlx is None:
        raise SystemExit(
            f"mlxgen: which MLX should {project.name} be built for? Its pyproject.toml pins none: "
            f'write dependencies = ["mlx==X.Y.Z"] in [project]'
        )
    return [
        *_generator_requirements(),
        *TOOLS,
        *(["pip"] if every else []),
        compat.nanobind_requirement(mlx),
        f"mlx{install.backend()}=={mlx}",
    ]


def get_requires_for_build_wheel(config_settings: ConfigSettings | None = None) -> list[str]:
    """PEP 517."""
    return requirements(Path(), _wants_every(config_settings))


def get_requires_for_build_sdist(config_settings: ConfigSettings | None = None) -> list[str]:
    """PEP 517. Nothing is compiled for a source distribution."""
    return [TOOLS[0]]


def _hook(name: str) -> Callable[..., str]:
    """A hook of PEP 517 or 660: scikit-build-core's, with the project's settings."""

    editable = name.endswith("editable")

    def hook(folder: str, config_settings: ConfigSettings | None = None, *more: str | None) -> str:
        backend = _backend()
        config = _config(config_settings, editable)
        if name in ("build_wheel", "build_editable"):
            _require_compiler(config)
        if editable and _is_isolated(backend):
            # Its CMake and Ninja are gone when the package is imported.
            config["editable.rebuild"] = "false"
        return str(getattr(backend, name)(folder, config, *more))

    return hook


get_requires_for_build_editable = get_requires_for_build_wheel
prepare_metadata_for_build_wheel = _hook("prepare_metadata_for_build_wheel")
prepare_metadata_for_build_editable = _hook("prepare_metadata_for_build_editable")
build_wheel = _hook("build_wheel")
build_editable = _hook("build_editable")
build_sdist = _hook("build_sdist")


def _settings(root: Path) -> settings.Settings:
    diagnostics = Diagnostics()
    project = settings.load(root, diagnostics)
    if project is None:
        diagnostics.print(sys.stderr)
        raise SystemExit(1)
    return project


def _wants_every(given: ConfigSettings | None) -> bool:
    """Check the setting ``releases``, which pip and build pass on."""
    value = (given or {}).get("releases", "")
    if value not in ("", "all"):
        raise SystemExit(f"mlxgen: the config setting `releases` must be `all`, not {value!r}")
    return value == "all"


def _backend() -> ModuleType:
    try:
        import scikit_build_core.build
    except ModuleNotFoundError:  # only possible without build isolation
        tools = install.pip(*requirements(Path()))
        raise SystemExit(f"mlxgen: the build tools are missing: run {tools}") from None
    return scikit_build_core.build


def _is_isolated(backend: ModuleType) -> bool:
    """Whether the build tools are in a folder of their own, which pip removes after the build."""
    return not Path(backend.__file__ or "").resolve().is_relative_to(Path(sys.prefix).resolve())


# What CMake looks for, and where it may be told of a compiler.
_COMPILERS = ("c++", "g++", "clang++", "CC", "icpx")
_TOLD = ("CXX", "CMAKE_ARGS", "CMAKE_TOOLCHAIN_FILE", "SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE")


def _require_compiler(config: Mapping[str, object]) -> None:
    """Say in one sentence that there is no C++ compiler: CMake takes many for it."""
    told = any(os.environ.get(name) for name in _TOLD) or any(
        key.startswith(("cmake.args", "cmake.toolchain")) or key.endswith("CMAKE_CXX_COMPILER")
        for key in config
    )
    if told or any(map(shutil.which, _COMPILERS)):
        return
    raise SystemExit(f"mlxgen: there is no C++ compiler: {install.compiler()}")


def _config(given: ConfigSettings | None, editable: bool = False) -> dict[str, str | list[str]]:
    """scikit-build-core's settings for the project in the working directory."""
    project = _settings(Path())
    if sys.platform == "darwin":
        os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", MACOS)
    every = _wants_every(given) and not editable
    more = {key: value for key, value in (given or {}).items() if key != "releases"}
    return {
        "cmake.source-dir": str(HERE / "cmake"),
        "cmake.build-type": "Release",
        "cmake.define.MLXGEN_PROJECT": str(project.root),
        "cmake.define.MLXGEN_ALL_RELEASES": "ON" if every else "OFF",
        "build-dir": "build/editable" if editable else "build",
        "wheel.packages": [project.relative(project.python)],
        "wheel.install-dir": project.name,
        "sdist.exclude": ["/build", "/.venv"],
        **more,
    }


def _generator_requirements() -> list[str]:
    """What mlxgen itself needs, if it is used where its sources lie (``backend-path``)."""
    path = HERE.parent / "pyproject.toml"
    text = path.read_text(encoding="utf-8") if path.is_file() else "project.dependencies = []"
    return list(tomllib.loads(text)["project"]["dependencies"])


def print_requirements() -> None:
    """The requirements of the project in the working directory, one a line."""
    print("\n".join(requirements(Path())))
