"""Errors are the product: how mlxgen says what is wrong, where, and what to write instead.

A message has a stable code (``MG104``), which errors.md explains, and a ``Span``, which reaches
inside the strings of the YAML file (``Entry.text_span``). ``Diagnostics`` collects them.
"""

from .codes import explain, sections
from .collect import Diagnostic, Diagnostics
from .span import COMMAND_LINE, LINE_BREAK, Span
from .suggest import did_you_mean, suggest

__all__ = [
    "COMMAND_LINE",
    "LINE_BREAK",
    "Diagnostic",
    "Diagnostics",
    "Span",
    "did_you_mean",
    "explain",
    "sections",
    "suggest",
]
