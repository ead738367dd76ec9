"""Large arrays worked on piece by piece: pieces that fit into a core's own cache, on all cores that may be used."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

#: Elements of a piece; as 64-bit numbers they fit into a core's own cache.
PIECE = 1 << 16
#: Fewer elements than this are done before threads have begun.
_ALONE = 1 << 20
#: More threads wait for memory only.
_MOST_THREADS = 16


def over_rows(rows: int, cols: int, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, end)`` for ranges of rows that together are all of a rows × cols matrix.

    Calls may run side by side, in any order, so that what they do must not depend on each other. NumPy leaves the
    interpreter to others while it computes.
    """
    some = max(1, PIECE // max(cols, 1))

    def several(first: int, end: int) -> None:
        for begin in range(first, end, some):
            work(begin, min(begin + some, end))

    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    if rows * cols <= _ALONE or threads == 1:
        several(0, rows)
        return
    # More shares than threads: some cores have other work, too.
    shares = 4 * threads
    ends = [rows * share // shares for share in range(shares + 1)]
    with ThreadPoolExecutor(threads) as pool:
        # Each error is raised where its result is taken.
        for _ in pool.map(several, ends[:-1], ends[1:]):
            pass


def same_bytes(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> bool:
    """Whether two flat buffers hold the same; at once where they are one."""
    if one is other:
        return True
    if one.shape != other.shape:
        return False
    wide = one.size // 8 * 8
    words, others = one[:wide].view(np.uint64), other[:wide].view(np.uint64)
    return bool(np.array_equal(words, others) and np.array_equal(one[wide:], other[wide:]))
