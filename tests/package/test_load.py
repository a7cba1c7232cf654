"""`mlxgen.load`: built once for the same content, then cached, and never incomplete.

Every build takes some seconds, so that several tests share a build.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import builds
import mlx.core as mx
import numpy as np
import pytest
from builds import output, run
from pages import PAGES

import mlxgen
from mlxgen.diagnostics import install
from mlxgen.emulator.translate import translate
from mlxgen.package import cache, toolchain
from mlxgen.plugins.interactive import load, module, notebook
from mlxgen.testing import check

YAML = """
- name: softsign
  signature: "softsign(array x) -> array"
  doc: From -1 to 1.
  dispatch: {cpu: softsign, metal: softsign_metal}
  composite: x / (1 + abs(x))
  grad: {x: grad / square(1 + abs(x))}
- name: twice
  signature: "twice(array x) -> array"
  module: extra
  composite: 2 * x
"""
CPP = """template <typename T>
T softsign(T x) {
  return x / (1 + mlxgen::math::fabs(x));
}
"""
METAL = """template <typename T>
T softsign_metal(T x) {
  return x / (1 + metal::fabs(x));
}
"""
WRONG = YAML.replace("grad / square", "2 * grad / square")

LOAD = f"import mlxgen; ops = mlxgen.load({YAML!r}, cpp={CPP!r}, metal={METAL!r})"


def test_operators() -> None:
    ops = mlxgen.load(YAML, cpp=CPP, metal=METAL)
    x = mx.array([[1.0, -2.0], [0.0, 3.0]])
    with mx.stream(mx.cpu):
        assert np.allclose(ops.softsign(x), np.array(x) / (1 + abs(np.array(x))))
        gradient = mx.vmap(mx.grad(lambda x: ops.softsign(x).sum()))(x)
        assert np.allclose(gradient, 1 / (1 + abs(np.array(x))) ** 2)
        assert ops.extra.twice(x).tolist() == (2 * x).tolist()
    assert ops.softsign.__doc__.startswith("softsign(x: scalar | array, *, stream: StreamOrDevice")
    assert "From -1 to 1." in ops.softsign.__doc__
    assert {"softsign", "extra", "dispatch_table"} <= set(ops.__all__)
    assert isinstance(ops.softsign(1.5), mx.array)
    header = next(Path(ops.__file__).parent.glob("_ext.*"))
    assert mx.metal.is_available() == (b"softsign_metal" in header.read_bytes())


def test_the_same_content_is_the_same_module() -> None:
    ops = mlxgen.load(YAML, cpp=CPP, metal=METAL)
    assert mlxgen.load(YAML, cpp=CPP, metal=METAL) is ops
    assert mlxgen.load("\n\n" + YAML, cpp="\n" + CPP + "\n", metal=METAL) is ops


@pytest.mark.extended
def test_empty_lines_inside_of_strings() -> None:
    """An empty line can belong to a string, so that it changes the content."""
    entry = (
        '- signature: "two(x: array) -> array"\n  composite: x + x\n  doc: |\n    One.{}\n    Two.'
    )
    docs = [mlxgen.load(entry.format(lines)).two.__doc__ for lines in ("", "\n")]
    assert ["One.\n\n" in doc for doc in docs] == [False, True]


def test_found_again_without_the_generator_and_a_compiler(tmp_path: Path) -> None:
    mlxgen.load(YAML, cpp=CPP, metal=METAL)
    script = f"""
import os, sys
os.environ["PATH"] = "/nowhere"
{LOAD}
assert ops.softsign(1.0).item() == 0.5
heavy = "pydantic jinja2 tree_sitter yaml rich click mlxgen.check mlxgen.render numpy".split()
print([name for name in heavy if name in sys.modules])
"""
    assert output(run("-c", script, cwd=tmp_path)) == "[]\n"


@pytest.mark.extended
def test_a_change_leaves_what_was_loaded() -> None:
    before = mlxgen.load(YAML, cpp=CPP, metal=METAL)
    after = mlxgen.load(WRONG, cpp=CPP.replace("x /", "2 * x /"), metal=METAL)
    assert after is not before
    with mx.stream(mx.cpu):
        # They are compiled together; equal primitives would be computed only once.
        both = mx.compile(lambda x: (before.softsign(x), after.softsign(x)))
        assert [out.item() for out in both(mx.array(1.0))] == [0.5, 1.0]


def test_an_edit_compiles_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other operators and the bindings come from the cache, although the module is new."""
    mlxgen.load(YAML, cpp=CPP, metal=METAL)
    commands: list[Sequence[str]] = []
    real = toolchain.run

    def run(command: Sequence[str], **more: str) -> str:
        commands.append(command)
        return real(command, **more)

    monkeypatch.setattr(toolchain, "run", run)
    factor = time.time_ns()
    ops = mlxgen.load(YAML.replace("2 * x", f"{factor} * x"), cpp=CPP, metal=METAL)
    compiled = [Path(words[words.index("-c") + 1]).stem for words in commands if "-c" in words]
    assert compiled == ["composites_twice"]
    assert ops.extra.twice(mx.array(1.0)).item() == np.float32(factor)


