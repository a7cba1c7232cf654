"""One wheel for several releases of MLX, and `mlxgen rebuild` for another.

MLX's releases are folders in mlxgen's cache, which pip downloads once. A package is imported next
to one of them if that folder comes first in Python's path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import builds
import mlx.core as mx
import pytest
from builds import output

from mlxgen.diagnostics import install
from mlxgen.package import backend, cache, compat, toolchain
from mlxgen.plugins.rebuild import command as rebuild

pytestmark = pytest.mark.extended

OTHERS = [release for release in reversed(compat.MLX) if release != mx.__version__]
LISTED = [mx.__version__, *OTHERS[:2]]
FOURTH = OTHERS[2]

FILES = {
    "pyproject.toml": f"""
        [build-system]
        requires = ["mlxgen"]
        build-backend = "mlxgen.build"

        [project]
        name = "tiny-ops"
        version = "1.2.3"
        dependencies = ["mlx>=0.31"]

        [tool.mlxgen]
        mlx = {LISTED}
        yaml = ["ops/tiny.yaml", "more/*.yaml"]
        csrc = "ops"
        """,
    "ops/tiny.yaml": """
        - name: scaled
          signature: "scaled(array x, float by=2) -> array"
          dispatch: {cpu: scaled}
          grad: {x: by * grad}
        """,
    "more/twice é.yaml": """
        - name: twice
          signature: "twice(array x) -> array"
          composite: scaled(x)
        """,
    "ops/scaled.h": """
        #pragma once
        namespace tiny_ops::cpu {
        template <typename T>
        T scaled(T x, T by) {
          return by * x;
        }
        } // namespace tiny_ops::cpu
        """,
    "python/tiny_ops/__init__.py": """
        from tiny_ops._load import *
        from tiny_ops._load import __version__ as __version__
        """,
}

USE = """
import mlx.core as mx
import tiny_ops
x = mx.array([1.0, 2.0])
print(mx.__version__, tiny_ops.twice(x).tolist(), end=" ")
print(mx.grad(lambda x: tiny_ops.scaled(x, 3.0).sum())(x).tolist(), tiny_ops._ext.__file__)
"""


def mlx(release: str) -> Path:
    """Return the folder with a release of MLX."""
    if release == mx.__version__:
        return Path(mx.__file__).parents[1]
    try:
        return toolchain.fetch("mlx", release, Path()).parent
    except compat.CompatError as error:
        pytest.skip(f"pip cannot download MLX {release}: {error}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel for three releases."""
    root = tmp_path_factory.mktemp("project")
    for release in LISTED:
        mlx(release)
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    script = "from mlxgen import build; build.build_wheel('dist', {'releases': 'all'})"
    output(builds.run("-c", script, cwd=root))
    (wheel,) = (root / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package, and no MLX."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache without packages; it shares with the usual one what all packages share."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for kind in ("headers", "nanobind", "runtime", "sources", "toolchain"):
        (cache.folder() / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind).symlink_to(cache.folder() / kind)
    monkeypatch.setenv("MLXGEN_CACHE", str(folder))
    return folder


def run(*command: str, site: Path, release: str) -> subprocess.CompletedProcess[str]:
    """Run Python next to a release of MLX."""
    environment = builds.environment(site)
    path = os.pathsep.join([str(mlx(release)), environment["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, *command],
        cwd=site,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {re.sub(r"_ext\..*\.so|\.(so|dylib)$", "*", name) for name in archive.namelist()}
        info = archive.read("tiny_ops/_build_info.py").decode()
    assert f'MLX_VERSION = "{mx.__version__}"' in info
    for release in OTHERS[:2]:
        here = f"tiny_ops/releases/{release}"
        there = {f"{here}/*", f"{here}/lib/libtiny_ops*"}
        assert {name for name in names if name.startswith(here)} == there
    sources = {name.partition("sources/")[2] for name in names if "/sources/" in name}
    assert sources == {
        "csrc/scaled.h",
        "more/twice é.yaml",
        "ops/tiny.yaml",
        "pyproject.toml",
        "python/tiny_ops/__init__.py",
    }


@pytest.mark.parametrize("release", LISTED)
def test_import_next_to_each_release(release: str, site: Path) -> None:
    folder = site / "tiny_ops"
    if release != mx.__version__:
        folder = folder / "releases" / release
    *values, file = output(run("-c", USE, site=site, release=release)).rsplit(" ", 1)
    assert values == [f"{release} [2.0, 4.0] [3.0, 3.0]"]
    assert Path(file.strip()).parent == folder


def test_rebuild(site: Path, own_cache: Path) -> None:
    """Follow the message of an import next to a release for which there is no build."""

    def imported(before: str = "") -> subprocess.CompletedProcess[str]:
        return run("-c", before + USE, site=site, release=FOURTH)

    listed = ", ".join(sorted(LISTED))
    said = (
        f"ImportError: tiny_ops 1.2.3 was built for MLX {listed}, but MLX {FOURTH} is installed: "
    )
    advice = f"run `{sys.executable} -m mlxgen rebuild tiny_ops`"
    assert imported().stderr.splitlines()[-1] == said + advice
    without = "import sys; sys.modules['mlxgen'] = None\n"
    assert imported(without).stderr.splitlines()[-1] == said + advice.replace(
        "`", f"`{sys.executable} -m pip install './mlxgen[build]'` in a clone of mlxgen, then `", 1
    )

    command = advice.partition("`")[2].rstrip("`").split()[1:]
    built = f"tiny_ops is built for MLX {FOURTH}\n"
    assert output(run(*command, site=site, release=FOURTH)).endswith(built)
    values, _, file = output(imported()).rpartition(" ")
    assert values == f"{FOURTH} [2.0, 4.0] [3.0, 3.0]"
    assert Path(file.strip()).is_relative_to(own_cache / "packages")
    again = run(*command, site=site, release=FOURTH)
    assert (again.stdout, again.stderr) == (built, "")  # nothing is compiled
    assert "tiny_ops for MLX" in output(run("-m", "mlxgen", "cache", site=site, release=FOURTH))

    done = run(*command, site=site, release=mx.__version__)
    assert output(done) == f"tiny_ops has a build for MLX {mx.__version__} already\n"
    source = site / "tiny_ops" / "sources" / "csrc" / "scaled.h"
    text = source.read_text(encoding="utf-8")
    try:
        source.write_text(text.replace("return by", "return bye"), encoding="utf-8")
        assert said in imported().stderr  # another version of the package
        done = run(*command, site=site, release=FOURTH)
        assert done.returncode == 1 and "error: " in done.stderr and "bye" in done.stderr
        assert "the package was not built, for the reason above" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        source.write_text(text, encoding="utf-8")


def test_packages_that_cannot_be_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("closed_ops", "foreign_ops"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError")
    (tmp_path / "closed_ops" / "_build_info.py").write_text('MLX_VERSION = "0.1.0"\n')
    for name, message in (
        ("closed_ops", "closed_ops in .* has no sources"),
        ("foreign_ops", "foreign_ops in .* was not built by mlxgen"),
        ("no_such_ops", "no_such_ops is not installed for "),
        ("no.such-ops", "no.such-ops is not installed for "),
    ):
        with pytest.raises(rebuild.RebuildError, match=message):
            rebuild.rebuild(name)


@pytest.mark.skipif(sys.platform != "linux", reason="on macOS MLX depends on its library")
def test_mlx_without_a_backend(site: Path, tmp_path: Path) -> None:
    """As `pip install mlx` leaves it on Linux."""
    (tmp_path / "mlx").mkdir()
    shutil.copy(compat.core_module(), tmp_path / "mlx")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(site)])}
    command = [sys.executable, "-c", "import tiny_ops"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: MLX is installed without a backend: run `{sys.executable} -m pip install "
        "'mlx[cpu]'`, or with an NVIDIA GPU the same command for 'mlx[cuda12]' or 'mlx[cuda13]'"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="on macOS MLX has no extras")
@pytest.mark.parametrize(
    ("distributions", "extra"),
    [([], "cpu"), (["mlx-cpu"], "cpu"), (["mlx-cuda-12"], "cuda12"), (["mlx-cuda-13"], "cuda13")],
)
def test_advice_keeps_the_backend(
    distributions: list[str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in distributions:
            raise install.importlib.metadata.PackageNotFoundError
        return "0.32.4"

    monkeypatch.setattr(install.importlib.metadata, "version", version)
    assert f"'mlx[{extra}]>=0.31.0'`" in install.mlx(">=0.31.0")


def test_config_setting(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(wheel.parents[1])
    plain = backend.get_requires_for_build_wheel()
    every = backend.get_requires_for_build_wheel({"releases": "all"})
    assert set(every) - set(plain) == {"pip"}
    assert f"mlx{install.backend()}=={max(LISTED)}" in plain
    with pytest.raises(SystemExit, match="`releases` must be `all`, not 'some'"):
        backend.get_requires_for_build_wheel({"releases": "some"})
