"""What the GPU's child process is asked, and how it answers.

The parent imports this module for the requests; only :func:`serve`, which runs in the child, imports CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from wmmagen.backends import Bytes, Launch
from wmmagen.errors import CrashFault, Fault, LaunchFault
from wmmagen.pieces import same_bytes
from wmmagen.supervisor import READY, Channel
from wmmagen.timing import TimingProtocol

if TYPE_CHECKING:
    from wmmagen.backends.card import Addresses, Card, Enqueued, Recipe


@dataclass(frozen=True)
class KernelRecipe:
    """A kernel of a cubin; see :class:`wmmagen.backends.card.Recipe`."""

    cubin: bytes
    launch: Launch
    buffers: tuple[Bytes, ...]

    def prepare(self, card: Card, copies: Sequence[Addresses]) -> Sequence[Enqueued]:
        return [card.prepare(self.cubin, self.launch, addresses) for addresses in copies]


@dataclass(frozen=True)
class SeriesRecipe:
    """Kernels one after the other; see :class:`wmmagen.backends.Series`."""

    steps: tuple[tuple[bytes, Launch], ...]
    buffers: tuple[Bytes, ...]

    def prepare(self, card: Card, copies: Sequence[Addresses]) -> Sequence[Enqueued]:
        return [
            _InOrder(tuple(card.prepare(cubin, launch, addresses) for cubin, launch in self.steps))
            for addresses in copies
        ]


@dataclass(frozen=True)
class _InOrder:
    """Several launches in the place of one."""

    steps: tuple[Enqueued, ...]

    def enqueue(self, stream: object) -> None:
        """Enqueue all of them."""
        for step in self.steps:
            step.enqueue(stream)


@dataclass(frozen=True)
class Run:
    """Launch once what the recipe makes, over copies of its buffers; answered by the buffers as they were left.

    Of one that nobody can write to and that was left as it was, None comes back: :meth:`left` has it.
    """

    recipe: Recipe

    def carry_out(self, card: Card) -> object:
        sent = self.recipe.buffers
        return [
            None if not before.flags.writeable and same_bytes(before, after) else after
            for before, after in zip(sent, card.run(self.recipe), strict=True)
        ]

    def left(self, answer: Sequence[Bytes | None]) -> list[Bytes]:
        """The buffers as they were left."""
        return [before if after is None else after for before, after in zip(self.recipe.buffers, answer, strict=True)]


@dataclass(frozen=True)
class Compare:
    """Time what the recipes make, in turns; answered by a :class:`wmmagen.timing.Comparison`."""

    recipes: tuple[Recipe, ...]
    protocol: TimingProtocol

    def carry_out(self, card: Card) -> object:
        return card.compare(self.recipes, self.protocol)


@dataclass(frozen=True)
class Attributes:
    """What the driver says about a loaded kernel; answered by a dictionary of integers."""

    cubin: bytes
    entry: str

    def carry_out(self, card: Card) -> object:
        return card.attributes(self.cubin, self.entry)


class Request(Protocol):
    """Whatever the child can carry out on its card; picklable."""

    def carry_out(self, card: Card) -> object:
        """The answer."""


Reply = tuple[str, object] | tuple[str, str, str]


def serve(channel: Channel, device_index: int) -> None:
    """Answer requests about one GPU until the parent closes its end, or until a kernel broke the context."""
    from wmmagen.backends.card import Card

    card = Card(device_index)
    channel.send(READY)
    while True:
        try:
            request: Request = channel.receive()
        except EOFError:
            return
        reply = answer(card, request)
        channel.send(reply)
        if reply[:2] == ("fault", CrashFault.outcome):
            # Nothing can be freed in a broken context; leaving in the ordinary way would try to.
            os._exit(1)


def answer(card: Card, request: Request) -> Reply:
    """Carry out a request.

    An error that leaves the context working was a refusal to launch. Any other breaks every later call in this
    process, whatever its name, so it is the context that is asked which one it was.
    """
    try:
        return ("ok", request.carry_out(card))
    except Fault as fault:
        return ("fault", fault.outcome, fault.message)
    except card.errors as error:
        outcome = LaunchFault.outcome if card.alive() else CrashFault.outcome
        return ("fault", outcome, str(error))
