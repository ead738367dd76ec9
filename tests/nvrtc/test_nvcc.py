"""The committed kernels under nvcc 13, which their users build them with: host part, device part, and no warning.

Most of nvcc's time goes into the headers. So what a file includes is proved by a build of one file alone for each list
of headers, and the texts are built together, those of an architecture in one unit, each in a namespace of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_generated import FILES

from tests.nvcc import compile_with, demand_nvcc


def headers(file: Path) -> tuple[str, ...]:
    """The lines of ``file`` that include, each once, in their order."""
    return tuple(dict.fromkeys(re.findall(r"^ *#include .*$", file.read_text(encoding="utf-8"), re.M)))


LISTS = {headers(file): file for file in FILES}
ARCHS = sorted({file.parent.name for file in FILES})


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
    files = [file for file in FILES if file.parent.name == arch]
    # The headers come first, so that the same lines within the namespaces bring nothing.
    parts = ["\n".join(dict.fromkeys(line for file in files for line in headers(file)))]
    for number, file in enumerate(files):
        text = file.read_text(encoding="utf-8")
        # What it declares of statuses goes into its namespace, too.
        begin = f"#undef WMMAGEN_STATUS\nnamespace number_{number} {{"
        parts.append(f'{begin}\n#line 1 "{file.stem}.cu"\n{text}\n}}')
    unit = tmp_path / "kernels.cu"
    unit.write_text("\n".join(parts), encoding="utf-8")
    builds(unit, arch, files, tmp_path / "kernels.o")


@pytest.mark.parametrize(
    "unused", ["namespace { constexpr int unused = 1; }", "static int unused(int x) { return x; }"]
)
def test_what_either_compiler_warns_of_is_an_error(unused: str, tmp_path: Path) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(f"{unused}\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r'unused" was declared but never|defined but not used'):
        compile_with(demand_nvcc(), file, "sm_75", "-c")