@pytest.mark.extended
def test_checks() -> None:
    with mx.stream(mx.cpu):
        ops = mlxgen.load(YAML, cpp=CPP, metal=METAL)
        report = ops.check()
        assert report and report.passed > 10
        assert repr(report) == f"{report.passed} checks passed"
        wrong = mlxgen.load(WRONG, cpp=CPP, metal=METAL).check()
    assert not wrong and wrong.passed > 10
    first = next(f for f in wrong.failures if f.check == "vjp")
    assert (first.operator, first.argument) == ("softsign", "x")
    assert first.element.startswith("x[")
    assert f"<td>{first.element}</td><td>{first.got}</td>" in wrong._repr_html_()
    assert "check" not in ops.__all__


@pytest.mark.extended
def test_an_operator_called_check() -> None:
    """The attribute is the operator; the checks are a function of mlxgen.testing."""
    ops = mlxgen.load('- {name: check, signature: "check(array x) -> array", composite: x / 2}')
    assert ops.check(mx.array(1.0)).item() == 0.5
    with mx.stream(mx.cpu):
        assert check(ops)


# --------------------------------------------------------------------------------- mistakes


@pytest.mark.extended
@pytest.mark.parametrize(
    ("yaml", "cpp", "expected"),
    [
        (YAML.replace("grad: {x: grad", "grad: {x: gard"), CPP, "<yaml>:7:13: error[MG303]"),
        (YAML, CPP.replace("softsign", "softsin"), "cpp has no function 'softsign'"),
        ("- name: [", "", "<yaml>:1:10: error[MG001]"),
        (YAML, "T softsign(T x {", "<cpp>:1:"),
        (
            YAML,
            f"template <typename T> T other(T x) {{\n  return x.size();\n}}\n"
            f"{CPP.replace('1 +', 'other(x) +')}",
            "<cpp>:2:12: error[MG814]",
        ),
        (
            YAML,
            f"#include <vector>\n{CPP.replace('  return', '  std::vector<T> v(x, x, x);  return')}",
            "<cpp>:4:",
        ),
    ],
    ids=["formula", "name", "yaml", "syntax", "template", "library"],
)
def test_mistakes_are_shown_where_they_are(yaml: str, cpp: str, expected: str) -> None:
    with pytest.raises(load.LoadError) as error:
        mlxgen.load(yaml, cpp=cpp, metal=METAL)
    text = str(error.value)
    assert expected in text and "\n" in text and "/tmp" not in text
    assert re.search(r"^ +\d+ \| .*\n +\| +\^", text, re.MULTILINE)
    coloured = "\n".join(error.value._render_traceback_())
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).strip() == text.strip()


@pytest.mark.extended
def test_example() -> None:
    """The example in the explanation of MG814 is right."""
    assert PAGES["MG814"].good == CPP.rstrip()
    with pytest.raises(
        load.LoadError, match=r"<cpp>:3:23: error\[MG814\]: 'fabz' was not declared"
    ):
        mlxgen.load(YAML, cpp=PAGES["MG814"].bad, metal=METAL)


