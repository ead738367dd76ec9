"""A child process that may crash or hang, and the parent that survives it. Knows neither CUDA nor GEMM.

The child is a fresh interpreter that imports the target function and nothing of the parent's main module: neither
the command line nor an unguarded script runs a second time in it. It is started as a plain subprocess with one
socket, because the spawn method of :mod:`multiprocessing` would import that main module, and would leave a resource
tracker running behind it.

A target is a function of an importable module, ``target(channel, *arguments)``. It sends :data:`READY` once it can
work, then answers every request that it receives by ``("ok", value)`` or by ``("fault", outcome, text)`` with an
outcome of :class:`wmmagen.errors.Fault`. After ``launch`` it goes on, after any other outcome its process is ended.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from typing import IO, Any, Self

from wmmagen.errors import CrashFault, Fault, LaunchFault, MissingPiece, TimeoutFault

READY = ("ready",)
START_LIMIT_S = 60.0

_FAULTS: dict[str, type[Fault]] = {fault.outcome: fault for fault in (LaunchFault, TimeoutFault, CrashFault)}
_HEADER = struct.Struct("<4sI")
#: Of each part, its length and the name by which the other end keeps it, 0 for none.
_PART = struct.Struct("<QQ")
_MAGIC = b"wmm1"
_MAX_PARTS = 1 << 16
_MAX_BYTES = 1 << 40
#: An array of this size that nobody can write to is kept where it arrives, for the next message that holds it.
_KEPT_FROM_BYTES = 1 << 20
#: Of each direction; what was used longest ago goes first.
_MOST_KEPT_BYTES = 2 << 30
#: Seconds for a process that closed its socket to finish, and for a killed one to be gone.
_EXIT_S = 5.0
_KILL_S = 30.0
_TAIL_LINES = 3
_BOOT = """\
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from wmmagen.supervisor import child
child(int(sys.argv[1]))
"""


class BrokenMessage(Exception):
    """What arrived is no message."""


class _Shelf:
    """The names of what is kept, and its sizes. Both ends of a direction do the same to theirs, so they stay alike."""

    def __init__(self) -> None:
        self._sizes: collections.OrderedDict[int, int] = collections.OrderedDict()

    def __contains__(self, name: int) -> bool:
        return name in self._sizes

    def use(self, name: int, size: int) -> None:
        """Keep a part, or keep it longer."""
        self._sizes[name] = size
        self._sizes.move_to_end(name)

    def forget(self) -> list[int]:
        """Drop what is too much, and say what it was. Asked between messages: each may use all that it names."""
        dropped = []
        while sum(self._sizes.values()) > _MOST_KEPT_BYTES:
            dropped.append(self._sizes.popitem(last=False)[0])
        return dropped


class Channel:
    """Messages over a stream socket: any picklable object, with its arrays sent as they lie in memory.

    A large array that cannot be written to is sent once, and in later messages called by its name.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._there, self._here = _Shelf(), _Shelf()
        self._sent: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._received: dict[int, bytearray] = {}
        self._names = itertools.count(1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def cut(self) -> None:
        """End every read and write of this end that is under way, whoever holds the other one."""
        # Where the other end has gone already, there is nothing left to cut.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, message: object) -> None:
        """Send one message, waiting until the other end took it.

        Raises:
            OSError: the other end is gone.
        """
        buffers: list[pickle.PickleBuffer] = []
        body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        arrays = [buffer.raw() for buffer in buffers]
        named = [(memoryview(body), 0, False), *((array, *self._name(array)) for array in arrays)]
        self._socket.sendall(
            _HEADER.pack(_MAGIC, len(named)) + b"".join(_PART.pack(part.nbytes, name) for part, name, _ in named)
        )
        for part, _, held in named:
            if not held:
                self._socket.sendall(part)
        for name in self._there.forget():
            self._sent = {key: value for key, value in self._sent.items() if value[1] != name}

    def _name(self, part: memoryview) -> tuple[int, bool]:
        """The name of a part, 0 where it has none, and whether the other end holds it."""
        if not part.readonly or part.nbytes < _KEPT_FROM_BYTES:
            return 0, False
        # An array lives as long as nobody has taken its place in memory.
        known, name = self._sent.get(id(part.obj), (lambda: None, 0))
        held = known() is part.obj and name in self._there
        if not held:
            name = next(self._names)
            self._sent[id(part.obj)] = weakref.ref(part.obj), name
        self._there.use(name, part.nbytes)
        return name, held

    def receive(self) -> Any:
        """Wait for one message. Its arrays are writable where they were at the other end.

        Raises:
            EOFError: the other end is gone.
            OSError: the same, seen by the system.
            BrokenMessage: it cannot be read.
        """
        magic, count = _HEADER.unpack(self._exactly(_HEADER.size))
        if magic != _MAGIC or not 0 < count <= _MAX_PARTS:
            raise BrokenMessage("it has no header")
        sizes = list(_PART.iter_unpack(self._exactly(count * _PART.size)))
        total = sum(length for length, _ in sizes)
        if total > _MAX_BYTES:
            raise BrokenMessage(f"it claims {total} bytes")
        body, *buffers = [self._part(*size) for size in sizes]
        for name in self._here.forget():
            del self._received[name]
        try:
            return pickle.loads(body, buffers=buffers)
        except (
            pickle.UnpicklingError,
            EOFError,
            ImportError,
            LookupError,
            AttributeError,
            TypeError,
            ValueError,
        ) as error:
            raise BrokenMessage(f"{type(error).__name__}: {error}") from error

    def _part(self, length: int, name: int) -> bytearray:
        if name in self._here:
            self._here.use(name, length)
            return self._received[name]
        part = self._exactly(length)
        if name:
            self._here.use(name, length)
            self._received[name] = part
        return part

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        got = 0
        while got < size:
            step = self._socket.recv_into(view[got:])
            if not step:
                raise EOFError
            got += step
        return data


def child(descriptor: int) -> None:
    """The life of the child process: receive a target and its arguments, and be it."""
    channel = Channel(socket.socket(fileno=descriptor))
    threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()
    target, arguments = channel.receive()
    target(channel, *arguments)


def _end_with_parent(descriptor: int) -> None:
    """A parent that was killed cannot end a child that hangs, so the child watches for it."""
    watch = select.poll()
    watch.register(descriptor, select.POLLHUP)
    watch.poll()
    os._exit(1)


class _Deadline:
    """Kills a process at its time and cuts its socket, so that no read or write of it can outlast the limit.

    Killing alone is not enough: a grandchild may hold the other end, or a driver keep the process from dying.
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, seconds: float) -> None:
        self.expired = False
        self._process = process
        self._channel = channel
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def _expire(self) -> None:
        self.expired = True
        self._process.kill()
        self._channel.cut()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()


class _Worker:
    """One child process, its channel, and a file that takes what it prints."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.log: IO[bytes] = tempfile.TemporaryFile()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=subprocess.STDOUT,
            )
        self.channel = Channel(ours)
        self.end = weakref.finalize(self, _end, self.process, self.channel, self.log)

    def epitaph(self) -> str:
        """How the process ended and what it said last. Waits for an end that is under way."""
        _wait(self.process, _EXIT_S)
        code = self.process.poll()
        if code is None:
            how = "it closed its socket but kept running"
        elif code < 0:
            how = f"it died of {_signal_name(-code)}"
        else:
            how = f"it exited with status {code}"
        last = self._last_words()
        return f"{how}: {last}" if last else how

    def _last_words(self) -> str:
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - 4096))
        lines = self.log.read().decode(errors="replace").split("\n")
        return " | ".join([line.strip() for line in lines if line.strip()][-_TAIL_LINES:])


