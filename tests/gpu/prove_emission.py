"""The proof of emission: what nvcc alone makes of the emitted files, on a GPU. Writes its record.

    python tests/gpu/prove_emission.py [CONFIG] [--arch sm_90] [--to tests/gpu/records]

CONFIG (D = A * B, row-major, f32; its shared memory beyond 64 KB) is emitted into a temporary folder. The self-test is
built by the command that ``emit`` prints and has to pass; built for another architecture, it has to end with a status.
Beside it are measured: the launcher's host cost, launches of many threads at once, and the kernel's time through the
launcher, which has to be within 2 % of what the tool says of nvcc's machine code in the same run. What the tool says of
the machine code that NVRTC makes of the same text stands beside: compilers differ. Exit status 0 where all is so.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import defaults, derive, emit, nvrtc, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.errors import RequestError, WmmagenError
from wmmagen.rules import Status
from wmmagen.timing import TimingProtocol

#: The launcher's name in emission.cu.
SYMBOL = "my_gemm"
LEAST_SHARED = 64 * 1024
SIZE = 2048
WITHIN = 0.02
ROUNDS = 7
WARM_S = 1


class Proof:
    """The emitted files in a folder, and what was found of them."""

    def __init__(self, config: KernelConfig, arch: Arch, folder: Path) -> None:
        self.config, self.arch, self.folder = config, arch, folder
        self.files = emit.emit(config, arch, folder, symbol=SYMBOL)
        self.lines: list[str] = []
        self.right = True

    def step(self, what: str, work: Callable[[], tuple[bool, str]]) -> None:
        """Carry out one step, print and keep what it says; a step that fails does not keep the others from theirs."""
        try:
            right, said = work()
        except subprocess.CalledProcessError as error:
            right, said = False, f"{error}: {(error.stdout or '') + (error.stderr or '')}"
        except (subprocess.TimeoutExpired, OSError, WmmagenError) as error:
            right, said = False, str(error)
        self.right = self.right and right
        self.lines.append(f"{'ok' if right else 'FAILED':<7} {what}: {said.replace(str(self.folder), '…')}")
        print(self.lines[-1], flush=True)

    def say(self, *command: str | Path, status: int = 0) -> str:
        """What a command writes.

        Raises:
            CalledProcessError: it does not end with ``status``.
        """
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != status:
            raise subprocess.CalledProcessError(done.returncode, [str(c) for c in command], done.stdout, done.stderr)
        return done.stdout.strip()

    def selftest(self) -> tuple[bool, str]:
        command = emit.selftest_command(self.files, self.arch)
        lines = self.say("sh", "-c", command).splitlines()
        exact, refused = (sum(line.startswith(word) for line in lines) for word in ("exact ", "said "))
        shown = command.replace(str(self.folder) + "/", "")
        return lines[-1] == "PASS", f"{lines[-1]}, {exact} problems exact, {refused} bad calls refused, by `{shown}`"

    def other_architecture(self) -> tuple[bool, str]:
        """Machine code of an architecture that this card does not run, and no PTX."""
        other = 80 if self.arch.sm != 80 else 90
        code = f"arch=compute_{other},code=sm_{other}"
        kernel, _, selftest, _ = self.files
        self.say("nvcc", "-gencode", code, "-o", "other", kernel, selftest)
        said = self.say("./other", status=3)
        return Status.CODE.says in said, f"built for sm_{other} alone, it says `{said}`"

    def build_measurements(self) -> tuple[bool, str]:
        known, d = derive.values(self.config), self.config.operation.d.storage
        facts = {key: known[key] for key in ("BLOCK_M", "BLOCK_N", "BLOCK_K")} | {"OUTPUT": d, "WARM_SECONDS": WARM_S}
        text = "".join(f"#define {key} {value}\n" for key, value in facts.items())
        (self.folder / "facts.h").write_text(text)
        program = Path(__file__).with_name("emission.cu")
        self.say("nvcc", f"-arch={self.arch}", "-O2", f"-I{self.folder}", "-o", "measure", self.files[0], program)
        return True, self.say("nvcc", "--version").splitlines()[-2]

    def host_cost(self) -> tuple[bool, str]:
        said = self.say("./measure", "host").split()
        launcher, empty, checks = said[1], said[3], said[5]
        return True, (
            f"{launcher} ns a call of the launcher (one block, one slice; median of 300 batches of 200 calls, device "
            f"awaited between them); {empty} ns a launch of an empty kernel in the same loop; {checks} ns the checks "
            "alone (my_gemm_supports)"
        )

    def threads(self) -> tuple[bool, str]:
        said = self.say("./measure", "threads")
        return True, f"16 threads at once, each on its stream, every second one capturing: {said}"

    def time(self, backend: Backend) -> tuple[bool, str]:
        binary = trial.build(self.config, self.arch)[1]
        built = dataclasses.replace(binary, cubin=self.machine_code(), entry=f"{SYMBOL}_kernel", compiler="nvcc")
        problem = Problem.packed(self.config.operation, SIZE, SIZE, SIZE)
        protocol = TimingProtocol(warmup_min_s=WARM_S, warmup_max_s=2 * WARM_S)
        emitted, tool, other = list[float](), list[float](), list[float]()
        for _ in range(ROUNDS):
            other.append(trial.time_it(self.config, binary, backend, problem, protocol).median_us)
            tool.append(trial.time_it(self.config, built, backend, problem, protocol).median_us)
            emitted.append(float(self.say("./measure", "time").split()[1]))
        through, made = (statistics.median(emitted) / statistics.median(one) for one in (tool, other))
        words = ", ".join(f"{a:.2f}, {b:.2f} and {c:.2f}" for a, b, c in zip(emitted, tool, other, strict=True))
        return abs(through - 1) <= WITHIN, (
            f"{problem}, normal data, microseconds a launch through the launcher, of the same machine code by the tool "
            f"and of what {nvrtc.title()} makes by the tool, {ROUNDS} times in turn: {words}; the launcher's median is "
            f"{through:.4f} of the same machine code's, {made:.4f} of that of NVRTC"
        )

    def machine_code(self) -> bytes:
        """What nvcc makes of the emitted kernel.

        Raises:
            CalledProcessError: it makes nothing.
        """
        self.say("nvcc", f"-arch={self.arch}", "-cubin", "-o", "kernel.cubin", self.files[0])
        return (self.folder / "kernel.cubin").read_bytes()


def read_config(text: str, arch: Arch) -> KernelConfig:
    """The configuration that was asked for.

    Raises:
        RequestError: this proof does not measure such a one.
    """
    config = defaults.read_config(text, arch)
    defaults.demand(config, arch)
    o = config.operation
    if o.scaled or o.layout != "rr" or o.d.name != "f32":
        raise RequestError(f"{config} is not D = A * B in f32 of row-major matrices", "ask for such a one")
    if derive.values(config)["SHARED_BYTES"] < LEAST_SHARED:
        raise RequestError(f"{config} has less than {LEAST_SHARED} bytes of shared memory", "more stages, for example")
    return config


def main() -> int:
    """Emit, build, run, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", default="copy=cpasync,stages=4")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch = archs.find(asked.arch)
    config = read_config(asked.config, arch)
    with tempfile.TemporaryDirectory() as folder, pick("gpu", arch) as place:
        print(place.first_line, flush=True)
        backend = place.demanded()
        proof = Proof(config, arch, Path(folder))
        head = f"{backend.device}, {name(config)}, {derive.values(config)['SHARED_BYTES']} bytes of shared memory"
        proof.step("self-test", proof.selftest)
        proof.step("other architecture", proof.other_architecture)
        proof.step("nvcc", proof.build_measurements)
        proof.step("host cost", proof.host_cost)
        proof.step("threads", proof.threads)
        proof.step("time", lambda: proof.time(backend))
    emit.write(asked.to / f"emission_{arch}.txt", "\n".join([head, *proof.lines]) + "\n")
    return 0 if proof.right else 1


if __name__ == "__main__":
    sys.exit(ended(main))
