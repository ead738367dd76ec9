"""The reader of disassemblies, on small texts: what it takes, and what it refuses with a line."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from texts_sass import ENTRY, kernel, listing

from wmmagen import nvrtc, sass
from wmmagen.errors import DisassemblyError, MissingPiece
from wmmagen.sass import Kind, Op, Space

LOOP = """
    S2R R0, SR_TID.X
    @!P0 BRA `(.L_out)
    .L_head:
    LDSM.16.M88.4 R4, [R2]
    HMMA.16816.F32 R8, R4, R6, R8
    @P1 BRA `(.L_head)
    .L_out:
    STG.E.64 [R2], R8
    EXIT
    .L_park:
    BRA `(.L_park)
    NOP
"""


def op(text: str) -> Op:
    """The instruction that ``text`` spells."""
    return kernel(f"{text}\nEXIT").ops[0]


def test_an_instruction_is_read_in_parts() -> None:
    first, second, _ = kernel(
        "@!P0 LDG.E.128.CONSTANT.SYS R4, [R2+0x10]\nIMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28]\nEXIT"
    ).ops
    assert (first.address, first.guard, first.opcode) == (0, "!P0", "LDG")
    assert first.modifiers == ("E", "128", "CONSTANT", "SYS")
    assert first.operands == "R4, [R2+0x10]"
    assert str(first) == "LDG.E.128.CONSTANT.SYS"
    assert (second.address, second.guard, second.operands) == (16, "", "R1, RZ, RZ, c[0x0][0x28]")
    assert listing("NOP\nEXIT").splitlines()[kernel("NOP\nEXIT").ops[0].line - 1].strip().startswith("/*0000*/")


def test_a_loop_is_its_body_and_nothing_around_it() -> None:
    found = kernel(LOOP)
    assert [len(block.ops) for block in found.blocks] == [2, 3, 2, 1, 1]
    assert [block.successors for block in found.blocks] == [(2, 1), (1, 2), (), (3,), ()]
    (loop,) = found.loops  # the parking loop behind EXIT cannot be reached
    assert [str(o) for o in loop.ops] == ["LDSM.16.M88.4", "HMMA.16816.F32", "BRA"]
    assert found.innermost(Kind.MATRIX) == (loop,)
    assert found.innermost(Kind.UNIFORM) == ()


def test_a_branch_inside_a_loop_belongs_to_it() -> None:
    (loop,) = kernel("""
        .L_head:
        @P0 BRA `(.L_skip)
        STS.128 [R1], R4
        .L_skip:
        BAR.SYNC 0x0
        BRA.U UP0, `(.L_head)
        EXIT
    """).loops
    assert [o.opcode for o in loop.ops] == ["BRA", "STS", "BAR", "BRA"]


def test_of_nested_loops_the_inner_one_is_innermost() -> None:
    found = kernel("""
        .L_outer:
        LDG.E R1, [R2]
        .L_inner:
        HMMA.1688.F16 R8, R4, R6, R8
        @P0 BRA `(.L_inner)
        @P1 BRA `(.L_outer)
        EXIT
    """)
    outer, inner = found.loops
    assert inner.blocks < outer.blocks
    assert found.innermost(Kind.MATRIX) == (inner,)
    assert found.innermost(Kind.MEMORY) == (outer,)


def test_two_ways_back_to_one_header_are_one_loop() -> None:
    (loop,) = kernel("""
        .L_head:
        @P0 BRA `(.L_head)
        NOP
        @P1 BRA `(.L_head)
        EXIT
    """).loops
    assert len(loop.ops) == 3


def test_a_jump_that_is_never_taken_makes_no_loop() -> None:
    assert kernel(".L_head:\nNOP\n@!PT BRA `(.L_head)\nEXIT").loops == ()
    assert len(kernel(".L_head:\nNOP\n@PT BRA `(.L_head)").loops) == 1


def test_a_conditional_exit_is_passed() -> None:
    found = kernel("@P0 EXIT\nLDL R1, [R2]\nEXIT")
    assert [block.successors for block in found.blocks] == [(1,), ()]


def test_a_function_that_is_called_is_read_too() -> None:
    found = kernel("""
        CALL.REL.NOINC `($divide)
        EXIT
        $divide:
        IMAD R1, R2, R3, R4
        .L_again:
        SHF.R.U32.HI R1, RZ, 0x1, R1
        @P0 BRA `(.L_again)
        RET.REL.NODEC R2 `(k)
    """)
    assert [len(loop.ops) for loop in found.loops] == [2]


