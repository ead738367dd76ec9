"""Groups of warps that share the steps of a slice, on the executor: exact everywhere, and their sums in one order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu import prove_sliced
from wmmagen import layout, rules, trial
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend, execute
from wmmagen.config import Problem
from wmmagen.defaults import read_config

pytestmark = pytest.mark.usefixtures("headers_once")

SM80 = ARCHS[80]
#: Every way to feed and to store, with two groups or more, and with each mechanism that has a share in the meeting.
KERNELS = (
    "warps=2x1,frags=2x2,k_steps=4,warps_k=2,copy=cpasync,stages=3,fragment_buffers=2,store=staged,layout=cc",
    "warps=1x1,frags=1x2,k_steps=4,warps_k=4,copy=cpasync,stages=2,fragment_buffers=1,split_k=2,acc=f16,layout=cr",
    "warps=1x2,frags=3x1,k_steps=4,warps_k=2,feed=global,store=staged,d=f16,epilogue=linear+biascol+relu,layout=rc",
    "warps=1x1,frags=2x2,k_steps=4,warps_k=2,copy=ld,stages=2,fragment_buffers=2,residue=predicated,store=direct",
    "a=s8,warps=1x1,frags=2x2,k_steps=4,warps_k=4,copy=ld,stages=2,batch=strided,epilogue=linear,d=s8",
)


@pytest.mark.parametrize("text", KERNELS)
def test_groups_are_exact_and_nothing_is_found(text: str) -> None:
    config = read_config(text, SM80)
    binary = trial.build(config, SM80)[1]
    _, _, many, *_ = trial.validation_problems(config)
    run = trial.check_run(config, binary, CpuBackend(len(text)), many)
    assert run.exact and run.guaranteed, run.mismatch


def test_the_order_of_sums_is_one_and_the_one_that_is_said() -> None:
    """Three groups have 2^26, -2^26 and 1: which row of tiles keeps the 1 tells which sums it added first."""
    config = read_config(
        "warps=1x1,frags=3x1,k_steps=3,warps_k=3,copy=ld,stages=1,fragment_buffers=1,store=direct,layout=rr", SM80
    )
    binary = trial.build(config, SM80)[1]
    problem = Problem.packed(config.operation, 48, 16, 48)
    images = layout.images(problem)
    a, b = np.zeros((48, 48)), np.zeros((48, 16))
    for step, (left, right) in enumerate(((8192, 8192), (8192, -8192), (1, 1))):
        a[:, 16 * step], b[16 * step] = left, right
    buffers = (images[0].pack(a), images[1].pack(b), images[2].blank())
    launch = trial.launch_of(binary.entry, config, problem, images)
    for seed in range(3):
        d = images[2].unpack(execute(binary, launch, buffers, seed=seed).outputs[-1])
        # Row 0 has (2^26 - 2^26) + 1, row 1 (-2^26 + 1) + 2^26, row 2 (1 + 2^26) - 2^26, where 1 is less than an ulp.
        assert [np.unique(d[16 * i : 16 * i + 16]).tolist() for i in range(3)] == [[1.0], [0.0], [0.0]]


def test_what_the_proof_times_is_legal_for_its_problems_and_fits_a_card() -> None:
    for size, tiles in prove_sliced.TIMED.items():
        for text, counts in tiles:
            made = [prove_sliced.sliced(text, groups, ARCHS[90]) for groups in counts]
            problem = Problem.packed(made[0].operation, *size)
            assert [rules.check(config, ARCHS[90], problem) for config in made] == [[]] * len(counts)
            assert [config.warps_k for config in made] == list(counts) and counts[0] == 1
