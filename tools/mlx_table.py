"""Derives the table of MLX's functions, mlxgen/formula/data/mlx_api.json, from MLX's releases.

``python -m tools.mlx_releases`` brings the releases here, and compares or stores the table. It has
the newest release, and for each older one what is different there from the next newer one.

The parameters of a stub (``mlx/core/*.pyi``) are aligned with those of each C++ overload in the
headers: by name, else in order among those of a fitting type. An overload becomes a ``Form`` (see
``mlxgen.formula.mlx``). What cannot be read off (functions whose binding does more than pass its
arguments on) is written down in ``SPECIAL``; what has no C++ counterpart at all is in ``OMITTED``,
with the reason that an error message gives.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxgen.formula.mlx import PARTS, Param

MODULES = ("", "linalg", "fft", "random", "fast")
HEADERS = ("ops.h", "einsum.h", "linalg.h", "fft.h", "random.h", "fast.h")

# Functions that MLX's C++ knows by another name.
CPP_NAMES = {
    "concat": "concatenate",
    "permute_dims": "transpose",
    "conj": "conjugate",
    "fft.fft2": "fft::fftn",
    "fft.ifft2": "fft::ifftn",
    "fft.rfft2": "fft::rfftn",
    "fft.irfft2": "fft::irfftn",
}

# Signatures that the stubs do not tell as the binding takes them.
SIGNATURES: dict[str, list[str]] = {
    "arange": [
        "start: int | float, stop: int | float, "
        "step: None | int | float = None, dtype: Dtype | None = None",
        "stop: int | float, step: None | int | float = None, dtype: Dtype | None = None",
    ],
    "atleast_1d": ["arys: array"],
    "atleast_2d": ["arys: array"],
    "atleast_3d": ["arys: array"],
    "softmax": ["a: array, /, axis: int | Sequence[int] | None = None, *, precise: bool = False"],
    "tri": ["n: int, m: int | None = None, k: int = 0, dtype: Dtype | None = float32"],
    "depends": ["inputs: list[array], dependencies: list[array], /"],
}

# Forms that cannot be read off the overloads; parameters by Python name. The result is given where
# it is not the overload's, with "!" for functions that take no stream.
SPECIAL: dict[str, tuple[str, list[str]]] = {
    # Without dtype, ints give int32 and floats float32: C++ tells by the overload.
    "arange": (
        "array",
        [
            "arange(=0, stop:int, step:int)",
            "arange(stop:int)",
            "arange(start:int, stop:int, step:int)",
            "arange(start:int, stop:int)",
            "arange(=0.0, stop:double, step:double)",
            "arange(stop:double)",
            "arange(start:double, stop:double, step:double)",
            "arange(start:double, stop:double)",
            "arange(start:float, stop:float, step:float, dtype:dtype)",
            "arange(start:float, stop:float, dtype:dtype)",
            "arange(=0, stop:float, step:float, dtype:dtype)",
            "arange(stop:float, dtype:dtype)",
        ],
    ),
    "linspace": (
        "array",
        ["linspace(start:float, stop:float, num:int, endpoint:bool, dtype:dtype)"],
    ),
    "take_along_axis": (
        "array",
        [
            "take_along_axis(a:array, indices:array, axis:int)",
            "mlxgen::take_along_axis(a:array, indices:array)",
        ],
    ),
    "put_along_axis": (
        "array",
        [
            "put_along_axis(a:array, indices:array, values:array, axis:int)",
            "mlxgen::put_along_axis(a:array, indices:array, values:array)",
        ],
    ),
    "full": (
        "array",
        [
            "full(shape:shape1, vals:value)",
            "full(shape:shape1, vals:value@dtype, dtype:dtype)",
        ],
    ),
    "full_like": (
        "array",
        ["full_like(a:array, vals:weak)", "full_like(a:array, vals:value@dtype, dtype:dtype)"],
    ),
    "eye": (
        "array",
        ["eye(n:int, m:int, k:int, dtype:dtype)", "eye(n:int, n:int, k:int, dtype:dtype)"],
    ),
    "tri": (
        "array",
        ["tri(n:int, m:int, k:int, dtype:dtype)", "tri(n:int, n:int, k:int, dtype:dtype)"],
    ),
    "where": ("array", ["where(condition:value, x:weak, y:weak)"]),
    "clip": ("array", ["clip(a:array, a_min:weak?, a_max:weak?)"]),
    "pad": (
        "array",
        [
            "pad(a:array, pad_width:int, constant_values:weak, mode:str)",
            "pad(a:array, pad_width:pair, constant_values:weak, mode:str)",
            "pad(a:array, pad_width:pairs, constant_values:weak, mode:str)",
        ],
    ),
    "as_strided": (
        "array",
        ["mlxgen::as_strided(a:array, shape:shape?, strides:strides?, offset:size)"],
    ),
    "divmod": ("arrays:2", ["divmod(a:weak, b:weak)"]),
    "atleast_1d": ("array", ["atleast_1d(arys:array)"]),
    "atleast_2d": ("array", ["atleast_2d(arys:array)"]),
    "atleast_3d": ("array", ["atleast_3d(arys:array)"]),
    "conv_general": (
        "array",
        [
            "conv_general(input:array, weight:array, stride:ints1, padding:ints1, padding:ints1, "
            "kernel_dilation:ints1, input_dilation:ints1, groups:int, flip:bool)",
            "conv_general(input:array, weight:array, stride:ints1, padding.0:ints, padding.1:ints, "
            "kernel_dilation:ints1, input_dilation:ints1, groups:int, flip:bool)",
        ],
    ),
    "tensordot": (
        "array",
        [
            "tensordot(a:array, b:array, axes:int)",
            "tensordot(a:array, b:array, axes.0:ints, axes.1:ints)",
        ],
    ),
    "roll": (
        "array",
        [
            "roll(a:array, shift:int)",
            "roll(a:array, shift:shape)",
            "roll(a:array, shift:int, axis:int)",
            "roll(a:array, shift:int, axis:ints)",
            "roll(a:array, shift:shape, axis:int)",
            "roll(a:array, shift:shape, axis:ints)",
        ],
    ),
    "einsum": ("array", ["einsum(subscripts:str, operands:arrays)"]),
    "depends": ("arrays!", ["depends(inputs:arrays, dependencies:arrays)"]),
    "linalg.norm": (
        "array",
        [
            "linalg::norm(a:array, axis:ints1?, keepdims:bool)",
            "linalg::norm(a:array, ord:double, axis:ints1?, keepdims:bool)",
            "linalg::norm(a:array, ord:str, axis:ints1?, keepdims:bool)",
        ],
    ),
    "issubdtype": ("bool!", ["issubdtype(arg1:category, arg2:category)"]),
    # As many arrays as the flags say: 1, and this many more for each that is True.
    "linalg.svd": ("flags:2", ["linalg::svd(a:array, compute_uv:flag)"]),
    "unique": (
        "flags:1",
        [
            "unique(a:array, size:int, return_index:flag, return_inverse:flag, "
            "return_counts:flag, fill_value:value@a?)",
        ],
    ),
    "random.key": ("array!", ["random::key(seed:size)"]),
    "random.split": ("array", ["random::split(key:array, num:int)"]),
    "random.uniform": (
        "array",
        ["random::uniform(low:value, high:value, shape:shape, dtype:dtype, key:array)"],
    ),
    "random.normal": (
        "array",
        [
            "random::normal("
            "shape:shape, dtype:dtype, loc:value@dtype?, scale:value@dtype?, key:array)",
        ],
    ),
    "random.multivariate_normal": (
        "array",
        ["random::multivariate_normal(mean:array, cov:array, shape:shape, dtype:dtype, key:array)"],
    ),
    "random.randint": (
        "array",
        ["random::randint(low:value, high:value, shape:shape, dtype:dtype, key:array)"],
    ),
    "random.bernoulli": (
        "array",
        [
            "random::bernoulli(p:value, shape:shape, key:array)",
            "random::bernoulli(p:value, key:array)",
        ],
    ),
    "random.truncated_normal": (
        "array",
        [
            "random::truncated_normal("
            "lower:value, upper:value, shape:shape, dtype:dtype, key:array)",
            "random::truncated_normal(lower:value, upper:value, dtype:dtype, key:array)",
        ],
    ),
    "random.gumbel": ("array", ["random::gumbel(shape:shape, dtype:dtype, key:array)"]),
    "random.categorical": (
        "array",
        [
            "random::categorical(logits:array, axis:int, key:array)",
            "random::categorical(logits:array, axis:int, shape:shape, key:array)",
            "random::categorical(logits:array, axis:int, num_samples:int, key:array)",
        ],
    ),
    "random.laplace": (
        "array",
        ["random::laplace(shape:shape, dtype:dtype, loc:float, scale:float, key:array)"],
    ),
    "random.permutation": (
        "array",
        [
            "random::permutation(x:array, axis:int, key:array)",
            "random::permutation(x:int, axis:, key:array)",
        ],
    ),
    "fast.scaled_dot_product_attention": (
        "array",
        [
            "fast::scaled_dot_product_attention(q:array, k:array, v:array, scale:float, "
            '="", mask:array?, sinks:array?, force_fused:bool)',
            "fast::scaled_dot_product_attention(q:array, k:array, v:array, scale:float, "
            "mask:'causal', =std::nullopt, sinks:array?, force_fused:bool)",
        ],
    ),
}

_CALLABLE = "it takes or returns a Python function"
_STATE = "it changes or reads global state rather than computing an array"
_FILE = "it reads or writes files"
_BINDING = "MLX computes it in its Python binding and has no C++ function for it"

OMITTED: dict[str, str] = {
    "device_info": _STATE,
    "eval": "it evaluates, and a formula only builds a graph",
    "async_eval": "it evaluates, and a formula only builds a graph",
    "synchronize": "it evaluates, and a formula only builds a graph",
    "compile": _CALLABLE,
    "checkpoint": _CALLABLE,
    "custom_function": _CALLABLE,
    "grad": _CALLABLE,
    "value_and_grad": _CALLABLE,
    "vjp": _CALLABLE,
    "jvp": _CALLABLE,
    "vmap": _CALLABLE,
    "export_function": _CALLABLE,
    "import_function": _CALLABLE,
    "exporter": _CALLABLE,
    "export_to_dot": _FILE,
    "save": _FILE,
    "savez": _FILE,
    "savez_compressed": _FILE,
    "save_safetensors": _FILE,
    "save_gguf": _FILE,
    "load": _FILE,
    "einsum_path": "it returns no array",
    "from_dlpack": "it takes an object of another library",
    "convolve": f"{_BINDING}; write it with conv1d or conv_general",
    "can_cast": f"{_BINDING}; compare result_type(a, dtype) with dtype",
    "isdtype": f"{_BINDING}; use issubdtype",
    "fast.metal_kernel": f"{_CALLABLE}; declare an entry with a kernel instead",
    "fast.cuda_kernel": f"{_CALLABLE}; declare an entry with a kernel instead",
    "fast.precompiled_cuda_kernel": f"{_CALLABLE}; declare an entry with a kernel instead",
    "random.seed": _STATE,
    "random.state": _STATE,
}

ASTYPE = [
    [[["a", "/", "array"], ["dtype", "/", "Dtype"]]],
    "array",
    ["astype(a:array, dtype:dtype)"],
]

# What rules of formulas treat: these give no array, or take any number of things.
BUILTIN = (
    "array",
    "asarray",
    "broadcast_shapes",
    "finfo",
    "iinfo",
    "result_type",
)


def derive(root: Path) -> dict[str, Any]:
    """The table of the release in the folder ``root``, as stored in JSON.

    Raises ``ValueError`` when a function of the stubs is neither derivable, nor special, nor
    omitted.
    """
    overloads = _overloads(root / "include" / "mlx")
    functions: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    methods: dict[str, Any] = {}
    problems: list[str] = []
    for module in MODULES:
        stub = ast.parse(
            (root / "core" / f"{module or '__init__'}.pyi").read_text(encoding="utf-8")
        )
        for node in stub.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                aliases[ast.unparse(node.targets[0])] = ast.unparse(node.value)
            elif isinstance(node, ast.ClassDef) and node.name == "array":
                methods = _methods(node)
            elif isinstance(node, ast.FunctionDef):
                name = f"{module}.{node.name}" if module else node.name
                if name in OMITTED or name in BUILTIN or name in functions:
                    continue
                if not _gives_arrays(node) and name not in SPECIAL:
                    continue
                try:
                    functions[name] = _derive_function(name, node, overloads)
                except ValueError as error:
                    problems.append(f"{name}: {error}")
    functions.setdefault("astype", ASTYPE)  # until 0.31.2 a method only
    if problems:
        raise ValueError("no C++ form found for " + "; ".join(problems))
    known = {*functions, *BUILTIN}
    return {
        "mlx": _version(root),
        "functions": functions,
        "aliases": {a: f for a, f in aliases.items() if f in known},
        "methods": {m: p for m, p in methods.items() if m in functions and m not in OMITTED},
        "omitted": OMITTED,
    }


def _version(root: Path) -> str:
    text = (root / "include" / "mlx" / "version.h").read_text(encoding="utf-8")
    parts = dict(re.findall(r"#define MLX_VERSION_(MAJOR|MINOR|PATCH) (\d+)", text))
    return ".".join(parts[p] for p in ("MAJOR", "MINOR", "PATCH"))


def _gives_arrays(node: ast.FunctionDef) -> bool:
    return node.name in OMITTED or "array" in (
        ast.unparse(node.returns) if node.returns else "array"
    )


def _methods(node: ast.ClassDef) -> dict[str, Any]:
    """Methods of the array class by name, with their parameters after ``self``."""
    found = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            decorated = bool(item.decorator_list)
            if not decorated:
                params = _params(item.args)[1:]
                if item.name in ("reshape", "transpose"):  # x.reshape(2, -1), x.transpose(1, 0)
                    params = [Param(p.name, p.kind, "int") for p in params]
                found[item.name] = [_pack(p) for p in params if p.name != "correction"]
    return found


def _derive_function(
    name: str, node: ast.FunctionDef, overloads: Mapping[str, list[tuple[str, list[_CppParam]]]]
) -> list[Any]:
    if name in SIGNATURES:
        signatures = [
            _params(ast.parse(f"def f({text}): ...").body[0].args)  # type: ignore[attr-defined]
            for text in SIGNATURES[name]
        ]
    else:
        signatures = [_params(node.args)]
    packed = [[_pack(p) for p in s] for s in signatures]
    if name in SPECIAL:
        result, forms = SPECIAL[name]
        names = {param.name for params in signatures for param in params}
        return [packed, result, [_of_release(form, names) for form in forms]]
    cpp = CPP_NAMES.get(name, name.replace(".", "::"))
    if cpp not in overloads:
        raise ValueError(f"no function {cpp} in the headers")
    forms, results = [], set()
    for returned, params in overloads[cpp]:
        form = _align(cpp, signatures[0], params)
        if form is not None and form not in forms:
            forms.append(form)
            results.add(returned + ("" if any(p.type == "stream" for p in params) else "!"))
    if len(results) != 1:
        raise ValueError(f"{len(forms)} forms with results {sorted(results)}")
    result = results.pop()
    stub = ast.unparse(node.returns) if node.returns else ""
    exact = re.fullmatch(r"tuple\[((?:array, )*array)\]", stub.replace("mlx.core.", ""))
    if exact and name != "quantize" and ":" not in result:
        result = f"{result}:{exact[1].count('array')}"
    return [packed, result, _settle(forms)]


def _of_release(form: str, names: set[str]) -> str:
    """A special form without the parameters that an older release does not have."""
    head, _, rest = form.partition("(")
    slots = rest[:-1].split(", ")
    own = [s for s in slots if s[0] in "='" or s.partition(":")[0].partition(".")[0] in names]
    return f"{head}({', '.join(own)})"


def _settle(forms: list[str]) -> list[str]:
    """Shorter forms first; an int stands for a list only where no overload takes an int."""
    for param in set(re.findall(r"(\w+):int\b", " ".join(forms))):
        forms = [re.sub(rf"\b{param}:(ints|shape)1", rf"{param}:\1", f) for f in forms]
    forms = [f.replace(":weak", ":value") if f.count(":weak") == 1 else f for f in forms]
    return sorted(forms, key=lambda f: f.count(":"))


def _pack(param: Param) -> list[str | None]:
    packed = [param.name, param.kind, param.annotation, param.default]
    return packed if param.default is not None else packed[:3]


def _params(args: ast.arguments) -> list[Param]:
    """The parameters of a stub, without ``stream``."""
    out = []
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    for i, (arg, default) in enumerate(zip(positional, defaults, strict=True)):
        out.append(_param(arg, "/" if i < len(args.posonlyargs) else "", default))
    if args.vararg is not None:
        out.append(_param(args.vararg, "*", None))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        out.append(_param(arg, "k", default))
    return [p for p in out if p.name != "stream"]


def _param(arg: ast.arg, kind: str, default: ast.expr | None) -> Param:
    alternatives = _flat(arg.annotation) if arg.annotation else ["array"]
    if "None" in alternatives:  # last, wherever a release has it
        alternatives = [*(a for a in alternatives if a != "None"), "None"]
    annotation = " | ".join(dict.fromkeys(alternatives))
    if annotation == "str" and arg.arg in CHOICES:
        annotation = f"Literal{CHOICES[arg.arg]!r}"
    return Param(arg.arg, kind, annotation, ast.unparse(default) if default is not None else None)


def _flat(annotation: ast.expr) -> list[str]:
    """The alternatives of ``Union[None, int]``, ``Optional[int]`` and ``int | None``."""
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            return [*_flat(left), *_flat(right)]
        case ast.Subscript(ast.Name("Union"), ast.Tuple(parts)):
            return [name for part in parts for name in _flat(part)]
        case ast.Subscript(ast.Name("Optional"), part):
            return [*_flat(part), "None"]
    text = ast.unparse(annotation).replace("mlx.core.", "")
    return [re.sub(r"\b(Tuple|List)\[", lambda match: match[0].lower(), text)]


@dataclass(frozen=True, slots=True)
class _CppParam:
    name: str
    type: str  # slot type, "stream", or "" for one that no formula can give
    default: str | None


CPP_TYPES = {
    "array": "array",
    "std::optional<array>": "array?",
    "std::vector<array>": "arrays",
    "int": "int",
    "std::optional<int>": "int?",
    "std::vector<int>": "ints",
    "std::optional<std::vector<int>>": "ints?",
    "Shape": "shape",
    "Strides": "strides",
    "bool": "bool",
    "std::optional<bool>": "bool?",
    "float": "float",
    "double": "float",
    "std::optional<float>": "float?",
    "Dtype": "dtype",
    "std::optional<Dtype>": "dtype?",
    "std::string": "str",
    "std::pair<int, int>": "pair",
    "std::tuple<int, int, int>": "triple",
    "size_t": "size",
    "uint64_t": "size",
    "FFTNorm": "fftnorm",
    "StreamOrDevice": "stream",
}
CPP_RESULTS = {
    "array": "array",
    "std::vector<array>": "arrays",
    "std::pair<array, array>": "tuple:2",
    "std::tuple<array, array>": "tuple:2",
}


def _overloads(include: Path) -> dict[str, list[tuple[str, list[_CppParam]]]]:
    """Result and parameters of each overload in MLX's headers, by name (``linalg::norm``)."""
    found: dict[str, list[tuple[str, list[_CppParam]]]] = {}
    results = "|".join(re.escape(r) for r in CPP_RESULTS)
    head = re.compile(rf"(?:^|[;}}])\s*(?:MLX_API|inline)\s+({results})\s+(\w+)\s*\(")
    for header in HEADERS:
        text = (include / header).read_text(encoding="utf-8")
        text = re.sub(r"/\*.*?\*/|//[^\n]*|#[^\n]*", " ", text, flags=re.S)
        module = re.search(r"namespace mlx::core(::\w+)?", text)
        prefix = f"{module[1][2:]}::" if module and module[1] else ""
        text = re.sub(r"\s+", " ", text[module.end() + 2 :] if module else text)
        text = _without_bodies(text)
        position = 0
        while match := head.search(text, position):
            end = _closing(text, match.end())
            params = [_cpp_param(p) for p in _split(text[match.end() : end])]
            found.setdefault(prefix + match[2], []).append((CPP_RESULTS[match[1]], params))
            position = end
    return found


