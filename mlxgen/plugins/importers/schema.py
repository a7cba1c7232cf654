"""The operators of ATen, from the schema file that is part of every installation of torch.

``native_functions.yaml`` has one line per overload, such as ``add.Tensor(Tensor self, Tensor other,
*, Scalar alpha=1) -> Tensor``, and keys about its Python names. Reading needs neither torch's
library nor its code generator. A parsed signature prints as exactly the text that it came from.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ...diagnostics import COMMAND_LINE, Diagnostics, install
from . import MESSAGES

_FILE = Path("packaged", "ATen", "native", "native_functions.yaml")

_ARGUMENT = re.compile(
    r"(?P<type>\w+)(?:\((?P<alias>[^)]*)\))?(?P<suffix>[\[\]\d?]*)"
    r"(?: (?P<name>\w+)(?:=(?P<default>{default}))?)?".format(
        default=r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^,]+"""
    )
)
_SIGNATURE = re.compile(r"(?P<name>\w+)(?:\.(?P<overload>\w+))?\((?P<args>.*)\) -> (?P<returns>.*)")


class SchemaError(Exception):
    """Raised if a signature cannot be parsed."""


class Argument(NamedTuple):
    """An argument or, without a default, an output."""

    type: str  # without the alias: `Tensor?`, `SymInt[2]`
    name: str = ""
    default: str | None = None
    kw_only: bool = False
    alias: str = ""  # `a!` if the function writes to it

    @property
    def optional(self) -> bool:
        """True if the argument can be None."""
        return self.type.endswith("?")

    @property
    def written(self) -> bool:
        """True if the function writes to the argument."""
        return "!" in self.alias

    def __str__(self) -> str:
        type, begin = self.type, re.match(r"\w+", self.type)
        if self.alias and begin:
            type = f"{begin[0]}({self.alias}){type[begin.end() :]}"
        default = "" if self.default is None else f"={self.default}"
        return f"{type} {self.name}{default}" if self.name else type


class Overload(NamedTuple):
    """One overload of an operator, with its schema."""

    base: str
    overload: str
    args: tuple[Argument, ...]
    returns: tuple[Argument, ...]
    module: str | None = None  # `special`, `linalg`, `fft`, `nn`, `sparse`
    method: bool = False

    @property
    def name(self) -> str:
        """The name of torch.ops.aten: ``add.Tensor``; ``add`` if the overload has no name."""
        return f"{self.base}.{self.overload}" if self.overload else self.base

    @property
    def functional(self) -> bool:
        """True if the function writes to none of its arguments."""
        return not any(arg.written for arg in self.args)

    def __str__(self) -> str:
        args = [str(arg) for arg in self.args]
        first = next((i for i, arg in enumerate(self.args) if arg.kw_only), None)
        if first is not None:
            args.insert(first, "*")
        returns = ", ".join(map(str, self.returns))
        if len(self.returns) != 1:
            returns = f"({returns})"
        return f"{self.name}({', '.join(args)}) -> {returns}"


class _Row(BaseModel):
    """The keys of the schema file that are read; a release of torch may add others."""

    model_config = ConfigDict(extra="ignore", strict=True)

    func: str
    variants: str = "function"
    python_module: str | None = None
    autogen: str = ""


