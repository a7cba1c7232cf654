"""Mutation testing of gradient formulas: do the samples of an entry kill all mutants?

Run ``python -m tools.formulas [FILE.yaml]``. Nothing is compiled: formulas are evaluated in Python,
and kernels are called in the installed package.
"""
