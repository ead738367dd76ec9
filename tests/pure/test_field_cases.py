"""Cases from the field, each as a test of its whole kind: what must be refused, and what must be right without a card.

Those that only a card shows are in ``tests/gpu/test_field_on_card.py``, on the same table of kernels and calls.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from cases_legality import BASE, broken_ids, config

from tests import field
from tests.fakes import NumpyBackend, binary_of
from wmmagen import defaults, derive, instructions, render, rules, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import Bytes, Launch
from wmmagen.config import KernelConfig, Problem, Shape, read_pairs
from wmmagen.dtypes import ABSENT_TYPES, F16
from wmmagen.errors import ConfigError
from wmmagen.nvrtc import Binary
from wmmagen.records import Outcome

SM75, SM80 = ARCHS[75], ARCHS[80]
SMS = (75, 80, 90, 120)
#: Every shape, pair of layouts and accumulator.
COMBINATIONS = list(itertools.product(field.TILES, field.LAYOUTS, field.ACCUMULATORS))
combinations = pytest.mark.parametrize(("shape", "layout", "acc"), COMBINATIONS)


def complete(pairs: str, sm: int = 80, *, strict: bool = False) -> KernelConfig:
    """The legal kernel that the command line makes of ``pairs``."""
    found = defaults.complete(read_pairs(pairs), ARCHS[sm], strict_isa=strict)
    assert rules.check(found, ARCHS[sm], strict_isa=strict) == []
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Legality.


@combinations
@pytest.mark.parametrize("operand", ["A", "B"])
def test_a_pad_makes_rows_whole_units_and_in_the_strict_reading_whole_fragments(
    operand: str, shape: str, layout: str, acc: str
) -> None:
    """16 bytes by the guide; 32 by the PTX ISA, where a thread's fragment of f16 is 8 registers in every shape."""
    number = {"A": 1, "B": 2}[operand]
    for pad in range(17):
        pads = {"A": 0, "B": 0, operand: pad}
        case = config(f"inst={shape},layout={layout},acc={acc},d={acc},pad_a={pads['A']},pad_b={pads['B']}")
        row_bytes = 2 * derive.values(case)[f"LDS_{operand}"]
        by_guide = [] if row_bytes % 16 == 0 else [f"L20{number}"]
        by_isa = [] if row_bytes % 32 == 0 else [f"L21{number}"]
        of_the_row = {f"L20{number}", f"L21{number}"}
        assert [id for id in broken_ids(case, SM80) if id in of_the_row] == by_guide
        assert [id for id in broken_ids(case, SM80, strict_isa=True) if id in of_the_row] == by_guide + by_isa
        assert bool(by_guide) is (pad % 8 != 0)


@combinations
@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("strict", [False, True])
def test_every_combination_has_a_staged_kernel_in_both_readings(
    sm: int, shape: str, layout: str, acc: str, strict: bool
) -> None:
    # Direct stores of narrow tiles of f16 are illegal; to say so at once spares thousands of preferences.
    store = ",store=staged" if (shape, acc) == ("32x8x16", "f16") else ""
    found = complete(f"feed=shared,inst={shape},layout={layout},acc={acc}{store}", sm, strict=strict)
    assert (str(found.inst), found.operation.layout, found.operation.acc.name) == (shape, layout, acc)


@combinations
@pytest.mark.parametrize("strict", [False, True])
def test_narrow_tiles_fed_from_global_memory_are_refused_with_the_reason(
    shape: str, layout: str, acc: str, strict: bool
) -> None:
    tiles = f"inst={shape},layout={layout},acc={acc},d={acc},store=staged"
    fed = config(f"{tiles},feed=global,copy=none,stages=1,pad_a=0,pad_b=0,pad_d=0")
    found = rules.check(fed, SM80, strict_isa=strict)
    if not field.narrow(shape, layout):
        assert found == []
        return
    (refusal,) = found
    operand = "A" if shape == "8x32x16" else "B"
    assert refusal.rule.id == {"A": "P303", "B": "P304"}[operand]
    assert f" {operand} " in refusal.message and "8 elements of 16 bits" in refusal.message
    assert "256 bits" in refusal.message and "feed=shared" in refusal.fix
    # One tile alone is refused, too: its neighbour in the next block starts 16 bytes off.
    alone = replace(fed, warps=replace(fed.warps, m=1, n=1), frags=replace(fed.frags, m=1, n=1))
    assert refusal.rule.id in broken_ids(alone, SM80, strict_isa=strict)


SHAPES = {(i.m, i.n, i.k) for i in instructions.of_operand(F16)}
PERMUTED = sorted({p for shape in SHAPES for p in itertools.permutations(shape)} - SHAPES)


