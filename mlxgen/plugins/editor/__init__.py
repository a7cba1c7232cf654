"""``mlxgen lsp``, a language server. docs/editor.md explains how to set up editors.

``project`` checks the edited file, ``cursor`` computes the completions at a position, and
``server`` implements the protocol (LSP). All messages and facts come from the other layers.
"""
