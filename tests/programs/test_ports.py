"""The operators of examples/ports: their checks and tests, on the CPU and on emulated Metal."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Collection
from pathlib import Path

import builds
import pytest
import yaml

pytestmark = pytest.mark.extended
ROOT = Path(__file__).resolve().parents[2]
PORTS, PAGE = ROOT / "examples" / "ports", ROOT / "docs" / "ports.md"
ENTRIES, METAL, CSRC = PORTS / "mlx_ops.yaml", PORTS / "kernels" / "metal", PORTS / "csrc"
COMPARE = """
    import mlx.core as mx
    import mlx_ports
    import mlxgen.metal
    import numpy as np

    data, x = mx.random.normal((5,)), mx.random.normal((3, 4))
    indices, indptr = mx.array([1, 2, 0, 1, 2]), mx.array([0, 2, 2, 5])

    def results(f):
        def loss(data, x):
            return (f(data, indices, indptr, x) ** 2).sum()

        found = f(data, indices, indptr, x), *mx.grad(loss, argnums=[0, 1])(data, x)
        mx.eval(found)
        return [np.array(each) for each in found]

    wanted = results(mlx_ports.csr_matmul)
    with mlxgen.metal.emulate(pretend=True) as seen:
        import before

        found = results(before.csr_matmul)
    assert seen.launches and not seen.errors
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
"""


def count(text: str) -> int:
    """Return the number of lines without empty ones and comments."""
    lines = map(str.strip, text.splitlines())
    return sum(bool(line) and not line.startswith(("//", "#")) for line in lines)


def count_entries(names: Collection[str]) -> int:
    """Return the lines of some entries."""
    parts = re.findall(r"(?ms)^- signature: \"(\w+)(.*?)(?=^- |\Z)", ENTRIES.read_text("utf-8"))
    return sum(count(name + rest) for name, rest in parts if name in names)


def count_functions(folder: Path, names: Collection[str]) -> int:
    """Return the lines of some functions; those of ``sinkhorn`` have helpers."""
    function = r"(?ms)^(?:template[^\n]*\n)?(?:\[\[kernel\]\]|inline|void)[^(;]*?(\w+)\(.*?^}"
    names = {*names, *["normalize", "normalize_vjp"] * ("sinkhorn" in names)}
    found = [m for path in folder.iterdir() for m in re.finditer(function, path.read_text("utf-8"))]
    return sum(count(m[0]) for m in found if m[1] in names)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project; ``site`` next to it contains the installed package."""
    root = Path(shutil.copytree(PORTS, tmp_path_factory.mktemp("ports") / "ports"))
    builds.install(builds.build_wheel(root), root.parent / "site")
    return root


def run(project: Path, *command: str) -> None:
    """Run Python with the installed package; it must succeed."""
    builds.output(builds.run(*command, cwd=project, path=project.parent / "site"))


def test_cpu(project: Path) -> None:
    run(project, "-m", "pytest", "-q", "-n0", "tests")


def test_metal(project: Path) -> None:
    """Every kernel is launched, also in all dtypes and with all values of template parameters."""
    run(project, "-m", "mlxgen", "metal-test")


def test_page(project: Path) -> None:
    """The operation of ports.md gives the same results before and after."""
    blocks = dict(re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8")))
    (entry,) = yaml.safe_load(blocks["yaml"])
    entries = yaml.safe_load(ENTRIES.read_text(encoding="utf-8"))
    assert any(entry.items() <= other.items() for other in entries)
    assert blocks["cpp"] in (METAL / "csr.metal").read_text(encoding="utf-8")
    (project / "before.py").write_text(blocks["python"], encoding="utf-8")
    run(project, "-c", textwrap.dedent(COMPARE))


def test_lines() -> None:
    """The numbers of lines in ports.md are right."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (`[^|]*`) \|.*\| (\d+) \| (\d+) \| (\d+) \|$", page)
    for shown, *given in rows:
        names = re.findall(r"\w+", shown)
        functions = (count_functions(folder, names) for folder in (METAL, CSRC))
        assert [*map(int, given)] == [count_entries(names), *functions], shown
    entries = yaml.safe_load(ENTRIES.read_text(encoding="utf-8"))
    named = {word for shown, *_ in rows for word in re.findall(r"\w+", shown)}
    assert named == {entry["signature"].partition("(")[0] for entry in entries}
    blocks = dict(re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", page))
    source = count(blocks["python"].split('"""')[1])
    assert f"| kernel | {source} | {count_functions(METAL, ['csr_matmul'])} |" in page
    rest, entry = count(blocks["python"]) - source, count(blocks["yaml"])
    assert f"| call, checks, gradient, path for the CPU | {rest} | {entry} |" in page
