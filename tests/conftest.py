"""No test meets the user's cache: what tests the compiler compiles, and what tests the cache sets a folder.

Tests of what comes after the compiler ask for ``compiled_once``: what any of them compiled, none compiles again, and
what the disassembler said of it in this process, it is not asked again. What takes longest begins first, so that no
process is left alone with it in the end.

Each process of the tests multiplies in one thread. There is a process for each core already, and the threads of BLAS
wait for each other by turning: beside busy cores that took more of them than the products themselves.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# Read when NumPy is imported, which the next line does; processes that tests start inherit it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from wmmagen import cache, sass

#: The files that take longest, the longest first; the others follow in the order of their names.
LONGEST = (
    "test_cli.py",
    "test_mutants.py",
    "test_kernels_compile.py",
    "test_tune.py",
    "test_space.py",
    "test_lint_compiled.py",
    "test_foundry.py",
    "test_defaults.py",
    "test_rules_compiled.py",
    "test_worker.py",
    "test_render.py",
    "test_nvcc.py",
    "test_json.py",
    "test_nvrtc12.py",
    "test_emission.py",
    "test_emitted_contract.py",
    "test_profile.py",
    "test_executor_draws.py",
    "test_show.py",
    "test_rules.py",
    "test_executor_kernels.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Files are handed out whole and in order: a long one that comes last runs alone.
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> Iterator[None]:
    """A shell has what it runs in the background ignore interrupts, and so would all processes that tests start."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _no_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.VARIABLE, "")
        yield


#: nvdisasm takes longer than the compiler, and both tell of the same bytes the same.
_DISASSEMBLED, _PARSED = functools.cache(sass.disassemble), functools.cache(sass.parse)


@pytest.fixture
def compiled_once(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache of binaries for all tests of this run that ask for it, in whichever process they run.

    And one in each process of what the disassembler said.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled once"
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    monkeypatch.setattr(sass, "disassemble", _DISASSEMBLED)
    monkeypatch.setattr(sass, "parse", _PARSED)
    return folder
