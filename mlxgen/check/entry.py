"""Reads a single entry: its keys and signature, and checks which keys can be combined."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from functools import partial
from typing import Any

from ..diagnostics import Diagnostics
from ..formula.mlx import table
from ..model.kinds import Kind
from ..model.op import Form
from ..model.signature import Signature
from ..read.keys import OpEntry
from ..read.names import clash, generated, meanings
from ..read.signature import combine, parse_signature
from ..read.validate import validate
from ..read.yaml import Entry
from .context import GENERATED, MESSAGES, SIGNATURES, Context, Named, Path, SharedState
from .lets import read_lets
from .others import Others

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
DEEPEST = 10  # nested submodules, each a folder
LONGEST = 200  # characters of a name, which is that of a file
# Keys that must be valid before the forward computation can be resolved.
_FORM_KEYS = frozenset(
    {"dispatch", "composite", "cpp", "axes", "shape", "dtype", "dtypes", "manual", "donate"}
)
_KERNEL_KEYS = ("integers", "vmap", "jvp", "manual")


_BACKENDS = {"eval_cpu": "cpu", "eval_gpu": "metal"}
_SAYS = {"vjp": "grad", **dict.fromkeys(_BACKENDS, "dispatch")}  # keys that define these parts


def read_entry(entry: Entry, shared: SharedState) -> Context | None:
    """Read the keys and signature of an entry; return None if it has no name or signature."""
    diags = shared.diags
    raw, left_out = validate(entry, entry.name, diags)
    signature = _signature(entry, raw, left_out, diags) if raw else None
    if raw is None or signature is None:
        return None
    name = raw.name or signature.name
    if name is None:
        if "name" not in left_out:
            diags.error(MESSAGES("no_name"), entry.span())
        return None
    others = Others(shared.file)
    context = Context(
        entry,
        name,
        diags,
        shared=shared,
        others=others,
        raw=raw,
        signature=signature,
        left_out=left_out,
    )
    _check_names(context)
    read_lets(context)
    return context


def _signature(
    entry: Entry, raw: OpEntry, left_out: frozenset[str], diags: Diagnostics
) -> Signature | None:
    """Parse the signature of an entry, which one or two keys define."""
    named = Named(entry, entry.name or "", diags)
    given = [key for key in SIGNATURES if getattr(raw, key) is not None]
    if "signature" in given and len(given) > 1:
        named.error("two_signatures", (given[1],), key=True, other=given[1])
        return None
    if not given and left_out.isdisjoint(SIGNATURES) and (raw.model_fields_set or not left_out):
        named.error("no_signature")
    reports = {key: partial(named.report_in, (key,)) for key in given}
    found = [parse_signature(getattr(raw, k), SIGNATURES[k], reports[k]) for k in given]
    if len(found) == 2 and found[0] and found[1]:
        return combine(found[0], found[1], reports["python_signature"])
    return found[0] if len(found) == 1 else None


def _dotted(name: str) -> list[str]:
    """Return the key of the help for names such as ``special.erf``."""
    return ["dotted"] * all(map(_IDENTIFIER.match, (name + ".x").split("."))) * ("." in name)


def _last(name: str) -> dict[str, Any]:
    """Return a name, its module and its last part, for messages."""
    module, _, last = name.rpartition(".")
    return {"name": name, "module": module, "last": last}


def _check_names(context: Context) -> None:
    """Check the entry's names in C++ and in Python, independently of other entries."""
    raw, name, signature = context.raw, context.name, context.signature
    reason = clash(name, "an operator") if raw.name else None
    problem = "no_identifier" if raw.name and not _IDENTIFIER.match(name) else "taken"
    if reason or problem == "no_identifier":
        about: Any = {"problem": problem, "reason": reason}
        context.error("bad_name", ("name",), *_dotted(name), **_last(name), **about)
    elif _other_name(raw, signature):
        context.error("two_names", (_last_signature(raw),), other=signature.name, name=raw.name)
    names: list[tuple[str, Path]] = [(a, ("aliases", i)) for i, a in enumerate(raw.aliases)]
    if raw.python_name or (context.ok and not generated(name)):
        path: Path = ("python_name",) if raw.python_name else context.at_name
        names.append((context.python_name, path))
    for python_name, path in names:
        module, short = "", python_name
        if path[:1] == ("aliases",):
            module, _, short = python_name.rpartition(".")
        if why := _python_problem(short, GENERATED["stubs"]):
            where = str(path[0]) if path else "name"
            keys = [*(_dotted(python_name) if where != "aliases" else []), where]
            context.error("bad_python_name", path, *keys, **_last(python_name), problem=why)
        elif module:
            _check_module(context, module, path)
    if raw.module is not None:
        _check_module(context, raw.module, ("module",))


def _check_module(context: Context, module: str, path: Path) -> None:
    """Report a path of submodules that Python cannot have."""
    parts = module.split(".")
    if len(parts) > DEEPEST:
        about: Any = {"part": parts[DEEPEST], "problem": "deep", "limit": DEEPEST}
        context.error("bad_module", path, module=module, **about)
        return
    for part in parts:
        if problem := _python_problem(part):
            context.error("bad_module", path, module=module, part=part, problem=problem)
            break


def _last_signature(raw: OpEntry) -> str:
    """Return the key of the signature; of two, that with the names of the arguments."""
    return next(key for key in reversed(SIGNATURES) if getattr(raw, key))


