"""Source to binary through NVRTC: works without a GPU and without a driver."""

from __future__ import annotations

from dataclasses import dataclass

from wmmagen.arch import Arch


@dataclass(frozen=True)
class Binary:
    """What the compiler made of one source for one architecture.

    Attributes:
        entry: the symbol of the kernel.
        arch: the architecture that ``cubin`` is machine code of.
        cubin: machine code.
        ptx: the PTX that ``cubin`` was assembled from.
        registers: per thread.
        spill_bytes: stores plus loads of spilled registers, per thread.
        stack_bytes: stack frame, per thread.
        static_shared_bytes: statically declared shared memory, per block.
        log: the compiler's whole log, warnings included.
        seconds: wall time of the compilation.
        compiler: name and version of what compiled it, ``NVRTC 13.5``.
    """

    entry: str
    arch: Arch
    cubin: bytes
    ptx: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    log: str
    seconds: float
    compiler: str
