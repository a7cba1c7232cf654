"""``mlxgen new`` and ``mlxgen add``."""
