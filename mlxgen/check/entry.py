"""One entry by itself: its keys and signature read, and what its keys mean together."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from typing import Any

from ..diagnostics import Diagnostics
from ..formula.mlx import table
from ..model.kinds import Kind
from ..model.op import Form
from ..model.signature import Signature
from ..read.keys import OpEntry, validate
from ..read.names import clash
from ..read.signature import combine, parse_signature
from ..read.yaml import Entry
from .context import Context, Path, Surroundings

RENAME = "choose another name; `python_name` can give Python a different one"

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_SIGNATURES = ("signature", "cpp_signature", "python_signature")
# Keys without which an entry cannot be understood further.
_FORM_KEYS = frozenset({"dispatch", "composite", "cpp", "shape", "dtype", "dtypes", "manual"})
_KERNEL_KEYS = ("shape", "dtype", "dtypes", "integers", "vmap", "jvp", "manual")

# What every package has: generated or in _load.py.
_PACKAGE_NAMES = frozenset({"dispatch_table", "install_methods", "checks"})
# What stubs import or write in annotations.
_STUB_NAMES = frozenset(
    """array scalar bool int float str complex list tuple dict Sequence Literal TypeAlias Device
    DeviceType Dtype Stream ThreadLocalStream StreamOrDevice deprecated""".split()  # noqa: SIM905
)
# Members of mx.array that are no operations.
_ARRAY_MEMBERS = frozenset(
    "T at dtype imag item itemsize mT nbytes ndim real shape size tolist".split()  # noqa: SIM905
)


def read_entry(entry: Entry, around: Surroundings) -> Context | None:
    """The entry with its keys and signature read; None if it has no name or no signature."""
    diags = around.diags
    shown = entry.name
    raw, left_out = validate(entry, shown, diags)
    signature = _signature(entry, raw, shown, left_out, diags) if raw else None
    if raw is None or signature is None:
        return None
    name = raw.name or signature.name
    if name is None:
        if "name" not in left_out:
            help = "add `name: my_op`, or write the name in the signature"
            diags.error("MG107", "an entry without name", entry.span(), help=help)
        return None
    context = Context(around, entry, name, raw, signature, left_out)
    _check_names(context)
    return context


def _signature(
    entry: Entry, raw: OpEntry, op: str | None, left_out: frozenset[str], diags: Diagnostics
) -> Signature | None:
    """The signature that an entry spells in one key, or in two."""

    def report_at(key: str) -> Callable[[str, str, int, int, str | None], None]:
        def report(code: str, message: str, start: int, end: int, help: str | None) -> None:
            span = entry.text_span((key,), start, end)
            diags.error(code, message, span, help=help, op=op)

        return report

    whole, cpp_text, python_text = (getattr(raw, key) for key in _SIGNATURES)
    if whole is not None:
        for other in _SIGNATURES[1:]:
            if getattr(raw, other) is not None:
                message = f"`signature` and `{other}` are both given"
                help = "keep `signature`, or the pair `cpp_signature`/`python_signature`"
                diags.error("MG108", message, entry.span((other,), key=True), help=help, op=op)
                return None
        return parse_signature(whole, "any", report_at("signature"))
    cpp = python = None
    if cpp_text is not None:
        cpp = parse_signature(cpp_text, "cpp", report_at("cpp_signature"))
    if python_text is not None:
        python = parse_signature(python_text, "python", report_at("python_signature"))
    if cpp and python:
        return combine(cpp, python, report_at("python_signature"))
    if cpp_text is not None and python_text is not None:
        return None
    if cpp_text is None and python_text is None and left_out.isdisjoint(_SIGNATURES):
        diags.error(
            "MG107",
            "no signature" if op else "an entry without signature",
            entry.span(("name",)) if raw.name else entry.span(),
            help='add e.g. `signature: "my_op(array x, float alpha=1) -> array"`',
            op=op,
        )
    return cpp or python


def _check_names(context: Context) -> None:
    """The entry's names by themselves, in C++ and in Python."""
    raw, name, signature = context.raw, context.name, context.signature
    if raw.name and signature.name and signature.name not in (raw.name, raw.python_name):
        key = "python_signature" if raw.python_signature else "signature"
        key = "cpp_signature" if getattr(raw, key) is None else key
        message = f"the signature is called '{signature.name}'"
        context.error("MG109", message, (key,), help=f"use one name: '{raw.name}'")
    if raw.name:
        problem = None
        if not _IDENTIFIER.match(name):
            problem = "is not an identifier of C++"
        elif reason := clash(name, "an operator"):
            problem = f"cannot be used: {reason}"
        if problem:
            context.error("MG110", f"the name '{name}' {problem}", ("name",), help=RENAME)
    if raw.python_name:
        _check_python_name(context, raw.python_name, ("python_name",))
    elif context.ok:
        _check_python_name(context, name, context.at_name)
    for i, alias in enumerate(raw.aliases):
        _check_python_name(context, alias, ("aliases", i))
    for part in raw.module.split(".") if raw.module is not None else ():
        problem = _python_problem(part)
        if part in _PACKAGE_NAMES:
            problem = "is taken in every package"
        if problem:
            context.error(
                "MG115",
                f"'{raw.module}' is not a module path: '{part}' {problem}",
                ("module",),
                help="write names joined by dots, such as `special` or `nn.losses`",
            )
            break


