"""The loops that measure a chip: they compile to what they promise, and the executor gets their exact sums."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from wmmagen import loops, nvrtc, sass
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend
from wmmagen.errors import MissingPiece
from wmmagen.instructions import Instruction
from wmmagen.loops import MemoryLoop, Products, RegisterLoop, SharedLoop
from wmmagen.nvrtc import Binary

pytestmark = pytest.mark.usefixtures("headers_once")

NEWEST, OLDEST = 120, 75
MADE = loops.made()
F32 = [inst for inst in MADE if inst.acc.name == "f32"]
TILE = (32, 64)


#: The first instruction of each other type.
OTHERS = [loops.made((a,))[0] for a in ("bf16", "tf32", "f64", "s8", "u8")]
#: Each instruction on one architecture, and each architecture with one instruction.
#: Between DMMAs of sm_90 the assembler puts an instruction that does nothing.
PAIRS = [(inst, 80 if inst.a.name == "f64" else 90) for inst in (*MADE, *OTHERS)] + [
    (MADE[0], sm) for sm in (75, 80, 86, 100, 120)
]
SHARED_PAIRS = [*((inst, 90) for inst in (*F32, *OTHERS)), (MADE[0], OLDEST), (MADE[0], NEWEST)]
MEMORY_SMS = (OLDEST, 90, NEWEST)
ACCESSES = get_args(loops.Access)


def tile_of(inst: Instruction) -> tuple[int, int]:
    """The same of every type, in what its tiles are scaled by."""
    return loops.tiles_of(inst)[loops.SHARED_TILES.index(TILE)]


def memory_loop(access: Any) -> MemoryLoop:
    return MemoryLoop(access, 512, 3, 4)


def text_of(loop: Any, sm: int) -> str:
    """The text, in which shared memory of another type has another name: it is one variable for all namespaces."""
    text: str = loop.text(ARCHS[sm])
    if not isinstance(loop, SharedLoop):
        return text
    return re.sub(r"(?<![.\w])shared(?![.\w])", f"shared_{loop.inst.a.name}", text)


@functools.cache
def together(sm: int) -> Binary:
    """Every loop for an architecture, each in a namespace: headers are read, and nvdisasm starts, once for all."""
    register = [RegisterLoop(inst) for inst, its in PAIRS if its == sm]
    shared = [SharedLoop(inst, tile_of(inst)) for inst, its in SHARED_PAIRS if its == sm]
    memory = [memory_loop(access) for access in ACCESSES if sm in MEMORY_SMS]
    several = [*register, *shared, *memory]
    # The headers come first, so that the same lines within the namespaces bring nothing.
    heads = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <mma.h>\n"
    texts = (f"namespace number_{n} {{\n{text_of(loop, sm)}\n}}\n" for n, loop in enumerate(several))
    binary = nvrtc.compile_source(heads + "".join(texts), several[0].entry, ARCHS[sm])
    assert "warning" not in binary.log
    return binary


@functools.cache
def compiled(loop: Any, sm: int) -> Binary:
    """One of the loops of :func:`together`."""
    used = nvrtc._usage(together(sm).log, loop.entry)
    assert used is not None and (used.spill_bytes, used.stack_bytes) == (0, 0)
    return replace(together(sm), entry=loop.entry)


@functools.cache
def read(sm: int) -> str:
    """What nvdisasm says of all of them."""
    try:
        tool = sass.locate()
    except MissingPiece as missing:
        pytest.skip(f"{missing.message}: {missing.fix}")
    return sass.disassemble(tool, together(sm).cubin)


def inner_loop(binary: Binary, kind: sass.Kind) -> list[sass.Op]:
    kernel = sass.parse(read(binary.arch.sm), binary.entry)
    # Outside of it no other loop holds such instructions, so all of the work is in it.
    (found,) = kernel.innermost(kind)
    return list(found.ops)


def demand_products(loop: Products, ops: list[sass.Op]) -> None:
    """Every product of a turn, no more, of the kind that the table promises, and no local memory."""
    assert loop.inst.machine is not None
    made = [product for op in ops if (product := sass.product(op)) is not None]
    assert {product.word for product in made} == {loop.inst.machine.matrix}
    i = loop.inst
    assert sum(product.volume for product in made) == loop.products(1) * i.m * i.n * i.k


@pytest.mark.parametrize(("inst", "sm"), PAIRS, ids=str)
def test_products_in_registers_are_all_that_the_loop_holds(inst: Instruction, sm: int) -> None:
    loop = RegisterLoop(inst)
    ops = inner_loop(compiled(loop, sm), sass.Kind.MATRIX)
    demand_products(loop, ops)
    assert not [op for op in ops if sass.access(op) is not None]
    kinds = Counter(sass.kind_of(op) for op in ops)
    # What counts the turns, and nothing of each product.
    assert len(ops) - kinds[sass.Kind.MATRIX] <= 6


@pytest.mark.parametrize(("inst", "sm"), SHARED_PAIRS, ids=str)
def test_fragments_from_shared_memory_are_loaded_in_every_turn(inst: Instruction, sm: int) -> None:
    assert inst.machine is not None
    loop = SharedLoop(inst, tile_of(inst))
    ops = inner_loop(compiled(loop, sm), sass.Kind.MATRIX)
    demand_products(loop, ops)
    words = Counter(access.word for op in ops if (access := sass.access(op)) is not None)
    along, _ = inst.machine.shared
    # Each loads four matrices of 8x8 at most.
    assert set(words) == {along} and words[along] >= sum(loop.tile) * loops.SHARED_K_STEPS * inst.k // 256


@pytest.mark.parametrize("sm", MEMORY_SMS)
@pytest.mark.parametrize("access", ACCESSES)
def test_memory_is_accessed_in_16_bytes(access: Any, sm: int) -> None:
    loop = memory_loop(access)
    words = Counter(a.word for op in inner_loop(compiled(loop, sm), sass.Kind.MEMORY) if (a := sass.access(op)))
    expected = {"read": ["LDG.128"], "write": ["STG.128"], "copy": ["LDG.128", "STG.128"]}[access]
    assert words == dict.fromkeys(expected, loops.MEMORY_UNROLL)


# ---------------------------------------------------------------------------------------------------------------------
# What they compute.


def run(loop: Products, blocks: int, turns: int) -> list[Any]:
    buffers = loops.buffers(loop, blocks, "integers")
    sm = next(its for inst, its in PAIRS if inst == loop.inst) if isinstance(loop, RegisterLoop) else 90
    return CpuBackend().run(compiled(loop, sm), loops.launch(loop, blocks, turns), buffers)


@pytest.mark.parametrize("inst", [*MADE, *OTHERS], ids=str)
def test_the_executor_gets_the_exact_sums_of_registers(inst: Instruction) -> None:
    loop = RegisterLoop(inst)
    returned = run(loop, 1, 2)
    assert loops.wrong(loop, 1, 2, returned) == ""
    # The same bits are no result of any other number of turns, none at all among them.
    assert "sums are wrong" in loops.wrong(loop, 1, 3, returned)
    assert "sums are wrong" in loops.wrong(loop, 1, 0, returned)


@pytest.mark.parametrize("inst", [*F32, *OTHERS], ids=str)
def test_the_executor_gets_the_exact_sums_from_shared_memory(inst: Instruction) -> None:
    loop = SharedLoop(inst, tile_of(inst))
    returned = run(loop, 2, 1)
    assert loops.wrong(loop, 2, 1, returned) == ""
    assert "sums are wrong" in loops.wrong(loop, 2, 2, returned)


@pytest.mark.parametrize("access", ACCESSES)
def test_the_executor_moves_every_vector(access: Any) -> None:
    loop = memory_loop(access)
    returned = CpuBackend().run(compiled(loop, 90), loop.launch, loop.buffers)
    assert loop.wrong(returned) == ""
    fewer = MemoryLoop(access, 512, 3, 8)
    assert "vectors are wrong" in fewer.wrong(returned)
    returned[1] = returned[1].copy()
    returned[1][-1] ^= np.uint8(1)
    assert "1 of" in loop.wrong(returned)


def test_a_loop_that_leaves_out_a_product_is_wrong() -> None:
    loop = RegisterLoop(MADE[0])
    text = loop.text(ARCHS[90])
    spoilt = text.replace("          wmma::mma_sync(", "          if (i + j + step < 9) wmma::mma_sync(")
    assert spoilt != text
    buffers = loops.buffers(loop, 1, "integers")
    binary = nvrtc.compile_source(spoilt, loop.entry, ARCHS[90])
    returned = CpuBackend().run(binary, loops.launch(loop, 1, 2), buffers)
    assert "of 16384 sums are wrong" in loops.wrong(loop, 1, 2, returned)
