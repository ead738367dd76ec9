"""What several proofs do alike: how they end where they cannot begin, judge large results, build and record."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from wmmagen import emit, trial
from wmmagen.arch import Arch
from wmmagen.backends import Bytes, gpu
from wmmagen.config import Problem
from wmmagen.errors import WmmagenError
from wmmagen.verdict import judge


def ended(main: Callable[[], int]) -> int:
    """The exit status of a proof, for which a GPU is demanded before anything else is done.

    ``--help`` is answered anywhere, ``--backend cpu`` is the rehearsal of those proofs that have one, and ``--read``
    judges a record.
    """
    try:
        if not {"-h", "--help", "cpu", "--backend=cpu", "--read"} & set(sys.argv[1:]):
            gpu.devices()
        return main()
    except WmmagenError as error:
        print(f"{Path(sys.argv[0]).name}: {error.message}\n  {error.fix}", file=sys.stderr)
        return error.exit_status


class Judge:
    """Judges results on integers. Exact ones are equal, so bytes like those of one that was judged need no judge."""

    def __init__(self) -> None:
        #: D of the last problem, guards included, as an exact kernel left it.
        self._right: dict[Problem, Bytes] = {}

    def wrong(self, case: trial.Case, returned: Sequence[Bytes]) -> str:
        """What is wrong with the buffers that a launch left of the matrices of ``case``; empty where all is exact."""
        overwritten = trial.touched(case, returned)
        right = self._right.get(case.problem)
        if overwritten or (right is not None and np.array_equal(returned[-1], right)):
            return overwritten
        verdict = judge(case.inputs, case.images[-1], returned[-1], case.want, case.check)
        if not verdict.exact:
            return str(verdict)
        self._right = {case.problem: returned[-1]}
        return ""


def last_line(folder: Path, *command: str) -> str:
    """The last line that a command writes, run in ``folder``, with its exit status where that is not 0."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    said = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    return said[0] if done.returncode == 0 else f"{said[0]} (exit status {done.returncode})"


def answer(folder: Path, arch: Arch, program: str, *sources: str) -> str:
    """The last line of a program that nvcc builds of files in ``folder``; that of nvcc where it does not build."""
    refused = last_line(folder, "nvcc", f"-arch={arch}", "-O2", "-I.", "-o", program, *sources)
    return refused or last_line(folder, f"./{program}")


def recorded(record: Path | None, device: str, parts: Iterable[tuple[bool, str]]) -> int:
    """The exit status of a proof of ``parts``, each of which says whether it holds and what it is.

    The record, where there is to be one, is written after each, so that a run that is ended keeps it.
    """
    lines, right = [device], True
    for held, words in parts:
        right = right and held
        lines.append(f"{'ok' if held else 'FAILED':<7} {words}")
        print(lines[-1], flush=True)
        if record is not None:
            emit.write(record, "\n".join(lines) + "\n")
    return 0 if right else 1
