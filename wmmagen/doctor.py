"""What this machine has and lacks, as findings; the command line prints them.

Nothing here raises for a missing piece, and nothing waits without a limit.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from wmmagen import __version__, cache, nvrtc, sass
from wmmagen import arch as archs
from wmmagen.backends import product
from wmmagen.errors import CompileError, ConfigError, DisassemblyError, MissingPiece, WmmagenError

State = Literal["ok", "missing", "warning"]

#: Seconds after which a driver that does not answer is reported as such.
DRIVER_LIMIT_S = 20.0

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
        detail: versions, paths and numbers; for a missing piece, what it would add.
        fix: what to do about it; empty where nothing is to be done.
        needed: whether wmmagen cannot compile kernels without it.
    """

    name: str
    state: State
    detail: str
    fix: str
    needed: bool

    def as_json(self) -> dict[str, object]:
        """One element of ``findings`` in the command line's ``--json`` contract."""
        return {
            "what": self.name,
            "state": self.state,
            "detail": self.detail,
            "fix": self.fix,
            "needed": self.needed,
        }

    def __str__(self) -> str:
        line = f"{self.state:<8} {self.name}: {self.detail}"
        return f"{line}\n         {self.fix}" if self.fix else line


class Device(Protocol):
    """What is asked of a GPU; ``sm`` is 10 * major + minor."""

    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def sm(self) -> int: ...


Devices = Callable[[], Sequence[Device]]
Driver = Callable[[], str]


def examine(devices: Devices | None = None, driver: Driver | None = None) -> tuple[Finding, ...]:
    """Look at everything that wmmagen uses, needed pieces first.

    Args:
        devices: lists the GPUs; by default those of the CUDA driver.
        driver: tells the version of the driver; by default that of the CUDA driver.
            Both raise :class:`MissingPiece` where there is none.
    """
    return (
        _python(),
        _nvrtc(),
        _headers(),
        _architectures(),
        _wmma_compile(),
        _nvjitlink(),
        _cache(cache.default()),
        _nvdisasm(),
        *_gpus(devices or _cuda_devices, driver or _cuda_driver),
        _nvcc(),
        _cublas(_library_folders()),
    )


def ok(findings: Iterable[Finding]) -> bool:
    """Whether no needed piece is missing."""
    return not any(finding.needed and finding.state == "missing" for finding in findings)


# What kernels cannot be compiled without -----------------------------------------------------------------------------


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()}, wmmagen {__version__}", "", True)


def _nvrtc() -> Finding:
    try:
        major, minor = nvrtc.version()
        path = nvrtc.library()
    except MissingPiece as error:
        return _absent("NVRTC", error, "without it no kernel can be compiled", needed=True)
    return Finding("NVRTC", "ok", _joined(f"{major}.{minor}", path), "", True)


def _headers() -> Finding:
    try:
        found = nvrtc.headers()
    except MissingPiece as error:
        return _absent("CUDA headers", error, "without them no WMMA kernel can be compiled", needed=True)
    detail = f"{found.version}, {', '.join(found.directories)} ({found.origin})"
    try:
        compiler = "{}.{}".format(*nvrtc.version())
    except MissingPiece:
        return Finding("CUDA headers", "ok", detail, "", True)
    if found.version != compiler:
        fix = f"install both of one release: {nvrtc.INSTALL}"
        return Finding("CUDA headers", "warning", f"{detail}; NVRTC is {compiler}", fix, True)
    return Finding("CUDA headers", "ok", detail, "", True)


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


def _wmma_compile() -> Finding:
    arch = archs.ARCHS[75]
    name = f"a WMMA compile for {arch}"
    try:
        binary = nvrtc.compile_source(PROBE_SOURCE, PROBE_ENTRY, arch)
    except (MissingPiece, CompileError) as error:
        return _absent(name, error, "", needed=True)
    return Finding(name, "ok", f"{binary.seconds:.2f} s, {binary.registers} registers", "", True)


# What adds to it -----------------------------------------------------------------------------------------------------


def _nvjitlink() -> Finding:
    adds = "it assembles a kernel made for one architecture for another card"
    try:
        major, minor = nvrtc.nvjitlink_version()
        path = nvrtc.nvjitlink_library()
    except MissingPiece as error:
        return _absent("nvJitLink", error, adds, needed=False)
    return Finding("nvJitLink", "ok", _joined(f"{major}.{minor}", path), "", False)


