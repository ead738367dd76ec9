"""Supervision of a child process, with targets that need no GPU. Limits are generous: they are caught, not measured."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets import (
    dead_on_arrival,
    deaf,
    garbage,
    half_an_answer,
    never_ready,
    obedient,
    says_something_else,
    slow_to_start,
)

from wmmagen import supervisor as supervisor_room
from wmmagen import timing
from wmmagen.backends import Launch, Pointer, gpu, worker
from wmmagen.backends.worker import Run
from wmmagen.errors import CrashFault, LaunchFault, MissingPiece, TimeoutFault
from wmmagen.supervisor import Channel, Supervisor
from wmmagen.timing import NO_SENSOR, PARTLY_COLD, TimingProtocol

LIMIT_S = 30.0
SHORT_S = 1.0


@pytest.fixture
def make() -> Iterator[Callable[..., Supervisor]]:
    made: list[Supervisor] = []

    def build(target: Callable[..., None] = obedient, *arguments: object, start_limit_s: float = 60.0) -> Supervisor:
        made.append(Supervisor(target, arguments, start_limit_s=start_limit_s))
        return made[-1]

    yield build
    for supervisor in made:
        supervisor.close()


def gone(pid: int) -> bool:
    """Whether there is no such process any more, not even as a zombie."""
    return not Path(f"/proc/{pid}").exists()


def test_a_request_is_answered_by_another_process(make: Callable[..., Supervisor]) -> None:
    supervisor = make(obedient, "left", 3)
    assert supervisor.pid is None
    pid = supervisor.ask("pid", limit_s=LIMIT_S)
    assert pid == supervisor.pid != os.getpid()
    assert supervisor.ask("arguments", limit_s=LIMIT_S) == ("left", 3)


def test_a_hang_is_killed_and_the_next_request_works(make: Callable[..., Supervisor]) -> None:
    supervisor = make()
    first = supervisor.ask("pid", limit_s=LIMIT_S)
    begin = time.monotonic()
    with pytest.raises(TimeoutFault, match="the kernel did not end within 1 s"):
        supervisor.ask("hang", limit_s=SHORT_S, what="the kernel")
    assert time.monotonic() - begin < LIMIT_S
    assert gone(first)
    assert supervisor.ask("pid", limit_s=LIMIT_S) != first


@pytest.mark.parametrize(
    ("request_", "words"),
    [("exit", "status 7"), ("segv", "SIGSEGV"), ("raise", "the last words"), ("lambda", "pickle")],
)
def test_a_crash_is_told_and_the_next_request_works(make: Callable[..., Supervisor], request_: str, words: str) -> None:
    supervisor = make()
    first = supervisor.ask("pid", limit_s=LIMIT_S)
    with pytest.raises(CrashFault, match=words):
        supervisor.ask(request_, limit_s=LIMIT_S)
    assert gone(first)
    assert supervisor.ask("pid", limit_s=LIMIT_S) != first


def test_a_launch_fault_keeps_the_process(make: Callable[..., Supervisor]) -> None:
    supervisor = make()
    first = supervisor.ask("pid", limit_s=LIMIT_S)
    with pytest.raises(LaunchFault, match="gemm: out of resources"):
        supervisor.ask("launch", limit_s=LIMIT_S, what="gemm")
    assert supervisor.ask("pid", limit_s=LIMIT_S) == first


def test_a_reported_crash_ends_the_process(make: Callable[..., Supervisor]) -> None:
    supervisor = make()
    first = supervisor.ask("pid", limit_s=LIMIT_S)
    with pytest.raises(CrashFault, match="out of resources"):
        supervisor.ask("crash", limit_s=LIMIT_S)
    assert supervisor.pid is None and gone(first)
    assert supervisor.ask("pid", limit_s=LIMIT_S) != first


def test_large_arrays_travel_and_come_back_writable(make: Callable[..., Supervisor]) -> None:
    supervisor = make()
    array = np.random.default_rng(3).integers(0, 256, 64 << 20, dtype=np.uint8)
    empty = np.zeros(0, np.uint8)
    back, nothing = supervisor.ask(("echo", [array, empty]), limit_s=LIMIT_S)
    assert np.array_equal(back, array) and back.flags.writeable
    assert nothing.size == 0


@pytest.mark.parametrize(
    "reply", [None, 7, ("ok",), ("ok", 1, 2, 3), ("fault", "launch"), ("fault", "typo", "text"), np.zeros(3), "ok"]
)
def test_a_nonsense_reply_is_a_crash(make: Callable[..., Supervisor], reply: object) -> None:
    supervisor = make()
    with pytest.raises(CrashFault, match="nonsense"):
        supervisor.ask(("reply", reply), limit_s=LIMIT_S)
    assert supervisor.ask("fine", limit_s=LIMIT_S) == "fine"


def test_garbage_bytes_are_a_crash(make: Callable[..., Supervisor]) -> None:
    supervisor = make(garbage)
    with pytest.raises(CrashFault, match="nonsense"):
        supervisor.ask("anything", limit_s=LIMIT_S)
    assert supervisor.pid is None


def test_half_an_answer_runs_into_the_limit(make: Callable[..., Supervisor]) -> None:
    with pytest.raises(TimeoutFault):
        make(half_an_answer).ask("anything", limit_s=SHORT_S)


def test_a_request_that_is_never_read_runs_into_the_limit(make: Callable[..., Supervisor]) -> None:
    with pytest.raises(TimeoutFault):
        make(deaf).ask(np.zeros(64 << 20, np.uint8), limit_s=SHORT_S)


def test_a_request_that_cannot_be_pickled_is_the_callers_error(make: Callable[..., Supervisor]) -> None:
    supervisor = make()
    with pytest.raises((AttributeError, TypeError)):
        supervisor.ask(threading.Lock(), limit_s=LIMIT_S)
    assert supervisor.ask("fine", limit_s=LIMIT_S) == "fine"


def test_death_during_start_up(make: Callable[..., Supervisor]) -> None:
    supervisor = make(dead_on_arrival)
    for _ in range(2):
        with pytest.raises(MissingPiece, match=r"did not start .*status 3: no such library"):
            supervisor.ask("anything", limit_s=LIMIT_S)
        assert supervisor.pid is None


@pytest.mark.parametrize(("target", "limit_s"), [(never_ready, 2.0), (says_something_else, 60.0)])
def test_a_start_that_does_not_get_ready(
    make: Callable[..., Supervisor], target: Callable[..., None], limit_s: float
) -> None:
    supervisor = make(target, start_limit_s=limit_s)
    with pytest.raises(MissingPiece, match="did not start"):
        supervisor.ask("anything", limit_s=LIMIT_S)
    assert supervisor.pid is None


def test_the_start_is_not_charged_to_the_request(make: Callable[..., Supervisor]) -> None:
    assert make(slow_to_start).ask("fine", limit_s=3.0) == "fine"


def test_closing_leaves_no_child_and_is_idempotent(make: Callable[..., Supervisor]) -> None:
    supervisor = make()
    pid = supervisor.ask("pid", limit_s=LIMIT_S)
    supervisor.close()
    supervisor.close()
    assert gone(pid)
    with pytest.raises(RuntimeError, match="closed"):
        supervisor.ask("fine", limit_s=LIMIT_S)


def test_forgetting_the_supervisor_leaves_no_child() -> None:
    supervisor = Supervisor(obedient)
    pid = supervisor.ask("pid", limit_s=LIMIT_S)
    del supervisor
    assert gone(pid)


def test_an_interrupt_kills_the_child_and_propagates(make: Callable[..., Supervisor]) -> None:
    supervisor = make()
    first = supervisor.ask("pid", limit_s=LIMIT_S)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        supervisor.ask("hang", limit_s=LIMIT_S)
    assert time.monotonic() - begin < LIMIT_S
    assert gone(first)
    assert supervisor.ask("pid", limit_s=LIMIT_S) != first


def test_cancelling_ends_a_request_of_another_thread(make: Callable[..., Supervisor]) -> None:
    supervisor = make()
    first = supervisor.ask("pid", limit_s=LIMIT_S)
    ended: list[type[BaseException]] = []

    def ask() -> None:
        try:
            supervisor.ask("hang", limit_s=LIMIT_S)
        except CrashFault as fault:
            ended.append(type(fault))

    thread = threading.Thread(target=ask)
    thread.start()
    begin = time.monotonic()
    time.sleep(0.3)
    supervisor.cancel()
    thread.join()
    assert (ended, gone(first)) == ([CrashFault], True)
    assert time.monotonic() - begin < LIMIT_S / 2
    with pytest.raises(RuntimeError, match="closed"):
        supervisor.ask("fine", limit_s=LIMIT_S)


def test_cancelling_ends_a_start_that_is_under_way(make: Callable[..., Supervisor]) -> None:
    supervisor = make(never_ready)
    threading.Timer(0.5, supervisor.cancel).start()
    begin = time.monotonic()
    with pytest.raises(MissingPiece, match="did not start"):
        supervisor.ask("fine", limit_s=LIMIT_S)
    assert time.monotonic() - begin < LIMIT_S
    assert supervisor.pid is None


def test_the_child_ignores_an_interrupt(make: Callable[..., Supervisor]) -> None:
    supervisor = make()
    pid = supervisor.ask("pid", limit_s=LIMIT_S)
    os.kill(pid, signal.SIGINT)
    assert supervisor.ask("pid", limit_s=LIMIT_S) == pid


def test_what_the_child_prints_does_not_reach_our_stdout(
    make: Callable[..., Supervisor], capfd: pytest.CaptureFixture[str]
) -> None:
    make().ask("print", limit_s=LIMIT_S)
    assert capfd.readouterr().out == ""


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
print("main runs", flush=True)
import targets
from wmmagen.supervisor import Supervisor
supervisor = Supervisor(targets.obedient)
modules = supervisor.ask("modules", limit_s=60.0)
print("cli" if any(m.startswith("wmmagen.cli") or m == "main_script" for m in modules) else "no cli", flush=True)
print(supervisor.ask("pid", limit_s=60.0), flush=True)
{ending}
"""


