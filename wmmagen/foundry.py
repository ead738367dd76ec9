"""Binaries to order: from the cache where they were made before, else from the compiler, here or in child processes.

A compiler in a child process can be called off: after its limit, when the time is over, or when the parent is
interrupted. NVRTC itself cannot be stopped.
"""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from wmmagen import cache, nvrtc
from wmmagen.arch import Arch
from wmmagen.cache import Cache
from wmmagen.errors import CompileError, CrashFault, MissingPiece, OutOfTime, TimeoutFault
from wmmagen.nvrtc import Binary
from wmmagen.supervisor import READY, Channel, Supervisor

#: What makes a binary of a source, its entry and an architecture: :func:`compile_source` or :meth:`Foundry.compile`.
Compiler = Callable[[str, str, Arch], Binary]

#: Seconds after which a compilation counts as one that never ends. Most take 0.2 s, large unrolled ones a few.
COMPILE_LIMIT_S = 120.0
#: Orders under way or waiting, for each process: enough that none is idle while its answer is fetched.
ORDERS_PER_PROCESS = 2
#: By how much compilers give way to whoever measures times on the same machine.
_NICE = 10


@dataclass(frozen=True)
class Order:
    """A source to compile; see :func:`wmmagen.nvrtc.compile_source`."""

    source: str
    entry: str
    arch: Arch
    line_info: bool = False

    @property
    def key(self) -> str:
        """What the cache calls its binary.

        Raises:
            MissingPiece: NVRTC or a header is not here.
        """
        decides = nvrtc.identity(self.source, self.arch, line_info=self.line_info)
        return cache.key_of((self.source, self.entry, *decides))


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def compile_source(source: str, entry: str, arch: Arch, *, line_info: bool = False) -> Binary:
    """As :func:`wmmagen.nvrtc.compile_source`, in this process, through the user's cache.

    Raises:
        CompileError: the source was refused, or holds no such kernel.
        MissingPiece: NVRTC or a header is not here, or this NVRTC does not know the architecture.
    """
    key = Order(source, entry, arch, line_info).key
    return _found_or_made(cache.default(), key, lambda: nvrtc.compile_source(source, entry, arch, line_info=line_info))


def assemble(binary: Binary, arch: Arch) -> Binary:
    """As :func:`wmmagen.nvrtc.assemble`, through the user's cache.

    Raises:
        CompileError: the PTX is made for a later architecture than ``arch``, or the assembler refuses it.
        MissingPiece: nvJitLink or its Python bindings are not here.
    """
    key = cache.key_of((binary.ptx, binary.entry, *nvrtc.assembler_identity(arch)))
    return _found_or_made(cache.default(), key, lambda: nvrtc.assemble(binary, arch))


def _found_or_made(kept: Cache, key: str, make: Callable[[], Binary]) -> Binary:
    found = kept.get(key)
    if found is None:
        found = make()
        kept.put(key, found)
    return found


