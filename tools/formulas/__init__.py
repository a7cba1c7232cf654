"""Mutation testing of gradient formulas: do an entry's samples notice planted mistakes?

``python -m tools.formulas [FILE.yaml]`` runs it. Nothing is compiled: formulas are evaluated as
Python, kernels called in the package that is installed.
"""
