"""The lint on small kernels: each defect once, beside the clean kernel that it was made from."""

from __future__ import annotations

import re

import pytest
from cases_legality import config
from texts_sass import ENTRY, kernel, listing

from wmmagen import lint, sass, show
from wmmagen.arch import ARCHS
from wmmagen.config import KernelConfig
from wmmagen.errors import DisassemblyError, MissingPiece
from wmmagen.instructions import INSTRUCTIONS
from wmmagen.nvrtc import Binary
from wmmagen.records import Facts

#: One fragment each way and one K step, so that two HMMA are one product.
ONE = "warps=1x1,frags=1x1,k_steps=1"
SHARED = config(f"{ONE},copy=ld,stages=2")
CPASYNC = config(f"{ONE},copy=cpasync,stages=2")
GLOBAL = config(f"{ONE},feed=global,copy=none,stages=1,pad_a=0,pad_b=0")

LOOP = """
    .L_head:
    LDG.E.128.CONSTANT R20, [R2.64]
    LDSM.16.M88.4 R4, [R40]
    LDSM.16.MT88.4 R12, [R41]
    HMMA.16816.F32 R24, R4, R12, R24
    HMMA.16816.F32 R28, R4, R14, R28
    IADD3 R2, P0, R2, 0x40, RZ
    IMAD.X R3, RZ, RZ, R3, P0
    UIADD3 UR4, UR4, 0x1, URZ
    STS.128 [R42], R20
    BAR.SYNC 0x0
    @P1 BRA `(.L_head)
"""
CLEAN = f"""
    S2R R0, SR_TID.X
    {LOOP}
    STG.E.64 [R2.64], R24
    STG.E.64 [R2.64+0x20], R28
    EXIT
"""
CLEAN_CPASYNC = CLEAN.replace("LDG.E.128.CONSTANT R20, [R2.64]", "LDGSTS.E.BYPASS.128 [R42], [R2.64]").replace(
    "STS.128 [R42], R20", "@!PT LDS RZ, [RZ]"
)
CLEAN_GLOBAL = """
    .L_head:
    LDG.E R4, [R2.64]
    LDG.E R12, [R6.64]
    MOVM.16.MT88 R12, R12
    HMMA.1688.F32 R24, R4, R12, R24
    HMMA.1688.F32 R24, R4, R12, R24
    HMMA.1688.F32 R28, R4, R12, R28
    HMMA.1688.F32 R28, R4, R12, R28
    @P1 BRA `(.L_head)
    STG.E.64.SYS [R2], R24
    EXIT
"""


def defects(case: KernelConfig, code: str) -> tuple[str, ...]:
    return lint.defects(case, kernel(code))


@pytest.mark.parametrize(
    ("case", "code"),
    [(SHARED, CLEAN), (CPASYNC, CLEAN_CPASYNC), (GLOBAL, CLEAN_GLOBAL)],
    ids=["ld", "cpasync", "global"],
)
def test_clean_kernels_have_no_defect(case: KernelConfig, code: str) -> None:
    assert defects(case, code) == ()


