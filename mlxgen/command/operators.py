"""Reads, resolves and selects the operators of a project, for all commands."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnostics import COMMAND_LINE, Diagnostics, did_you_mean
from ..read.packages import check_requirements
from ..read.settings import PATHS, TESTS, Settings, find
from ..read.settings import load as load_settings
from . import MESSAGES

# The module that checks files with Metal kernels; the generator imports no plug-in.
METAL_RULES = "mlxgen.emulator.rules"

if TYPE_CHECKING:
    from ..model.op import Op
    from ..read.sources import Sources
    from ..read.yaml import Documents, Entry


def mlx_include() -> Path | None:
    """Return the include folder of the installed MLX, which has the headers of its kernels."""
    spec = importlib.util.find_spec("mlx")
    folders = spec.submodule_search_locations or () if spec else ()
    found = (Path(folder) / "include" for folder in folders)
    return next((folder for folder in found if folder.is_dir()), None)


def installed_mlx() -> str | None:
    """Return the release of the installed MLX, according to its headers."""
    with suppress(OSError):
        text = ((mlx_include() or Path()) / "mlx" / "version.h").read_text("utf-8")
        return (
            ".".join(re.findall(r"#define MLX_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)) or None
        )
    return None


def settings_of(project: Path | None, file: Path | None, diags: Diagnostics) -> Settings | None:
    """Return the settings for a YAML file, or for the project's; None if an error was reported.

    A file of a project stands for all files of the project.

    The default for ``project`` is the project of the file, or without a file that of the working
    directory. A file outside of any project has default settings, with kernels next to it. The
    default MLX release is the installed one.
    """
    start = file.resolve().parent if file else Path.cwd()
    root = project or find(start)
    if file and not (root and (root / "pyproject.toml").is_file()):
        settings: Settings | None = plain_settings(file)
    else:
        settings = load_settings(root or start, diags, file)
    return settings and settings._replace(mlx=settings.mlx or installed_mlx())


def plain_settings(yaml: Path) -> Settings:
    """Return the settings for a YAML file without a project."""
    folder, name = yaml.resolve().parent, "ops"
    paths: dict[str, Any] = {key: folder / path.format(name=name) for key, path in PATHS.items()}
    return Settings(
        root=folder,
        name=name,
        namespace=name,
        tests=tuple(folder / path for path in TESTS),
        version="0",
        mlx=None,
        **paths | {"yaml": yaml.absolute()},
    )


def load(
    settings: Settings, diags: Diagnostics, only: Sequence[str] = ()
) -> tuple[list[Op], Sources]:
    """Read and resolve a project; return the operators without errors, and the sources.

    With ``only`` (see ``select``), only the names of other entries are checked.
    """
    from ..check.file import resolve

    document, sources = read(settings, diags)
    check_requirements(settings, diags)
    if document is None:
        return [], sources
    wanted = {e.name or "" for e in document.entries if not called(e).isdisjoint(only)}
    return resolve(document, settings, sources, diags, wanted if only else None), sources


def called(entry: Entry) -> set[str]:
    """Return all names that select an entry on the command line."""
    name = str(entry.python_name)
    tags = [f"tag:{tag}" for tag in entry.words("tags")]
    return {str(entry.name), name, ".".join([*entry.words("module"), name]), *tags}


def read(settings: Settings, diags: Diagnostics) -> tuple[Documents | None, Sources]:
    """Parse the files of operators, and return them with the hand-written sources."""
    from ..read.sources import Sources, near
    from ..read.yaml import Documents

    document = Documents.load([near(file) for file in settings.files], diags)
    return document, Sources(settings, diags, mlx_include())


def check_metal(ops: Sequence[Op], sources: Sources, diags: Diagnostics) -> None:
    """Report code that Metal rejects in the kernel files of operators (MG801 to MG808)."""
    from ..read.preprocess import SourceError
    from ..read.sources import near

    used = [kernel for op in ops if (kernel := op.forward.kernel("metal")) is not None]
    if not used:
        return
    settings, broken_rules = sources.settings, import_module(METAL_RULES).broken_rules
    for shared, name in sorted({(kernel.shared, kernel.include) for kernel in used}):
        path = near((settings.csrc if shared else settings.metal) / name)
        own = [kernel for kernel in used if (kernel.shared, kernel.include) == (shared, name)]
        with suppress(SourceError):  # already reported by parsing
            for error in broken_rules(sources.metal.reader, path, own):
                diags.error(error.said, error.span)


def select(
    ops: Sequence[Op], include: Sequence[str], exclude: Sequence[str], diags: Diagnostics
) -> list[Op]:
    """Select operators by name or ``tag:name``; report unknown names."""
    from ..read.keys import TAGS

    if not (include or exclude):
        return list(ops)
    known = sorted({name for op in ops for name in (op.name, op.python_name, op.path)})
    tags = [f"tag:{tag}" for tag in TAGS]
    called = [
        {op.name, op.python_name, op.path, *(f"tag:{t}" for t in op.entry.tags)} for op in ops
    ]
    for pattern in [*include, *exclude]:
        if pattern not in tags and not any(pattern in names for names in called):
            near = did_you_mean(pattern, [*known, *tags])
            diags.error(MESSAGES("unknown_operator", name=pattern, near=near), COMMAND_LINE)
    return [
        op
        for op, names in zip(ops, called, strict=True)
        if (not include or not names.isdisjoint(include)) and names.isdisjoint(exclude)
    ]
