"""What is counted of a kernel: each slice adds the same, and a kernel with a hazard has no profile."""

from __future__ import annotations

import pytest

from wmmagen import derive, nvrtc, profile, trial
from wmmagen.arch import ARCHS
from wmmagen.config import Problem
from wmmagen.defaults import read_config
from wmmagen.errors import HazardFault

SM80 = ARCHS[80]
CONFIG = read_config("warps=2x1,frags=2x1,k_steps=2,copy=cpasync,stages=3,store=direct", SM80)


def _problem(slices: int) -> Problem:
    known = derive.values(CONFIG)
    return Problem.packed(CONFIG.operation, known["BLOCK_M"], 2 * known["BLOCK_N"], slices * known["BLOCK_K"])


def test_each_slice_adds_the_same() -> None:
    binary = trial.build(CONFIG, SM80)[1]
    four, six, eight = (profile.count(CONFIG, binary, _problem(slices)) for slices in (4, 6, 8))
    for figure in ("global_load_sectors", "shared_load_wavefronts", "shared_store_wavefronts", "tensor_instructions"):
        assert getattr(six, figure) - getattr(four, figure) == getattr(eight, figure) - getattr(six, figure) > 0
    problem = _problem(4)
    assert four.multiply_adds == problem.m * problem.n * problem.k
    assert four.global_store_sectors == six.global_store_sectors
    assert four.stored_bytes == problem.m * problem.n * 4


def test_a_hazard_has_no_profile() -> None:
    source = trial.render(CONFIG, SM80)
    broken = nvrtc.compile_source(source.text.replace("__syncthreads();", "", 1), source.kernel, SM80)
    with pytest.raises(HazardFault, match="race"):
        profile.count(CONFIG, broken, _problem(4))
