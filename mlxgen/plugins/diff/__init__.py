"""The command `mlxgen diff`."""
