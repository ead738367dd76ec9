"""Compute capabilities: what a multiprocessor of each one holds.

Sources: CUDA C++ Programming Guide 13, "Compute Capabilities", table "Technical Specifications per Compute
Capability" (75 to 121), and the same table of version 12 (50 to 72); register allocation per warp from
``cuda_occupancy.h`` of the toolkit.
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities

Shared memory is in bytes. A block of sm_80 and later pays 1,024 bytes of its multiprocessor's shared memory to
the system, which is why the largest block is 1 KB smaller than the multiprocessor.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from wmmagen.errors import ConfigError

WARP_SIZE = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
REGISTERS_PER_SM = 65_536
#: Registers are handed out per warp in units of 256, i.e. 8 per thread.
REGISTER_UNIT = 256
#: Warps of a block are spread over four schedulers, each with a quarter of the registers.
SCHEDULERS = 4
SHARED_UNIT = 128
#: Blocks that keep every multiprocessor of the largest chips at work: about 150, each with seven small blocks.
FULL_GRID = 1024


@dataclass(frozen=True)
class Arch:
    """One compute capability.

    Attributes:
        sm: 10 * major + minor, as in ``sm_75``.
        shared_block: bytes of shared memory that one block may use, opted in.
        shared_sm: bytes of shared memory of one multiprocessor.
        shared_reserved: bytes that the system takes per resident block.
        warps_sm: warps resident on one multiprocessor.
        blocks_sm: blocks resident on one multiprocessor.
        cards: where one meets it.
    """

    sm: int
    shared_block: int
    shared_sm: int
    shared_reserved: int
    warps_sm: int
    blocks_sm: int
    cards: str

    def __post_init__(self) -> None:
        if self.shared_block + self.shared_reserved > self.shared_sm:
            raise ValueError(f"sm_{self.sm}: a block cannot have more shared memory than its multiprocessor")
        if self.warps_sm * WARP_SIZE < MAX_THREADS_PER_BLOCK:
            raise ValueError(f"sm_{self.sm}: a block of {MAX_THREADS_PER_BLOCK} threads must fit")

    @property
    def name(self) -> str:
        """``sm_75``."""
        return f"sm_{self.sm}"

    def __str__(self) -> str:
        return self.name


def _kb(kilobytes: int) -> int:
    return kilobytes * 1024


def _row(sm: int, block: int, per_sm: int, reserved: int, warps: int, blocks: int, cards: str) -> Arch:
    return Arch(sm, _kb(block), _kb(per_sm), _kb(reserved), warps, blocks, cards)


ARCHS: dict[int, Arch] = {
    a.sm: a
    for a in (
        _row(50, 48, 64, 0, 64, 32, "Maxwell"),
        _row(52, 48, 96, 0, 64, 32, "Maxwell"),
        _row(53, 48, 64, 0, 64, 32, "Jetson TX1"),
        _row(60, 48, 64, 0, 64, 32, "P100"),
        _row(61, 48, 96, 0, 64, 32, "GTX 10, P4, P40"),
        _row(62, 48, 64, 0, 64, 32, "Jetson TX2"),
        _row(70, 96, 96, 0, 64, 32, "V100"),
        _row(72, 96, 96, 0, 64, 32, "Jetson Xavier"),
        _row(75, 64, 64, 0, 32, 16, "T4, RTX 20, GTX 16"),
        _row(80, 163, 164, 1, 64, 32, "A100, A30"),
        _row(86, 99, 100, 1, 48, 16, "RTX 30, A10, A40"),
        _row(87, 163, 164, 1, 48, 16, "Jetson Orin"),
        _row(89, 99, 100, 1, 48, 24, "RTX 40, L4, L40"),
        _row(90, 227, 228, 1, 64, 32, "H100, H200, GH200"),
        _row(100, 227, 228, 1, 64, 32, "B200, GB200"),
        _row(103, 227, 228, 1, 64, 32, "B300, GB300"),
        _row(110, 227, 228, 1, 48, 24, "Jetson Thor"),
        _row(120, 99, 100, 1, 48, 24, "RTX 50, RTX PRO Blackwell"),
        _row(121, 99, 100, 1, 48, 24, "DGX Spark"),
    )
}

#: ``sm_75``, ``compute_75``, ``75`` or ``7.5``.
_SPELLING = re.compile(r"(?:sm_|compute_)?([1-9][0-9]{1,2})|([1-9][0-9]?)\.([0-9])", re.ASCII)

#: Architectures that a CUDA 13 compiler lists, but whose limits the guide's table does not give.
UNSOURCED = (88, 107)


def find(text: str) -> Arch:
    """The architecture called ``sm_75``, ``compute_75``, ``75`` or ``7.5``.

    Raises:
        ConfigError: no such architecture, or one whose limits no document gives.
    """
    match = _SPELLING.fullmatch(text.strip().lower())
    fix = "known: " + ", ".join(a.name for a in ARCHS.values() if a.sm >= 75)
    if match is None:
        near = difflib.get_close_matches(text, [a.name for a in ARCHS.values()], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"--arch {text!r} is no architecture", hint + fix)
    sm = int("".join(filter(None, match.groups())))
    if sm in UNSOURCED:
        raise ConfigError(
            f"sm_{sm} is listed by the compiler, but the guide's table of compute capabilities does not give its "
            "limits, and wmmagen does not guess them",
            fix,
        )
    if sm not in ARCHS:
        raise ConfigError(f"--arch {text!r} is no architecture", fix)
    return ARCHS[sm]


def occupancy(arch: Arch, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks of a kernel that one multiprocessor of ``arch`` holds at a time; 0 where not even one fits.

    Args:
        threads: threads per block.
        registers: registers per thread, as the compiler reports them.
        shared_bytes: static and dynamic shared memory per block.

    Source: the rules of ``cuda_occupancy.h``: whole warps, registers per warp in units of 256, a quarter of the
    register file per scheduler, shared memory in units of 128 bytes beside what the system reserves.
    """
    if threads > MAX_THREADS_PER_BLOCK or registers > MAX_REGISTERS_PER_THREAD:
        return 0
    if shared_bytes > arch.shared_block:
        return 0
    warps = _ceil_div(threads, WARP_SIZE)
    limits = [arch.blocks_sm, arch.warps_sm // warps]
    if registers:
        per_warp = _ceil_div(registers * WARP_SIZE, REGISTER_UNIT) * REGISTER_UNIT
        resident_warps = (REGISTERS_PER_SM // SCHEDULERS // per_warp) * SCHEDULERS
        # The launch itself needs registers for whole rounds of the schedulers; residency counts warps.
        launchable = _ceil_div(warps, SCHEDULERS) * SCHEDULERS * per_warp <= REGISTERS_PER_SM
        limits.append(resident_warps // warps if launchable else 0)
    per_block = _ceil_div(shared_bytes, SHARED_UNIT) * SHARED_UNIT + arch.shared_reserved
    if per_block:
        limits.append(arch.shared_sm // per_block)
    return min(limits)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
