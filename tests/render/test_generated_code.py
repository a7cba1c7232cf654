"""The generated code of the shipped operators: format and pages."""

import json
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from sample import project

from mlxgen.command import generate, operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.plugins.describe.command import doc_pages
from mlxgen.read.settings import load as load_settings
from mlxgen.render.cpp import cpp_comment
from mlxgen.render.files import internal_operators, pieces
from mlxgen.render.format import formatted

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the generated files of mlxops."""
    folder = tmp_path_factory.mktemp("generated")
    diagnostics = Diagnostics()
    settings = load_settings(ROOT, diagnostics)
    assert settings is not None
    result = generate.generate(settings, folder, diagnostics)
    assert result is not None, diagnostics.render_text()
    return folder


@pytest.mark.extended
def test_clang_format_takes_the_cpp(generated: Path) -> None:
    (generated / ".clang-format").write_text((ROOT / ".clang-format").read_text())
    files = [
        str(path)
        for path in [*generated.glob("src/*.cpp"), *generated.glob("include/**/*.h")]
        if path.parent.name != "metal"  # embedded Metal sources keep their format
    ]
    assert len(files) > 30
    for options in (["-i"], ["--dry-run", "-Werror"]):  # formatting again changes nothing
        done = subprocess.run(
            [BIN / "clang-format", *options, *files], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[:2000]


def test_only_what_is_an_operators_own(generated: Path) -> None:
    texts = {path.name: path.read_text() for path in generated.glob("src/*.cpp")}
    assert not [name for name, text in texts.items() if "maybe_unused" in text]
    header = (generated / "include" / "mlxops" / "axpby.h").read_text()
    shown = formatted(header) + formatted(texts["axpby.cpp"])
    assert len(shown.splitlines()) <= 160
    assert "class" not in header


PARTS = """
- {signature: "inner(x: array) -> array", composite: x * 1, grad: none, tags: [internal]}
- {signature: "slope(a: array) -> array", composite: inner(a), tags: [internal]}
- signature: "cyclic(a: array) -> array"
  composite: a * a
  grad: {a: grad * cyclic_slope(a)}
  tags: [internal]
- {signature: "cyclic_slope(a: array) -> array", composite: cyclic(inner(a)), tags: [internal]}
- {signature: "alone(x: array) -> array", composite: x * 1, grad: none, tags: [internal]}
"""
# The public operators, and the record of `inner`: its callers, twice, arguments.
CALLERS = [
    ('- {signature: "f(x: array) -> array", composite: inner(x)}', ("f", False, ["x"])),
    ('- {signature: "f(y: array) -> array", composite: inner(y)}', ("f", False, [])),
    (
        '- {signature: "f(x: array) -> array", composite: x * x, grad: {x: grad * slope(x)}}',
        ("f", True, ["x"]),
    ),
    ('- {signature: "f(y: array) -> array", composite: cyclic(y)}', ("f", True, [])),
    (
        '- {signature: "f(x: array) -> array", composite: slope(x)}\n'
        '- {signature: "g(x: array) -> array", composite: x * x, grad: {x: grad * inner(x)}}\n'
        '- {name: g_two, python_name: g, signature: "g(x: array, n: int) -> array",'
        " composite: inner(x) * n}\n"
        '- {signature: "h(x: array) -> array", composite: inner(x)}',
        ("f, g or h", False, ["x"]),
    ),
    (
        '- {signature: "_f(x: array) -> array", composite: inner(x)}\n'
        '- {signature: "g(x: array) -> array", composite: _f(x)}',
        ("g", False, ["x"]),
    ),
    ('- {signature: "_f(x: array) -> array", composite: inner(x)}', ("_f", False, ["x"])),
]


@pytest.mark.parametrize(("public", "wanted"), CALLERS)
def test_public_callers_of_internal_operators(
    public: str, wanted: tuple[str, bool, list[str]], tmp_path: Path
) -> None:
    """Errors of derivatives name these; `twice`: only derivatives call the internal operator."""
    yaml = tmp_path / "mlx_ops.yaml"
    yaml.write_text(PARTS + public)
    diagnostics = Diagnostics()
    settings = project.settings(yaml)
    ops, _ = operators.load(settings, diagnostics)
    assert diagnostics.ok, diagnostics.render_text()
    (found,) = internal_operators([pieces(op, settings) for op in ops])
    assert found.name == "inner"
    assert (found.called_by, found.twice, list(found.arguments)) == wanted


@pytest.mark.parametrize(
    ("number", "binding_files", "groups"), [(300, 8, 16), (100, 8, 16), (60, 4, 0)]
)
def test_large_packages_compile_in_few_units(
    tmp_path: Path, number: int, binding_files: int, groups: int
) -> None:
    """Each unit reads MLX's headers: those of composites are grouped, those of bindings are few."""
    entries = (
        f'- signature: "f{i}(array x) -> array"\n  composite: x + {i}\n' for i in range(number)
    )
    (tmp_path / "mlx_ops.yaml").write_text("".join(entries))
    assert project.run(tmp_path / "mlx_ops.yaml", tmp_path / "out").ok
    bindings = [path.read_text() for path in (tmp_path / "out" / "src").glob("bind_*.cpp")]
    assert len(bindings) == binding_files
    bound = re.findall(r"&(f\d+)_python", "".join(bindings))
    assert sorted(bound) == sorted(f"f{i}" for i in range(number))
    found = [*grouped(tmp_path / "out").values()]
    assert len(found) == groups
    assert sorted(chain(*found)) == (sorted(bound) if groups else [])