EVERY_KIND = """
- signature: >-
    every(x: array, w: array | None, ids: array, state: array, lists: list[array], n: int, big: int,
    a: float, flag: bool, mode: Literal['up', 'down'], name: str, ints: list[int],
    pair: int | tuple[int, int], shape: shape, axes: axes, dtype: Dtype, count: int | None,
    half: array, brain: array) -> (y: array, sums: array, found: array)
  dispatch: {cpu: every}
  shape: x.shape
  dtypes: {"x, w, lists": floating, ids: int32, state: accumulator, half: float16, brain: bfloat16}
  dtype: {sums: accumulator, found: uint8}
  grad: none
- signature: >-
    kernel(x: array, w: array | None, ids: array, state: array, n: int, a: float, flag: bool,
    mode: Literal['up', 'down'], name: str, brain: array) -> (y: array, sums: array)
  dispatch:
    metal:
      kernel: kernel
      grid: [x.size]
      template: {N: {of: n, values: [1, 2]}}
      constants: {width: "x.shape[-1]"}
  shape: x.shape
  dtypes: {"x, w": floating, ids: int32, state: accumulator, brain: bfloat16}
  dtype: {sums: accumulator}
  unused: {name: for the CPU}
  grad: none
- signature: >-
    by_element(x: array, y: array, n: int, a: float, flag: bool, mode: Literal['up', 'down'])
    -> (u: array, v: array)
  dispatch: {cpu: by_element, metal: by_element_metal}
  grad: none
- signature: "bound(x: array, w: array | None, ints: list[int], dtype: Dtype) -> array"
  cpp: bound
- signature: "rule(x: array, n: int) -> array"
  composite: x * (7 % n)
  grad: {x: {function: rule_vjp}}
"""


@pytest.mark.extended
def test_declarations_that_the_help_suggests() -> None:
    """The suggested declarations are accepted, valid C++ and Metal; errors name the operator."""
    with pytest.raises(load.LoadError) as error:
        mlxgen.load(EVERY_KIND)
    helps = re.findall(r"^help: expected: (.*)$", str(error.value), re.MULTILINE)
    name = re.compile(r"(\w+)\(")
    declared = {found[1]: text for text in helps if (found := name.search(text))}
    bodies = {
        "every": "{ y[0] = x.dim(n); }",
        "by_element": "{ u = x; v = y; }",
        "bound": "{ return x; }",
        "rule_vjp": "{ return {cotangents[0] * mlx::core::array(n)}; }",
    }
    metal = "\n".join(declared.pop(name) + " {}" for name in ("kernel", "by_element_metal"))
    assert {*declared} == {*bodies}
    cpp = "\n".join(
        "inline " * ("template" not in declared[name]) + f"{declared[name]} {body}"
        for name, body in bodies.items()
    )
    assert translate("kernels.metal", text=f"#include <metal_stdlib>\n{metal}").text
    ops = mlxgen.load(EVERY_KIND, cpp=cpp, metal=metal)
    x = mx.ones((2, 3))
    with mx.stream(mx.cpu):
        assert mx.array_equal(ops.by_element(x, 2 * x, 1, 1.0, True, "up")[1], 2 * x)
        assert ops.bound(x, None, [1], mx.float32) is not None
        assert mx.array_equal(mx.grad(lambda x: ops.rule(x, 3).sum())(x), 3 * x)
        with pytest.raises(ValueError, match=r"^\[rule\] Integer modulo by zero\.$"):
            ops.rule(x, 0)
        given = dict(lists=[x], big=1, a=1.0, flag=True, mode="up", name="", ints=[1], pair=1)
        given |= dict(shape=(1,), axes=None, dtype=mx.float32, count=None)
        given |= dict(half=x.astype(mx.float16), brain=x.astype(mx.bfloat16))
        assert ops.every(x, None, mx.array([1]), x, n=-1, **given)[0][0, 0].item() == 3
        with pytest.raises(RuntimeError, match=r"^\[every\] Axis 5 is out of range for an array "):
            mx.eval(ops.every(x, None, mx.array([1]), x, n=5, **given))


def test_places_in_folders_that_are_not_there() -> None:
    with pytest.raises(load.LoadError) as error:
        mlxgen.load(YAML, cpp=f'#include "missing.h"\n{CPP}', metal=METAL)
    assert "<cpp>:1:10: error[MG501]" in str(error.value) and "/tmp" not in str(error.value)


def test_files_in_messages_are_called_as_the_texts() -> None:
    with pytest.raises(load.LoadError, match=r"cannot parse 'twice' \(<cpp>\) as Metal"):
        yaml = '- signature: "twice(x: array) -> array"\n  dispatch: twice\n  grad: {x: 2 * grad}\n'
        twice = "template <typename T>\nT twice(T x) {\n  return 2 * x;\n}\n"
        mlxgen.load(yaml, cpp=f"#include <vector>\n{twice}")


