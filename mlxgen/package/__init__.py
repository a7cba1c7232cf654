"""Builds packages: the PEP 517 backend, CMake, and the nanobind that matches MLX."""
