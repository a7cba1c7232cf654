"""Formulas: Python expressions of the YAML, checked and compiled to calls of MLX's C++ API."""
