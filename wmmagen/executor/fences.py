"""Fences, and what the words of an instruction say of its order and scope.

Source: PTX ISA, "membar, fence", "ld", "st", "atom".
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#parallel-synchronization-and-communication-instructions-membar
"""

from __future__ import annotations

from wmmagen.executor.alu import UnknownInstruction
from wmmagen.executor.machine import Machine
from wmmagen.executor.operands import Operands
from wmmagen.executor.ptx import Statement
from wmmagen.executor.steps import Step
from wmmagen.executor.strong import Strength

#: Without clusters a cluster is one block. For each scope, whether it is the device or wider.
SCOPES = {"cta": False, "cluster": False, "gpu": True, "sys": True}
_LEVELS = {"cta": False, "gl": True, "sys": True}
#: For each order, whether it acquires and whether it releases.
ORDERS = {"relaxed": (False, False), "acquire": (True, False), "release": (False, True), "acq_rel": (True, True)}
#: These order other things than accesses of the generic proxy.
_OTHERS = ("proxy", "mbarrier_init")


def access_strength(words: tuple[str, ...]) -> tuple[Strength | None, tuple[str, ...]]:
    """How strong a load or store is, None for a weak one; and its words without those that say so.

    Raises:
        UnknownInstruction: it has an order without a scope, or a scope without an order.
    """
    orders = [word for word in words if word in ORDERS]
    scopes = [word for word in words if word in SCOPES]
    rest = tuple(word for word in words if word not in ORDERS and word not in SCOPES)
    volatile = "volatile" in words
    if len(orders) != len(scopes) or len(orders) > 1 or (orders and (volatile or "weak" in words)):
        raise UnknownInstruction
    if orders:
        forbidden = {"ld": "release", "st": "acquire"}[words[0]]
        if orders[0] in (forbidden, "acq_rel"):
            raise UnknownInstruction
        return Strength(SCOPES[scopes[0]], *ORDERS[orders[0]]), rest
    return (Strength(device=True) if volatile else None), rest


def fence(operands: Operands, statement: Statement) -> tuple[Step | None, str]:
    """``fence`` and ``membar``, which is a sequentially consistent fence.

    Raises:
        UnknownInstruction: it has another form.
    """
    words = statement.words[1:]
    if statement.words[0] == "fence" and words and words[0] in _OTHERS:
        return None, "control"
    if statement.words[0] == "membar":
        if words[:1] == ("proxy",):
            return None, "control"
        if len(words) != 1 or words[0] not in _LEVELS:
            raise UnknownInstruction
        return _fences(_LEVELS[words[0]], consistent=True, acquires=True, releases=True), "control"
    order, scope = words if len(words) == 2 else ("acq_rel", *words)
    known = {**ORDERS, "sc": (True, True)}
    if len(words) not in (1, 2) or scope not in SCOPES or order not in known or order == "relaxed":
        raise UnknownInstruction
    acquires, releases = known[order]
    return _fences(SCOPES[scope], consistent=order == "sc", acquires=acquires, releases=releases), "control"


def _fences(device: bool, *, consistent: bool, acquires: bool, releases: bool) -> Step:
    def step(machine: Machine) -> None:
        order = machine.order
        if order.clocks is not None:
            order.clock += 1
            order.clocks.fence(
                machine.lanes, order.clock, device=device, consistent=consistent, acquires=acquires, releases=releases
            )

    return step
