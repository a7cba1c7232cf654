"""`python -m mlxgen.emulator.compile SOURCE`: compile embedded Metal source, print the path.

The substitute of MLX's Metal device runs it when an operator needs a library for the first time.
What is wrong is printed too, with exit status 1.
"""

import sys

from ..read.preprocess import SourceError
from .cxx import EmulationError
from .library import build
from .translate import translate


def main(path: str) -> int:
    """Compile the file at `path`; the exit status."""
    try:
        print(build(translate(path).text, path))
    except (EmulationError, SourceError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
