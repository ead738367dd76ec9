"""The tables of cases are shared with the tests that need no compiler, and compilers with less to do."""

import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wmmagen import nvrtc
from wmmagen.arch import Arch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pure"))


@pytest.fixture(scope="session")
def precompiled_headers() -> Iterator[Path]:
    """A folder for the headers that this process, and no other, precompiles: 17 MB for each architecture."""
    with tempfile.TemporaryDirectory(prefix="headers-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def headers_once(precompiled_headers: Path) -> Iterator[None]:
    """The headers are read once for each architecture, which changes no byte of a binary (`test_foundry.py`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "compile_source", functools.partial(nvrtc.compile_source, precompiled=precompiled_headers))
        yield


@pytest.fixture(scope="module")
def text_only_matters() -> Iterator[None]:
    """For what the compiler says of a text: all of it runs, front end to assembler, and optimizes little."""

    def flags(arch: Arch, line_info: bool, before: Callable[[Arch, bool], list[str]] = nvrtc._flags) -> list[str]:
        return [*before(arch, line_info), "--Ofast-compile=max"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "_flags", flags)
        yield