def test_few_sources_include_all_operators(generated: Path) -> None:
    """Each new operator compiles them again."""
    sources = [*generated.glob("src/*.cpp"), *generated.glob("c/*.cpp")]
    of_all = re.compile(r'#include "mlxops(/mlxops|_c)\.h"')
    assert not [p for p in sources if of_all.search(p.read_text())]


def grouped(output: Path) -> dict[str, list[str]]:
    """Return the operators whose sources are compiled together, by the name of the group."""
    listed = (output / "sources.cmake").read_text()
    names = re.search(r"set\(MLXGEN_GROUPS\n(.*?)\)", listed, re.DOTALL)
    found = dict(re.findall(r"set\(MLXGEN_GROUP_(\w+)\n(.*?)\)", listed, re.DOTALL))
    assert names is not None and re.findall(r"\w+", names[1]) == [*found]
    return {name: re.findall(r"src/(\w+)\.cpp", text) for name, text in found.items()}


FUNCTION = "static int used = 0;\ntemplate <typename T>\nT f(T x) { return x; }\n"
HEADERS = {
    "a.h": f"#pragma once\nnamespace a {{\n{FUNCTION}"
    "template <typename T>\nvoid over(mlxgen::In<T> x, mlxgen::Out<T> out) {}\n}\n",
    "b/c.h": f"#ifndef B_C\n#define B_C\nnamespace b {{\n{FUNCTION}}}\n#endif\n",
    "b_c.h": f"#pragma once\nnamespace b_c {{\n{FUNCTION}}}\n",  # b/c.h has the same stem
    "d.h": f"namespace d {{\n{FUNCTION}}}\n",
    "e.h": f"#pragma once\nnamespace e {{\n{FUNCTION}"
    "template <typename T, bool positive = false>\nT by_sign(T x) { return x; }\n}\n",
    "f.h": f'#pragma once\n#include "g.h"\nnamespace f {{\n{FUNCTION}}}\n',
    "g.h": '#pragma once\n#include "e.h"\n',
}
FUNCTIONS = {"a": "a::f", "b": "b::f", "c": "b_c::f", "d": "d::f"}
SLOW = {"sign": "e::by_sign", "beside": "e::f", "above": "f::f"}


def test_groups_have_the_same_headers(tmp_path: Path) -> None:
    """Names in different headers may clash, and a header without a guard would be there twice."""
    for path, text in HEADERS.items():
        (tmp_path / "csrc" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "csrc" / path).write_text(text)
    entries = [f'- {{signature: "z{i}(x: array) -> array", composite: x + {i}}}' for i in range(40)]
    for i in range(8):
        start = '(x: array) -> array", grad: none, dispatch: {cpu: '
        for name, function in (FUNCTIONS | SLOW).items():
            entries.append(f'- {{signature: "{name}{i}{start}"{function}"}}}}')
        entries.append(f'- {{signature: "over{i}{start}"a::over"}}, shape: x.shape}}')
    yaml, out = tmp_path / "mlx_ops.yaml", tmp_path / "out"
    yaml.write_text("\n".join(entries))
    diagnostics = project.run(yaml, out)
    assert diagnostics.ok, diagnostics.render_text()
    found = grouped(out)
    by_stem: dict[str, set[str]] = {}
    for group, names in found.items():
        stem = group.rpartition("_")[0]
        by_stem.setdefault(stem, set()).update(name.rstrip("0123456789") for name in names)
    assert by_stem == {"composites": {"z"}, "kernels_a_h": {"a"}, "kernels_b_c_h": {"b"}}

    yaml.write_text("\n".join(['- {signature: "y(x: array) -> array", composite: x}', *entries]))
    assert project.run(yaml, out).ok
    changed = {group for group, names in grouped(out).items() if names != found.get(group)}
    assert len(changed) == 1  # the others are not compiled again


def test_documentation_that_reads_like_a_template(tmp_path: Path) -> None:
    """Text of an entry is never parsed as a template."""
    doc = "//--\n{% raw %} {{ x }} {# #} )pbdoc */ ```\n//--"
    entry = f'- signature: "f(array x) -> array"\n  composite: x\n  doc: {json.dumps(doc)}\n'
    (tmp_path / "mlx_ops.yaml").write_text(entry)
    assert project.run(tmp_path / "mlx_ops.yaml", tmp_path / "out").ok
    for name in ("src/bind_0.cpp", "docs/operators.md"):
        assert "{% raw %} {{ x }} {# #} )pbdoc" in (tmp_path / "out" / name).read_text()