def test_functions_for_a_file() -> None:
    with pytest.raises(ValueError, match="can be used with YAML entries"):
        mlxgen.load("mlx_ops.yaml", cpp=CPP)
    with pytest.raises(FileNotFoundError):
        mlxgen.load(Path("nowhere.yaml"))


# ---------------------------------------------------------------------------- failures


@pytest.fixture
def other_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache that contains only the shared toolchain."""
    mlxgen.load(YAML, cpp=CPP, metal=METAL)
    folder = tmp_path / "cache"
    folder.mkdir()
    for kind in ("headers", "precompiled", "nanobind", "runtime", "toolchain"):
        (folder / kind).symlink_to(cache.folder() / kind)
    monkeypatch.setenv("MLXGEN_CACHE", str(folder))
    return folder


@pytest.mark.extended
def test_the_first_operator_does_not_wait_for_precompiled_headers(
    other_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module.obtain_common(module.compat.find(), load.progress, precompile=True)
    monkeypatch.setattr(module, "start_precompile", lambda: pytest.fail("they are there"))
    one = re.sub(r"(?s)- name: twice.*", "", YAML)
    mlxgen.load(one.replace("From", "Between"), cpp=CPP, metal=METAL)
    (other_cache / "precompiled").unlink()
    started = []
    monkeypatch.setattr(module, "start_precompile", lambda: started.append(1))
    ops = mlxgen.load(one, cpp=CPP, metal=METAL)
    assert ops.softsign(1.0).item() == 0.5 and started
    assert capsys.readouterr().err == ""  # short steps are for terminals
    load.progress("compiling nanobind", once=True)
    assert capsys.readouterr().err == "mlxgen: compiling nanobind\n"


def test_headers_are_precompiled_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mlxgen" / "plugins" / "interactive"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:2]):
        (package / "__init__.py").touch()
    (folder / "module.py").write_text("def precompile(emulated): open(__file__ + '.called', 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    process = module.start_precompile.__wrapped__()
    assert process.wait(60) == 0
    assert (folder / "module.py.called").exists()


@pytest.mark.extended
def test_two_at_once_and_what_is_damaged(other_cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"{LOAD}; print(ops.softsign(1.0).item())"]

    def several(count: int) -> None:
        processes = [
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env=builds.environment(),
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for _ in range(count)
        ]
        said = [process.communicate() for process in processes]
        assert said == [("0.5\n", "")] * count

    several(2)
    (made,) = (path for path in (other_cache / "modules").iterdir() if path.is_dir())
    (extension,) = made.glob("*/_ext.*")
    extension.write_bytes(extension.read_bytes()[:-100_000])
    several(1)
    assert not made.exists()


@pytest.mark.extended
def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    text = YAML.replace("2 * x", "3 * x")
    common = module.obtain_common(module.compat.find(), load.progress, False)
    monkeypatch.setattr(module, "obtain_common", lambda found, say, precompile: common)
    monkeypatch.setenv("MLXGEN_CACHE", str(tmp_path / "file"))
    ops = mlxgen.load(text, cpp=CPP, metal=METAL)
    assert ops.extra.twice(mx.array(1.0)).item() == 3
    assert re.search(r"cache .*file is not used: .*Not a directory", capsys.readouterr().err)
    assert mlxgen.load(text, cpp=CPP, metal=METAL) is ops


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("MLXGEN_CACHE", str(tmp_path))
    monkeypatch.setattr(module.compat, "_source_internals", lambda path: 15)
    with pytest.raises(
        mlxgen.LoadError, match=r"nanobind .* does not match MLX .*pip install .*not be fetched: "
    ):
        mlxgen.load(YAML + "  doc: Not built before.\n", cpp=CPP, metal=METAL)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for about, advice in (
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "apt install g++"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install gcc-c++"),
        ({"ID": "alpine"}, "apk add g++"),
        ({"ID": "other"}, "install g++ 12 or newer"),
    ):
        monkeypatch.setattr("platform.freedesktop_os_release", about.copy)
        with pytest.raises(mlxgen.LoadError) as error:
            mlxgen.load(YAML + "  doc: Not built before.\n", cpp=CPP, metal=METAL)
        text = str(error.value)
        assert "there is no C++ compiler: " in text and advice in text
        assert "\n" not in text
    monkeypatch.setenv("CXX", "clang++-99")
    with pytest.raises(
        mlxgen.LoadError, match=r"there is no C\+\+ compiler 'clang\+\+-99', which CXX names"
    ):
        mlxgen.load(YAML + "  doc: Not built before.\n", cpp=CPP, metal=METAL)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "xcode-select --install" in install.compiler() and "'mlx'" in install.mlx()


def test_mistakes_are_said_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        module, "obtain_common", lambda found, say, precompile: pytest.fail("compiled")
    )
    for yaml, cpp, said in (
        (YAML.replace("doc:", "dok:"), CPP, "unknown key 'dok'"),
        (YAML, CPP.replace("T x", "int x"), "does not match the entry"),
    ):
        with pytest.raises(mlxgen.LoadError, match=said):
            mlxgen.load(yaml, cpp=cpp, metal=METAL)


@pytest.mark.extended
def test_a_constructor_that_throws(other_cache: Path) -> None:
    """Without a separate process it would end this one."""
    thrown = 'inline int table = [] { throw std::runtime_error("no table"); return 1; }();\n'
    with pytest.raises(mlxgen.LoadError, match=r"(?s)\(SIGABRT\).*global variables.*no table"):
        mlxgen.load(YAML, cpp=f"#include <stdexcept>\n{thrown}{CPP}", metal=METAL)
    assert not list((other_cache / "modules").glob("*.json"))  # the next attempt builds it again


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os._exit(0)", "loading them fails"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("raise ValueError('no table')", r"\nValueError: no table$"),
        ("import time; time.sleep(60)", "does not end within 1 seconds"),
    ],
    ids=["exits", "crashes", "raises", "waits"],
)
def test_the_first_import(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST", 1 if "sleep" in code else 60)
    (tmp_path / "__init__.py").write_text(code)
    with pytest.raises(mlxgen.LoadError, match=said):
        module._try_import("ops_of_test", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"source": b"- name: f"}, TypeError, r"not bytes: write source.decode\(\)"),
        ({"source": None}, TypeError, "source must be a str, YAML entries or a path"),
        ({"source": YAML, "cpp": 3}, TypeError, "cpp must be a str, .* not int"),
        ({"source": YAML, "cpp": CPP, "metal": METAL.encode()}, TypeError, "metal must be a str"),
        (
            {"source": YAML + "  doc: '\ud800'\n"},
            ValueError,
            "source has a character in line 1[0-9]",
        ),
    ],
    ids=["bytes", "None", "int", "metal", "surrogate"],
)
def test_arguments_of_other_types(
    arguments: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        mlxgen.load(**arguments)


def test_a_nanobind_that_fits_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It matches the user's MLX, independent of the nanobind that pip installed."""
    nanobind = module.compat.find().nanobind
    release = module.compat.NANOBIND[module.compat.internals_version(module.compat.find().tag)][-1]
    wheel = tmp_path / "wheels" / f"nanobind-{release}-py3-none-any.whl"
    wheel.parent.mkdir()
    about = f"nanobind-{release}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in ("__init__.py", "src/nb_internals.h", "include/nanobind/nb_abi.h"):
            if (nanobind / path).exists():
                archive.write(nanobind / path, f"nanobind/{path}")
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: nanobind\nVersion: {release}\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("MLXGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    real = module.compat.version
    monkeypatch.setattr(module.compat, "version", lambda d: None if d == "nanobind" else real(d))
    fetch = functools.partial(module.toolchain.fetch, local=tmp_path)
    found = module.compat.find(fetch)
    assert found.nanobind_version == release
    assert found.nanobind.is_relative_to(tmp_path / "cache" / "sources")
    wheel.unlink()
    assert module.compat.find(fetch) == found  # from the cache


# -------------------------------------------------------------------------------------- files


@pytest.mark.extended
def test_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "csrc").mkdir()
    entry = '- signature: "softsign(array x) -> array"\n  dispatch: {cpu: softsign}\n  grad: none\n'
    (tmp_path / "my_ops.yaml").write_text(entry)
    (tmp_path / "csrc" / "softsign.h").write_text(f"#pragma once\n{CPP}")
    with pytest.raises(load.LoadError) as error:
        mlxgen.load("my_ops.yaml")  # a file needs its own includes
    assert "\ncsrc/softsign.h:4:" in str(error.value) and "MG814" in str(error.value)
    (tmp_path / "csrc" / "softsign.h").write_text(f'#include "mlxgen/scalar.h"\n{CPP}')
    ops = mlxgen.load("my_ops.yaml")
    assert ops.softsign(mx.array(-3.0), stream=mx.cpu).item() == -0.75
    assert mlxgen.load(tmp_path / "my_ops.yaml") is ops
    (tmp_path / "my_ops.yaml").write_text(entry.replace("none", "{x: gard}"))
    with pytest.raises(load.LoadError, match=r"my_ops\.yaml:3:13: error\[MG303\]"):
        mlxgen.load("my_ops.yaml")


