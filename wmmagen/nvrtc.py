"""Source to binary through NVRTC: works without a GPU and without a driver.

The CUDA packages are imported inside the functions that need them, so that importing this module costs nothing and
works where they are missing; what is missing then becomes :class:`wmmagen.errors.MissingPiece`.

Sources: NVRTC documentation, "Supported Compile Options" and "Accessing Lowered Names";
nvJitLink documentation, "Linker options"; the text that ``--ptxas-options=-v`` makes ptxas write.
https://docs.nvidia.com/cuda/nvrtc/index.html
https://docs.nvidia.com/cuda/nvjitlink/index.html
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wmmagen.arch import Arch
from wmmagen.errors import CompileError, MissingPiece

#: The command that brings the compiler and every header that a WMMA kernel includes.
INSTALL = "pip install 'cuda-toolkit[nvrtc,cudart,crt]' cuda-python"
INSTALL_NVJITLINK = "pip install 'cuda-toolkit[nvjitlink]' cuda-python"

#: What a directory must hold to be complete. ``mma.h`` and ``crt/mma.h`` come in different wheels.
REQUIRED_HEADERS = ("mma.h", "crt/mma.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_runtime_api.h")

_ERROR_LINES_SHOWN = 5
_ERROR_LINE = re.compile(r"\b(error|fatal)\b[^:]*:", re.IGNORECASE)


@dataclass(frozen=True)
class Binary:
    """What the compiler made of one source for one architecture.

    Attributes:
        entry: the symbol of the kernel.
        arch: the architecture that ``cubin`` is machine code of.
        cubin: machine code.
        ptx: the PTX that ``cubin`` was assembled from.
        registers: per thread.
        spill_bytes: stores plus loads of spilled registers, per thread.
        stack_bytes: stack frame, per thread.
        static_shared_bytes: statically declared shared memory, per block.
        log: the compiler's whole log, warnings included.
        seconds: wall time of the compilation.
        compiler: name and version of what compiled it, ``NVRTC 13.5``.
        cached: whether it was found again instead of being made now; no part of what it is.
    """

    entry: str
    arch: Arch
    cubin: bytes
    ptx: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    log: str
    seconds: float
    compiler: str
    cached: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Headers:
    """Where the headers of the toolkit are.

    Attributes:
        directories: what to pass with ``-I``, in order.
        version: of the toolkit they belong to, ``13.5``; ``unknown`` where the header does not say.
        origin: how they were found: ``pip wheels``, ``CUDA_HOME``, ``CUDA_PATH`` or ``/usr/local/cuda``.
    """

    directories: tuple[str, ...]
    version: str
    origin: str


@dataclass(frozen=True)
class _Usage:
    """What ptxas reports of one kernel; bytes of spills and stack per thread, of shared memory per block."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def version() -> tuple[int, int]:
    """Major and minor version of the NVRTC library that is loaded.

    Raises:
        MissingPiece: the library or its Python bindings are not here.
    """
    return _nvrtc()[1]


def supported_archs() -> tuple[int, ...]:
    """The architectures that this NVRTC compiles for, as ``10 * major + minor``, ascending.

    The list may hold architectures that :mod:`wmmagen.arch` has no row for.

    Raises:
        MissingPiece: the library or its Python bindings are not here.
    """
    lib, _ = _nvrtc()
    result, archs = lib.nvrtcGetSupportedArchs()
    if result != lib.nvrtcResult.NVRTC_SUCCESS:
        raise MissingPiece(f"NVRTC does not say which architectures it supports: {result.name}", INSTALL)
    return tuple(sorted(int(sm) for sm in archs))


def library() -> str:
    """Path of the NVRTC library in use; empty where the bindings give no means to tell.

    Raises:
        MissingPiece: the library or its Python bindings are not here.
    """
    _nvrtc()
    return _library_path("nvrtc")


def headers() -> Headers:
    """The toolkit's headers: from pip wheels, else ``CUDA_HOME``, else ``CUDA_PATH``, else ``/usr/local/cuda``.

    The first directory that holds all of ``REQUIRED_HEADERS`` is taken; an incomplete one is passed over.

    Raises:
        MissingPiece: no directory is complete; says what each one lacks.
    """
    return _first_complete(tuple(_places()))


