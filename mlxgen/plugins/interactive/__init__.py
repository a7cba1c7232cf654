"""``mlxgen.load`` and the notebook extension: operators from strings, built in a cache."""
