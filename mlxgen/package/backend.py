"""The build backend (PEP 517, PEP 660) of packages made with mlxgen.

A package needs a pyproject.toml, its YAML file and its kernels, but no CMake of its own::

    [build-system]
    requires = ["mlxgen"]
    build-backend = "mlxgen.build"

scikit-build-core does the work: it runs the CMakeLists.txt that comes with mlxgen. This module
adds the parts that scikit-build-core cannot know. The build requirements depend on MLX, because an
extension works only with one release of MLX and with the nanobind that matches it. The settings
follow from ``[tool.mlxgen]``. A project's own ``[tool.scikit-build]`` table and the command line
(``--config-settings``) override them.

A build is for one release of MLX. With ``--config-settings releases=all`` it is for all releases
that the package lists as ``mlx`` in ``[tool.mlxgen]`` (see releases.cmake).

The build directory is kept, so that the next build compiles only changed files. It is ``build/`` in
the project and ``build/editable`` for editable installs. They are separate because an editable
install still uses its directory on import, when the tools of an isolated build no longer exist.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
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

# The build tools of a package except MLX and nanobind: the extra "build" in mlxgen/pyproject.toml.
TOOLS = ("scikit-build-core>=0.11", "cmake>=3.26", "ninja>=1.11")

HERE = Path(__file__).resolve().parent

# The config setting that names the operators to build. Without it, all are built.
SELECT = "mlxgen.select"

# The oldest macOS that MLX's wheels support; MLX's headers do not compile for older releases.
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
    """Return a hook of PEP 517 or 660: scikit-build-core's hook with the project's settings."""

    editable = name.endswith("editable")

    def hook(folder: str, config_settings: ConfigSettings | None = None, *more: str | None) -> str:
        backend = _backend()
        config = _config(config_settings, editable)
        if name in ("build_wheel", "build_editable"):
            _choose_compiler(config)
        if editable and _is_isolated(backend):
            # The isolated build's CMake and Ninja no longer exist when the package is imported.
            config["editable.rebuild"] = "false"
        made = str(getattr(backend, name)(folder, config, *more))
        if name == "build_editable":
            _say_why(Path(folder) / made)
        return made

    return hook


get_requires_for_build_editable = get_requires_for_build_wheel
prepare_metadata_for_build_wheel = _hook("prepare_metadata_for_build_wheel")
prepare_metadata_for_build_editable = _hook("prepare_metadata_for_build_editable")
build_wheel = _hook("build_wheel")
build_editable = _hook("build_editable")
build_sdist = _hook("build_sdist")


# Follows scikit-build-core's own code in the module that builds an editable install on import.
# cmake/CMakeLists.txt writes the file.
_WHY = """

def _rebuild_or_say_why(finder, rebuild=ScikitBuildRedirectingFinder.rebuild):
    import subprocess

    try:
        rebuild(finder)
    except subprocess.CalledProcessError:
        try:
            with open(os.path.join(finder.path, "mlxgen_error.txt"), encoding="utf-8") as file:
                why = ":\\n" + file.read().rstrip()
        except FileNotFoundError:
            why = "; the reason is above"
        raise ImportError("the changed sources of NAME cannot be built" + why) from None


ScikitBuildRedirectingFinder.rebuild = _rebuild_or_say_why
"""


def _say_why(wheel: Path) -> None:
    """Make the import of an editable install end with mlxgen's message if it cannot be built.

    Without this, the message is above the output of CMake and Ninja and the traceback of a command.
    """
    added = _WHY.replace("NAME", _settings(Path()).name).encode()
    with zipfile.ZipFile(wheel) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist()]
    record, _ = files.pop()  # lists the others; the format says that it comes last
    listed = io.StringIO()
    rows = csv.writer(listed, lineterminator="\n")
    with zipfile.ZipFile(wheel, "w") as archive:
        for info, data in files:
            if b"\nclass ScikitBuildRedirectingFinder" in data:
                data += added
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            rows.writerow((info.filename, f"sha256={digest}", len(data)))
            archive.writestr(info, data)
        rows.writerow((record.filename, "", ""))
        archive.writestr(record, listed.getvalue())


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
    """Return true if the build tools are in a temporary folder, which pip removes afterwards."""
    return not Path(backend.__file__ or "").resolve().is_relative_to(Path(sys.prefix).resolve())


# The variables that can name a compiler or pass CMake a setting that does.
_TOLD = ("CMAKE_ARGS", "CMAKE_TOOLCHAIN_FILE", "SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE")


def _choose_compiler(config: Mapping[str, object]) -> None:
    """Name the compiler in CXX for scikit-build-core, unless the settings may name one."""
    from . import toolchain

    if any(os.environ.get(name) for name in _TOLD) or any(
        key.startswith(("cmake.args", "cmake.toolchain")) or key.endswith("CMAKE_CXX_COMPILER")
        for key in config
    ):
        return
    try:
        os.environ |= toolchain.compiler_variables()
    except toolchain.NoCompiler as error:
        raise SystemExit(f"mlxgen: {error}") from None


def _config(given: ConfigSettings | None, editable: bool = False) -> dict[str, str | list[str]]:
    """Return scikit-build-core's settings for the project in the working directory."""
    project = _settings(Path())
    options = dict(given or {})
    select = _names(options.pop(SELECT, ()))
    folder = "build/selected" if select else "build"
    if sys.platform == "darwin":
        os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", MACOS)
    every = _wants_every(options) and not editable
    options.pop("releases", None)
    return {
        "cmake.source-dir": str(HERE / "cmake"),
        "cmake.build-type": "Release",
        "cmake.define.MLXGEN_PROJECT": str(project.root),
        # Always given: CMake would keep the last one.
        "cmake.define.MLXGEN_SELECT": ";".join(select),
        "cmake.define.MLXGEN_ALL_RELEASES": "ON" if every else "OFF",
        "build-dir": "build/editable" if editable else folder,
        "wheel.packages": [project.relative(project.python)],
        "wheel.install-dir": project.name,
        "sdist.exclude": ["/build", "/.venv"],
        **options,
    }


def _names(given: str | Iterable[str]) -> list[str]:
    """Return the words of a config setting, which may be given several times."""
    texts = [given] if isinstance(given, str) else given
    return [name for text in texts for name in text.replace(",", " ").split()]


def _generator_requirements() -> list[str]:
    """Return mlxgen's own requirements if mlxgen runs from its sources (``backend-path``)."""
    path = HERE.parent / "pyproject.toml"
    text = path.read_text(encoding="utf-8") if path.is_file() else "project.dependencies = []"
    return list(tomllib.loads(text)["project"]["dependencies"])


def print_requirements() -> None:
    """Print the requirements of the project in the working directory, one per line."""
    print("\n".join(requirements(Path())))
