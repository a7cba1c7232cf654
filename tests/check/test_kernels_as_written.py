"""Metal kernels as people write them: each is accepted unchanged, or rejected by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mlxgen.command.operators import load
from mlxgen.diagnostics import Diagnostics
from mlxgen.emulator.package import check_kernels
from mlxgen.model.op import Kernel
from mlxgen.read.settings import load as load_settings

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
BODY = "{ out[i] = x[i] * a; }\n"
POSITION = "uint i [[thread_position_in_grid]]) "
KERNEL = f"device const float* x, device float* out, constant int& a, {POSITION}{BODY}"
TYPED = KERNEL.replace("float*", "T*")
PROJECT = """
[project]
name = "kk"
version = "0.1"
[build-system]
requires = ["mlxgen"]
build-backend = "mlxgen.build"
[tool.mlxgen]
"""
ENTRY = """
- signature: "f(x: array, {argument}: {kind}, flag: bool = False) -> array"
  dispatch: {{metal: {{kernel: f, grid: [x.size], {more}}}}}
  composite: x * {composite}
  unused: {{flag: some kernels do}}
  axes: {{"x, out": ...}}
  dtypes: {dtypes}
"""

Check = Callable[..., tuple[Kernel | None, list[str]]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Return a function that returns the kernel of an entry, and the messages."""

    def check(
        metal: str,
        more: str = "",
        *,
        argument: str = "a",
        kind: str = "int",
        composite: str = "",
        dtypes: str = "[float32]",
        **files: str,
    ) -> tuple[Kernel | None, list[str]]:
        kernels = tmp_path / "kernels" / "metal"
        kernels.mkdir(parents=True)
        (tmp_path / "python" / "kk").mkdir(parents=True)
        (tmp_path / "python" / "kk" / "__init__.py").write_text("from kk._load import *\n")
        (tmp_path / "pyproject.toml").write_text(PROJECT)
        entry = ENTRY.format(
            argument=argument, kind=kind, composite=composite or argument, more=more, dtypes=dtypes
        )
        (tmp_path / "mlx_ops.yaml").write_text(entry)
        for name, text in {"f.metal": metal, **{f"{n}.h": t for n, t in files.items()}}.items():
            (kernels / name).write_text(text)
        diags = Diagnostics()
        settings = load_settings(tmp_path, diags)
        assert settings is not None
        ops, _ = load(settings, diags)
        messages = [] if diags.ok else [diags.render_text()]
        messages += [error.message for error in check_kernels(settings)]
        return (ops[0].forward.kernel("metal") if ops else None), messages

    return check


GIVEN = yaml.safe_load(Path(__file__).with_name("kernels_as_written.yaml").read_text("utf-8"))
ACCEPTED = GIVEN["accepted"]


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(check: Check, name: str) -> None:
    kernel, messages = check(HEAD + ACCEPTED[name])
    assert messages == []
    assert kernel is not None
    assert kernel.function == ("my_f" if name == "host_name" else "f")


IMPL = """
inline float first(DEV const float* p) { DEV const float* q = p; return *q; }
kernel void f(DEV const float* x, PTR(float) out, CREF(int) a, uint i [[thread_position_in_grid]]) {
  out[i] = first(x + i) * a;
}
"""


def test_macros_of_the_including_file(check: Check) -> None:
    defines = "#define DEV device\n#define PTR(T) device T*\n#define CREF(T) constant T&\n"
    _, messages = check(f'{HEAD}{defines}#include "impl.h"\n', impl=IMPL)
    assert messages == []


def test_a_header_means_something_else_in_each_file(check: Check) -> None:
    """A header makes a kernel of float and one of half."""
    head = "kernel void NAME(device const T* x, device T* out, constant int& a, "
    impl = f"{head}{POSITION}{BODY}"
    other = '#define T half\n#define NAME g\n#include "impl.h"\n#undef T\n#undef NAME\n'
    mine = '#define T float\n#define NAME f\n#include "impl.h"\n'
    _, messages = check(HEAD + other + mine, impl=impl)
    assert messages == []


def test_order_of_buffers(check: Check) -> None:
    kernel, _ = check(HEAD + ACCEPTED["numbers first"])
    assert kernel is not None
    assert {b.name: b.place for b in kernel.bindings} == {"a": 0, "out": 1, "x": 2}


