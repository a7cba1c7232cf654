"""The code around Metal kernels is compiled for macOS, and mistakes in it are reported.

Without a network and a cached copy, MLX for macOS is not available. The tests are then skipped, but
never if CI is set.
"""

import json
import os
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample import project

from mlxgen.__main__ import cli
from mlxgen.command.cli import Failure
from mlxgen.diagnostics import Diagnostics
from mlxgen.emulator import host
from mlxgen.read.settings import load as load_settings
from mlxgen.render import files

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def cache():
    """Use the user's cache for the wheel, in contrast to compiled kernels."""


@pytest.fixture(scope="session")
def wheel() -> host.Wheel:
    try:
        return host.macos_wheel()
    except host.HostUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the code for macOS was NOT checked: {error}")


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch):
    """Change the code that is generated for rms_norm_residual."""

    def plant(old: str, new: str) -> None:
        original = files.op_source

        def changed(op, settings):
            text = original(op, settings)
            assert old in text or op.name != "rms_norm_residual"
            return text.replace(old, new, 1)

        monkeypatch.setattr(files, "op_source", changed)

    return plant


def reported(folder: Path, *ops: str, jobs: int | None = None) -> Diagnostics:
    """Return the errors of operators of this repository, as they are generated now."""
    diags = Diagnostics()
    settings = load_settings(ROOT, diags)
    assert settings is not None
    host.check_host(settings, folder, diags, include=ops, jobs=jobs)
    return diags


@pytest.mark.extended
def test_all_operators_compile(wheel: host.Wheel) -> None:
    diags = Diagnostics()
    settings = load_settings(ROOT, diags)
    assert settings is not None
    found = host.check_host(settings, ROOT / "build" / "macos", diags)
    assert diags.render_text() == ""
    named = {path.stem for path in found.files}
    entries = json.loads((ROOT / "build" / "macos" / "python" / "ops.json").read_text())[
        "operators"
    ]
    with_kernels = {entry["name"] for entry in entries if "metal" in entry["kernels"]}
    by_hand = {path.stem for path in (ROOT / "csrc").rglob("*.cpp")}
    assert named == {*with_kernels, *by_hand, "metal"}  # "metal": the runtime


def test_every_form_compiles(wheel: host.Wheel, tmp_path: Path) -> None:
    diags = Diagnostics()
    found = host.check_host(project.settings(project.YAML), tmp_path, diags)
    assert diags.render_text() == ""
    assert len(found.files) > 5


# By error code: the lines that replace BOUND, and the error of each. The lines of a code are
# compiled together.
BOUND = "encoder.set_input_array(x, 0);"
MISTAKES = {
    "MG811": {
        "encoder.set_input(x, 0);": "no member named 'set_input' in "
        "'mlx::core::metal::CommandEncoder'",
        "encoder.set_input_array(inputs, 0);": "no viable conversion from "
        "'const std::vector<mx::array>'",
        "encoder.set_input_array(x);": "too few arguments",
        "encoder.set_output_array(inputs[0], 0);": "binding reference of type 'array' to value of "
        "type 'const",
        "mx::metal::device(stream().device).get_command_encoder(stream().index);": "no member "
        "named 'get_command_encoder' in 'mlx::core::metal::Device'",
    },
    "MG812": {
        "encoder.set_input_array(x, mx::metal::is_nax_available());": "needs "
        "mlx::core::metal::is_nax_available(), which MLX",
        "auto pool = mx::metal::new_scoped_memory_pool();": "needs "
        "mlx::core::metal::new_scoped_memory_pool(), which MLX",
    },
    "MG813": {
        "namespace NS::Private::Class {\nvoid* s_kNSObject = nullptr;\n}": "defines "
        "NS::Private::Class::s_kNSObject, which MLX",
    },
}


@pytest.mark.extended
@pytest.mark.weekly
@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes_are_reported(code: str, wheel, plant, tmp_path: Path) -> None:
    mistakes = MISTAKES[code]
    plant('#include "mlxgen/metal.h"' if code == "MG813" else BOUND, "\n".join(mistakes))
    found = reported(tmp_path, "rms_norm_residual").sorted()
    yaml = (ROOT / "mlx_ops.yaml").read_text().splitlines()
    for item in found:
        assert (item.code, item.op) == (code, "rms_norm_residual")
        assert item.span.file.endswith("mlx_ops.yaml")
        assert "rms_norm_residual" in yaml[item.span.line - 1]
    for new, message in mistakes.items():
        (item,) = [item for item in found if message in item.message]
        if code == "MG811":
            assert "rms_norm_residual.cpp:" in item.notes[0]
            assert new in item.notes[0]


