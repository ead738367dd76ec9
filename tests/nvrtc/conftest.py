"""The tables of cases are shared with the tests that need no compiler, and headers among the tests that need one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wmmagen import nvrtc

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pure"))

#: What tests the compiler and its precompiled headers says itself how it is called.
OF_THE_COMPILER = ("test_foundry.py", "test_nvrtc.py", "test_spaces.py")


@pytest.fixture(scope="session")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this process for precompiled headers."""
    return tmp_path_factory.mktemp("headers")


@pytest.fixture(scope="module", autouse=True)
def _headers_once(request: pytest.FixtureRequest, headers: Path) -> Iterator[None]:
    """The headers are read once for each architecture, which changes no byte of a binary (`test_nvrtc.py`)."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name not in OF_THE_COMPILER:
            patch.setattr(nvrtc, "compile_source", functools.partial(nvrtc.compile_source, precompiled=headers))
        yield
