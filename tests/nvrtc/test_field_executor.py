"""Right results of the field on the executor: a kernel of each class of cases, which a wrong template can fail.

`tests/pure/test_field_cases.py` has their calls, on a backend that knows no template; a card has all of their kernels.
Where a class is not about f16, its kernels here have operands of other types.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests import field
from wmmagen import derive, rules, trial
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import KernelConfig, Problem
from wmmagen.defaults import read_config
from wmmagen.foundry import compile_source
from wmmagen.mistakes import Edit
from wmmagen.render import render

SM80 = ARCHS[80]


@dataclass(frozen=True)
class Class:
    """Cases of one kind.

    Attributes:
        calls: how names of cases with its calls begin.
        kernels: that are called so here.
        mistake: one of its kind, in the text of the last of them.
        one_tile: whether D may be a tile, because its cases are not about M and N.
    """

    calls: str
    kernels: tuple[str, ...]
    mistake: Edit
    one_tile: bool = False

    @property
    def case(self) -> field.Case:
        return next(case for name, case in field.CASES.items() if name.startswith(self.calls))

    def problems(self, config: KernelConfig) -> Iterator[Problem]:
        known = derive.values(config)
        for problem in self.case.problems(config.operation):
            yield replace(problem, m=known["BLOCK_M"], n=known["BLOCK_N"]) if self.one_tile else problem


CLASSES = {
    # tvm #4136: one extent of the instruction is taken for another.
    "shapes": Class(
        "96x160x48 ",
        ("a=bf16,inst=32x8x16,warps=1x1,frags=1x4,k_steps=1,layout=rr,feed=shared",),
        Edit("ldd + j * INST_N", "ldd + j * INST_M"),
    ),
    # Forum 265654: lines are taken to be packed.
    "positions": Class(
        "positions ",
        ("a=s8,layout=rc,warps=1x1,frags=2x2,k_steps=1,copy=ld,stages=2,align_a=8,align_b=8",),
        Edit("(block_row + a_row) * lda", "(block_row + a_row) * K"),
    ),
    # cuda-samples #5: one extent of the problem is taken for another.
    "permutations": Class(
        "32, 16, 64 16x16x16",
        ("a=tf32,layout=cc,warps=1x1,frags=1x1,k_steps=2,copy=ld,stages=1",),
        Edit("slices = K / BLOCK_K;", "slices = N / BLOCK_K;"),
    ),
    # cutlass #3536, #3568, FusedKernelLibrary PR #284: it ends with the last copy, so the pipeline is not drained.
    "depths": Class(
        "K of 16 to 144 ",
        (
            "a=u8,layout=rc,warps=1x1,frags=2x1,k_steps=1,copy=ld,stages=1,align_a=8,align_b=8",
            "a=s8,layout=rc,warps=1x1,frags=1x2,k_steps=1,copy=ld,stages=2,align_a=8,align_b=8",
            "a=f64,layout=rc,warps=1x1,frags=1x2,k_steps=4,copy=cpasync,stages=3,fragment_buffers=2",
            "a=bf16,layout=cr,warps=1x1,frags=2x2,k_steps=1,copy=cpasync,stages=4",
        ),
        Edit("for (int slice = 0; slice < slices;", "for (int slice = 0; slice + STAGES - 2 < slices;"),
        one_tile=True,
    ),
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, made in CLASSES.items() for text in made.kernels])
def test_a_kernel_of_each_class_is_exact(kind: str, text: str) -> None:
    config, made = read_config(text, SM80), CLASSES[kind]
    binary = trial.build(config, SM80)[1]
    for number, problem in enumerate(made.problems(config)):
        run = trial.check_run(config, binary, CpuBackend(seed=number), problem, pattern=made.case.pattern)
        assert run.exact and run.guaranteed, (problem, run.mismatch)


@pytest.mark.parametrize("kind", CLASSES)
def test_its_own_mistake_is_found_in_each_of_its_calls(kind: str) -> None:
    made = CLASSES[kind]
    config = read_config(made.kernels[-1], SM80)
    source = render(config, SM80)
    broken = compile_source(made.mistake.applied(source.text), source.kernel, SM80)
    for problem in made.problems(config):
        assert not trial.check_run(config, broken, CpuBackend(), problem, pattern=made.case.pattern).exact, problem


def test_the_kernels_have_every_type_of_operands_and_every_number_of_stages() -> None:
    configs = [read_config(text, SM80) for made in CLASSES.values() for text in made.kernels]
    assert {c.operation.a.name for c in configs} == {"bf16", "tf32", "f64", "s8", "u8"}
    depths = [read_config(text, SM80) for text in CLASSES["depths"].kernels]
    assert sorted(c.stages for c in depths) == [1, 2, 3, 4]
    for made in CLASSES.values():
        for text in made.kernels:
            config = read_config(text, SM80)
            assert all(rules.check(config, SM80, problem) == [] for problem in made.problems(config))
