"""Executes the examples of the tutorials and how-to pages in the order of each page.

Blocks that name a file in their first line are written, and other YAML is appended to mlx_ops.yaml.
The commands of mlxgen run, and the next block of text is their output. Python is executed, with
prompts as doctests.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from builds import run
from mlxops import special

import mlxgen
from mlxgen.diagnostics import Diagnostics, install, sections
from mlxgen.emulator import EmulationError, load_metal
from mlxgen.package import backend, compat
from mlxgen.package.backend import tomllib
from mlxgen.read.settings import KEYS
from mlxgen.read.settings import load as load_settings

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:#|//) ([\w./]+\.\w+)\n")


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Return the language and the code of each block of a page."""
    found = FENCE.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    return [(name, code) for name, code in found if not languages or name in languages]


def unwrapped(text: str) -> str:
    """Return a message in one line, because pages wrap long messages."""
    return " ".join(text.split())


class Checker(doctest.OutputChecker):
    """Compares output except for the last digits of fractions.

    With a GPU, each kernel for Metal has one more check.
    """

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(self.plain(want), self.plain(got), optionflags)

    @staticmethod
    def plain(text: str) -> str:
        if mx.metal.is_available():
            text = re.sub(r"^\d+ checks passed", "N checks passed", text)
        return re.sub(r"(\d\.\d\d\d)\d*", r"\1", text)


