"""Reports name clashes of entries with each other and with the package: in C++, files and Python.

The names of all entries are compared, even if only some entries are resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..model.op import camel, metal_stem
from ..read.names import clash
from ..read.settings import Settings
from ..read.sources import Sources
from .arguments import HELPERS
from .context import FORMS, Named, Path
from .entry import DEEPEST


def check_names(entries: Mapping[str, Named], settings: Settings, sources: Sources) -> None:
    """Report names that are already in use, at the later entry."""
    _check_cpp_names(entries, settings, _taken(settings, sources))
    _check_python_names(entries.values())


def _taken(settings: Settings, sources: Sources) -> dict[str, str]:
    """Return the names of the package's own files, each with the reason for a message."""
    package, files = settings.name, [(settings.metal, path) for path in sources.metal_files()]
    files += [(settings.csrc, path) for path in sources.cpp_files()]
    taken = {package: f"include/{package}/{package}.h is the header of the whole package"}
    for folder, path in files:
        stem = metal_stem(path.relative_to(folder).as_posix())
        taken[f"metal_{stem}"] = f"the generated source of {settings.relative(path)} has this name"
    return taken


def _check_cpp_names(
    entries: Mapping[str, Named], settings: Settings, taken: Mapping[str, str]
) -> None:
    """Report clashes of C++ classes, functions and files."""
    classes: dict[str, Named] = {}
    files: dict[str, Named] = {}
    for name, entry in entries.items():
        class_name = camel(name)
        forms = (why for why, form in FORMS if form.fullmatch(name))
        reason = taken.get(name) or next(forms, None)
        if reason is None and name[:1].isalpha() and class_name in (name, settings.namespace):
            reason = "its class would have the same name; begin it with a lower-case letter"
        if reason and not clash(name, "an operator"):  # a clash was already reported
            problem = f"cannot be used: {reason}"
            entry.error("bad_name", entry.at_name, name=name, problem=problem)
            continue
        shared = {
            class_name: f"has the same C++ class name '{class_name}'",
            name.lower(): "differs only in case, and some file systems cannot distinguish their "
            "sources",
        }
        for (key, what), owners in zip(shared.items(), (classes, files), strict=False):
            other = owners.setdefault(key, entry)
            if other is not entry:
                entry.error("taken_in_cpp", entry.at_name, what=f"{other.label} {what}")
                break
        stem, _, part = name.rpartition("_")
        if part in HELPERS and stem in entries:
            what = f"the generated C++ of {entries[stem].label} also has a function '{name}'"
            entry.error("taken_in_cpp", entry.at_name, what=what)


def _check_python_names(entries: Iterable[Named]) -> None:
    """Report clashes of Python functions, aliases and submodules."""
    modules: dict[str, Named] = {}
    for entry in entries:
        parts = entry.text("module").split(".", DEEPEST)
        for i in range(len(parts)):
            modules.setdefault(".".join(parts[: i + 1]), entry)
    seen: dict[str, Named] = {}
    for entry in entries:
        if "internal" in entry.entry.words("tags"):
            continue
        own: set[str] = set()
        module = entry.text("module")
        at_name: Path = ("python_name",) if entry.text("python_name") else entry.at_name
        names = [(entry.python_name, at_name)]
        names += [(alias, ("aliases", i)) for i, alias in enumerate(entry.entry.words("aliases"))]
        if "inplace" in entry.entry.words("variants"):
            names += [(f"{short}_", path) for short, path in names]
        for short, path in names:
            name = f"{module}.{short}" if module else short
            other = seen.setdefault(name, entry)
            if other is not entry or short in own:
                owner = "the operator itself" if other is entry else other.label
                where = str(path[0]) if path else "name"
                entry.error("taken_in_python", path, where, name=name, owner=owner)
            elif name in modules:
                entry.error("submodule", path, name=name, owner=modules[name].label)
            own.add(short)
