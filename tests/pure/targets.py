"""What child processes do in the tests of their supervision: it imports little, because each child imports it again."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from wmmagen.supervisor import READY, Channel


def obedient(channel: Channel, *arguments: object) -> None:
    """Does what each request says."""
    channel.send(READY)
    while True:
        try:
            request = channel.receive()
        except EOFError:
            return
        channel.send(answer(request, arguments))


def answer(request: Any, arguments: tuple[object, ...]) -> object:
    match request:
        case "pid":
            return ("ok", os.getpid())
        case "arguments":
            return ("ok", arguments)
        case "modules":
            return ("ok", sorted(sys.modules))
        case "hang":
            time.sleep(3600)
        case "exit":
            os._exit(7)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "raise":
            raise ZeroDivisionError("the last words")
        case "launch" | "crash":
            return ("fault", request, "out of resources")
        case "lambda":
            return ("ok", lambda: None)
        case "print":
            print("noise on stdout")
            return ("ok", None)
        case ("echo", value):
            return ("ok", value)
        case ("reply", value):
            return value
    return ("ok", request)


def dead_on_arrival(channel: Channel) -> None:
    print("no such library", flush=True)
    os._exit(3)


def slow_to_start(channel: Channel) -> None:
    time.sleep(4.0)
    obedient(channel)


def never_ready(channel: Channel) -> None:
    time.sleep(3600)


def says_something_else(channel: Channel) -> None:
    channel.send("hello")
    time.sleep(3600)


def garbage(channel: Channel) -> None:
    channel.send(READY)
    channel.receive()
    os.write(channel.fileno(), b"\x00garbage that is no message at all\x00" * 8)
    time.sleep(3600)


def deaf(channel: Channel) -> None:
    """Starts, and reads nothing more: a large request fills the socket."""
    channel.send(READY)
    time.sleep(3600)


def half_an_answer(channel: Channel) -> None:
    channel.send(READY)
    channel.receive()
    os.write(channel.fileno(), b"wmm1\x01\x00\x00\x00")
    time.sleep(3600)