# ---------------------------------------------------------------------------------- notebooks

CELL = f"""{YAML.strip()}
```cpp
{CPP}```

~~~ metal
{METAL}~~~
"""


def test_cells() -> None:
    found = notebook.parts(CELL)
    given = {"yaml": YAML, "cpp": CPP, "metal": METAL}
    assert {kind: source.content for kind, source in found.items()} == {
        kind: text.strip() for kind, text in given.items()
    }
    lines = f"%%mlxgen\n{CELL}".splitlines()
    for source in found.values():
        for number, line in enumerate(source.text.splitlines(), source.above):
            assert line in ("", lines[number])
    assert notebook.parts("```yaml\n- x\n```")["yaml"].content == "- x"


@pytest.mark.extended
def test_ipython(capsys: pytest.CaptureFixture[str]) -> None:
    shell_module = pytest.importorskip("IPython.core.interactiveshell")
    shell = shell_module.InteractiveShell()
    assert shell.run_line_magic("load_ext", "mlxgen") is None
    done = shell.run_cell(f"%%mlxgen signs\n{CELL}")
    assert done.success
    assert shell.user_ns["signs"] is mlxgen.load(YAML, cpp=CPP, metal=METAL)
    assert "signs.softsign(x: array) -> array" in capsys.readouterr().out
    for before, after, expected in (
        ("grad: {x: grad", "grad: {x: gard", "<cell>:7:13: error[MG303]"),
        ("fabs(x));\n}\n```", "fabz(x));\n}\n```", "<cell>:15:33: error[MG814]"),
        ("```cpp", "```rust", "<cell>:12:1: error[MG001]"),
        ("~~~\n", "\n", "<cell>:19:1: error[MG001]"),
    ):
        assert before in CELL
        done = shell.run_cell(f"%%mlxgen signs\n{CELL.replace(before, after)}")
        assert isinstance(done.error_in_exec, load.LoadError)
        shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
        assert shown.startswith(expected) and "Traceback" not in shown
        line = int(expected.split(":")[1])
        assert f"{line:>5} | {CELL.replace(before, after).splitlines()[line - 2]}\n" in shown
    for line, expected in (
        ("1x", "'1x' is not the name of a variable"),
        ("--chek signs", "the only option is --check"),
    ):
        done = shell.run_cell(f"%%mlxgen {line}\n{CELL}")
        assert expected in str(done.error_in_exec)