def test_template_parameters(check: Check) -> None:
    head = "template <typename T, typename U, bool B, int N, typename Acc>\nkernel void f("
    body = TYPED.replace("T* out", "U* out").replace("x[i] * a", "x[i] * Acc(B ? N : a)")
    more = "template: {B: {of: flag}, N: {of: a % 2, values: [0, 1]}, Acc: {dtype: float32}}"
    kernel, messages = check(HEAD + head + body, more, dtypes="floating")
    assert messages == []
    assert kernel is not None
    assert kernel.variants["f_float16_T_0_1_float"] == ("half", "half", "0", "1", "float")
    assert len(kernel.variants) == 3 * 2 * 2


FLAG = (
    "constant bool flag [[function_constant(3)]];\nconstant bool large [[function_constant(4)]];\n"
)


def test_function_constants(check: Check) -> None:
    text = f"{HEAD}{FLAG}kernel void f({KERNEL}".replace("x[i] * a", "flag && large ? x[i] : a")
    kernel, messages = check(text, "constants: {large: a > 7}")
    assert messages == []
    assert kernel is not None
    found = {(b.name, b.place, b.type) for b in kernel.bindings if b.holds.value == "constant"}
    assert found == {("flag", 3, "bool"), ("large", 4, "bool")}


def test_half_numbers(check: Check) -> None:
    head = "constant bfloat b [[function_constant(0)]];\nkernel void f("
    text = KERNEL.replace("int& a", "half& a").replace("* a", "* a + float(b)")
    kernel, messages = check(
        f"{HEAD}{head}{text}", argument="a: float, b", kind="float", composite="a + b"
    )
    assert messages == []
    assert kernel is not None
    found = {(b.name, b.type) for b in kernel.bindings if b.type}
    assert found == {("a", "mx::float16_t"), ("b", "mx::bfloat16_t")}


def test_enums(check: Check) -> None:
    head = "enum class Mode { A, B };\ntemplate <typename T, Mode M>\nkernel void f("
    text = TYPED.replace("* a", "* (M == Mode::B ? a : 1)")
    kernel, messages = check(f"{HEAD}{head}{text}", "template: {M: {of: a % 2, values: [0, 1]}}")
    assert messages == []
    assert kernel is not None
    assert kernel.variants["f_float32_1"] == ("float", "(Mode)1")


def test_threadgroup_memory(check: Check) -> None:
    text = KERNEL.replace("constant", "threadgroup float4* s [[threadgroup(1)]], constant")
    kernel, messages = check(f"{HEAD}kernel void f({text}", "constants: {s: 32}")
    assert messages == []
    assert kernel is not None
    (memory,) = (b for b in kernel.bindings if b.holds.value == "memory")
    assert (memory.name, memory.place, memory.type) == ("s", 1, "16")


@pytest.mark.parametrize("name", ["HC", "HC_arg"])
def test_an_argument_whose_name_is_a_macro_elsewhere(check: Check, name: str) -> None:
    text = KERNEL.replace("int& a", f"int& {name}").replace("* a", f"* {name}")
    kernel, messages = check(f"{HEAD}kernel void f({text}", argument="HC")
    assert messages == []
    assert kernel is not None


@pytest.mark.parametrize("case", GIVEN["refused"], ids=lambda case: case["message"][:40])
def test_refused_by_name(check: Check, case: dict[str, str]) -> None:
    _, messages = check(HEAD + case["metal"], case.get("more", ""))
    assert case["message"] in str(messages)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{N: {dtype: float32}}", "the template parameter 'N' is a `int`"),
        ("{U: {of: a, values: [1]}}", "the template parameter 'U' is a `typename`"),
        ("{U: {dtype: float64}}", "Metal has no dtype 'float64'"),
        ("{N: {of: a, values: [-1, 1]}}", "ascending and not negative"),
        ("{B: {of: a}}", "expected a condition"),
        ("{B: {of: flag, values: [0, 2]}}", "must be at most 1"),
    ],
)
def test_template_of_another_kind(check: Check, template: str, message: str) -> None:
    head = "template <typename T, typename U = float, int N = 1, bool B = true>\nkernel void f("
    _, messages = check(f"{HEAD}{head}{TYPED}", f"template: {template}")
    assert message in str(messages)
