"""nvcc 13, from the wheels of the ``dev`` extra or on the PATH, for tests that build what is emitted."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from wmmagen import nvrtc
from wmmagen.arch import Arch

MAJOR = 13
#: Every warning of the device and of the host compiler is an error.
STRICT = ("-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror")
INSTALL = "pip install 'cuda-toolkit[nvcc,cccl]'"


def find_nvcc() -> Path | None:
    """The nvcc of the wheels, else the one on the PATH; None where neither is complete and of version 13."""
    return _search()[0]


def demand_nvcc() -> Path:
    """The same; without one the test is skipped with the reason, or fails where the GPU tests were demanded."""
    found, reason = _search()
    if found is None:
        (pytest.fail if os.environ.get("WMMAGEN_NEEDS_GPU") else pytest.skip)(reason)
    return found


def compile_with(nvcc: Path, file: Path, arch: Arch | str, *options: str) -> str:
    """Build ``file`` for ``arch`` without a warning, and return what nvcc wrote.

    Args:
        options: what to make and where, ``"-c", "-o", str(target)``; without ``-o`` it lies in the folder of ``file``.
    """
    command = [str(nvcc), f"-arch={arch}", *STRICT, *options, str(file.resolve())]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False, timeout=300)
    written = done.stdout + done.stderr
    assert done.returncode == 0, f"{' '.join(command)}\n{written}"
    return written


def headers(text: str) -> tuple[str, ...]:
    """The lines of ``text`` that include, each once, in their order."""
    return tuple(dict.fromkeys(re.findall(r"^ *#include .*$", text, re.M)))


def apart(text: str, number: int) -> str:
    """``text`` with a name of its own for its dynamic shared memory.

    That is C's, one in all namespaces of a unit, and kernels declare it with the type of their operands.
    """
    words = r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|(?<![.\w])shared(?![.\w])'
    return re.sub(words, lambda found: f"shared_{number}" if found[0] == "shared" else found[0], text)


def unit_of(files: Sequence[Path]) -> str:
    """One text with that of each of ``files``, which are kernels, in a namespace of its own: nvcc reads headers once.

    What a file declares of statuses goes into its namespace, too.
    """
    texts = [file.read_text(encoding="utf-8") for file in files]
    # The headers come first, so that the same lines within the namespaces bring nothing.
    parts = ["\n".join(dict.fromkeys(line for text in texts for line in headers(text)))]
    for number, (file, text) in enumerate(zip(files, texts, strict=True)):
        begin = f"#undef WMMAGEN_STATUS\nnamespace number_{number} {{"
        parts.append(f'{begin}\n#line 1 "{file.stem}.cu"\n{apart(text, number)}\n}}')
    return "\n".join(parts)


@functools.cache
def _search() -> tuple[Path | None, str]:
    """nvcc, and what every place lacks where there is none."""
    if shutil.which("g++") is None:
        return None, "no g++ on the PATH, which nvcc compiles host code with"
    wheels = [root / f"cu{MAJOR}" for root in nvrtc.wheel_roots()]
    on_path = shutil.which("nvcc")
    places = [(root / "bin" / "nvcc", [root / "include/cccl/nv/target", root / "nvvm/bin/cicc"]) for root in wheels]
    places += [(Path(on_path), [])] if on_path else []
    reasons = []
    for nvcc, needed in places:
        reason = _lack(nvcc, needed)
        if not reason:
            return nvcc, ""
        reasons.append(reason)
    return None, "; ".join([*reasons, *([] if on_path else ["no nvcc on the PATH"]), INSTALL])


def _lack(nvcc: Path, needed: list[Path]) -> str:
    """Why this nvcc is of no use; empty where it is."""
    missing = [file.name for file in (nvcc, *needed) if not file.is_file()]
    if missing:
        return f"the wheels lack {', '.join(missing)}"
    answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    release = re.search(r"release (\d+)\.", answer)
    return "" if release and int(release[1]) == MAJOR else f"{nvcc} is not of version {MAJOR}"
