"""Counts beside their minima: the arithmetic, on counts that were made up, and what is printed of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from wmmagen import derive, inspection, rules, show
from wmmagen.arch import ARCHS
from wmmagen.config import Epilogue, KernelConfig, Problem
from wmmagen.defaults import read_config
from wmmagen.errors import IllegalConfig, RequestError
from wmmagen.executor import Counts
from wmmagen.inspection import Figure, Inspection, Least, plain
from wmmagen.lint import Report

SM80 = ARCHS[80]
#: A block tile of 64x16 in two warp tiles of 32x16.
BASE = "warps=2x1,frags=2x1,k_steps=2,inst=16x16x16"
STAGED = read_config(f"{BASE},copy=cpasync,stages=3,store=direct", SM80)
SIZE = (128, 32, 128)
UNREAD = Report((), None, "nvdisasm is not here")
COUNTS = Counts(
    warps=8,
    global_load_sectors=5120,
    global_store_sectors=512,
    shared_load_wavefronts=1536,
    shared_store_wavefronts=640,
    shared_load_conflicts=768,
    tensor_instructions=128,
    multiply_adds=128 * 32 * 128,
    instructions=Counter({"integer": 320, "matrix product": 128, "move": 64}),
    block_barriers=20,
    stored_bytes=16384,
    distinct_stored_bytes=16384,
)


def problem_of(config: KernelConfig, **factors: float) -> Problem:
    return replace(Problem.packed(config.operation, *SIZE), **factors)


def inspected(counts: Counts = COUNTS, config: KernelConfig = STAGED) -> Inspection:
    return Inspection(config, problem_of(config), counts, UNREAD)


def figure(one: Inspection, key: str) -> Figure:
    (found,) = (figure for figure in one.figures if figure.key == key)
    return found


def test_the_least_of_staged_tiles() -> None:
    least = inspection.minima(STAGED, problem_of(STAGED))
    # A of 128x128 and B of 128x32 in f16; four block tiles that load 64 rows and 16 columns of them.
    assert least["global_load_sectors"] == Least((128 + 32) * 128 * 2 / 32, 4 * (64 + 16) * 128 * 2 / 32)
    assert least["global_store_sectors"] == Least(128 * 32 * 4 / 32, 128 * 32 * 4 / 32)
    assert least["load_bytes_perfect_l2"] == Least((128 + 32) * 128 * 2, (128 + 32) * 128 * 2)
    assert least["load_bytes_no_l2"] == Least((128 + 32) * 128 * 2, 4 * (64 + 16) * 128 * 2)
    # Eight warp tiles take 32 rows and 16 columns.
    assert least["shared_load_wavefronts"] == Least(0, 8 * (32 + 16) * 128 * 2 / 128)
    assert least["shared_store_wavefronts"] == Least(0, 4 * (64 + 16) * 128 * 2 / 128)
    assert least["tensor_instructions"] == Least(128, 128)
    assert least["output_crossings"] == Least(1, 1)
    assert least["block_barriers"] == Least(0, None)


def test_the_least_of_tiles_that_warps_load_themselves() -> None:
    config = read_config(f"{BASE},feed=global,store=direct", SM80)
    staged, fed = (inspection.minima(c, problem_of(c)) for c in (STAGED, config))
    assert fed["global_load_sectors"] == Least(1280, 8 * (32 + 16) * 128 * 2 / 32)
    assert fed["shared_load_wavefronts"] == fed["shared_store_wavefronts"] == Least(0, 0)
    assert {key: fed[key] for key in ("global_store_sectors", "tensor_instructions")} == {
        key: staged[key] for key in ("global_store_sectors", "tensor_instructions")
    }


def test_the_least_of_sums_that_go_through_shared_memory() -> None:
    config = read_config(f"{BASE},copy=cpasync,stages=3,store=staged,d=f16,epilogue=linear", SM80)
    assert config.operation.epilogue is Epilogue.LINEAR
    read, unread, c_alone = (
        inspection.minima(config, problem_of(config, alpha=alpha, beta=beta))
        for alpha, beta in ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0))
    )
    c, operands, tiles = 128 * 32 * 2 / 32, 1280, 2560
    assert read["global_load_sectors"] == Least(operands + c, tiles + c)
    assert unread["global_load_sectors"] == Least(operands, tiles)
    assert c_alone["global_load_sectors"] == Least(c, c)
    assert read["global_store_sectors"] == Least(c, c)
    # Sums of 4 bytes go there once, and back once.
    assert read["shared_load_wavefronts"] == Least(0, 768 + 128 * 32 * 4 / 128)
    assert read["shared_store_wavefronts"] == Least(0, 640 + 128 * 32 * 4 / 128)


def test_figures_are_divided_by_what_is_computed() -> None:
    loads = figure(inspected(), "global_load_sectors")
    assert (loads.total, loads.per_output, loads.per_thousand) == (5120, 5120 / 4096, 5120 / 524.288)
    assert (loads.ratio_to_problem, loads.ratio_to_tiles) == (4, 2)
    conflicts = figure(inspected(), "shared_load_conflicts")
    assert (conflicts.least, conflicts.ratio_to_problem, conflicts.ratio_to_tiles) == (Least(0, 0), None, None)
    crossings = figure(inspected(), "output_crossings")
    assert (crossings.total, crossings.per_output, crossings.per_thousand) == (1, None, None)
    assert figure(inspected(), "instructions").total == 512
    assert figure(inspected(), "integer_per_matrix_instruction").total == 2.5
    assert inspected().instructions == {"integer": 2.5, "matrix product": 1, "move": 0.5}


def test_a_kernel_without_products_has_no_quotient() -> None:
    empty = inspected(Counts(warps=8))
    assert empty.instructions == {}
    assert figure(empty, "integer_per_matrix_instruction").total == 0
    assert figure(empty, "output_crossings").total == 0


def test_ratios_to_the_first_kernel() -> None:
    first, other = inspected(), inspected(replace(COUNTS, global_load_sectors=10240, warp_barriers=3))
    held = {f["figure"]: f for f in other.as_json(first)["figures"]}
    assert held["global_load_sectors"]["ratio_to_first"] == 2
    assert held["global_store_sectors"]["ratio_to_first"] == 1
    assert held["warp_barriers"]["ratio_to_first"] is None
    assert held["block_barriers"]["least_of_tiles"] is None
    assert other.as_json(first)["lint_undone"] == "nvdisasm is not here"


# ---------------------------------------------------------------------------------------------------------------------
# The problem.

OTHERS = ("frags=3x2,warps=2x1", "inst=8x32x16,warps=1x1,frags=3x1,k_steps=1", "feed=global,layout=cr,frags=2x2", "")


@pytest.mark.parametrize("texts", [OTHERS[:1], OTHERS[1:2], OTHERS[2:3], OTHERS[3:], OTHERS[:2], OTHERS[::2]])
def test_the_default_problem_is_one_for_all_of_them(texts: tuple[str, ...]) -> None:
    configs = [read_config(text, SM80) for text in texts]
    m, n, k = size = inspection.default_size(configs)
    inspection.demand(configs, SM80, size)
    for config in configs:
        known = derive.values(config)
        assert not rules.check(config, SM80, Problem.packed(config.operation, *size))
        assert min(m // known["BLOCK_M"], n // known["BLOCK_N"]) >= 2
        assert k // known["BLOCK_K"] >= max(4, config.stages + 1)


def test_the_default_problem_of_one_is_small() -> None:
    assert inspection.default_size([STAGED]) == (128, 32, 128)


def test_a_problem_that_cannot_be() -> None:
    with pytest.raises(IllegalConfig, match="BLOCK_M"):
        inspection.demand([STAGED], SM80, (65, 32, 128))
    for size in ((0, 32, 128), (128, 32, 0)):
        with pytest.raises(RequestError, match="no multiply-add"):
            inspection.demand([STAGED], SM80, size)
    with pytest.raises(RequestError, match=str(inspection.MOST_WORK)) as caught:
        inspection.demand([STAGED], SM80, (1024, 1024, 1024))
    assert "128x32x128" in caught.value.fix
    inspection.demand([STAGED], SM80, (1024, 1024, 256))


# ---------------------------------------------------------------------------------------------------------------------
# What is said.


def test_keys_that_differ() -> None:
    other = read_config(f"{BASE},copy=cpasync,stages=3,store=direct,pad_a=0", SM80)
    assert inspection.differing([STAGED, other, STAGED]) == {"pad_a": ["8", "0", "8"]}
    assert inspection.differing([STAGED, STAGED]) == {}


def test_what_stands_out_is_said_by_its_figures() -> None:
    quiet = replace(COUNTS, shared_load_conflicts=0, shared_load_wavefronts=768, global_load_sectors=2560)
    assert inspection.remarks([inspected(quiet)]) == []
    assert inspection.remarks([inspected()]) == [
        "[1] 768 of 1536 wavefronts of shared loads are conflicts, 50 % (pad_a=8 pad_b=8 pad_d=0)",
        "[1] it loads 2 times the sectors of its tiles (feed=shared residency=fragment)",
    ]
    parked = replace(quiet, stored_bytes=3 * 16384, reloaded_bytes=2 * 16384, warp_barriers=5, block_barriers=0)
    assert inspection.remarks([inspected(quiet), inspected(parked)]) == [
        "[2] each byte of D crosses global memory 5 times, and has to once (residency=fragment)",
        "[2] beside [1]: no barriers of blocks, barriers of warps where [1] has none, 5 x crossings of D",
    ]
    assert inspection.remarks([inspected(quiet), inspected(quiet)])[-1] == (
        "[2] beside [1]: no figure differs by a quarter or more"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1.0, "1"), (12345678, "12345678"), (2.3e9, "2.3e+09"), (0.000244140625, "0.000244"),
        (0.00001, "1.0e-05"), (0.0312, "0.0312"), (1.953, "1.95"), (99.96, "100.0"), (1234.5, "1234"),
        (2e7 / 3, "6666667"),
    ],
)  # fmt: skip
def test_figures_in_eight_characters(value: float, text: str) -> None:
    assert plain(value) == text
    assert len(text) <= 8


def lines_of(found: list[Inspection], width: int) -> list[str]:
    """What is printed, but for the names of kernels, which are longer than terminals."""
    return [line for line in show.inspections(found, "sm_80", width).splitlines() if "wmma_gemm" not in line]


def test_one_kernel_is_shown_beside_both_minima() -> None:
    lines = lines_of([inspected()], 80)
    assert max(map(len, lines)) <= 80
    (loads,) = (line.split() for line in lines if line.startswith("sectors loaded"))
    assert loads[2:] == ["5120", "1.25", "9.77", "1280", "4", "2560", "2"]
    (barriers,) = (line.split() for line in lines if line.startswith("barriers of blocks"))
    assert barriers[3:] == ["20", "0.00488", "0.0381", "0", "-", "-", "-"]


@pytest.mark.parametrize(("width", "tables"), [(80, 2), (120, 1)])
def test_several_kernels_stand_side_by_side(width: int, tables: int) -> None:
    more = [inspected(replace(COUNTS, global_load_sectors=5120 * n)) for n in (1, 2, 3)]
    lines = lines_of(more, width)
    assert max(map(len, lines)) <= width
    loads = [line.split()[2:] for line in lines if line.startswith("sectors loaded")]
    assert len(loads) == tables
    second, third = ["2.50", "19.5", "2"], ["3.75", "29.3", "3"]
    first = ["0.312", "1.25", "9.77"]
    assert loads == ([[*first, *second], [*first, *third]] if tables == 2 else [[*first, *second, *third]])
    assert "differ in no key" in lines
