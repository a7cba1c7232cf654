"""`python -m mlxgen.emulator.compile SOURCE`: compiles embedded Metal source and prints the path.

The substitute for MLX's Metal device runs this command when an operator first needs a library. On
an error the command prints the reason and exits with status 1.
"""

import sys

from ..read.preprocess import SourceError
from .cxx import EmulationError
from .library import build
from .translate import translate


def main(path: str) -> int:
    """Compile the file at `path`; return the exit status."""
    try:
        print(build(translate(path).text, path))
    except (EmulationError, SourceError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
