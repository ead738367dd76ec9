"""Which lanes run next: paths, the places where they meet again, and block barriers.

All lanes that stand at the same place run together, whatever warp or block they belong to. Where a branch parts them,
each side becomes a path, and the sides wait for each other at the branch's immediate post-dominator. That is a matter
of speed between warps and of meaning within one: where nothing else can run, warps that are complete at a meeting go on
without the others, so that a warp may pass more barriers than its neighbour did on the same way.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wmmagen.errors import TimeoutFault
from wmmagen.executor.control import END, is_block_barrier
from wmmagen.executor.machine import Machine
from wmmagen.executor.memory import WARP
from wmmagen.executor.program import Block, Program, Vote
from wmmagen.executor.ptx import Statement

Mask = npt.NDArray[np.bool_]


#: Groups of blocks that begin one after another.
_MOST_BEGINNINGS = 16
#: Blocks that a path may run before others have their turn: it may wait for them without a word.
_PATIENCE = 500
#: A block counts as so many instructions at least: what it costs to come to it.
_LEAST = 64


class _Meeting:
    """Lanes that were parted and meet again at the start of a block."""

    def __init__(self, block: int, lanes: Mask, outer: _Meeting | None) -> None:
        self.block, self.expected, self.outer = block, lanes, outer
        self.arrived = np.zeros_like(lanes)


@dataclass
class _Path:
    """Lanes at the start of a block; ``lanes`` is None for all of the launch."""

    block: int
    lanes: Mask | None
    meeting: _Meeting | None


@dataclass
class _Waiting:
    """Lanes at a block barrier, and the path that they go on with."""

    path: _Path
    lanes: Mask
    barrier: npt.NDArray[Any]
    count: npt.NDArray[Any] | None
    statement: Statement
    vote: Vote | None


class Scheduler:
    """Runs a program to its end.

    Args:
        program: what to run.
        machine: on what.
        budget: instructions that all paths together may run.
        limit_s: seconds that it may take; None for any number.
    """

    def __init__(self, program: Program, machine: Machine, budget: int, limit_s: float | None) -> None:
        self._program, self._machine = program, machine
        self._budget, self._left = budget, budget
        self._limit = limit_s
        self._deadline = None if limit_s is None else time.monotonic() + limit_s
        self._paths: list[_Path] = []
        self._waiting: list[_Waiting] = []
        self._meetings: list[_Meeting] = []
        self._runs = [0] * len(program.blocks)
        self._stalls, self._events = 0, 0
        self._waits_for = ""
        #: A path that waited in vain when nobody else could go on, and what all registers held then.
        self._hopeless: tuple[_Path, list[Any]] | None = None

    def run(self) -> None:
        """Run all lanes to their end.

        Raises:
            TimeoutFault: the budget or the time is used up.
        """
        if self._program.blocks:
            self._paths = self._beginnings()
        while self._paths or self._go_on():
            self._follow(self._paths.pop())
        for runs, block in zip(self._runs, self._program.blocks, strict=True):
            for kind, count in block.classes.items():
                if runs:
                    self._machine.counts.instructions[kind] += runs * count

    def _beginnings(self) -> list[_Path]:
        """All lanes as one path; where blocks may wait for each other, with every other seed a path of each block.

        Together, all of them do a thing before any does the next; one after another, the first is over before the
        last has begun. A protocol has to be right both ways. Of many blocks some begin together even so: each path
        costs as much as all lanes.
        """
        machine = self._machine
        exist = None if machine.absent is None else ~machine.absent
        blocks = machine.draw_blocks() if machine.order.clocks is not None else None
        if blocks is None:
            return [_Path(0, exist, None)]
        whose = machine.order.block_of[: machine.order.lanes]
        every = np.ones(machine.order.lanes, np.bool_) if exist is None else exist
        groups = np.array_split(blocks, min(len(blocks), _MOST_BEGINNINGS))
        return [_Path(0, every & np.isin(whose, group), None) for group in groups]

    def _go_on(self) -> bool:
        """Where no path can run: let something go on that waits. Whether there was anything."""
        return self._part_meetings() or self._break_barriers()

    # Paths -----------------------------------------------------------------------------------------------------------

    def _follow(self, path: _Path) -> None:
        """Run a path until it ends, meets, waits or parts."""
        machine, blocks = self._machine, self._program.blocks
        number: int = path.block
        patience = _PATIENCE
        while True:
            if number == END:
                self._exit(path, None)
                return
            if path.meeting is not None and path.meeting.block == number:
                self._arrive(path.meeting, path.lanes)
                return
            block = blocks[number]
            self._spend(block.size)
            machine.run_under(path.lanes)
            self._runs[number] += self._warps(path.lanes)
            for step in block.steps:
                step(machine)
            following = self._end(block, path)
            if machine.stalled and following is not None:
                path.block = following
                self._yield(path)
                return
            machine.stalled = ""
            if following is None:
                return
            number = path.block = following
            patience -= 1
            if patience == 0 and (self._paths or self._part_meetings()):
                self._paths.insert(0, path)
                return

    def _yield(self, path: _Path) -> None:
        """Let all others run before a path that waits in vain.

        Raises:
            TimeoutFault: all others wait in vain, too.
        """
        machine = self._machine
        self._waits_for, machine.stalled = machine.stalled, ""
        self._paths.insert(0, path)
        if self._events != machine.events:
            self._stalls, self._hopeless = 0, None
        self._events = machine.events
        self._stalls += 1
        if self._stalls > 2 * len(self._paths) + 1:
            if self._part_meetings():
                self._stalls, self._hopeless = 0, None
            elif self._nothing_changed(path):
                raise self._deadlock()

    def _nothing_changed(self, path: _Path) -> bool:
        """Whether a path that waits in vain, and everyone else, stands where it stood a round ago."""
        held = list(self._machine.registers)
        if self._hopeless is None or self._hopeless[0] is path:
            before = self._hopeless
            self._hopeless = (path, held)
            return before is not None and all(
                a is b or np.array_equal(a, b) for a, b in zip(held, before[1], strict=True)
            )
        return False

    def _deadlock(self) -> TimeoutFault:
        return TimeoutFault(
            f"deadlock: {self._waits_for}",
            "let as many threads arrive as the mbarrier was initialized for, and expect the bytes that are copied"
            if "mbarrier" in self._waits_for
            else "what is waited for has to be written by a block or warp that does not wait itself",
        )

    def _spend(self, instructions: int) -> None:
        self._left -= max(instructions, _LEAST)
        if self._left < 0 and self._stalls > len(self._paths):
            raise self._deadlock()
        if self._left < 0:
            raise TimeoutFault(
                f"the kernel did not end within {self._budget} instructions",
                "look for a loop whose condition never changes, or give a larger budget",
            )
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutFault(
                f"the kernel did not end within {self._limit} s on the CPU executor",
                "look for a loop whose condition never changes, or run a smaller problem here, or this one on a GPU",
            )

    def _warps(self, lanes: Mask | None) -> int:
        if lanes is None:
            return self._machine.order.warps
        return int(lanes.reshape(-1, WARP).any(axis=1).sum())

    def _end(self, block: Block, path: _Path) -> int | None:
        """What ends a block. The number of the block that the path goes on with; None where it does not."""
        last = block.last
        if last is None:
            return block.follows
        if is_block_barrier(last):
            return self._barrier(block, last, path)
        if last.words[0] == "bra":
            return block.target if block.guard < 0 else self._branch(block, last, path)
        chosen = None if block.guard < 0 else self._chosen(block, last, path)
        return self._exit(path, chosen, block.follows)

    def _chosen(self, block: Block, last: Statement, path: _Path) -> Mask:
        """The lanes of a path for which the guard holds."""
        machine = self._machine
        machine.demand_defined(block.guard, "poison-branch", "the condition", last)
        value = machine.full(machine.registers[block.guard]) ^ last.negated
        return value if path.lanes is None else value & path.lanes

    def _branch(self, block: Block, last: Statement, path: _Path) -> int | None:
        chosen = self._chosen(block, last, path)
        if not chosen.any():
            return block.follows
        all_lanes = np.ones_like(chosen) if path.lanes is None else path.lanes
        rest = all_lanes & ~chosen
        if not rest.any():
            return block.target
        meeting = path.meeting
        if block.meeting != END and (meeting is None or meeting.block != block.meeting):
            meeting = _Meeting(block.meeting, all_lanes.copy(), path.meeting)
            self._meetings.append(meeting)
        self._paths.append(_Path(block.target, chosen, meeting))
        self._paths.append(_Path(block.follows, rest, meeting))
        return None

    def _exit(self, path: _Path, chosen: Mask | None, follows: int = END) -> int | None:
        """End lanes of a path: those ``chosen``, or all."""
        exited = self._machine.exited
        if path.lanes is None and chosen is None:
            exited[:] = True
            return None
        lanes = np.ones_like(exited) if path.lanes is None else path.lanes
        ending = lanes if chosen is None else chosen
        exited |= ending
        left = lanes & ~ending
        if not left.any():
            self._settle(path.meeting)
            return None
        path.lanes = left if ending.any() else path.lanes
        return follows

    def _arrive(self, meeting: _Meeting, lanes: Mask | None) -> None:
        if lanes is None:
            lanes = np.ones_like(meeting.expected)
        meeting.arrived |= lanes
        self._settle(meeting)

    def _settle(self, meeting: _Meeting | None) -> None:
        """Let the lanes of a meeting go on together where nobody is missing any more, and those around it."""
        exited = self._machine.exited
        while meeting is not None:
            if (meeting.expected & ~exited & ~meeting.arrived).any():
                return
            if meeting in self._meetings:
                self._meetings.remove(meeting)
                together = meeting.arrived & ~exited
                if together.any():
                    self._resume(meeting, together)
                    return
            meeting = meeting.outer

    def _resume(self, meeting: _Meeting, lanes: Mask) -> None:
        self._paths.append(_Path(meeting.block, None if lanes.all() else lanes, meeting.outer))

    def _part_meetings(self) -> bool:
        """Let warps go on that are complete at a meeting, though other warps are missing."""
        exited = self._machine.exited
        for meeting in reversed(self._meetings):
            missing = (meeting.expected & ~exited & ~meeting.arrived).reshape(-1, WARP).any(axis=1)
            complete = meeting.arrived & ~missing.repeat(WARP) & ~exited
            if complete.any():
                meeting.arrived &= ~complete
                meeting.expected &= ~complete
                self._resume(meeting, complete)
                return True
        return False

    # Block barriers --------------------------------------------------------------------------------------------------

    def _barrier(self, block: Block, last: Statement, path: _Path) -> int | None:
        machine = self._machine
        guarded = block.guard >= 0
        if path.lanes is None and not self._waiting and not guarded and not block.vote and len(block.operands) == 1:
            machine.order.blocks_meet(None)
            machine.counts.block_barriers += machine.order.blocks
            return block.follows
        lanes = np.ones(machine.order.lanes, np.bool_) if path.lanes is None else path.lanes
        arriving = self._chosen(block, last, path) if guarded else lanes
        passing = lanes & ~arriving
        if passing.any():
            self._paths.append(_Path(block.follows, passing, path.meeting))
        if arriving.any():
            self._check_warps(last, arriving)
            if block.vote is not None:
                machine.run_under(arriving)
                machine.demand_defined(block.vote.source, "poison-branch", "what is voted on", last)
            operands = [machine.full(machine.registers[number]) for number in block.operands]
            count = operands[1] if len(operands) > 1 else None
            rest = _Path(block.follows, arriving, path.meeting)
            self._waiting.append(_Waiting(rest, arriving, operands[0], count, last, block.vote))
            self._release()
        return None

    def _check_warps(self, statement: Statement, lanes: Mask) -> None:
        rows = lanes.reshape(-1, WARP)
        expected = ~self._machine.absent.reshape(-1, WARP) if self._machine.absent is not None else np.ones_like(rows)
        for warp in np.flatnonzero(rows.any(axis=1) & (rows != expected).any(axis=1)):
            lane = int(warp) * WARP + int(np.argmax(rows[warp]))
            message = f"{statement.name} is reached by {int(rows[warp].sum())} lanes of a warp"
            self._machine.report("partial-warp", message, statement, lane)

    def _release(self) -> None:
        """Let the blocks go on of which everyone waits at the same barrier."""
        machine = self._machine
        for number in {int(n) for waiting in self._waiting for n in np.unique(waiting.barrier[waiting.lanes])}:
            here = np.zeros(machine.order.lanes, np.bool_)
            wanted = np.full(machine.order.blocks, machine.threads)
            for waiting in self._waiting:
                mine = waiting.lanes & (waiting.barrier == number)
                here |= mine
                if waiting.count is not None and mine.any():
                    blocks = machine.order.block_of[np.flatnonzero(mine)]
                    wanted[blocks] = waiting.count[mine]
            complete = here.reshape(machine.order.blocks, -1).sum(axis=1) >= wanted
            if complete.any():
                self._let_go(here & complete.repeat(machine.per_block), np.flatnonzero(complete), wanted)

    def _let_go(self, lanes: Mask, blocks: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
        machine = self._machine
        # A barrier of a part of the block orders that part only, which the shadow does not know: it orders nothing.
        machine.order.blocks_meet(blocks[wanted[blocks] == machine.threads])
        machine.counts.block_barriers += len(blocks)
        self._free(lanes)

    def _tell(self, lanes: Mask) -> None:
        """Give lanes that go on from a barrier what it makes of their predicates."""
        machine = self._machine
        for vote, asked in itertools.groupby((w for w in self._waiting if w.vote), key=lambda w: w.vote):
            here = np.logical_or.reduce([waiting.lanes & lanes for waiting in asked])
            if vote is None or not here.any():
                continue
            said = machine.full(machine.registers[vote.source]).reshape(machine.order.blocks, -1)
            found = vote.combine(said, here.reshape(machine.order.blocks, -1))
            machine.run_under(here)
            machine.put(vote.target, found.repeat(machine.per_block), None)

    def _free(self, lanes: Mask) -> None:
        self._tell(lanes)
        still: list[_Waiting] = []
        for waiting in self._waiting:
            going = waiting.lanes & lanes
            if going.any():
                path = waiting.path
                self._paths.append(_Path(path.block, None if going.all() else going, path.meeting))
            waiting.lanes = waiting.lanes & ~lanes
            if waiting.lanes.any():
                still.append(waiting)
        self._waiting = still

    def _break_barriers(self) -> bool:
        """Nobody can go on: report who never came, and let those who wait pass."""
        if not self._waiting:
            return False
        machine = self._machine
        everyone = np.zeros(machine.order.lanes, np.bool_)
        for waiting in self._waiting:
            everyone |= waiting.lanes
            for block in np.unique(machine.order.block_of[np.flatnonzero(waiting.lanes)]):
                own = waiting.lanes & (machine.order.block_of[: machine.order.lanes] == block)
                message = f"{waiting.statement.name} is reached by {int(own.sum())} threads of the block only"
                machine.report("barrier-divergence", message, waiting.statement, int(np.argmax(own)))
        machine.order.blocks_meet(np.unique(machine.order.block_of[np.flatnonzero(everyone)]))
        self._free(everyone)
        return True
