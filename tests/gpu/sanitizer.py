"""A program under one of compute-sanitizer's tools, and what that says of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

NAME = "compute-sanitizer"
_SUMMARY = re.compile(r"=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)[^\n]*")
_SAID = re.compile(r"^=+ ((?:Error|Warning|Invalid|Barrier error|Race|Program hit|Divergent)[^\n]*)", re.MULTILINE)


@dataclass(frozen=True)
class Said:
    """What a tool and the program under it said.

    Attributes:
        count: errors or hazards of the summary that has the most; None where there is no summary.
        first: the first of them in words; empty where there is none.
        over: whether the program was ended at its limit.
        status: the exit status.
        text: all of the output.
    """

    count: int | None
    first: str
    over: bool
    status: int
    text: str


def under(tool: str, program: Sequence[str], limit_s: float, sanitizer: str = NAME) -> Said:
    """Run ``program`` under ``tool``, for ``limit_s`` seconds at most."""
    command = [sanitizer, "--tool", tool, "--target-processes", "all"]
    if tool == "memcheck":
        # The bindings ask for a kernel's parameters until the driver says that there is no further one.
        command += ["--report-api-errors", "no"]
    text, status, over = _output([*command, *program], limit_s)
    counts = [int(number) for number in _SUMMARY.findall(text)]
    return Said(max(counts, default=None), next(iter(_SAID.findall(text)), ""), over, status, text)


def _output(command: Sequence[str], limit_s: float) -> tuple[str, int, bool]:
    """What a command prints, its status, and whether its time was over; then its whole process group is ended."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    over = False
    try:
        text = process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, over = process.communicate()[0], True
    return text, process.returncode, over