def run_script(folder: Path, ending: str) -> tuple[list[str], int]:
    script = folder / "main_script.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), ending=textwrap.dedent(ending)))
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    return done.stdout.split("\n"), done.returncode


def test_an_unguarded_script_runs_once_and_leaves_no_child(tmp_path: Path) -> None:
    lines, status = run_script(tmp_path, "")
    assert lines[:2] == ["main runs", "no cli"] and status == 0
    assert gone(int(lines[2]))


def test_a_killed_parent_takes_a_hanging_child_along(tmp_path: Path) -> None:
    ending = """
    import os, signal, threading
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    supervisor.ask("hang", limit_s=600.0)
    """
    lines, status = run_script(tmp_path, ending)
    assert status == -signal.SIGKILL
    pid = int(lines[2])
    limit = time.monotonic() + LIMIT_S
    while not _ended(pid) and time.monotonic() < limit:
        time.sleep(0.05)
    assert _ended(pid)


def _ended(pid: int) -> bool:
    """An orphan is reaped by whoever adopts it, which may take its time; a zombie has ended."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


class Refusal(Exception):
    """Stands for an error of the driver."""


class FakeCard:
    errors: tuple[type[Exception], ...] = (Refusal,)

    def __init__(self, works: bool) -> None:
        self.works = works

    def alive(self) -> bool:
        return self.works


class FakeRequest:
    def __init__(self, outcome: BaseException | None) -> None:
        self.outcome = outcome

    def carry_out(self, card: FakeCard) -> object:
        if self.outcome:
            raise self.outcome
        return "done"


@pytest.mark.parametrize(
    ("outcome", "works", "expected"),
    [
        (None, True, ("ok", "done")),
        (Refusal("CUDA_ERROR_INVALID_VALUE"), True, ("fault", "launch", "CUDA_ERROR_INVALID_VALUE")),
        (Refusal("CUDA_ERROR_ILLEGAL_ADDRESS"), False, ("fault", "crash", "CUDA_ERROR_ILLEGAL_ADDRESS")),
        (LaunchFault("the clock said 0 us", "look"), True, ("fault", "launch", "the clock said 0 us")),
    ],
)
def test_the_context_decides_what_an_error_was(outcome: BaseException | None, works: bool, expected: object) -> None:
    fake: Any = FakeCard(works)
    request: Any = FakeRequest(outcome)
    assert worker.answer(fake, request) == expected


def test_any_other_error_ends_the_worker() -> None:
    fake: Any = FakeCard(True)
    request: Any = FakeRequest(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        worker.answer(fake, request)


class FakeStream:
    """Runs a queue of graphs of 2 ms; the host takes 50 us to each of them, and time passes only where it waits."""

    handle = None

    def __init__(self) -> None:
        self.busy_until_us = 0.0
        self.host_us = 0.0
        self.nodes: list[str] = []

    def record(self, event: FakeEvent) -> None:
        event.at_us = max(self.busy_until_us, self.host_us)

    def launch(self) -> None:
        self.host_us += 50.0
        self.busy_until_us = max(self.busy_until_us, self.host_us) + 2000.0

    def sync(self) -> None:
        self.host_us = max(self.host_us, self.busy_until_us)


class FakeEvent:
    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.at_us = -1.0

    def sync(self) -> None:
        self.stream.host_us = max(self.stream.host_us, self.at_us)

    def __sub__(self, other: FakeEvent) -> float:
        return (self.at_us - other.at_us) / 1000.0


class FakeDevice:
    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.graphs: list[FakeGraph] = []

    def create_event(self, options: object) -> FakeEvent:
        return FakeEvent(self.stream)

    def create_graph_builder(self) -> FakeGraph:
        self.graphs.append(FakeGraph())
        return self.graphs[-1]


class FakeGraph:
    """A graph and its builder in one; ``nodes`` are what was captured."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.closed = 0

    def begin_building(self) -> None:
        assert not self.nodes

    def end_building(self) -> FakeGraph:
        return self

    def complete(self) -> FakeGraph:
        return self

    def upload(self, stream: FakeStream) -> None:
        pass

    def launch(self, stream: FakeStream) -> None:
        stream.launch()

    def close(self) -> None:
        self.closed += 1


