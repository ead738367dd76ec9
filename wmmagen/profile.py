"""What a kernel moves and computes, counted by the CPU executor on a problem: no clock, no estimate."""

from __future__ import annotations

from wmmagen import derive, trial, work
from wmmagen.backends.cpu import execute
from wmmagen.config import KernelConfig, Problem
from wmmagen.executor import Counts
from wmmagen.nvrtc import Binary
from wmmagen.work import Work


def count(config: KernelConfig, binary: Binary, problem: Problem) -> Counts:
    """The figures of one launch of ``config`` on ``problem``, with operands of zeros: no figure depends on values.

    Args:
        binary: of ``config``, with its PTX.
        problem: small, because each launch is executed; packed or not.

    Raises:
        HazardFault: the kernel did what no kernel may do.
        LaunchFault, PtxError, TimeoutFault: as :func:`wmmagen.executor.launch`.
    """
    images = trial.images_of(problem)
    launch = trial.launch_of(binary.entry, config, problem, images)
    buffers = trial.launched(config, problem, [image.blank() * 0 for image in images])
    return execute(binary, launch, buffers).counts


#: Lengths of K on which a block is counted, in slices: even ones, because compilers unroll the loop over slices by two
#: and treat an odd last slice otherwise.
SLICES = (4, 8)


def work_of(config: KernelConfig, binary: Binary) -> Work:
    """What is done for one tile of D, counted: on two lengths of K, of which the difference is that of the slices.

    Args:
        binary: of ``config``, with its PTX.

    Raises:
        HazardFault: the kernel did what no kernel may do.
        LaunchFault, PtxError, TimeoutFault: as :func:`wmmagen.executor.launch`.
        ValueError: the kernel does not do the same in each slice.
    """
    known = derive.values(config)
    block = known["BLOCK_M"], known["BLOCK_N"]
    # Blocks that share the slices have two and four each.
    lengths = SLICES if known["SPLIT_K"] == 1 else (2 * known["SPLIT_K"], 4 * known["SPLIT_K"])
    problems = (Problem.packed(config.operation, *block, slices * known["BLOCK_K"]) for slices in lengths)
    shorter, longer = (count(config, binary, problem) for problem in problems)
    return work.from_counts(shorter, longer, lengths)
