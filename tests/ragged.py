"""Sizes that are no multiples of anything, kernels for them, and further mistakes that are made at edges."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

from tests.draws import draws
from wmmagen import derive, reference, rules, trial
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig, Problem, Residue
from wmmagen.mistakes import _WRONG as WRONG
from wmmagen.mistakes import EDGE_AHEAD, EDGE_AHEAD_SCALED, EDGE_CP, EDGE_CP_STAGED, EDGE_LD1, EDGE_LD2, Edit, Mutant

#: Of M, of N and of K: one, and around copies, instruction tiles, warp tiles, block tiles and slices.
EXTENTS = (1, 7, 8, 15, 16, 17, 31, 33, 63, 65, 100, 129)
#: Variants of f16 operands, each with another pipeline, layout, promise and way to D.
HALVES = (
    "acc=f32,d=f32,layout=rr,warps=2x2,frags=2x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=2,store=direct",
    "acc=f32,d=f16,layout=rc,warps=2x1,frags=2x2,k_steps=2,copy=cpasync,stages=4,fragment_buffers=1,store=staged,"
    "align_a=4,align_b=2,align_d=2",
    "acc=f16,d=f16,layout=cr,warps=1x2,frags=2x2,k_steps=2,copy=ld,stages=2,fragment_buffers=2,store=direct,"
    "raster=grouped2",
    "acc=f32,d=f32,layout=cc,warps=2x2,frags=1x1,k_steps=2,copy=ld,stages=1,store=staged,align_a=1,align_b=1,align_d=1,"
    "epilogue=linear",
    "acc=f16,d=f32,layout=rr,inst=8x32x16,warps=1x2,frags=2x1,k_steps=4,copy=cpasync,stages=2,fragment_buffers=2,"
    "arrange_a=tiles,store=staged,epilogue=linear",
    "acc=f32,d=f32,layout=rr,inst=32x8x16,warps=1x3,frags=1x2,k_steps=3,copy=cpasync,stages=3,fragment_buffers=1,"
    "arrange_b=tiles,store=direct,raster=panels2",
)
#: One of each other type of operands, in part with promises of no more than an element or the narrowest copy.
TYPES = (
    "a=bf16,d=bf16,layout=cr,warps=2x1,frags=2x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=2,store=staged,"
    "align_b=2,align_d=2",
    "a=tf32,layout=rc,warps=1x2,frags=2x2,k_steps=4,copy=cpasync,stages=3,fragment_buffers=2,store=direct",
    "a=f64,layout=rr,warps=2x2,frags=2x2,k_steps=4,copy=cpasync,stages=2,fragment_buffers=1,store=staged,align_a=1,"
    "align_b=1,align_d=1",
    "a=s8,d=s8,layout=rc,warps=2x1,frags=2x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=2,store=staged,align_a=4,"
    "align_b=4,align_d=4,epilogue=linear",
    "a=u8,layout=rc,warps=1x2,frags=2x2,k_steps=2,copy=ld,stages=2,fragment_buffers=2,store=staged,align_a=1,align_b=1,"
    "align_d=1",
)
VARIANTS = (*HALVES, *TYPES)
#: Larger tiles of D make larger problems, and no other code.
MOST_ELEMENTS = 128 * 64


def problem_of(config: KernelConfig, size: tuple[int, int, int], number: int = 0) -> Problem:
    """A size with leading dimensions that are aligned as promised and no further, and the factors of its ``number``."""
    problem = reference.spaced_problem(config.operation, *size, trial.units(config))
    if not config.operation.scaled:
        return problem
    alpha, beta = reference.FACTORS[number % len(reference.FACTORS)]
    return replace(problem, alpha=alpha, beta=beta)


def orders() -> Iterator[tuple[int, int, int]]:
    """Each of the extents as M, as N and as K, in all orders."""
    return itertools.product(EXTENTS, repeat=3)


def drawn(arch: Arch, count: int) -> list[KernelConfig]:
    """Kernels for all sizes of ``count`` drawn configurations."""
    found = (replace(c, operation=replace(c.operation, residue=Residue.PREDICATED)) for c in draws(arch, 20 * count))
    legal = (c for c in found if rules.legal(c, arch) and _elements(c) <= MOST_ELEMENTS)
    return list(itertools.islice(legal, count))


def sizes(rng: random.Random, count: int) -> list[tuple[int, int, int]]:
    """Some of the orders."""
    return rng.sample(list(orders()), count)


def _elements(config: KernelConfig) -> int:
    known = derive.values(config)
    return int(known["BLOCK_M"] * known["BLOCK_N"])


#: Beside those of the table, constructed.
MISTAKES = (
    Mutant(
        "edge-k-of-a-alone", "zeros of A meet what B has behind the end of K, which may be a NaN", "",
        (Edit("inside(b_row + i * B_ROW_STEP, depth, b_col", "inside(b_row + i * B_ROW_STEP, BLOCK_K, b_col", 2),),
        (EDGE_CP, EDGE_CP_STAGED), ("out-of-bounds",), "read outside A or B|" + WRONG,
    ),
    Mutant(
        "edge-of-the-other-extent", "rows of A are told by the columns that are left of D", "",
        (Edit("inside(a_row + i * A_ROW_STEP, m_left", "inside(a_row + i * A_ROW_STEP, n_left", 2),),
        (EDGE_CP, EDGE_AHEAD), ("out-of-bounds",), WRONG,
    ),
    Mutant(
        "edge-row-too-many", "the row behind the last one counts as one inside", "",
        (Edit("return row < rows ?", "return row <= rows ?"),),
        (EDGE_CP, EDGE_AHEAD, EDGE_LD1, EDGE_LD2), ("out-of-bounds", "race-between-blocks"),
        "guard elements overwritten|read outside A or B|" + WRONG,
    ),
    Mutant(
        "edge-tile-of-the-block", "a warp takes what is left from its block on for what is left from its tile on", "",
        (Edit("const int d_rows = m_left - warp_m * WARP_M;", "const int d_rows = m_left;"),),
        (EDGE_CP, EDGE_AHEAD, EDGE_LD2), ("out-of-bounds", "race-between-blocks"),
        "guard elements overwritten|" + WRONG,
    ),
    Mutant(
        "edge-of-k-dropped", "the part of a slice at the end of K is never multiplied", "",
        (Edit("K / BLOCK_K + (K % BLOCK_K != 0)", "K / BLOCK_K"),), (EDGE_CP, EDGE_CP_STAGED, EDGE_AHEAD, EDGE_LD1),
        words="is missing|every element is zero|" + WRONG,
    ),
    Mutant(
        "edge-slice-unseen", "the last slice of K counts as one inside, though it is a part of one", "",
        (Edit("n_left < BLOCK_N ? 0 : K / BLOCK_K;", "n_left < BLOCK_N ? 0 : slices;"),),
        (EDGE_LD1, EDGE_LD2), ("out-of-bounds",), "read outside A or B|" + WRONG,
    ),
    Mutant(
        "edge-slice-unseen-ahead", "the same, where slices are copied ahead", "",
        (Edit("const int inner = K / BLOCK_K;", "const int inner = slices;"),),
        (EDGE_CP, EDGE_AHEAD), ("out-of-bounds",), "read outside A or B|" + WRONG,
    ),
    Mutant(
        "edge-block-unseen", "a block at the last rows of D copies as if A went on", "",
        (Edit("m_left >= BLOCK_M && n_left", "m_left >= 0 && n_left"),),
        (EDGE_CP, EDGE_AHEAD), ("out-of-bounds",), "read outside A or B|" + WRONG,
    ),
    Mutant(
        "edge-of-the-other-extent-ahead", "beside products, rows of A are told by the columns that are left of D", "",
        (Edit("read = a_row + i * A_ROW_STEP < m_left;", "read = a_row + i * A_ROW_STEP < n_left;"),),
        (EDGE_CP, EDGE_AHEAD), ("out-of-bounds",), WRONG,
    ),
    Mutant(
        "edge-columns-unseen-ahead", "beside products, B is copied as if its rows went on behind the columns of D", "",
        (Edit("const int count = within(b_col, n_left, ALIGN_B);", "const int count = ALIGN_B;"),),
        (EDGE_CP, EDGE_AHEAD_SCALED), ("out-of-bounds",), "read outside A or B|" + WRONG,
    ),
    Mutant(
        "edge-slice-skipped", "the first slice at an edge is not copied", "",
        (Edit("next >= inner && next < slices", "next > inner && next < slices"),),
        (EDGE_LD1, EDGE_LD2), ("poison-stored", "early-read", "poison-address"), WRONG,
    ),
    Mutant(
        "edge-slice-skipped-ahead", "the part of a slice at the end of K is not copied", "",
        (Edit("if (slice + STAGES - 1 < slices) {", "if (slice + STAGES < slices) {"),),
        (EDGE_CP, EDGE_AHEAD), ("poison-stored", "early-read", "poison-address"), WRONG,
    ),
    Mutant(
        "edge-slice-as-whole", "beside products, one slice too many is copied as one that lies within K", "",
        (Edit(" - (STAGES - 1);  // slices beside", " - (STAGES - 2);  // slices beside"),),
        (EDGE_CP, EDGE_AHEAD), ("out-of-bounds",), "read outside A or B|" + WRONG,
    ),
    Mutant(
        "edge-block-as-whole", "beside products, a block at an edge of D copies as if A and B went on", "",
        (Edit("whole ? copying : 0", "copying"),),
        (EDGE_CP, EDGE_AHEAD), ("out-of-bounds",), "read outside A or B|" + WRONG,
    ),
    Mutant(
        "edge-not-walked", "A stays where it is behind a slice at an edge", "",
        (Edit("    a_from += BLOCK_K;\n    if (", "    if ("),),
        (EDGE_CP, EDGE_AHEAD), words="used A of the slice|" + WRONG,
    ),
    Mutant(
        "edge-parts-unseen", "copies of which a part is read are taken for whole ones", "",
        (Edit("if (depth < BLOCK_K && depth % ALIGN_A != 0) {", "if (depth < 0) {"),),
        (EDGE_CP, EDGE_AHEAD), ("out-of-bounds",), "read outside A or B|" + WRONG,
    ),
    Mutant(
        "edge-blocks-miscounted", "a row of blocks counts one more where D has whole tiles", "",
        (Edit("(N - 1) / BLOCK_N + 1", "N / BLOCK_N + 1"),), (EDGE_CP, EDGE_AHEAD, EDGE_LD1, EDGE_LD2),
        ("out-of-bounds",), "was never written|" + WRONG,
    ),
)  # fmt: skip
