"""Emitted files built into shared libraries by nvcc, for tests that call the launcher."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.nvcc import compile_with
from wmmagen import emit
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig

#: One for each pipeline and accumulator; one that needs more than 48 KB of shared memory, one with C, and splits of K
#: that meet both ways.
CONFIGS = [
    "feed=global,frags=2x2",
    "copy=ld,stages=1,split_k=2",
    "copy=ld,stages=2,acc=f16",
    "copy=cpasync,stages=3,inst=8x32x16,split_k=5,reduction=atomic",
    "copy=cpasync,stages=4,warps=4x2,k_steps=4",
    "copy=ld,stages=2,epilogue=linear,d=f16,store=staged",
]


class Library:
    """A launcher in a shared library that nvcc built from one emitted file."""

    def __init__(self, config: KernelConfig, arch: Arch, nvcc: Path, folder: Path) -> None:
        kernel, _, self.selftest, _ = emit.emit(config, arch, folder, symbol="my_gemm")
        self.path = folder / "libmy_gemm.so"
        compile_with(nvcc, kernel, arch, "-O3", "-shared", "-Xcompiler", "-fPIC", "-o", str(self.path))
        library = ctypes.CDLL(str(self.path))
        matrices, numbers = 3 + config.operation.scaled, 6 + config.operation.scaled
        factors = [ctypes.c_float] * 2 if config.operation.scaled else []
        arguments = [ctypes.c_void_p] * matrices + [ctypes.c_int] * numbers + factors
        arguments = [*arguments, *([ctypes.c_void_p, ctypes.c_size_t] if config.reduction == "workspace" else [])]
        self.supports, self.launch, self.status_text = (
            library.my_gemm_supports, library.my_gemm, library.my_gemm_status_text,
        )  # fmt: skip
        if config.reduction == "workspace":
            self.workspace_bytes = library.my_gemm_workspace_bytes
            self.workspace_bytes.argtypes, self.workspace_bytes.restype = [ctypes.c_int] * 2, ctypes.c_size_t
        self.supports.argtypes = arguments
        self.launch.argtypes = [*arguments, ctypes.c_void_p]
        self.supports.restype = self.launch.restype = ctypes.c_int
        self.status_text.argtypes, self.status_text.restype = [ctypes.c_int], ctypes.c_char_p
