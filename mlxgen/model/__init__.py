"""What an operator is, as data: kinds, dtypes, signatures, resolved operators."""