def compile_source(
    source: str, entry: str, arch: Arch, *, line_info: bool = False, precompiled: Path | None = None
) -> Binary:
    """Compile one CUDA C++ source for one architecture.

    The cubin is a function of source, entry, architecture and compiler: neither the place of the headers nor the
    working folder enters it, nor whether the headers were precompiled. With ``line_info`` they do, because line tables
    name files.

    Args:
        source: the text of the file; ``entry`` must be an ``extern "C"`` kernel in it.
        entry: symbol of the kernel; the compiler's messages call the file ``<entry>.cu``.
        arch: what to make machine code for.
        line_info: whether to keep line tables (``-lineinfo``), in the cubin for profilers and in the PTX for the CPU
            executor. The machine code is the same.
        precompiled: a folder for precompiled headers, which no other process may use: NVRTC writes files there without
            a lock, and what one process left is of no use to the next. None compiles the headers every time.

    Raises:
        CompileError: the source was refused, or holds no such kernel; carries the whole log.
        MissingPiece: NVRTC or a header is not here, or this NVRTC does not know the architecture.
    """
    lib, number = _nvrtc()
    _require_support(arch, number)
    options = _options(source, arch, headers(), line_info, precompiled)
    result, program = lib.nvrtcCreateProgram(source.encode(), f"{entry}.cu".encode(), 0, [], [])
    compiler = _titled("NVRTC", number)
    if result != lib.nvrtcResult.NVRTC_SUCCESS:
        raise _refusal(compiler, entry, arch, result.name, "")
    try:
        start = time.perf_counter()
        (result,) = lib.nvrtcCompileProgram(program, len(options), options)
        seconds = time.perf_counter() - start
        log = _text(_fetch(lib, "ProgramLog", program))
        if result != lib.nvrtcResult.NVRTC_SUCCESS:
            raise _refusal(compiler, entry, arch, result.name, log)
        cubin = _fetch(lib, "CUBIN", program)
        ptx = _text(_fetch(lib, "PTX", program))
    finally:
        lib.nvrtcDestroyProgram(program)
    return _binary(entry, arch, cubin, ptx, log, seconds, compiler)


def identity(source: str, arch: Arch, *, line_info: bool = False) -> tuple[str, ...]:
    """What decides, beside the text and its entry, what :func:`compile_source` makes of ``source``; holds no path.

    Compiler, size and date of its library, options, and the content of every header that ``source`` includes, directly
    or through another one. The headers are read once in the life of a process.

    Raises:
        MissingPiece: NVRTC or a header is not here.
    """
    found = headers()
    contents = _contents(found.directories, tuple(sorted(set(_INCLUDE.findall(source)))))
    return (title(), _stamp(library()), *_flags(arch, line_info), found.version, contents)


def assembler_identity(arch: Arch) -> tuple[str, ...]:
    """What decides, beside the PTX and its entry, what :func:`assemble` makes of a binary for ``arch``.

    Raises:
        MissingPiece: nvJitLink or its Python bindings are not here.
    """
    return (_titled("nvJitLink", nvjitlink_version()), _stamp(nvjitlink_library()), *_link_options(arch))


def assemble(binary: Binary, arch: Arch) -> Binary:
    """Assemble the PTX of ``binary`` again, for the card ``arch``, through nvJitLink.

    A kernel made for one architecture runs on a later one this way without asking the driver to compile PTX, which
    an older driver refuses. Registers, spills and shared memory are those that the assembler reports for ``arch``.

    Raises:
        CompileError: the PTX is made for a later architecture than ``arch``, or the assembler refuses it.
        MissingPiece: nvJitLink or its Python bindings are not here.
    """
    target = _ptx_target(binary)
    if target > arch.sm:
        raise CompileError(
            f"the PTX of {binary.entry} is made for sm_{target} and cannot run on {arch}, which is earlier",
            f"compile the source for {arch} instead",
        )
    lib, number = _nvjitlink()
    start = time.perf_counter()
    cubin, log = _link(lib, binary, arch, _titled("nvJitLink", number))
    seconds = time.perf_counter() - start
    return _binary(binary.entry, arch, cubin, binary.ptx, log, seconds, _titled("nvJitLink", number))


