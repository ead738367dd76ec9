"""A sample of what ``prove_ragged.py`` proves: kernels for all sizes are exact where sizes are no multiples."""

from __future__ import annotations

import random

import pytest

from tests.ragged import VARIANTS, problem_of, sizes
from wmmagen import defaults, rules, trial
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend

pytestmark = pytest.mark.usefixtures("headers_once")

SM80 = ARCHS[80]
#: Another one than the proof's, so that the sizes are other ones.
SEED = 7_302
#: Rows and columns of one, more of K than the pipeline holds, and nothing to sum.
ALWAYS = ((1, 40, 300), (40, 1, 75), (33, 20, 0))


# Both ways of copying, one set of fragments and two, and elements of a byte; the proof has the others.
@pytest.mark.parametrize("number", [0, 1, 2, 3, 9])
def test_a_kernel_for_all_sizes_is_exact_and_keeps_to_the_matrices(number: int) -> None:
    config = defaults.read_config(f"residue=predicated,{VARIANTS[number]}", SM80)
    rules.demand(config, SM80)
    binary = trial.build(config, SM80)[1]
    backend = CpuBackend(seed=SEED + number)
    asked = [*ALWAYS[number % 3 : number % 3 + 1], *sizes(random.Random(SEED + number), 3 if number < 4 else 1)]
    for turn, size in enumerate(asked):
        problem = problem_of(config, size, number + turn)
        run = trial.check_run(config, binary, backend, problem)
        assert run.exact and run.guaranteed, (problem, run.mismatch)
