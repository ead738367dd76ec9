"""The device text compiles with NVRTC 12, and there for sm_70, for which NVRTC 13 makes no code.

The wheels are installed into a folder that is removed again; where that cannot be done, the tests are skipped with
pip's reason. Another NVRTC than the package's needs a process of its own, in which ``compile_texts.py`` runs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import shipped
from tests.nvcc import headers
from wmmagen import instructions

#: The last CUDA 12: compiler, headers, and the headers of ``crt``, which came with nvcc then.
WHEELS = ("nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-nvcc-cu12==12.9.86")
INSTALL_LIMIT_S = 180
COMPILER = Path(__file__).with_name("compile_texts.py")
BROKEN = 'extern "C" __global__ void broken() { none(); }'

OLDEST = 70


def text_of(name: str) -> str:
    return shipped.file_of(name).read_text(encoding="utf-8")


def min_sm(name: str) -> int:
    """The first architecture that has the instruction of a kernel."""
    case = shipped.config_of(name)
    row = instructions.find(case.operation.a, case.operation.acc, *case.multiplied)
    assert row is not None
    return row.min_sm


def cases() -> dict[tuple[str, str], str]:
    """Texts by what they hold and their architecture: one kernel alone for each list of headers, the others together.

    Those for sm_75 are there for the one before it, too, where that has their instruction.
    """
    alone = {headers(text_of(name)): name for name in shipped.NAMES}
    units: dict[str, list[str]] = {}
    for name in shipped.NAMES:
        home = name.partition("/")[0]
        if name not in alone.values():
            units.setdefault(home, []).append(name)
        if home == "sm_75" and min_sm(name) <= OLDEST:
            units.setdefault(f"sm_{OLDEST}", []).append(name)
    found = {("together", arch): shipped.together(map(text_of, names)) for arch, names in units.items()}
    return found | {(name.partition("/")[2], name.partition("/")[0]): text_of(name) for name in alone.values()}


CASES = cases()
#: What sm_70 is told, beyond what the file's own architecture is.
DEPRECATED = "Architectures prior to '<compute/sm>_75' are deprecated and may be removed in a future release"
#: In the device part only a limit of the file's own architecture reads it; the launcher, which reads it too, is nvcc's.
OF_THE_LAUNCHER = 'variable "<unnamed>::SHARED_BYTES" was declared but never referenced'


@dataclass(frozen=True)
class Answer:
    """What NVRTC 12 made of a text: bytes of machine code, 0 where it was refused, and its log."""

    cubin_bytes: int
    log: str

    @property
    def complaints(self) -> set[str]:
        found = re.findall(r"(?:warning|error)[^:\n]*: (.*)", self.log)
        return {re.sub(r"number_[0-9]+::", "", complaint) for complaint in found}


@pytest.fixture(scope="module")
def toolkit() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cuda12-") as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--retries", "0", "--timeout", "20", "--target", folder, *WHEELS]  # fmt: skip
        try:
            done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.skip(f"the wheels of CUDA 12 were not installed within {INSTALL_LIMIT_S} s")
        if done.returncode:
            pytest.skip(
                f"the wheels of CUDA 12 cannot be installed: {(done.stderr.splitlines() or ['pip is silent'])[-1]}"
            )
        yield Path(folder, "nvidia")


@pytest.fixture(scope="module")
def answers(toolkit: Path) -> dict[tuple[str, str], Answer]:
    """All of them, from one process: by what was compiled, and for which architecture."""
    texts = [(arch, text) for (_, arch), text in CASES.items()] + [("sm_75", BROKEN)]
    asked = {
        "library": str(toolkit / "cuda_nvrtc/lib/libnvrtc.so.12"),
        "options": [f"-I{toolkit / part / 'include'}" for part in ("cuda_runtime", "cuda_nvcc")],
        "texts": texts,
    }
    done = subprocess.run(
        [sys.executable, str(COMPILER)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    told = json.loads(done.stdout)
    assert told["version"][0] == 12
    names = [*CASES, ("broken", "sm_75")]
    return {name: Answer(*result) for name, result in zip(names, told["results"], strict=True)}


@pytest.mark.parametrize(("what", "arch"), CASES)
def test_committed_kernels_compile(answers: dict[tuple[str, str], Answer], what: str, arch: str) -> None:
    answer = answers[what, arch]
    assert answer.cubin_bytes > 0, answer.log
    assert answer.complaints <= ({DEPRECATED, OF_THE_LAUNCHER} if arch == "sm_70" else set())


def test_what_it_refuses_is_seen(answers: dict[tuple[str, str], Answer]) -> None:
    refused = answers["broken", "sm_75"]
    assert refused.cubin_bytes == 0
    assert refused.complaints == {'identifier "none" is undefined'}
