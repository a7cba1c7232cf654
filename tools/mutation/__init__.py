"""Mutation testing of kernels: do the tests notice planted mistakes?

``python -m tools.mutation`` runs it for Metal kernels and their launchers, ``python -m
tools.mutation.cpu`` for C++ kernels; docs/mutation.md lists the mutants, docs/mutation-results.md
the results.
"""
