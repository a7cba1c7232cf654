"""In the editor: ``mlxgen lsp``, a language server (docs/editor.md says how editors start it).

``project`` checks what is edited, ``cursor`` knows what can stand where, ``server`` speaks LSP. All
that they say is of the other rooms.
"""
