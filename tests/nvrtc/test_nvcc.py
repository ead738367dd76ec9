"""The committed kernels under nvcc 13, which their users build them with: host part, device part, and no warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_generated import each

from tests.nvcc import compile_with, demand_nvcc


@each
def test_nvcc_builds_them_without_a_warning(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "kernel.o"
    assert compile_with(demand_nvcc(), file, file.parent.name, "-c", "-o", str(target)) == ""
    built = target.read_bytes()
    # The launcher for the host, and the kernel for the device.
    assert built.startswith(b"\x7fELF") and f"{file.stem}_kernel".encode() in built


@pytest.mark.parametrize(
    "unused", ["namespace { constexpr int unused = 1; }", "static int unused(int x) { return x; }"]
)
def test_what_either_compiler_warns_of_is_an_error(unused: str, tmp_path: Path) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(f"{unused}\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r'unused" was declared but never|defined but not used'):
        compile_with(demand_nvcc(), file, "sm_75", "-c")
