"""The cache: whole binaries, of which nothing is trusted, shared by processes that know nothing of each other."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import wmmagen
from wmmagen import cache
from wmmagen.arch import ARCHS
from wmmagen.cache import Cache, Usage, default, default_folder, key_of
from wmmagen.nvrtc import Binary

KEY = key_of(["a source", "sm_75"])
BINARY = Binary(
    "gemm", ARCHS[75], b"\x7fELF\0cubin", ".target sm_75 é\n", 96, 8, 16, 32, "ptxas é\nlog", 0.1 + 0.2, "NVRTC 13.5"
)


class Told(list[str]):
    """Takes what a cache tells."""

    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def kept(tmp_path: Path, told: Told) -> Cache:
    return Cache(tmp_path / "cache", tell=told)


def place(kept: Cache, key: str = KEY) -> Path:
    assert kept.folder is not None
    return kept.folder / key[:2] / key


# ---------------------------------------------------------------------------------------------------------------------
# Keeping and finding.


def test_a_binary_comes_back_whole(kept: Cache, told: Told) -> None:
    assert kept.get(KEY) is None
    kept.put(KEY, BINARY)
    found = kept.get(KEY)
    assert found == BINARY
    assert found is not None and found.cached and not BINARY.cached
    assert kept.get(key_of(["another source", "sm_75"])) is None
    assert kept.usage() == Usage(1, place(kept).stat().st_size)
    assert told == []


def test_another_one_of_the_same_folder_finds_it(kept: Cache) -> None:
    kept.put(KEY, BINARY)
    assert Cache(kept.folder).get(KEY) == BINARY


@pytest.mark.parametrize("change", [{"cubin": b"", "ptx": "", "log": ""}, {"seconds": 0.0}, {"arch": ARCHS[121]}])
def test_values_at_the_edge_come_back(kept: Cache, change: dict[str, object]) -> None:
    binary = replace(BINARY, **change)  # type: ignore[arg-type]
    kept.put(KEY, binary)
    assert kept.get(KEY) == binary


def test_a_key_tells_where_one_part_ends() -> None:
    keys = [key_of(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["ab", "c", ""], [])]
    assert len(set(keys)) == len(keys)
    assert key_of(["ab", "c"]) == keys[0]
    assert all(len(key) == 64 and set(key) <= set("0123456789abcdef") for key in keys)


def test_without_a_folder_nothing_is_kept(told: Told) -> None:
    none = Cache(None, tell=told)
    none.put(KEY, BINARY)
    assert (none.get(KEY), none.usage(), none.writable(), told) == (None, Usage(0, 0), False, [])


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be trusted.


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def sealed(rest: bytes) -> bytes:
    """Anything, under a checksum that is right."""
    return cache._MAGIC + hashlib.sha256(rest).digest() + rest


def with_header(change: Callable[[dict[str, object]], object]) -> bytes:
    """The file of BINARY with another header, under a checksum that is right."""
    rest = cache._pack(BINARY, KEY)[len(cache._MAGIC) + 32 :]
    length = int.from_bytes(rest[:4], "little")
    text = json.dumps(change(json.loads(rest[4 : 4 + length]))).encode()
    return sealed(len(text).to_bytes(4, "little") + text + rest[4 + length :])


WHOLE = cache._pack(BINARY, KEY)
UNTRUSTED = {
    "empty": b"",
    "only the magic": cache._MAGIC,
    "cut in the checksum": WHOLE[: len(cache._MAGIC) + 7],
    "cut in the header": WHOLE[: len(cache._MAGIC) + 60],
    "cut by a byte": WHOLE[:-1],
    "one byte more": WHOLE + b"\0",
    "a bit of the first byte": flipped(WHOLE, 0),
    "a bit of the checksum": flipped(WHOLE, len(cache._MAGIC) + 3),
    "a bit of the header": flipped(WHOLE, len(cache._MAGIC) + 60),
    "a bit of the last byte": flipped(WHOLE, len(WHOLE) - 1),
    "a text": b"no binary at all\n" * 100,
    "zeros, as after a crash": bytes(len(WHOLE)),
    "a pickle": b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x08wmmagen.\x94.",
    "nothing under a checksum": sealed(b""),
    "a header that is longer than the file": sealed((1 << 31).to_bytes(4, "little") + b"{}"),
    "a header that is no JSON": sealed((4).to_bytes(4, "little") + b"\xff\xfe{}"),
    "a header that nests too deep": sealed((99_999).to_bytes(4, "little") + b"[" * 99_999),
    "a header that is a list": with_header(lambda header: [header]),
    "the file of another key": cache._pack(BINARY, key_of(["another"])),
    "a key missing": with_header(lambda header: {k: v for k, v in header.items() if k != "registers"}),
    "a number as a text": with_header(lambda header: {**header, "registers": "96"}),
    "a text as a number": with_header(lambda header: {**header, "entry": 7}),
    "an unknown architecture": with_header(lambda header: {**header, "sm": 76}),
    "lengths that do not fill it": with_header(lambda header: {**header, "lengths": [1, 1, 1]}),
    "lengths of something else": with_header(lambda header: {**header, "lengths": "abc"}),
    "text that is no UTF-8": sealed(WHOLE[len(cache._MAGIC) + 32 :].replace("é\n".encode(), b"\xff\xff\n")),
}


@pytest.mark.parametrize("what", UNTRUSTED)
def test_what_cannot_be_trusted_is_passed_over_told_once_and_made_anew(kept: Cache, told: Told, what: str) -> None:
    other = key_of(["the second one"])
    for key in (KEY, other):
        place(kept, key).parent.mkdir(parents=True, exist_ok=True)
        place(kept, key).write_bytes(UNTRUSTED[what])
        assert kept.get(key) is None
        assert kept.get(key) is None
    (said,) = told
    assert KEY in said and "made anew" in said
    kept.put(KEY, BINARY)
    assert kept.get(KEY) == BINARY


def test_whatever_bit_is_wrong_it_is_not_trusted(kept: Cache) -> None:
    place(kept).parent.mkdir(parents=True)
    for at in range(len(WHOLE)):
        place(kept).write_bytes(flipped(WHOLE, at))
        assert kept.get(KEY) is None


def test_something_else_in_its_place_is_no_crash(kept: Cache, told: Told) -> None:
    place(kept).mkdir(parents=True)
    assert kept.get(KEY) is None
    kept.put(KEY, BINARY)
    assert kept.get(KEY) is None
    assert len(told) == 1 and "cannot be written" in told[0]
    pipe = key_of(["a pipe"])
    place(kept, pipe).parent.mkdir()
    os.mkfifo(place(kept, pipe))
    assert kept.get(pipe) is None
    kept.put(pipe, BINARY)
    assert kept.get(pipe) == BINARY


def test_a_folder_that_cannot_be_is_told_once(tmp_path: Path, told: Told) -> None:
    (tmp_path / "file").write_text("mine")
    kept = Cache(tmp_path / "file" / "cache", tell=told)
    for key in (KEY, key_of(["another"])):
        assert kept.get(key) is None
        kept.put(key, BINARY)
    assert len(told) == 1 and "cannot be written (Not a directory)" in told[0]
    assert (tmp_path / "file").read_text() == "mine"
    assert not kept.writable() and kept.usage() == Usage(0, 0)


def test_a_full_disk_is_told_once_and_leaves_no_part(kept: Cache, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    for _ in range(2):
        kept.put(KEY, BINARY)
    assert kept.get(KEY) is None
    assert len(told) == 1 and "No space left" in told[0]
    assert list(place(kept).parent.iterdir()) == []


def test_a_folder_for_reading_only_still_answers(kept: Cache, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.put(KEY, BINARY)

    def refuses(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "utime", refuses)
    assert kept.get(KEY) == BINARY
    assert told == []


def test_by_default_it_is_told_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Cache(tmp_path / "with\x1b[31m colour")
    place(kept).parent.mkdir(parents=True)
    place(kept).write_bytes(b"foreign")
    assert kept.get(KEY) is None
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("wmmagen: ") and captured.err.count("\n") == 1
    assert "\x1b" not in captured.err


# ---------------------------------------------------------------------------------------------------------------------
# The limit.

SIZE = len(WHOLE)


def shard_keys(count: int) -> list[str]:
    """Keys of one shard."""
    return [f"{number:064x}" for number in range(count)]


def aged(kept: Cache, key: str, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(place(kept, key), (when, when))


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    kept = Cache(tmp_path, limit_bytes=3 * SIZE * 256)
    a, b, c, d, e = shard_keys(5)
    for age, key in ((300, a), (200, b), (100, c)):
        kept.put(key, BINARY)
        aged(kept, key, age)
    assert kept.get(a) == BINARY  # used again, and so the youngest
    kept.put(d, BINARY)
    assert [kept.get(key) is not None for key in (a, b, c, d)] == [True, False, True, True]
    for key in (a, c, d):
        aged(kept, key, 100)
    kept.put(e, BINARY)
    assert kept.usage() == Usage(3, 3 * SIZE)
    assert kept.get(e) == BINARY


def test_what_was_kept_last_stays_however_large(tmp_path: Path) -> None:
    kept = Cache(tmp_path, limit_bytes=0)
    for key in shard_keys(3):
        kept.put(key, BINARY)
        assert kept.get(key) == BINARY
        assert kept.usage() == Usage(1, SIZE)


def test_files_of_others_are_left_alone_and_those_of_killed_writers_are_not(tmp_path: Path) -> None:
    kept = Cache(tmp_path, limit_bytes=0)
    a, b = shard_keys(2)
    kept.put(a, BINARY)
    shard = place(kept, a).parent
    for name, age in (("notes.txt", 10**6), (".new-old", 10**6), (".new-now", 0)):
        (shard / name).write_text(name)
        os.utime(shard / name, (time.time() - age,) * 2)
    kept.put(b, BINARY)
    assert sorted(p.name for p in shard.iterdir()) == sorted(["notes.txt", ".new-now", b])


# ---------------------------------------------------------------------------------------------------------------------
# Several processes.

_WORKER = """
import random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_cache as t
told = t.Told()
kept = t.Cache(Path(sys.argv[2]), limit_bytes=6 * t.SIZE * 256, tell=told)
rng = random.Random(int(sys.argv[3]))
found = 0
for turn in range(600):
    key = rng.choice(t.shard_keys(9))
    binary = kept.get(key)
    assert binary in (None, t.BINARY), binary
    found += binary is not None
    if binary is None or turn % 5 == 0:
        kept.put(key, t.BINARY)
