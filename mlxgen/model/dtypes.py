"""MLX's dtypes: their categories, and their types in C++ and Metal."""

from __future__ import annotations

from collections.abc import Iterable

from .cpp import BOOL, DOUBLE, ELEMENT, FLOAT, CppType

INTEGER = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
FLOATING = ("float16", "bfloat16", "float32", "float64")
# MLX's dtypes by their names in mlx.core.
DTYPES = ("bool_", *INTEGER, *FLOATING, "complex64")

# Categories that `dtypes` can contain.
CATEGORIES = {
    "floating": FLOATING,
    "integer": INTEGER,
    "signedinteger": INTEGER[4:],
    "unsignedinteger": INTEGER[:4],
    "inexact": (*FLOATING, "complex64"),
    "number": (*INTEGER, *FLOATING, "complex64"),
    "generic": DTYPES,
}

# The name in `dtypes` of the accumulator dtype: float64 for float64, else float32.
ACCUMULATOR = "accumulator"


def computes_integers(dtypes: Iterable[str]) -> bool:
    """Return whether a kernel for these dtypes may compute in an integer type."""
    return not set(dtypes) <= {*CATEGORIES["inexact"]}


# The least and the largest number of a dtype; others are like float32.
LIMITS = {
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    "float16": (-65504, 65504),
    "float64": (-1e300, 1e300),
}

# The C++ type of an element.
CPP_TYPES = {
    "bool_": BOOL,
    **{name: CppType(f"{name}_t") for name in INTEGER},
    **{name: CppType(f"{name}_t", "mlx") for name in ("float16", "bfloat16", "complex64")},
    "float32": FLOAT,
    "float64": DOUBLE,
}


def element_type(dtype: str | None) -> CppType:
    """Return the C++ type of an array's elements in a kernel; T if the dtype is promoted."""
    if dtype == ACCUMULATOR:
        return CppType("accum_t", "mlxgen", (ELEMENT,))
    return CPP_TYPES[dtype] if dtype else ELEMENT


# Metal's names of element types; Metal does not support other dtypes.
METAL_TYPES: dict[str, tuple[str, ...]] = {
    "bool_": ("bool",),
    "int8": ("int8_t", "char"),
    "int16": ("int16_t", "short"),
    "int32": ("int", "int32_t"),
    "int64": ("int64_t", "long"),
    "uint8": ("uint8_t", "uchar"),
    "uint16": ("uint16_t", "ushort"),
    "uint32": ("uint", "uint32_t", "unsigned int"),
    "uint64": ("uint64_t", "ulong", "size_t"),
    "float16": ("half", "float16_t"),
    "bfloat16": ("bfloat16_t", "bfloat"),
    "float32": ("float",),
}

# Each of these names, and the first name of the same type.
METAL_SAME = {"".join(name.split()): names[0] for names in METAL_TYPES.values() for name in names}


def metal_name(dtype: str) -> str:
    """Return Metal's name of a dtype's type that needs no header."""
    return METAL_TYPES[dtype][-1 if dtype == "bfloat16" else 0]
