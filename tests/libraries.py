"""Emitted files built into shared libraries by nvcc, for tests that call the launcher."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.nvcc import compile_with
from wmmagen import emit
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig

#: One for each pipeline and accumulator; the last needs more than 48 KB of shared memory.
CONFIGS = [
    "feed=global,frags=2x2",
    "copy=ld,stages=1",
    "copy=ld,stages=2,acc=f16",
    "copy=cpasync,stages=3,inst=8x32x16",
    "copy=cpasync,stages=4,warps=4x2,k_steps=4",
]


class Library:
    """A launcher in a shared library that nvcc built from one emitted file."""

    def __init__(self, config: KernelConfig, arch: Arch, nvcc: Path, folder: Path) -> None:
        (source, _) = emit.emit(config, arch, folder, symbol="my_gemm")
        built = folder / "libmy_gemm.so"
        compile_with(nvcc, source, arch, "-O3", "-shared", "-Xcompiler", "-fPIC", "-o", str(built))
        self.launch = ctypes.CDLL(str(built)).my_gemm
        self.launch.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 6 + [ctypes.c_void_p]
        self.launch.restype = ctypes.c_int
