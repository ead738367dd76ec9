"""Small kernels in PTX, written by hand, for the tests of the executor."""

from __future__ import annotations

from typing import Any

import numpy as np

from wmmagen import executor
from wmmagen.executor import Pointer

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
_REGISTERS = """
  .reg .pred %p<20>; .reg .b16 %h<40>; .reg .b32 %r<80>; .reg .f32 %f<80>; .reg .b64 %d<40>;
"""
#: The thread's number in %r0, the addresses of the buffers in %d0, %d1 …, the thread's 4 bytes of each in %d10 …
_PROLOGUE = """
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mad.lo.s32 %r3, %r1, %r2, %r0;
"""


def kernel(body: str, *, buffers: int = 1, numbers: int = 0, shared: str = "", prologue: bool = True) -> str:
    """A kernel ``k`` of some pointers and 32-bit numbers (``n0`` …) around ``body``."""
    parameters = [f".param .u64 b{i}" for i in range(buffers)] + [f".param .u32 n{i}" for i in range(numbers)]
    loads = "".join(
        f"  ld.param.u64 %d{i}, [b{i}];\n  cvta.to.global.u64 %d{i}, %d{i};\n"
        f"  mad.wide.u32 %d{10 + i}, %r3, 4, %d{i};\n"
        for i in range(buffers)
    )
    start = _PROLOGUE + loads if prologue else ""
    return f"{HEADER}{shared}\n.visible .entry k({', '.join(parameters)})\n{{{_REGISTERS}{start}{body}\n  ret;\n}}\n"


#: The line of the first line of a body, in a kernel of one buffer.
FIRST_LINE = kernel("\n// here").split("\n").index("// here")


def run(
    body: str,
    *arrays: np.ndarray,
    numbers: tuple[int, ...] = (),
    blocks: int = 1,
    threads: int = 32,
    shared_bytes: int = 0,
    shared: str = "",
    **more: Any,
) -> executor.Result:
    """Run ``body`` as a kernel over these buffers and numbers."""
    text = kernel(body, buffers=len(arrays), numbers=len(numbers), shared=shared)
    args = [*(Pointer(number) for number in range(len(arrays))), *numbers]
    return executor.launch(text, "k", (blocks, 1, 1), (threads, 1, 1), args, shared_bytes, buffers=arrays, **more)


def output(result: executor.Result, number: int, like: np.ndarray) -> np.ndarray:
    """A buffer after the launch, in the type and shape of ``like``."""
    return result.outputs[number].view(like.dtype).reshape(like.shape)


def codes(result: executor.Result) -> set[str]:
    """The codes of what was found."""
    return {finding.code for finding in result.findings}
