"""Reports name clashes of entries with each other and with the package: in C++, files and Python.

The names of all entries are compared, even if only some entries are resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..model.op import camel, metal_stem
from ..model.signature import Signature
from ..read.names import clash, generated
from ..read.settings import Settings
from ..read.sources import Sources
from .arguments import HELPERS
from .context import Named, Path
from .entry import DEEPEST


def check_names(
    entries: Mapping[str, Named],
    settings: Settings,
    sources: Sources,
    signature: Callable[[str], Signature | None],
) -> None:
    """Report names that are already in use, at the later entry.

    Args:
        entries: All entries of the file, by name.
        settings: The names of the package.
        sources: The hand-written files.
        signature: Returns the signature of an entry that shares a Python name.
    """
    _check_cpp_names(entries, settings, _files(settings, sources))
    _check_python_names(entries.values(), signature)


def _files(settings: Settings, sources: Sources) -> dict[str, str]:
    """Return the hand-written files by the names of their generated sources."""
    files = [(settings.metal, path) for path in sources.metal_files()]
    files += [(settings.csrc, path) for path in sources.cpp_files()]
    return {
        f"metal_{metal_stem(path.relative_to(folder).as_posix())}": settings.relative(path)
        for folder, path in files
    }


def _check_cpp_names(
    entries: Mapping[str, Named], settings: Settings, sources: Mapping[str, str]
) -> None:
    """Report clashes of C++ classes, functions and files."""
    classes: dict[str, Named] = {}
    files: dict[str, Named] = {}
    for name, entry in entries.items():
        class_name = camel(name)
        reason, file = generated(name), sources.get(name)
        is_class = name[:1].isalpha() and class_name in (name, settings.namespace)
        problems = {
            "package_header": name == settings.name,
            "generated_source": file,
            "taken": reason,
            "name_of_class": is_class,
        }
        problem = next((problem for problem, is_so in problems.items() if is_so), None)
        if problem and not clash(name, "an operator"):  # a clash was already reported
            about: Any = {"problem": problem, "reason": reason, "file": file}
            entry.error("bad_name", entry.at_name, name=name, **about)
            continue
        if (other := classes.setdefault(class_name, entry)) is not entry:
            entry.error("class_taken", entry.at_name, owner=other.label, same=class_name)
        elif (other := files.setdefault(name.lower(), entry)) is not entry:
            entry.error("file_taken", entry.at_name, owner=other.label)
        stem, _, part = name.rpartition("_")
        if part in HELPERS and stem in entries:
            owner = entries[stem].label
            entry.error("function_taken", entry.at_name, owner=owner, name=name)


def _check_python_names(
    entries: Iterable[Named], signature: Callable[[str], Signature | None]
) -> None:
    """Report clashes of Python functions, aliases and submodules."""
    modules: dict[str, Named] = {}
    for entry in entries:
        aliases = (alias.rpartition(".")[0] for alias in entry.entry.words("aliases"))
        for module in (entry.text("module"), *aliases):
            parts = module.split(".", DEEPEST)
            for i in range(len(parts)):
                modules.setdefault(".".join(parts[: i + 1]), entry)
    seen: dict[str, list[Named]] = {}
    for entry in entries:
        if entry.internal:
            continue
        for name, path in entry.named:
            others = seen.setdefault(name, [])
            if entry in others:
                entry.error("twice_in_python", path, name=name)
            elif name in modules and name[-1:] not in ("", "."):  # else it is not a name
                entry.error("submodule", path, name=name, owner=modules[name].label)
            others.append(entry)
    for entry in entries:
        if _has_inplace(entry):
            owners = {name: others[0] for name, others in seen.items()} | modules
            _check_inplace(entry, owners, seen, signature)


def _check_inplace(
    entry: Named,
    owners: Mapping[str, Named],
    overloads: Mapping[str, Sequence[Named]],
    signature: Callable[[str], Signature | None],
) -> None:
    """Report an in-place variant that has the name of something else, or another target."""
    path: Path = ("variants",)
    own = signature(entry.name)
    for name in entry.paths:
        if other := owners.get(f"{name}_"):
            entry.error("inplace_taken", path, name=f"{name}_", owner=other.label)
        others = overloads[name]
        first = next(filter(_has_inplace, others))
        theirs = signature(first.name)
        if own and theirs and own.target != theirs.target:
            entry.error("inplace_targets", path, name=f"{name}_", owner=first.label)


def _has_inplace(entry: Named) -> bool:
    return not entry.internal and "inplace" in entry.entry.words("variants")
