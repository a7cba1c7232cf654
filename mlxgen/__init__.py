"""mlxgen: one YAML entry per operator becomes an MLX extension.

``python -m mlxgen --help`` is the way in for people; ``mlxgen.generate`` holds the same as
functions. The modules follow the data: source, schema, signature, resolve (with formula, mlx_api,
kernels, cxx, metal), model, view, render, write. See docs/architecture.md.
"""

__version__ = "0.1.0"
