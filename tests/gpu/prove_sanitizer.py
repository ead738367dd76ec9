"""The sanitizer's answer on one configuration for each branch of the templates. Writes its record.

    python tests/gpu/prove_sanitizer.py [--arch sm_90] [--to tests/gpu/records]

Each is validated on its hostile problems under compute-sanitizer's memcheck and racecheck, which find what values
cannot show: accesses outside of allocations, and shared memory that two threads meet in. Exit status 0 where there is
no error, no hazard, and every result is exact.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import config, defaults, emit, rules
from wmmagen.errors import MissingPiece

TOOLS = ("memcheck", "racecheck")
SMALL = "warps=2x2,frags=2x2"
CASES = (
    f"{SMALL},feed=global,layout=cr",
    f"{SMALL},feed=global,acc=f16,d=f32,layout=rc,raster=panels2",
    f"{SMALL},copy=ld,stages=1,layout=cc,epilogue=linear",
    f"{SMALL},copy=ld,stages=2,fragment_buffers=2,raster=grouped2",
    f"{SMALL},copy=ld,stages=2,align_a=1,align_b=2,align_d=1,d=f16",
    f"{SMALL},copy=cpasync,stages=2,align_a=4,align_b=2,fragment_buffers=1",
    f"{SMALL},copy=cpasync,stages=3,layout=rc,k_steps=3,fragment_buffers=1",
    f"{SMALL},copy=cpasync,stages=2,layout=cr,k_steps=4,fragment_buffers=2",
    f"{SMALL},copy=cpasync,stages=4,epilogue=linear,d=f16,layout=rc",
    f"{SMALL},copy=cpasync,stages=3,residency=global,min_blocks=2",
    f"{SMALL},copy=cpasync,stages=3,inst=32x8x16,acc=f16,epilogue=linear",
    f"{SMALL},copy=cpasync,stages=3,inst=8x32x16,layout=cr,fragment_buffers=2",
    f"{SMALL},copy=cpasync,stages=3,layout=cc,arrange_a=tiles,arrange_b=tiles,store=staged",
    f"{SMALL},copy=ld,stages=1,arrange_a=tiles,arrange_b=tiles,store=staged,epilogue=linear",
    f"{SMALL},feed=global,residency=global,raster=grouped2",
    f"{SMALL},copy=cpasync,stages=3,split_k=3,fragment_buffers=2",
    f"{SMALL},copy=ld,stages=1,split_k=2,epilogue=linear,d=f16",
    f"{SMALL},feed=global,split_k=3,reduction=atomic",
    f"{SMALL},residue=predicated,copy=cpasync,stages=3,fragment_buffers=2",
    f"{SMALL},residue=predicated,copy=cpasync,stages=2,fragment_buffers=1,layout=cr,align_a=4,align_b=2,epilogue=linear",
    f"{SMALL},residue=predicated,copy=ld,stages=2,layout=cc,store=staged,d=f16,epilogue=linear",
    f"{SMALL},residue=predicated,copy=ld,stages=1,layout=rc,align_a=1,align_b=1,store=staged,align_d=1",
)


def examine(name: str, arch: str, tool: str) -> tuple[bool, str]:
    """Whether ``tool`` finds nothing and the result is exact, and what it says at the end."""
    command = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", "--error-exitcode", "9"]
    if tool == "memcheck":
        # The bindings ask for a kernel's parameters until the driver says that there is no further one.
        command += ["--report-api-errors", "no"]
    command += [sys.executable, "-m", "wmmagen", "validate", name, "--arch", arch]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = re.findall(r"=+ (?:ERROR|RACECHECK) SUMMARY: .*", done.stdout + done.stderr)
    clean = bool(said) and all(re.search(r"SUMMARY: 0 (errors|hazards)", line) for line in said)
    words = sorted({line.split("SUMMARY: ")[1] for line in said}) or [(done.stderr or done.stdout)[-300:]]
    return done.returncode == 0 and clean and "exact" in done.stdout, "; ".join(words)


def main() -> int:
    """Examine, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    if shutil.which("compute-sanitizer") is None:
        raise MissingPiece("compute-sanitizer is not on the PATH", "install the CUDA toolkit, which brings it")
    lines, right = [], True
    for pairs in CASES:
        kernel = defaults.read_config(pairs, arch)
        rules.demand(kernel, arch)
        name = config.name(kernel)
        for tool in TOOLS:
            clean, words = examine(name, arch.name, tool)
            right = right and clean
            lines.append(f"{'clean' if clean else 'NOT CLEAN':<10} {tool:<10} {name}: {words}")
            print(lines[-1], flush=True)
    emit.write(asked.to / f"sanitizer_{arch}.txt", "\n".join(lines) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(ended(main))
