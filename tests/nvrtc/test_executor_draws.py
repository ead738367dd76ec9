"""A sample of what ``prove_executor.py`` proves: drawn kernels are exact on drawn problems."""

from __future__ import annotations

import random

import pytest

from tests.fresh import from_spaces, larger
from wmmagen import trial
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend

pytestmark = pytest.mark.usefixtures("headers_once")

#: Another one than the proof's, so that these kernels are other ones.
SEED = 7_301
#: Larger block tiles take longer and have no other code.
MOST_ELEMENTS = 32 * 32


@pytest.mark.parametrize("sm", [75, 80, 90, 120])
def test_a_drawn_kernel_is_exact_on_drawn_problems(sm: int) -> None:
    rng = random.Random(SEED + sm)
    config = next(from_spaces(ARCHS[sm], rng, set(), MOST_ELEMENTS))
    binary = trial.build(config, ARCHS[sm])[1]
    backend = CpuBackend(seed=SEED + sm)
    for problem in (rng.choice(trial.validation_problems(config)), larger(config, rng)):
        run = trial.check_run(config, binary, backend, problem, above=None)
        assert run.exact and run.guaranteed, (config, problem, run.mismatch)
