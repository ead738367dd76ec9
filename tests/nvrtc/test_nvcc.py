"""The committed kernels under nvcc 13, which their users build them with: host part, device part, and no warning.

Most of nvcc's time goes into the headers. So the texts are built together, those of an architecture in one unit, each
in a namespace of its own, and what a file includes is proved by a unit of files that include the same, or by a build of
one file alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import shipped
from tests.nvcc import compile_with, demand_nvcc, headers, unit_of

FILES = [shipped.file_of(name) for name in shipped.NAMES]
ARCHS = sorted({file.parent.name for file in FILES})
#: What the kernels of each architecture include, and one kernel for each list that is not all that one of these does.
OF_ARCHS = [{headers(f.read_text(encoding="utf-8")) for f in FILES if f.parent.name == arch} for arch in ARCHS]
LISTS = {included: file for file in FILES if {included := headers(file.read_text(encoding="utf-8"))} not in OF_ARCHS}


def builds(file: Path, arch: str, kernels: list[Path], target: Path) -> None:
    assert compile_with(demand_nvcc(), file, arch, "-c", "-o", str(target)) == ""
    built = target.read_bytes()
    # The launcher for the host, and the kernel for the device.
    assert built.startswith(b"\x7fELF") and all(f"{kernel.stem}_kernel".encode() in built for kernel in kernels)


@pytest.mark.parametrize("included", LISTS, ids=lambda included: LISTS[included].stem[10:])
def test_a_file_needs_no_more_headers_than_it_names(included: tuple[str, ...], tmp_path: Path) -> None:
    file = LISTS[included]
    builds(file, file.parent.name, [file], tmp_path / "kernel.o")


@pytest.mark.parametrize("arch", ARCHS)
def test_nvcc_builds_them_without_a_warning(arch: str, tmp_path: Path) -> None:
    files = [file for file in FILES if file.parent.name == arch and file not in LISTS.values()]
    unit = tmp_path / "kernels.cu"
    unit.write_text(unit_of(files), encoding="utf-8")
    builds(unit, arch, files, tmp_path / "kernels.o")


@pytest.mark.parametrize(
    "unused", ["namespace { constexpr int unused = 1; }", "static int unused(int x) { return x; }"]
)
def test_what_either_compiler_warns_of_is_an_error(unused: str, tmp_path: Path) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(f"{unused}\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r'unused" was declared but never|defined but not used'):
        compile_with(demand_nvcc(), file, "sm_75", "-c")
