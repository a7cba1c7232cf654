"""Building a package: the PEP 517 backend, CMake, and the nanobind that fits MLX."""
