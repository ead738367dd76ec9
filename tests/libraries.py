"""Emitted files built into shared libraries by nvcc, for tests that call the launcher."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from tests.nvcc import compile_with, unit_of
from wmmagen import emit
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig

#: One for each pipeline and accumulator; one that needs more than 48 KB of shared memory, one with C, and splits of K
#: that meet both ways, one of them in groups of warps.
CONFIGS = [
    "feed=global,frags=2x2",
    "copy=ld,stages=1,split_k=2,warps_k=2",
    "copy=ld,stages=2,acc=f16",
    "copy=cpasync,stages=3,inst=8x32x16,split_k=5,reduction=atomic",
    "copy=cpasync,stages=4,warps=4x2,k_steps=4",
    "copy=ld,stages=2,epilogue=linear,d=f16,store=staged",
]


class Launcher:
    """The functions of one emitted kernel in a shared library."""

    def __init__(self, config: KernelConfig, library: Path, symbol: str) -> None:
        matrices, numbers = 3 + config.operation.scaled, 6 + config.operation.scaled
        factors = [ctypes.c_float] * 2 if config.operation.scaled else []
        arguments = [ctypes.c_void_p] * matrices + [ctypes.c_int] * numbers + factors
        arguments = [*arguments, *([ctypes.c_void_p, ctypes.c_size_t] if config.reduction == "workspace" else [])]
        functions = ctypes.CDLL(str(library))
        self.supports, self.launch, self.status_text = (
            functions[f"{symbol}_supports"], functions[symbol], functions[f"{symbol}_status_text"],
        )  # fmt: skip
        if config.reduction == "workspace":
            self.workspace_bytes = functions[f"{symbol}_workspace_bytes"]
            self.workspace_bytes.argtypes, self.workspace_bytes.restype = [ctypes.c_int] * 2, ctypes.c_size_t
        self.supports.argtypes = arguments
        self.launch.argtypes = [*arguments, ctypes.c_void_p]
        self.supports.restype = self.launch.restype = ctypes.c_int
        self.status_text.argtypes, self.status_text.restype = [ctypes.c_int], ctypes.c_char_p


class Library(Launcher):
    """A launcher in a shared library that nvcc built from one emitted file."""

    def __init__(self, config: KernelConfig, arch: Arch, nvcc: Path, folder: Path) -> None:
        kernel, _, self.selftest, _ = emit.emit(config, arch, folder, symbol="my_gemm")
        self.path = _shared(kernel, arch, nvcc)
        super().__init__(config, self.path, "my_gemm")


def launchers(configs: Sequence[KernelConfig], arch: Arch, nvcc: Path, folder: Path) -> list[Launcher]:
    """Those of several emitted files in one shared library, which takes much less time than one for each."""
    symbols = [f"gemm_{number}" for number in range(len(configs))]
    unit = folder / "gemms.cu"
    pairs = zip(configs, symbols, strict=True)
    unit.write_text(unit_of([emit.emit(config, arch, folder, symbol=symbol)[0] for config, symbol in pairs]))
    library = _shared(unit, arch, nvcc)
    return [Launcher(config, library, symbol) for config, symbol in zip(configs, symbols, strict=True)]


def _shared(file: Path, arch: Arch, nvcc: Path) -> Path:
    library = file.with_name(f"lib{file.stem}.so")
    compile_with(nvcc, file, arch, "-O3", "-shared", "-Xcompiler", "-fPIC", "-o", str(library))
    return library
