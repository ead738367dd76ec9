"""Binaries that were made before, by what decides them. Shared by any number of processes, and trusted by none.

A file is called by the SHA-256 of everything that decides its binary, and holds that binary whole. It is written beside
its place and moved there, carries a checksum, and is read as plain numbers and bytes: what is truncated, damaged or
foreign is passed over, made anew and said once. A folder that cannot be written costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmmagen.arch import ARCHS
from wmmagen.nvrtc import Binary

#: Where the cache lies instead of in the user's folder for such things; empty for no cache.
VARIABLE = "WMMAGEN_CACHE"
#: A binary takes about 60 KB: so much holds some 17,000.
LIMIT_BYTES = 1 << 30

#: Part of every key and of every file; a new number leaves the files of the old one to be pruned.
_FORMAT = 1
_MAGIC = f"wmmagen cache {_FORMAT}\n".encode()
_DIGEST_BYTES = hashlib.sha256().digest_size
_HEADER_LENGTH = struct.Struct("<I")
#: Keys are spread over so many folders evenly, so that each can keep its share of the limit by looking at itself only.
_SHARDS = 256
_SHARD_DIGITS = 2
_KEPT = re.compile(r"[0-9a-f]{64}")
_BESIDE = ".new-"
#: What a writer left that was killed; a live one takes milliseconds.
_ABANDONED_S = 3600.0
#: The fields that are numbers or words, with their types; the others are bytes behind them, or given by the key.
_PLAIN: dict[str, type] = {
    "entry": str,
    "registers": int,
    "spill_bytes": int,
    "stack_bytes": int,
    "static_shared_bytes": int,
    "seconds": float,
    "compiler": str,
}
_BLOBS = ("cubin", "ptx", "log")


def key_of(parts: Iterable[str]) -> str:
    """The key of what ``parts`` decide, in their order: 64 hexadecimal digits."""
    digest = hashlib.sha256(_MAGIC)
    for part in parts:
        text = part.encode()
        digest.update(f"{len(text)}\n".encode() + text)
    return digest.hexdigest()


class _Unusable(Exception):
    """What a file holds is not the binary that its name promises."""


@dataclass(frozen=True)
class Usage:
    """How much a cache holds: files, and their bytes."""

    files: int
    bytes: int


def _tell(text: str) -> None:
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    with contextlib.suppress(OSError):  # nobody listens
        print(f"wmmagen: {shown}", file=sys.stderr, flush=True)


class Cache:
    """A folder of binaries; see the module's text.

    Args:
        folder: made when the first binary is kept; None keeps and finds nothing.
        limit_bytes: what the folder may hold. The binaries that were not used for longest go first.
        tell: is told what is wrong with the cache, in a sentence; each kind of trouble once.
    """

    def __init__(
        self, folder: Path | None, *, limit_bytes: int = LIMIT_BYTES, tell: Callable[[str], None] = _tell
    ) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._tell = tell
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def get(self, key: str) -> Binary | None:
        """The binary kept under ``key``, marked as cached; None where there is none that can be trusted."""
        if self.folder is None:
            return None
        path = self._place(self.folder, key)
        try:
            if not path.is_file():
                return None
            binary = _unpack(path.read_bytes(), key)
        except FileNotFoundError:
            return None  # another process pruned it just now
        except OSError as error:
            self._tell_once("read", f"{path} in the cache cannot be read ({error.strerror}); what it held is made anew")
            return None
        except _Unusable as why:
            self._tell_once("damaged", f"{path} in the cache is {why}; it is passed over and made anew")
            return None
        with contextlib.suppress(OSError):  # another process pruned it, or the folder is for reading only
            os.utime(path)
        return binary

    def put(self, key: str, binary: Binary) -> None:
        """Keep ``binary`` under ``key``, whole or not at all, and prune what was not used for longest."""
        if self.folder is None:
            return
        path = self._place(self.folder, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, _pack(binary, key))
            _prune(path, self.limit_bytes // _SHARDS)
        except OSError as error:
            self._tell_once("write", f"the cache in {self.folder} cannot be written ({error.strerror}); work goes on")

    def usage(self) -> Usage:
        """What the folder holds now."""
        if self.folder is None or not os.path.isdir(self.folder):
            return Usage(0, 0)
        sizes = [entry.size for shard in sorted(self.folder.glob("[0-9a-f]" * _SHARD_DIGITS)) for entry in _kept(shard)]
        return Usage(len(sizes), sum(sizes))

    def writable(self) -> bool:
        """Whether binaries can be kept: the folder, or the nearest one above it that is there, can be written."""
        if self.folder is None:
            return False
        there = next(place for place in (self.folder, *self.folder.parents) if os.path.lexists(place))
        return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)

    def _place(self, folder: Path, key: str) -> Path:
        return folder / key[:_SHARD_DIGITS] / key

    def _tell_once(self, kind: str, text: str) -> None:
        with self._lock:
            if kind not in self._told:
                self._told.add(kind)
                self._tell(text)


def default() -> Cache:
    """The cache of this user, one for each folder in the life of a process, so that each trouble is told once."""
    return _at(default_folder())


@functools.cache
def _at(folder: Path | None) -> Cache:
    return Cache(folder)


def default_folder() -> Path | None:
    """``$WMMAGEN_CACHE``, else ``$XDG_CACHE_HOME/wmmagen``, else ``~/.cache/wmmagen``; None for no cache."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given).absolute() if given else None
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():  # the specification has a relative one passed over
        return base / "wmmagen"
    try:
        return Path.home() / ".cache" / "wmmagen"
    except RuntimeError:
        return None  # a user without a home