#: The configuration, its clean kernel, what is replaced in it by what, and the words of each defect that follows.
BROKEN = [
    (SHARED, CLEAN, "S2R R0, SR_TID.X", "LD.E R0, [R2]", ["generic .* around .*: 1 LD.32 .first at 0x0"]),
    (SHARED, CLEAN, "STG.E.64 [R2.64], R24", "ST.E.64 [R2.64], R24", ["generic accesses in the code around"]),
    (SHARED, CLEAN, "S2R R0, SR_TID.X", "STL [R1], R0", ["local memory in the code around the main loop: 1 STL.32"]),
    (
        SHARED, CLEAN, "S2R R0, SR_TID.X", "VIMNMX.RELU R51, P0, P0, R13, 0x10, PT\n    @!P0 IADD3 R1, R1, R2, RZ",
        ["1 VIMNMX.RELU .first at 0x0. set a predicate, which ptxas 13.0 takes"],
    ),
    (SHARED, CLEAN, "UIADD3 UR4, UR4, 0x1, URZ", "LDL R0, [R1]", ["local memory in the main loop: 1 LDL.32"]),
    (
        SHARED, CLEAN, "LDSM.16.M88.4 R4, [R40]", "LD.E R4, [R40]",
        ["generic accesses in the main loop: 1 LD.32 .first at 0x20", "at 0x10 holds no LDSM.M88, which"],
    ),
    (
        SHARED, CLEAN, "LDSM.16.MT88.4 R12, [R41]", "LDS.U.U8 R12, [R41]",
        ["holds no LDSM.MT88", "loads by 1 LDS.8 .first at 0x30.; .* promised as LDSM.M88 and LDSM.MT88"],
    ),
    (
        SHARED, CLEAN, "LDSM.16.MT88.4 R12, [R41]", "LDSM.16.M88.4 R12, [R41]", ["holds no LDSM.MT88"],
    ),
    (SHARED, CLEAN, "UIADD3 UR4, UR4, 0x1, URZ", "LDS R0, [R1]", ["loads by 1 LDS.32"]),
    (SHARED, CLEAN, "HMMA.16816.F32 R28, R4, R14, R28", "NOP", ["multiplies 2048 times per warp, no multiple"]),
    (
        SHARED, CLEAN, ".F32", ".F16", ["matrix instructions 2 HMMA.F16, where HMMA.F32 is promised"],
    ),
    (SHARED, CLEAN, "@P1 BRA `(.L_head)", "NOP", ["no loop holds a matrix instruction"]),
    (SHARED, CLEAN, "LDG.E.128.CONSTANT", "LDG.E.64.CONSTANT", ["copies by 1 LDG.64 .* only LDG.128 and STS.128 is"]),
    (SHARED, CLEAN, "STS.128 [R42], R20", "STS.U16 [R42], R20", ["copies by 1 STS.16 "]),
    (SHARED, CLEAN, "LDG.E.128.CONSTANT R20, [R2.64]", "NOP", ["no LDG in the kernel, which copies .* by copy=ld"]),
    (CPASYNC, CLEAN_CPASYNC, "LDGSTS.E.BYPASS.128", "LDGSTS.E", ["copies by 1 LDGSTS.32"]),
    (
        CPASYNC, CLEAN_CPASYNC, "LDGSTS.E.BYPASS.128 [R42], [R2.64]", "LDG.E.128 R20, [R2.64]",
        ["no LDGSTS in the kernel", "copies by 1 LDG.128"],
    ),
    (CPASYNC, CLEAN_CPASYNC, "@!PT LDS RZ", "@P0 LDS RZ", ["loads by 1 LDS.32"]),
    (SHARED, CLEAN, "STG.E.64 [R2.64], R24", "STG.E [R2.64], R24", ["D is stored by 1 STG.32 .*, where STG.64 is"]),
    (GLOBAL, CLEAN_GLOBAL, "LDG.E R12", "LDG.E.U8 R12", ["loads by 1 LDG.8"]),
    (GLOBAL, CLEAN_GLOBAL, "MOVM.16.MT88 R12, R12", "LDS R12, [R12]", ["loads by 1 LDS.32"]),
    (GLOBAL, CLEAN_GLOBAL, "MOVM.16.MT88 R12, R12", "STS.128 [R12], R12", ["copies by 1 STS.128 .*, where nothing is"]),
]  # fmt: skip


@pytest.mark.parametrize(("case", "code", "old", "new", "words"), BROKEN)
def test_each_defect_is_told(case: KernelConfig, code: str, old: str, new: str, words: list[str]) -> None:
    assert old in code
    found = defects(case, code.replace(old, new))
    assert len(found) == len(words)
    for word, sentence in zip(words, found, strict=True):
        assert re.search(word, sentence), sentence


def test_a_clamp_without_a_predicate_is_no_mistake() -> None:
    unread = "VIMNMX.RELU R51, P2, P2, R13, 0x10, PT\n    ISETP.GE.AND P2, PT, R1, R2, PT\n    @P2 IADD3 R1, R1, R2, RZ"
    for code in ("VIMNMX.RELU R51, R13, 0x10, PT", unread):
        assert defects(SHARED, CLEAN.replace("S2R R0, SR_TID.X", code)) == ()


def test_column_major_operands_are_loaded_the_other_way_round() -> None:
    swapped = CLEAN.replace(".M88", ".X").replace(".MT88", ".M88").replace(".X", ".MT88")
    assert defects(config(f"{ONE},copy=ld,stages=2,layout=cc"), swapped) == ()
    both = CLEAN.replace(".MT88", ".M88")
    assert defects(config(f"{ONE},copy=ld,stages=2,layout=rc"), both) == ()
    assert len(defects(config(f"{ONE},copy=ld,stages=2,layout=cr"), both)) == 2


def test_each_of_several_loops_is_looked_at() -> None:
    rest = LOOP.replace("L_head", "L_rest")
    assert defects(SHARED, CLEAN.replace("STG", f"{rest}\nSTG", 1)) == ()
    (told,) = defects(SHARED, CLEAN.replace("STG", f"{rest.replace('STS.128', 'STS.64')}\nSTG", 1))
    assert "the loop at 0xc0 copies by 1 STS.64" in told


