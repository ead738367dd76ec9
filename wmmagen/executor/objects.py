"""What an object of type mbarrier holds, and the bulk copies that are on their way to it.

Source: PTX ISA, "Contents of mbarrier Object" and "Phase of the mbarrier Object".
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#parallel-synchronization-and-communication-instructions-mbarrier-contents
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wmmagen.executor.handed import Knowledge
from wmmagen.executor.ptx import Statement

Array = Any


class Bulk:
    """Copies of one size on their way: who issued each, and where it begins in shared and in global memory."""

    def __init__(self, statement: Statement, lanes: Array, target: Array, source: Array, nbytes: int) -> None:
        self.statement, self.lanes, self.target, self.source, self.nbytes = statement, lanes, target, source, nbytes

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return self.nbytes * len(self.lanes)


class Barrier:
    """An object in its present phase.

    Attributes:
        expected: arrivals of each phase.
        phase: the number of the present one.
        pending: arrivals that it lacks.
        expects: bytes that it expects and that have not landed.
        copies: on their way.
        given: what arrivals have handed over, of this phase and those before.
        taken: the same, of complete phases only.
        asked: whether somebody has looked and could have found it complete.
    """

    def __init__(self, expected: int, per_block: int) -> None:
        self.expected = self.pending = expected
        self.phase = self.expects = 0
        self.copies: list[Bulk] = []
        self.given = self.taken = Knowledge(np.zeros(per_block, np.int32))
        self.asked = False

    @property
    def ready(self) -> bool:
        """Whether nothing but the landing of its copies is missing."""
        return self.pending == 0 and self.expects == sum(copy.total for copy in self.copies)

    def lacks(self) -> str:
        """What is missing, in words."""
        under_way = sum(copy.total for copy in self.copies)
        return (
            f"{self.pending} of {self.expected} arrivals are missing, "
            f"{self.expects} bytes are expected and {under_way} on their way"
        )