@pytest.mark.extended
@pytest.mark.weekly
def test_runs_of_several_operators(wheel, plant, tmp_path: Path, monkeypatch) -> None:
    """They are compiled as one file; with a mistake, each by itself; the second time, none."""
    compiled = []
    run = host.HostCompiler._run

    def noted(self, arguments):
        source = Path(arguments[arguments.index("-c") + 1])
        if source.suffix == ".cpp":
            compiled.append(source.name)
        return run(self, arguments)

    monkeypatch.setattr(host.HostCompiler, "_run", noted)
    operators = {"axpby.cpp", "rms_norm_residual.cpp"}
    assert reported(tmp_path / "right", "axpby", "rms_norm_residual", jobs=1).ok
    assert compiled.count("unit.cpp") == 1 and not operators & {*compiled}
    compiled.clear()
    assert reported(tmp_path / "right", "axpby", "rms_norm_residual", jobs=1).ok
    assert not compiled
    plant(BOUND, next(iter(MISTAKES["MG812"])))
    found = reported(tmp_path / "wrong", "axpby", "rms_norm_residual", jobs=1).sorted()
    assert [(item.code, item.op) for item in found] == [("MG812", "rms_norm_residual")]
    assert compiled.count("unit.cpp") == 1 and operators <= {*compiled}


def test_mistake_in_a_source_of_the_project_is_reported_there(wheel, tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "scale.cpp").write_text(
        "#ifdef _METAL_\n"
        '#include "mlx/backend/metal/device.h"\n'
        "void* library() {\n"
        "  return mlx::core::metal::device(mlx::core::Device::gpu).library();\n"
        "}\n"
        "#endif\n"
    )
    yaml = tmp_path / "mlx_ops.yaml"
    yaml.write_text('- signature: "f(x: array) -> array"\n  composite: exp(x)\n')
    diags = Diagnostics()
    host.check_host(project.settings(yaml), tmp_path / "out", diags)
    (found,) = diags.sorted()
    assert found.code == "MG811"
    assert found.span.file.endswith("scale.cpp")
    assert (found.span.line, found.op) == (4, None)


def test_change_of_an_include_compiles_again(wheel, tmp_path: Path) -> None:
    (tmp_path / "one.h").write_text("int one();\n")
    source = tmp_path / "one.cpp"
    source.write_text('#include "one.h"\nint two() { return one(); }\n')
    compiler = host.HostCompiler(wheel, [tmp_path])
    assert compiler.compile(source).errors == ()
    (tmp_path / "one.h").write_text("int uno();\n")
    assert "undeclared identifier 'one'" in compiler.compile(source).errors[0].text


SMALL = {
    "pyproject.toml": '[project]\nname = "small"\nversion = "1"\n[tool.mlxgen]\n',
    "python/small/__init__.py": "from small._load import *\n",
    "mlx_ops.yaml": (
        '- signature: "twice(array x) -> array"\n'
        "  dispatch: {metal: twice}\n"
        "  composite: 2 * x\n"
        "  grad: {x: 2 * grad}\n"
    ),
    "kernels/metal/twice.metal": (
        "#include <metal_stdlib>\ntemplate <typename T>\nT twice(T x) {\n  return 2 * x;\n}\n"
    ),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a project with one operator; nothing is compiled here."""
    root = tmp_path_factory.mktemp("small")
    for name, text in SMALL.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


class TestWithoutTheWheel:
    @pytest.fixture(autouse=True)
    def offline(self, monkeypatch, tmp_path: Path) -> None:
        def refuse(*_):
            raise host.HostUnavailable("MLX 0 for macOS cannot be downloaded: no network")

        monkeypatch.setattr(host, "_downloaded", refuse)
        monkeypatch.setattr(host.sys, "platform", "linux")
        monkeypatch.setenv("MLXGEN_METAL_CACHE", str(tmp_path))

    @pytest.mark.extended
    def test_it_is_said(self, small: str, monkeypatch) -> None:
        monkeypatch.delenv("CI", raising=False)
        result = CliRunner().invoke(cli, ["metal-check", "--project", small])
        assert result.exit_code == 0
        assert "was NOT checked: MLX 0 for macOS cannot be downloaded" in result.output

    @pytest.mark.extended
    @pytest.mark.parametrize("how", ["--require", "CI"])
    def test_it_fails_where_it_must_run(self, how: str, small: str, monkeypatch) -> None:
        arguments = ["metal-check", "--project", small]
        monkeypatch.setenv("CI", "true" if how == "CI" else "")
        arguments += [how] if how == "--require" else []
        result = CliRunner().invoke(cli, arguments)
        assert isinstance(result.exception, Failure)
        assert "cannot be checked" in result.output


def test_a_wheel_writes_only_into_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names with `..` are those of a damaged or forged archive."""
    names = ["mlx/include/a.h", "mlx/include/../../../out.h", "mlx/lib/libmlx.dylib"]
    with zipfile.ZipFile(tmp_path / "mlx.whl", "w") as archive:
        for name in names:
            archive.writestr(name, name)
    nothing = host.Symbols(frozenset(), frozenset(), frozenset())
    monkeypatch.setattr(host, "_symbols", lambda path: nothing)
    made = host._unpacked(tmp_path / "mlx.whl", tmp_path / "a" / "b")
    assert list(tmp_path.rglob("*.h")) == [made / "include" / "a.h"]
