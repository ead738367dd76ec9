"""The tables of cases are shared with the tests that need no compiler."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pure"))
