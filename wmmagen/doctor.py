"""What this machine has and lacks, as findings; the command line prints them.

Nothing here raises for a missing piece, and nothing waits without a limit.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from wmmagen import __version__, cache, nvrtc, sass
from wmmagen import arch as archs
from wmmagen.arch import Arch
from wmmagen.errors import CompileError, ConfigError, DisassemblyError, MissingPiece, WmmagenError

State = Literal["ok", "missing", "warning"]

#: Seconds after which a driver that does not answer is reported as such.
DRIVER_LIMIT_S = 20.0
#: Seconds after which a program that was asked for its version is reported as silent.
PROGRAM_LIMIT_S = 20.0
#: The major version of the toolkit that wmmagen is made for.
TOOLKIT = 13

INSTALL_CUBLAS = "pip install 'wmmagen[cublas]'"
INSTALL_NVMATH = "pip install 'nvmath-python>=1.0,<2'"
INSTALL_NVCC = "pip install 'cuda-toolkit[nvcc,cccl]'"
INSTALL_SANITIZER = "pip install 'cuda-toolkit[sanitizer]'"

#: The smallest complete WMMA kernel: one 16x16x16 product by one warp.
PROBE_ENTRY = "wmmagen_probe"
PROBE_SOURCE = f"""\
#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void {PROBE_ENTRY}(const __half* a, const __half* b, float* d)
{{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> frag_a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> frag_b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    wmma::load_matrix_sync(frag_a, a, 16);
    wmma::load_matrix_sync(frag_b, b, 16);
    wmma::mma_sync(acc, frag_a, frag_b, acc);
    wmma::store_matrix_sync(d, acc, 16, wmma::mem_row_major);
}}
"""

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: what was looked for.
        state: ``ok``, ``missing``, or ``warning`` where it is here but something about it deserves a look.
        detail: versions, paths and numbers, or why it counts as missing.
        fix: what to do about it; empty where nothing is to be done.
        needed: whether wmmagen cannot compile kernels without it.
        adds: what a missing piece would add; else empty.
    """

    name: str
    state: State
    detail: str
    fix: str
    needed: bool
    adds: str = ""

    def as_json(self) -> dict[str, object]:
        """One element of ``findings`` in the command line's ``--json`` contract."""
        return {
            "what": self.name,
            "state": self.state,
            "detail": self.detail,
            "adds": self.adds,
            "fix": self.fix,
            "needed": self.needed,
        }

    def __str__(self) -> str:
        return "\n         ".join(filter(None, (f"{self.state:<8} {self.name}: {self.detail}", self.adds, self.fix)))