def test_only_the_asked_kernel_is_read() -> None:
    text = listing("THIS.IS.NOT {code}", "other") + listing("NOP\nEXIT") + listing("?", "k2")
    assert len(sass.parse(text, ENTRY).ops) == 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("NOP\nlower case\nEXIT", "'/*0010*/                   lower case ;' is no instruction, label or directive"),
        ("BRA `(.L_nowhere)", "goes to no label"),
        ("BRA R2", "goes to no label"),
        ("BRX R2 -0x10\nEXIT", "decided at run time"),
        ("JMX R2\nEXIT", "decided at run time"),
        ("IMAD R1, R2, R3, R4", "the kernel ends with IMAD"),
        ("@P0 BRA `(.L_a)\n.L_b:\nNOP\n.L_a:\nNOP\n@P1 BRA `(.L_b)\nEXIT", "entered at two places"),
        (".L_a:\nNOP\n.L_a:\nEXIT", "a second time"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(code: str, says: str) -> None:
    with pytest.raises(DisassemblyError, match=r"line [0-9]+ of the disassembly: ") as caught:
        kernel(code)
    assert says in caught.value.message


def test_padding_may_end_a_kernel() -> None:
    assert kernel("NOP").loops == ()


def test_a_text_that_is_cut_off_anywhere_is_refused() -> None:
    whole = listing(LOOP)
    assert len(sass.parse(whole, ENTRY).ops) == 9
    for end in range(len(whole.rstrip())):
        with pytest.raises(DisassemblyError):
            sass.parse(whole[:end], ENTRY)


def test_a_missing_instruction_is_refused() -> None:
    lines = listing(LOOP).splitlines()
    lines = [line for line in lines if "HMMA" not in line]
    with pytest.raises(DisassemblyError, match="does not follow"):
        sass.parse("\n".join(lines), ENTRY)


def test_an_absent_and_an_empty_kernel_are_refused() -> None:
    with pytest.raises(DisassemblyError, match="holds no kernel other"):
        sass.parse(listing("EXIT"), "other")
    with pytest.raises(DisassemblyError, match="holds no instruction"):
        kernel("")


@pytest.mark.parametrize(
    ("text", "word", "space", "loads", "stores", "bits"),
    [
        ("LD.E R1, [R2.64]", "LD.32", Space.GENERIC, True, False, 32),
        ("LD.E.64.SYS R1, [R2]", "LD.64", Space.GENERIC, True, False, 64),
        ("ST.E.128 [R2], R4", "ST.128", Space.GENERIC, False, True, 128),
        ("LDG.E.SYS R1, [R2]", "LDG.32", Space.GLOBAL, True, False, 32),
        ("LDG.E.U8 R1, [R2]", "LDG.8", Space.GLOBAL, True, False, 8),
        ("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", "LDG.128", Space.GLOBAL, True, False, 128),
        ("STG.E.U16 [R2], R4", "STG.16", Space.GLOBAL, False, True, 16),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R1], [R2.64]", "LDGSTS.128", Space.GLOBAL, True, False, 128),
        ("LDGSTS.E [R1], [R2.64]", "LDGSTS.32", Space.GLOBAL, True, False, 32),
        ("LDS.U.U8 R1, [R2]", "LDS.8", Space.SHARED, True, False, 8),
        ("STS.128 [R1], R4", "STS.128", Space.SHARED, False, True, 128),
        ("LDSM.16.M88 R1, [R2]", "LDSM.M88", Space.SHARED, True, False, 32),
        ("LDSM.16.MT88.2 R1, [R2]", "LDSM.MT88", Space.SHARED, True, False, 64),
        ("LDSM.16.M88.4 R1, [R2+UR4]", "LDSM.M88", Space.SHARED, True, False, 128),
        ("@P0 LDL R1, [R2]", "LDL.32", Space.LOCAL, True, False, 32),
        ("STL.128 [R2], R4", "STL.128", Space.LOCAL, False, True, 128),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R4", "RED.32", Space.GLOBAL, False, True, 32),
        ("ATOM.E.ADD PT, R1, [R2], R3", "ATOM.32", Space.GENERIC, True, True, 32),
    ],
)
def test_accesses_to_memory(text: str, word: str, space: Space, loads: bool, stores: bool, bits: int) -> None:
    found = sass.access(op(text))
    assert found == sass.Access(space, loads, stores, bits, word)
    assert sass.kind_of(op(text)) is Kind.MEMORY


@pytest.mark.parametrize(
    "text",
    ["LDC.64 R2, c[0x0][0x210]", "LDCU UR4, c[0x0][0x358]", "LDGDEPBAR", "REDUX R1, R2", "@!PT LDS RZ, [RZ]", "NOP"],
)
def test_what_touches_no_memory(text: str) -> None:
    assert sass.access(op(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "LDTM.x32 R1, tmem[UR4]",
        "STAS [R1], R2",
        "LDSM.8.MT168 R1, [R2]",
        "LDSM.16.M88.3 R1, [R2]",
        "LDG.64.128 R1, [R2]",
    ],
)
def test_an_access_of_unknown_form_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(DisassemblyError, match=r"line 12 of the disassembly: "):
        sass.access(op(text))


