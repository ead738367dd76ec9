"""What a kernel moves and computes, counted by the CPU executor on a problem: no clock, no estimate."""

from __future__ import annotations

from wmmagen import executor, layout, trial
from wmmagen.backends import Pointer
from wmmagen.config import KernelConfig, Problem
from wmmagen.errors import HazardFault
from wmmagen.executor import Counts
from wmmagen.nvrtc import Binary


def count(config: KernelConfig, binary: Binary, problem: Problem) -> Counts:
    """The figures of one launch of ``config`` on ``problem``, with operands of zeros: no figure depends on values.

    Args:
        binary: of ``config``, with its PTX.
        problem: small, because each launch is executed; packed or not.

    Raises:
        HazardFault: the kernel did what no kernel may do.
        LaunchFault, PtxError, TimeoutFault: as :func:`wmmagen.executor.launch`.
    """
    images = layout.images(problem)
    launch = trial.launch_of(binary.entry, config, problem, images)
    result = executor.launch(
        binary.ptx,
        launch.entry,
        launch.grid,
        launch.block,
        [executor.Pointer(a.buffer, a.offset) if isinstance(a, Pointer) else a for a in launch.arguments],
        launch.shared_bytes,
        buffers=[image.blank() * 0 for image in images],
    )
    if result.findings:
        words = "; ".join(str(finding) for finding in result.findings)
        raise HazardFault(words, [finding.as_json() for finding in result.findings])
    return result.counts