@dataclasses.dataclass
class FakeLaunch:
    name: str

    def enqueue(self, graph: FakeGraph | FakeStream) -> None:
        graph.nodes.append(self.name)


def test_replays_but_the_first_leave_out_the_way_to_the_device() -> None:
    card = pytest.importorskip("wmmagen.backends.card")
    stream = FakeStream()
    replay = card._Replay(FakeDevice(stream), stream, FakeGraph(), 1)
    waits = [replay.start() for _ in range(5)]
    assert [round(wait(), 6) for wait in waits] == [2050.0, 2000.0, 2000.0, 2000.0, 2000.0]


def test_a_cold_graph_launches_every_copy_in_turn() -> None:
    card = pytest.importorskip("wmmagen.backends.card")
    stream = FakeStream()
    device = FakeDevice(stream)
    with card._Replays(device, stream, [FakeLaunch("a"), FakeLaunch("b"), FakeLaunch("c")], ()) as replays:
        assert replays.prepare(1).launches == 3
        assert replays.prepare(7).launches == 9
    assert ["".join(graph.nodes) for graph in device.graphs] == ["abc", "abcabcabc"]
    # Each builder and each graph of it, which here are one.
    assert [graph.closed for graph in device.graphs] == [2, 2]


def test_graphs_of_several_subjects_live_at_the_same_time() -> None:
    card = pytest.importorskip("wmmagen.backends.card")
    stream = FakeStream()
    device = FakeDevice(stream)
    one, two = (card._Replays(device, stream, [FakeLaunch(name)], ()) for name in "ab")
    one.prepare(2), two.prepare(3)
    assert [(graph.nodes, graph.closed) for graph in device.graphs] == [(["a"] * 2, 1), (["b"] * 3, 1)]


