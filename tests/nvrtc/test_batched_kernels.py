"""Batches on the executor: both ways to find matrices, exact and without a finding; the proof has many more kernels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.batches import KINDS
from wmmagen import foundry, lint, trial
from wmmagen.arch import ARCHS
from wmmagen.backends.cpu import CpuBackend
from wmmagen.defaults import read_config
from wmmagen.errors import LaunchFault
from wmmagen.executor import Pointer, Table, launch

SM80 = ARCHS[80]


@pytest.mark.parametrize(("batch", "kind"), [("strided", KINDS[4]), ("pointers", KINDS[2]), ("pointers", KINDS[7])])
def test_a_batch_is_exact(batch: str, kind: str) -> None:
    config = read_config(f"batch={batch},{kind}", SM80)
    _, binary = trial.build(config, SM80)
    runs = trial.validate(config, binary, CpuBackend(), trial.validation_problems(config))
    assert [run.mismatch for run in runs if not run.exact] == []
    # What an array points to is global memory: no access of the machine code is a generic one.
    report = lint.examine(config, binary)
    assert report.defects == ()


COPY = """\
extern "C" __global__ void copy(const int* const* from, int* const* to) { to[blockIdx.y][0] = from[blockIdx.y][1]; }
"""


def test_the_executor_follows_pointers_out_of_a_table() -> None:
    ptx = foundry.compile_source(COPY, "copy", SM80).ptx
    data, target = np.arange(8, dtype=np.int32), np.zeros(2, np.int32)
    tables = [np.zeros(2, np.uint64), np.zeros(2, np.uint64)]
    arguments = [Table(2, (Pointer(0, 16), Pointer(0, 0))), Table(3, (Pointer(1, 0), Pointer(1, 4)))]
    result = launch(ptx, "copy", (1, 2, 1), (1, 1, 1), arguments, 0, buffers=[data, target, *tables])
    assert result.findings == ()
    assert list(result.outputs[1].view(np.int32)) == [5, 1]
    for wrong, words in (
        (Table(7, ()), "points into buffer 7"),
        (Table(2, (Pointer(9),)), "points into buffer 9"),
        (Table(2, (Pointer(0),) * 3), "needs 24 bytes in buffer 2 of 16"),
    ):
        with pytest.raises(LaunchFault, match=words):
            launch(ptx, "copy", (1, 2, 1), (1, 1, 1), [wrong, arguments[1]], 0, buffers=[data, target, *tables])
