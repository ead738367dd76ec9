"""The executor's reader of PTX: what it takes, and that anything else is an error with a line."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts_ptx import FIRST_LINE, HEADER, kernel, output, run

from wmmagen import executor
from wmmagen.errors import LaunchFault, PtxError, TimeoutFault
from wmmagen.executor import Pointer, control, ptx

WHOLE = kernel(
    """
  setp.lt.u32 %p0, %r0, 4;
  @%p0 bra $L_low;
  st.global.b32 [%d10], 7;
  bra $L_end;
$L_low:
  { .reg .b32 t; mov.u32 t, 5; st.global.b32 [%d10+0], t; }
$L_end:"""
)


def test_scopes_labels_and_predicates() -> None:
    got = executor.launch(WHOLE, "k", (1, 1, 1), (32, 1, 1), [Pointer(0)], 0, buffers=[np.zeros(32, np.uint32)])
    assert got.outputs[0].view(np.uint32).tolist() == [5] * 4 + [7] * 28


def test_statements_know_their_lines() -> None:
    module = ptx.parse(HEADER + '.visible .entry k()\n{\n.loc 1 7 3\nret; ret;\n.loc 2 9 1, function_name $x, '
                       'inlined_at 1 12 5\nret;\n}\n.section .debug_str\n{\n.b8 1\n}\n')  # fmt: skip
    lines = [(s.line, s.source_line) for s in module.kernels["k"].statements]
    assert lines == [(7, 7), (7, 7), (9, 12)]


def test_post_dominators_of_a_loop_and_a_branch() -> None:
    body = """
$L_head:
  setp.eq.u32 %p0, %r0, 3;
  @%p0 bra $L_left;
  add.u32 %r0, %r0, 2;
  bra $L_join;
$L_left:
  add.u32 %r0, %r0, 1;
$L_join:
  setp.lt.u32 %p1, %r0, 40;
  @%p1 bra $L_head;
"""
    blocks = control.blocks_of(ptx.parse(kernel(body)).kernels["k"])
    assert [(b.target, b.follows, b.meeting) for b in blocks] == [
        (control.END, 1, 1),
        (3, 2, 4),
        (4, 3, 4),
        (control.END, 4, 4),
        (1, 5, 5),
        (control.END, control.END, control.END),
    ]


def test_a_vector_load_of_a_parameter_and_an_initialized_variable() -> None:
    text = (
        HEADER
        + ".global .align 4 .u32 table[3] = {10, 20, 0x1E};\n"
        + ".visible .entry k(.param .u64 b, .param .align 4 .b32 n)\n{ .reg .b32 %r<9>; .reg .b64 %d<3>;\n"
        + "ld.param.u64 %d0, [b]; ld.param.s32 %r1, [n]; mov.u64 %d1, table; ld.global.b32 %r2, [%d1+8];\n"
        + "add.s32 %r1, %r1, %r2; st.global.v2.b32 [%d0], {%r1, -1}; ret; }\n"
    )
    out = np.zeros(2, np.int32)
    got = executor.launch(text, "k", (1, 1, 1), (1, 1, 1), [Pointer(0), -4], 0, buffers=[out])
    assert output(got, 0, out).tolist() == [26, -1]
    assert got.findings == ()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (kernel("  foo.b32 %r4, %r5;"), FIRST_LINE, "foo.b32"),
        (kernel("  add.ftz.f32 %f0, %f1, %f2;"), FIRST_LINE, "add.ftz.f32"),
        (kernel("  mov.u32 %r99, 1;"), FIRST_LINE, "%r99"),
        (kernel("  mov.u32 %r4, nowhere;"), FIRST_LINE, "nowhere"),
        (kernel("  bra $L_nowhere;"), FIRST_LINE, "no label"),
        (kernel("  add.s32 %r4, %r5;"), FIRST_LINE, "operands"),
        (kernel("  add.s32 %r4, %r5, ;"), FIRST_LINE, "missing"),
        (kernel("  add.s32 %r4, %r5, {%r6;"), FIRST_LINE, "brace"),
        (kernel("  add.s32 %d4, %r5, %r6;"), FIRST_LINE, "64 bits"),
        (kernel("  ld.global.b32 %r4, %r5;"), FIRST_LINE, "no address"),
        (kernel("  mov.u32 %r4, 12abc;"), FIRST_LINE, "no number"),
        (kernel("  mov.u32 %r4, 028;"), FIRST_LINE, "no number"),
        (kernel("  mov.u32 %r4, %clock;"), FIRST_LINE, "%clock"),
        (kernel("  Call me;"), FIRST_LINE, "no instruction"),
        (kernel("  cp.async.bulk.shared.global [%r4], [%d0], 16;"), FIRST_LINE, "cp.async.bulk"),
        (
            kernel("  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%r4}, {%r5}, {%f1};"),
            FIRST_LINE,
            "mma.sync",
        ),
        (kernel("$L_a:\n$L_a:"), FIRST_LINE + 1, "second label"),
        (kernel("  .reg .b33 %x;"), FIRST_LINE, "b33"),
        (HEADER + "add.s32 %r1, %r2, %r3;\n", 4, "outside of a kernel"),
        (HEADER + "}\n", 4, "closes nothing"),
        (HEADER, 4, "no kernel"),
        ("", 1, "no kernel"),
    ],
)
def test_malformed_text_is_an_error_with_its_line(text: str, line: int, words: str) -> None:
    buffers = [np.zeros(32, np.uint32)]
    with pytest.raises(PtxError, match=rf"line {line}:.*{re.escape(words)}"):
        executor.launch(text, "k", (1, 1, 1), (32, 1, 1), [Pointer(0)], 0, buffers=buffers)


@given(st.integers(0, len(WHOLE) - 4))
@settings(max_examples=60, deadline=None)
def test_truncated_text_is_an_error_with_a_line(length: int) -> None:
    with pytest.raises(PtxError, match=r"line [0-9]+"):
        executor.launch(WHOLE[:length], "k", (1, 1, 1), (32, 1, 1), [Pointer(0)], 0, buffers=[np.zeros(32, np.uint32)])


@given(st.integers(0, len(WHOLE) - 1), st.characters(codec="ascii"))
@settings(max_examples=80, deadline=None)
def test_a_changed_character_never_hangs_nor_breaks_the_reader(place: int, sign: str) -> None:
    text = WHOLE[:place] + sign + WHOLE[place + 1 :]
    with contextlib.suppress(PtxError, LaunchFault, TimeoutFault):
        executor.launch(
            text, "k", (1, 1, 1), (32, 1, 1), [Pointer(0)], 0, buffers=[np.zeros(32, np.uint32)], budget=2000
        )


def test_a_launch_that_is_not_the_kernels() -> None:
    out = np.zeros(32, np.uint32)
    with pytest.raises(LaunchFault, match=r"no kernel q"):
        executor.launch(WHOLE, "q", (1, 1, 1), (32, 1, 1), [], 0)
    for args, threads, words in (
        ([], 32, "takes 1 arguments"),
        ([7.5], 32, "argument 0"),
        ([Pointer(1)], 32, "buffer 1 of 1"),
        ([Pointer(0)], 1025, "1 to 1024"),
        ([Pointer(0)], 0, "1 to 1024"),
    ):
        with pytest.raises(LaunchFault, match=words):
            executor.launch(WHOLE, "k", (1, 1, 1), (threads, 1, 1), args, 0, buffers=[out])
    with pytest.raises(LaunchFault, match="cannot be asked for"):
        run("", out, shared_bytes=-1)
