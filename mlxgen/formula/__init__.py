"""Compiles the formulas of the YAML (Python expressions) to calls of MLX's C++ API."""
