"""The functions of MLX, generated."""

from mlx_functions._load import *
