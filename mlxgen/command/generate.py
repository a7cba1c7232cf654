"""The pipeline in one place: settings, YAML, resolved operators, files.

``load`` is what every command and tool begins with; ``generate`` writes a package's sources.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..diagnostics import COMMAND_LINE, Diagnostics, Span, did_you_mean
from ..read import settings as settings_module
from ..read.settings import Settings
from . import write as writer

if TYPE_CHECKING:
    from ..model.op import Op
    from ..read.sources import Sources

HERE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that the output depends on, as bytes on disk."""

    paths: tuple[Path, ...]
    key: str


def mlx_include() -> Path | None:
    """The include folder of the installed MLX, where its Metal kernels' headers are."""
    spec = importlib.util.find_spec("mlx")
    for location in spec.submodule_search_locations or () if spec else ():
        folder = Path(location) / "include"
        if folder.is_dir():
            return folder
    return None


def inputs_of(settings: Settings, extra: str = "") -> Inputs:
    """The files that generating reads, and one hash over their contents."""
    parts_of_mlxgen = (
        "*.py",
        "*/*.py",
        "render/templates/*",
        "formula/data/*",
        "runtime/include/mlxgen/*.h",
    )
    own = sorted(path for pattern in parts_of_mlxgen for path in HERE.glob(pattern))
    project = [settings.root / "pyproject.toml", settings.yaml]
    for folder, suffixes in ((settings.csrc, (".h", ".cpp")), (settings.metal, (".metal", ".h"))):
        if folder.is_dir():
            project += sorted(p for p in folder.rglob("*") if p.suffix in suffixes)
    parts = [str(mlx_include()).encode(), repr(settings).encode(), extra.encode()]
    for path in [*own, *project]:
        parts.append(str(path).encode())
        parts.append(path.read_bytes() if path.is_file() else b"")
    return Inputs(tuple(project), writer.digest(parts))


def load_settings(root: Path, diags: Diagnostics) -> Settings | None:
    """The project's settings."""
    return settings_module.load(root, diags)


def plain_settings(root: Path, yaml: Path) -> Settings:
    """Settings for a YAML file that stands alone, without a project around it."""
    folder = yaml.resolve().parent
    return Settings(
        root=folder,
        name="ops",
        namespace="ops",
        yaml=yaml.resolve(),
        csrc=folder / "csrc",
        metal=folder / "kernels" / "metal",
        python=folder / "python" / "ops",
        docs=folder / "docs",
        tests=(folder / "tests",),
        version="0",
        mlx=None,
    )


def load(
    settings: Settings, diags: Diagnostics, yaml: Path | None = None
) -> tuple[list[Op], Sources]:
    """Read and resolve a file: (operators, sources); operators with errors are left out."""
    from ..check.file import resolve
    from ..read.sources import Sources
    from ..read.yaml import Document

    sources = Sources(settings, diags, mlx_include())
    path = yaml or settings.yaml
    shown = os.path.relpath(path)
    document = Document.load(path if shown.startswith("..") else shown, diags)
    ops = resolve(document, settings, sources, diags) if document is not None else []
    return ops, sources


def check_metal(ops: Sequence[Op], sources: Sources, diags: Diagnostics) -> None:
    """Report what Metal does not take in the kernel files that operators use (MG801 to MG807)."""
    from ..emulator.rules import BrokenRule, check_rules

    settings = sources.settings
    used = [kernel for op in ops if (kernel := op.kernel("metal")) is not None]
    for folder, name in sorted(
        {(settings.csrc if k.shared else settings.metal, k.include) for k in used}
    ):
        path = folder / name
        shown = os.path.relpath(path)
        includes = sources.metal_includes
        for error in check_rules(path if shown.startswith("..") else shown, includes):
            if isinstance(error, BrokenRule):  # else the scan has reported it
                diags.error(error.code, error.message, error.span, help=error.help)


def select(
    ops: Sequence[Op], include: Sequence[str], exclude: Sequence[str], diags: Diagnostics
) -> list[Op]:
    """The operators chosen by name or ``tag:name``; reports unknown names."""
    from ..read.keys import TAGS

    names = {op.name for op in ops} | {op.python_name for op in ops}
    known = [*sorted(names), *(f"tag:{t}" for t in TAGS)]

    def matches(op: Op, pattern: str) -> bool:
        if pattern.startswith("tag:"):
            return pattern[4:] in op.tags
        return pattern in (op.name, op.python_name)

    for pattern in [*include, *exclude]:
        if pattern not in known:
            diags.error(
                "MG606",
                f"no operator or tag '{pattern}'" + did_you_mean(pattern, known),
                COMMAND_LINE,
                help="give an operator's name, or tag:NAME",
            )
    return [
        op
        for op in ops
        if (not include or any(matches(op, p) for p in include))
        and not any(matches(op, p) for p in exclude)
    ]


@dataclass(frozen=True, slots=True)
class Result:
    """What ``generate`` did."""

    changes: writer.Changes | None  # None: nothing to do
    operators: int


def generate(
    settings: Settings,
    output: Path,
    diags: Diagnostics,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    check: bool = False,
) -> Result | None:
    """Write a package's generated files into ``output``.

    Args:
        settings: The project.
        output: Folder for the generated files.
        diags: Collects what is wrong; nothing is written when anything is.
        include: Names or ``tag:name`` to keep; all if empty. What they call is kept too.
        exclude: Names or ``tag:name`` to leave out.
        check: Write nothing, only compare.

    Returns:
        None when something was reported.
    """
    inputs = inputs_of(settings, repr((sorted(include), sorted(exclude))))
    if writer.up_to_date(output, inputs.key):
        return Result(None, 0)
    from ..read.yaml import no_garbage_collection

    with no_garbage_collection():
        return _generate(settings, output, diags, inputs, include, exclude, check)


def _generate(
    settings: Settings,
    output: Path,
    diags: Diagnostics,
    inputs: Inputs,
    include: Sequence[str],
    exclude: Sequence[str],
    check: bool,
) -> Result | None:
    from ..render.files import package_files, pieces, sources_cmake

    ops, sources = load(settings, diags)
    if not diags.ok:
        return None
    chosen = select(ops, include, exclude, diags)
    check_metal(chosen, sources, diags)
    if not diags.ok:
        return None
    wanted = {op.name for op in chosen}
    by_name = {op.name: op for op in ops}
    stack = list(wanted)
    while stack:
        for callee in by_name[stack.pop()].calls:
            if callee not in wanted:
                wanted.add(callee)
                stack.append(callee)
    made = [pieces(op, settings) for op in ops if op.name in wanted]
    files = package_files(made, settings, sources.metal_text)
    if not diags.ok:
        return None
    depends = [str(p) for p in inputs.paths]
    files["sources.cmake"] = sources_cmake(list(files), depends)
    try:
        changes = writer.write(output, files, inputs.key, dry_run=check)
    except OSError as error:
        where = Span(os.path.relpath(error.filename or output), 1, 1, 1, 1)
        diags.error("MG607", f"cannot write this: {error.strerror or error}", where)
        return None
    return Result(changes, len(wanted))


def doc_pages(ops: Sequence[Op], settings: Settings) -> dict[str, str]:
    """The pages of the docs folder that follow from the operators and from mlxgen itself."""
    from ..read.keys import json_schema
    from ..render.files import pieces, reference

    return {
        "operators.md": reference(pieces(op, settings) for op in ops),
        f"{settings.yaml.stem}.schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }
