"""The steps of an epilogue as a kernel of their own, on a D that a library's product has left in memory.

It is what fusing an epilogue is held against: bound by memory, 16 bytes at a time. It reads and writes D in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wmmagen import layout, render
from wmmagen.backends import Launch, Pointer
from wmmagen.config import WIDEST_BITS, Operation, Problem
from wmmagen.layout import Image

THREADS = 256
#: Rows of a lane: loads that are under way together.
ROWS = 4
#: Blocks in the second dimension of a grid, CUDA C++ Programming Guide, table of technical specifications.
MOST_BLOCKS_Y = 65_535
ENTRY = "behind_product"


def rest_of(operation: Operation) -> Operation:
    """``operation`` with the steps that a library's product leaves to others: all but alpha and beta."""
    e = operation.epilogue
    return operation if not e.scaled else replace(operation, epilogue=e.with_steps(e.steps[1:]))


def vector_of(problem: Problem) -> int:
    """Elements that a lane takes at a time: 16 bytes of D, or fewer where rows are no multiples of those."""
    o = problem.operation
    elements = WIDEST_BITS // o.d.bits
    lds = [getattr(problem, f"ld{matrix}") for matrix in o.epilogue.matrices]
    while any(extent % elements for extent in (problem.n, problem.ldd, *lds)):
        elements //= 2
    return elements


def text_of(problem: Problem) -> str:
    """The source for ``problem``, whose operation is of :func:`rest_of`."""
    constants = {
        "THREADS": (THREADS, "of a block, along a row of D"),
        "VECTOR": (vector_of(problem), "elements of a row that a lane takes at a time"),
        "ROWS": (ROWS, "rows of a lane"),
    }
    return render.render_elementwise(problem.operation, ENTRY, constants)


def launch_of(problem: Problem, places: Sequence[tuple[str, Image]]) -> Launch:
    """The launch for ``problem``, whose operation is of :func:`rest_of`.

    Args:
        places: the buffers of the call by the names of their matrices and vectors, in order; D among them.
    """
    p, e = problem, problem.operation.epilogue
    at = {name: Pointer(number, image.offset) for number, (name, image) in enumerate(places)}
    read = layout.operand_names(p.operation)[2:]
    return Launch(
        entry=ENTRY,
        grid=(-(-p.n // (THREADS * vector_of(p))), -(-p.m // ROWS), 1),
        block=(THREADS, 1, 1),
        shared_bytes=0,
        arguments=(
            at["D"],
            *(at[name] for name in read),
            p.m,
            p.n,
            p.ldd,
            *(getattr(p, f"ld{matrix}") for matrix in e.matrices),
            *(float(getattr(p, scalar)) for scalar in e.scalars),
        ),
    )
