"""Lets the tests import the modules next to them, as the commands of this folder do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
