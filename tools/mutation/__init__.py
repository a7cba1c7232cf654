"""Mutation testing of kernels: do the tests kill all mutants?

``python -m tools.mutation`` tests Metal kernels and their launchers, and ``python -m
tools.mutation.cpu`` tests C++ kernels. docs/mutation.md lists the mutations, and
docs/mutation-results.md the results.
"""