def nvjitlink_version() -> tuple[int, int]:
    """Major and minor version of the nvJitLink library that is loaded.

    Raises:
        MissingPiece: the library or its Python bindings are not here.
    """
    return _nvjitlink()[1]


def nvjitlink_library() -> str:
    """Path of the nvJitLink library in use; empty where the bindings give no means to tell.

    Raises:
        MissingPiece: the library or its Python bindings are not here.
    """
    _nvjitlink()
    return _library_path("nvJitLink")


# Loading -------------------------------------------------------------------------------------------------------------


@functools.cache
def _nvrtc() -> tuple[Any, tuple[int, int]]:
    """The bindings of NVRTC and the version of the library behind them."""
    lib = _bindings("cuda.bindings.nvrtc", "NVRTC", INSTALL)
    try:
        # The bindings look for the library on the first call, and say with a RuntimeError that there is none.
        result, major, minor = lib.nvrtcVersion()
    except RuntimeError as error:
        raise _no_library("NVRTC", error, INSTALL) from error
    if result != lib.nvrtcResult.NVRTC_SUCCESS:
        raise MissingPiece(f"NVRTC does not tell its version: {result.name}", INSTALL)
    return lib, (int(major), int(minor))


@functools.cache
def _nvjitlink() -> tuple[Any, tuple[int, int]]:
    """The bindings of nvJitLink and the version of the library behind them."""
    lib = _bindings("cuda.bindings.nvjitlink", "nvJitLink", INSTALL_NVJITLINK)
    try:
        major, minor = lib.version()
    except RuntimeError as error:
        raise _no_library("nvJitLink", error, INSTALL_NVJITLINK) from error
    return lib, (int(major), int(minor))


def _bindings(module: str, what: str, install: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPiece(f"the Python bindings of {what} are not here: {error}", install) from error


def _no_library(what: str, error: RuntimeError, install: str) -> MissingPiece:
    reason = next(iter(str(error).splitlines()), "the bindings give no reason")
    return MissingPiece(f"the library of {what} is not here: {reason}", install)


def _library_path(name: str) -> str:
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        return str(pathfinder.load_nvidia_dynamic_lib(name).abs_path or "")
    except (ImportError, RuntimeError):
        return ""


def _stamp(path: str) -> str:
    """Size and date of a library: a version's number stays the same where a patch release replaces it."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def title() -> str:
    """The compiler at work, as binaries name it: ``NVRTC 13.5``.

    Raises:
        MissingPiece: the library or its Python bindings are not here.
    """
    return _titled("NVRTC", version())


def _titled(name: str, number: tuple[int, int]) -> str:
    return f"{name} {number[0]}.{number[1]}"


def wheel_roots() -> list[Path]:
    """The folders of the namespace package ``nvidia``, below which NVIDIA's wheels put their files."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(root) for root in (spec.submodule_search_locations if spec else None) or ()]


# Headers -------------------------------------------------------------------------------------------------------------


def _places() -> Iterator[tuple[str, str]]:
    """Pairs of origin and include directory, in the order in which they are tried. They need not exist."""
    for folder in _wheel_includes():
        yield "pip wheels", str(folder)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield variable, str(Path(root) / "include")
    yield "/usr/local/cuda", "/usr/local/cuda/include"


def _wheel_includes() -> list[Path]:
    """``nvidia/cu13/include`` and its like, the latest major version first."""
    numbered = (
        (int(match[1]), folder / "include")
        for root in wheel_roots()
        for folder in sorted(root.glob("cu*"))
        if (match := re.fullmatch(r"cu([0-9]+)", folder.name))
    )
    return [include for _, include in sorted(numbered, key=lambda pair: -pair[0])]


@functools.cache
def _first_complete(places: tuple[tuple[str, str], ...]) -> Headers:
    lacking = []
    for origin, directory in places:
        missing = [name for name in REQUIRED_HEADERS if not os.path.isfile(Path(directory) / name)]
        if not missing:
            return Headers((directory,), _header_version(Path(directory)), origin)
        exists = os.path.isdir(directory)
        lacking.append(f"{directory} ({origin}) " + (f"lacks {', '.join(missing)}" if exists else "does not exist"))
    raise MissingPiece("no directory holds all headers of a WMMA kernel: " + "; ".join(lacking), INSTALL)


def _header_version(directory: Path) -> str:
    with open(directory / "cuda_runtime_api.h", encoding="utf-8", errors="replace") as file:
        for line in file:
            if match := re.match(r"\s*#\s*define\s+CUDART_VERSION\s+([0-9]+)", line):
                number = int(match[1])
                return f"{number // 1000}.{number % 1000 // 10}"
    return "unknown"


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)


