"""Runs a module of the mlxgen that contains this file: ``python run.py mlxgen.probe ...``.

CMake may use an mlxgen that is not installed, or that differs from the installed one.
``PYTHONPATH`` cannot select it, because pip's isolated builds break if it contains their folders.

``--path=FOLDER`` before the module puts that folder first in the module search path. It contains
the release of MLX to build for, if that is not the installed one.
"""

import importlib.util
import runpy
import sys
from pathlib import Path

folder = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location(
    "mlxgen", folder / "__init__.py", submodule_search_locations=[str(folder)]
)
assert spec is not None
assert spec.loader is not None
sys.modules["mlxgen"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["mlxgen"])
del sys.argv[0]
if sys.argv[0].startswith("--path="):
    sys.path.insert(0, sys.argv.pop(0).partition("=")[2])
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