class Device(Protocol):
    """What is asked of a GPU; ``sm`` is 10 * major + minor."""

    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def sm(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...


Devices = Callable[[], Sequence[Device]]
Driver = Callable[[], str]


def examine(devices: Devices | None = None, driver: Driver | None = None) -> tuple[Finding, ...]:
    """Look at everything that wmmagen uses, needed pieces first.

    Args:
        devices: lists the GPUs; by default those of the CUDA driver.
        driver: tells the newest CUDA version of the driver, ``13.0``; by default that of the CUDA driver.
            Both raise :class:`MissingPiece` where there is none.
    """
    gpus, listed = _gpus(devices or _cuda_devices, driver or _cuda_driver)
    return (
        _python(),
        _nvrtc(),
        _headers(),
        _architectures(),
        *(_wmma_compile(arch) for arch in _probed(listed)),
        _nvjitlink(),
        _cache(cache.default()),
        _temporary(),
        *gpus,
        _nvdisasm(),
        _nvcc(),
        _sanitizer(),
        _cublas(_library_folders()),
        _nvmath(),
    )


def ok(findings: Iterable[Finding]) -> bool:
    """Whether no needed piece is missing."""
    return not any(finding.needed and finding.state == "missing" for finding in findings)


# What kernels cannot be compiled without -----------------------------------------------------------------------------


def _python() -> Finding:
    parts = [platform.python_version(), f"wmmagen {__version__}"]
    if bindings := _distribution("cuda-bindings"):
        parts.append(f"cuda-bindings {bindings}")
    return Finding("Python", "ok", ", ".join(parts), "", True)


def _nvrtc() -> Finding:
    try:
        number = nvrtc.version()
        path = nvrtc.library()
    except MissingPiece as error:
        return _absent("NVRTC", error, "it compiles: without it there is no kernel", needed=True)
    return Finding("NVRTC", "ok", _joined(_spelt(number), path), "", True)


def _headers() -> Finding:
    name = "CUDA headers"
    try:
        found = nvrtc.headers()
    except MissingPiece as error:
        return _absent(name, error, "every WMMA kernel includes them", needed=True)
    detail = f"{found.version}, {', '.join(found.directories)} ({found.origin})"
    compiler = _compiler()
    if compiler is not None and found.version != _spelt(compiler):
        fix = f"install both of one release: {nvrtc.INSTALL}"
        return Finding(name, "warning", f"{detail}; NVRTC is {_spelt(compiler)}", fix, True)
    return Finding(name, "ok", detail, "", True)


def _architectures() -> Finding:
    try:
        listed = nvrtc.supported_archs()
    except MissingPiece as error:
        return _absent("architectures", error, "NVRTC lists them", needed=True)
    known = [f"sm_{sm}" for sm in listed if sm in archs.ARCHS]
    unknown = [f"sm_{sm}" for sm in listed if sm not in archs.ARCHS]
    detail = ", ".join(known)
    if unknown:
        detail += f"; listed by NVRTC, but without documented limits: {', '.join(unknown)}"
    return Finding("architectures", "ok", detail, "", True)


def _probed(devices: Iterable[Device]) -> tuple[Arch, ...]:
    """The architectures of the GPUs that kernels can be compiled for, each once; the oldest one where there is none."""
    compiled_for = _compiled_for() or ()
    here = {device.sm for device in devices} & set(compiled_for) & archs.ARCHS.keys()
    return tuple(archs.ARCHS[sm] for sm in sorted(here or {75}))


def _wmma_compile(arch: Arch) -> Finding:
    name = f"a WMMA compile for {arch}"
    try:
        binary = nvrtc.compile_source(PROBE_SOURCE, PROBE_ENTRY, arch)
    except (MissingPiece, CompileError) as error:
        return _absent(name, error, "it shows that compiler and headers work together", needed=True)
    return Finding(name, "ok", f"{binary.seconds:.2f} s, {binary.registers} registers", "", True)


def _compiler() -> tuple[int, int] | None:
    """The version of NVRTC; None without NVRTC, which is a finding of its own."""
    try:
        return nvrtc.version()
    except MissingPiece:
        return None


def _compiled_for() -> tuple[int, ...] | None:
    """What NVRTC compiles for; None without NVRTC."""
    try:
        return nvrtc.supported_archs()
    except MissingPiece:
        return None


# Folders -------------------------------------------------------------------------------------------------------------


def _cache(kept: cache.Cache) -> Finding:
    name = "cache"
    if kept.folder is None:
        return Finding(name, "ok", f"none: {cache.VARIABLE} is empty, or the user has no home", "", False)
    usage = kept.usage()
    held = f"{usage.files} binaries, {usage.bytes / 2**20:.1f} of at most {kept.limit_bytes >> 20} MiB, {kept.folder}"
    if not kept.writable():
        fix = f"make the folder one that can be written, or set {cache.VARIABLE} to one"
        return Finding(name, "warning", f"{held}; it cannot be written, and nothing new is kept", fix, False)
    free = _free_bytes(kept.folder)
    detail = f"{held}, {_gib(free)} free"
    if free < kept.limit_bytes - usage.bytes:
        fix = f"free some space, or set {cache.VARIABLE} to a folder on another disk"
        return Finding(name, "warning", f"{detail}, less than it may still take", fix, False)
    return Finding(name, "ok", detail, "", False)


def _temporary() -> Finding:
    name = "temporary folder"
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        fix = "set TMPDIR to a folder that can be written"
        adds = "sweeps keep precompiled headers there, and the lint what it reads"
        return Finding(name, "missing", str(error.strerror), fix, False, adds)
    return Finding(name, "ok", f"{folder}, {_gib(_free_bytes(folder))} free", "", False)


def _free_bytes(folder: Path) -> int:
    """Free space of the disk of ``folder``, or of the nearest one above it that is there."""
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    return shutil.disk_usage(there).free


# GPUs ----------------------------------------------------------------------------------------------------------------


def _gpus(devices: Devices, driver: Driver) -> tuple[tuple[Finding, ...], tuple[Device, ...]]:
    """The driver and one finding per GPU, and the GPUs. Nothing more is asked of a driver that did not answer."""
    adds = "it runs kernels: verdicts and times come from it"
    try:
        version = _within(DRIVER_LIMIT_S, driver)
    except TimeoutError:
        return (_silent("GPU driver"),), ()
    except MissingPiece as error:
        return (_absent("GPU driver", error, adds, needed=False),), ()
    found = _driver(version)
    try:
        listed = tuple(_within(DRIVER_LIMIT_S, devices))
    except TimeoutError:
        return (found, _silent("GPU")), ()
    except MissingPiece as error:
        return (found, _absent("GPU", error, adds, needed=False)), ()
    compiled_for = _compiled_for()
    return (found, *(_gpu(device, compiled_for) for device in listed)), listed


def _driver(version: str) -> Finding:
    """What a driver of the newest CUDA version ``version`` is worth: machine code of a later major version is refused.

    Source: CUDA Compatibility, "Minor Version Compatibility".
    """
    name = "GPU driver"
    detail = _joined(_module_version(), f"CUDA {version}")
    compiler = _compiler()
    if compiler is not None and _major(version) < compiler[0]:
        fix = f"update the NVIDIA driver to one of CUDA {compiler[0]}"
        return Finding(name, "warning", f"{detail}; it may refuse what NVRTC {_spelt(compiler)} compiles", fix, False)
    return Finding(name, "ok", detail, "", False)


#: Where Linux tells the version of the kernel's part of the driver.
_MODULE_FILES = (Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version"))


def _module_version() -> str:
    """``580.95.05``; empty where the system does not tell."""
    for path in _MODULE_FILES:
        if path.is_file() and (match := re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", path.read_text(encoding="utf-8"))):
            return match[0]
    return ""


def _gpu(device: Device, compiled_for: tuple[int, ...] | None) -> Finding:
    name = f"GPU {device.index}"
    detail = f"{device.name}, sm_{device.sm}, {_gib(device.memory_bytes)}"
    try:
        archs.find(str(device.sm))
    except ConfigError as error:
        return Finding(name, "warning", f"{detail}; {error.message}", error.fix, False)
    if compiled_for is not None and device.sm not in compiled_for:
        fix = "install a CUDA toolkit that compiles for it"
        return Finding(name, "warning", f"{detail}; this NVRTC does not compile for sm_{device.sm}", fix, False)
    return Finding(name, "ok", detail, "", False)


def _silent(name: str) -> Finding:
    detail = f"the driver did not answer within {DRIVER_LIMIT_S:g} s"
    return Finding(name, "warning", detail, "see whether nvidia-smi answers; a GPU that hangs needs a restart", False)


# What adds to it -----------------------------------------------------------------------------------------------------


def _nvjitlink() -> Finding:
    """An assembler that is older than the compiler may not know its PTX."""
    name = "nvJitLink"
    try:
        number = nvrtc.nvjitlink_version()
        path = nvrtc.nvjitlink_library()
    except MissingPiece as error:
        adds = "it assembles a kernel made for one architecture for another card"
        return _absent(name, error, adds, needed=False)
    return _not_older(name, _joined(_spelt(number), path), number, nvrtc.INSTALL_NVJITLINK)


def _nvdisasm() -> Finding:
    name = "nvdisasm"
    try:
        path = sass.locate()
        title = sass.title(path)
    except (MissingPiece, DisassemblyError) as error:
        adds = "it reads machine code, for the lint of `wmmagen compile`, `emit` and `sweep`"
        return _absent(name, error, adds, needed=False)
    version = title.removeprefix("nvdisasm ")
    major, minor = version.split(".")
    return _not_older(name, _joined(version, str(path)), (int(major), int(minor)), sass.INSTALL)


def _not_older(name: str, detail: str, number: tuple[int, int], install: str) -> Finding:
    """A tool that reads what NVRTC made, and has to be as new."""
    compiler = _compiler()
    if compiler is not None and number < compiler:
        told = f"{detail}; older than NVRTC {_spelt(compiler)}, whose output it may not know"
        return Finding(name, "warning", told, f"install both of one release: {install}", False)
    return Finding(name, "ok", detail, "", False)


def _nvcc() -> Finding:
    name = "nvcc"
    path = _program(name)
    if path is None:
        adds = "it builds emitted files into programs"
        return Finding(name, "missing", "neither on the PATH nor in a toolkit", INSTALL_NVCC, False, adds)
    version = _asked_version(path)
    detail = _joined(version, str(path))
    if not version:
        return Finding(name, "warning", f"{detail}; it does not say its version", f"see why: {path} --version", False)
    if _major(version) != TOOLKIT:
        return Finding(name, "warning", f"{detail}; emitted files are made for CUDA {TOOLKIT}", INSTALL_NVCC, False)
    return Finding(name, "ok", detail, "", False)


def _sanitizer() -> Finding:
    name = "compute-sanitizer"
    path = _program(name)
    if path is None:
        adds = "it looks for bad accesses and races in programs with emitted kernels"
        return Finding(name, "missing", "neither on the PATH nor in a toolkit", INSTALL_SANITIZER, False, adds)
    return Finding(name, "ok", _joined(_asked_version(path), str(path)), "", False)


def _cublas(folders: Iterable[Path]) -> Finding:
    """Looks for the file and does not load it: the library is hundreds of megabytes."""
    name = "cuBLASLt"
    for folder in folders:
        for pattern in ("libcublasLt.so*", "cublasLt64_*.dll"):
            for path in sorted(folder.glob(pattern)):
                return Finding(name, "ok", _joined(_library_version(path), str(path)), "", False)
    adds = "times of kernels are compared with its times"
    return Finding(name, "missing", "its library is not here", INSTALL_CUBLAS, False, adds)


def _library_version(path: Path) -> str:
    """Of a wheel's library what the wheel says, else what the file's full name says; empty where that is no more."""
    if any(path.is_relative_to(root) for root in nvrtc.wheel_roots()):
        return _distribution("nvidia-cublas")
    match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path.resolve().name)
    return match[1] if match else ""


def _nvmath() -> Finding:
    name = "nvmath-python"
    if version := _distribution(name):
        return Finding(name, "ok", version, "", False)
    return Finding(name, "missing", "it is not installed", INSTALL_NVMATH, False, "through it cuBLASLt is called")


def _library_folders() -> list[Path]:
    """Folders that may hold libraries of the toolkit; they need not exist."""
    wheel_patterns = ("*/lib", "*/bin/x86_64")
    folders = [
        path for root in nvrtc.wheel_roots() for pattern in wheel_patterns for path in sorted(root.glob(pattern))
    ]
    folders += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    return folders + [root / inner for root in _toolkits() for inner in ("lib64", "bin")]


def _toolkits() -> list[Path]:
    """Where a toolkit may be installed that is no wheel."""
    roots = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    return [Path(root) for root in roots if root]


# Help ----------------------------------------------------------------------------------------------------------------


def _program(name: str) -> Path | None:
    """A program of the toolkit: the one that a shell finds, else of a wheel, else of an installed toolkit."""
    if on_path := shutil.which(name):
        return Path(on_path)
    in_wheels = (path for root in nvrtc.wheel_roots() for path in sorted(root.glob(f"*/bin/{name}")))
    places = (*in_wheels, *(root / "bin" / name for root in _toolkits()))
    return next((path for path in places if path.is_file() and os.access(path, os.X_OK)), None)


def _asked_version(program: Path) -> str:
    """What ``program`` answers to ``--version``, the number alone; empty where it does not say it."""
    try:
        done = subprocess.run(
            [str(program), "--version"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROGRAM_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\b(?:release|Version) ([0-9]+(?:\.[0-9]+)+)", done.stdout)
    return match[1] if match else ""


def _distribution(name: str) -> str:
    """The version of an installed distribution; empty where there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _spelt(number: tuple[int, int]) -> str:
    return "{}.{}".format(*number)


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _absent(name: str, error: WmmagenError, adds: str, *, needed: bool) -> Finding:
    return Finding(name, "missing", error.message, error.fix, needed, adds)


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _within(seconds: float, call: Callable[[], T]) -> T:
    """The answer of ``call``, which runs in a thread that the process does not wait for.

    Raises:
        TimeoutError: no answer within ``seconds``.
        WmmagenError: as ``call`` raises it.
        RuntimeError: ``call`` raised anything else; the thread has printed it.
    """
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except WmmagenError as error:
            answer.set_exception(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:g} s")
    if not answer.done():
        raise RuntimeError("the question to the driver failed in a way that is no finding")
    return answer.result()


def _cuda_devices() -> Sequence[Device]:
    from wmmagen.backends import gpu

    return gpu.devices()


def _cuda_driver() -> str:
    from wmmagen.backends import gpu

    return gpu.driver_version()