@functools.cache
def _contents(directories: tuple[str, ...], names: tuple[str, ...]) -> str:
    """SHA-256 over the headers that ``names`` lead to, under whatever conditions; an absent one counts by its name."""
    digest = hashlib.sha256()
    waiting = [(name, directories) for name in reversed(names)]
    seen: set[Path] = set()
    while waiting:
        name, places = waiting.pop()
        path = next((found for place in places if os.path.isfile(found := Path(place, name))), None)
        text = path.read_bytes() if path is not None and path not in seen else b""
        digest.update(f"{name} {len(text)}\n".encode() + text)
        if path is not None and path not in seen:
            seen.add(path)
            inner = _INCLUDE.findall(text.decode("utf-8", errors="replace"))
            waiting += [(name, (str(path.parent), *directories)) for name in reversed(inner)]
    return digest.hexdigest()


# Compiling -----------------------------------------------------------------------------------------------------------


def _options(source: str, arch: Arch, found: Headers, line_info: bool, precompiled: Path | None) -> list[bytes]:
    """One string per option: NVRTC splits none of them, so that a path may hold a space."""
    options = _flags(arch, line_info) + [f"-I{directory}" for directory in found.directories]
    if precompiled is not None:
        # The messages would be the only difference that it makes to the log, and name a folder of this machine.
        options += ["--pch", f"--pch-dir={_pch_folder(precompiled, source, options)}", "--pch-messages=false"]
    return [os.fsencode(option) for option in options]


def _pch_folder(precompiled: Path, source: str, options: list[str]) -> Path:
    """The folder of these headers and options: NVRTC tries what it finds, and warns of what was made with others."""
    decide = "\0".join([*options, *_INCLUDE.findall(source)])
    folder = precompiled / hashlib.sha256(decide.encode()).hexdigest()[:16]
    # A folder that cannot be made is NVRTC's to complain of, like one that cannot be written.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _flags(arch: Arch, line_info: bool) -> list[str]:
    """The options that decide what comes out."""
    # Where a driver is, NVRTC keeps what it compiled, and what it finds again has no log: nothing would be known of it.
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", "--no-cache"]
    return [*options, "-lineinfo"] if line_info else options


def _require_support(arch: Arch, number: tuple[int, int]) -> None:
    known = supported_archs()
    if arch.sm in known:
        return
    listed = ", ".join(f"sm_{sm}" for sm in known)
    if arch.sm < known[0]:
        fix = f"use an earlier CUDA toolkit: this one begins at sm_{known[0]}"
    else:
        fix = "pip install --upgrade 'cuda-toolkit[nvrtc,cudart,crt]' cuda-python"
    raise MissingPiece(f"{_titled('NVRTC', number)} does not compile for {arch}; it compiles for {listed}", fix)


def _fetch(lib: Any, what: str, program: Any) -> bytes:
    """``ProgramLog``, ``CUBIN`` or ``PTX`` of a compiled program."""
    result, size = getattr(lib, f"nvrtcGet{what}Size")(program)
    if result == lib.nvrtcResult.NVRTC_SUCCESS:
        buffer = bytes(size)
        # The bindings write into the bytes object that they are given.
        (result,) = getattr(lib, f"nvrtcGet{what}")(program, buffer)
        if result == lib.nvrtcResult.NVRTC_SUCCESS:
            return buffer
    raise CompileError(f"NVRTC does not give the {what} of a program it compiled: {result.name}")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace").rstrip("\0").rstrip()


def _refusal(compiler: str, entry: str, arch: Arch, reason: str, log: str) -> CompileError:
    shown = [line.strip() for line in log.splitlines() if _ERROR_LINE.search(line)][:_ERROR_LINES_SHOWN]
    message = "\n  ".join([f"{compiler} refused {entry} for {arch} ({reason})", *shown])
    return CompileError(message, "read the whole log, which this error carries" if log else "", log)