# Files ---------------------------------------------------------------------------------------------------------------


def _pack(binary: Binary, key: str) -> bytes:
    """Magic, checksum of the rest, length of the header, header, and the blobs whose lengths it tells."""
    blobs = [binary.cubin, binary.ptx.encode(), binary.log.encode()]
    fields: dict[str, object] = {name: getattr(binary, name) for name in _PLAIN}
    header = json.dumps({**fields, "sm": binary.arch.sm, "key": key, "lengths": [len(blob) for blob in blobs]}).encode()
    rest = b"".join([_HEADER_LENGTH.pack(len(header)), header, *blobs])
    return _MAGIC + hashlib.sha256(rest).digest() + rest


def _unpack(raw: bytes, key: str) -> Binary:
    start = len(_MAGIC) + _DIGEST_BYTES
    if not raw.startswith(_MAGIC) or len(raw) < start + _HEADER_LENGTH.size:
        raise _Unusable("none of its files, or cut short")
    if hashlib.sha256(raw[start:]).digest() != raw[len(_MAGIC) : start]:
        raise _Unusable("damaged or cut short")
    (length,) = _HEADER_LENGTH.unpack_from(raw, start)
    begin = start + _HEADER_LENGTH.size
    try:
        return _binary(json.loads(raw[begin : begin + length]), raw[begin + length :], key)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        # A checksum can be right over anything.
        raise _Unusable(f"not what its name promises ({type(error).__name__}: {error})") from error


def _binary(header: dict[str, Any], blobs: bytes, key: str) -> Binary:
    if header["key"] != key:
        raise ValueError("it has the name of another one")
    lengths = header["lengths"]
    if len(lengths) != len(_BLOBS) or sum(lengths) != len(blobs):
        raise ValueError("its parts do not fill it")
    cubin, ptx, log = (blobs[sum(lengths[:i]) : sum(lengths[: i + 1])] for i in range(len(_BLOBS)))
    plain = {name: header[name] for name in _PLAIN}
    if any(type(plain[name]) is not kind for name, kind in _PLAIN.items()):
        raise TypeError("a field of another type")
    return Binary(**plain, arch=ARCHS[header["sm"]], cubin=cubin, ptx=ptx.decode(), log=log.decode(), cached=True)


def _write(path: Path, raw: bytes) -> None:
    """Write beside ``path`` and move there, so that no reader ever sees a part."""
    descriptor, beside = tempfile.mkstemp(prefix=_BESIDE, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(raw)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        raise


@dataclass(frozen=True)
class _Entry:
    path: str
    size: int
    used: float


def _kept(shard: Path) -> Iterator[_Entry]:
    """The files of a shard; those of other names are none of this room's business."""
    try:
        with os.scandir(shard) as found:
            for entry in found:
                if _KEPT.fullmatch(entry.name) or entry.name.startswith(_BESIDE):
                    with contextlib.suppress(FileNotFoundError):  # another process was quicker
                        status = entry.stat(follow_symlinks=False)
                        yield _Entry(entry.path, status.st_size, status.st_mtime)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return


def _prune(newest: Path, limit_bytes: int) -> None:
    """Bring the shard of ``newest`` below its share of the limit, the longest unused first; ``newest`` stays."""
    total = 0
    abandoned = time.time() - _ABANDONED_S
    for entry in sorted(_kept(newest.parent), key=lambda entry: -entry.used):
        unfinished = os.path.basename(entry.path).startswith(_BESIDE)
        total += entry.size
        if entry.used < abandoned if unfinished else total > limit_bytes and entry.path != str(newest):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)
