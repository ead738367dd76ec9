"""Cases of a proof that are judged side by side, in processes that share one card.

Making inputs and comparing results take a processor far longer than a small kernel takes a card.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

from wmmagen import rules, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.errors import Fault
from wmmagen.foundry import usable_cores

Case = TypeVar("Case")
Told = TypeVar("Told")

#: More contexts than this keep each other waiting for the card.
MOST = 8
#: What NumPy's libraries ask for the number of their threads; a process has about two cores.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def spread(
    judged: Callable[[Backend, Case], Told],
    cases: Iterable[Case],
    arch: Arch,
    *,
    kind: str = "gpu",
    jobs: int | None = None,
) -> Iterator[Told]:
    """What ``judged`` tells of each case, in the order of the cases.

    Args:
        judged: a function of a module, which is handed to the processes by its name.
        arch: what the backend of each process is picked for.
        kind: which backend, as ``--backend`` names it.
        jobs: processes; None for half as many as there are cores, :data:`MOST` at most.

    Raises:
        Exception: what ``judged`` raised, of the first case that raised anything.
        BrokenProcessPool: a process ended.
    """
    jobs = jobs or max(1, min(MOST, usable_cores() // 2))
    for variable in _THREADS:
        os.environ.setdefault(variable, "2")
    spawn = multiprocessing.get_context("spawn")  # a context of CUDA does not live through a fork
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_begin, initargs=(kind, arch)) as pool:
        told: list[Future[Told]] = [pool.submit(_tell, judged, case) for case in cases]
        try:
            for one in told:
                yield one.result()
        finally:
            for one in told:
                one.cancel()


def exact_lines(
    wanted: Iterable[tuple[KernelConfig, Sequence[Problem]]], arch: Arch, kind: str
) -> Iterator[tuple[bool, str]]:
    """For each configuration whether it is exact on its problems, and a line that says so.

    Raises:
        IllegalConfig: one of them is illegal.
    """
    cases = [(config, arch, tuple(problems)) for config, problems in wanted]
    for config, *_ in cases:
        rules.demand(config, arch)
    return spread(_exact_line, cases, arch, kind=kind)


def _exact_line(backend: Backend, case: tuple[KernelConfig, Arch, Sequence[Problem]]) -> tuple[bool, str]:
    config, arch, problems = case
    try:
        runs = trial.validate(config, trial.build(config, arch)[1], backend, problems)
    except Fault as fault:
        return False, f"{name(config)}: {fault.outcome}: {fault.message}"
    wrong = [f"{run.problem}: {run.mismatch}" for run in runs if not run.exact]
    return not wrong, f"{name(config)}: {'; '.join(wrong) or f'{len(runs)} launches exact'}"


_held = ExitStack()
_backends: list[Backend] = []


def _begin(kind: str, arch: Arch) -> None:
    _backends.append(_held.enter_context(pick(kind, arch)).demanded())


def _tell(judged: Callable[[Backend, Case], Told], case: Case) -> Told:
    return judged(_backends[0], case)
