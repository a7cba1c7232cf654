"""Random entries that are mostly right, with names and strings chosen to clash with generated code.

Formulas come from formula/formula_samples.py, with other argument names. The kernels of an entry
are generated from mlxgen's help for missing kernels, which tests the help, too. Some are then
changed in one place: mlxgen must reject them, or accept them correctly.
"""

from __future__ import annotations

import ast
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from formula.formula_samples import ARGUMENTS, Formulas

from mlxgen.check.arguments import OF_ARRAYS, OF_ELEMENTS
from mlxgen.diagnostics import Diagnostics
from mlxgen.formula.mlx import table
from mlxgen.model.signature import Kind, Type
from mlxgen.read.keys import TAGS

# Names in C and C++ libraries, in Python, and in generated code.
STRANGE = """
    swap move max min abs fill copy sort begin end size data get make_pair vector string pair tuple
    function optional nullopt distance count find remove rename read write link pipe exit abort free
    malloc printf time clock signal index y0 y1 j0 gamma div isnan isinf pow round floor log exp sin
    hypot array Shape Dtype stream_ Stream Device to_stream zeros full add matmul eye inner outer
    print input list dict len sum all any map filter type id object int_ self_ lambda_ None_ x_
    x_size x_shape x_strides x_ndim has_w has_x out0 to_out0 value_out0 to_low value_low strides_x
    x_arg x_dtype xs_size kXDtypes const_n f_loop f_shapes f_composite half_ thread kernel
    texture sampler vec float4 atomic fast precise mlxops ops tag type_name Kernel View In Out
    accum_t Unpack I J Z
""".split()  # noqa: SIM905
_FUNCTIONS = [name for name in table().names if "." not in name]
NAMES = sorted({*STRANGE, *OF_ARRAYS, *OF_ELEMENTS, *_FUNCTIONS[::5]} - {"in"})
TEXTS = [
    "Plain.",
    'a "quoted" \\ back\\slash',
    "ends the comment */ here",
    "two lines\n\nand more",
    "größer ☃ \u4e2d\u6587",
    '"""triple""" and \'single\'',
    ')pbdoc" and )metal" and )"',
    "??/ ??= trigraphs",
    "#define x 1\n#include <nothing>",
    "{{ jinja }} {% raw %} {# x #}",
    "tab\there \x7f \u2028",
    "ends with a backslash \\",
    "%s %d {x} ${y}",
    "*/ /* // \\\n next",
    "a | b | `code`",
]
CHOICES = ["c", 'd "q"', "e\\", "f'g", "é", "", "h i", "{}", "%s", "\\n"]
DEFAULTS = {
    Kind.FLOAT: ("1.5", "inf", "-inf", "nan", "-0.0", "1e308", "3", "1e-300"),
    Kind.INT: ("1", "-1", "2147483647", "-2147483648", "0"),
    Kind.BOOL: ("True", "False"),
    Kind.STR: ('"a"', '"q\\"q"', '""', '"é\\n"'),
    Kind.ENUM: ('"a"', '"b"'),
    Kind.INTS: ("[1, 2]", "[]", "(1,)"),
    Kind.SHAPE: ("[1, 2]", "[]"),
    Kind.AXES: ("None", "0", "[0, 1]"),
    Kind.DTYPE: ("float32", "mx.int8"),
}
# Names that C++, C, Metal, Rust or Python reserve, that generated code uses, or that become equal.
HOSTILE = """
    M_1 P_total L_cx M_PI PyTree va_lue va_list half_binop_x complex_binop SYS_x NB_x he16tox
    le32tohx st_atime timeradd pthread_cleanup_x strndupa linux errno assert stdin class new delete
    operator int float half kernel device thread constant fn impl self crate move restrict complex I
    typeof imaginary _x _1 _2 _A __x a__b x_ x__ _ x a b T U N s t t0 t1 grad result results grads
    grad_out tangent inputs outputs x_arg s_arg arg_s x_let s_let let_s s_axis axis_s like like_arg
    cotangents primals argnums forward gradient composite dispatch stream mx mlx mlxgen std out
    out0 to_x has_x x_size x_dtype x_given value Lazy i k n item shapes dtype op one joint arg arg_
    options match mod ref loop type use where yield async dyn box f F f_shapes kDtypes template_x
    const_x max_threads int64_t uint size_t mlx_array res res_0 call str list bool array scalar
    Literal None print len id object Device Dtype lambda_ in_ ﬁ K
""".split()  # noqa: SIM905
HOSTILE += ["a" * 200, "va_" + "x" * 195]
_SCALARS = (Kind.FLOAT, Kind.INT, Kind.BOOL, Kind.ENUM)