@pytest.mark.parametrize("shape", PERMUTED)
def test_no_other_order_of_a_shape_reaches_the_compiler(shape: tuple[int, int, int]) -> None:
    def compiler(*arguments: object) -> Binary:
        raise AssertionError("an illegal kernel was compiled")

    case = replace(BASE, inst=Shape(*shape))
    record = trial.try_out(case, SM75, Problem.packed(case.operation, 512, 512, 512), None, None, compiler)
    assert record.outcome is Outcome.ILLEGAL
    assert "T101" in record.detail and str(case.inst) in record.detail
    (refusal,) = (v for v in rules.check(case, SM75) if v.rule.id == "T101")
    assert {tuple(map(int, text.split("x"))) for text in re.findall(r"\d+x\d+x\d+", refusal.fix)} == SHAPES


@pytest.mark.parametrize("name", ABSENT_TYPES)
def test_a_type_that_there_is_not_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_pairs(f"a={name}")
    assert refusal.value.message == f"a={name}: {ABSENT_TYPES[name]}"
    assert {"f16", "bf16", "tf32", "s8"} <= set(refusal.value.fix.split())


FIRST = {i.a.name: min(o.min_sm for o in instructions.of_operand(i.a)) for i in instructions.INSTRUCTIONS}


@pytest.mark.parametrize("a", [a for a, sm in FIRST.items() if sm > 75])
def test_a_type_is_refused_before_the_first_architecture_that_has_it(a: str) -> None:
    row = next(i for i in instructions.INSTRUCTIONS if i.a.name == a)
    case = config(f"a={a},acc={row.acc.name},d={row.acc.name},inst={row.m}x{row.n}x{row.k}")
    for sm, arch in ARCHS.items():
        found = [v for v in rules.check(case, arch) if v.rule.id == "T131"]
        assert bool(found) is (sm < FIRST[a])
        assert all(a in v.message and f"sm_{FIRST[a]}" in v.message for v in found)


@combinations
@pytest.mark.parametrize("more", ["", ",d=f16", ",epilogue=linear"])
def test_an_f16_kernel_for_turing_mentions_no_bf16(shape: str, layout: str, acc: str, more: str) -> None:
    source = render.render(complete(f"inst={shape},layout={layout},acc={acc},store=staged{more}", 75), SM75)
    assert re.search(r"bf16|bfloat|__nv_", source.text) is None
    assert set(re.findall(r"#include <(.*?)>", source.text.split("#ifndef")[0])) == {"cuda_fp16.h", "mma.h"}


@pytest.mark.parametrize("pairs", ["frags=1x1,stages=1,copy=ld", "", "k_steps=4,pad_b=0"])
def test_every_launcher_of_a_staged_kernel_opts_in_whatever_its_size(pairs: str) -> None:
    """Dynamic bytes below 48 KB beside static ones above: no threshold can be right, so there is none."""
    text = render.render(config(pairs), SM80).text
    prepare, launcher = text[text.index("wmmagen_status prepare()") :].split('extern "C"', 1)
    assert "cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES" in prepare
    supports, launch = launcher.split("cudaStream_t stream)", 1)
    assert "prepare()" in supports
    assert (
        launch.index("_supports(")
        < launch.index("dynamicSmemBytes = SHARED_BYTES")
        < launch.index("cudaLaunchKernelEx")
    )
    assert not re.search(r"\b49152\b|48 \* 1024", text)


@pytest.mark.parametrize("arch", [a for a in ARCHS.values() if a.sm >= 75], ids=str)
def test_the_budget_of_shared_memory_is_the_sum(arch: Arch) -> None:
    """232,448 dynamic bytes beside 16 static ones on sm_90, and the same on every other architecture."""
    known = {**derive.values(BASE, arch), "SHARED_BYTES": arch.shared_block}
    limit = next(r for r in rules.RULES if r.id == "R402")
    assert limit.kept(known) and not limit.kept({**known, "SHARED_BYTES": arch.shared_block + 16})
    dynamic = derive.values(BASE)["SHARED_BYTES"]
    left = arch.shared_block - dynamic
    for static, fits in ((left, True), (left + 16, False)):
        facts = trial.facts_of(BASE, arch, replace(binary_of(BASE, arch), registers=32, static_shared_bytes=static))
        assert facts.shared_bytes == dynamic + static
        assert (facts.occupancy > 0) is fits


# ---------------------------------------------------------------------------------------------------------------------
# Right results.


def kernels() -> list[tuple[str, field.Case, KernelConfig]]:
    return [(name, case, field.config_of(case.pairs, SM80)) for name, case in field.CASES.items()]


def test_every_case_is_a_legal_kernel_with_legal_calls() -> None:
    for name, case, kernel in kernels():
        for problem in case.problems(kernel.operation):
            assert rules.check(kernel, SM80, problem) == [], name


@pytest.mark.parametrize("a", field.EVERYWHERE)
def test_every_kernel_on_a_card_has_a_layout_of_its_operands(a: str) -> None:
    for of_type, pairs in field.EVERYWHERE_KERNELS:
        assert of_type != a or rules.check(field.config_of(pairs, SM80), SM80) == [], pairs
    for layout in field.LAYOUTS:
        kernel = field.config_of(field.everywhere_pairs(a, layout, "copy=ld,stages=1"), SM80)
        across = {v.rule.id for v in rules.check(kernel, SM80)} & {"T122", "T123"}
        assert bool(across) is (layout not in field.layouts_of(a))