def _signal_name(number: int) -> str:
    known = {s.value: s.name for s in signal.Signals}
    return known.get(number, f"signal {number}")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        # A process inside the kernel driver may take longer to die; it is reaped when the next one is started.
        pass


def _end(process: subprocess.Popen[bytes], channel: Channel, log: IO[bytes]) -> None:
    process.kill()
    channel.close()
    log.close()
    _wait(process, _KILL_S)


class Supervisor:
    """Asks a child process, starts it when there is none, and ends it when it misbehaves.

    Args:
        target: a function of an importable module; see the module's text for what it has to do.
        arguments: handed to it after the channel.
        name: what the child is, for messages.
        start_limit_s: seconds that a start may take. It is charged to no request.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[object, ...] = (),
        *,
        name: str = "worker",
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._target = target
        self._arguments = arguments
        self._name = name
        self._start_limit_s = start_limit_s
        self._worker: _Worker | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process that answers now; None where none is running."""
        return self._worker.process.pid if self._worker else None

    def ask(self, request: object, *, limit_s: float, what: str = "the request") -> Any:
        """The answer of the child to ``request``.

        Args:
            request: any picklable object.
            limit_s: seconds for the request to travel, to be carried out, and for its answer to come back.
            what: the request in a message's words.

        Raises:
            LaunchFault: the child refused it, and goes on.
            TimeoutFault: no answer in time; the child was killed.
            CrashFault: the child said that it crashed, ended, or answered nonsense.
            MissingPiece: the child could not be started.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the {self._name} was closed and may not be used afterwards")
            if self._worker is None:
                self._start()
            reply = self._exchange(request, limit_s, what)
            return self._interpret(reply, what)

    def cancel(self) -> None:
        """End the child now, also while another thread asks it: that request ends as a fault. Nothing follows it."""
        # The lock is the asking thread's. What it starts after this line, it ends itself.
        self._closed = True
        worker = self._worker
        if worker is not None:
            worker.process.kill()
            worker.channel.cut()

    def close(self) -> None:
        """End the child, after the request that another thread may be asking. Closing twice is closing once."""
        with self._lock:
            self._closed = True
            self._drop()

    def _start(self) -> None:
        """Start a worker and wait until it is ready. None is left on every other way out of here."""
        self._worker = worker = _Worker()
        deadline = _Deadline(worker.process, worker.channel, self._start_limit_s)
        why = "interrupted"
        try:
            if self._closed:
                worker.process.kill()  # cancelled while it was made, when there was nothing to cancel
            with deadline:
                worker.channel.send((self._target, self._arguments))
                ready = bool(worker.channel.receive() == READY)
            why = "" if ready else "(it said something else instead)"
        except (EOFError, OSError):
            why = f"({worker.epitaph()})"
        except BrokenMessage as error:
            why = f"(it said nonsense: {error})"
        finally:
            if why or deadline.expired:
                self._drop()
        if deadline.expired:
            raise self._not_started(f"within {self._start_limit_s:g} s")
        if why:
            raise self._not_started(why)

    def _not_started(self, why: str) -> MissingPiece:
        return MissingPiece(f"the {self._name} did not start {why}", "see `wmmagen doctor`")

    def _exchange(self, request: object, limit_s: float, what: str) -> object:
        """Send and receive. The worker is ended on every way out of here but a reply that came in time."""
        worker = self._worker
        assert worker is not None
        deadline = _Deadline(worker.process, worker.channel, limit_s)
        answered = False
        try:
            with deadline:
                worker.channel.send(request)
                reply: object = worker.channel.receive()
            answered = not deadline.expired
        except (EOFError, OSError) as error:
            if not deadline.expired:
                raise CrashFault(f"{what} ended the {self._name}: {worker.epitaph()}") from error
        except BrokenMessage as error:
            raise CrashFault(f"the {self._name} answered nonsense to {what}: {error}") from error
        finally:
            if not answered:
                self._drop()
        if not answered:
            raise TimeoutFault(f"{what} did not end within {limit_s:g} s; the {self._name} was killed")
        return reply

    def _interpret(self, reply: object, what: str) -> Any:
        match reply:
            case (str(word), value) if word == "ok":
                return value
            case (str(word), str(outcome), str(text)) if word == "fault" and outcome in _FAULTS:
                if outcome != LaunchFault.outcome:
                    self._drop()
                raise _FAULTS[outcome](f"{what}: {text}")
        self._drop()
        raise CrashFault(f"the {self._name} answered nonsense to {what}: {type(reply).__name__}")

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None
