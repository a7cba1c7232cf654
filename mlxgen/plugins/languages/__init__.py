"""The languages C and Rust: a library of C functions, and a crate that calls it."""

from ...model.languages import Language

C = Language("mlxgen.plugins.languages.c")
RUST = Language("mlxgen.plugins.languages.rust", requires=("c",))
