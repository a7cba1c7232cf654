"""Imports operators of other libraries: writes entries from the schema of an installed package."""
