"""Operators as data: kinds, dtypes, signatures, resolved operators."""
