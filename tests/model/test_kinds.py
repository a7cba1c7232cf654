"""The table of kinds is whole, and what signatures say follows from it."""

import pytest

from mlxgen.model.dtypes import CPP_TYPES, DTYPES, METAL_TYPES
from mlxgen.model.kinds import BY_VALUE, KINDS, METAL_INTS, Kind
from mlxgen.model.signature import Type


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_spelled(kind):
    spelling = KINDS[kind]
    assert spelling.cpp and spelling.python and spelling.slot
    assert bool(spelling.scalars) == bool(spelling.metal)  # kernels take it on all backends
    assert spelling.by_value == (Type(kind).cpp in BY_VALUE)
    assert Type(kind).cpp_param.startswith("const ") != spelling.by_value


def test_metal_types():
    assert {kind: next(iter(KINDS[kind].metal)) for kind in Kind if KINDS[kind].metal} == {
        Kind.FLOAT: "float",
        Kind.INT: "int",
        Kind.BOOL: "bool",
        Kind.ENUM: "int",
    }
    assert set(METAL_INTS) >= set(METAL_TYPES["int32"]) | set(METAL_TYPES["int64"])
    assert set(METAL_TYPES) < set(CPP_TYPES) == set(DTYPES)


def test_numbers_are_not_cut():
    wide = Type(Kind.INT, int64=True).wide
    assert wide(KINDS[Kind.INT].scalars) == ("int64_t",)
    assert wide(KINDS[Kind.INT].metal) == ("int64_t", "long")
    assert Type(Kind.INT).wide(KINDS[Kind.INT].metal) == ("int", "int32_t", "int64_t", "long")