def _check_python_name(context: Context, name: str, path: Path) -> None:
    problem = _python_problem(name)
    if problem is None and name in _PACKAGE_NAMES:
        problem = "is taken in every package"
    if problem is None and name in _STUB_NAMES:
        problem = "is a type in the generated stubs"
    if problem:
        message = f"the Python name '{name}' {problem}"
        context.error("MG110", message, path, help=rename_in_python(path))


def _python_problem(name: str) -> str | None:
    """Why ``name`` cannot be a public name in Python, if it cannot."""
    if not _IDENTIFIER.match(name):
        return "is not an identifier"
    if keyword.iskeyword(name):
        return "is a reserved word of Python"
    if name.startswith("_"):
        return "is private, by its underscore"
    return None


def rename_in_python(path: Path) -> str | None:
    """What helps where the Python name at ``path`` cannot be had."""
    return None if path[:1] == ("aliases",) else "choose another with `python_name`"


def decide_form(context: Context) -> bool:
    """Give the context its form; whether it is known how the forward is given."""
    raw = context.raw
    if raw.dispatch is not None or {"eval_cpu", "eval_gpu"} & set(raw.manual):
        context.form = Form.KERNELS
    else:
        context.form = Form.COMPOSITE if raw.composite is not None else Form.BIND
    context.elementwise = context.form is Form.KERNELS and raw.shape is None
    return not context.left_out & _FORM_KEYS


def check_keys(context: Context) -> bool:
    """Check the entry's keys against its form; whether more can be said of it."""
    raw = context.raw
    _check_form(context)
    usable = _check_arrays(context)
    if "method" in raw.variants:
        _check_method(context)
    for key in ("tags", "variants", "manual"):
        given = getattr(raw, key)
        for i, item in enumerate(given):
            if item in given[:i]:
                context.error("MG127", f"'{item}' is there twice", (key, i))
    _check_manual(context)
    if "internal" in raw.tags and (raw.module or raw.aliases or "method" in raw.variants):
        message = "an internal op is not bound in Python, so it has no module, alias or method"
        context.error("MG119", message, ("tags",))
    return usable


def _check_form(context: Context) -> None:
    """Keys that mean nothing in the form that the entry has."""
    raw, form = context.raw, context.form
    reason = "a composite takes it from MLX"
    if form is Form.BIND:
        reason = "a bound function brings its own"
    for key in _KERNEL_KEYS if form is not Form.KERNELS else ():
        if getattr(raw, key) not in (None, []):
            context.error(
                "MG111",
                f"`{key}` is for ops with kernels; {reason}",
                (key,),
                key=True,
                help="remove it, or add `dispatch`",
            )
    if raw.cpp is not None and form is not Form.BIND:
        beside = "dispatch" if raw.dispatch else "composite"
        message = f"`cpp` binds an existing function and cannot stand beside `{beside}`"
        context.error("MG111", message, ("cpp",), key=True)


def _check_arrays(context: Context) -> bool:
    """Whether there are the arrays that kernels and gradients need."""
    signature, kernels = context.signature, context.form is Form.KERNELS
    usable = True
    if not signature.arrays and (kernels or context.raw.grad is not None):
        context.error("MG116", "an op with kernels or gradients needs an array argument")
        usable = False
    if kernels and any(o.type.kind is Kind.ARRAYS for o in signature.outputs):
        context.error(
            "MG117",
            "kernels cannot return a list of arrays whose number only the call knows",
            ("signature",),
            help="name the outputs, or give a composite",
        )
        usable = False
    return usable


def _check_method(context: Context) -> None:
    """Whether the op can be a method of mx.array."""
    args, name = context.signature.args, context.raw.python_name or context.name
    if "function" not in context.raw.variants:
        help = "write [function, method]"
        context.error("MG118", "an operator is always a function too", ("variants",), help=help)
    if not (args and args[0].type.kind is Kind.ARRAY):
        message = "a method needs an array as its first argument"
        context.error("MG118", message, ("variants",), key=True)
    if name in _ARRAY_MEMBERS or name in table().methods:
        help = "give it another `python_name`, or make it a function only"
        context.error("MG118", f"mx.array has '{name}' already", ("variants",), help=help)


def _check_manual(context: Context) -> None:
    """Parts written by hand of which the entry says something all the same."""
    raw = context.raw
    kernels: Any = raw.dispatch
    if isinstance(kernels, str):  # one function for every backend
        kernels = dict.fromkeys(("cpu", "metal"), kernels)
    given: dict[str, tuple[Path, Any]] = {
        "vjp": (("grad",), raw.grad),
        "jvp": (("jvp",), raw.jvp),
        "vmap": (("vmap",), raw.vmap),
    }
    for part, backend in (("eval_cpu", "cpu"), ("eval_gpu", "metal")):
        item: Path = ("dispatch",) if isinstance(raw.dispatch, str) else ("dispatch", backend)
        given[part] = item, (kernels or {}).get(backend)
    for part, (path, value) in given.items():
        if part in raw.manual and value is not None:
            message = f"`{path[-1]}` is given although {part} is manual"
            context.error("MG405", message, path, key=True)