def _cache(kept: cache.Cache) -> Finding:
    name = "cache"
    if kept.folder is None:
        return Finding(name, "ok", f"none: {cache.VARIABLE} is empty, or the user has no home", "", False)
    usage = kept.usage()
    held = f"{usage.files} binaries, {usage.bytes / 2**20:.1f} of at most {kept.limit_bytes >> 20} MiB, {kept.folder}"
    if not kept.writable():
        fix = f"make the folder one that can be written, or set {cache.VARIABLE} to one"
        return Finding(name, "warning", f"{held}; it cannot be written, and nothing new is kept", fix, False)
    return Finding(name, "ok", held, "", False)


def _nvdisasm() -> Finding:
    try:
        path = sass.locate()
        title = sass.title(path)
    except (MissingPiece, DisassemblyError) as error:
        return _absent("nvdisasm", error, "without it `wmmagen compile` does not lint machine code", needed=False)
    return Finding("nvdisasm", "ok", _joined(title.removeprefix("nvdisasm "), str(path)), "", False)


def _gpus(devices: Devices, driver: Driver) -> tuple[Finding, ...]:
    """The driver, then one finding per GPU. Nothing more is asked of a driver that did not answer."""
    adds = "without it kernels are compiled, not run on a GPU"
    try:
        version = _within(DRIVER_LIMIT_S, driver)
    except TimeoutError:
        return (_silent("GPU driver"),)
    except MissingPiece as error:
        return (_absent("GPU driver", error, adds, needed=False),)
    found = Finding("GPU driver", "ok", version, "", False)
    try:
        listed = _within(DRIVER_LIMIT_S, devices)
    except TimeoutError:
        return found, _silent("GPU")
    except MissingPiece as error:
        return found, _absent("GPU", error, adds, needed=False)
    compiled_for = _compiled_for()
    return found, *(_gpu(device, version, compiled_for) for device in listed)


def _compiled_for() -> tuple[int, ...] | None:
    """What NVRTC compiles for; None without NVRTC, which is a finding of its own."""
    try:
        return nvrtc.supported_archs()
    except MissingPiece:
        return None


def _gpu(device: Device, driver: str, compiled_for: tuple[int, ...] | None) -> Finding:
    name = f"GPU {device.index}"
    detail = f"{device.name}, sm_{device.sm}, driver {driver}"
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


def _nvcc() -> Finding:
    path = shutil.which("nvcc")
    if path is None:
        detail = "not on PATH; it would build the emitted files into a program here"
        return Finding("nvcc", "missing", detail, "pip install 'cuda-toolkit[nvcc,cccl]'", False)
    return Finding("nvcc", "ok", path, "", False)


def _cublas(folders: Iterable[Path]) -> Finding:
    """Looks for the files and loads none: the library is hundreds of megabytes."""
    patterns = ("libcublasLt.so*", "cublasLt64_*.dll")
    library = next((str(p) for folder in folders for pattern in patterns for p in sorted(folder.glob(pattern))), "")
    bindings = _bindings()
    wanted = {"the library": library, "its bindings, nvmath-python,": bindings}
    lacking = [word for word, found in wanted.items() if not found]
    if lacking:
        detail = f"{' and '.join(lacking)} not found; it is what the times of kernels are compared with"
        return Finding("cuBLAS", "missing", detail, product.INSTALL, False)
    return Finding("cuBLAS", "ok", f"{library}, nvmath-python {bindings}", "", False)


def _bindings() -> str:
    """The version of the bindings; empty where there are none."""
    try:
        return importlib.metadata.version("nvmath-python")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _library_folders() -> list[Path]:
    """Folders that may hold libraries of the toolkit; they need not exist."""
    wheel_patterns = ("*/lib", "*/bin/x86_64")
    folders = [
        path for root in nvrtc.wheel_roots() for pattern in wheel_patterns for path in sorted(root.glob(pattern))
    ]
    folders += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return folders + [Path(root) / inner for root in toolkits if root for inner in ("lib64", "bin")]


# Help ----------------------------------------------------------------------------------------------------------------


def _absent(name: str, error: WmmagenError, adds: str, *, needed: bool) -> Finding:
    detail = f"{error.message}; {adds}" if adds else error.message
    return Finding(name, "missing", detail, error.fix, needed)


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
