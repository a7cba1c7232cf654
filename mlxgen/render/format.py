"""Formats generated C++ for display, with clang-format in MLX's style.

Generated files are not formatted, because formatting takes longer than generating them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

# The style of MLX's .clang-format.
STYLE = """{BasedOnStyle: Google, AccessModifierOffset: -1, AlignAfterOpenBracket: AlwaysBreak,
AlignOperands: DontAlign, AlignTrailingComments: false,
AllowAllParametersOfDeclarationOnNextLine: false, AllowShortFunctionsOnASingleLine: Empty,
AllowShortIfStatementsOnASingleLine: Never, AllowShortLoopsOnASingleLine: false,
BinPackArguments: false, BinPackParameters: false, BreakStringLiterals: false,
ContinuationIndentWidth: 4, DerivePointerAlignment: false, IncludeBlocks: Preserve,
SortIncludes: Never, SpacesBeforeTrailingComments: 1, RawStringFormats: []}"""


def formatted(text: str) -> str:
    """Format C++ in MLX's style; return it unchanged if clang-format is not installed."""
    beside = Path(sys.executable).with_name("clang-format")
    tool = str(beside) if beside.exists() else shutil.which("clang-format")
    if tool is None:
        return text
    command = [tool, f"--style={STYLE}", "--assume-filename=generated.cpp"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else text