# Entries that other entries call.
_OTHERS: dict[str, dict[str, Any]] = {
    "helper": {"signature": "helper(x: array) -> array", "composite": "x * x"},
    "sincos": {
        "signature": "sincos(x: array) -> (sin: array, cos: array)",
        "composite": "(mx.sin(x), mx.cos(x))",
    },
    "axpby": {
        "signature": "axpby(x: array, y: array, *, alpha: float = 1.0) -> array",
        "composite": "alpha * x + y",
    },
    "resize": {
        "signature": "resize(x: array, scale: list[int] = [2, 2], "
        'mode: Literal["a", "b"] = "a", axis: axes = None) -> array',
        "composite": "x if mode == 'a' else sum(x, axis=axis)",
    },
}


@dataclass
class Project:
    """Entries and the kernels that they name."""

    entries: list[dict[str, Any]]
    cpu: dict[str, str] = field(default_factory=dict)  # declarations by name
    metal: dict[str, str] = field(default_factory=dict)

    @property
    def yaml(self) -> str:
        """Return the file of entries."""
        text: str = yaml.safe_dump(self.entries, sort_keys=False, allow_unicode=True, width=90)
        return text

    def write(self, folder: Path, number: int) -> Path:
        """Write the project; return the path of its entries."""
        for name in ("csrc", "kernels/metal"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        body = "\n".join(map(_defined, self.cpu.values()))
        header = '#pragma once\n#include "mlxgen/kernel.h"\nusing namespace mlxgen;\n'
        # All projects share an include path, and their kernels a translation unit.
        space = f"namespace kernels{number} {{\n{body}\n}}\n"
        (folder / "csrc" / f"kernels{number}.h").write_text(header + space)
        metal = ["#include <metal_stdlib>", "using namespace metal;", *self.metal.values()]
        (folder / "kernels/metal/kernels.metal").write_text("\n".join(metal))
        path = folder / "mlx_ops.yaml"
        path.write_text(self.yaml, encoding="utf-8")
        return path

    def supply(self, diags: Diagnostics, rng: random.Random) -> bool:
        """Add the reported missing kernels, possibly changed; return true if there are any."""
        found = False
        for item in diags.sorted():
            wanted = item.expected
            if item.code == "MG502" and wanted and wanted.missing_in:
                text = str(wanted)
                if rng.random() < 0.4:
                    text = changed(text, rng)
                if wanted.missing_in.name == "csrc":
                    self.cpu[wanted.name] = ";;".join(map(_numbered, text.split(";;")))
                else:
                    self.metal[wanted.name] = _metal(text, wanted.name)
                found = True
        return found


def _numbered(declaration: str) -> str:
    """Return the declaration with other parameter names, independent of the entry."""
    head, _, params = declaration.rstrip(")").partition("(")
    parts = re.split(r",\s(?![^<]*>)", params)
    # The name is the last word, or the last before a default.
    named = (re.sub(r"\w+(?= = |$)", f"p{i}", part, count=1) for i, part in enumerate(parts))
    return f"{head}({', '.join(named)})"


# Replacements for parts of a declaration.
_CHANGES = [
    *(("int ", "T "), ("int ", "int64_t "), ("int ", "unsigned "), ("int ", "bool ")),
    *(("int64_t ", "int "), ("double ", "float "), ("double ", "T "), ("bool ", "int ")),
    *(("T ", "float "), ("T ", "const T& "), ("T ", "T& "), ("T ", "T* ")),
    *(("<T>", "<float>"), ("T& ", "float& "), ("T& ", "T&& "), ("T& ", "const T& ")),
    *(("In<", "Out<"), ("Out<", "In<"), ("<typename T>", "<typename T, int N = 3>")),
    *(("<typename T>", "<typename U>"), ("<typename T>", "<int N>"), ("void ", "int ")),
    *(("template <typename T> ", "inline "), ("(", "(int extra, "), ("int&", "int64_t&")),
    *(
        (")", ", int extra = 1)"),
        (")", ", int extra)"),
        ("const ", ""),
        ("name T>", "name T> static "),
    ),
    *(
        ("name T>", "name T> constexpr "),
        ("name T>", "name T> consteval "),
        ("int&", "uint&"),
        ("device", "constant"),
    ),
]


def changed(declaration: str, rng: random.Random) -> str:
    """Return a declaration with one change, or followed by an overload."""
    if rng.random() < 0.15 and "[[kernel]]" not in declaration:
        other = re.sub(r"\bT\b", rng.choice(("float", "double")), declaration)
        return (
            declaration
            + ";;"
            + other.replace("template <typename float> ", "inline ").replace(
                "template <typename double> ", "inline "
            )
        )
    pairs = [(old, new) for old, new in _CHANGES if old in declaration]
    old, new = rng.choice(pairs)
    at = rng.choice([found.start() for found in re.finditer(re.escape(old), declaration)])
    return declaration[:at] + new + declaration[at + len(old) :]


def _defined(declarations: str) -> str:
    return "\n".join(f"{text} {_body(text)}" for text in declarations.split(";;"))


def _body(declaration: str) -> str:
    return "{}" if re.search(r"\bvoid \w+\(", declaration) else "{ return {}; }"


def _metal(text: str, name: str) -> str:
    """Return a Metal function for a declaration."""
    if "[[kernel]]" not in text:
        return _defined(text)
    head, _, params = text.rstrip(")").partition("(")
    numbered = [f"{p} [[buffer({i})]]" for i, p in enumerate(params.split(", "))]
    return f"{head}({', '.join(numbered)}, uint where [[thread_position_in_grid]]) {{}}"


class Entries:
    """Writes entries; the same random numbers yield the same entries."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.formulas = Formulas(rng)
        self.linear = True  # true if the last gradients do not depend on the values of arrays

    def project(self) -> Project:
        """Return one entry, with another one that it calls."""
        kinds = (self.composite, self.elementwise, self.views, self.views, self.named)
        entry = self.rng.choice(kinds)()
        entry.update(self.decoration() if "dispatch" in entry or "let" not in entry else {})
        others = [other for name, other in _OTHERS.items() if f"{name}(" in str(entry)]
        return Project([*others, entry])

    # ---- names and signatures ------------------------------------------------------------------

    def names(self, wanted: set[str]) -> dict[str, str]:
        """Return other names for the arguments, in the order of the signature."""
        order = sorted(wanted, key=list(ARGUMENTS).index)
        self.rng.shuffle(order)
        strange = self.rng.sample(NAMES, len(order))
        return {
            name: new if self.rng.random() < 0.7 else name
            for name, new in zip(order, strange, strict=True)
        }

    def type(self, type_: Type, extra: list[str]) -> str:
        """Return a type in Python's spelling."""
        if type_.kind is Kind.ENUM:
            listed = ", ".join(_quoted(choice) for choice in ("a", "b", *extra))
            text = f"Literal[{listed}]"
        else:
            text = type_._python_spelling().removesuffix(" | None")
        return f"{text} | None" if type_.optional and type_.kind is not Kind.AXES else text

    def signature(self, name: str, names: dict[str, str], outputs: list[str]) -> str:
        """Return a signature in Python's spelling, with defaults for some arguments."""
        if outputs == ["out"] and self.rng.random() < 0.2:  # only this spelling has int64_t
            typed = (f"{ARGUMENTS[old]._cpp_spelling()} {new}" for old, new in names.items())
            return f"array {name}({', '.join(typed)})"
        extra = self.rng.sample(CHOICES, self.rng.randrange(3))
        args, defaults = [], False
        star = self.rng.randrange(1, 12)
        for i, (old, new) in enumerate(names.items()):
            type_ = ARGUMENTS[old]
            if i == star:
                args.append("*")
                defaults = False
            text = f"{new}: {self.type(type_, extra)}"
            values = DEFAULTS.get(type_.kind, ()) if not type_.optional else ("None",)
            if values and (defaults or self.rng.random() < 0.4):
                text += f" = {self.rng.choice(values)}"
                defaults = True
            elif defaults:
                args.insert(0, text)
                continue
            args.append(text)
        if len(outputs) == 1 and outputs[0] == "out":
            result = "array"
        elif outputs == ["list"]:
            result = "list[array]"
        else:
            result = f"({', '.join(f'{o}: array' for o in outputs)})"
        return f"{name}({', '.join(args)}) -> {result}"

    def outputs(self, most: int) -> list[str]:
        """Return names of outputs."""
        count = self.rng.randrange(1, most + 1)
        return ["out"] if count == 1 else self.rng.sample(["low", "high", *NAMES], count)

    def op_name(self) -> str:
        """Return the name of an operator."""
        return "f" if self.rng.random() < 0.5 else self.rng.choice(NAMES)

    # ---- entries -------------------------------------------------------------------------------

    def composite(self) -> dict[str, Any]:
        """Return an entry with a formula for the forward, and possibly for gradients."""
        outputs = self.outputs(3) if self.rng.random() < 0.8 else ["list"]
        if outputs == ["list"]:
            forward = self.formulas.arrays(2)
        else:
            forward = ", ".join(self.formulas.array(2) for _ in outputs)
            forward = f"({forward})" if len(outputs) > 1 else forward
        if self.rng.random() < 0.2:
            forward = re.sub(r"\bx\b", "helper(x)", forward, count=1)
        forward = forward.replace("grads", "xs")
        names = self.names(used(forward) | {"x"})
        entry = {
            "signature": self.signature(self.op_name(), names, outputs),
            "composite": renamed(forward, names),
        }
        if self.rng.random() < 0.5 and outputs != ["list"]:
            entry["grad"] = self.grad(names, outputs)
        return entry

    def grad(self, names: dict[str, str], outputs: list[str], same: bool = True) -> Any:
        """Return gradients of the array arguments, by formulas of the arguments.

        If outputs have their own shapes, cotangents are converted to the shapes of the arguments.
        """
        self.linear = True
        if self.rng.random() < 0.1:
            return "none"
        out: dict[str, str] = {}
        arrays = [old for old in names if ARGUMENTS[old].is_array]
        cotangent = "grad" if outputs == ["out"] else f"grad_{self.rng.choice(outputs)}"
        for old in arrays:
            one, first = (
                text if same else f"sum({text}) * ones_like({old})"
                for text in (cotangent, "grads[0]")
            )
            text = self.rng.choice((one, "none", "zero", f"2 * {one}", first))
            if ARGUMENTS[old].kind is Kind.ARRAYS:
                text = self.rng.choice(("none", "zero", f"[v * sum({cotangent}) for v in {old}]"))
                self.linear &= "[" not in text
            elif self.rng.random() < 0.5:
                formula = self.formulas.array(1)
                if used(formula) <= set(names):
                    text = f"{one} * ({formula})"
                    self.linear = False
            plain = text in ("none", "zero")
            out[names[old]] = text if plain else renamed(text, names)
        pair = [old for old in arrays if ARGUMENTS[old].kind is Kind.ARRAY][:2]
        if len(pair) == 2 and self.rng.random() < 0.2:
            both = [names[old] for old in pair]
            for new in both:
                out.pop(new)
            parts = [cotangent if same else f"sum({cotangent}) * ones_like({new})" for new in both]
            out[", ".join(both)] = f"({parts[0]}, {parts[1]} * 2)"
        return out

    def dispatch(self, *backends: str) -> dict[str, Any]:
        """Return kernels whose names are also those of arguments and library functions."""
        name = self.rng.choice(("k", "k", "scale", "x_kernel", "swap_", "apply_"))
        return dict.fromkeys(backends, name)

    def elementwise(self) -> dict[str, Any]:
        """Return an entry with a scalar function."""
        some = self.rng.sample(["x", "y", "n", "big", "alpha", "beta", "flag", "mode"], 4)
        names = self.names({"x", *some})
        outputs = self.outputs(3)
        backends = self.rng.choice((("cpu",), ("metal",), ("cpu", "metal")))
        entry: dict[str, Any] = {
            "signature": self.signature(self.op_name(), names, outputs),
            "dispatch": self.dispatch(*backends),
            "grad": self.grad(names, outputs),
        }
        if self.rng.random() < 0.3:
            listed = ["float32", "float16", "bfloat16", "int32", "uint8", "bool_", "int64"]
            entry["dtypes"] = self.rng.sample(listed, self.rng.randrange(1, 4))
        if self.rng.random() < 0.3:
            forward = ", ".join([names["x"]] * len(outputs))
            entry["composite"] = f"({forward})" if len(outputs) > 1 else forward
        if self.rng.random() < 0.4:
            entry["jvp"] = self.jvp(names, outputs)
        if self.rng.random() < 0.3:
            entry["vmap"] = self.rng.choice(("elementwise", "batch", "sequential", "none"))
        if self.rng.random() < 0.3:
            entry["integers"] = self.rng.choice(("float32", "keep", "error"))
        return entry

    def jvp(self, names: dict[str, str], outputs: list[str]) -> Any:
        """Return a forward-mode rule."""
        each = "tangent * 2"
        formula = f"({', '.join([each] * len(outputs))})" if len(outputs) > 1 else each
        formulas = {
            names[old]: formula
            for old in names
            if ARGUMENTS[old].kind is Kind.ARRAY and self.rng.random() < 0.8
        }
        linear = "linear" if self.linear else "none"
        return self.rng.choice((linear, "none", "elementwise", formulas))

    def views(self) -> dict[str, Any]:
        """Return an entry with kernels over whole arrays."""
        some = self.rng.sample(list(ARGUMENTS), self.rng.randrange(1, 7))
        names = self.names({"x", *some} - {"grads"})
        outputs = self.outputs(3)
        shapes = ["x.shape", "x.shape[:-1] + (1,)", "(x.size, 2)", "()"]
        shapes += ["(n,)"] * ("n" in names) + ["shape"] * ("shape" in names)
        shapes += ["(len(xs), 1)"] * ("xs" in names)
        chosen = [renamed(self.rng.choice(shapes), names) for _ in outputs]
        entry: dict[str, Any] = {
            "signature": self.signature(self.op_name(), names, outputs),
            "dispatch": self.dispatch("cpu"),
            "shape": dict(zip(outputs, chosen, strict=True)),
            "grad": self.grad(names, outputs, same=False),
        }
        has_list = any(ARGUMENTS[old].kind is Kind.ARRAYS for old in names)
        if self.rng.random() < 0.6 and not has_list:
            x, first = names["x"], outputs[0]
            launch: dict[str, Any] = {"kernel": "launched", "grid": [f"{x}.size", f"{first}.ndim"]}
            if self.rng.random() < 0.5:
                launch["threadgroup"] = ["32", f"min({x}.shape[0], 8)"]
            if self.rng.random() < 0.5:
                launch["zero"] = [self.rng.choice(outputs)]
            if self.rng.random() < 0.5:
                launch["constants"] = {self.rng.choice(("rows", "item", "k")): f"{x}.ndim + 1"}
            entry["dispatch"]["metal"] = launch
        arrays = [new for old, new in names.items() if ARGUMENTS[old].is_array]
        if self.rng.random() < 0.4:
            some = self.rng.sample(arrays, self.rng.randrange(1, len(arrays) + 1))
            if self.rng.random() < 0.5:
                some = [", ".join(some)]
            entry["dtypes"] = {new: self.rng.choice(("int32", "float32", "bool_")) for new in some}
        if self.rng.random() < 0.4:
            dtypes = ("float32", "int64", f"{names['x']}.dtype", "complex64")
            entry["dtype"] = {output: self.rng.choice(dtypes) for output in outputs[:1]}
        if self.rng.random() < 0.4:
            condition = self.formulas.cond(0)
            if used(condition) <= set(names):
                otherwise = self.rng.choice(TEXTS)
                entry["checks"] = [{"that": renamed(condition, names), "else": otherwise}]
        if self.rng.random() < 0.4:
            entry["axes"] = self.axes(names, outputs, entry["shape"])
            entry = {key: value for key, value in entry.items() if value != {}}
        if self.rng.random() < 0.3 and not {"dtype", "dtypes"} & entry.keys():
            forward = ", ".join(f"broadcast_to(sum({names['x']}), {shape})" for shape in chosen)
            entry["composite"] = f"({forward})" if len(outputs) > 1 else forward
        if self.rng.random() < 0.4:
            entry["vmap"] = self.rng.choice(("batch", "sequential", "none"))
        if self.rng.random() < 0.4:
            entry["jvp"] = self.jvp(names, outputs)
        return entry

    def named(self) -> dict[str, Any]:
        """Return an entry whose arguments, outputs, `let`s, axes and constants have any names."""
        rng, several = self.rng, self.rng.random() < 0.3
        arrays = rng.sample(HOSTILE, rng.randrange(1, 5))
        ints = [name for name in rng.sample(HOSTILE, 2) if name not in arrays]
        first, outputs = arrays[0], rng.sample(HOSTILE, 3 if several else 1)
        known, lets = [*arrays], dict[str, str]()

        def value() -> str:
            a, b, c = rng.choices(known, k=3)
            condition = rng.choice([f"{first}.ndim > 1", *(f"{name} > 2" for name in ints)])
            return rng.choice(
                (f"{a} + {b}", f"exp({a})", f"({a} if {condition} else {b}) * {c}", f"{a} * {a}")
            )

        for name in rng.sample(HOSTILE, rng.randrange(5)):
            if name not in (*arrays, *ints):
                lets[name] = value()
                known.append(name)
        args = [*(f"{a}: array" for a in arrays), "*", *(f"{i}: int = 2" for i in ints)]
        args += [f'{rng.choice(HOSTILE)}: Literal["{arrays[0]}", "b"] = "b"'] * (
            several or not ints
        )
        named = ", ".join(f"{output}: array" for output in outputs)
        result, name = f"({named})" if several else "array", rng.choice(("f", rng.choice(HOSTILE)))
        entry: dict[str, Any] = {"signature": f"{name}({', '.join(args)}) -> {result}"}
        if rng.random() < 0.5:
            entry["composite"] = f"({value()}, {value()}, {value()})" if several else value()
        else:
            shape = f"{first}.shape"
            entry["shape"] = dict.fromkeys(outputs, shape) if several else shape
            entry["dispatch"] = self.dispatch("cpu")
            launch = {"kernel": "launched", "grid": [f"{first}.size"]}
            launch["constants"] = {
                n: f"{first}.ndim" for n in rng.sample(HOSTILE, rng.randrange(3))
            }
            if rng.random() < 0.3:
                template = {"of": f"{first}.ndim", "values": [1, 2, 4]}
                launch["template"] = {rng.choice(HOSTILE): template}
            entry["dispatch"]["metal"] = launch
        cotangent = f"grad_{rng.choice(outputs)}" if several else "grad"
        if "dispatch" in entry or rng.random() < 0.6:
            entry["grad"] = {a: f"{cotangent} * ({value()})" for a in arrays}
        if lets:
            entry["let"] = lets
        if rng.random() < 0.6:
            pool = rng.sample(HOSTILE, 4)
            pool += [f"2*{pool[0]}", f"{pool[1]}+{pool[2]}", f"({pool[3]}+1)//2", "3"]
            entry["axes"] = {a: " ".join(rng.sample(pool, rng.randrange(1, 4))) for a in arrays}
        return entry

    def axes(
        self, names: dict[str, str], outputs: list[str], shape: dict[str, str]
    ) -> dict[str, str]:
        """Return axes of some arrays; outputs with axes lose their shape rule."""
        arrays = [new for old, new in names.items() if ARGUMENTS[old].kind is Kind.ARRAY]
        first = self.rng.choice(
            ["N D", "D N", "N ... D", "... struct", "N N", "s T N", "...", "2 N"]
        )
        known = [*first.split(), "3", "1", *([names["n"]] if "n" in names else [])]
        known += [f"2*({word}+1)//2" for word in known if word.isalpha()]

        def some(more: list[str]) -> str:
            words = self.rng.sample([*known, *more], self.rng.randrange(1, 4))
            return " ".join(words) if words.count("...") < 2 else "()"

        found = {names["x"]: first}
        for name in self.rng.sample(arrays, self.rng.randrange(len(arrays) + 1)):
            found.setdefault(name, some(["M", "T"]) + self.rng.choice(["", " | " + some(["K"])]))
        for output in outputs:
            if self.rng.random() < 0.6:
                found[output] = some([])
                shape.pop(output)
        return found

    def decoration(self) -> dict[str, Any]:
        """Return keys with documentation."""
        out: dict[str, Any] = {}
        if self.rng.random() < 0.5:
            out["doc"] = self.rng.choice(TEXTS)
        if self.rng.random() < 0.2:
            out["deprecated"] = self.rng.choice(TEXTS)
        if self.rng.random() < 0.2:
            out["returns"] = self.rng.choice(TEXTS)
        if self.rng.random() < 0.2:
            out["tags"] = self.rng.sample(sorted(TAGS), 2)
        if self.rng.random() < 0.2:
            out["module"] = self.rng.choice(("nn", "a.b.c", "std", "mx", "python", "metal"))
        if self.rng.random() < 0.2:
            out["aliases"] = self.rng.sample(NAMES, 2)
        if self.rng.random() < 0.2:
            out["python_name"] = self.rng.choice(NAMES)
        if self.rng.random() < 0.1:
            out["variants"] = ["function", "method"]
        return out


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def used(formula: str) -> set[str]:
    """Return the arguments that a formula names."""
    tree = ast.parse(formula, mode="eval")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(ARGUMENTS)


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def renamed(formula: str, names: dict[str, str]) -> str:
    """Return a formula with other names for the arguments."""
    return ast.unparse(_Renamer(names).visit(ast.parse(formula, mode="eval")))