class FakeDriver:
    """Memory of the driver: what was allocated, copied and freed."""

    CUresult = types.SimpleNamespace(CUDA_SUCCESS=0)
    CUdevice_attribute = types.SimpleNamespace(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=38)
    l2_bytes = 1000

    def __init__(self) -> None:
        self.live: dict[int, bytes] = {}
        self.next = 512

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        address, self.next = self.next, self.next + 512 * (1 + size // 512)
        self.live[address] = b""
        return 0, address

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        assert (attribute, device) == (38, 7)
        return 0, self.l2_bytes

    def cuMemGetInfo(self) -> tuple[int, int, int]:
        return 0, 100_000, 200_000

    def cuMemFree(self, address: int) -> tuple[int]:
        del self.live[address]
        return (0,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: object) -> tuple[int]:
        self.live[target] = ctypes.string_at(source, size)
        return (0,)

    def cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: object) -> tuple[int]:
        self.live[target] = self.live[source][:size]
        return (0,)


def test_copies_hold_the_same_bytes_and_all_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    card = pytest.importorskip("wmmagen.backends.card")
    driver = FakeDriver()
    monkeypatch.setattr(card, "driver", driver)
    stream = types.SimpleNamespace(handle=None, sync=lambda: None)
    buffers = [np.frombuffer(b"first", np.uint8), np.zeros(0, np.uint8), np.frombuffer(b"third", np.uint8)]
    with card._Memory(stream) as memory:
        copies = memory.place(buffers, 3)
        assert len({address for addresses in copies for address in addresses}) == 9
        for addresses in copies:
            assert [driver.live[address] for address in addresses] == [b"first", b"", b"third"]
    assert not driver.live
    memory = card._Memory(stream)
    memory.place(buffers)
    memory.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert not driver.live


