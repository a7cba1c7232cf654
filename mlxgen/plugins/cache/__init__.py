"""The command `mlxgen cache`."""
