"""Mutation testing of kernels: do the tests notice planted mistakes?

``python -m tools.mutation`` runs it for Metal kernels and their launchers, ``python -m
tools.mutation.cpu`` for C++ kernels; docs/mutation.md says what is changed, and has the results.
"""
