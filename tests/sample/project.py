"""The sample project of tests: entries and kernels of every form, to be broken and compiled.

``mlx_ops.yaml`` uses every feature once, ``csrc`` and ``kernels`` have what its entries name.
"""

from __future__ import annotations

from pathlib import Path

from mlxgen.command import generate, operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.read.settings import Settings

HERE = Path(__file__).parent
YAML = HERE / "mlx_ops.yaml"


def settings(yaml: Path, name: str = "ops") -> Settings:
    """Settings for a file of entries beside the sample's kernels, or beside its own."""
    plain = operators.plain_settings(yaml)
    csrc = plain.csrc if plain.csrc.is_dir() else HERE / "csrc"
    metal = plain.metal if plain.metal.is_dir() else HERE / "kernels" / "metal"
    return plain._replace(name=name, namespace=name, csrc=csrc, metal=metal)


def run(yaml: Path, output: Path, name: str = "ops") -> Diagnostics:
    """Generate a package from a file of entries; what is wrong with it."""
    diags = Diagnostics()
    generate.generate(settings(yaml, name), output, diags)
    return diags
