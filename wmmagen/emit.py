"""The files for another project: the rendered text with its launcher, and a header for C and C++."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from wmmagen import render
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig
from wmmagen.errors import ConfigError, RequestError

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,199}", re.ASCII)
#: C and C++ words that look like identifiers and cannot name a function.
_RESERVED = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int
    long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void
    volatile wchar_t while xor xor_eq main half wmma nvcuda A B D M N K lda ldb ldd stream launch launched kernel
    asked
    """.split()
)


def check_symbol(symbol: str) -> str:
    """``symbol`` where it can name an exported C function.

    Raises:
        ConfigError: it cannot.
    """
    if not _IDENTIFIER.fullmatch(symbol) or symbol in _RESERVED or "__device" in symbol:
        raise ConfigError(
            f"--symbol {symbol!r} cannot name an exported C function",
            "a letter, then letters, digits and underscores, no word of C or C++, 200 at most",
        )
    return symbol


def emit(
    config: KernelConfig, arch: Arch, folder: Path, *, symbol: str | None = None, overwrite: bool = False
) -> tuple[Path, ...]:
    """Write ``<symbol>.cu`` and ``<symbol>.h`` into ``folder``, which is made where it is missing.

    Args:
        symbol: the exported function; the canonical name where it is None.
        overwrite: replace files of other content.

    Raises:
        ConfigError: ``symbol`` cannot name a function.
        NotGeneratedYet: no template makes ``config``.
        RequestError: a file of other content is in the way, or the folder cannot be written. Nothing was changed.
    """
    source = render.render(config, arch, symbol=check_symbol(symbol) if symbol else None)
    texts = {
        folder / f"{source.symbol}.cu": source.text,
        folder / f"{source.symbol}.h": render.render_header(config, source.symbol),
    }
    if not overwrite:
        for path, text in texts.items():
            _demand_free(path, text)
    for path, text in texts.items():
        write(path, text)
    return tuple(texts)


def write(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it there, so that a reader sees the old file or the new one.

    Raises:
        RequestError: the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    except OSError as error:
        raise RequestError(f"{path.parent} cannot be written: {error.strerror}", "choose another folder") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        os.unlink(temporary)
        raise RequestError(f"{path} cannot be written: {error.strerror}", "choose another folder") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _demand_free(path: Path, text: str) -> None:
    try:
        present = path.read_bytes() if path.exists() else text.encode()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", "choose another folder") from None
    if present != text.encode():
        raise RequestError(
            f"{path} exists and holds something else", "choose another folder or --symbol, or say --overwrite"
        )