def test_checks_need_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    check = load.check_of(ModuleType("ops"))
    for name in [name for name in sys.modules if name.startswith("mlxgen.testing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)  # which `import` takes for not installed
    with pytest.raises(load.LoadError, match=r"need NumPy and pytest: run `.*pip install"):
        check()


@pytest.mark.extended
def test_checks_of_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong gradient is shown where it is written."""
    shell_module = pytest.importorskip("IPython.core.interactiveshell")
    shell = shell_module.InteractiveShell()
    shell.run_line_magic("load_ext", "mlxgen")
    entry = 'name: twice\n  signature: "twice(array x) -> array"\n  composite: 2 * x'
    assert shell.run_cell(f"%%mlxgen\n- {entry}").success
    assert "ops.check() compares gradients" in capsys.readouterr().out
    assert shell.run_cell(f"%%mlxgen --check ops\n- {entry}\n  grad: {{x: 2 * grad}}").success
    shown = capsys.readouterr().out
    assert "ops.check()" not in shown and re.search(r"^1\d checks passed$", shown, re.M)
    assert shell.run_cell(f"%%mlxgen ops --check\n- {entry}\n  grad: {{x: 3 * grad}}").success
    shown = capsys.readouterr().out
    assert "checks failed" in shown and re.search(r"^twice +vjp +x +x\[", shown, re.M)