def _without_bodies(text: str) -> str:
    """Function bodies and classes replaced by ``;`` (default arguments such as ``{}`` stay)."""
    out, depth, parens = [], 0, 0
    for c in text:
        if depth == 0 and c in "()":
            parens += 1 if c == "(" else -1
        if parens == 0 and c == "{":
            depth += 1
        elif parens == 0 and c == "}":
            depth -= 1
            if depth == 0:
                out.append(";")
            continue
        if depth == 0:
            out.append(c)
    return "".join(out)


def _split(text: str) -> list[str]:
    """Split at commas that are outside all brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _closing(text: str, start: int) -> int:
    depth = 1
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError("unbalanced parentheses in a header")


def _cpp_param(text: str) -> _CppParam:
    declaration, _, default = text.partition("=")
    declaration = re.sub(r"\bconst\b|&", " ", declaration).strip()
    match = re.fullmatch(r"(.*?[\w>])\s+(\w+)", declaration)
    type_, name = (match[1], match[2]) if match else (declaration, "")
    type_ = re.sub(r"\s+", " ", type_)
    return _CppParam(name, CPP_TYPES.get(type_, ""), default.strip() or None)


# Strings that the documentation enumerates and the stubs do not.
CHOICES = {
    "norm": ["backward", "ortho", "forward"],
    "side": ["left", "right"],
    "UPLO": ["L", "U"],
}


# What a C++ parameter of a slot type can take, by alternative of the Python annotation.
_ALTERNATIVES = {
    "array": {"array"},
    "scalar": {"array"},
    "int": {"int", "size", "float"},
    "float": {"float"},
    "bool": {"bool"},
    "str": {"str", "fftnorm"},
    "Dtype": {"dtype"},
    "Sequence[int]": {"ints", "shape", "strides"},
    "list[int]": {"ints", "shape"},
    "tuple[int]": {"ints", "shape"},
    "tuple[int, ...]": {"ints", "shape"},
    "tuple[int, int]": {"pair"},
    "tuple[int, int, int]": {"triple"},
    "list[array]": {"arrays"},
    "Sequence[array]": {"arrays"},
}


def _align(cpp: str, params: Sequence[Param], cpp_params: Sequence[_CppParam]) -> str | None:
    """One overload as a form, or None if it does not take what the Python function gives."""
    targets = [p for p in cpp_params if p.type != "stream"]
    chosen: dict[int, Param] = {}
    free = list(params)
    for by_name in (True, False):
        for i, target in enumerate(targets):
            if i in chosen:
                continue
            for param in free:
                if (not by_name or param.name == target.name) and _fits(param, target):
                    chosen[i] = param
                    free.remove(param)
                    break
    if len(chosen) != len(targets) or any(not p.takes_none for p in free):
        return None
    slots = [f"{chosen[i].name}:{_slot_type(chosen[i], t.type)}" for i, t in enumerate(targets)]
    return f"{cpp}({', '.join(slots)})"


def _fits(param: Param, target: _CppParam) -> bool:
    base = target.type.removesuffix("?")
    if not base:
        return False
    if param.kind == "*":
        return base == "arrays"
    if param.annotation.startswith("Literal"):
        return base in ("str", "fftnorm")
    return any(base in _ALTERNATIVES.get(a, ()) for a in _alternatives(param.annotation))


def _alternatives(annotation: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, c in enumerate(annotation):
        depth += {"[": 1, "]": -1}.get(c, 0)
        if c == "|" and depth == 0:
            parts.append(annotation[start:i].strip())
            start = i + 1
    return [*parts, annotation[start:].strip()]


def _slot_type(param: Param, type_: str) -> str:
    alternatives = _alternatives(param.annotation)
    if type_ == "array" and "scalar" in alternatives:
        return "weak"
    if "int" in alternatives and type_ in ("shape", "pair", "triple"):
        return f"{type_}1"
    if "int" in alternatives and type_ == "ints":
        return "ints1"
    return type_


def combined(tables: Sequence[Mapping[str, Any]]) -> str:
    """The tables of all releases, newest first, as JSON with one function a line."""

    def block(items: Mapping[str, Any], indent: str) -> str:
        lines = [f"{indent} {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(items.items())]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"

    newest = tables[0]
    parts = [f' "mlx": {json.dumps(newest["mlx"])}']
    parts += [f" {json.dumps(k)}: {block(newest[k], ' ')}" for k in newest if k != "mlx"]
    older = [
        f"  {json.dumps(old['mlx'])}: {{\n"
        + ",\n".join(
            f'   "{part}": {block(changed(new[part], old[part]), "   ")}' for part in PARTS
        )
        + "\n  }"
        for new, old in itertools.pairwise(tables)
    ]
    parts.append(' "older": {\n' + ",\n".join(older) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """What to set, or with None to take away, to come from the newer table to the older one."""
    here = {name: old[name] for name in old if new.get(name) != old[name]}
    return {**here, **dict.fromkeys(new.keys() - old.keys())}
