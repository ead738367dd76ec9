"""The table of mistakes that the validator has to find: each an edit of a rendered kernel.

An edit names exact text and how often it stands in the source. Where a template changes, an edit that no longer fits is
an error, and never a mutant that changes nothing.

An origin is a report of the mistake in somebody's kernel, by project and number, or :data:`HERE`. What nobody reported
is constructed, and its origin is empty. What a mistake becomes here is the same mistake in this kernel's terms.

32-bit offsets have no row: what shows them is a matrix of more than 2^31 elements, and no executor holds that.
`tests/pure/test_offsets.py` plants them and reads the texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wmmagen.errors import MutantError

#: The origin of what was done wrong while this project was written.
HERE = "while writing wmmagen"

#: What takes the file's own assertions out, which refuse many a wrong number before a kernel is made of it.
_ASSERTION = re.compile(r"static_assert\((?!true \|\| )")


@dataclass(frozen=True)
class Edit:
    """One exact replacement: ``old`` stands ``times`` times in the source."""

    old: str
    new: str
    times: int = 1

    def applied(self, text: str) -> str:
        """``text`` with the replacement.

        Raises:
            MutantError: ``old`` does not stand there as often as stated.
        """
        found = text.count(self.old)
        if found != self.times:
            raise MutantError(
                f"{self.old!r} stands {found} times in the source, not {self.times}",
                "bring the edit to what the templates make now",
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutant:
    """A kind of mistake.

    Attributes:
        kind: its name.
        wrong: what is wrong, in words.
        origin: where it was really made; empty where it is constructed.
        edits: what makes it of a rendered source, one after the other.
        configs: ``key=value,…`` of the configurations that it is made of.
        codes: findings that are its reason, one of which has to be there.
        words: a regular expression on the verdict on its values, or on the fault, which is a reason as well.
        visible: whether its values, or a crash, show it on a GPU whatever the timing and the fragment layout there.
        unguarded: whether the file's assertions are taken out first, because they refuse it.
    """

    kind: str
    wrong: str
    origin: str
    edits: tuple[Edit, ...]
    configs: tuple[str, ...]
    codes: tuple[str, ...] = ()
    words: str = ""
    visible: bool = True
    unguarded: bool = False

    @property
    def expected(self) -> str:
        """The reasons in one line."""
        return " | ".join([*self.codes, *([f"/{self.words}/"] if self.words else [])])


def break_source(text: str, mutant: Mutant) -> str:
    """The source ``text`` with the mistake in it.

    Raises:
        MutantError: an edit does not apply as often as it says.
    """
    if mutant.unguarded:
        text, count = _ASSERTION.subn("static_assert(true || ", text)
        if not count:
            raise MutantError(f"{mutant.kind}: the source has no assertions to take out", "leave out unguarded")
    for edit in mutant.edits:
        text = edit.applied(text)
    return text


# ---------------------------------------------------------------------------------------------------------------------
# Configurations: small ones, so that a run takes a hundredth of a second, and every part of the templates occurs.

CP2 = "layout=rr,warps=2x1,frags=1x4,k_steps=2,copy=cpasync,stages=2,fragment_buffers=1,store=direct"
CP3 = "layout=rc,warps=2x2,frags=1x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=1,store=direct"
CP4 = (
    "layout=cr,warps=1x2,frags=2x1,k_steps=2,copy=cpasync,stages=4,fragment_buffers=1,"
    "store=staged,d=f16,epilogue=linear"
)
CP3_STAGED = "layout=rr,warps=2x1,frags=2x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=1,store=staged"
AHEAD2 = "layout=rr,warps=2x1,frags=1x4,k_steps=4,copy=cpasync,stages=2,fragment_buffers=2,store=direct"
AHEAD3 = "layout=rc,warps=2x2,frags=1x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=2,store=direct"
LD1 = "layout=rr,warps=2x2,frags=2x2,k_steps=2,copy=ld,stages=1,store=direct"
LD1_STAGED = "layout=cc,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,store=staged,d=f16"
LD1_LINEAR = "layout=rr,warps=2x2,frags=1x1,k_steps=2,copy=ld,stages=1,store=direct,epilogue=linear"
LD2 = "layout=rr,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=2,store=direct"
LD2_AHEAD = "layout=rr,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=2,fragment_buffers=2,store=direct"
LD2_STAGED = "layout=rr,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=2,store=staged,epilogue=linear,d=f16"
LD2_NARROW = "layout=cc,acc=f16,d=f16,inst=32x8x16,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=2,store=staged"
GLOBAL = "layout=rr,feed=global,warps=2x1,frags=1x2,k_steps=2,store=direct"
GLOBAL_CC = "layout=cc,feed=global,warps=1x2,frags=1x1,k_steps=2,store=direct,fragment_buffers=2"
GLOBAL_STAGED = "layout=rc,feed=global,warps=1x2,frags=2x1,k_steps=2,store=staged,epilogue=linear,d=f16,align_d=2"
PARKED = "layout=rr,residency=global,store=direct,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=1"
PARKED_CP = "layout=rc,residency=global,store=direct,warps=1x2,frags=2x1,k_steps=2,copy=cpasync,stages=2"
GROUPED = "raster=grouped2,layout=rr,warps=1x2,frags=1x1,k_steps=2,copy=ld,stages=2,store=direct"
GROUPED_GLOBAL = "raster=grouped2,layout=rc,warps=2x1,frags=1x1,k_steps=2,feed=global,store=direct"
PANELS = "raster=panels2,layout=rr,warps=2x1,frags=1x1,k_steps=2,copy=ld,stages=1,store=direct"
PANELS_GLOBAL = "raster=panels2,layout=cc,warps=1x2,frags=1x1,k_steps=2,feed=global,store=direct"
TILES_WIDE = "inst=32x8x16,layout=rr,arrange_b=tiles,warps=1x2,frags=1x2,k_steps=2,copy=ld,stages=1,store=direct"
TILES_TALL = "inst=8x32x16,layout=rr,arrange_a=tiles,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,store=direct"
TF32 = "a=tf32,layout=rc,warps=1x2,frags=2x1,k_steps=2,copy=cpasync,stages=2,fragment_buffers=1,store=direct"
TF32_STAGED = "a=tf32,layout=cr,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=2,store=staged"
U8 = "a=u8,warps=1x2,frags=2x1,k_steps=4,copy=ld,stages=2,store=direct"
U8_SINGLE = "a=u8,warps=2x1,frags=1x2,k_steps=4,copy=ld,stages=1,store=staged"
EDGE_CP = (
    "residue=predicated,layout=rr,warps=2x1,frags=1x4,k_steps=2,copy=cpasync,stages=3,fragment_buffers=1,store=direct"
)
EDGE_CP_STAGED = (
    "residue=predicated,layout=cr,warps=1x2,frags=2x1,k_steps=2,copy=cpasync,stages=2,fragment_buffers=1,"
    "store=staged,d=f16,epilogue=linear"
)
EDGE_AHEAD = (
    "residue=predicated,layout=rc,warps=2x2,frags=1x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=2,"
    "store=staged,d=f16"
)
EDGE_AHEAD_SCALED = (
    "residue=predicated,layout=rr,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=4,fragment_buffers=2,"
    "store=staged,d=f16,epilogue=linear"
)
EDGE_LD1 = "residue=predicated,layout=cc,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,store=staged,align_d=2"
EDGE_LD2 = "residue=predicated,layout=rr,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=2,store=direct,epilogue=linear"
EDGE_CHAIN = (
    "residue=predicated,layout=rr,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,store=staged,d=f16,"
    "epilogue=linear+biasrow+biascol+residual"
)
EDGE_CHAIN_CP = (
    "residue=predicated,layout=rc,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=3,fragment_buffers=1,store=staged,"
    "c=f16,epilogue=biasrow+biascol+residual+relu"
)
QUANTISED = "a=s8,d=s8,c=f32,warps=2x1,frags=1x2,k_steps=4,copy=ld,stages=2,epilogue=scalecol+biascol"
QUANTISED_U8 = "a=u8,d=u8,c=s32,warps=1x2,frags=1x2,k_steps=4,copy=ld,stages=1,epilogue=biascol+scalerow"
QUANTISED_RELU = "a=s8,d=u8,warps=1x2,frags=1x2,k_steps=4,copy=cpasync,stages=2,fragment_buffers=1,epilogue=scalecol"
DOUBLES = "a=f64,warps=1x2,frags=2x2,k_steps=4,copy=ld,stages=2,store=staged,epilogue=linear+biascol+relu"
DOUBLES_GELU = "a=f64,warps=2x1,frags=1x2,k_steps=4,copy=ld,stages=1,store=staged,epilogue=biascol+gelu"
NARROW_GLOBAL = "inst=32x8x16,layout=rc,feed=global,warps=1x2,frags=1x2,k_steps=2,store=staged"

CHAIN = "layout=rr,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,store=staged,d=f16,epilogue=linear+biascol+relu"
CHAIN_CP = (
    "layout=rc,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=2,fragment_buffers=1,store=staged,c=f16,"
    "epilogue=linear+biascol+clamp"
)
CHAIN_GLOBAL = (
    "layout=rr,feed=global,warps=1x2,frags=1x1,k_steps=2,store=staged,d=f16,epilogue=linear+biascol+relu+clamp"
)
CHAIN_GELU = "layout=cr,warps=1x2,frags=1x2,k_steps=2,copy=ld,stages=2,store=staged,d=f16,epilogue=linear+biascol+gelu"
#: Functions, of one tile for a block: what becomes of an element does not depend on the size.
_TILE = "warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1"
GELU = f"layout=rr,{_TILE},store=staged,d=f16,epilogue=biascol+gelu"
GELU_DIRECT = f"layout=rc,{_TILE},store=direct,epilogue=gelu"
SILU = f"layout=rr,{_TILE},store=staged,d=f16,epilogue=linear+silu"
SILU_DIRECT = f"layout=rc,{_TILE},store=direct,epilogue=silu"
GELUTANH = f"layout=rr,{_TILE},store=staged,d=f16,epilogue=biascol+gelutanh"
GELUTANH_DIRECT = f"layout=rc,{_TILE},store=direct,epilogue=gelutanh"
FORMULA = f"layout=rr,{_TILE},store=staged,epilogue=expr(exp(acc/16)+erf(bias)*tanh(acc)*sqrt(abs(acc)+1))"
FORMULA_HALVES = FORMULA.replace("staged", "staged,d=f16,c=f32")
DOUBLES_SILU = "a=f64,warps=1x1,frags=2x2,k_steps=4,copy=ld,stages=1,store=direct,epilogue=silu"
STRIDED = "batch=strided,layout=rc,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=3,store=direct"
STRIDED_LINEAR = (
    "batch=strided,layout=cr,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=2,store=staged,d=f16,epilogue=linear"
)
STRIDED_GROUPED = "batch=strided,raster=grouped2,layout=rr,warps=1x2,frags=1x1,k_steps=2,copy=ld,stages=1,store=direct"
STRIDED_LINEAR_RR = STRIDED_LINEAR.replace("layout=cr", "layout=rr")
POINTERS = "batch=pointers,layout=rr,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=2,store=direct"
POINTERS_LINEAR = "batch=pointers,layout=cc,feed=global,warps=1x2,frags=1x1,k_steps=2,store=direct,epilogue=linear"
POINTERS_PANELS = "batch=pointers,raster=panels2,layout=rr,warps=2x1,frags=1x1,k_steps=2,copy=ld,stages=1,store=direct"
POINTERS_STAGED = POINTERS.replace("store=direct", "store=staged,epilogue=linear")
STRIDED_CHAIN = "batch=strided," + CHAIN
POINTERS_CHAIN = (
    "batch=pointers,layout=rr,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=2,store=staged,c=f16,"
    "epilogue=biasrow+biascol+residual"
)
MET = "layout=rr,warps=2x1,frags=1x2,k_steps=2,copy=cpasync,stages=2,fragment_buffers=1,store=direct,split_k=3"
MET_LD = "layout=rc,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,store=staged,epilogue=linear,d=f16,split_k=2"
MET_GLOBAL = "layout=rr,feed=global,warps=1x2,frags=1x1,k_steps=2,store=direct,acc=f16,raster=panels2,split_k=4"
MET_EDGE = (
    "residue=predicated,layout=rr,warps=1x1,frags=1x1,k_steps=2,copy=cpasync,stages=2,fragment_buffers=1,store=direct,"
    "split_k=2"
)
MET_BATCH = "batch=strided," + MET
ADDED_EDGE = (
    "residue=predicated,layout=rr,warps=1x1,frags=1x1,k_steps=2,copy=ld,stages=1,store=staged,split_k=2,"
    "reduction=atomic"
)
ADDED = "layout=rr,warps=1x2,frags=1x1,k_steps=2,copy=ld,stages=2,store=staged,split_k=3,reduction=atomic"
ADDED_CP = "layout=rr,warps=2x1,frags=1x1,k_steps=2,copy=cpasync,stages=3,align_d=1,split_k=2,reduction=atomic"
SLICED_CP = "layout=rr,warps=2x1,frags=2x2,k_steps=4,copy=cpasync,stages=3,fragment_buffers=2,store=staged,warps_k=2"
SLICED_LD = "layout=rc,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,store=staged,d=f16,epilogue=linear,warps_k=2"
SLICED_DIRECT = "layout=cr,warps=1x1,frags=4x1,k_steps=4,copy=ld,stages=2,store=direct,warps_k=4"

COLUMNS = "cd=cc,layout=rr,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=1,store=direct"
COLUMNS_LINEAR = (
    "cd=cc,layout=rc,warps=1x2,frags=2x1,k_steps=2,copy=cpasync,stages=2,store=staged,d=f16,epilogue=linear"
)
COLUMNS_CHAIN = (
    "cd=cc,layout=rr,warps=1x2,frags=2x1,k_steps=2,copy=ld,stages=1,store=staged,d=f16,epilogue=linear+biasrow+biascol"
)
COLUMNS_CHAIN_CP = COLUMNS_CHAIN.replace("copy=ld,stages=1", "copy=cpasync,stages=3")
CROSSED = "cd=cr,layout=rr,warps=2x1,frags=1x2,k_steps=2,copy=ld,stages=2,store=direct,epilogue=linear"

_BARRIER = "__syncthreads();"
_WAIT = "wait_groups<STAGES - 2>();"
_WAITED = f"    {_WAIT}\n    {_BARRIER}\n"
_FILL = "    if (slice + STAGES - 1 < slices) {\n      copy_edge(fill_stage, slice + STAGES - 1);\n    }\n"
_CLOSE_IN_LOOP = "    close_group();\n    read_stage ="
_LOOP = "for (int slice = 0; slice < slices; ++slice) {"
_EACH_SUM = f"{_LOOP}\n    for (auto& row : acc)\n      for (auto& sum : row)"
_PLACE = "  // 2. Accumulators:"
_ROW_OF_A = "static_cast<long long>(block_row + a_row) * "
_ROWS_OF_A = "static_cast<long long>(A_ROW_STEP) * "
_ROW_OF_D = "static_cast<long long>(warp_row) * ldd + warp_col"
_TILE_OF_D = "static_cast<long long>(i * INST_M) * "
_PRODUCT = "wmma::mma_sync(acc[i][j], a[i], b[j], acc[i][j]);"
_ZEROED = "wmma::fill_fragment(acc[i][j], 0.0f);"
_STORED = "wmma::store_matrix_sync(strip + j * D_TILE, acc[i][j], LDS_D, wmma::mem_row_major);"
_DIRECT = (
    "wmma::store_matrix_sync(d_tile + static_cast<long long>(i * INST_M) * ldd + j * INST_N, acc[i][j], ldd,\n"
    "                              wmma::mem_row_major);"
)
#: A verdict on values alone: some element, wherever it is, with its owner.
_WRONG = r"elements differ\nowner: "
#: The same of a product of a batch.
_PRODUCT_WRONG = r"product \d+ of 0 to \d+, the first of|never written|guards"

#: Barriers of a block and of a warp.
_BARRIERS = (
    Mutant(
        "pipeline-barrier", "a slice is read before the copies of other threads have landed", "tilelang #96",
        (Edit(f"{_WAIT}\n    {_BARRIER}", _WAIT),), (CP2, CP3, CP4), ("race",), visible=False,
    ),
    Mutant(
        "fill-barrier", "the one buffer is overwritten while warps still read it", "tilelang #2613",
        (Edit(f"{_BARRIER}  // every warp has read the slice", "// every warp has read the slice"),),
        (LD1, LD1_STAGED, PARKED), ("race",), visible=False,
    ),
    Mutant(
        "read-barrier", "the one buffer is read before every thread has filled it", "tilelang #2556",
        (Edit(f"{_BARRIER}  // the slice is there", "// the slice is there"),),
        (LD1, LD1_STAGED, PARKED), ("race",), visible=False,
    ),
    Mutant(
        "loop-barrier", "the next slice is read as soon as this thread has stored its share", "tilelang #2612",
        (Edit("      store_slice((slice + 1) % STAGES);\n    }\n    __syncthreads();",
              "      store_slice((slice + 1) % STAGES);\n    }"),),
        (LD2, LD2_STAGED, GROUPED), ("race",), visible=False,
    ),
    Mutant(
        "prologue-barrier", "the first slice is read before the block has stored it", "",
        (Edit("    store_slice(0);\n  }\n  __syncthreads();", "    store_slice(0);\n  }"),),
        (LD2, LD2_STAGED, GROUPED), ("race",), visible=False,
    ),
    Mutant(
        "epilogue-barrier", "sums are staged over slices that other warps still read", "MatmulTutorial #13",
        (Edit(f"{_BARRIER}  // every warp has read the last slice", "// every warp has read the last slice"),),
        (CP4, CP3_STAGED, LD1_STAGED, EDGE_CP), ("race",), visible=False,
    ),
    Mutant(
        "strip-read-early", "a lane reads sums that other lanes have stored, without a warp barrier", "colibri #1099",
        (Edit("__syncwarp();  // a lane reads", "// a lane reads"),),
        (CP4, LD2_NARROW, GLOBAL_STAGED), ("race",), visible=False,
    ),
    Mutant(
        "strip-reused-early", "the next row of tiles overwrites a strip that is still read", "TileOPs PR #1550",
        (Edit("__syncwarp();  // the strip is read", "// the strip is read"),),
        (CP4, LD2_STAGED, GLOBAL_STAGED), ("race",), visible=False,
    ),
    Mutant(
        "barrier-in-branch", "half of the threads pass a barrier by", "",
        (Edit("    store_slice(0);\n  }\n  __syncthreads();",
              "    store_slice(0);\n  }\n  if (thread % 64 < 32) __syncthreads();"),),
        (LD2, LD2_STAGED, GROUPED), ("barrier-divergence", "race"), visible=False,
    ),
    Mutant(
        "early-return", "warps that are taken for idle leave before the barriers", "flashinfer PR #2996",
        (Edit(_PLACE, f"  if (warp != 0) return;\n{_PLACE}"),),
        (CP3, LD2, LD1), ("barrier-divergence", "poison-stored", "race", "early-read"), "never written",
    ),
    Mutant(
        "partial-warp", "half a warp reaches a matrix call", "",
        (Edit("wmma::mma_sync(", "if (thread % 32 < 16) wmma::mma_sync("),),
        (LD1, GLOBAL, CP3), ("partial-warp",), visible=False,
    ),
)  # fmt: skip

#: Asynchronous copies and the ring of stages.
_PIPELINE = (
    Mutant(
        "wait-for-too-few", "it waits until one group too many is left open", "cutlass PR #2502",
        (Edit(_WAIT, "wait_groups<STAGES - 1>();"),), (CP2, CP3, CP4), ("early-read",), visible=False,
    ),
    Mutant(
        "wait-missing", "nothing waits for the copies", "",
        (Edit(f"    {_WAIT}\n", ""),), (CP2, CP3, CP4), ("early-read",), visible=False,
    ),
    Mutant(
        "group-closed-late", "a group is closed behind the wait that counts it", "csarofeen/pytorch PR #2457",
        (Edit(_CLOSE_IN_LOOP, "    read_stage ="),
         Edit(f"    {_WAIT}\n", f"    {_WAIT}\n    if (slice > 0) close_group();\n")),
        (CP2, CP3, CP4), ("early-read", "race"), visible=False,
    ),
    Mutant(
        "group-not-closed", "the copies of the main loop are closed into no group", "",
        (Edit(_CLOSE_IN_LOOP, "    read_stage ="),), (CP2, CP3, CP4), ("early-read",), visible=False,
    ),
    Mutant(
        "fill-stage-off", "the ring begins at the stage that is read", "cutlass PR #3636",
        (Edit("int fill_stage = STAGES - 1;", "int fill_stage = 0;"),),
        (CP3, CP4, CP3_STAGED), ("early-read", "early-write", "race"), visible=False,
    ),
    Mutant(
        "read-stage-off", "the slice behind the one that has landed is read", "",
        (Edit("int read_stage = 0;", "int read_stage = 1;"),),
        (CP3, CP4, CP3_STAGED), ("early-read", "poison-stored", "race"),
    ),
    Mutant(
        "ring-not-wrapped", "the stage that is read does not begin again", "",
        (Edit("read_stage = read_stage + 1 == STAGES ? 0 : read_stage + 1;", "++read_stage;"),),
        (CP2, CP3, CP4), ("out-of-bounds", "poison-stored", "race", "early-read"), _WRONG,
    ),
    Mutant(
        "prologue-short", "one slice too few is on its way before the main loop", "",
        (Edit("stage < STAGES - 1; ++stage", "stage < STAGES - 2; ++stage"),),
        (CP3, CP4, CP3_STAGED), ("early-read", "poison-stored"), _WRONG,
    ),
    Mutant(
        "prologue-unguarded", "slices that K does not have are copied", "cutlass PR #1593",
        (Edit("    if (stage < slices) {\n#pragma", "    {\n#pragma"),),
        (CP2, CP4, CP3_STAGED), ("out-of-bounds",), visible=False,
    ),
    Mutant(
        "fill-unguarded", "the main loop copies slices behind the end of K", "cutlass #3536",
        (Edit("if (more) {\n        copy_part", "{\n        copy_part"),),
        (CP2, CP4, CP3_STAGED), ("out-of-bounds",), visible=False,
    ),
    Mutant(
        "sums-beyond-k", "K is rounded up to a whole turn of the ring", "cutlass #3568",
        (Edit(_LOOP, "for (int slice = 0; slice < (slices + STAGES - 1) / STAGES * STAGES; ++slice) {"),),
        (CP2, CP3, CP4), ("poison-stored",), "is counted twice|used A and B|" + _WRONG,
    ),
    Mutant(
        "drain-dropped", "the last slice of K is never multiplied", "FusedKernelLibrary PR #284",
        (Edit(_LOOP, "for (int slice = 0; slice + 1 < slices; ++slice) {"),),
        (CP2, CP4, LD1, LD2, GLOBAL), ("early-write",),
        "every element is zero|the last K slice .* is missing|zeros with a minus|alpha·A·B is missing",
    ),
    Mutant(
        "slice-twice", "the first slice is multiplied twice", "",
        (Edit(_PRODUCT, f"{_PRODUCT}\n          if (slice == 0) {_PRODUCT}"),),
        (CP2, CP3, CP4), words="is counted twice",
    ),
    Mutant(
        "one-stage", "the loop for two stages has one", HERE,
        (Edit("constexpr int STAGES = 2;", "constexpr int STAGES = 1;"),),
        (LD2, GROUPED), ("race",), visible=False, unguarded=True,
    ),
    Mutant(
        "k-walked-twice", "A moves two slices at a time", "rocm_wmma_samples #2",
        (Edit("a_from += BLOCK_K;", "a_from += 2 * BLOCK_K;"),),
        (CP2, CP3, LD1, LD2), ("out-of-bounds",), "read outside A or B|used A of the slice",
    ),
    Mutant(
        "k-not-walked", "B stays at its first slice", "",
        (Edit("b_from += b_slice;", "b_from += 0 * b_slice;"),),
        (CP2, LD1, LD2), words="used B of the slice 1 earlier: stale",
    ),
    Mutant(
        "k-slice-uneven", "the slice is not a multiple of the instruction's depth", "tilelang #2381",
        (Edit("constexpr int BLOCK_K = K_STEPS * INST_K;", "constexpr int BLOCK_K = K_STEPS * INST_K + 8;"),),
        (GLOBAL, GLOBAL_CC, GROUPED_GLOBAL), words="elements", unguarded=True,
    ),
    Mutant(
        "fragments-of-one-buffer", "each step multiplies the fragments of the first", "",
        (Edit("a[k % 2][i], b[k % 2][j]", "a[0][i], b[0][j]"),), (AHEAD3, GLOBAL_CC), words=_WRONG,
    ),
    Mutant(
        "copies-left-out", "the first part of a slice's copies is left out", "",
        (Edit("if (more) {\n        copy_part", "if (more && k > 0) {\n        copy_part"),),
        (CP2, CP3, CP4), ("poison-stored", "early-read"), _WRONG,
    ),
    Mutant(
        "ahead-waits-for-too-few", "the wait before the next slice's fragments leaves its group open", "",
        (Edit(f"close_group();\n        {_WAIT}", "close_group();\n        wait_groups<STAGES - 1>();"),),
        (AHEAD2, AHEAD3), ("early-read",), visible=False,
    ),
    Mutant(
        "ahead-barrier", "fragments of the next slice are loaded before other threads' copies have landed", "",
        (Edit("__syncthreads();\n        load_step(next_stage, 0);", "load_step(next_stage, 0);"),),
        (AHEAD2, AHEAD3, LD2_AHEAD), ("race",), visible=False,
    ),
    Mutant(
        "ahead-sets-swapped", "each step multiplies the set of A that is being loaded", "",
        (Edit("a[k % 2][i], b[k % 2][j]", "a[(k + 1) % 2][i], b[k % 2][j]"),),
        (AHEAD2, AHEAD3, LD2_AHEAD), words=_WRONG,
    ),
)  # fmt: skip

#: Addresses: leading dimensions, pads, tiles, layouts.
_ADDRESSES = (
    Mutant(
        "ldb-for-lda", "rows of A are taken to be as far apart as those of B", "cuda-samples #5",
        (Edit(f"{_ROW_OF_A}lda", f"{_ROW_OF_A}ldb"), Edit(f"{_ROWS_OF_A}lda", f"{_ROWS_OF_A}ldb")),
        (CP2, LD1, LD2), ("out-of-bounds",), f"read outside A or B|{_WRONG}",
    ),
    Mutant(
        "packed-a", "K is taken for the leading dimension of A", "aiter PR #5385",
        (Edit(f"{_ROW_OF_A}lda", f"{_ROW_OF_A}K"), Edit(f"{_ROWS_OF_A}lda", f"{_ROWS_OF_A}K")),
        (CP2, LD1, LD2), words=f"read outside A or B|{_WRONG}",
    ),
    Mutant(
        "packed-d", "N is taken for the leading dimension of D", "aiter PR #5385",
        (Edit(f"{_TILE_OF_D}ldd + j * INST_N, acc[i][j], ldd,", f"{_TILE_OF_D}N + j * INST_N, acc[i][j], N,"),
         Edit(_ROW_OF_D, "static_cast<long long>(warp_row) * N + warp_col")),
        (CP3, LD1, GLOBAL), ("race-between-blocks", "fragment-ldm", "fragment-pointer"), "never written|guards",
    ),
    Mutant(
        "pad-of-b-for-a", "fragments of A are loaded with the padded row of B", "",
        (Edit("k * A_STEP_K, LDS_A);", "k * A_STEP_K, LDS_B);"),),
        (CP2, LD1), ("poison-stored", "out-of-bounds"), _WRONG,
    ),
    Mutant(
        "pad-left-out", "slices are stored without the pad with which they are read", "",
        (Edit("a_row * LDS_A + a_col", "a_row * A_COLS + a_col"),
         Edit("i * A_ROW_STEP * LDS_A", "i * A_ROW_STEP * A_COLS")),
        (CP2, CP3, LD1, LD2), ("poison-stored", "race"),
    ),
    Mutant(
        "illegal-pad", "a staged row is no whole number of 16-byte units", "tiny-cuda-nn #257",
        (Edit("constexpr int PAD_A = 8;", "constexpr int PAD_A = 4;"),),
        (CP2, LD1, LD2), ("fragment-ldm", "misaligned"), unguarded=True,
    ),
    Mutant(
        "ragged-ldm", "the leading dimension of a fragment is no whole number of 16-byte units", "tiny-cuda-nn #257",
        (Edit("k * A_STEP_K, LDS_A);", "k * A_STEP_K, LDS_A + 4);"),),
        (CP2, LD1, LD2), ("fragment-ldm",),
    ),
    Mutant(
        "half-a-fragment-off", "a fragment's pointer is 16 bytes off its 32", "",
        (Edit("wmma::load_matrix_sync(b[j], ", "wmma::load_matrix_sync(b[j], 8 + "),),
        (CP2, LD1, LD2), ("fragment-pointer",),
    ),
    Mutant(
        "second-tile-off", "tiles 8 wide lie in padded rows, where every second one begins 16 bytes off", "",
        (Edit("constexpr int LDS_B = B_TILE_COLS + PAD_B;", "constexpr int LDS_B = B_COLS + PAD_B;"),
         Edit("constexpr int B_STEP_N = K_STEPS * B_TILE;", "constexpr int B_STEP_N = INST_N;"),
         Edit("constexpr int B_STEP_K = B_TILE;", "constexpr int B_STEP_K = INST_K * LDS_B;"),
         Edit("constexpr int B_STAGE = WARPS_N * FRAGS_N * B_STEP_N;", "constexpr int B_STAGE = B_ROWS * LDS_B;"),
         Edit("rows / B_TILE_ROWS * B_STEP_K + rows % B_TILE_ROWS * LDS_B", "rows * LDS_B"),
         Edit("b_row / B_TILE_ROWS * B_STEP_K + b_row % B_TILE_ROWS * LDS_B +\n"
              "                   b_col / B_TILE_COLS * B_STEP_N + b_col % B_TILE_COLS;", "b_row * LDS_B + b_col;")),
        (TILES_WIDE, TILES_WIDE.replace("stages=1", "stages=2")), ("fragment-pointer",), visible=False, unguarded=True,
    ),
    Mutant(
        "stages-overlap", "stages of A and B share memory", "",
        (Edit("constexpr int B_BASE = STAGES * A_STAGE;", "constexpr int B_BASE = 0;"),),
        (CP2, CP3, LD1, LD2), ("race", "early-write"), _WRONG,
    ),
    Mutant(
        "wide-copy", "the promise is 8 bytes, the copies are 16", HERE,
        (Edit("constexpr int ALIGN_A = 8;", "constexpr int ALIGN_A = 4;"),),
        (CP2, LD1, LD2), ("misaligned",), unguarded=True,
    ),
    Mutant(
        "narrow-copy", "a copy moves half of what its neighbour begins behind", "",
        (Edit("  int4 a_held[", "  int2 a_held["), Edit("const int4*>(a_from", "const int2*>(a_from"),
         Edit("<int4*>(shared + stage * A_STAGE", "<int2*>(shared + stage * A_STAGE")),
        (LD1, LD2, LD1_LINEAR), ("poison-stored",),
    ),
    Mutant(
        "lines-swapped", "A is read column by column although it lies in rows", "NVIDIA forum 265654",
        (Edit("wmma::row_major>;\nusing FragmentB", "wmma::col_major>;\nusing FragmentB"),),
        (CP2, LD1, GLOBAL), ("poison-stored", "out-of-bounds", "race"),
        "fragment of A was loaded as its transpose|read outside A or B",
    ),
    Mutant(
        "shape-in-another-order", "m and n of the instruction are given the other way round", "cubecl #311",
        (Edit("INST_M, INST_N, INST_K,", "INST_N, INST_M, INST_K,", 3),),
        (TILES_WIDE, TILES_TALL, LD2_NARROW, NARROW_GLOBAL),
        ("poison-stored", "out-of-bounds", "race", "fragment-pointer"), _WRONG,
    ),
    Mutant(
        "d-transposed", "fragments are stored column by column", "",
        (Edit("acc[i][j], ldd,\n                              wmma::mem_row_major);",
              "acc[i][j], ldd,\n                              wmma::mem_col_major);"),),
        (CP3, LD1, GLOBAL), ("race", "race-between-blocks"), _WRONG,
    ),
)  # fmt: skip

_COLUMN_OF_D = "static_cast<long long>(warp_col) * ldd + warp_row"

#: C and D in columns.
_LAYOUTS = (
    Mutant(
        "column-swap-left-out", "D is to lie in columns, but tiles are computed as if it lay in rows", "iree PR #23911",
        (Edit("wmma::matrix_b, INST_N, INST_M, INST_K, __half, wmma::col_major",
              "wmma::matrix_a, INST_M, INST_N, INST_K, __half, wmma::row_major"),
         Edit("wmma::matrix_a, INST_N, INST_M, INST_K, __half, wmma::col_major",
              "wmma::matrix_b, INST_M, INST_N, INST_K, __half, wmma::row_major"),
         Edit("acc[i][j], b[j], a[i], acc[i][j]", "acc[i][j], a[i], b[j], acc[i][j]")),
        (COLUMNS, COLUMNS_CHAIN), words=_WRONG,
    ),
    Mutant(
        "bias-of-the-transpose", "the bias of rows is read by columns where D lies in columns", "CUTLASS #3540",
        (Edit("const int own_row = warp_row +", "const int own_row = warp_col +"),), (COLUMNS_CHAIN, COLUMNS_CHAIN_CP),
        ("out-of-bounds",), "bias_row was read|" + _WRONG,
    ),
    Mutant(
        "columns-packed-by-n", "N is taken for the leading dimension of a D in columns", "fast.cu PR #14",
        (Edit(_COLUMN_OF_D, _COLUMN_OF_D.replace("ldd", "N")),), (COLUMNS, COLUMNS_LINEAR, COLUMNS_CHAIN),
        ("race-between-blocks", "fragment-pointer", "out-of-bounds", "race", "misaligned"), "never written|guards",
    ),
    Mutant(
        "rows-for-columns", "D's columns are stored as if they were rows", "",
        (Edit(_COLUMN_OF_D, _ROW_OF_D),), (COLUMNS, COLUMNS_LINEAR), ("race-between-blocks", "out-of-bounds", "race"),
        "never written|guards|" + _WRONG,
    ),
    Mutant(
        "c-as-d-lies", "C is taken to lie as D does, and lies across it", "",
        (Edit("mem_col_major", "mem_row_major"),), (CROSSED, CROSSED.replace("stages=2", "stages=1")), words=_WRONG,
    ),
)  # fmt: skip

#: Which block, warp and thread computes what.
_TILES = (
    Mutant(
        "tile-dropped", "the last block computes nothing", "tilelang #2433",
        (Edit(_PLACE, f"  if (block + 1 == static_cast<int>(gridDim.x)) return;\n{_PLACE}"),),
        (CP3, LD2_STAGED, PANELS, GLOBAL),
        words=r"the whole \d+x\d+ block tile at row \d+, column \d+ was never written",
    ),
    Mutant(
        "warp-tile-twice", "every warp computes the tile of the first", "",
        (Edit("const int warp_n = warp % WARPS_N;", "const int warp_n = 0 * (warp % WARPS_N);"),),
        (CP4, LD1_STAGED, GROUPED), ("race",),
    ),
    Mutant(
        "warp-axes-swapped", "A is read from the warp's column instead of its row", "",
        (Edit("warp_m * FRAGS_M * A_STEP_M", "warp_n * FRAGS_M * A_STEP_M"),), (CP3, LD1, LD1_LINEAR), words=_WRONG,
    ),
    Mutant(
        "block-axes-swapped", "row and column of a block are swapped, which square matrices hide", "",
        (Edit("block / blocks_n * BLOCK_M", "block % blocks_n * BLOCK_M"),
         Edit("block % blocks_n * BLOCK_N", "block / blocks_n * BLOCK_N")),
        (CP2, LD1, GLOBAL), ("out-of-bounds", "race-between-blocks", "race"), "never written|guards",
    ),
    Mutant(
        "blocks-share-a-tile", "blocks write one tile of D without an order", "",
        (Edit("block % blocks_n * BLOCK_N", "0 * blocks_n"),), (CP2, LD1, GLOBAL), ("race-between-blocks",),
    ),
    Mutant(
        "tile-constants-swapped", "height and width of a block's tile are swapped", "",
        (Edit("constexpr int BLOCK_M = WARPS_M * WARP_M;", "constexpr int BLOCK_M = WARPS_N * WARP_N;"),
         Edit("constexpr int BLOCK_N = WARPS_N * WARP_N;", "constexpr int BLOCK_N = WARPS_M * WARP_M;")),
        (CP2, GROUPED, GROUPED_GLOBAL), ("out-of-bounds", "race-between-blocks", "poison-stored", "race"),
        unguarded=True,
    ),
    Mutant(
        "last-group", "the last group of block rows is as high as the others", "FlyDSL PR #979",
        (Edit("min(height, blocks_m - group * height)", "height"),),
        (GROUPED, GROUPED_GLOBAL, GROUPED.replace("grouped2", "grouped8")),
        ("race-between-blocks", "out-of-bounds"), "never written|guards",
    ),
    Mutant(
        "last-panel", "the last panel of block columns is as wide as the others", "FlyDSL PR #979",
        (Edit("min(width, blocks_n - panel * width)", "width"),),
        (PANELS, PANELS_GLOBAL, PANELS.replace("panels2", "panels8")),
        ("race-between-blocks", "out-of-bounds"), "never written|guards",
    ),
)  # fmt: skip

#: Sums, factors and the store.
_RESULTS = (
    Mutant(
        "sums-not-zeroed", "accumulators begin with whatever the registers hold", "tilelang #2617",
        (Edit(_ZEROED, "(void)0;"),), (CP3, LD1, GLOBAL), ("poison-stored",), visible=False,
    ),
    Mutant(
        "sums-zeroed-again", "accumulators are zeroed in every slice", "tilelang #2627",
        (Edit(_LOOP, f"{_EACH_SUM} wmma::fill_fragment(sum, 0.0f);"),),
        (CP3, LD1, LD2, GLOBAL),
        words="alone: the accumulators do not carry over|the last K slice|K slice 0 .* is missing",
    ),
    Mutant(
        "sums-onto-old-d", "the first slice adds to what D held before", "tilelang #2936",
        (Edit("    if (slice > 0) {\n      reload();\n    }", "    reload();"),), (PARKED, PARKED_CP),
        words="NaN|never written",
    ),
    Mutant(
        "half-sums", "sums of f32 pass through f16 in every slice", "cutlass #1188",
        (Edit(_LOOP, f"{_EACH_SUM}\n        for (auto& x : sum.x) x = __half2float(__float2half(x));"),),
        (CP3, LD1, GLOBAL), words=_WRONG,
    ),
    Mutant(
        "guessed-layout", "elements are stored where they lie on the cards of today", "",
        (Edit(_DIRECT, "for (int e = 0; e < Accumulator::num_elements; ++e) {\n"
              "        const int row = i * INST_M + thread % 32 / 4 + e / 2 % 2 * 8;\n"
              "        const int col = j * INST_N + thread % 4 * 2 + e % 2 + e / 4 * 8;\n"
              "        d_tile[static_cast<long long>(row) * ldd + col] = acc[i][j].x[e];\n      }"),),
        (CP3, LD1, GLOBAL), words=_WRONG, visible=False,
    ),
    Mutant(
        "element-by-number", "element 0 of lane 0 is taken for that of row 0 and column 0", "",
        (Edit("  // 5. Epilogue", "  if (thread % 32 == 0) acc[0][0].x[0] = 0.0f;\n  // 5. Epilogue"),),
        (CP3, LD1, LD1_STAGED), words=_WRONG,
    ),
    Mutant(
        "element-to-another-type", "elements are copied one by one into a fragment of another type", "ocannl #789",
        (Edit(_STORED, "wmma::fragment<wmma::accumulator, INST_M, INST_N, INST_K, __half> half_sums;\n"
              "      for (int e = 0; e < Accumulator::num_elements; ++e)\n"
              "        half_sums.x[e] = __float2half(acc[i][j].x[e]);\n"
              "      wmma::store_matrix_sync(reinterpret_cast<__half*>(strip + j * D_TILE), half_sums, 2 * LDS_D,\n"
              "                              wmma::mem_row_major);"),
         Edit("sums.of[e]", "__half2float(reinterpret_cast<const __half*>(strip + col / INST_N * D_TILE + "
              "strip_row * LDS_D)[col % INST_N + e])")),
        (LD1_STAGED, LD1_STAGED.replace("layout=cc", "layout=rr")), words=_WRONG, visible=False,
    ),
    Mutant(
        "truncated", "D is rounded towards zero", "",
        (Edit("__float2half(sums.of[e])",
              "__float2half(__uint_as_float(__float_as_uint(sums.of[e]) & 0xffffe000u))"),),
        (LD1_STAGED, LD1_STAGED.replace("layout=cc", "layout=rr")), words=_WRONG,
    ),
    Mutant(
        "tf32-unrounded", "floats are multiplied as tf32 without being rounded to it", "LeetCUDA #277",
        (Edit("    fragment.x[e] = wmma::__float_to_tf32(fragment.x[e]);\n", "    ;\n", 2),),
        (TF32, TF32_STAGED), words=_WRONG,
    ),
    Mutant(
        "bytes-with-a-sign", "bytes without a sign are multiplied as if they had one", "",
        (Edit("INST_K, unsigned char, wmma", "INST_K, signed char, wmma", 2),
         Edit("const unsigned char* a_tile = ", "const signed char* a_tile = (const signed char*)"),
         Edit("const unsigned char* b_tile = ", "const signed char* b_tile = (const signed char*)")),
        (U8, U8_SINGLE), words=_WRONG,
    ),
    Mutant(
        "rounded-before-c", "the product is rounded to f16 before C is added", "",
        (Edit("(alpha * sums.of[e] + beta", "(__half2float(__float2half(alpha * sums.of[e])) + beta"),),
        (CP4, LD2_STAGED, GLOBAL_STAGED), words=_WRONG,
    ),
    Mutant(
        "c-read-for-beta-0", "C is read where beta is 0", "blaspp #39",
        (Edit("if (beta == 0) {", "if (false) {"),),
        (CP4, LD1_LINEAR, GLOBAL_STAGED), words="C was read although beta is 0",
    ),
    Mutant(
        "c-left-out", "C is never added", "",
        (Edit("if (beta == 0) {", "if (true) {"),), (CP4, LD1_LINEAR, GLOBAL_STAGED), words="beta·C is missing",
    ),
    Mutant(
        "beta-ignored", "C is added as it is", "",
        (Edit("sums.of[e] + beta * ", "sums.of[e] + "),), (CP4, LD2_STAGED, GLOBAL_STAGED), words="beta was ignored",
    ),
    Mutant(
        "alpha-ignored", "the product is not scaled", "",
        (Edit("(alpha * ", "(", 2),), (CP4, LD2_STAGED, GLOBAL_STAGED), words="alpha was ignored|minus sign",
    ),
    Mutant(
        "alpha-twice", "the product is scaled twice", "",
        (Edit("(alpha * ", "(alpha * alpha * ", 2),), (CP4, LD2_STAGED, GLOBAL_STAGED), words=_WRONG,
    ),
    Mutant(
        "a-read-for-alpha-0", "A and B are read where alpha is 0", "cuda-samples text",
        (Edit("alpha == 0 ? 0 : K / BLOCK_K", "K / BLOCK_K"),),
        (CP4, LD1_LINEAR, GLOBAL_STAGED), words="A or B was read although alpha is 0",
    ),
    Mutant(
        "bias-in-part", "some rows go without their bias", "dfyz/cublaslt-bias-epilogue",
        (Edit("value = value + __half2float(bias_of_columns.of[e]);",
              "if (row % 16 < 12) value = value + __half2float(bias_of_columns.of[e]);"),),
        (CHAIN, CHAIN_CP, CHAIN_GELU), words="the step biascol is missing",
    ),
    Mutant(
        "chain-c-for-beta-0", "C is read before further steps where beta is 0", "blaspp #39",
        (Edit("beta == 0.0f ? alpha * value : ", ""), Edit("if (beta != 0) {", "if (true) {")),
        (CHAIN, CHAIN_CP, CHAIN_GELU), words="C was read although beta is 0",
    ),
    Mutant(
        "bias-by-row", "the bias of the columns is taken by the row", "openxla/xla #46897",
        (Edit("__half2float(bias_of_columns.of[e])", "__half2float(bias_col[(warp_row + row) % N])"),),
        (CHAIN, CHAIN_CP, CHAIN_GLOBAL), words="bias_col was read by the row and not by the column",
    ),
    Mutant(
        "bytes-wrapped", "bytes keep the lowest bits of what is beyond their ends", "onnxruntime #29727",
        (Edit("max(-128, min(127, __float2int_rn(value)))", "__float2int_rn(value)"),),
        (QUANTISED, QUANTISED.replace("scalecol+biascol", "linear")), words=_WRONG,
    ),
    Mutant(
        "bytes-below-zero", "bytes without a sign have the magnitude of what is below 0", "tt-metal PR #56327",
        (Edit("max(0, min(255, __float2int_rn(value)))", "min(255, abs(__float2int_rn(value)))"),),
        (QUANTISED_U8, QUANTISED_RELU), words=_WRONG,
    ),
    Mutant(
        "bytes-cut-off", "bytes are rounded towards zero", "tt-metal #51304",
        (Edit("__float2int_rn(value)", "__float2int_rz(value)"),), (QUANTISED, QUANTISED_U8), words=_WRONG,
    ),
    Mutant(
        "bias-before-scale", "a bias of sums is added to what has been scaled", "",
        (Edit("value = value + __int2float_rn(bias_of_columns.of[e]);", ""),
         Edit("value = value * scale_of_row;",
              "value = value * scale_of_row + __int2float_rn(bias_of_columns.of[e]);")),
        (QUANTISED_U8, QUANTISED_U8.replace("stages=1", "stages=2")), words="the step scalerow came before biascol",
    ),
    Mutant(
        "doubles-through-floats", "steps on doubles are computed in float", "",
        (Edit("double value = sums.of[e];", "float value = static_cast<float>(sums.of[e]);"),),
        (DOUBLES, DOUBLES_GELU), words=_WRONG,
    ),
    Mutant(
        "k-0-unwritten", "D keeps what it held where K is 0", "cutlass #2674",
        (Edit(_PLACE, f"  if (K == 0) return;\n{_PLACE}"),),
        (CP3, LD1, GLOBAL), words="D was never written",
    ),
    Mutant(
        "beyond-d", "D is written far behind its end", "pytorch #95542",
        (Edit("d_tile = D + ", "d_tile = D + (1LL << 40) + "),), (CP3, LD2_STAGED, GLOBAL), ("out-of-bounds",),
    ),
    Mutant(
        "beside-d", "D is written one instruction tile to the right", "",
        (Edit(_ROW_OF_D, f"{_ROW_OF_D} + INST_N"),),
        (CP3, LD2_STAGED, GLOBAL), words="guards",
    ),
    Mutant(
        "beyond-a", "A is read far behind its end", "",
        (Edit("a_from = A + ", "a_from = A + (1LL << 24) + "),), (CP2, LD1, LD2), ("out-of-bounds",),
    ),
    Mutant(
        "zeros", "nothing is multiplied", "",
        (Edit(_PRODUCT, ""),), (CP2, LD1, GLOBAL),
        words="every element is zero: the accumulators were stored without a product",
    ),
    Mutant(
        "nan", "one NaN is in every sum", "",
        (Edit(_ZEROED, "wmma::fill_fragment(acc[i][j], nanf(\"\"));"),),
        (CP3, LD1, GLOBAL), words="all elements are NaN",
    ),
    Mutant(
        "nothing", "the kernel's body is of another architecture and empty here", "Cytnx #1171",
        (Edit(_PLACE, f"  if (gridDim.x > 0) return;\n{_PLACE}"),), (CP3, LD1, GLOBAL),
        words="D was never written: nothing was launched",
    ),
    Mutant(
        "endless", "the main loop never ends", "helion PR #2111",
        (Edit(_LOOP, f"{_LOOP}\n    if (slice > 0) slice = 0;"),), (LD2, LD1), ("out-of-bounds",), "did not end",
    ),
)  # fmt: skip

_IN_HALVES = "__half2float(__float2half(value))"

#: A function of an argument that was rounded, which is right wherever the argument was a rounded one.
_ARGUMENTS = (
    Mutant(
        "cdf-of-whole", "the distribution function of GELU is that of the nearest whole number", "",
        (Edit("normal_cdf(value)", "normal_cdf(rintf(value))"),), (GELU, GELU_DIRECT, CHAIN_GELU), words=_WRONG,
    ),
    Mutant(
        "cdf-of-steps", "the distribution function of GELU is looked up in steps of a half", "",
        (Edit("normal_cdf(value)", "normal_cdf(0.5f * rintf(2.0f * value))"),), (GELU_DIRECT, GELU, CHAIN_GELU),
        words=_WRONG,
    ),
    Mutant(
        "cdf-in-f16", "the distribution function of GELU is that of a sum that was rounded to f16", "",
        (Edit("normal_cdf(value)", f"normal_cdf({_IN_HALVES})"),), (GELU, GELU_DIRECT), words=_WRONG,
    ),
    Mutant(
        "silu-of-whole", "the exponential of SiLU is that of the nearest whole number", "",
        (Edit("expf(-value)", "expf(-rintf(value))"),), (SILU_DIRECT, SILU), words=_WRONG,
    ),
    Mutant(
        "silu-in-f16", "the exponential of SiLU is that of a sum that was rounded to f16", "keras-hub PR #1540",
        (Edit("expf(-value)", f"expf(-{_IN_HALVES})"),), (SILU, SILU_DIRECT), words=_WRONG,
    ),
    Mutant(
        "silu-cancels", "SiLU takes one less the sigmoid of -x, which is nearly one below 0", "tiny-llm #164",
        (Edit("ratio(value, 1.0f + expf(-value))", "value * (1.0f - 1.0f / (1.0f + expf(value)))"),),
        (SILU_DIRECT, SILU), words=_WRONG,
    ),
    Mutant(
        "gelutanh-of-steps", "the exponential of GELU by tanh is that of a multiple of a half", "",
        (Edit("* (value + 0.044715f", "* (0.5f * rintf(2.0f * value) + 0.044715f"),), (GELUTANH_DIRECT, GELUTANH),
        words=_WRONG,
    ),
    Mutant(
        "gelutanh-in-f16", "the exponential of GELU by tanh is that of a sum that was rounded to f16", "",
        (Edit("* (value + 0.044715f", f"* ({_IN_HALVES} + 0.044715f"),), (GELUTANH, GELUTANH_DIRECT), words=_WRONG,
    ),
    Mutant(
        "tail-of-few-digits", "far below 0 GELU has a coefficient of five digits", "",
        (Edit("fmaf(p, t, 0.137118146f)", "fmaf(p, t, 0.13712f)"),), (GELU_DIRECT, GELU.replace(",d=f16", "")),
        words=_WRONG,
    ),
    Mutant(
        "exp-of-whole", "exp takes a whole number", "",
        (Edit("expf(value / 16.0f)", "expf(rintf(value) / 16.0f)"),), (FORMULA, FORMULA_HALVES), words=_WRONG,
    ),
    Mutant(
        "erf-of-steps", "erf takes multiples of a half", "",
        (Edit("erff(bias_of_columns.of[e])", "erff(0.5f * rintf(2.0f * bias_of_columns.of[e]))"),),
        (FORMULA, FORMULA_HALVES), words=_WRONG,
    ),
    Mutant(
        "tanh-of-whole", "tanh takes a whole number", "",
        (Edit("tanhf(value)", "tanhf(rintf(value))"),), (FORMULA, FORMULA_HALVES), words=_WRONG,
    ),
    Mutant(
        "sqrt-of-whole", "sqrt takes a whole number", "",
        (Edit("sqrtf(fabsf(value)", "sqrtf(rintf(fabsf(value))"),), (FORMULA, FORMULA_HALVES), words=_WRONG,
    ),
    Mutant(
        "exp-in-f32", "the exponential of a double is that of the nearest float", "",
        (Edit("exp(-value)", "exp(-static_cast<double>(static_cast<float>(value)))"),),
        (DOUBLES_SILU, DOUBLES_SILU.replace("direct", "staged")), words=_WRONG,
    ),
)  # fmt: skip

#: Products of a batch. A stride in 32 bits has no row, as no other offset has one.
_BATCHES = (
    Mutant(
        "a-of-first-product", "every product reads the first A", "llm.c #171",
        (Edit("  A += product * stride_a;\n", ""),), (STRIDED, STRIDED_LINEAR, STRIDED_GROUPED),
        words="A is that of product 0",
    ),
    Mutant(
        "d-of-first-product", "every product is stored in the first D", "CLBlast #346",
        (Edit("  D += product * stride_d;\n", ""),), (STRIDED, STRIDED_LINEAR, STRIDED_GROUPED),
        ("race-between-blocks",),
    ),
    Mutant(
        "stride-of-another", "B moves by A's stride, which square products hide", "cudnn-frontend PR #223",
        (Edit("B += product * stride_b;", "B += product * stride_a;"),), (STRIDED, STRIDED_LINEAR, STRIDED_GROUPED),
        ("out-of-bounds",), _PRODUCT_WRONG,
    ),
    Mutant(
        "stride-of-c", "C moves by the stride of another matrix", "cutlass #178",
        (Edit("C += product * stride_c;", "C += product * stride_a;"),), (STRIDED_LINEAR, STRIDED_LINEAR_RR),
        ("out-of-bounds",), _PRODUCT_WRONG,
    ),
    Mutant(
        "only-first-product", "all products but the first are left out", "ggml #1448",
        (Edit(_PLACE, f"  if (blockIdx.y > 0) return;\n{_PLACE}"),), (STRIDED, STRIDED_GROUPED, POINTERS),
        words=r"product 1 of 0 to \d+, the first of .*\n.*\n.*D was never written",
    ),
    Mutant(
        "product-by-block", "the number of a block is taken for that of its product", "",
        (Edit("product = blockIdx.y;", "product = blockIdx.x;"),), (STRIDED, STRIDED_LINEAR, STRIDED_GROUPED),
        ("out-of-bounds", "race-between-blocks"), _PRODUCT_WRONG,
    ),
    Mutant(
        "raster-over-batch", "groups of blocks are counted over all products", "",
        (Edit("static_cast<int>(gridDim.x)", "static_cast<int>(gridDim.x * gridDim.y)"),),
        (STRIDED_GROUPED, POINTERS_PANELS), ("race-between-blocks", "out-of-bounds"), "never written|guards",
    ),
    Mutant(
        "offset-on-array", "the place of a block is counted in pointers of the array", "rocm-libraries PR #11334",
        (Edit("As[blockIdx.y]", "As[blockIdx.y + block_row]"),), (POINTERS, POINTERS_LINEAR), ("out-of-bounds",),
        visible=False,
    ),
    Mutant(
        "first-pointer", "every product reads the first pointer to B", "",
        (Edit("Bs[blockIdx.y]", "Bs[0]"),), (POINTERS, POINTERS_LINEAR), words="B is that of product 0",
    ),
    Mutant(
        "pointers-swapped", "A's pointers are taken for B's", "",
        (Edit("? Bs[", "? As["),), (POINTERS, POINTERS_LINEAR), ("out-of-bounds",), _PRODUCT_WRONG,
    ),
    Mutant(
        "array-one-off", "the array is read one pointer too far", "",
        (Edit("Ds[blockIdx.y]", "Ds[blockIdx.y + 1]"),), (POINTERS, POINTERS_LINEAR), ("out-of-bounds",),
        visible=False,
    ),
    Mutant(
        "array-of-nothing-read", "the array of a matrix that does not count is read", "",
        (Edit("beta != 0 ? Cs[blockIdx.y] : nullptr", "Cs[blockIdx.y]"),), (POINTERS_LINEAR, POINTERS_STAGED),
        ("out-of-bounds",), visible=False,
    ),
    Mutant(
        "bias-of-first-product", "every product adds the first bias, whatever its stride is", "rocm-libraries PR #7512",
        (Edit("  bias_col += product * stride_bias_col;\n", ""),),
        (STRIDED_CHAIN, STRIDED_CHAIN.replace("layout=rr", "layout=rc")), words="bias_col is that of product 0",
    ),
    Mutant(
        "bias-pointers-swapped", "the array of one bias is taken for that of the other", "",
        (Edit("in_global(bias_cols[", "in_global(bias_rows["),),
        (POINTERS_CHAIN, POINTERS_CHAIN.replace("layout=rr", "layout=cr")), ("out-of-bounds",), _PRODUCT_WRONG,
    ),
)  # fmt: skip

_TICKET = "atomicInc(count, SPLIT_K - 1) == SPLIT_K - 1"

#: Blocks that share a tile of D along K, and how their sums meet.
_SPLITS = (
    Mutant(
        "split-unfenced", "a block takes its ticket before its sums are there for others", "CUDA guide text",
        (Edit("__threadfence();  // whoever sees", "// whoever sees"),),
        (MET, MET_LD, MET_GLOBAL), ("race-between-blocks",), visible=False,
    ),
    Mutant(
        "split-read-unfenced", "the last block reads sums that may be old ones", "composable_kernel PR #3625",
        (Edit("__threadfence();                      // the sums", "// the sums"),),
        (MET, MET_LD, MET_GLOBAL), ("race-between-blocks",), visible=False,
    ),
    Mutant(
        "split-barrier", "one thread takes the ticket while others still store their sums", "riptutorial CUDA 17567",
        (Edit("__syncthreads();\n  unsigned* count", "unsigned* count"),),
        (MET, MET_LD, MET_GLOBAL), ("race-between-blocks",), visible=False,
    ),
    Mutant(
        "split-count-left", "the count of blocks is not set back for the launch that follows", "",
        (Edit(_TICKET, "atomicAdd(count, 1u) == SPLIT_K - 1"),),
        (MET, MET_LD, MET_GLOBAL), words="count of blocks is not 0 again",
    ),
    Mutant(
        "split-ticket-early", "the last but one adds the sums", "",
        (Edit(_TICKET, "atomicInc(count, SPLIT_K - 1) == SPLIT_K - 2"),),
        (MET, MET_LD, MET_GLOBAL), ("race-between-blocks",), visible=False,
    ),
    Mutant(
        "split-sums-of-one", "the sums of one split are added as often as there are splits", "",
        (Edit("warp_work + part * PARTIAL", "warp_work + split * PARTIAL"),),
        (MET, MET_LD, MET_GLOBAL), words=_WRONG,
    ),
    Mutant(
        "split-rest-dropped", "slices that are too many for equal shares are nobody's", "",
        (Edit("each + (split < left_over ? 1 : 0)", "each"),),
        (MET, MET_LD, ADDED, ADDED_CP), words="every element is zero|is missing|" + _WRONG,
    ),
    Mutant(
        "split-tail-of-first", "each split counts what is left of K from its own beginning on",
        "rocm-libraries PR #7199",
        (Edit("K - (first_slice + slice) * BLOCK_K", "K - slice * BLOCK_K"),),
        (MET_EDGE, MET_EDGE.replace("layout=rr", "layout=rc")), ("out-of-bounds",), "read outside A or B|" + _WRONG,
    ),
    Mutant(
        "split-inner-of-all", "each split takes as many slices for whole ones as all of them have", "",
        (Edit("min(K / BLOCK_K - first_slice, slices)", "min(K / BLOCK_K, slices)"),),
        (MET_EDGE, ADDED_EDGE), ("out-of-bounds",), "read outside A or B|" + _WRONG,
    ),
    Mutant(
        "split-batch-in-one-place", "products of a batch leave their sums in one place", "",
        (Edit("(static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x)", "static_cast<long long>(blockIdx.x)"),),
        (MET_BATCH, MET_BATCH.replace("layout=rr", "layout=rc")), ("race-between-blocks",), visible=False,
    ),
)  # fmt: skip

#: Groups of warps that share the steps of a slice, and how their sums meet.
_GROUPS = (
    Mutant(
        "group-slice-barrier", "sums are left where other warps still read the last slice", "cccl PR #2699",
        (Edit(f"{_BARRIER}  // every warp has read the last slice", "// every warp has read the last slice"),),
        (SLICED_CP, SLICED_LD), ("race",), visible=False,
    ),
    Mutant(
        "group-sums-barrier", "sums of another group are added before they are there", "NVIDIA/Fuser PR #489",
        (Edit(f"{_BARRIER}  // the sums of all groups", "// the sums of all groups"),),
        (SLICED_CP, SLICED_LD, SLICED_DIRECT), ("race", "early-read"), visible=False,
    ),
    Mutant(
        "group-strip-barrier", "sums on their way to D overwrite those that another group still adds", "cuml PR #6578",
        (Edit(f"{_BARRIER}  // every warp has the sums", "// every warp has the sums"),),
        (SLICED_CP, SLICED_LD), ("race",), visible=False,
    ),
    Mutant(
        "group-wrong-plane", "warps of the second group begin behind the tile of the block", "cutlass #3496",
        (Edit("const int member = warp % (WARPS_M * WARPS_N);", "const int member = warp % (WARPS_M * WARP_N);"),),
        (SLICED_CP, SLICED_LD, SLICED_DIRECT), ("out-of-bounds", "race", "early-read"), _WRONG,
    ),
    Mutant(
        "group-sums-alone", "each group stores its own sums as if they were all", "cutlass PR #3651",
        (Edit("behind < WARPS_K - 1; ++behind", "behind < 0; ++behind"),),
        (SLICED_CP, SLICED_LD, SLICED_DIRECT), words=_WRONG,
    ),
    Mutant(
        "group-same-steps", "every group makes the steps of the first one", "cutlass #3537",
        (Edit("tile += warp_k * GROUP_STEPS", "tile += 0 * GROUP_STEPS", 2),),
        (SLICED_CP, SLICED_LD, SLICED_DIRECT), words=_WRONG,
    ),
    Mutant(
        "group-rows-of-all", "every group stores all rows of tiles, also those whose sums it does not have", "",
        (Edit("    if (i % WARPS_K != warp_k) continue;  // another group's\n", "", 2),),
        (SLICED_CP, SLICED_LD, SLICED_DIRECT), ("race", "out-of-bounds", "early-read"), _WRONG, visible=False,
    ),
    Mutant(
        "group-next-place", "sums are left where those of the next group are looked for", "",
        (Edit("(warp_k + WARPS_K - 1 - i % WARPS_K)", "(warp_k + WARPS_K - i % WARPS_K)"),),
        (SLICED_CP, SLICED_DIRECT), words=_WRONG,
    ),
)  # fmt: skip

#: Parts of tiles, of slices and of copies, where sizes are no multiples.
_EDGES = (
    Mutant(
        "edge-k-not-zeroed", "what lies behind the end of K is copied and summed", "",
        (Edit("const int depth = K - slice * BLOCK_K;", "const int depth = BLOCK_K;"),),
        (EDGE_CP, EDGE_AHEAD, EDGE_LD1, EDGE_LD2), ("out-of-bounds",), "read outside A or B|" + _WRONG,
    ),
    Mutant(
        "edge-element-too-many", "the element behind the last one of a row counts as one inside", "",
        (Edit("min(cols - col, most)", "min(cols - col + 1, most)"),),
        (EDGE_CP, EDGE_AHEAD, EDGE_LD1, EDGE_LD2), ("out-of-bounds", "race-between-blocks"),
        "guard elements overwritten|read outside A or B|" + _WRONG,
    ),
    Mutant(
        "edge-stored-whole", "a part of a tile is stored as if D went on", "",
        (Edit("const int count = inside(row, d_rows, col, d_cols, ALIGN_D);", "const int count = ALIGN_D;"),),
        (EDGE_CP, EDGE_AHEAD, EDGE_LD1, EDGE_LD2), ("out-of-bounds", "race-between-blocks"),
        "guard elements overwritten|" + _WRONG,
    ),
    Mutant(
        "edge-copies-early", "a slice at an edge is copied into a stage that other warps still read", HERE,
        (Edit(f"{_WAITED}{_FILL}", f"{_FILL}{_WAITED}"),),
        (EDGE_CP, EDGE_CP_STAGED), ("race",), visible=False,
    ),
    Mutant(
        "edge-read-without-alpha", "the first slices are copied where alpha is 0 and there are none to sum", HERE,
        (Edit("    if (stage < slices) {\n      if (whole", "    if (stage < max(slices, inner)) {\n      if (whole"),),
        (EDGE_CP_STAGED, EDGE_AHEAD_SCALED), ("early-write", "early-read", "race"), _WRONG, visible=False,
    ),
    Mutant(
        "edge-summed-without-alpha", "slices that nobody has copied are summed where alpha is 0", HERE,
        (Edit("min(inner, slices) - (STAGES - 1)", "inner - (STAGES - 1)"),),
        (EDGE_CP_STAGED, EDGE_AHEAD_SCALED), ("poison-stored", "early-read"), _WRONG, visible=False,
    ),
    Mutant(
        "edge-idle-warps-leave", "warps whose tiles lie behind D return before barriers of all", "flashinfer PR #2996",
        (Edit(_PLACE, f"  if (warp_row >= M) return;\n{_PLACE}"),), (EDGE_CP, EDGE_AHEAD, EDGE_LD2),
        ("barrier-divergence", "poison-stored", "race", "early-read"), _WRONG, visible=False,
    ),
    Mutant(
        "edge-bias-whole", "the bias of columns is read past its end at the right edge, and stored nowhere",
        "tattletale PR #53",
        (Edit("part_of<Added>(bias_col + own_col, inside(0, 1, own_col, N, ALIGN_D))",
              "*reinterpret_cast<const Added*>(bias_col + own_col)"),),
        (EDGE_CHAIN, EDGE_CHAIN_CP), ("out-of-bounds",), visible=False,
    ),
    Mutant(
        "edge-bias-of-no-row", "the bias of rows is read past its end at the lower edge", "tt-metal #57359",
        (Edit("row < d_rows ? __half2float(bias_row", "true ? __half2float(bias_row"),),
        (EDGE_CHAIN, EDGE_CHAIN_CP), ("out-of-bounds",), visible=False,
    ),
    Mutant(
        "edge-residual-whole", "R is read past its end where D has a part of a vector", "",
        (Edit("part_of<Added>(r_tile + static_cast<long long>(row) * ldr + col, count)",
              "*reinterpret_cast<const Added*>(r_tile + static_cast<long long>(row) * ldr + col)"),),
        (EDGE_CHAIN, EDGE_CHAIN_CP), ("out-of-bounds",), visible=False,
    ),
)  # fmt: skip

#: All of them, in the order of a table.
MUTANTS: tuple[Mutant, ...] = (
    *_BARRIERS, *_PIPELINE, *_ADDRESSES, *_LAYOUTS, *_TILES, *_RESULTS, *_ARGUMENTS, *_BATCHES, *_SPLITS, *_GROUPS,
    *_EDGES,
)  # fmt: skip
KINDS: dict[str, Mutant] = {mutant.kind: mutant for mutant in MUTANTS}
