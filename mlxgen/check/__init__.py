"""Resolves entries: makes every decision of the generator and reports every mismatch."""
