"""The doctor's findings, with every probe replaced: no compiler, no driver, no GPU."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from wmmagen import cache, doctor, nvrtc, sass
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends import product
from wmmagen.doctor import Finding, _asked_version, examine, ok
from wmmagen.errors import CompileError, MissingPiece


@dataclass(frozen=True)
class Card:
    index: int
    name: str
    sm: int
    memory_bytes: int = 16 << 30


T4 = Card(0, "Tesla T4", 75)
H200 = Card(1, "NVIDIA H200", 90, 141 << 30)


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

    (tmp_path / "libcublasLt.so.13.1.0.3").touch()
    (tmp_path / "libcublasLt.so.13").symlink_to("libcublasLt.so.13.1.0.3")
    (tmp_path / "version").write_text("580.95.05\n")
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 5))
    monkeypatch.setattr(nvrtc, "library", lambda: "/lib/libnvrtc.so.13")
    monkeypatch.setattr(nvrtc, "headers", lambda: nvrtc.Headers(("/inc",), "13.5", "pip wheels"))
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: (75, 88, 90, 107))
    monkeypatch.setattr(nvrtc, "compile_source", compiled)
    monkeypatch.setattr(nvrtc, "nvjitlink_version", lambda: (13, 5))
    monkeypatch.setattr(nvrtc, "nvjitlink_library", lambda: "")
    monkeypatch.setattr(sass, "locate", lambda: Path("/bin/nvdisasm"))
    monkeypatch.setattr(sass, "title", lambda tool: "nvdisasm 13.5")
    monkeypatch.setattr(doctor, "_library_folders", lambda: [tmp_path])
    monkeypatch.setattr(doctor, "_asked_version", lambda program: "13.0" if program.name == "nvcc" else "2025.3.1.0")
    monkeypatch.setattr(doctor, "_distribution", lambda name: "0.6.0" if name == "nvmath-python" else "13.4.4")
    monkeypatch.setattr(doctor, "_MODULE_FILES", (tmp_path / "none", tmp_path / "version"))
    monkeypatch.setattr(doctor, "_toolkits", list)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: _Disk(free=5 << 30))
    return tmp_path


@dataclass(frozen=True)
class _Disk:
    free: int


def lacks(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def absent(*_: object, **__: object) -> None:
        raise MissingPiece("it is not here", "get it")

    for name in names:
        monkeypatch.setattr(nvrtc, name, absent)


def by_name(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    named = {finding.name: finding for finding in findings}
    assert len(named) == len(findings)
    return named


def test_a_machine_with_everything(healthy: Path) -> None:
    findings = examine(lambda: (T4, H200), lambda: "13.0")
    assert [(f.name, f.state, f.needed) for f in findings] == [
        ("Python", "ok", True),
        ("NVRTC", "ok", True),
        ("CUDA headers", "ok", True),
        ("architectures", "ok", True),
        ("a WMMA compile for sm_75", "ok", True),
        ("a WMMA compile for sm_90", "ok", True),
        ("nvJitLink", "ok", False),
        ("cache", "ok", False),
        ("temporary folder", "ok", False),
        ("GPU driver", "ok", False),
        ("GPU 0", "ok", False),
        ("GPU 1", "ok", False),
        ("nvdisasm", "ok", False),
        ("nvcc", "ok", False),
        ("compute-sanitizer", "ok", False),
        ("cuBLASLt", "ok", False),
        ("nvmath-python", "ok", False),
    ]
    assert [f.fix + f.adds for f in findings] == [""] * len(findings)
    assert ok(findings)
    named = by_name(findings)
    assert named["NVRTC"].detail == "13.5, /lib/libnvrtc.so.13"
    assert named["CUDA headers"].detail == "13.5, /inc (pip wheels)"
    assert named["architectures"].detail == (
        "sm_75, sm_90; listed by NVRTC, but without documented limits: sm_88, sm_107"
    )
    assert named["a WMMA compile for sm_75"].detail == "0.25 s, 26 registers"
    assert named["nvJitLink"].detail == "13.5"
    assert named["temporary folder"].detail.endswith(", 5.0 GiB free")
    assert named["GPU driver"].detail == "580.95.05, CUDA 13.0"
    assert named["nvdisasm"].detail == "13.5, /bin/nvdisasm"
    assert named["GPU 1"].detail == "NVIDIA H200, sm_90, 141.0 GiB"
    assert named["nvcc"].detail == "13.0, /bin/nvcc"
    assert named["compute-sanitizer"].detail == "2025.3.1.0, /bin/compute-sanitizer"
    assert named["cuBLASLt"].detail == f"13.1.0.3, {healthy}/libcublasLt.so.13"
    assert named["nvmath-python"].detail == "0.6.0"


def test_without_a_driver_it_is_still_ok_and_no_device_is_asked_for() -> None:
    findings = examine(not_asked, no_driver)
    named = by_name(findings)
    assert named["GPU driver"] == Finding(
        "GPU driver",
        "missing",
        "there is no CUDA driver here",
        "install the NVIDIA driver",
        False,
        "it runs kernels: verdicts and times come from it",
    )
    assert "GPU 0" not in named
    assert ok(findings)


def test_the_cache_is_told_and_never_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(folder))

    def finding() -> Finding:
        return by_name(examine(not_asked, no_driver))["cache"]

    assert (finding().state, finding().detail) == ("ok", f"0 binaries, 0.0 of at most 1024 MiB, {folder}, 5.0 GiB free")
    kept = folder / "ab" / ("ab" * 32)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(1 << 20))
    assert finding().detail == f"1 binaries, 1.0 of at most 1024 MiB, {folder}, 5.0 GiB free"
    for missing, state in ((0, "ok"), (1, "warning")):  # bytes that lack to what it may still take
        monkeypatch.setattr("shutil.disk_usage", lambda folder, lacks=missing: _Disk(free=(1023 << 20) - lacks))
        assert finding().state == state
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
    assert "lint" in found.adds
    assert ok(findings)


def test_a_driver_without_a_gpu() -> None:
    findings = examine(no_devices, lambda: "13.0")
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
    finding = by_name(examine(lambda: (Card(0, "Card", sm),), lambda: "13.0"))["GPU 0"]
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
    findings = examine(lambda: (T4,), lambda: "13.0")
    assert [(f.name, f.state, f.fix) for f in findings if f.state != "ok"] == [(name, "missing", "get it")]
    assert not ok(findings)


def test_no_optional_piece_makes_it_not_ok(monkeypatch: pytest.MonkeyPatch, healthy: Path) -> None:
    lacks(monkeypatch, "nvjitlink_version")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(nvrtc, "wheel_roots", list)
    monkeypatch.setattr(doctor, "_distribution", lambda name: "")
    for path in healthy.glob("libcublasLt*"):
        path.unlink()

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    findings = examine(not_asked, no_driver)
    assert [f.name for f in findings if f.state == "missing"] == [
        "nvJitLink", "temporary folder", "GPU driver", "nvcc", "compute-sanitizer", "cuBLASLt", "nvmath-python",
    ]  # fmt: skip
    assert all(f.fix and f.adds and not f.needed for f in findings if f.state == "missing")
    assert ok(findings)


def test_cublas_comes_by_the_command_that_its_user_names() -> None:
    assert doctor.INSTALL_CUBLAS == product.INSTALL


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


@pytest.mark.parametrize(("number", "state"), [((13, 4), "warning"), ((13, 5), "ok"), ((14, 0), "ok")])
def test_what_reads_the_compilers_output_must_not_be_older(
    monkeypatch: pytest.MonkeyPatch, number: tuple[int, int], state: str
) -> None:
    monkeypatch.setattr(nvrtc, "nvjitlink_version", lambda: number)
    monkeypatch.setattr(sass, "title", lambda tool: "nvdisasm {}.{}".format(*number))
    named = by_name(examine(not_asked, no_driver))
    for name, install in (("nvJitLink", nvrtc.INSTALL_NVJITLINK), ("nvdisasm", sass.INSTALL)):
        assert named[name].state == state
        assert ("older than NVRTC 13.5" in named[name].detail) is (install in named[name].fix) is (state == "warning")


@pytest.mark.parametrize(("cuda", "state"), [("12.9", "warning"), ("13.0", "ok"), ("13.5", "ok"), ("14.0", "ok")])
def test_a_driver_of_an_earlier_major_version_is_a_warning(cuda: str, state: str) -> None:
    finding = by_name(examine(lambda: (T4,), lambda: cuda))["GPU driver"]
    assert (finding.state, bool(finding.fix)) == (state, state == "warning")
    assert finding.detail.startswith(f"580.95.05, CUDA {cuda}")


def test_the_module_tells_its_version_in_a_sentence_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "told"
    monkeypatch.setattr(doctor, "_MODULE_FILES", (told,))
    assert by_name(examine(lambda: (T4,), lambda: "13.0"))["GPU driver"].detail == "CUDA 13.0"
    told.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n")
    assert by_name(examine(lambda: (T4,), lambda: "13.0"))["GPU driver"].detail == "580.95.05, CUDA 13.0"


@pytest.mark.parametrize(
    ("version", "told"), [("12.9", "made for CUDA 13"), ("14.0", "made for CUDA 13"), ("", "does not say")]
)
def test_an_nvcc_that_is_not_of_the_toolkit_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, version: str, told: str
) -> None:
    monkeypatch.setattr(doctor, "_asked_version", lambda program: version)
    finding = by_name(examine(not_asked, no_driver))["nvcc"]
    assert finding.state == "warning" and finding.fix and told in finding.detail


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Cuda compilation tools, release 13.0, V13.0.88", "13.0"),
        ("Version 2025.3.1.0 (build 36398880) (public-release)", "2025.3.1.0"),
        ("command not found", ""),
    ],
)
def test_a_program_is_asked_for_its_version(tmp_path: Path, text: str, version: str) -> None:
    program = tmp_path / "a program"
    program.write_text(f"#!/bin/sh\necho '{text}'\n")
    program.chmod(0o755)
    assert _asked_version(program) == version


def test_a_program_that_does_not_start_or_end_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "endless"
    assert _asked_version(program) == ""
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(doctor, "PROGRAM_LIMIT_S", 0.1)
    assert _asked_version(program) == ""


def test_programs_and_libraries_are_found_in_wheels_and_toolkits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    wheels, toolkit = tmp_path / "nvidia", tmp_path / "a toolkit"
    monkeypatch.setattr(nvrtc, "wheel_roots", lambda: [wheels])
    monkeypatch.setattr(doctor, "_toolkits", lambda: [toolkit])
    for root in (toolkit, wheels / "cu13"):
        program = root / "bin" / "nvcc"
        program.parent.mkdir(parents=True)
        program.touch()
        assert by_name(examine(not_asked, no_driver))["nvcc"].state == ("missing" if root is toolkit else "ok")
        program.chmod(0o755)
        assert by_name(examine(not_asked, no_driver))["nvcc"].detail == f"13.0, {program}"
    library = wheels / "cu13" / "lib" / "libcublasLt.so.13"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(doctor, "_library_folders", lambda: [library.parent])
    assert by_name(examine(not_asked, no_driver))["cuBLASLt"].detail == f"13.4.4, {library}"  # the wheel's word


def test_a_finding_speaks_the_words_of_the_command_line() -> None:
    finding = Finding("nvcc", "missing", "not on PATH", "install it", False, "it builds")
    assert finding.as_json() == {
        "what": "nvcc",
        "state": "missing",
        "detail": "not on PATH",
        "adds": "it builds",
        "fix": "install it",
        "needed": False,
    }
    assert str(finding) == "missing  nvcc: not on PATH\n         it builds\n         install it"
    assert str(Finding("Python", "ok", "3.11", "", True)) == "ok       Python: 3.11"


def test_nothing_found_is_not_taken_for_a_needed_piece() -> None:
    assert ok(())
    assert not ok((Finding("NVRTC", "missing", "", "", True),))
    assert ok((Finding("NVRTC", "warning", "", "", True),))


@pytest.mark.parametrize(
    ("cards", "probed"),
    [
        ((), [75]),
        ((T4, H200, T4), [75, 90]),
        ((H200,), [90]),
        ((Card(0, "Old", 70),), [75]),
        ((Card(0, "New", 107),), [75]),
    ],
)
def test_the_probe_is_compiled_for_the_cards_at_hand(
    monkeypatch: pytest.MonkeyPatch, cards: tuple[Card, ...], probed: list[int]
) -> None:
    asked: list[tuple[str, Arch]] = []

    def compiled(source: str, entry: str, arch: Arch) -> nvrtc.Binary:
        assert f"void {entry}(" in source
        asked.append((entry, arch))
        return nvrtc.Binary(entry, arch, b"", "", 1, 0, 0, 0, "", 1.0, "NVRTC 13.5")

    monkeypatch.setattr(nvrtc, "compile_source", compiled)
    examine((lambda: cards) if cards else no_devices, lambda: "13.0")
    assert asked == [(doctor.PROBE_ENTRY, ARCHS[sm]) for sm in probed]
