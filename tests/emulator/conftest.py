"""The include folders of kernels, and a cache of compiled kernels for the tests."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from mlxgen.command.operators import load as load_operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.emulator import Library, load_metal
from mlxgen.emulator.spaces import instantiations
from mlxgen.read.preprocess import OWN_INCLUDES
from mlxgen.read.settings import load as load_settings

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "metal"
KEPT = 1000  # maximum number of cached kernels; the tests need fewer than half


def mlx_include() -> Path:
    """Return the folder of MLX's headers, including those of its Metal kernels."""
    found = importlib.util.find_spec("mlx")
    assert found is not None and found.submodule_search_locations is not None
    folders = [Path(folder) / "include" for folder in found.submodule_search_locations]
    return next(folder for folder in folders if folder.is_dir())


@functools.cache
def own_operators():
    """Return this project's operators, and the sources of their kernels."""
    diags = Diagnostics()
    settings = load_settings(ROOT, diags)
    assert settings is not None
    operators = load_operators(settings, diags)
    assert diags.ok
    return operators


def instantiated(path: Path) -> str:
    """Return a file of this project's kernels with the instantiations of their launchers."""
    kernels = filter(None, (op.forward.kernel("metal") for op in own_operators()[0]))
    used = [k for k in kernels if not k.shared and KERNELS / k.include == path]
    assert used, f"no operator has a kernel of {path}"
    return f"{path.read_text()}\n{instantiations(used)}"


@pytest.fixture(scope="session", autouse=True)
def cache():
    """Cache compiled kernels in the build folder, unless MLXGEN_METAL_CACHE is set."""
    folder = ROOT / "build" / "kernels"
    with pytest.MonkeyPatch.context() as patch:
        if "MLXGEN_METAL_CACHE" not in os.environ:
            patch.setenv("MLXGEN_METAL_CACHE", str(folder))
        yield
    with contextlib.suppress(FileNotFoundError):  # another process also removes them
        # All except the runtime, which the others need.
        kernels = sorted(folder.glob("[0-9a-f]*.so"), key=lambda path: -path.stat().st_mtime)
        for path in kernels[KEPT:]:
            path.unlink()


@pytest.fixture(scope="session")
def load(cache):
    """Compile a file of this project's kernels, or Metal source."""

    def load(path: str | Path = "test.metal", text: str | None = None, **options) -> Library:
        if text is None and not Path(path).is_absolute():
            path = KERNELS / path
            text = instantiated(path)
        return load_metal(
            path, [mlx_include(), KERNELS, ROOT / "csrc", Path(OWN_INCLUDES)], text=text, **options
        )

    return load


@pytest.fixture(scope="session")
def mlx_source():
    """Return the text of a `.metal` file of the installed MLX, most of which its wheels lack.

    It comes from $MLX_SOURCE, a folder with MLX's repository at that release, or from GitHub, and
    is then cached for the user.
    """

    def read(name: str) -> str:
        place = f"mlx/backend/metal/kernels/{name}"
        if "MLX_SOURCE" in os.environ:
            return Path(ROOT, os.environ["MLX_SOURCE"], place).read_text()
        version = importlib.metadata.version("mlx")
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        kept = Path(home, "mlxgen", f"mlx-{version}", name)
        if not kept.exists():
            url = f"https://raw.githubusercontent.com/ml-explore/mlx/v{version}/{place}"
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    text = answer.read().decode()
            except OSError as error:
                if "REQUIRE_MLX_SOURCE" in os.environ:  # set in the workflow
                    raise
                pytest.skip(
                    f"{name} is not in MLX's wheels, and GitHub cannot be reached ({error}): set "
                    f"MLX_SOURCE to a copy of MLX's repository, v{version}"
                )
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(text)
        return kept.read_text()

    return read


@pytest.fixture
def rng():
    return np.random.default_rng(0)
