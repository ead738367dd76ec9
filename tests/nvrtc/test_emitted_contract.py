"""Emitted files beside nvcc alone: they build as libraries, as C and as C++, and check their contract without a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.libraries import CONFIGS, Library
from tests.nvcc import demand_nvcc
from wmmagen import derive, emit, nvrtc
from wmmagen.arch import ARCHS
from wmmagen.config import KernelConfig
from wmmagen.defaults import read_config
from wmmagen.errors import ConfigError

SM80 = ARCHS[80]


@pytest.fixture(scope="module", params=CONFIGS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[KernelConfig, Library]:
    config = read_config(request.param, SM80)
    return config, Library(config, SM80, demand_nvcc(), tmp_path_factory.mktemp("emitted"))


def test_every_bad_call_is_refused_before_anything_is_launched(
    built: tuple[KernelConfig, Library],
) -> None:
    config, library = built
    known = derive.values(config)
    m, n, k = known["BLOCK_M"], known["BLOCK_N"], known["BLOCK_K"]
    some = 1 << 20  # an address that is aligned and never read: every call here ends before the launch

    def status(
        a: int = some, b: int = some, d: int = some, m: int = m, n: int = n, k: int = k,
        lda: int = k, ldb: int = n, ldd: int = n,
    ) -> int:  # fmt: skip
        return int(library.launch(a, b, d, m, n, k, lda, ldb, ldd, None))

    size, leading, pointer = 1, 2, 3
    assert status(m=-m) == size
    assert status(m=m + 1) == size
    assert status(n=n + 8) == size
    assert status(k=k + 16, lda=k + 16) == size or k == 16
    assert status(lda=k - 8) == leading
    assert status(lda=k + 4) == leading
    assert status(ldb=n - 8) == leading
    assert status(ldd=n - 8) == leading
    assert status(ldd=n + 1) == leading
    assert status(a=some + 8) == pointer
    assert status(b=some + 2) == pointer
    assert status(d=some + 16) == pointer
    assert status(d=0) == pointer
    assert status(a=0) == pointer
    assert status(m=0) == 0
    assert status(n=0, ldb=0, ldd=0) == 0


def test_two_kernels_link_into_one_c_program(tmp_path: Path) -> None:
    nvcc = demand_nvcc()
    cc = shutil.which("cc") or pytest.skip("no C compiler")
    include = f"-I{nvrtc.headers().directories[0]}"
    for symbol, text in (("gemm_one", "acc=f32"), ("gemm_two", "acc=f16")):
        emit.emit(read_config(text, SM80), SM80, tmp_path, symbol=symbol)
        subprocess.run([nvcc, "-arch=sm_80", "-c", f"{symbol}.cu"], cwd=tmp_path, check=True, timeout=300)
    call = "(0, 0, 0, 0, 128, 32, 32, 128, 128, 0)"
    (tmp_path / "main.c").write_text(
        '#include "gemm_one.h"\n#include "gemm_two.h"\n#include "gemm_one.h"\n'
        f"int main(void) {{ return (int)gemm_one{call} + (int)gemm_two{call}; }}\n"
    )
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([cc, *strict, include, "-c", "main.c"], cwd=tmp_path, check=True, timeout=60)
    objects = ["main.o", "gemm_one.o", "gemm_two.o"]
    subprocess.run([nvcc, *objects, "-o", "program"], cwd=tmp_path, check=True, timeout=120)
    # No row, no element, no launch: nothing here needs a GPU.
    assert subprocess.run([tmp_path / "program"], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "symbol",
    ["return", "THREADS", "BLOCK_M", "malloc", "cudaMalloc", "int4", "dim3", "wmmagen_status", "WMMAGEN_OK", "A", "",
     "9a", "a b", "acc", "kernel", "half2", "float4", "threadIdx", "printf", "ä", "x" * 201],
)  # fmt: skip
def test_names_that_cannot_compile_are_refused(symbol: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot name"):
        emit.emit(read_config("", SM80), SM80, tmp_path / "out", symbol=symbol)
    assert not (tmp_path / "out").exists()


def test_the_banner_s_command_makes_the_file(tmp_path: Path) -> None:
    import re
    import shlex
    import sys

    (path, _) = emit.emit(read_config("acc=f16", SM80), SM80, tmp_path, symbol="my_gemm")
    text = path.read_text()
    (command,) = re.findall(r"^// `wmmagen (render .*)`\.$", text, flags=re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "wmmagen", *shlex.split(command)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == text
