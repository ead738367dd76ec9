"""`make gpu-test` demands a GPU; without that, these tests are skipped where there is none."""

from __future__ import annotations

import os

import pytest

from wmmagen.backends.gpu import devices
from wmmagen.errors import MissingPiece


def pytest_collection_finish() -> None:
    if os.environ.get("WMMAGEN_NEEDS_GPU"):
        try:
            devices()
        except MissingPiece as missing:
            pytest.exit(f"these tests were asked for on a GPU: {missing}", returncode=3)
