"""The table of kinds is complete, and determines the types of signatures."""

import pytest

from mlxgen.model.cpp import INT64
from mlxgen.model.dtypes import CPP_TYPES, DTYPES, METAL_SAME, METAL_TYPES
from mlxgen.model.kinds import BY_VALUE, KINDS, METAL_INTS, Kind
from mlxgen.model.signature import Type


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_spelled(kind):
    spelling = KINDS[kind]
    assert spelling.cpp and spelling.python and spelling.slot
    assert bool(spelling.scalars) == bool(spelling.metal)  # kernels accept it on all backends
    assert spelling.by_value == (Type(kind).cpp in BY_VALUE)
    assert Type(kind).cpp_param.const != spelling.by_value


def test_metal_types():
    assert {kind: str(KINDS[kind].metal[0]) for kind in Kind if KINDS[kind].metal} == {
        Kind.FLOAT: "float",
        Kind.INT: "int",
        Kind.BOOL: "bool",
        Kind.NUMBER: "float",
        Kind.ENUM: "int",
    }
    assert set(METAL_INTS) < {names[0] for names in METAL_TYPES.values()}
    assert {METAL_SAME[name] for name in ("int32_t", "long", "unsignedint", "size_t")} == {
        *METAL_INTS
    }
    assert set(METAL_TYPES) < set(CPP_TYPES) == set(DTYPES)


def test_numbers_are_not_cut():
    wide, metal = Type(Kind.INT, int64=True).wide, KINDS[Kind.INT].metal
    assert wide(KINDS[Kind.INT].scalars) == (INT64,)
    assert [type.name for type in wide(metal)] == ["int64_t", "uint64_t"]
    assert Type(Kind.INT).wide(metal) == metal
