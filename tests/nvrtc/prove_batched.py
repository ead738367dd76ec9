"""The proof of batches without a GPU: exact on the executor, and emitted files right with nvcc. Writes its record.

    python tests/nvrtc/prove_batched.py [--archs sm_75,sm_80,sm_90] [--to tests/nvrtc/records]

The kernels of ``tests/batches.py``, with strides and with arrays of pointers, are validated on their hostile batches
and on a larger one, and their machine code is looked at: what an array points to must be global memory to the compiler.
Then some are emitted and built by nvcc with the CUDA runtime of ``tests/fake``, which computes the batch on the host:
the self-test has to pass where that is right, and to fail where it is wrong in one way. Exit status 0 where all is so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.batches import KINDS, kernels
from tests.nvcc import compile_with, find_nvcc
from tests.nvrtc.test_emission import FAKE, facts
from wmmagen import arch as archs
from wmmagen import derive, emit, lint, nvrtc, trial
from wmmagen.arch import ARCHS, Arch
from wmmagen.backends.cpu import CpuBackend
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.defaults import read_config
from wmmagen.errors import Fault

#: What the launcher and the self-test are tried with.
EMITTED = (f"batch=strided,{KINDS[4]}", f"batch=pointers,{KINDS[2]}", f"batch=pointers,{KINDS[3]}")
#: What the runtime of ours does wrong, and what the self-test says of it.
WRONGS = {
    "first_b": "of product 1",
    "last_product_dropped": "of product 2",
    "one_element": "D[",
    "beside_d": "memory around D",
    "writes_a": "only read",
}


def larger(config: KernelConfig) -> Problem:
    """Five products of several blocks, packed, without a shared matrix."""
    known = derive.values(config)
    m, n, k = 2 * known["BLOCK_M"], 3 * known["BLOCK_N"], 5 * known["BLOCK_K"]
    return Problem.packed(config.operation, m, n, k, batch=5)


def validated(config: KernelConfig, arch: Arch, number: int) -> str:
    """What is wrong; empty where nothing is."""
    _, binary = trial.build(config, arch)
    generic = [defect for defect in lint.examine(config, binary).defects if "generic" in defect]
    problems = [*trial.validation_problems(config), larger(config)]
    try:
        runs = trial.validate(config, binary, CpuBackend(seed=1000 * number), problems)
    except Fault as fault:
        return f"{fault.outcome}: {fault.message}"
    return "; ".join([*generic, *(f"{run.problem}: {run.mismatch}" for run in runs if not run.exact)])


def emitted(text: str, folder: Path) -> Iterator[str]:
    """A line for the self-test as it is, and for each of :data:`WRONGS`; those that are not right begin with WRONG."""
    config, arch, nvcc = read_config(text, ARCHS[80]), ARCHS[80], find_nvcc()
    if nvcc is None:
        yield "WRONG   there is no nvcc here"
        return
    kernel, _, test, _ = emit.emit(config, arch, folder, symbol="my_gemm")
    (folder / "facts.h").write_text(facts(config))
    objects = []
    for file in (kernel, test, FAKE / "cudart.cpp"):
        objects.append(str(folder / f"{file.stem}.o"))
        compile_with(nvcc, file, arch, f"-I{folder}", "-O1", "-c", "-o", objects[-1])
    program = folder / "selftest"
    subprocess.run([nvcc, "-cudart=none", "-o", str(program), *objects], check=True, capture_output=True, timeout=120)
    for fake, words in {"": "PASS", **WRONGS}.items():
        done = subprocess.run(
            [program], env={**os.environ, "FAKE": fake}, capture_output=True, text=True, check=False, timeout=60
        )
        right = done.returncode == (1 if fake else 0) and words in done.stdout
        exact = sum(line.startswith("exact ") for line in done.stdout.splitlines())
        said = sum(line.startswith("said ") for line in done.stdout.splitlines())
        yield (
            f"{'ok' if right else 'WRONG':<7} self-test, {fake or 'a right runtime'}: status {done.returncode}, "
            f"{exact} problems exact, {said} bad calls refused"
        )


def main() -> int:
    """Validate, emit, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archs", default="sm_75,sm_80,sm_90")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    lines = [nvrtc.title()]
    for arch in map(archs.find, asked.archs.split(",")):
        for number, config in enumerate(kernels(arch)):
            wrong = validated(config, arch, number)
            lines.append(f"{'WRONG' if wrong else 'ok':<7} {arch} {name(config)}{': ' if wrong else ''}{wrong}")
            print(lines[-1], flush=True)
    for text in EMITTED:
        with tempfile.TemporaryDirectory() as folder:
            for line in (text, *emitted(text, Path(folder))):
                lines.append(line)
                print(line, flush=True)
    emit.write(asked.to / "batched.txt", "\n".join(lines) + "\n")
    return 1 if any(line.startswith("WRONG") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
