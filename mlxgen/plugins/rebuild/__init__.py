"""Builds installed packages for other releases of MLX."""
