"""What a general kernel costs: leading dimensions beyond the extents, and alpha and beta other than 1 and 0.

    python tests/gpu/prove_general.py [--arch sm_90] [--problem 2048,4096] [--config NAME] [--seconds 3]
                                      [--to tests/gpu/records]

For each size the best kernel that is known is the special case: packed rows, D = A·B. Beside it stand the same kernel
with rows that are 8 and 64 elements longer, and the kernel with the epilogue alpha·A·B + beta·C on the same tiles, with
several factors. All are proved exact on the very call that is timed, timed in turns, and proved again. A cost is told
as the time of the special case over that of the general one, from quotients of rounds; its lower end is what holds.

Where beta is not 0, C has to be read: such a call moves more bytes than the special case, the table says how many, and
what it then costs is no cost of generality alone. Exit status 0 where every general call that moves no more than the
special one keeps 97 % of its speed; else 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.proof import ended
from wmmagen import arch as archs
from wmmagen import chips, config, defaults, emit, known, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend
from wmmagen.backends.pick import pick
from wmmagen.config import KernelConfig, Problem, name
from wmmagen.epilogue import Epilogue
from wmmagen.errors import AnswerIsNo
from wmmagen.timing import Ratio, Timing, TimingProtocol

#: A general call keeps this share of the special one's speed.
KEPT = 0.97
#: Elements by which rows are longer; those of a promise of 16 bytes for every type of up to 16 bits.
LONGER = (8, 64)
#: Factors, and whether C is read.
FACTORS = ((1.0, 0.0), (0.5, 0.0), (0.5, 2.0))


@dataclass(frozen=True)
class Call:
    """A kernel on a problem, in words."""

    words: str
    config: KernelConfig
    problem: Problem


@dataclass(frozen=True)
class Line:
    """A call that was timed, beside the special one.

    Attributes:
        timing: of the call.
        kept: the special call's time over its own.
        more: of the bytes that the special call has to move, how many more it has to.
    """

    call: Call
    timing: Timing
    kept: Ratio
    more: float

    @property
    def holds(self) -> bool:
        """Whether it keeps enough of the speed, beyond the noise."""
        return self.kept.low >= KEPT

    @property
    def demanded(self) -> bool:
        """Whether it has to: it moves no more."""
        return not self.more

    def __str__(self) -> str:
        low, high = self.timing.interval_us
        word = "holds" if self.holds else "DOES NOT HOLD" if self.demanded else "costs more, and moves more"
        return (
            f"  {self.call.words:<44} {self.timing.median_us:>10.2f} {f'[{low:.2f}, {high:.2f}]':>22} "
            f"{self.kept.median:>7.3f} {f'[{self.kept.low:.3f}, {self.kept.high:.3f}]':>16} {self.more:>8.1%}  {word}"
        )

    def as_json(self) -> dict[str, Any]:
        """A line of the record."""
        p = self.call.problem
        return {
            "call": self.call.words,
            "name": name(self.call.config),
            "problem": str(p),
            "leading_dimensions": [p.lda, p.ldb, p.ldc, p.ldd],
            "alpha": p.alpha,
            "beta": p.beta,
            "timing": self.timing.to_json(),
            "kept": dataclasses.asdict(self.kept),
            "more_bytes": self.more,
            "holds": self.holds,
        }


def calls_of(special: KernelConfig, arch: Arch, size: tuple[int, int, int]) -> Iterator[Call]:
    """The special call and the general ones.

    Raises:
        IllegalConfig: the kernel has no general form on its tiles.
    """
    plain = special.operation
    general = dataclasses.replace(special, operation=dataclasses.replace(plain, epilogue=Epilogue.LINEAR))
    yield Call("packed, D = A B", special, Problem.packed(plain, *size))
    for extra in LONGER:
        yield Call(f"rows {extra} longer, D = A B", special, Problem.packed(plain, *size, extra))
    for alpha, beta in FACTORS:
        problem = Problem.packed(general.operation, *size, alpha=alpha, beta=beta)
        rules.demand(general, arch, problem)
        yield Call(f"packed, {alpha:g} A B + {beta:g} C", general, problem)
    for extra, (alpha, beta) in zip(LONGER, FACTORS[1:], strict=True):
        problem = Problem.packed(general.operation, *size, extra, alpha=alpha, beta=beta)
        yield Call(f"rows {extra} longer, {alpha:g} A B + {beta:g} C", general, problem)


def measure(calls: Sequence[Call], arch: Arch, backend: Backend, protocol: TimingProtocol) -> list[Line]:
    """Prove every call, time all in turns, prove again.

    Raises:
        AnswerIsNo: a call is not exact.
        CompileError, Fault: a kernel cannot be compiled, run or timed.
    """
    binaries = {one.config: trial.build(one.config, arch)[1] for one in calls}
    for kernel, binary in binaries.items():
        _demand_exact(trial.validate(kernel, binary, backend, trial.validation_problems(kernel))[-1], kernel)
    _prove(calls, binaries, backend)
    subjects = [trial.subject_of(one.config, binaries[one.config], one.problem, protocol.data) for one in calls]
    comparison = trial.compare(subjects, backend, protocol)
    for one, timing in zip(calls, comparison.timings, strict=True):
        trial.demand_possible(one.problem, timing, backend.device)
    _prove(calls, binaries, backend)
    least = trial.moved_bytes(calls[0].problem)
    return [
        Line(one, comparison.timings[n], comparison.ratio(n, 0), trial.moved_bytes(one.problem) / least - 1)
        for n, one in enumerate(calls)
    ]


def _prove(calls: Sequence[Call], binaries: dict[KernelConfig, Any], backend: Backend) -> None:
    for one in calls:
        _demand_exact(trial.check_run(one.config, binaries[one.config], backend, one.problem), one.config)


def _demand_exact(run: trial.Run, kernel: KernelConfig) -> None:
    if not run.exact:
        raise AnswerIsNo(f"{name(kernel)} is wrong on {run.problem}: {run.mismatch}")


def text_of(size: tuple[int, int, int], words: str, lines: Sequence[Line]) -> str:
    """The table of a size."""
    head = f"  {'call':<44} {'us':>10} {'interval':>22} {'kept':>7} {'interval':>16} {'bytes':>8}"
    names = dict.fromkeys(name(line.call.config) for line in lines)
    return "\n".join([f"{'x'.join(map(str, size))}, {words}:", *(f"  {x}" for x in names), head, *map(str, lines)])


def main() -> int:
    """Prove, time, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--problem", default="2048,4096")
    parser.add_argument("--config", help="this kernel at all sizes, instead of the best that is known of each")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each call, at most")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "records")
    asked = parser.parse_args()
    arch, protocol = archs.find(asked.arch), TimingProtocol(max_seconds=asked.seconds)
    texts, records, held = [], [], True
    with pick("gpu", arch) as place:
        print(place.first_line, flush=True)
        backend = place.demanded()
        chip = chips.find(backend.device) or chips.usual(arch.sm)
        for size in config.read_sizes(asked.problem):
            if asked.config:
                special, words = defaults.read_config(asked.config, arch), "as asked for"
            else:
                best = known.best(defaults.operation_of({}), arch, size, chip)
                special, words = best.config, best.words
            lines = measure(list(calls_of(special, arch, size)), arch, backend, protocol)
            texts.append(text_of(size, words, lines))
            print(texts[-1], flush=True)
            records += [line.as_json() for line in lines]
            held = held and all(line.holds for line in lines if line.demanded)
        device = backend.device
    head = (
        f"{device}: warm, normal data, timed in turns. Kept is the packed call's time over a call's own, from "
        f"quotients of rounds; its lower end has to be {KEPT} at least where a call moves no more bytes."
    )
    verdict = "All of them hold." if held else "NOT all of them hold."
    stem = asked.to / f"general_{arch}_{device.split(' (')[0].replace(' ', '_')}"
    emit.write(
        Path(f"{stem}.json"), json.dumps({"device": device, "arch": arch.name, "lines": records}, indent=2) + "\n"
    )
    emit.write(Path(f"{stem}.txt"), "\n\n".join([head, *texts, verdict]) + "\n")
    print(verdict)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(ended(main))
