"""What maintainers of mlxgen run, from the root of the repository: ``python -m tools.<name>``."""
