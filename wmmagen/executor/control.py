"""Basic blocks of a kernel and where divergent lanes meet again: the immediate post-dominators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wmmagen.errors import PtxError
from wmmagen.executor.ptx import Kernel, Statement, Symbol

#: The block number of the kernel's end.
END = -1
_LEAVING = ("ret", "exit")
_BLOCK_BARRIERS = ("bar", "barrier")


@dataclass(frozen=True)
class Block:
    """Statements that run one after another.

    Attributes:
        statements: without the one that ends it.
        last: what ends it: a branch, an exit or a block barrier; None where the next block just follows.
        target: the number of the block that a branch leads to; :data:`END` for none.
        follows: the number of the block after it; :data:`END` for none.
        meeting: the number of its immediate post-dominator.
    """

    statements: tuple[Statement, ...]
    last: Statement | None
    target: int
    follows: int
    meeting: int = END


def is_block_barrier(statement: Statement) -> bool:
    """Whether it is a barrier of the whole block."""
    return statement.words[0] in _BLOCK_BARRIERS and "warp" not in statement.words


def _ends(statement: Statement) -> bool:
    return statement.words[0] == "bra" or statement.words[0] in _LEAVING or is_block_barrier(statement)


def blocks_of(kernel: Kernel) -> tuple[Block, ...]:
    """The basic blocks of a kernel, in the order of its text; the first one is where it begins.

    Raises:
        PtxError: a branch leads to no label.
    """
    statements = kernel.statements
    if not statements:
        return ()
    leaders = {0, *kernel.labels.values(), *(n + 1 for n, s in enumerate(statements) if _ends(s))}
    starts = sorted(n for n in leaders if n < len(statements))
    numbers = {start: number for number, start in enumerate(starts)}
    edges = [
        _block(kernel, start, end, numbers) for start, end in zip(starts, [*starts[1:], len(statements)], strict=True)
    ]
    meetings = _post_dominators([_successors(block) for block in edges])
    return tuple(
        Block(b.statements, b.last, b.target, b.follows, meeting) for b, meeting in zip(edges, meetings, strict=True)
    )


def _block(kernel: Kernel, start: int, end: int, numbers: dict[int, int]) -> Block:
    body = kernel.statements[start:end]
    last = body[-1] if _ends(body[-1]) else None
    follows = numbers.get(end, END)
    target = END
    if last is not None and last.words[0] == "bra":
        target = _target(kernel, last, numbers)
    return Block(tuple(body if last is None else body[:-1]), last, target, follows)


def _target(kernel: Kernel, branch: Statement, numbers: dict[int, int]) -> int:
    label = branch.operands[0] if len(branch.operands) == 1 else None
    if not isinstance(label, Symbol) or label.name not in kernel.labels:
        raise PtxError(f"PTX line {branch.line}: the branch leads to no label of {kernel.name}")
    return numbers.get(kernel.labels[label.name], END)


def _successors(block: Block) -> tuple[int, ...]:
    last = block.last
    if last is None or is_block_barrier(last):
        return (block.follows,)
    if last.words[0] in _LEAVING:
        return (block.follows, END) if last.guard else (END,)
    return (block.follows, block.target) if last.guard else (block.target,)


def _post_dominators(successors: Sequence[tuple[int, ...]]) -> list[int]:
    """The immediate post-dominator of each block; :data:`END` also for blocks from which no way leads out.

    Source: Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph.
    """
    predecessors: dict[int, list[int]] = {}
    for number, nexts in enumerate(successors):
        for following in nexts:
            predecessors.setdefault(following, []).append(number)
    order = _reverse_postorder(predecessors)
    place = {number: p for p, number in enumerate(order)}
    immediate: dict[int, int] = {END: END}

    def common(a: int, b: int) -> int:
        while a != b:
            while place[a] > place[b]:
                a = immediate[a]
            while place[b] > place[a]:
                b = immediate[b]
        return a

    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            known = [following for following in successors[number] if following in immediate]
            found = known[0]
            for following in known[1:]:
                found = common(found, following)
            if immediate.get(number) != found:
                immediate[number] = found
                changed = True
    return [immediate.get(number, END) for number in range(len(successors))]


def _reverse_postorder(predecessors: dict[int, list[int]]) -> list[int]:
    """From :data:`END` against the edges, without recursion: kernels have thousands of blocks."""
    order: list[int] = []
    seen = {END}
    stack = [(END, iter(predecessors.get(END, ())))]
    while stack:
        number, rest = stack[-1]
        following = next((n for n in rest if n not in seen), None)
        if following is None:
            order.append(number)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(predecessors.get(following, ()))))
    return order[::-1]
