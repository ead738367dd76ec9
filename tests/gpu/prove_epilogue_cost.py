"""What fusing an epilogue costs: kernels with chains of steps in turns with the plain product on the same tiles.

    python tests/gpu/prove_epilogue_cost.py [--arch sm_90] [--problem 4096] [--types d=f32 --types d=f16]
                                            [--config NAME] [--chains biascol+gelu,…] [--seconds 1]
                                            [--to sweeps/records]

For each size and types the best plain kernel that is known is the special case. Beside it stand the same kernel with
each chain, its sums stored in rows with one of a few pads, and what a library makes of the chain: cuBLASLt's plain
product, cuBLASLt with its own epilogue where it has the same one, and its product with a kernel of the steps behind it.
All are proved right before they are timed, in one comparison for each chain, and kernels once more behind it. Kept is
the plain kernel's time over the chain's, from quotients of rounds, and of the pads the best one counts.

A bias and a GELU have to keep 95 % of the plain kernel's speed: both forms of GELU, and all sizes and types that are
measured. What other chains keep is told, and how many more bytes they have to move; a residual is as large as D.
Exit status 0 where the demand holds; else 1.
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
from wmmagen import bench, chips, config, coverage, defaults, denominators, emit, epilogue, known, render, rules, trial
from wmmagen.arch import Arch
from wmmagen.backends.pick import Place, pick
from wmmagen.bench import Baseline
from wmmagen.config import KernelConfig, Operation, Problem, Store, name
from wmmagen.denominators import Denominator
from wmmagen.errors import AnswerIsNo, RequestError
from wmmagen.foundry import Compiler, Foundry, Order, usable_cores
from wmmagen.nvrtc import Binary
from wmmagen.timing import Ratio, Timing, TimingProtocol

#: A fused bias and GELU keeps this share of the plain kernel's speed.
KEPT = 0.95
DEMANDED = ("biascol+gelu", "biascol+gelutanh")
CHAINS = (
    *DEMANDED, "biascol", "biascol+relu", "biascol+silu", "linear+biascol+gelu", "scalecol+biascol+gelu",
    "biascol+residual",
)  # fmt: skip
#: Elements behind each row of the strips in which sums meet their place.
PADS = (0, 4, 8)


@dataclass(frozen=True)
class Part:
    """Who was timed.

    Attributes:
        words: the plain kernel, a kernel with the chain, or a library.
        name: a kernel's canonical name, or what was asked of the library.
        timing: in turns with the others of the chain.
        kept: the plain kernel's time over its own.
        chain: whether it is a kernel of ours that computes the chain.
    """

    words: str
    name: str
    timing: Timing
    kept: Ratio
    chain: bool = False

    def __str__(self) -> str:
        low, high = self.timing.interval_us
        return (
            f"  {self.words:<28} {self.timing.median_us:>10.2f} {f'[{low:.2f}, {high:.2f}]':>20} "
            f"{self.kept.median:>7.3f} {f'[{self.kept.low:.3f}, {self.kept.high:.3f}]':>16}  {self.name}"
        )


@dataclass(frozen=True)
class Fused:
    """A chain at one size, measured.

    Attributes:
        problem: what the chain's kernels computed.
        parts: the plain kernel first.
        absent: what could not be timed, with the reason.
        more: of the bytes that the plain product has to move, how many more the chain has to.
    """

    problem: Problem
    parts: tuple[Part, ...]
    absent: tuple[str, ...]
    more: float

    @property
    def chain(self) -> str:
        return str(self.problem.operation.epilogue)

    @property
    def best(self) -> Part:
        """The fastest kernel of ours with the chain."""
        return max((part for part in self.parts if part.chain), key=lambda part: part.kept.median)

    @property
    def demanded(self) -> bool:
        """Whether it has to keep its share."""
        return self.chain in DEMANDED

    @property
    def holds(self) -> bool:
        """Whether it keeps it, beyond the noise."""
        return self.best.kept.low >= KEPT

    def __str__(self) -> str:
        o = self.problem.operation
        word = ("holds" if self.holds else "DOES NOT HOLD") if self.demanded else "told"
        best = self.best.kept
        head = (
            f"{'/'.join((o.a.name, o.acc.name, o.d.name))} {self.problem}, {self.chain}: keeps {best.median:.3f} "
            f"[{best.low:.3f}, {best.high:.3f}], moves {self.more:.1%} more: {word}"
        )
        return "\n".join([head, *map(str, self.parts), *(f"  {words}" for words in self.absent)])

    def as_json(self) -> dict[str, Any]:
        """An element of the record."""
        o = self.problem.operation
        return {
            "chain": self.chain,
            "types": [o.a.name, o.acc.name, o.d.name],
            "problem": str(self.problem),
            "parts": [
                {
                    "words": part.words,
                    "name": part.name,
                    "chain": part.chain,
                    "timing": part.timing.to_json(),
                    "kept": dataclasses.asdict(part.kept),
                }
                for part in self.parts
            ],
            "absent": list(self.absent),
            "more_bytes": self.more,
            "demanded": self.demanded,
            "holds": self.holds,
        }


def fused(plain: KernelConfig, chain: str, arch: Arch, size: tuple[int, int, int]) -> list[KernelConfig]:
    """The plain kernel with a chain: as it stores now where it can, and in rows with each pad.

    Raises:
        RequestError: no form of it takes the chain.
    """
    operation = dataclasses.replace(plain.operation, epilogue=epilogue.read(chain))
    other = dataclasses.replace(plain, operation=operation)
    forms = [other, *(dataclasses.replace(other, store=Store.STAGED, pad_d=pad) for pad in PADS)]
    problem = Problem.packed(operation, *size)
    found = [one for one in dict.fromkeys(forms) if not rules.check(one, arch, problem) and not coverage.missing(one)]
    if not found:
        raise RequestError(f"{name(plain)} has no form with epilogue={chain}", "another --config")
    return found


def built(kernels: Sequence[KernelConfig], arch: Arch, place: Place, compiler: Compiler) -> dict[KernelConfig, Binary]:
    """Each kernel compiled, and right on the hostile problems.

    Raises:
        AnswerIsNo: one is wrong.
        CompileError, Fault: as for any kernel.
    """
    binaries = {one: trial.build(one, arch, compiler)[1] for one in kernels}
    for one, binary in binaries.items():
        runs = trial.validate(one, binary, place.demanded(), trial.validation_problems(one))
        _demand_exact(runs[-1], one)
    return binaries


def measure(
    plain: KernelConfig, forms: Sequence[KernelConfig], arch: Arch, size: tuple[int, int, int], place: Place,
    protocol: TimingProtocol, compiler: Compiler, asked: dict[Denominator, Baseline],
) -> Fused:  # fmt: skip
    """A chain's kernels and libraries in turns with the plain kernel; raises as :func:`built`.

    Args:
        asked: whose best candidate is known already; the plain product is that of all chains.
    """
    backend, kernels = place.demanded(), [plain, *forms]
    binaries = built(kernels, arch, place, compiler)
    problems = [Problem.packed(one.operation, *size) for one in kernels]
    every = denominators.denominators(bench.unpromised(problems[1]))
    wanted = [one for one in every if one.kind in bench.kinds(fp32=False)]
    for one in wanted:
        if one not in asked:
            asked[one] = bench.baseline(one, place.library, protocol)
    beside = [asked[one] for one in wanted]
    timed = [one for one in beside if one.figure is not None]
    _prove(kernels, binaries, problems, place)
    subjects: list[Any] = [
        trial.subject_of(one, binaries[one], problem, protocol.data)
        for one, problem in zip(kernels, problems, strict=True)
    ]
    subjects += [bench.recipe(one, place.library, protocol) for one in timed]
    comparison = trial.compare(subjects, backend, protocol)
    for problem, timing in zip(problems, comparison.timings, strict=False):
        trial.demand_possible(problem, timing, backend.device)
    _prove(kernels, binaries, problems, place)
    words = ["plain", *(f"fused, {one.store}, pad {one.pad_d}" for one in forms)]
    names = [name(one) for one in kernels]
    for baseline in timed:
        kind = baseline.denominator.kind
        words.append(f"cuBLASLt, {'plain' if kind == 'same types' else kind}")
        names.append(str(baseline.figure.best.candidate if baseline.figure and baseline.figure.best else ""))
    parts = tuple(
        Part(what, who, comparison.timings[n], comparison.ratio(n, 0), 0 < n < len(kernels))
        for n, (what, who) in enumerate(zip(words, names, strict=True))
    )
    absent = tuple(f"{one.denominator.kind}: none: {one.reason}" for one in beside if one.figure is None)
    more = trial.moved_bytes(problems[1]) / trial.moved_bytes(problems[0]) - 1
    return Fused(problems[1], parts, absent, more)


def _prove(
    kernels: Sequence[KernelConfig], binaries: dict[KernelConfig, Binary], problems: Sequence[Problem], place: Place
) -> None:
    for one, problem in zip(kernels, problems, strict=True):
        _demand_exact(trial.check_run(one, binaries[one], place.demanded(), problem), one)


def _demand_exact(run: trial.Run, kernel: KernelConfig) -> None:
    if not run.exact:
        raise AnswerIsNo(f"{name(kernel)} is wrong on {run.problem}: {run.mismatch}")


def plain_of(operation: Operation, arch: Arch, size: tuple[int, int, int], device: str) -> KernelConfig:
    """The best plain kernel that is known."""
    return known.best(operation, arch, size, chips.find(device) or chips.usual(arch.sm)).config


def verdict_of(found: Sequence[Fused]) -> tuple[str, bool]:
    """The last line of the record, and whether what is demanded holds."""
    demanded = [one for one in found if one.demanded]
    kept = sum(one.holds for one in demanded)
    if not demanded:
        return "No bias and GELU was measured.", False
    word = "All of them" if kept == len(demanded) else f"ONLY {kept} of {len(demanded)}"
    return f"A bias and a GELU: {word} keep {KEPT:.0%} of the plain kernel's speed.", kept == len(demanded)


def main() -> int:
    """Prove, time, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--problem", default="4096")
    parser.add_argument("--types", action="append", help="an operation, for example d=f16; may be repeated")
    parser.add_argument("--config", help="this plain kernel, instead of the best that is known")
    parser.add_argument("--chains", default=",".join(CHAINS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each kernel, at most")
    parser.add_argument("--to", type=Path, default=Path("sweeps/records"))
    asked = parser.parse_args()
    arch, usual = archs.find(asked.arch), TimingProtocol()
    protocol = dataclasses.replace(usual, max_seconds=asked.seconds, warmup_max_s=min(usual.warmup_max_s, 0.3))
    chains, found = asked.chains.split(","), list[Fused]()
    libraries: dict[Denominator, Baseline] = {}
    with pick("gpu", arch) as place, Foundry(usable_cores(), gives_way=True) as foundry:
        print(place.first_line, flush=True)
        device = place.demanded().device
        for plain, size in _asked(asked, arch, device):
            forms = {chain: fused(plain, chain, arch, size) for chain in chains}
            for one in (plain, *(form for each in forms.values() for form in each)):
                source = render.render(one, arch)
                foundry.begin(Order(source.text, source.kernel, arch))
            for each in forms.values():
                found.append(measure(plain, each, arch, size, place, protocol, foundry.compile, libraries))
                print(found[-1], flush=True)
    verdict, holds = verdict_of(found)
    head = (
        f"{device}: warm, normal data, timed in turns for each chain. Kept is the plain kernel's time over one's own, "
        "from quotients of rounds."
    )
    columns = f"  {'':<28} {'us':>10} {'interval':>20} {'kept':>7} {'interval':>16}"
    stem = asked.to / f"epilogue_cost_{arch}_{device.split(' (')[0].replace(' ', '_')}"
    document = {"device": device, "arch": arch.name, "chains": [one.as_json() for one in found], "holds": holds}
    emit.write(Path(f"{stem}.json"), json.dumps(document, indent=2) + "\n")
    emit.write(Path(f"{stem}.txt"), "\n\n".join([head, columns, *map(str, found), verdict]) + "\n")
    print(verdict)
    return 0 if holds else 1


def _asked(asked: argparse.Namespace, arch: Arch, device: str) -> Iterator[tuple[KernelConfig, tuple[int, int, int]]]:
    """The plain kernels and the sizes at which each is measured."""
    for size in config.read_sizes(asked.problem):
        if asked.config:
            yield defaults.read_config(asked.config, arch), size
            continue
        for text in asked.types or ("d=f32", "d=f16"):
            yield plain_of(defaults.operation_of(config.read_pairs(text)), arch, size, device), size


if __name__ == "__main__":
    sys.exit(ended(main))
