"""What a launch did that no kernel may do, however right its values came out.

Findings are kept by code and PTX line: the first of each with everything that is known about it, and how often it came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: What to do about each kind of finding; the codes are the keys.
ADVICE: dict[str, str] = {
    "race": "put a barrier between the two accesses: __syncthreads() between warps, __syncwarp() within one",
    "race-between-blocks": "let one block own the bytes, or order blocks: write, barrier, __threadfence(), atomic on a "
    "counter; there atomic on the counter, __threadfence(), barrier, read",
    "early-read": "wait for the copy first: cp.async.wait_group with fewer groups left open, or the mbarrier's phase",
    "early-write": "wait for the copy into these bytes before they are written again",
    "poison-stored": "the value comes from memory or a register that nothing was written to: initialize it first",
    "poison-branch": "the condition comes from memory or a register that nothing was written to: initialize it first",
    "poison-address": "the address comes from memory or a register that nothing was written to: initialize it first",
    "out-of-bounds": "the access leaves its buffer: check offsets, leading dimensions and sizes",
    "misaligned": "an access of n bytes needs an address that is a multiple of n",
    "fragment-pointer": "the pointer of a fragment has to be a multiple of 32 bytes: arrange or pad the tile so",
    "fragment-ldm": "the leading dimension of a fragment has to be a whole number of 16-byte units",
    "fragment-ldm-strict": "the strict reading wants every row aligned to the fragment of one thread",
    "partial-warp": "all 32 lanes of a warp have to reach a .sync instruction together",
    "differing-arguments": "all lanes of a warp have to give a .sync instruction the same arguments",
    "mbarrier": "initialize the mbarrier once, then a block barrier; as many arrivals in each phase as were announced",
    "barrier-divergence": "every thread of the block has to reach the barrier: move it out of the branch",
}


@dataclass(frozen=True)
class Finding:
    """One thing that went wrong, at one instruction.

    Attributes:
        code: a key of :data:`ADVICE`.
        message: what happened, in words.
        ptx_line: of the instruction in the PTX text, from 1.
        source_line: of the kernel's own source file; 0 where the PTX has no line table.
        block, warp, lane: of the first one; lane is -1 where the whole warp is meant.
        address: in bytes: from the start of the buffer, or from that of the block's shared memory; -1 for none.
        rule: the id of the rule of the alignment rulebooks that it breaks; empty for none.
        count: how many warps or lanes it happened to in all.
    """

    code: str
    message: str
    ptx_line: int
    source_line: int
    block: int
    warp: int
    lane: int
    address: int = -1
    rule: str = ""
    count: int = 1

    @property
    def advice(self) -> str:
        """What to do about it."""
        return ADVICE[self.code]

    def __str__(self) -> str:
        where = f"PTX line {self.ptx_line}" + (f", source line {self.source_line}" if self.source_line else "")
        who = f"block {self.block}, warp {self.warp}" + (f", lane {self.lane}" if self.lane >= 0 else "")
        rule = f"{self.rule} " if self.rule else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{rule}{self.code}: {self.message}; {where}; {who}{times}; {self.advice}"

    def as_json(self) -> dict[str, object]:
        """All of its facts under their names."""
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "advice": self.advice}


class Log:
    """The findings of a launch, the first for each code, rule and PTX line."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], Finding] = {}

    def add(self, finding: Finding) -> None:
        """Keep it, or count it with the first of its kind."""
        key = (finding.code, finding.rule, finding.ptx_line)
        first = self._found.get(key)
        self._found[key] = finding if first is None else replace(first, count=first.count + finding.count)

    def all(self) -> tuple[Finding, ...]:
        """In the order in which they were first seen."""
        return tuple(self._found.values())
