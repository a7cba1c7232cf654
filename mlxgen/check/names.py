"""Names that two entries, or one and the package, would share: in C++, in files, in Python.

All entries of the file are looked at, also where only some are resolved, and nothing of them but
their names.
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
    """Report names that are taken, at the entry that comes later."""
    _check_cpp_names(entries, settings, _taken(settings, sources))
    _check_python_names(entries.values())


def _taken(settings: Settings, sources: Sources) -> dict[str, str]:
    """Names that the package has itself, and why an operator cannot be called so."""
    package, files = settings.name, [(settings.metal, path) for path in sources.metal_files()]
    files += [(settings.csrc, path) for path in sources.cpp_files()]
    taken = {package: f"include/{package}/{package}.h is the header of the whole package"}
    for folder, path in files:
        stem = metal_stem(path.relative_to(folder).as_posix())
        taken[f"metal_{stem}"] = f"the source of {settings.relative(path)} is called so"
    return taken


def _check_cpp_names(
    entries: Mapping[str, Named], settings: Settings, taken: Mapping[str, str]
) -> None:
    """Classes, functions and files."""
    classes: dict[str, Named] = {}
    files: dict[str, Named] = {}
    for name, entry in entries.items():
        class_name = camel(name)
        forms = (why for why, form in FORMS if form.fullmatch(name))
        reason = taken.get(name) or next(forms, None)
        if reason is None and name[:1].isalpha() and class_name in (name, settings.namespace):
            reason = "its class would be called so as well; begin it with a small letter"
        if reason and not clash(name, "an operator"):  # which was reported
            problem = f"cannot be used: {reason}"
            entry.error("bad_name", entry.at_name, name=name, problem=problem)
            continue
        shared = {
            class_name: f"has the same C++ class name '{class_name}'",
            name.lower(): "differs in capital letters only, and some file systems cannot tell "
            "their sources apart",
        }
        for (key, what), owners in zip(shared.items(), (classes, files), strict=False):
            other = owners.setdefault(key, entry)
            if other is not entry:
                entry.error("taken_in_cpp", entry.at_name, what=f"{other.label} {what}")
                break
        stem, _, part = name.rpartition("_")
        if part in HELPERS and stem in entries:
            what = f"the C++ of {entries[stem].label} has a function '{name}' as well"
            entry.error("taken_in_cpp", entry.at_name, what=what)


def _check_python_names(entries: Iterable[Named]) -> None:
    """Functions, their aliases and submodules."""
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