class Reader:
    """A reader who does what a page says, in a folder."""

    def __init__(self, page: str, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.names: dict[str, object] = {}
        self.output = ""

    def read(self, *languages: str) -> None:
        """Execute the blocks of these languages, or all."""
        with mx.stream(mx.cpu):
            for language, code in blocks(self.page, *languages):
                getattr(self, language)(code)

    def yaml(self, code: str) -> None:
        name = FILE.match(code)
        path = self.folder / (name[1] if name else "mlx_ops.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if name else "a", encoding="utf-8") as file:
            file.write(code)

    cpp = yaml

    def sh(self, code: str) -> None:
        for line in code.replace("\\\n", "").splitlines():
            command, *arguments = shlex.split(line, comments=True)
            if command == "cd":
                self.folder /= arguments[0]
            elif command == "mlxgen":
                done = run("-m", "mlxgen", *arguments, cwd=self.folder)
                self.output = done.stdout + done.stderr

    def text(self, code: str) -> None:
        if self.output:
            assert unwrapped(self.output) == unwrapped(code)
            self.output = ""

    def python(self, code: str) -> None:
        if ">>>" not in code:
            exec(compile(code, self.page, "exec"), self.names)
            return
        test = doctest.DocTestParser().get_doctest(code, self.names, self.page, None, None)
        said: list[str] = []
        doctest.DocTestRunner(Checker()).run(test, out=said.append, clear_globs=False)
        assert not said, "".join(said)
        self.names = test.globs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.extended
@pytest.mark.parametrize("page", ["first-operator", "cpu-kernel", "reduction", "outputs"])
def test_page(page: str, folder: Path) -> None:
    reader = Reader(page, folder)
    reader.read()
    done = run("-m", "mlxgen", "check", "mlx_ops.yaml", cwd=reader.folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_metal_reduction(axis: int, folder: Path) -> None:
    """The Metal kernel of reduction.md gives the results of NumPy."""
    Reader("reduction", folder).read("cpp")
    x = np.random.default_rng(0).normal(size=(3, 70, 2)).astype(np.float32)
    out = np.empty(np.delete(x.shape, axis), dtype=np.float32)
    length, inner = x.shape[axis], int(np.prod(x.shape[axis % 3 + 1 :]))
    path = Path("kernels/metal/log_mean_exp.metal")
    text = path.read_text(encoding="utf-8") + (
        'template [[host_name("log_mean_exp_float32")]] [[kernel]] '
        "decltype(log_mean_exp<float>) log_mean_exp<float>;"
    )
    library = load_metal(path, [path.parent], text=text)
    library.run(
        "log_mean_exp_float32",
        [x, out, np.int32(length), np.int32(inner)],
        grid=(32, out.size),
        threadgroup=(32,),
        outputs=[1],
    )
    np.testing.assert_allclose(out, np.log(np.exp(x).mean(axis=axis)), rtol=1e-5, atol=1e-6)


def test_converted_kernel(folder: Path) -> None:
    """The entry and the kernel of metal-kernel.md match, and give the results of NumPy."""
    reader = Reader("metal-kernel", folder)
    files = [code for _, code in blocks("metal-kernel", "cpp", "yaml") if FILE.match(code)]
    assert len(files) == 2
    for code in files:
        reader.yaml(code)
    done = run("-m", "mlxgen", "check", "mlx_ops.yaml", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    rng = np.random.default_rng(0)
    x, gate = rng.normal(size=(2, 3, 100)).astype(np.float32)
    weight, out = rng.normal(size=100).astype(np.float32), np.empty_like(x)
    path = Path("kernels/metal/gated_norm.metal")
    text = path.read_text(encoding="utf-8") + (
        'template [[host_name("gated_norm_float32_4")]] [[kernel]] '
        "decltype(gated_norm<float, 4>) gated_norm<float, 4>;"
    )
    load_metal(path, [path.parent], text=text).run(
        "gated_norm_float32_4",
        [x, gate, weight, out, np.float32(1e-5), np.uint32(100)],
        grid=(32, 3),
        threadgroup=(32,),
        outputs=[3],
    )
    scale = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True) + 1e-5)
    expected = x * scale * weight * gate / (1 + np.exp(-gate.astype(np.float64)))
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-6)


def test_single_kernel(folder: Path) -> None:
    """test-metal.md runs a kernel alone."""
    reader = Reader("test-metal", folder)
    (kernel,) = (code for _, code in blocks("test-metal", "cpp"))
    reader.cpp(kernel)
    reader.python(blocks("test-metal", "python")[-1][1])
    # The report on that page: more threads than elements.
    (shown,) = (code for _, code in blocks("test-metal", "text") if "outside" in code)
    library, x = reader.names["library"], reader.names["x"]
    arrays = [x, np.empty(128, np.float32), np.float32(2)]
    with pytest.raises(EmulationError) as error:
        library.run("scale_float32", arrays, grid=(128,), threadgroup=(32,), outputs=[1])
    shown = unwrapped(shown)
    if sys.platform != "linux":  # the line is not known
        shown = re.sub(r" at [\w/]+\.metal:\d+,", "", shown)
    assert str(error.value) == shown


def test_mistake() -> None:
    """first-operator.md shows the message for a misspelled name."""
    code = blocks("first-operator", "python")[0][1]
    (shown,) = (text for _, text in blocks("first-operator", "text") if "MG303" in text)
    with pytest.raises(mlxgen.LoadError) as error:
        exec(code.replace("{x: grad /", "{x: gard /"), {})
    assert unwrapped(str(error.value)) == unwrapped(shown)


@pytest.mark.extended
def test_installation() -> None:
    """install.md shows the version and the output of its script."""
    (script,) = (code for _, code in blocks("install", "python"))
    (version, output) = (text for _, text in blocks("install", "text"))
    script = script.replace("\n\n", "\nmx.set_default_device(mx.cpu)\n", 1)
    assert run("-c", script, cwd=DOCS).stdout == output
    assert version == f"mlxgen, version {mlxgen.__version__}\n"


def test_settings(folder: Path) -> None:
    """settings.md lists all settings with their defaults, and settings of mlxops."""
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [*KEYS]
    (folder / "mlx_ops.yaml").write_text("", encoding="utf-8")
    (folder / "python" / "my_ops").mkdir(parents=True)
    (folder / "python" / "my_ops" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text('[project]\nname = "my-ops"\n[tool.mlxgen]\n')
    diags = Diagnostics()
    found = load_settings(folder, diags)
    assert found is not None, diags.render_text()
    defaults = re.findall(r"^\| `(\w+)` \| `(\W.*?)` \|", text, re.MULTILINE)
    assert [name for name, _ in defaults] == ["yaml", "csrc", "metal", "python", "docs", "tests"]
    for name, default in defaults:
        value, shown = getattr(found, name), tomllib.loads(f"x = {default}")["x"]
        values = [value] if isinstance(value, Path) else value
        paths = [shown] if isinstance(shown, str) else shown
        assert [*map(found.relative, values)] == [p.replace("<name>", found.name) for p in paths]
    assert (found.name, found.namespace, found.uses, found.languages) == (
        "my_ops",
        "my_ops",
        (),
        (),
    )
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    (example,) = (code for _, code in blocks("settings", "toml") if "mlxops" in code)
    shown = tomllib.loads(example)["tool"]["mlxgen"]
    assert shown.items() <= project["tool"]["mlxgen"].items(), "settings.md shows mlxops's settings"
    codes = sorted(code for code in sections() if code.startswith("MG7"))
    assert f"[{codes[0]} to\n{codes[-1]}]" in text


@pytest.mark.extended
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_tutorial(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    device = mx.default_device()
    try:
        Reader("tutorial", folder).read("python")
    finally:
        mx.set_default_device(device)


OTHERS = (
    # Messages of other programs, and those that need a GPU or an unprepared machine.
    "mlxgen: command not found",
    "ImportError: libmlx.so",
    "TypeError: softsign()",
    "UsageError: Cell magic",
    "float64 is not supported on the GPU",
    "[ema] No kernel for float32 on the GPU",
    "[default_stream]",
    "ERROR swiglu",
    "the code for macOS was NOT checked",
)


def raised(error: type[BaseException], function: Callable[..., object], *args: object) -> str:
    """Return the message of the exception that a call raises."""
    with pytest.raises(error) as info:
        function(*args)
    return unwrapped(str(info.value)).replace(sys.executable, "python")


def messages(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Cause the problems of troubleshooting.md and yield their messages."""
    ops = mlxgen.load(
        """
        - signature: "root(array x) -> array"
          dispatch: root
          composite: sqrt(x)
          integers: error
          grad: {x: grad / (2 * result)}
        - signature: "share(array x) -> array"
          composite: x / x.shape[0]
        - signature: "frozen(array x) -> array"
          composite: x + 1
          grad: none
        """,
        cpp="template <typename T> T root(T x) { return mlxgen::math::sqrt(x); }",
    )
    failures = {failure.operator: failure.message for failure in ops.check().failures}
    yield unwrapped(failures["root"])
    x = mx.ones(1)
    yield raised(ValueError, ops.root, mx.array([1]))
    yield raised(ValueError, mx.export_function, str(folder / "root"), ops.root, x)
    yield raised(ValueError, mx.grad(lambda x: ops.frozen(x).sum()), x)
    yield raised(ValueError, mx.grad(mx.grad(lambda a: special.gammainc(a, 1.0))), mx.array(2.0))
    yield raised(ValueError, mx.compile(ops.share, shapeless=True), x)
    yield raised(ValueError, mx.grad(lambda x: mx.linalg.cholesky(x).sum()), mx.eye(2))

    package = folder / "myops"
    package.mkdir()
    shutil.copy(Path(backend.__file__).parent / "cmake" / "package" / "_load.py", package)
    info = 'VERSION = "0.1.0"\nMLX_VERSION = "0.31.2"\nUSES = {}\n'
    (package / "_build_info.py").write_text(info)
    (package / "__init__.py").write_text("from ._load import *\n")
    patch.syspath_prepend(folder)
    yield raised(ImportError, importlib.import_module, "myops")
    patch.setattr(compat, "_source_internals", lambda path: 21)
    yield raised(compat.CompatError, compat.find)

    for variable in ("CXX", "CMAKE_ARGS", "CMAKE_TOOLCHAIN_FILE"):
        patch.delenv(variable, raising=False)
    patch.setenv("PATH", str(folder))
    patch.setattr(install, "compiler", lambda: "run `sudo apt install g++`")
    yield raised(SystemExit, backend._choose_compiler, {})


@pytest.mark.extended
def test_troubleshooting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """troubleshooting.md shows the messages of mlxgen."""
    with mx.stream(mx.cpu):
        caused = set(messages(folder, monkeypatch))
    shown = {unwrapped(code) for _, code in blocks("troubleshooting", "text")}
    assert {text for text in shown if not text.startswith(OTHERS)} == caused
