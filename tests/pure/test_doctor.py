"""The doctor's findings, with every probe replaced: no compiler, no driver, no GPU."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from wmmagen import cache, doctor, nvrtc, sass
from wmmagen.arch import ARCHS, Arch
from wmmagen.doctor import Finding, examine, ok
from wmmagen.errors import CompileError, MissingPiece


@dataclass(frozen=True)
class Card:
    index: int
    name: str
    sm: int


T4 = Card(0, "Tesla T4", 75)
H200 = Card(1, "NVIDIA H200", 90)


def no_driver() -> str:
    raise MissingPiece("there is no CUDA driver here", "install the NVIDIA driver")


def no_devices() -> tuple[Card, ...]:
    raise MissingPiece("the driver sees no GPU", "look at CUDA_VISIBLE_DEVICES")


def not_asked() -> tuple[Card, ...]:
    raise AssertionError("devices must not be asked for")


@pytest.fixture(autouse=True)
def healthy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with every piece; the folder returned is the only one where libraries are looked for."""

    def compiled(source: str, entry: str, arch: Arch, *, line_info: bool = False) -> nvrtc.Binary:
        return nvrtc.Binary(entry, arch, b"\x7fELF", ".target sm_75", 26, 0, 0, 0, "", 0.25, "NVRTC 13.5")

    (tmp_path / "libcublasLt.so.13").touch()
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 5))
    monkeypatch.setattr(nvrtc, "library", lambda: "/lib/libnvrtc.so.13")
    monkeypatch.setattr(nvrtc, "headers", lambda: nvrtc.Headers(("/inc",), "13.5", "pip wheels"))
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: (75, 88, 90, 107))
    monkeypatch.setattr(nvrtc, "compile_source", compiled)
    monkeypatch.setattr(nvrtc, "nvjitlink_version", lambda: (13, 4))
    monkeypatch.setattr(nvrtc, "nvjitlink_library", lambda: "")
    monkeypatch.setattr(sass, "locate", lambda: Path("/bin/nvdisasm"))
    monkeypatch.setattr(sass, "title", lambda tool: "nvdisasm 13.5")
    monkeypatch.setattr(doctor, "_library_folders", lambda: [tmp_path])
    monkeypatch.setattr(doctor, "_bindings", lambda: "1.0.0")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    return tmp_path


def lacks(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def absent(*_: object, **__: object) -> None:
        raise MissingPiece("it is not here", "get it")

    for name in names:
        monkeypatch.setattr(nvrtc, name, absent)


def by_name(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    named = {finding.name: finding for finding in findings}
    assert len(named) == len(findings)
    return named


def test_a_machine_with_everything() -> None:
    findings = examine(lambda: (T4, H200), lambda: "580.95")
    assert [(f.name, f.state, f.needed) for f in findings] == [
        ("Python", "ok", True),
        ("NVRTC", "ok", True),
        ("CUDA headers", "ok", True),
        ("architectures", "ok", True),
        ("a WMMA compile for sm_75", "ok", True),
        ("nvJitLink", "ok", False),
        ("cache", "ok", False),
        ("nvdisasm", "ok", False),
        ("GPU driver", "ok", False),
        ("GPU 0", "ok", False),
        ("GPU 1", "ok", False),
        ("nvcc", "ok", False),
        ("cuBLAS", "ok", False),
    ]
    assert [f.fix for f in findings] == [""] * len(findings)
    assert ok(findings)
    named = by_name(findings)
    assert named["NVRTC"].detail == "13.5, /lib/libnvrtc.so.13"
    assert named["CUDA headers"].detail == "13.5, /inc (pip wheels)"
    assert named["architectures"].detail == (
        "sm_75, sm_90; listed by NVRTC, but without documented limits: sm_88, sm_107"
    )
    assert named["a WMMA compile for sm_75"].detail == "0.25 s, 26 registers"
    assert named["nvJitLink"].detail == "13.4"
    assert named["nvdisasm"].detail == "13.5, /bin/nvdisasm"
    assert named["GPU 1"].detail == "NVIDIA H200, sm_90, driver 580.95"
    assert named["nvcc"].detail == "/bin/nvcc"


def test_without_a_driver_it_is_still_ok_and_no_device_is_asked_for() -> None:
    findings = examine(not_asked, no_driver)
    named = by_name(findings)
    assert named["GPU driver"] == Finding(
        "GPU driver",
        "missing",
        "there is no CUDA driver here; without it kernels are compiled, not run on a GPU",
        "install the NVIDIA driver",
        False,
    )
    assert "GPU 0" not in named
    assert ok(findings)


def test_the_cache_is_told_and_never_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(folder))

    def finding() -> Finding:
        return by_name(examine(not_asked, no_driver))["cache"]

    assert (finding().state, finding().detail) == ("ok", f"0 binaries, 0.0 of at most 1024 MiB, {folder}")
    kept = folder / "ab" / ("ab" * 32)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(1 << 20))
    assert finding().detail == f"1 binaries, 1.0 of at most 1024 MiB, {folder}"
    monkeypatch.setenv(cache.VARIABLE, str(kept / "below a file"))
    assert (finding().state, finding().needed) == ("warning", False)
    assert cache.VARIABLE in finding().fix
    assert ok((finding(),))


def test_without_nvdisasm_it_is_still_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Path:
        raise MissingPiece("nvdisasm is not here", "get it")

    monkeypatch.setattr(sass, "locate", absent)
    findings = examine(not_asked, no_driver)
    found = by_name(findings)["nvdisasm"]
    assert (found.state, found.needed, found.fix) == ("missing", False, "get it")
    assert "does not lint" in found.detail
    assert ok(findings)


