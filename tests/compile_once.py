"""Runs a C++ compiler for CMake, unless the same was compiled before.

The packages that tests build have much in common: nanobind, mlxgen's runtime, CMake's questions to
the compiler. An object is kept in `build/objects` under a hash of the compiler's version, its flags
and the preprocessed source, so that it is never an old one. To preprocess costs a thirtieth of what
it costs to compile.

`builds.environment` names it in CMAKE_CXX_COMPILER_LAUNCHER.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build" / "objects"
MOST = 500
"""Objects that are kept: the latest."""

# What is in the preprocessed text, or does not matter to the object: the rest is its flags.
_WITH_VALUE = ("-I", "-isystem", "-D", "-U", "-MF", "-MT", "-MQ", "-o")
_ALONE = re.compile(r"-(I|D|U).+|-M[MDGP]*|-c")
_MARKER = re.compile(rb"^# \d+ .*\n", re.MULTILINE)  # names of files
# Precompiled headers and other languages are compiled as they are; so is what links.
_OTHER = re.compile(r"-include.*|-x|-Xclang|-E|-S|-M|-MM|@.*|-g.*|-f(profile|coverage|lto).*|-arch")


def flags(command: list[str]) -> list[str]:
    """The compiler and what it is told beside names of files and what the text shows."""
    kept, words = [], iter(command)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not _ALONE.fullmatch(word) and not word.endswith((".cpp", ".cxx", ".cc")):
            kept.append(word)
    return kept


def compile_once(command: list[str]) -> int:
    """The compiler's exit status."""
    if "-c" not in command or "-o" not in command or any(map(_OTHER.fullmatch, command)):
        return subprocess.call(command)
    place = command.index("-o") + 1
    out = Path(command[place])
    # The preprocessor writes the list of headers, too, for the object that CMake asks for.
    target = [] if "-MT" in command or "-MD" not in command else ["-MT", str(out)]
    asked = [word for word in command if word != "-c"]
    asked[asked.index("-o") + 1] = "-"
    text = subprocess.run([*asked, *target, "-E"], capture_output=True, check=False)
    if text.returncode:
        return subprocess.call(command)
    version = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(b"\0".join([version, *map(str.encode, flags(command))]))
    key.update(_MARKER.sub(b"", text.stdout))
    kept = FOLDER / f"{key.hexdigest()[:32]}.o"
    try:
        shutil.copyfile(kept, out)
        os.utime(kept)
        return 0
    except OSError:
        pass
    done = subprocess.run(command, capture_output=True, check=False)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    if done.returncode == 0 and not done.stderr and out.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        temporary = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(out, temporary)
        os.replace(temporary, kept)
        found = sorted(FOLDER.glob("*.o"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[MOST:]:
            path.unlink(missing_ok=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(compile_once(sys.argv[1:]))