def test_what_is_moved_is_not_used(tmp_path: Path) -> None:
    """C++ evaluates the arguments of a call in any order."""
    assert project.run(project.YAML, tmp_path).ok
    for path in tmp_path.glob("src/*.cpp"):
        for line in path.read_text().splitlines():
            assert line.count("inputs") == 1 or "std::move(inputs)" not in line, line


def test_documentation_is_wrapped_by_paragraphs() -> None:
    paragraph = "One two three four five six seven eight nine ten eleven\ntwelve thirteen, and"
    lists = "- a list\n- of two\n\n1. numbers\n2. too\n\n    code(\n    1)\n"
    assert cpp_comment(f"{paragraph} fourteen.\n\n{lists}").splitlines() == [
        "/**",
        " * One two three four five six seven eight nine ten eleven twelve thirteen, and",
        " * fourteen.",
        " *",
        " * - a list",
        " * - of two",
        " *",
        " * 1. numbers",
        " * 2. too",
        " *",
        " *     code(",
        " *     1)",
        " */",
    ]
    assert cpp_comment("Short.") == "/** Short. */"


def test_no_trace_of_templates(generated: Path) -> None:
    for path in generated.rglob("*"):
        if path.suffix in (".cpp", ".h", ".pyi", ".py", ".md"):
            text = path.read_text()
            assert "{{" not in text.replace("{{{", "").replace('{{"', "") or "{%" not in text
            # C++ has no layout, unless an earlier test has formatted it.
            assert path.suffix in (".cpp", ".h") or "\n\n\n\n" not in text, path
            assert "\t" not in text or path.parent.name == "metal", path
            if path.parent.name != "metal":
                assert not any(line != line.rstrip() for line in text.splitlines()), path


def test_kernels_are_told_of_absent_arrays(tmp_path: Path) -> None:
    """The rank and size of an absent array are 0."""
    (tmp_path / "mlx_ops.yaml").write_text(
        '- signature: "k(x: array, w: array | None) -> array"\n  shape: x.shape\n  grad: none\n'
        "  dispatch: {metal: {kernel: k, grid: [out.size]}}\n"
    )
    (tmp_path / "kernels" / "metal").mkdir(parents=True)
    (tmp_path / "kernels" / "metal" / "k.metal").write_text(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "template <typename T> [[kernel]] void k(device const T* x, device const T* w,"
        " device T* out, constant const int* w_shape, constant const int64_t* w_strides,"
        " constant int& w_ndim, constant uint& w_size) {}\n"
    )
    diagnostics = project.run(tmp_path / "mlx_ops.yaml", tmp_path / "out")
    assert diagnostics.ok, diagnostics.render_text()
    text = (tmp_path / "out" / "src" / "k.cpp").read_text()
    assert [line for line in text.splitlines() if "(encoder, w ? " in line or "w->" in line] == [
        "mlxgen::metal::set_vector(encoder, w ? w->shape() : mx::Shape(), 3);",
        "mlxgen::metal::set_vector(encoder, w ? w->strides() : mx::Strides(), 4);",
        'encoder.set_bytes(mlxgen::metal::number<int>("w_ndim", w ? w->ndim() : 0), 5);',
        'encoder.set_bytes(mlxgen::metal::number<uint32_t>("w_size", w ? w->size() : 0), 6);',
    ]


def test_infinite_numbers_are_known_where_samples_stand(tmp_path: Path) -> None:
    text = """
- signature: "f(x: array, a: float = -inf) -> array"
  cpp: mlx::core::maximum
  samples: {x: {values: [0.5, .inf, -.inf, .nan]}, a: .inf}
"""
    (tmp_path / "mlx_ops.yaml").write_text(text)
    diagnostics = project.run(tmp_path / "mlx_ops.yaml", tmp_path / "out")
    assert diagnostics.ok, diagnostics.render_text()
    checks = tmp_path / "out" / "python" / "checks" / "test_gradients.py"
    assert "[0.5, inf, -inf, nan]" in checks.read_text()
    ruff = [BIN / "ruff", "check", "--isolated", "--select=F821", checks]
    assert subprocess.run(ruff, capture_output=True).returncode == 0


def test_pages_are_up_to_date() -> None:
    """Run `make docs` after changing an operator or a message."""
    diagnostics = Diagnostics()
    settings = load_settings(ROOT, diagnostics)
    assert settings is not None
    ops, _ = operators.load(settings, diagnostics)
    for name, text in doc_pages(ops, settings).items():
        assert (ROOT / "docs" / name).read_text() == text, f"run `make docs`: docs/{name} is old"


def test_schema_accepts_the_shipped_files() -> None:
    schema = json.loads((ROOT / "docs" / "mlx_ops.schema.json").read_text())
    properties = schema["items"]["properties"]
    assert schema["items"]["additionalProperties"] is False
    import yaml

    files = [ROOT / "mlx_ops.yaml", *(ROOT / "ops").glob("*.yaml")]
    for entry in [entry for path in files for entry in yaml.safe_load(path.read_text())]:
        assert set(entry) <= set(properties)
    assert all("description" in value for value in properties.values())
