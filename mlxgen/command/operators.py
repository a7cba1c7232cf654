"""From a project to its operators: read, resolved, selected. What every command begins with."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..diagnostics import COMMAND_LINE, Diagnostics, did_you_mean
from ..read.settings import Settings
from ..read.settings import load as load_settings

if TYPE_CHECKING:
    from ..model.op import Op
    from ..read.sources import Sources
    from ..read.yaml import Document

__all__ = ["check_metal", "load", "load_settings", "mlx_include", "plain_settings", "select"]


def mlx_include() -> Path | None:
    """The include folder of the installed MLX, where its Metal kernels' headers are."""
    spec = importlib.util.find_spec("mlx")
    for location in spec.submodule_search_locations or () if spec else ():
        folder = Path(location) / "include"
        if folder.is_dir():
            return folder
    return None


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

    document, sources = read(settings, diags, yaml)
    ops = resolve(document, settings, sources, diags) if document is not None else []
    return ops, sources


def read(
    settings: Settings, diags: Diagnostics, yaml: Path | None = None
) -> tuple[Document | None, Sources]:
    """The entries of a file, if it can be read, and the hand-written sources."""
    from ..read.sources import Sources
    from ..read.yaml import Document

    path = yaml or settings.yaml
    shown = os.path.relpath(path)
    document = Document.load(path if shown.startswith("..") else shown, diags)
    return document, Sources(settings, diags, mlx_include())


def check_metal(ops: Sequence[Op], sources: Sources, diags: Diagnostics) -> None:
    """Report what Metal does not take in the kernel files that operators use (MG801 to MG807)."""
    from ..check.metal_rules import broken_rules
    from ..read.preprocess import SourceError
    from ..read.sources import near

    settings = sources.settings
    used = [kernel for op in ops if (kernel := op.kernel("metal")) is not None]
    for folder, name in sorted(
        {(settings.csrc if k.shared else settings.metal, k.include) for k in used}
    ):
        try:
            for error in broken_rules(sources.metal.reader, near(folder / name)):
                diags.error(error.code, error.message, error.span, help=error.help)
        except SourceError:
            pass  # reading it has reported that


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