class FakeRecipe:
    """Launches that are named by where the copy lies that they work on."""

    def __init__(self, size: int, fault: LaunchFault | None = None) -> None:
        self.buffers = [np.zeros(size, np.uint8), np.zeros(size, np.uint8)]
        self.fault = fault
        self.copies: list[Any] = []

    def prepare(self, card: object, copies: Any) -> list[FakeLaunch]:
        self.copies = copies
        if self.fault:
            raise self.fault
        return [FakeLaunch(str(addresses[0])) for addresses in copies]


@pytest.fixture
def card_of(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, FakeDriver, FakeDevice]:
    """A card of fakes, without a sensor."""
    card = pytest.importorskip("wmmagen.backends.card")
    driver, stream = FakeDriver(), FakeStream()
    monkeypatch.setattr(card, "driver", driver)
    made = object.__new__(card.Card)
    vars(made).update(_device=FakeDevice(stream), _stream=stream, _handle=7, _sensor=None)
    return made, driver, made._device


def test_a_cold_comparison_rotates_and_gives_all_memory_back(card_of: tuple[Any, FakeDriver, FakeDevice]) -> None:
    card, driver, device = card_of
    small, large, huge = FakeRecipe(250), FakeRecipe(3000), FakeRecipe(30_000)
    protocol = TimingProtocol(mode="cold", warmup_min_s=0.0)
    result = card.compare([small, large, huge], protocol)
    # Four times an L2 of 1,000 bytes; two at least; and no more than four fifths of the free memory hold.
    assert [len(recipe.copies) for recipe in (small, large, huge)] == [8, 2, 1]
    flags = [timing.flags for timing in result.timings]
    assert flags == [(NO_SENSOR,), (NO_SENSOR,), (NO_SENSOR, PARTLY_COLD)]
    assert all(timing.launches % copies == 0 for timing, copies in zip(result.timings, (8, 2, 1), strict=True))
    turn = [str(addresses[0]) for addresses in small.copies]
    first = next(graph for graph in device.graphs if graph.nodes[0] == turn[0])
    assert len(set(turn)) == 8 and first.nodes[:8] == turn
    assert not driver.live


def test_warm_subjects_have_one_copy(card_of: tuple[Any, FakeDriver, FakeDevice]) -> None:
    card, driver, _ = card_of
    recipe = FakeRecipe(250)
    assert card.compare([recipe], TimingProtocol(warmup_min_s=0.0)).timings[0].mode == "warm"
    assert len(recipe.copies) == 1 and not driver.live