def test_a_driver_without_a_gpu() -> None:
    findings = examine(no_devices, lambda: "580.95")
    named = by_name(findings)
    assert named["GPU driver"].state == "ok"
    assert (named["GPU"].state, named["GPU"].needed) == ("missing", False)
    assert ok(findings)


@pytest.mark.parametrize(
    ("sm", "told"),
    [
        (70, "this NVRTC does not compile for sm_70"),
        (107, "sm_107 is listed by the compiler, but the guide's table"),
        (999, "--arch '999' is no architecture"),
    ],
)
def test_a_gpu_that_no_kernel_can_be_made_for_is_a_warning(sm: int, told: str) -> None:
    finding = by_name(examine(lambda: (Card(0, "Card", sm),), lambda: "580.95"))["GPU 0"]
    assert finding.state == "warning"
    assert told in finding.detail
    assert finding.fix


def test_a_driver_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DRIVER_LIMIT_S", 0.05)
    release = threading.Event()

    def hangs() -> str:
        release.wait()
        return "too late"

    findings = examine(not_asked, hangs)
    release.set()
    finding = by_name(findings)["GPU driver"]
    assert (finding.state, finding.detail) == ("warning", "the driver did not answer within 0.05 s")
    assert ok(findings)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_is_no_finding_is_not_swallowed() -> None:
    def broken() -> str:
        raise KeyError("broken")

    with pytest.raises(RuntimeError, match="failed in a way that is no finding"):
        examine(not_asked, broken)


@pytest.mark.parametrize(
    ("gone", "name"),
    [
        ("version", "NVRTC"),
        ("headers", "CUDA headers"),
        ("supported_archs", "architectures"),
        ("compile_source", "a WMMA compile for sm_75"),
    ],
)
def test_each_needed_piece_alone_makes_it_not_ok(monkeypatch: pytest.MonkeyPatch, gone: str, name: str) -> None:
    lacks(monkeypatch, gone)
    findings = examine(lambda: (T4,), lambda: "580.95")
    assert [(f.name, f.state, f.fix) for f in findings if f.state != "ok"] == [(name, "missing", "get it")]
    assert not ok(findings)


def test_no_optional_piece_makes_it_not_ok(monkeypatch: pytest.MonkeyPatch, healthy: Path) -> None:
    lacks(monkeypatch, "nvjitlink_version")
    monkeypatch.setattr("shutil.which", lambda name: None)
    (healthy / "libcublasLt.so.13").unlink()
    findings = examine(not_asked, no_driver)
    assert {f.name for f in findings if f.state == "missing"} == {"nvJitLink", "GPU driver", "nvcc", "cuBLAS"}
    assert all(f.fix and not f.needed for f in findings if f.state == "missing")
    assert ok(findings)


@pytest.mark.parametrize(
    ("bindings", "library", "lacking"),
    [
        ("", True, "its bindings, nvmath-python, not found"),
        ("1.0.0", False, "the library not found"),
        ("", False, "the library and its bindings, nvmath-python, not found"),
    ],
)
def test_cublas_is_here_with_its_bindings_alone(
    bindings: str, library: bool, lacking: str, monkeypatch: pytest.MonkeyPatch, healthy: Path
) -> None:
    monkeypatch.setattr(doctor, "_bindings", lambda: bindings)
    if not library:
        (healthy / "libcublasLt.so.13").unlink()
    found = by_name(examine(not_asked, no_driver))["cuBLAS"]
    assert (found.state, found.fix) == ("missing", "pip install 'wmmagen[cublas]'")
    assert found.detail == f"{lacking}; it is what the times of kernels are compared with"


def test_a_compiler_that_refuses_the_probe_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise CompileError("NVRTC 13.5 refused it", "read the log", "the log")

    monkeypatch.setattr(nvrtc, "compile_source", refuses)
    findings = examine(not_asked, no_driver)
    finding = by_name(findings)["a WMMA compile for sm_75"]
    assert (finding.state, finding.detail, finding.fix) == ("missing", "NVRTC 13.5 refused it", "read the log")
    assert not ok(findings)


def test_headers_of_another_release_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "headers", lambda: nvrtc.Headers(("/inc",), "13.0", "CUDA_HOME"))
    findings = examine(not_asked, no_driver)
    finding = by_name(findings)["CUDA headers"]
    assert (finding.state, finding.detail) == ("warning", "13.0, /inc (CUDA_HOME); NVRTC is 13.5")
    assert nvrtc.INSTALL in finding.fix
    assert ok(findings)


def test_a_finding_speaks_the_words_of_the_command_line() -> None:
    finding = Finding("nvcc", "missing", "not on PATH", "install it", False)
    assert finding.as_json() == {
        "what": "nvcc",
        "state": "missing",
        "detail": "not on PATH",
        "fix": "install it",
        "needed": False,
    }
    assert str(finding) == "missing  nvcc: not on PATH\n         install it"
    assert str(Finding("Python", "ok", "3.11", "", True)) == "ok       Python: 3.11"


def test_nothing_found_is_not_taken_for_a_needed_piece() -> None:
    assert ok(())
    assert not ok((Finding("NVRTC", "missing", "", "", True),))
    assert ok((Finding("NVRTC", "warning", "", "", True),))


def test_the_probe_is_compiled_for_the_oldest_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Arch]] = []

    def compiled(source: str, entry: str, arch: Arch) -> nvrtc.Binary:
        assert f"void {entry}(" in source
        asked.append((entry, arch))
        return nvrtc.Binary(entry, arch, b"", "", 1, 0, 0, 0, "", 1.0, "NVRTC 13.5")

    monkeypatch.setattr(nvrtc, "compile_source", compiled)
    examine(not_asked, no_driver)
    assert asked == [(doctor.PROBE_ENTRY, ARCHS[75])]
