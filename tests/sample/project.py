"""The sample project of tests: entries and kernels of every form, to be broken and compiled.

``mlx_ops.yaml`` uses every feature once; ``csrc`` and ``kernels`` contain the code that it names.
"""

from __future__ import annotations

from pathlib import Path

from mlxgen.command import generate, operators
from mlxgen.diagnostics import Diagnostics
from mlxgen.read.settings import Settings

HERE = Path(__file__).parent
YAML = HERE / "mlx_ops.yaml"


def settings(yaml: Path, name: str = "ops") -> Settings:
    """Return settings for a file of entries with the sample's kernels, or with its own."""
    plain = operators.plain_settings(yaml)
    csrc = plain.csrc if plain.csrc.is_dir() else HERE / "csrc"
    metal = plain.metal if plain.metal.is_dir() else HERE / "kernels" / "metal"
    return plain._replace(name=name, namespace=name, csrc=csrc, metal=metal)


def run(yaml: Path, output: Path, name: str = "ops") -> Diagnostics:
    """Generate a package from a file of entries; return the diagnostics."""
    diags = Diagnostics()
    generate.generate(settings(yaml, name), output, diags)
    return diags