def test_a_comparison_that_fails_gives_all_memory_back(card_of: tuple[Any, FakeDriver, FakeDevice]) -> None:
    card, driver, _ = card_of
    with pytest.raises(LaunchFault, match="no such"):
        card.compare([FakeRecipe(250), FakeRecipe(250, LaunchFault("no such kernel"))], TimingProtocol())
    assert not driver.live


def test_a_mask_of_nvml_in_words() -> None:
    sensor = pytest.importorskip("wmmagen.backends.sensor")
    assert sensor.words(0) == sensor.words(1) == frozenset()
    assert sensor.words(0x4 | 0x20 | 0x1) == {timing.POWER_CAP, timing.SW_THERMAL}
    assert timing.SLOWDOWNS == sensor.words(0x8 | 0x20 | 0x40 | 0x80)


def test_shared_buffers_travel_once() -> None:
    flat = np.zeros(1 << 20, np.uint8)
    (same,), (again,) = gpu._flat([flat]), gpu._flat([flat])
    assert same is again is flat
    (made,) = gpu._flat([np.zeros((4, 4), np.uint8)])
    assert made.shape == (16,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": (0, 1, 1)}, "a grid of"),
        ({"block": (32, -1, 1)}, "a block of"),
        ({"grid": (2**32, 1, 1)}, "a grid of"),
        ({"shared_bytes": -4}, "shared memory"),
        ({"arguments": (Pointer(0), 2**31)}, "argument 1 = 2147483648"),
        ({"arguments": (Pointer(0), 1e39)}, r"argument 1 = 1e\+39 does not fit a 32-bit float"),
    ],
)
def test_numbers_that_the_driver_cannot_be_told(change: dict[str, Any], words: str) -> None:
    card = pytest.importorskip("wmmagen.backends.card")
    good = Launch("f", (1, 1, 1), (32, 1, 1), 0, (Pointer(0), -(2**31), 0.1, float("inf")))
    card._check_numbers(good)
    with pytest.raises(LaunchFault, match=words):
        card._check_numbers(dataclasses.replace(good, **change))


def test_arguments_have_the_types_of_c() -> None:
    card = pytest.importorskip("wmmagen.backends.card")
    arguments = [card._argument([512], 0, value) for value in (Pointer(0, 16), 7, 0.1)]
    assert arguments == [528, np.int32(7), np.float32(0.1)]
    assert [type(x) for x in arguments] == [int, np.int32, np.float32]


def test_a_signature_counts_floats_as_four_bytes() -> None:
    card = pytest.importorskip("wmmagen.backends.card")
    kernel = types.SimpleNamespace(arguments_info=[types.SimpleNamespace(size=size) for size in (8, 4, 4)])
    launch = Launch("f", (1, 1, 1), (32, 1, 1), 0, (Pointer(0), 3, 0.5))
    card._check_signature(kernel, launch)
    with pytest.raises(LaunchFault, match="arguments of"):
        card._check_signature(kernel, dataclasses.replace(launch, arguments=(Pointer(0), 0.5)))


# What travels once ----------------------------------------------------------------------------------------------------


def fixed(*values: int) -> np.ndarray:
    array = np.array(values, np.uint8)
    array.setflags(write=False)
    return array


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel, Channel, list[int]]]:
    """Two ends that keep arrays of 4 bytes and more, 12 bytes in all, and the sizes of what was received."""
    monkeypatch.setattr(supervisor_room, "_KEPT_FROM_BYTES", 4)
    monkeypatch.setattr(supervisor_room, "_MOST_KEPT_BYTES", 12)
    sizes: list[int] = []
    exactly = Channel._exactly

    def counted(self: Channel, size: int) -> bytearray:
        sizes.append(size)
        return exactly(self, size)

    monkeypatch.setattr(Channel, "_exactly", counted)
    with contextlib.ExitStack() as stack:
        one, other = (stack.enter_context(end) for end in socket.socketpair())
        yield Channel(one), Channel(other), sizes


