"""Any size by a kernel for multiples: matrices are copied into padded ones, and D is cut back out of its own.

A launch on the copies is the kernel's own, with not one instruction for an edge in it. What is added are two small
kernels, which one more file of an emission holds: one that copies an operand and writes zeros behind what there is, one
that copies the part of D that was asked for. Operands that stay the same are padded once, for as many calls as there
are.

Sources: the contract of ``templates/padding.cu.jinja``, whose host part computes the same places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wmmagen import coverage, derive, layout, trial
from wmmagen.backends import Backend, Bytes, Launch, Pointer, Series
from wmmagen.config import KernelConfig, Problem
from wmmagen.layout import Image, Shifts
from wmmagen.nvrtc import Binary
from wmmagen.timing import Data

#: Threads of a block that copies a row. The template's COPY_THREADS.
THREADS = 256
#: Each copy begins on so many bytes, as whole allocations do: the widest promise that a kernel has.
ALIGNMENT = 256
#: What must stay around the copies.
_GUARD_BYTE = 0x5A


@dataclass(frozen=True)
class Copy:
    """A matrix of a call as it lies, line by line, and its padded copy.

    Attributes:
        lines, length: of the matrix; in elements.
        ld: of the matrix; in elements.
        lines_to, length_to: of the copy, whose lines follow each other without a gap.
        begin: where the copy begins in the workspace; in bytes.
    """

    lines: int
    length: int
    ld: int
    lines_to: int
    length_to: int
    begin: int


@dataclass(frozen=True)
class Plan:
    """The copies of a call.

    Attributes:
        problem: that of the kernel, on the copies.
        copies: of A, of B, of C where there is one, and of D.
        total_bytes: of the workspace.
    """

    problem: Problem
    copies: tuple[Copy, ...]
    total_bytes: int


def plan(config: KernelConfig, problem: Problem) -> Plan:
    """The copies for ``problem`` of the kernel ``config``, whose sizes may be any.

    Raises:
        ConfigError: a padded size is none.
        NotGeneratedYet: see :func:`wmmagen.coverage.demand_padding`.
    """
    coverage.demand_padding(config)
    known, o, p = derive.values(config), config.operation, problem
    m, n, k = (
        -(-extent // known[f"BLOCK_{axis}"]) * known[f"BLOCK_{axis}"]
        for axis, extent in zip("MNK", (p.m, p.n, p.k), strict=True)
    )
    a = ((p.m, m), (p.k, k)) if o.a_row_major else ((p.k, k), (p.m, m))
    b = ((p.k, k), (p.n, n)) if o.b_row_major else ((p.n, n), (p.k, k))
    d = ((p.m, m), (p.n, n))
    matrices = [(a, p.lda, o.a), (b, p.ldb, o.a), *([(d, p.ldc, o.d)] if o.scaled else []), (d, p.ldd, o.d)]
    copies, end = [], 0
    for ((lines, lines_to), (length, length_to)), ld, element in matrices:
        copies.append(Copy(lines, length, ld, lines_to, length_to, end))
        end += -(-lines_to * length_to * element.bits // 8 // ALIGNMENT) * ALIGNMENT
    inner = Problem.packed(o, m, n, k)
    return Plan(dataclasses.replace(inner, alpha=p.alpha, beta=p.beta), tuple(copies), end)


def launches(
    config: KernelConfig,
    kernel: Binary,
    copiers: Binary,
    problem: Problem,
    images: Sequence[Image],
    *,
    pads: bool = True,
    begin: int = 0,
) -> tuple[tuple[Binary, Launch], ...]:
    """What a call launches, in order; the workspace is the buffer behind those of ``images``.

    Args:
        kernel: of ``config``.
        copiers: of :func:`wmmagen.render.render_padding`.
        pads: whether A and B are copied; without, an earlier call of this size has done it.
        begin: where the workspace begins in its buffer; in bytes.
    """
    planned = plan(config, problem)
    place = len(images)
    *operands, d = planned.copies
    found = []
    for number, copy in enumerate(operands):
        # C is padded with every call, by what copies elements of its type, and not at all where it is not read.
        wanted = pads if number < 2 else problem.reads_c
        if wanted and copy.lines_to and copy.length_to:
            found.append((copiers, _pad(copiers.entry, number, copy, images[number], place, begin)))
    whole = trial.launch_of(kernel.entry, config, planned.problem, layout.images(planned.problem))
    pointers = tuple(Pointer(place, begin + copy.begin) for copy in planned.copies)
    found.append((kernel, dataclasses.replace(whole, arguments=pointers + whole.arguments[len(pointers) :])))
    cut = (d.lines, d.length, d.length_to, Pointer(place - 1, images[-1].offset), d.length, d.ld)
    found.append((copiers, _copying(_cutter(copiers.entry), d.lines, Pointer(place, begin + d.begin), cut)))
    return tuple(found)


def _pad(entry: str, number: int, copy: Copy, image: Image, place: int, begin: int) -> Launch:
    to = Pointer(place, begin + copy.begin)
    from_ = Pointer(number, image.offset)
    sizes = (copy.lines, copy.length, copy.ld, to, copy.length_to)
    if number < 2:
        return _copying(entry, copy.lines_to, from_, sizes)
    return _copying(_cutter(entry), copy.lines_to, from_, (*sizes, copy.length_to))


def _cutter(entry: str) -> str:
    """The kernel that copies elements of D, beside the one that copies operands."""
    return entry.removesuffix("_pad_kernel") + "_cut_kernel"


def _copying(entry: str, lines: int, from_: Pointer, arguments: tuple[Pointer | int, ...]) -> Launch:
    return Launch(entry, (lines, 1, 1), (THREADS, 1, 1), 0, (from_, *arguments))


def shifts(config: KernelConfig) -> Shifts:
    """Pointers that are aligned to an element, and no further: all that a call promises."""
    o = config.operation
    return Shifts(o.a.bits // 8, o.a.bits // 8, o.d.bits // 8)


def workspace(total_bytes: int) -> Bytes:
    """A workspace with guard bands, full of what no result may come from."""
    buffer = np.full(total_bytes + 2 * layout.GUARD_BYTES, _GUARD_BYTE, np.uint8)
    layout.make_stale(buffer[layout.GUARD_BYTES : layout.GUARD_BYTES + total_bytes])
    return buffer


def check(config: KernelConfig, kernel: Binary, copiers: Binary, backend: Backend, problem: Problem) -> str:
    """Call ``config`` on padded copies of exact inputs, twice, the second time without padding A and B again.

    Returns:
        What was wrong, in words; empty where D is exact and nothing else was touched.

    Raises:
        ConfigError: no exact inputs can be made for ``problem``, or a padded size is none.
        Fault: a launch failed, hung or crashed.
    """
    case = trial.exact_case(problem, shifts=shifts(config), unrounded=True)
    if not problem.m or not problem.n:
        return ""  # D has no element, and the launcher launches nothing
    buffers = [*case.buffers, workspace(plan(config, problem).total_bytes)]
    for pads in (True, False):
        buffers[-2] = case.buffers[-1]
        steps = launches(config, kernel, copiers, problem, case.images, pads=pads, begin=layout.GUARD_BYTES)
        for binary, launch in steps:
            buffers = backend.run(binary, launch, buffers)
        judged = case.judged(buffers[:-1])
        around = (buffers[-1][: layout.GUARD_BYTES], buffers[-1][-layout.GUARD_BYTES :])
        words = judged.words
        if not words and any((part != _GUARD_BYTE).any() for part in around):
            words = "memory around the copies was written to"
        if words:
            return words if pads else f"on operands that were padded before: {words}"
    return ""


def series_of(
    config: KernelConfig,
    kernel: Binary,
    copiers: Binary,
    problem: Problem,
    *,
    data: Data = "normal",
    pads: bool = True,
) -> Series:
    """What a backend times: a whole call, with buffers full of ``data``.

    Without ``pads`` the copies of A and B are the ones that an earlier call would have left.

    Raises:
        ConfigError: integers were asked for, and none can be proved exact for ``problem``.
    """
    images = layout.images(problem)
    operands = trial.timed_buffers(problem, data)
    place = np.zeros(plan(config, problem).total_bytes, np.uint8)
    if not pads:
        _padded(config, problem, images, operands, place)
    return Series(launches(config, kernel, copiers, problem, images, pads=pads), (*operands, place))


def _padded(
    config: KernelConfig, problem: Problem, images: Sequence[Image], operands: Sequence[Bytes], place: Bytes
) -> None:
    """Write the copies of A and B into ``place``, as the kernels do."""
    for copy, image, buffer in list(zip(plan(config, problem).copies, images, operands, strict=True))[:2]:
        size = image.element.bits // 8
        lines = np.lib.stride_tricks.as_strided(
            buffer[image.offset :], (copy.lines, copy.length * size), (copy.ld * size, 1), writeable=False
        )
        target = place[copy.begin : copy.begin + copy.lines_to * copy.length_to * size]
        target.reshape(copy.lines_to, copy.length_to * size)[: copy.lines, : copy.length * size] = lines