def _binary(entry: str, arch: Arch, cubin: bytes, ptx: str, log: str, seconds: float, compiler: str) -> Binary:
    usage = _usage(log, entry)
    if not cubin or usage is None:
        raise CompileError(
            f"{compiler} compiled for {arch}, but reports no kernel {entry}; it reports: {_reported(log)}",
            f'declare the kernel as extern "C" __global__ void {entry}(...)',
            log,
        )
    return Binary(
        entry=entry,
        arch=arch,
        cubin=cubin,
        ptx=ptx,
        registers=usage.registers,
        spill_bytes=usage.spill_bytes,
        stack_bytes=usage.stack_bytes,
        static_shared_bytes=usage.shared_bytes,
        log=log,
        seconds=seconds,
        compiler=compiler,
    )


# The log of ptxas ----------------------------------------------------------------------------------------------------

_PROPERTIES = re.compile(r"Function properties for '?([^\s']+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"\bUsed (\d+) registers(?:.*?\b(\d+) bytes smem)?")
# The linker's own line, of lower case: what the kernel has once the functions that it calls are counted in.
_LINKED = re.compile(r"\bused (\d+) registers, .*?\b(\d+) stack\b")


def _usage(log: str, entry: str) -> _Usage | None:
    """What the log says of ``entry``; None where it does not say all of it."""
    frame = used = linked = None
    for name, line in _described(log):
        if name == entry:
            frame = _FRAME.search(line) or frame
            used = _USED.search(line) or used
            linked = _LINKED.search(line) or linked
    if frame is None or used is None:
        return None
    stack, stores, loads = (int(number) for number in frame.groups())
    registers = int(used[1])
    if linked is not None:
        registers, stack = int(linked[1]), int(linked[2])
    return _Usage(registers, stores + loads, stack, int(used[2] or 0))


def _described(log: str) -> Iterator[tuple[str, str]]:
    """Lines of the log, each with the function that it speaks of; empty before the first."""
    name = ""
    for line in log.splitlines():
        if match := _PROPERTIES.search(line):
            name = match[1]
        yield name, line


def _reported(log: str) -> str:
    return ", ".join(re.findall(r"Compiling entry function '([^']+)'", log)) or "none"


# Assembling ----------------------------------------------------------------------------------------------------------


def _ptx_target(binary: Binary) -> int:
    match = re.search(r"^\.target\s+sm_([0-9]+)", binary.ptx, re.MULTILINE)
    if match is None:
        raise CompileError(f"the PTX of {binary.entry} names no target", "compile the source again")
    return int(match[1])


def _link(lib: Any, binary: Binary, arch: Arch, compiler: str) -> tuple[bytes, str]:
    """Cubin and log of the PTX of ``binary``, linked alone."""
    options = _link_options(arch)
    ptx = binary.ptx.encode()
    try:
        handle = lib.create(len(options), options)
    except lib.nvJitLinkError as error:
        raise _refusal(compiler, binary.entry, arch, str(error), "") from error
    try:
        lib.add_data(handle, lib.InputType.PTX, ptx, len(ptx), f"{binary.entry}.ptx")
        lib.complete(handle)
        cubin = bytearray(lib.get_linked_cubin_size(handle))
        lib.get_linked_cubin(handle, cubin)
        return bytes(cubin), _linker_log(lib, "info", handle)
    except lib.nvJitLinkError as error:
        raise _refusal(compiler, binary.entry, arch, str(error), _linker_log(lib, "error", handle)) from error
    finally:
        lib.destroy(handle)


def _link_options(arch: Arch) -> list[str]:
    # Like NVRTC, it keeps what it assembled where a driver is, from one process to the next, and then has no log.
    return [f"-arch={arch}", "-verbose", "-no-cache"]


def _linker_log(lib: Any, kind: str, handle: Any) -> str:
    size = getattr(lib, f"get_{kind}_log_size")(handle)
    buffer = bytearray(size)
    if size:
        getattr(lib, f"get_{kind}_log")(handle, buffer)
    return _text(bytes(buffer))