class Schema:
    """All overloads of a release of torch.

    ``generated`` has the names of the overloads that torch's code generator adds, and ``unread``
    the reasons why signatures of a newer torch cannot be parsed, by base name.
    """

    def __init__(
        self,
        version: str,
        overloads: Sequence[Overload],
        generated: Set[str],
        unread: Mapping[str, str],
    ) -> None:
        self.version = version
        self.overloads = {overload.name: overload for overload in overloads}
        self.generated = generated
        self.unread = unread

    @cached_property
    def operators(self) -> Mapping[str, Sequence[Overload]]:
        """The overloads of each base name, in torch's order."""
        found: dict[str, list[Overload]] = defaultdict(list)
        for overload in self.overloads.values():
            found[overload.base].append(overload)
        return found

    def candidates(self, base: str) -> Sequence[Overload]:
        """Return the functional overloads of an operator; if it has none, those that write."""
        every = self.operators.get(base, ())
        functional = [overload for overload in every if overload.functional]
        plain = [o for o in every if not any(arg.kw_only and arg.written for arg in o.args)]
        return functional or plain or every

    def twins(self, overload: Overload) -> Iterator[str]:
        """Yield ``inplace`` and ``out`` if torch has the overload in these forms too."""
        args = [(arg.type, arg.name) for arg in overload.args]
        parts = [part for part in (overload.overload, "out") if part]
        inplace = overload._replace(base=f"{overload.base}_")
        out = overload._replace(overload="_".join(parts))
        for form, twin in {"inplace": inplace, "out": out}.items():
            written = (
                [(arg.type, arg.name) for arg in other.args if form == "inplace" or not arg.alias]
                for other in self.operators.get(twin.base, ())
                if not other.functional
            )
            if twin.name in self.generated or args in written:
                yield form


def parse(text: str) -> Overload:
    """Parse a signature of ATen; raise ``SchemaError`` if it is damaged."""
    found = _SIGNATURE.fullmatch(text)
    if not found:
        raise SchemaError(f"'{text}' is not a signature of ATen")
    returns = found["returns"].removeprefix("(").removesuffix(")")
    if not found["returns"].startswith("("):
        returns = found["returns"]
    args: list[Argument] = []
    star = False
    for argument in _arguments(found["args"], text):
        if argument is None:
            star = True
        else:
            args.append(argument._replace(kw_only=star))
    outputs = tuple(output for output in _arguments(returns, text) if output)
    return Overload(found["name"], found["overload"] or "", tuple(args), outputs)


def _arguments(text: str, signature: str) -> Iterator[Argument | None]:
    """Yield the arguments of a list; None is the star."""
    rest = text
    while rest:
        if rest.startswith("*"):
            end = 1
            yield None
        else:
            found = _ARGUMENT.match(rest)
            if not found:
                raise SchemaError(f"'{signature}' has the damaged argument '{rest}'")
            type = found["type"] + found["suffix"]
            name, alias = found["name"] or "", found["alias"] or ""
            yield Argument(type, name, found["default"], alias=alias)
            end = found.end()
        if rest[end:] and not rest[end:].startswith(", "):
            raise SchemaError(f"'{signature}' has the damaged argument '{rest}'")
        rest = rest[end + 2 :]


def installed(diags: Diagnostics) -> Schema | None:
    """Return the schema of the installed torch; report an error if there is none."""
    spec = importlib.util.find_spec("torchgen")
    folders = spec.submodule_search_locations or () if spec else ()
    paths = (Path(folder) / _FILE for folder in folders)
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        diags.error(MESSAGES("no_torch", install=install.pip("torch")), COMMAND_LINE)
        return None
    try:
        version = importlib.metadata.version("torch")
        return read(path, version.partition("+")[0])  # a build for a GPU has the same schema
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        why = str(error).splitlines()[0]
        diags.error(MESSAGES("unreadable_schema", path=path, reason=why), COMMAND_LINE)
        return None


def read(path: Path, version: str) -> Schema:
    """Read a schema file."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = TypeAdapter(list[_Row]).validate_python(yaml.load(path.read_text("utf-8"), loader))
    overloads: list[Overload] = []
    generated: set[str] = set()
    unread: dict[str, str] = {}
    for row in rows:
        generated |= {name.strip() for name in row.autogen.split(",")}
        try:
            overload = parse(row.func)
        except SchemaError as error:
            unread[re.split(r"\W", row.func)[0]] = str(error)
        else:
            method = "method" in row.variants
            overloads.append(overload._replace(module=row.python_module, method=method))
    return Schema(version, overloads, generated, unread)
