"""The lint on what the compiler really makes: committed kernels are clean, and kernels that were spoilt are caught."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cases_legality import config

from tests import shipped
from tests.shipped import own, rendered
from wmmagen import cli, coverage, known, lint, nvrtc, rules, sass, trial
from wmmagen.arch import ARCHS
from wmmagen.config import KernelConfig
from wmmagen.errors import DisassemblyError, MissingPiece
from wmmagen.instructions import INSTRUCTIONS, Instruction
from wmmagen.known import Winner
from wmmagen.nvrtc import Binary
from wmmagen.render import render

try:
    sass.locate()
except MissingPiece as missing:
    pytest.skip(f"{missing.message}: {missing.fix}", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("compiled_once", "headers_once")


def report(case: KernelConfig, binary: Binary) -> lint.Report:
    found = lint.examine(case, binary)
    assert found.undone == ""
    return found


def spoilt(pairs: str, sm: int, old: str, new: str) -> lint.Report:
    """The report on the kernel of ``pairs`` whose text has ``new`` in place of ``old``."""
    case = config(pairs)
    source = render(case, ARCHS[sm])
    assert old in source.text
    return report(case, nvrtc.compile_source(source.text.replace(old, new), source.kernel, ARCHS[sm]))


@pytest.mark.parametrize("name", shipped.NAMES)
def test_the_committed_kernels_have_no_defect(name: str) -> None:
    case, home = shipped.config_of(name), shipped.arch_of(name)
    assert case in shipped.made_for(home.sm)
    for target in (ARCHS[sm] for sm in (home.sm, 120) if case in shipped.made_for(sm)):
        found = report(case, own(rendered(shipped.made_for(target.sm), target.sm), render(case, target).kernel))
        assert found.defects == ()
        assert found.figures is not None
        assert found.figures.integer > 0
        # Tensor cores take 8x8x4 whole, of all others halves or, on Turing, quarters.
        per_product = 1 if case.operation.a.name == "f64" else 4 if target.sm == 75 else 2
        step = case.frags.m * case.frags.n * case.k_steps // case.warps_k * per_product
        assert found.figures.matrix % step == 0


#: Winners of sweeps that are looked at here; ``prove_lint.py`` looks at all of them.
SAMPLE = known.winners()[:: len(known.winners()) // 3 + 1]


@pytest.mark.parametrize("winner", SAMPLE, ids=lambda winner: "x".join(map(str, winner.size)))
def test_known_winners_have_no_defect(winner: Winner) -> None:
    together = rendered(tuple(one.config for one in SAMPLE if one.arch == winner.arch), winner.arch.sm)
    found = report(winner.config, own(together, render(winner.config, winner.arch).kernel))
    assert (found.defects, found.figures is None) == ((), False)


def test_a_kernel_for_all_sizes_has_the_main_loop_of_one_for_multiples() -> None:
    """What looks at edges stands outside of it; in it, a few instructions tell when the next edge is due."""
    pairs = "copy=cpasync,stages=3,fragment_buffers=2,frags=2x2,raster=panels8"
    cases = tuple(config(f"{pairs},residue={residue}") for residue in ("exact", "predicated"))
    exact, every = (report(case, own(rendered(cases, 90), render(case, ARCHS[90]).kernel)) for case in cases)
    assert (exact.defects, every.defects) == ((), ())
    assert exact.figures is not None and every.figures is not None
    assert every.figures.accesses == exact.figures.accesses
    assert every.figures.instructions <= exact.figures.instructions + 8


FEEDS = ("copy=ld,stages=1", "copy=ld,stages=2", "feed=global,copy=none,stages=1,pad_a=0,pad_b=0")


@pytest.mark.parametrize("sm", [75, 80, 86, 90, 100, 120])
@pytest.mark.parametrize("feed", FEEDS)
def test_every_architecture_can_be_read(sm: int, feed: str) -> None:
    cases = {feed: config(f"{feed},frags=2x2") for feed in FEEDS}
    case = cases[feed]
    assert coverage.missing(case) == []
    binary = own(rendered(tuple(cases.values()), sm), render(case, ARCHS[sm]).kernel)
    found = report(case, binary)
    # For sm_100 NVRTC 13.5 spills four registers of one of them to hold one block more.
    assert [text for text in found.defects if "local memory" not in text] == []
    assert (found.defects != ()) is (binary.spill_bytes > 0)
    assert found.figures is not None
    assert set(found.figures.accesses) - {"LDL.32"} == (
        {"LDG.32"} if "global" in feed else {"LDG.128", "STS.128", "LDSM.M88", "LDSM.MT88"}
    )


#: Staged and from global memory, what a fragment's byte is loaded by, and the rules that refuse such kernels. From
#: global memory fragments along K are refused as well: steps of 16 bytes are half of an alignment.
ACROSS = ("T122", "T123")
SINGLE = {
    "copy=ld,stages=1,pad_a=16,pad_b=16,arrange_a=tiles,arrange_b=tiles": ("LDS.8", ACROSS),
    FEEDS[-1]: ("LDG.8", (*ACROSS, "P303", "P304")),
}


@pytest.mark.parametrize("feed", SINGLE)
def test_bytes_that_lie_across_k_are_loaded_one_by_one(feed: str) -> None:
    """What T122 and T123 refuse, and nothing else, is loaded so: each operand that lies across, none along K."""
    load, spared = SINGLE[feed]
    what = f"a=s8,acc=s32,d=s32,warps=1x1,frags=2x2,k_steps=1,{feed}"
    cases = tuple(config(f"{what},layout={layout}") for layout in ("rc", "rr", "cr", "cc"))
    binary = rendered(cases, 90, spared)
    for case in cases:
        found = report(case, own(binary, render(case, ARCHS[90]).kernel))
        assert found.defects == () and found.figures is not None
        refused = [violation.rule.id for violation in rules.check(case, ARCHS[90])]
        # Of each operand a thread holds two fragments of 8 bytes, for 4 products of two instructions each.
        slices, rest = divmod(found.figures.matrix, 4 * 2)
        assert (rest, found.figures.accesses.get(load, 0)) == (0, sum(id in ACROSS for id in refused) * 2 * 8 * slices)


# Spoilt kernels ------------------------------------------------------------------------------------------------------

POINTERS = """
    const __half* bases[2] = {shared, A};
    const __half* a_tile = bases[lda == 7] + slice % STAGES * A_STAGE + warp_m * FRAGS_M * A_STEP_M;"""


def test_a_base_that_may_be_any_memory_is_caught() -> None:
    plain = "\n    const __half* a_tile = shared + slice % STAGES * A_STAGE + warp_m * FRAGS_M * A_STEP_M;"
    told = spoilt("frags=2x2", 80, plain, POINTERS).defects
    assert any("generic accesses in the main loop" in text for text in told)
    assert any("holds no LDSM.M88" in text for text in told)


def test_spills_are_caught() -> None:
    case = config("frags=4x4,warps=2x2")
    source = render(case, ARCHS[80])
    tight = source.text.replace("__launch_bounds__(THREADS, MIN_BLOCKS)", "__launch_bounds__(THREADS, 8)")
    assert tight != source.text
    binary = nvrtc.compile_source(tight, source.kernel, ARCHS[80])
    assert binary.spill_bytes > 0
    told = report(case, binary).defects
    assert any("are spilled" in text for text in told)
    assert any("local memory in the main loop" in text for text in told)


def test_sums_that_are_indexed_at_run_time_are_caught() -> None:
    told = spoilt("frags=4x2", 80, "sync(acc[i][j], a[i]", "sync(acc[(i + lda) & 3][j], a[i]")
    assert any("local memory in the main loop" in text for text in told.defects)
    assert any("bytes of stack" in text for text in told.defects)


def test_copies_of_halves_are_caught() -> None:
    told = spoilt(
        "copy=ld,stages=2,frags=2x2", 80,
        "      a_held[i] = *reinterpret_cast<const int4*>(a_from + i * a_step);",
        "      const int2* from = reinterpret_cast<const int2*>(a_from + i * a_step);\n"
        "      a_held[i] = make_int4(__ldcg(from).x, __ldcg(from).y, __ldcg(from + 1).x, __ldcg(from + 1).y);",
    )  # fmt: skip
    assert any("copies by" in text and "LDG.64" in text for text in told.defects)


def test_sums_that_groups_pass_on_in_narrow_accesses_are_caught() -> None:
    pairs = "copy=cpasync,stages=3,frags=2x2,k_steps=4,warps_k=2"
    assert report(config(pairs), trial.build(config(pairs), ARCHS[80])[1]).defects == ()
    whole, each = "*at(behind, i, j, pass) = sums;", "reinterpret_cast<volatile float*>(at(behind, i, j, pass))[e]"
    told = spoilt(pairs, 80, whole, f"for (int e = 0; e < ACC_VECTOR; ++e) {each} = sums.of[e];").defects
    assert told == ("groups of warps pass their sums on by 0 STS.128 of 8 that are promised",)


def test_products_that_are_left_out_are_caught() -> None:
    told = spoilt("frags=2x2,k_steps=1", 80, "wmma::mma_sync(acc", "if (i + j < 2) wmma::mma_sync(acc")
    assert any("no multiple of the 4 products 16x16x16" in text for text in told.defects)


def test_a_kernel_without_products_is_caught() -> None:
    told = spoilt("frags=2x2", 80, "wmma::mma_sync(acc[i][j], a[i], b[j], acc[i][j]);", "")
    assert told.figures is None
    assert any("no loop holds a matrix instruction" in text for text in told.defects)


# The table -----------------------------------------------------------------------------------------------------------

HEAD = """
#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda;
"""
#: One warp, one product a slice, by the C++ calls alone.
PLAIN = """
extern "C" __global__ void {entry}(const {storage}* __restrict__ A, const {storage}* __restrict__ B,
                                   {sum}* __restrict__ D, int K, int ldd) {{
  extern __shared__ __align__(128) {storage} {entry}_shared[];
  {storage}* shared = {entry}_shared;
  wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {fragment}, wmma::{order_a}_major> a;
  wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {fragment}, wmma::{order_b}_major> b;
  wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {sum}> acc;
  wmma::fill_fragment(acc, {zero});
#pragma unroll 1
  for (int slice = 0; slice < K; ++slice) {{
    reinterpret_cast<int4*>(shared)[threadIdx.x] = reinterpret_cast<const int4*>(A)[threadIdx.x + slice * 32];
    reinterpret_cast<int4*>(shared)[threadIdx.x + 32] = reinterpret_cast<const int4*>(B)[threadIdx.x + slice * 32];
    __syncthreads();
    wmma::load_matrix_sync(a, shared, 48);
    wmma::load_matrix_sync(b, shared + 1024, 48);
    wmma::mma_sync(acc, a, b, acc);
    __syncthreads();
  }}
  wmma::store_matrix_sync(D, acc, ldd, wmma::mem_row_major);
}}
"""
PROMISED = tuple(row for row in INSTRUCTIONS if row.a.name in ("f16", "s8", "u8"))
LOST = tuple(row for row in INSTRUCTIONS if row.a.name in ("bf16", "tf32", "f64"))


def entry_of(row: Instruction, layout: str) -> str:
    return f"{row.a.name}_{row.acc.name}_{row.m}x{row.n}x{row.k}_{layout}"


def kernel_of(row: Instruction, layout: str) -> str:
    words = {"r": "row", "c": "col"}
    return PLAIN.format(
        entry=entry_of(row, layout), storage=row.a.storage, fragment=row.a.fragment, sum=row.acc.storage,
        zero=row.acc.zero, m=row.m, n=row.n, k=row.k, order_a=words[layout[0]], order_b=words[layout[1]],
    )  # fmt: skip


@functools.cache
def together(rows: tuple[Instruction, ...], layouts: tuple[str, ...], sm: int) -> Binary:
    """The kernels of all ``rows`` and ``layouts``: headers are read, and nvdisasm starts, once for all of them."""
    kernels = [kernel_of(row, layout) for row in rows for layout in layouts]
    return nvrtc.compile_source(HEAD + "".join(kernels), entry_of(rows[0], layouts[0]), ARCHS[sm])


def plain(row: Instruction, layout: str, binary: Binary) -> lint.Report:
    """The report on one of the kernels of ``binary``."""
    case = config(
        f"a={row.a.name},acc={row.acc.name},d={row.acc.name},inst={row.shape},layout={layout},"
        "warps=1x1,frags=1x1,k_steps=1,copy=ld,stages=1"
    )
    return report(case, own(binary, entry_of(row, layout)))


@pytest.mark.parametrize("sm", [75, 120])
@pytest.mark.parametrize("row", PROMISED, ids=str)
def test_the_c_calls_become_what_the_table_promises(row: Instruction, sm: int) -> None:
    layouts = ("rr", "cc")
    for layout in layouts:
        assert plain(row, layout, together(PROMISED, layouts, sm)).defects == (), layout


@pytest.mark.parametrize("row", LOST, ids=str)
def test_where_the_c_calls_lose_the_address_space_the_lint_says_so(row: Instruction) -> None:
    told = plain(row, "rc", together(LOST, ("rc",), 90)).defects
    assert any("generic accesses in the main loop" in text for text in told)
    assert any("which loads of its fragments from shared memory must become" in text for text in told)
    # The stores of bf16's sums are those of f16's.
    assert any("around the main loop" in text for text in told) is ("tiles" in row.hidden)


# compile -------------------------------------------------------------------------------------------------------------


def test_compile_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compile", "frags=2x2", "--arch", "sm_80", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["lint"] == []
    assert document["lint_undone"] is None
    assert document["sass"]["matrix_instructions"] > 0
    assert document["sass"]["accesses"]["LDSM.M88"] > 0
    assert cli.run(["compile", "frags=2x2", "--arch", "sm_80"]) == 0
    said = capsys.readouterr().out
    assert f"  main loop        {document['sass']['matrix_instructions']} matrix, " in said
    assert f"  lint             no defect ({document['sass']['disassembler']})" in said


def test_compile_without_nvdisasm_says_what_brings_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> Path:
        raise MissingPiece("nvdisasm is not here", sass.INSTALL)

    monkeypatch.setattr(sass, "locate", absent)
    assert cli.run(["compile", "frags=2x2", "--arch", "sm_80", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["sass"] is None
    assert document["lint_undone"] == "nvdisasm is not here: pip install 'cuda-toolkit[nvdisasm]'"
    assert cli.run(["compile", "frags=2x2", "--arch", "sm_80"]) == 0
    said = capsys.readouterr().out
    assert "  lint             not done: nvdisasm is not here: pip install 'cuda-toolkit[nvdisasm]'" in said
    assert "no defect" not in said


def test_a_cubin_that_is_none_is_refused() -> None:
    with pytest.raises(DisassemblyError, match="refuses the cubin"):
        sass.disassemble(sass.locate(), b"no cubin")
    case = config("frags=2x2")
    _, binary = trial.build(case, ARCHS[80])
    found = lint.examine(case, replace(binary, cubin=b""))
    assert found.figures is None
    assert "refuses the cubin" in found.undone