assert not told, told
print(found)
"""


def test_eight_processes_at_once_meet_no_half_file(tmp_path: Path) -> None:
    root = Path(wmmagen.__file__).parents[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(Path(__file__).parent), str(tmp_path), str(number)],
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(8)
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, said
    assert all(int(text) > 0 for text in said)
    left = [p.name for p in (tmp_path / "00").iterdir()]
    assert len(left) <= 6 and not any(name.startswith(".") for name in left)


# ---------------------------------------------------------------------------------------------------------------------
# Where it lies.


@pytest.mark.parametrize(
    ("variable", "xdg", "folder"),
    [
        ("/there/cache", "/xdg", "/there/cache"),
        ("", "/xdg", None),
        (None, "/xdg", "/xdg/wmmagen"),
        (None, "relative", "/home/me/.cache/wmmagen"),
        (None, "", "/home/me/.cache/wmmagen"),
        (None, None, "/home/me/.cache/wmmagen"),
    ],
)
def test_the_folder_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, xdg: str | None, folder: str | None
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in ((cache.VARIABLE, variable), ("XDG_CACHE_HOME", xdg)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert default_folder() == (None if folder is None else Path(folder))
    assert default().folder == default_folder()
    assert default() is default()


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("no home directory")

    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert default_folder() is None


def test_a_relative_folder_stays_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache.VARIABLE, "mine")
    assert default_folder() == tmp_path / "mine"


def test_a_folder_that_cannot_be_asked_for_holds_nothing() -> None:
    assert Cache(Path("a" * 300, "b")).usage() == Usage(0, 0)  # longer than any file system takes


def test_writable_asks_the_nearest_folder_that_is_there(kept: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept.folder is not None
    assert kept.writable() and not kept.folder.exists()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != kept.folder)
    assert kept.writable()
    kept.folder.mkdir()
    assert not kept.writable()