def _other_name(raw: OpEntry, signature: Signature) -> bool:
    """Return whether the signature and the key `name` contradict each other."""
    return bool(
        raw.name
        and signature.name not in (None, raw.name, raw.python_name)
        and signature.python_name is None
    )


def _check_meanings(context: Context) -> None:
    """Report arguments and outputs whose names have a meaning in formulas of the entry."""
    raw, signature = context.raw, context.signature
    derived = raw.grad is not None or isinstance(raw.jvp, dict)
    scopes = ["gradients"] * derived + ["kernels"] * (context.form is Form.KERNELS)
    arrays = [arg.name for arg in signature.arrays]
    taken = meanings(arrays, context.output_names, scopes)
    key = _last_signature(raw)
    places = {arg.name: arg.offset for arg in signature.args}
    for name in (*places, *context.output_names):
        if name in taken:
            start = getattr(raw, key).index(name, *places.get(name, ()))
            what = "an argument" if name in places else "an output"
            about: Any = {"name": name, "what": what, "reason": taken[name], "better": f"my_{name}"}
            context.error("has_meaning", (key,), at=(start, start + len(name)), **about)


def _python_problem(name: str, types: Collection[str] = ()) -> str | None:
    """Return why ``name`` cannot be a public name in Python: a name in messages.yaml, or None."""
    problems = {
        "no_identifier": not _IDENTIFIER.match(name),
        "keyword": keyword.iskeyword(name),
        "underscores": name.startswith("__"),
        "long": len(name) > LONGEST,
        "of_packages": name in GENERATED["packages"],
        "of_stubs": name in types,
    }
    return next((problem for problem, is_so in problems.items() if is_so), None)


def form_known(context: Context) -> bool:
    """Return whether all keys that define the forward computation are valid."""
    return not context.left_out & _FORM_KEYS


def check_keys(context: Context) -> bool:
    """Check the entry's keys against its form; return whether it can be resolved further."""
    raw, error, form = context.raw, context.error, context.form
    wrong = "not_for_bound" if form is Form.BIND else "not_for_composite"
    for key in _KERNEL_KEYS if form is not Form.KERNELS else ():
        if getattr(raw, key) not in (None, []):
            error(wrong, (key,), key=True, what=key)
    if raw.cpp is not None and form is not Form.BIND:
        other = "dispatch" if raw.dispatch else "composite"
        error("cpp_beside", ("cpp",), key=True, other=other)
    for key in ("tags", "variants", "manual"):
        context.not_twice(getattr(raw, key), (key,))
    if "internal" in raw.tags and (raw.module or raw.aliases or set(raw.variants) - {"function"}):
        error("internal", ("tags",))
    if "method" in raw.variants:
        _check_method(context)
    _check_assigning(context)
    _check_meanings(context)
    _check_manual(context)
    return _check_arrays(context)


def _check_arrays(context: Context) -> bool:
    """Check that the signature has the arrays that kernels and gradients need."""
    signature, kernels = context.signature, context.form is Form.KERNELS
    if kernels and any(o.type.kind is Kind.ARRAYS for o in signature.outputs):
        context.error("list_of_kernel", ("signature",))
        return False
    own = kernels or context.raw.grad is not None
    hidden = [arg.name for arg in signature.args if arg.type.kind is Kind.OPTIONALS]
    if own and hidden:
        context.error("hidden_arrays", ("signature",), name=hidden[0])
        return False
    if signature.arrays or not own:
        return True
    context.error("no_arrays")
    return False


def _check_assigning(context: Context) -> None:
    """Check that variants which give arrays a new value have these arrays."""
    signature, variants = context.signature, context.raw.variants
    path, outputs = ("variants",), signature.outputs
    for variant in ("inplace", "out"):
        if variant in variants and "function" not in variants:
            context.error("variant_alone", path, variant=variant)
        if variant in variants and any(o.type.kind is Kind.ARRAYS for o in outputs):
            context.error("variant_of_list", path, variant=variant)
    if "inplace" in variants:
        first = next((arg.type for arg in signature.arrays), None)
        if first is None or first.kind is not Kind.ARRAY or first.optional:
            context.error("inplace_without_array", path)
        elif len(outputs) > 1:
            context.error("inplace_of_several", path)
        if f"{context.python_name}_" in GENERATED["mx.array"] and "method" in variants:
            context.error("method_taken", path, name=f"{context.python_name}_")
    if "out" in variants and any(arg.name == "out" for arg in signature.args):
        context.error("out_twice", path)


def _check_method(context: Context) -> None:
    """Check that the op can be a method of mx.array."""
    args, name = context.signature.declared, context.python_name
    path = ("variants",)
    if "function" not in context.raw.variants:
        context.error("method_alone", path)
    if not (args and args[0].type.kind is Kind.ARRAY and not args[0].type.is_union):
        context.error("method_without_array", path, key=True)
    if name in GENERATED["mx.array"] or name in table(context.shared.settings.mlx).methods:
        context.error("method_taken", path, name=name)


def _check_manual(context: Context) -> None:
    """Report manual parts that the entry defines anyway."""
    raw = context.raw
    dispatch: Any = raw.dispatch
    for part in raw.manual:
        path: Path = (_SAYS.get(part, part),)
        value: Any = getattr(raw, str(path[0]), None)
        if part in _BACKENDS and isinstance(dispatch, dict):
            path = ("dispatch", _BACKENDS[part])
            value = dispatch.get(_BACKENDS[part])
        if value is not None:
            context.error("manual_given", path, key=True, what=path[-1], part=part)
