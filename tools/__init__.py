"""Tools for maintainers of mlxgen; run from the repository's root: ``python -m tools.<name>``."""
