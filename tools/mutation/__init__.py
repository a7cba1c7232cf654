"""Mutation testing of Metal kernels and their launchers: do the tests notice planted mistakes?

``python -m tools.mutation`` runs it; docs/mutation.md says what it changes, and has the results.
"""
