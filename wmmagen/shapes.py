"""Lists of problems with names, chosen before anything was measured on them.

``decode`` are the products of a transformer that makes one token for each of a few sequences: as many rows of A as
sequences, and the weights of one projection as B. The extents are those of an 8-billion-parameter model with a hidden
size of 4096, 32 heads, 8 heads of keys and values, and a feed-forward size of 14336.

``rows`` are the same for so few sequences that no instruction has as few rows: kernels for all sizes take them.

``batched`` are batches of small products: those of attention, head by head, and of small dense layers. Windows of 8x8
tokens with heads of 32 are those of Swin transformers; 8 queries for each head of keys and values, of 128, are those of
a 70-billion-parameter model.

Sources: "The Llama 3 Herd of Models" (2024), table 3, key hyperparameters: 8B, 70B. "Swin Transformer" (2021), section
3.3: windows of 7x7 tokens, here padded to 8x8, and heads of 32.
"""

from __future__ import annotations

from dataclasses import dataclass

from wmmagen.errors import RequestError


@dataclass(frozen=True)
class Shape:
    """A problem with its name.

    Attributes:
        words: what it is of.
        m, n, k: its extents.
        batch: products of these extents in one launch.
    """

    words: str
    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def size(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k


_SEQUENCES = (8, 16, 32, 64)
#: Fewer than the rows of any instruction.
_FEW_SEQUENCES = (1, 2, 4)
#: Each projection's name, outputs and inputs.
_PROJECTIONS = (
    ("queries, keys and values", 6144, 4096),
    ("attention output", 4096, 4096),
    ("gate and up", 28672, 4096),
    ("down", 4096, 14336),
)


def _decoding(sequences: tuple[int, ...]) -> tuple[Shape, ...]:
    """Every projection of so many sequences."""
    return tuple(
        Shape(f"{words}, {count} sequence{'' if count == 1 else 's'}", count, outputs, inputs)
        for words, outputs, inputs in _PROJECTIONS
        for count in sequences
    )


LISTS: dict[str, tuple[Shape, ...]] = {
    "decode": _decoding(_SEQUENCES),
    "rows": _decoding(_FEW_SEQUENCES),
    "batched": (
        Shape("heads of 64, short", 64, 64, 64, 1024),
        Shape("scores of 128 tokens, heads of 64", 128, 128, 64, 512),
        Shape("values of 128 tokens, heads of 64", 128, 64, 128, 512),
        Shape("small layers", 128, 128, 128, 256),
        Shape("larger layers", 256, 256, 256, 64),
        Shape("values of 512 tokens, heads of 64", 512, 64, 512, 96),
        Shape("scores of 1024 tokens, heads of 64", 1024, 1024, 64, 16),
        Shape("blocks of 32", 32, 32, 32, 4096),
        Shape("scores of windows of 64 tokens, heads of 32", 64, 64, 32, 2048),
        Shape("values of windows of 64 tokens, heads of 32", 64, 32, 64, 2048),
        Shape("scores of 8 queries that share 1024 keys, heads of 128", 8, 1024, 128, 128),
        Shape("values of 8 queries that share 1024 keys, heads of 128", 8, 128, 1024, 128),
    ),
}


def named(text: str) -> tuple[Shape, ...]:
    """The list of that name.

    Raises:
        RequestError: there is none.
    """
    if text not in LISTS:
        raise RequestError(f"no list of shapes is called {text!r}", f"one of: {' '.join(LISTS)}")
    return LISTS[text]
