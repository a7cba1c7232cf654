"""Templates: StrictUndefined, blocks without whitespace, and calls with the names of the package.

The core has one folder of templates (files.py), and each language of a plug-in has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import jinja2

from ..model.languages import Package


class _PlainCalls(jinja2.runtime.Context):
    def call(
        self, function: Any, *args: Any, _block_vars: Any = 0, _loop_vars: Any = 0, **more: Any
    ) -> Any:
        return function(*args, **more)


class _Environment(jinja2.Environment):
    """An environment without slow features that templates do not need.

    These are attributes that can be keys, and calls of functions that need their context.
    """

    getattr = staticmethod(getattr)  # type: ignore[assignment]
    context_class = _PlainCalls


class Templates:
    """The templates of a folder, which are compiled on first use.

    Args:
        folder: The folder.
        filters: The filters.
        macros: Files whose macros all templates can use; each may use macros of earlier ones.
        constants: Further names.
    """

    def __init__(
        self,
        folder: Path,
        filters: Mapping[str, Callable[..., Any]],
        macros: Sequence[str] = (),
        **constants: object,
    ) -> None:
        self.folder, self._filters, self._macros = folder, filters, macros
        self._constants, self._found = constants, dict[str, jinja2.Template]()

    @cached_property
    def environment(self) -> jinja2.Environment:
        """The environment, with macros and constants as globals."""
        env = _Environment(
            loader=jinja2.FileSystemLoader(self.folder),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            auto_reload=False,
            autoescape=False,
            # Compiling the templates takes longer than generating a small package.
            bytecode_cache=jinja2.FileSystemBytecodeCache(),
        )
        env.filters.update(self._filters)
        env.globals |= self._constants
        for name in self._macros:  # globals, because importing them in each template takes time
            module = env.get_template(name).module
            env.globals |= {key: value for key, value in vars(module).items() if key[0] != "_"}
        return env

    def _template(self, name: str) -> jinja2.Template:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self.environment.get_template(name)
            found.globals = dict(found.globals)  # copying jinja's own mapping in each run is slow
        return found

    def macro(self, name: str) -> Callable[..., object]:
        """Return a macro by name."""
        return cast(Callable[..., object], self.environment.globals[name])

    def render(self, template: str, package: Package, **context: Any) -> str:
        """Render a template for a package."""
        return self._template(template).render(_names(package), **context)

    def blocks(self, template: str, package: Package, **context: Any) -> list[str]:
        """Render each block of a template, in order."""
        found = self._template(template)
        inside = found.new_context(_names(package) | context)
        return ["".join(block(inside)) for block in found.blocks.values()]


def _names(package: Package) -> dict[str, str]:
    """Return the variables of the package in templates."""
    api = f"{package.name.upper()}_API"
    return {"pkg": package.name, "ns": package.namespace, "api": api}
