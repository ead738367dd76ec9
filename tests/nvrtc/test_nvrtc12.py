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
from test_generated import FILES

#: The last CUDA 12: compiler, headers, and the headers of ``crt``, which came with nvcc then.
WHEELS = ("nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-nvcc-cu12==12.9.86")
INSTALL_LIMIT_S = 180
COMPILER = Path(__file__).with_name("compile_texts.py")
BROKEN = 'extern "C" __global__ void broken() { none(); }'

#: Each for its own architecture, and those for sm_75 for the one before it, too.
CASES = [(file, file.parent.name) for file in FILES] + [(f, "sm_70") for f in FILES if f.parent.name == "sm_75"]
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
        return set(re.findall(r"(?:warning|error)[^:\n]*: (.*)", self.log))


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
    """All of them, from one process: by file and architecture."""
    texts = [(arch, file.read_text(encoding="utf-8")) for file, arch in CASES] + [("sm_75", BROKEN)]
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
    names = [(file.stem, arch) for file, arch in CASES] + [("broken", "sm_75")]
    return {name: Answer(*result) for name, result in zip(names, told["results"], strict=True)}


@pytest.mark.parametrize(("file", "arch"), CASES, ids=lambda case: getattr(case, "stem", case))
def test_committed_kernels_compile(answers: dict[tuple[str, str], Answer], file: Path, arch: str) -> None:
    answer = answers[file.stem, arch]
    assert answer.cubin_bytes > 0, answer.log
    assert answer.complaints <= ({DEPRECATED, OF_THE_LAUNCHER} if arch == "sm_70" else set())


def test_what_it_refuses_is_seen(answers: dict[tuple[str, str], Answer]) -> None:
    refused = answers["broken", "sm_75"]
    assert refused.cubin_bytes == 0
    assert refused.complaints == {'identifier "none" is undefined'}