class Foundry:
    """Compiles in several child processes at once, through a cache. No process is started before the first order.

    Args:
        jobs: how many processes.
        kept: the cache; None for the user's.
        limit_s: seconds that one compilation may take.
        until: the moment of :func:`time.monotonic` after which nothing is waited for; None for no such moment.
        precompiled: whether each process keeps the headers precompiled, in a folder of its own.
        gives_way: whether the processes leave the cores to whoever else wants them.
        line_info: whether binaries tell lines of the source.
    """

    def __init__(
        self,
        jobs: int,
        kept: Cache | None = None,
        *,
        limit_s: float = COMPILE_LIMIT_S,
        until: float | None = None,
        precompiled: bool = True,
        gives_way: bool = False,
        line_info: bool = False,
    ) -> None:
        self.jobs = jobs
        self._line_info = line_info
        self._kept = cache.default() if kept is None else kept
        self._limit_s = limit_s
        self._until = until
        self._folder = tempfile.TemporaryDirectory(prefix="wmmagen-") if precompiled else None
        arguments = (self._folder.name if self._folder else None, _NICE if gives_way else 0)
        self._processes = [Supervisor(serve, arguments, name="compiler") for _ in range(jobs)]
        self._idle: queue.SimpleQueue[Supervisor] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="foundry")
        self._begun: dict[Order, Future[Binary]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def order(self, source: str, entry: str, arch: Arch) -> Order:
        """The order by which :meth:`compile` makes a binary."""
        return Order(source, entry, arch, self._line_info)

    def begin(self, order: Order) -> None:
        """Compile ``order`` as soon as a process is free, for :meth:`compile` to fetch. Nothing is waited for.

        Raises:
            MissingPiece: NVRTC or a header is not here.
        """
        if order not in self._begun:
            self._begun[order] = self._threads.submit(self._carry_out, order, order.key)

    def compile(self, source: str, entry: str, arch: Arch) -> Binary:
        """As :func:`wmmagen.nvrtc.compile_source`; waits for what :meth:`begin` began where it did.

        Raises:
            CompileError: the source was refused, it holds no such kernel, or the compiler did not end within its
                limit or died of it.
            MissingPiece: NVRTC or a header is not here, this NVRTC does not know the architecture, or the process
                cannot be started.
            OutOfTime: ``until`` has come.
        """
        return self._fetched(self.order(source, entry, arch))

    def _fetched(self, order: Order) -> Binary:
        self.begin(order)
        left = None if self._until is None else max(0.0, self._until - time.monotonic())
        try:
            return self._begun.pop(order).result(left)
        except TimeoutError:
            raise OutOfTime(f"the time was over before {order.entry} was compiled") from None

    def compile_many(self, orders: Iterable[Order]) -> Iterator[Binary | CompileError]:
        """What becomes of each order, in their order; a few are begun ahead of the one that is waited for.

        Raises:
            MissingPiece: as :meth:`compile`.
            OutOfTime: as :meth:`compile`.
        """
        source = iter(orders)
        ahead = deque(islice(source, self.jobs * ORDERS_PER_PROCESS))
        for order in ahead:
            self.begin(order)
        while ahead:
            order = ahead.popleft()
            try:
                answer: Binary | CompileError = self._fetched(order)
            except CompileError as error:
                answer = error
            for following in islice(source, 1):
                self.begin(following)
                ahead.append(following)
            yield answer

    def close(self) -> None:
        """End all processes, whatever they are at. Closing twice is closing once."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.cancel()
        self._threads.shutdown()
        for process in self._processes:
            process.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _carry_out(self, order: Order, key: str) -> Binary:
        return _found_or_made(self._kept, key, lambda: self._ask(order))

    def _ask(self, order: Order) -> Binary:
        process = self._idle.get()
        try:
            answer = self._asked(process, order)
        except (TimeoutFault, CrashFault) as fault:
            raise CompileError(fault.message, "a smaller variant: fewer fragments, stages or k_steps") from fault
        finally:
            self._idle.put(process)
        if isinstance(answer, CompileError | MissingPiece):
            raise answer
        assert isinstance(answer, Binary)
        return answer

    def _asked(self, process: Supervisor, order: Order) -> object:
        what = f"compiling {order.entry} for {order.arch}"
        if self._folder is not None:
            # NVRTC maps its precompiled headers, and on a full disk dies of that; no source is to blame for it.
            with contextlib.suppress(CrashFault):
                return process.ask((order, True), limit_s=self._limit_s, what=what)
        return process.ask((order, False), limit_s=self._limit_s, what=what)


def serve(channel: Channel, folder: str | None, nice: int) -> None:
    """The life of a compiler process: answer orders by binaries or errors until the parent closes its end.

    With each order comes whether it may use precompiled headers.

    Args:
        folder: where to make a folder for precompiled headers; None compiles the headers every time.
        nice: by how much to give way.
    """
    os.nice(nice)
    precompiled = None if folder is None else Path(tempfile.mkdtemp(dir=folder))
    channel.send(READY)
    while True:
        try:
            order, quick = channel.receive()
        except EOFError:
            return
        channel.send(("ok", _answer(order, precompiled if quick else None)))


def _answer(order: Order, precompiled: Path | None) -> Binary | CompileError | MissingPiece:
    try:
        return nvrtc.compile_source(
            order.source, order.entry, order.arch, line_info=order.line_info, precompiled=precompiled
        )
    except CompileError as error:
        # A folder that is full or gone refuses the best of sources; what is refused without one is refused.
        return error if precompiled is None else _answer(order, None)
    except MissingPiece as error:
        return error