def test_what_nobody_can_write_to_travels_once(ends: tuple[Channel, Channel, list[int]]) -> None:
    here, there, sizes = ends
    array = fixed(1, 2, 3, 4, 5)
    for turn in range(3):
        here.send(("run", [array]))
        word, (got,) = there.receive()
        assert word == "run" and got.tolist() == [1, 2, 3, 4, 5] and not got.flags.writeable
        # The header, the table of parts, the message itself, and the array the first time.
        assert sizes.count(5) == 1 and len(sizes) == 4 + 3 * turn


def test_what_can_be_written_to_travels_as_it_is_now(ends: tuple[Channel, Channel, list[int]]) -> None:
    here, there, _ = ends
    array = np.zeros(8, np.uint8)
    for value in (3, 4):
        array[:] = value
        here.send(array)
        assert (there.receive() == value).all()


def test_another_array_in_the_same_place_is_another_one(ends: tuple[Channel, Channel, list[int]]) -> None:
    here, there, _ = ends
    for value in range(50):
        here.send(fixed(*[value] * 6))
        assert (there.receive() == value).all()


def test_both_ends_forget_alike(ends: tuple[Channel, Channel, list[int]]) -> None:
    here, there, sizes = ends
    arrays = [fixed(*[value] * 5) for value in range(4)]
    for turn in (0, 1, 0, 2, 0, 1, 3, 3, 2, 0):
        here.send([arrays[turn], arrays[turn]])
        assert all((got == turn).all() for got in there.receive())
    # Two of them fit: 0 and 1 come, 2 takes the place of 1, 1 that of 2, 3 that of 0, then 2 and 0 come again.
    assert sizes.count(5) == 7
    assert len(there._received) == len(here._sent) == 2


def test_a_message_may_name_more_than_is_kept(ends: tuple[Channel, Channel, list[int]]) -> None:
    here, there, _ = ends
    arrays = [fixed(*[value] * 7) for value in range(5)]
    for _ in range(2):
        here.send(arrays)
        assert [got[0] for got in there.receive()] == [0, 1, 2, 3, 4]


def test_a_run_sends_back_what_was_changed_alone() -> None:
    kept, spoilt, own = fixed(1, 2), fixed(3, 4), np.array([5, 6], np.uint8)

    class Recipe:
        buffers = (kept, spoilt, own)

    class Spoiling:
        def run(self, recipe: object) -> list[np.ndarray]:
            return [kept.copy(), spoilt + np.uint8(1), own.copy()]

    request = Run(Recipe())  # type: ignore[arg-type]
    answer = request.carry_out(Spoiling())  # type: ignore[arg-type]
    assert answer[0] is None and answer[1].tolist() == [4, 5] and answer[2].tolist() == [5, 6]  # type: ignore[index]
    left = request.left(answer)  # type: ignore[arg-type]
    assert left[0] is kept and [one.tolist() for one in left[1:]] == [[4, 5], [5, 6]]


def test_a_series_is_all_of_its_launches_in_order_on_each_copy_of_its_buffers() -> None:
    done: list[tuple[bytes, str, object, object]] = []

    class Prepared:
        def __init__(self, *what: Any) -> None:
            self.what = what

        def enqueue(self, stream: object) -> None:
            done.append((*self.what, stream))

    class Card:
        def prepare(self, cubin: bytes, launch: Launch, addresses: object) -> Prepared:
            return Prepared(cubin, launch.entry, addresses)

    steps = tuple((cubin, Launch(entry, (1, 1, 1), (32, 1, 1), 0, ())) for cubin, entry in ((b"x", "a"), (b"y", "b")))
    recipe = worker.SeriesRecipe(steps, (np.zeros(4, np.uint8),))
    first, second = recipe.prepare(Card(), [[1], [2]])  # type: ignore[arg-type]
    second.enqueue("stream")
    first.enqueue("stream")
    assert done == [
        (b"x", "a", [2], "stream"), (b"y", "b", [2], "stream"), (b"x", "a", [1], "stream"), (b"y", "b", [1], "stream"),
    ]  # fmt: skip