@pytest.mark.parametrize("types", field.OVERFLOWS)
@pytest.mark.parametrize("shape", field.TILES)
@pytest.mark.parametrize("feed", ["shared", "global"])
def test_every_kernel_that_overflows_on_a_card_is_legal(types: str, shape: str, feed: str) -> None:
    assert rules.check(field.config_of(field.overflowing_pairs(types, shape, feed), SM80), SM80) == []


def test_the_cases_are_all_of_their_kind() -> None:
    made = [(name, kernel) for name, _, kernel in kernels()]
    plain = {(str(k.inst), k.operation.layout, k.operation.acc.name) for n, k in made if n.startswith("96x160x48")}
    assert plain == set(COMBINATIONS)
    depths = {(k.feed, k.copy, k.stages) for n, k in made if n.startswith("K of")}
    assert {stages for _, _, stages in depths} == {1, 2, 3, 4} and len(depths) == len(field.PIPELINES)
    orders = {
        (p.m, p.n, p.k)
        for n, case, k in kernels()
        if n.startswith("32, 16, 64 16x16x16")
        for p in case.problems(k.operation)
    }
    assert orders == set(itertools.permutations((32, 16, 64)))


#: A backend of NumPy knows neither pipelines nor tiles: one kernel of each operation and number of calls is enough.
DIFFERENT = list({(k.operation, name.split()[0]): name for name, _, k in kernels()}.values())


@pytest.mark.parametrize("name", DIFFERENT)
def test_right_is_exact_and_proved(name: str) -> None:
    case = field.CASES[name]
    kernel = field.config_of(case.pairs, SM80)
    assert field.wrong_runs(case, kernel, binary_of(kernel), NumpyBackend(arch=SM80)) == []


class Undrained(NumpyBackend):
    """Leaves out the last slice of K, which is 16 long."""

    def run(self, binary: Binary, launch: Launch, buffers: Sequence[Bytes], *, limit_s: float = 10.0) -> list[Bytes]:
        *before, k, lda, ldb, ldd = launch.arguments
        assert isinstance(k, int)
        shorter = replace(launch, arguments=(*before, k - 16, lda, ldb, ldd))
        return super().run(binary, shorter, buffers, limit_s=limit_s)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_pipeline_that_is_not_drained_is_seen_however_short_k_is(stages: int) -> None:
    case = field.CASES[f"K of 16 to 144 16x16x16 copy=cpasync,stages={stages}"]
    kernel = field.config_of(case.pairs, SM80)
    assert kernel.stages == stages
    for problem in case.problems(kernel.operation):
        run = trial.check_run(kernel, binary_of(kernel), Undrained(arch=SM80), problem)
        assert not run.exact
        words = "every element is zero" if problem.k == 16 else "the last K slice"
        assert words in run.mismatch


@pytest.mark.parametrize("types", field.OVERFLOWS)
def test_sums_of_64_times_64_overflow_f16_alone_and_the_verdict_says_which(types: str) -> None:
    kernel = field.config_of(f"{field.TILES['16x16x16']},{types}", SM80)
    value, cause = field.OVERFLOWS[types]
    values, verdict = field.sums_of_64(kernel, binary_of(kernel), NumpyBackend(arch=SM80))
    assert values == {value}
    assert verdict.exact is (not cause) and cause in verdict.hint


@combinations
@pytest.mark.parametrize("d", ["f16", "f32"])
def test_another_type_of_d_is_made_in_memory_and_never_between_fragments(
    shape: str, layout: str, acc: str, d: str
) -> None:
    text = render.render(complete(f"inst={shape},layout={layout},acc={acc},d={d},store=staged"), SM80).text
    kernel = text[: text.index("#ifndef __CUDACC_RTC__\n", text.index("store_matrix_sync"))]
    # One type of accumulator, whose elements no line touches.
    assert len(re.findall(r"fragment<wmma::accumulator", kernel)) == 1
    assert ".x[" not in kernel and "num_elements" not in kernel
    assert re.findall(r"store_matrix_sync\((\w+)", kernel) == ["strip"]
    if acc != d:
        direct = complete(f"inst={shape},layout={layout},acc={acc},d={d},store=staged")
        assert "T151" in broken_ids(replace(direct, store=config("").store), SM80)


@pytest.mark.parametrize("pipeline", field.PIPELINES)
def test_a_staged_epilogue_waits_for_all_readers_of_what_lay_there(pipeline: str) -> None:
    """Slices are read by other warps, and the strips by other lanes: a barrier before each is overwritten or read."""
    case = field.CASES[f"staged acc=f32,d=f32 none {pipeline}"]
    text = render.render(field.config_of(case.pairs, SM80), SM80).text
    code = re.sub(r"//.*", "", text[text.index("// 5. Epilogue") : text.index("wmmagen_status")])
    store, read = code.index("store_matrix_sync"), code.index("reinterpret_cast<const Sums*>")
    assert store < read
    assert ("__syncthreads()" in code[:store]) is ("feed=global" not in pipeline)
    assert "__syncwarp()" in code[store:read] and "__syncwarp()" in code[read:]
