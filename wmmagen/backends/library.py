"""What the GPU's child process is asked about cuBLASLt, and the parent's side of it.

The parent imports this module; only what runs in the child imports CUDA and the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wmmagen.backends import Bytes
from wmmagen.backends.product import Candidate, Candidates, LibraryProduct
from wmmagen.backends.worker import Compare, Run
from wmmagen.errors import MissingPiece
from wmmagen.timing import Comparison, Timing, TimingProtocol

if TYPE_CHECKING:
    from wmmagen.backends.card import Addresses, Card, Enqueued

#: The first request loads some hundred megabytes of library.
ASK_LIMIT_S = 60.0
#: What copying the buffers may take beside it; slow machines move this much.
_BYTES_PER_S = 2e8


@dataclass(frozen=True)
class Absent:
    """The heuristic's answer where the library or its bindings are missing, and the command that brings them.

    No fault: the child goes on. Nothing else is asked of it without candidates, so nothing else answers this.
    """

    message: str
    fix: str


@dataclass(frozen=True)
class LibraryCandidates:
    """Ask the heuristic; answered by :class:`wmmagen.backends.product.Candidates`."""

    product: LibraryProduct

    def carry_out(self, card: Card) -> object:
        from wmmagen.backends import cublas

        try:
            return cublas.candidates(cublas.library(), self.product)
        except MissingPiece as missing:
            return Absent(missing.message, missing.fix)


@dataclass(frozen=True)
class LibraryRecipe:
    """A product by one candidate, over copies of ``buffers``; see :class:`wmmagen.backends.card.Recipe`."""

    product: LibraryProduct
    candidate: Candidate
    buffers: tuple[Bytes, ...]

    def prepare(self, card: Card, copies: Sequence[Addresses]) -> Sequence[Enqueued]:
        from wmmagen.backends import cublas

        library, behind = cublas.library(), self.product.behind
        made: list[Enqueued] = []
        for addresses in copies:
            product = cublas.EnqueuedProduct(library, self.product, self.candidate, addresses)
            then = [] if behind is None else [card.prepare(behind.cubin, behind.launch, addresses)]
            made.append(_Both((product, *then)))
        return made


@dataclass(frozen=True)
class _Both:
    """A product and what follows it: one launch."""

    parts: tuple[Enqueued, ...]

    def enqueue(self, stream: Any) -> None:
        for part in self.parts:
            part.enqueue(stream)


class CardLibrary:
    """cuBLASLt on the card of a child process; see :class:`wmmagen.backends.product.Library`.

    Args:
        ask: how the child is asked: :meth:`wmmagen.supervisor.Supervisor.ask`, or one that answers like it.
        device: what it runs on, for messages.
        compiler: of source and entry, the machine code for the device; None where there is none.
    """

    def __init__(
        self, ask: Callable[..., Any], device: str, compiler: Callable[[str, str], bytes] | None = None
    ) -> None:
        self._ask = ask
        self._device = device
        self._compiler = compiler

    @property
    def device(self) -> str:
        return self._device

    def compiled(self, source: str, entry: str) -> bytes:
        if self._compiler is None:
            raise MissingPiece("nothing here compiles what would follow a product", "see `wmmagen doctor`")
        return self._compiler(source, entry)

    def candidates(self, product: LibraryProduct) -> Candidates:
        answer: Candidates | Absent = self._answer(LibraryCandidates(product), f"the heuristic for {product}")
        if isinstance(answer, Absent):
            raise MissingPiece(answer.message, answer.fix)
        return answer

    def recipe(self, product: LibraryProduct, candidate: Candidate, buffers: Sequence[Bytes]) -> LibraryRecipe:
        return LibraryRecipe(product, candidate, tuple(buffers))

    def run(self, product: LibraryProduct, candidate: Candidate, buffers: Sequence[Bytes]) -> list[Bytes]:
        request = Run(self.recipe(product, candidate, buffers))
        return request.left(self._answer(request, f"{product} by {candidate}", buffers))

    def time(
        self, product: LibraryProduct, candidate: Candidate, buffers: Sequence[Bytes], protocol: TimingProtocol
    ) -> Timing:
        request = Compare((self.recipe(product, candidate, buffers),), protocol)
        answer: Comparison = self._answer(request, f"timing {product} by {candidate}", buffers)
        return answer.timings[0]

    def _answer(self, request: object, what: str, buffers: Sequence[Bytes] = ()) -> Any:
        limit_s = ASK_LIMIT_S + 2 * sum(buffer.nbytes for buffer in buffers) / _BYTES_PER_S
        return self._ask(request, limit_s=limit_s, what=f"{what} on {self._device}")