def test_a_generic_store_of_d_is_a_defect_of_every_type() -> None:
    tf32 = config(f"{ONE},copy=ld,stages=2,a=tf32,inst=16x16x8")
    code = CLEAN.replace("16816.F32", "1684.F32.TF32").replace("LDSM.16.M88.4", "LDS").replace("LDSM.16.MT88.4", "LDS")
    code = code.replace(
        "HMMA.1684.F32.TF32 R28", "HMMA.1684.F32.TF32 R24, R5, R13, R24\n" * 2 + "HMMA.1684.F32.TF32 R28"
    )
    assert defects(tf32, code) == ()
    (told,) = defects(tf32, code.replace("STG.E.64 ", "ST.E.64 "))
    assert "generic accesses in the code around the main loop: 2 ST.64" in told
    (told,) = defects(tf32, code.replace("UIADD3 UR4, UR4, 0x1, URZ", "ST.E.64 [R2], R4"))
    assert "generic accesses in the main loop: 1 ST.64" in told


def test_bytes_are_what_int8_promises_across_k() -> None:
    s8 = config(f"{ONE},copy=ld,stages=2,a=s8,acc=s32,d=s32")
    code = CLEAN.replace("HMMA.16816.F32", "IMMA.16816.S8.S8").replace("LDSM.16.MT88.4", "LDS.U8")
    assert defects(s8, code) == ()
    assert len(defects(s8, CLEAN.replace("HMMA.16816.F32", "IMMA.16816.S8.S8"))) == 2


def test_sums_in_global_memory_pass_through_the_main_loop() -> None:
    case = config(f"{ONE},copy=ld,stages=2,residency=global")
    sums = CLEAN.replace("UIADD3 UR4, UR4, 0x1, URZ", "LDG.E.64 R24, [R2.64]\nSTG.E.64 [R2.64], R24")
    assert defects(case, sums) == ()
    assert len(defects(SHARED, sums)) == 1
    (told,) = defects(case, sums.replace("STG.E.64 [R2.64], R24", "STG.E [R2.64], R24"))
    assert "D is stored by 2 STG.32" in told


def test_a_row_without_evidence_says_so() -> None:
    case = config(f"{ONE},copy=ld,stages=2,a=s4,acc=s32,d=s32,inst=8x8x32,layout=rc")
    (told,) = defects(case, CLEAN)
    assert "does not say yet what s4->s32 8x8x32 must become" in told


# The table -----------------------------------------------------------------------------------------------------------


def test_every_row_of_the_table_promises_or_says_that_it_does_not() -> None:
    assert {row.a.name for row in INSTRUCTIONS if row.machine is None} == {"s4", "u4", "b1"}


#: As the owner's notes and the disassembly give them: operand, accumulator, along K, across K, stores by shape.
PROMISES = [
    ("f16", "f32", "LDSM.M88", "LDSM.MT88", {"16x16x16": "STG.64", "32x8x16": "STG.64", "8x32x16": "STG.32"}),
    ("f16", "f16", "LDSM.M88", "LDSM.MT88", {"16x16x16": "STG.32", "32x8x16": "STG.32", "8x32x16": "STG.32"}),
    ("bf16", "f32", "LDSM.M88", "LDSM.MT88", {"16x16x16": "STG.64", "32x8x16": "STG.64", "8x32x16": "STG.32"}),
    ("s8", "s32", "LDSM.M88", "LDS.8", {"16x16x16": "STG.64", "32x8x16": "STG.64", "8x32x16": "STG.32 STG.64"}),
    ("u8", "s32", "LDSM.M88", "LDS.8", {"16x16x16": "STG.64", "32x8x16": "STG.64", "8x32x16": "STG.32 STG.64"}),
    ("tf32", "f32", "LDS.32", "LDS.32", {"16x16x8": "STG.64"}),
    ("f64", "f64", "LDS.64", "LDS.64", {"8x8x4": "STG.128"}),
]


@pytest.mark.parametrize(("a", "acc", "along", "across", "stores"), PROMISES)
def test_the_promises_are_the_notes(a: str, acc: str, along: str, across: str, stores: dict[str, str]) -> None:
    rows = {row.shape: row for row in INSTRUCTIONS if (row.a.name, row.acc.name) == (a, acc)}
    assert {shape: row.machine is not None and row.machine.shared for shape, row in rows.items()} == dict.fromkeys(
        stores, (along, across)
    )
    assert {shape: " ".join(row.machine.stores) if row.machine else "" for shape, row in rows.items()} == stores


