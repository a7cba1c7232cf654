"""The build backend under the name that packages use: ``build-backend = "mlxgen.build"``."""

from .package.backend import *  # noqa: F403
from .package.backend import print_requirements

if __name__ == "__main__":
    # `python -m mlxgen.build` prints the requirements, one per line, for builds without isolation.
    print_requirements()