@pytest.mark.parametrize(
    ("text", "word", "volume"),
    [
        ("HMMA.1688.F32 R8, R4, R6, R8", "HMMA.F32", 1024),
        ("HMMA.16816.F16 R8, R4, R6, R8", "HMMA.F16", 2048),
        ("HMMA.16816.F32.BF16 R8, R4, R6, R8", "HMMA.F32.BF16", 2048),
        ("HMMA.1684.F32.TF32 R8, R4, R6, R8", "HMMA.F32.TF32", 512),
        ("IMMA.8816.S8.S8 R8, R4.ROW, R6.COL, R8", "IMMA.S8.S8", 1024),
        ("DMMA.884 R8, R4, R6, R8", "DMMA", 256),
        ("DMMA.8x8x4 R8, R4, R6, R8", "DMMA", 256),
    ],
)
def test_matrix_instructions(text: str, word: str, volume: int) -> None:
    assert sass.product(op(text)) == sass.Product(word, volume)
    assert sass.product(op(f"@!PT {text}")) is None


@pytest.mark.parametrize(
    "text", ["HMMA.999.F32 R8, R4, R6, R8", "HMMA R8, R4, R6, R8", "QMMA.16832.F32.E4M3.E4M3 R8, R4"]
)
def test_a_matrix_instruction_of_unknown_form_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(DisassemblyError, match=r"line 12 of the disassembly: .* is no matrix instruction"):
        sass.product(op(text))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("IMAD.MOV.U32 R1, RZ, RZ, R2", Kind.INTEGER),
        ("IADD.64 R2, R4, R6", Kind.INTEGER),
        ("LEA.HI.X R1, R2, R3, R4, 0x1, P0", Kind.INTEGER),
        ("UIADD3 UR4, UR4, 0x1, URZ", Kind.UNIFORM),
        ("ULOP3.LUT UR4, UR5, 0x1, URZ, 0xc0, !UPT", Kind.UNIFORM),
        ("UISETP.GE.AND UP0, UPT, UR4, UR5, UPT", Kind.UNIFORM),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", Kind.BARRIER),
        ("LDGDEPBAR", Kind.BARRIER),
        ("MOVM.16.MT88 R1, R2", Kind.OTHER),
        ("FFMA R1, R2, R3, R4", Kind.OTHER),
        ("S2UR UR4, SR_CTAID.X", Kind.OTHER),
        ("LDC R1, c[0x0][0x28]", Kind.OTHER),
        ("BREV R1, R2", Kind.INTEGER),
        ("BSSY B0, `(.L_end)", Kind.CONTROL),
    ],
)
def test_instructions_are_counted_by_class(text: str, kind: Kind) -> None:
    assert sass.kind_of(op(text)) is kind


# The tool ------------------------------------------------------------------------------------------------------------


def program(path: Path, script: str = "echo release 13.7, V13.7.1") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without nvdisasm, whose wheels would lie in the folder returned."""
    monkeypatch.setattr(nvrtc, "wheel_roots", lambda: [tmp_path / "nvidia"])
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    if os.access("/usr/local/cuda/bin/nvdisasm", os.X_OK):
        pytest.skip("this machine has an nvdisasm in /usr/local/cuda")
    return tmp_path


def test_without_the_tool_its_command_is_told(nowhere: Path) -> None:
    (nowhere / "nvidia/cu13/bin/nvdisasm").mkdir(parents=True)
    with pytest.raises(MissingPiece) as caught:
        sass.locate()
    assert caught.value.fix == "pip install 'cuda-toolkit[nvdisasm]'"


def test_the_places_are_looked_at_in_order(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for place in ("path", "cuda path/bin", "cuda home/bin", "nvidia/cu9/bin", "nvidia/cu13/bin"):
        found.append(program(nowhere / place / "nvdisasm"))
        if place.startswith("cuda"):
            monkeypatch.setenv(place.split("/")[0].replace(" ", "_").upper(), str(nowhere / place.split("/")[0]))
        assert sass.locate() == found[-1]
    found[-1].chmod(0o644)
    assert sass.locate() == found[-2]


def test_its_version_is_told(tmp_path: Path) -> None:
    assert sass.title(program(tmp_path / "a")) == "nvdisasm 13.7"
    with pytest.raises(DisassemblyError, match="does not say its version"):
        sass.title(program(tmp_path / "b", "echo hello"))


def test_the_cubin_is_handed_over_and_the_text_comes_back(tmp_path: Path) -> None:
    tool = program(tmp_path / "nvdisasm", 'echo "$1"; cat "$2"')
    assert sass.disassemble(tool, b"cubin") == "--print-code\ncubin"


def test_a_refusal_carries_the_tool_s_words(tmp_path: Path) -> None:
    tool = program(tmp_path / "nvdisasm", "echo no such architecture >&2; exit 3")
    with pytest.raises(DisassemblyError, match="no such architecture"):
        sass.disassemble(tool, b"")


def test_a_tool_that_cannot_start_is_a_missing_piece(tmp_path: Path) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_bytes(b"\x7fELF")
    tool.chmod(0o755)
    with pytest.raises(MissingPiece, match="does not start"):
        sass.disassemble(tool, b"")


def test_a_tool_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "LIMIT_S", 0.2)
    with pytest.raises(DisassemblyError, match="did not end"):
        sass.disassemble(program(tmp_path / "nvdisasm", "exec sleep 30"), b"")