def test_every_promised_word_can_be_said() -> None:
    """A word that :mod:`wmmagen.sass` never forms would make every kernel of its row defective."""
    for row in INSTRUCTIONS:
        if row.machine is not None:
            words = (*row.machine.shared, *row.machine.from_global, *row.machine.stores)
            assert all(re.fullmatch(r"LDSM\.MT?88|(LDS|LDG|STG)\.(8|32|64|128)", word) for word in words)


# Figures and reports -------------------------------------------------------------------------------------------------


def test_figures_are_counts_of_the_main_loop() -> None:
    found = lint.figures(kernel(CLEAN_CPASYNC), "nvdisasm 1.2")
    assert found is not None
    assert found.as_json() == {
        "main_loop": [0x10, 0xB0],
        "loops": 1,
        "matrix_instructions": 2,
        "matrix_instructions_elsewhere": 0,
        "integer_instructions": 2,
        "uniform_instructions": 1,
        "integer_per_matrix_instruction": 1.0,
        "barriers": 1,
        "instructions": 11,
        "accesses": {"LDGSTS.128": 1, "LDSM.M88": 1, "LDSM.MT88": 1},
        "disassembler": "nvdisasm 1.2",
    }


def test_of_several_loops_the_one_with_most_matrix_instructions_counts() -> None:
    more = LOOP.replace("L_head", "L_more").replace(
        "UIADD3 UR4, UR4, 0x1, URZ", "HMMA.16816.F32 R28, R4, R14, R28\n" * 2
    )
    found = lint.figures(kernel(CLEAN.replace("STG", f"{more}\nHMMA.16816.F32 R28, R4, R14, R28\nSTG", 1)), "")
    assert found is not None
    assert (found.first, found.loops, found.matrix, found.matrix_elsewhere) == (0xC0, 2, 4, 3)
    assert found.integer_per_matrix == 0.5


def test_without_a_loop_there_are_no_figures() -> None:
    assert lint.figures(kernel(CLEAN.replace("@P1 BRA `(.L_head)", "NOP")), "") is None


def binary(spill: int = 0, stack: int = 0) -> Binary:
    return Binary(ENTRY, ARCHS[80], b"cubin", "", 32, spill, stack, 0, "", 0.1, "NVRTC 13.5")


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "locate", lambda: "tool")
    monkeypatch.setattr(sass, "title", lambda tool: "nvdisasm 13.5")
    monkeypatch.setattr(sass, "disassemble", lambda tool, cubin: listing(CLEAN))


def test_a_clean_report(text: None) -> None:
    found = lint.examine(SHARED, binary())
    assert (found.defects, found.undone) == ((), "")
    assert found.figures is not None
    assert found.as_json() == {"lint": [], "sass": found.figures.as_json(), "lint_undone": None}


def test_spills_and_stack_are_defects(text: None) -> None:
    (told,) = lint.examine(SHARED, binary(spill=24)).defects
    assert "24 bytes per thread are spilled" in told
    (told,) = lint.examine(SHARED, binary(stack=64)).defects
    assert "64 bytes of stack per thread" in told


@pytest.mark.parametrize(
    "error", [MissingPiece("it is not here", "get it"), DisassemblyError("line 7: what?", "get it")]
)
def test_what_could_not_be_looked_at_is_said_and_praised_by_nobody(
    error: MissingPiece | DisassemblyError, text: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(tool: object, cubin: bytes) -> str:
        raise error

    monkeypatch.setattr(sass, "disassemble", fails)
    found = lint.examine(SHARED, binary(spill=8))
    assert found.figures is None
    assert found.undone == f"{error.message}: get it"
    assert len(found.defects) == 1
    assert found.as_json()["sass"] is None
    assert found.as_json()["lint_undone"] == found.undone


def test_people_read_every_defect_and_why_nothing_was_looked_at() -> None:
    facts = Facts(32, 0, 0, 0, 32, 8, 0.1, "NVRTC 13.5")

    def said(report: lint.Report) -> list[str]:
        lines = show.compiled("name", "sm_80", facts, 1, report, cached=False).splitlines()
        return [line.split(maxsplit=1)[1] for line in lines if line.startswith(("  lint ", "  main loop "))]

    clean = lint.figures(kernel(CLEAN), "nvdisasm 1.2")
    counts = "loop        2 matrix, 2 integer, 1 uniform of 11 instructions; 1.00 integer per matrix instruction"
    assert said(lint.Report((), clean, "")) == [counts, "no defect (nvdisasm 1.2)"]
    assert said(lint.Report(("one", "two"), clean, "")) == [counts, "one", "two"]
    assert said(lint.Report(("one",), None, "it is not here")) == ["one", "not done: it is not here"]
    assert said(lint.Report((), None, "it is not here")) == ["not done: it is not here"]
