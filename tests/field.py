"""Cases from the field that ask for a right result: kernels and calls, for a backend of NumPy and for a card."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from wmmagen import defaults, derive, instructions, layout, reference, trial
from wmmagen.arch import Arch
from wmmagen.backends import Backend, Bytes
from wmmagen.config import KernelConfig, Operation, Problem, read_pairs
from wmmagen.dtypes import ELEMENT_TYPES
from wmmagen.layout import Array, Image
from wmmagen.nvrtc import Binary
from wmmagen.verdict import Verdict, judge

LAYOUTS = ("rr", "rc", "cr", "cc")
ACCUMULATORS = ("f32", "f16")
#: One warp with tiles of 32 x 32 x 16, which divide 96 x 160 x 48, by instruction shape.
TILES = {
    shape: f"inst={shape},warps=1x1,frags={frags},k_steps=1"
    for shape, frags in (("16x16x16", "2x2"), ("32x8x16", "1x4"), ("8x32x16", "4x1"))
}
#: One warp with the smallest tiles of D whose slices 32 threads can share: 16 x 16, 32 x 16 and 16 x 32.
LEAST_TILES = {
    shape: f"inst={shape},warps=1x1,frags={frags},k_steps=1"
    for shape, frags in (("16x16x16", "1x1"), ("32x8x16", "1x2"), ("8x32x16", "2x1"))
}
PIPELINES = (
    "feed=global",
    "copy=ld,stages=1",
    "copy=ld,stages=2",
    *(f"copy=cpasync,stages={stages}" for stages in (2, 3, 4)),
)
#: Sums of types that D holds as they are, and of types that it does not.
STORES = ("acc=f32,d=f32", "acc=f16,d=f16", "acc=f32,d=f16", "acc=f16,d=f32")


@dataclass(frozen=True)
class Case:
    """A kernel, and calls that it must get right.

    Attributes:
        pairs: keys of the kernel; defaults complete them for the card.
        problems: the calls, for the operation that the kernel computes.
        pattern: which inputs.
    """

    pairs: str
    problems: Callable[[Operation], Iterable[Problem]]
    pattern: str = "auto"


def config_of(pairs: str, arch: Arch) -> KernelConfig:
    """The kernel of ``pairs``, completed by the preferences alone; illegal where the architecture lacks something."""
    return defaults.complete(read_pairs(pairs), arch, search=False)


def narrow(shape: str, pair: str) -> bool:
    """Whether an operand's tiles are 8 elements wide in memory, so that every second one starts 16 bytes off."""
    return (shape, pair[0]) == ("8x32x16", "c") or (shape, pair[1]) == ("32x8x16", "r")


def _spaced(operation: Operation, m: int, n: int, k: int, **factors: float) -> Problem:
    """Leading dimensions above their minimum, each by another gap."""
    packed = Problem.packed(operation, m, n, k, **factors)
    ldc = packed.ldc + 56 if operation.scaled else 0
    return Problem(operation, m, n, k, packed.lda + 8, packed.ldb + 24, packed.ldd + 40, ldc, packed.alpha, packed.beta)


def _combinations() -> dict[str, Case]:
    """Every shape, pair of layouts and accumulator, staged, and fed from global memory where that is legal."""
    return {
        f"96x160x48 {shape} {pair} {acc} {feed}": Case(
            f"{TILES[shape]},layout={pair},acc={acc},feed={feed}", lambda o: [Problem.packed(o, 96, 160, 48)]
        )
        for shape, pair, acc, feed in itertools.product(TILES, LAYOUTS, ACCUMULATORS, ("shared", "global"))
        if feed == "shared" or not narrow(shape, pair)
    }


def _positions() -> dict[str, Case]:
    """A[i, k] = (3i + k) % 7 and B[k, j] = (k + 5j) % 11, with gaps behind every line."""

    def problems(operation: Operation) -> list[Problem]:
        # At most 6 * 10 * 32 = 1920, which f16 counts to, too.
        return [_spaced(operation, 96, 160, 32), _spaced(operation, 160, 64, 16)]

    return {
        f"positions {shape} {pair} {acc}": Case(f"{TILES[shape]},layout={pair},acc={acc}", problems, "positions")
        for shape, pair, acc in itertools.product(TILES, LAYOUTS, ACCUMULATORS)
    }


def _permutations() -> dict[str, Case]:
    """M, N, K = 32, 16, 64 in every order that the shape's smallest tile divides."""

    def problems(m: int, n: int) -> Callable[[Operation], Iterable[Problem]]:
        divided = [p for p in itertools.permutations((32, 16, 64)) if p[0] % m == 0 and p[1] % n == 0]
        return lambda operation: [Problem.packed(operation, *sizes) for sizes in divided]

    calls = {"16x16x16": problems(16, 16), "32x8x16": problems(32, 16), "8x32x16": problems(16, 32)}
    return {
        f"32, 16, 64 {shape} {pair}": Case(f"{LEAST_TILES[shape]},layout={pair}", calls[shape])
        for shape, pair in itertools.product(LEAST_TILES, LAYOUTS)
    }


def _depths() -> dict[str, Case]:
    """K of 1 to 9 slices through 1 to 4 stages: shorter than the pipeline, as long, and longer; the drain is weak."""

    def problems(operation: Operation) -> list[Problem]:
        return [_spaced(operation, 64, 96, k) for k in range(16, 145, 16)]

    return {
        f"K of 16 to 144 {shape} {pipeline}": Case(f"{TILES[shape]},layout=rc,{pipeline}", problems)
        for shape, pipeline in itertools.product(TILES, PIPELINES)
    }


def _factors() -> dict[str, Case]:
    """beta = 0 beside NaN in C, and alpha = 0 beside infinities in A and NaN in B: check_run makes them so."""

    def problems(operation: Operation) -> list[Problem]:
        factors = ((1.0, 0.0), (0.0, 2.0), (-3.0, 0.0), (0.0, 0.0), (2.0, -1.0))
        return [_spaced(operation, 64, 96, 48, alpha=alpha, beta=beta) for alpha, beta in factors]

    return {
        f"alpha or beta 0 {types} {pipeline}": Case(f"{TILES['16x16x16']},epilogue=linear,{types},{pipeline}", problems)
        for types, pipeline in itertools.product(STORES, ("feed=global", "copy=ld,stages=2", "copy=cpasync,stages=3"))
    }


def _staged() -> dict[str, Case]:
    """D staged over the slices of A and B by four warps, a K tile of 64, every way of converting the sums."""
    tiles = "warps=2x2,frags=2x2,k_steps=4,store=staged"

    def problems(operation: Operation) -> list[Problem]:
        return [_spaced(operation, 192, 320, 64), _spaced(operation, 128, 192, 320)]

    return {
        f"staged {types} {epilogue} {pipeline}": Case(f"{tiles},{types},epilogue={epilogue},{pipeline}", problems)
        for types, epilogue, pipeline in itertools.product(STORES, ("none", "linear"), PIPELINES)
    }


CASES: dict[str, Case] = {
    **_combinations(),
    **_positions(),
    **_permutations(),
    **_depths(),
    **_factors(),
    **_staged(),
}


def wrong_runs(case: Case, config: KernelConfig, binary: Binary, backend: Backend) -> list[str]:
    """What is wrong, of every call and of the first one again; empty where all are exact and proved to have to be."""
    problems = list(case.problems(config.operation))
    runs = trial.validate(config, binary, backend, problems, pattern=case.pattern)
    found = [f"{run.problem}: {run.mismatch or 'no proof'}" for run in runs if not (run.exact and run.guaranteed)]
    return found or ([] if len(runs) == len(problems) + 1 else ["not every call was made"])


#: 64 * 64 summed over K = 16 is the first power of two beyond f16: by types of sums and D, what D must hold and what is
#: said of it.
OVERFLOWS = {
    "acc=f32,d=f32": (65_536.0, ""),
    "acc=f16,d=f16": (np.inf, "the accumulator type f16 overflowed"),
    "acc=f16,d=f32": (np.inf, "the accumulator type f16 overflowed"),
    "acc=f32,d=f16": (np.inf, "D's type f16, not the accumulator, overflowed"),
}


def overflowing_pairs(types: str, shape: str, feed: str) -> str:
    """Keys of a kernel that :func:`sums_of_64` is asked of."""
    # Row-major A and column-major B: no tile of them is 8 wide in memory.
    return f"{TILES[shape]},layout=rc,{types},feed={feed}"


def sums_of_64(config: KernelConfig, binary: Binary, backend: Backend) -> tuple[set[float], Verdict]:
    """The values of D, and the verdict, where A and B hold 64 everywhere and K is 16."""
    problem = Problem.packed(config.operation, 32, 64, 16)
    inputs = reference.given_inputs(problem, np.full((32, 16), 64), np.full((16, 64), 64))
    values, image, returned = _run(config, binary, backend, problem, inputs.a, inputs.b)
    return values, judge(inputs, image, returned)


#: What A and B hold everywhere, K, and what D has to hold then, by the type of operands. tf32 rounds 1 + 2^-11 away
#: from zero before the first product; 8-bit integers reach the first sum that 32 bits do not hold, and wrap.
EVERYWHERE = {
    "tf32": (1 + 2.0**-11, 1.0, 32, 32 * (1 + 2.0**-10)),
    "s8": (-128, -128, 131_072, -(2**31)),
}

SUMS = {"tf32": "f32", "s8": "s32"}


def layouts_of(a: str) -> tuple[str, ...]:
    """The layouts that operands of a type have."""
    return tuple(dict.fromkeys(both for row in instructions.of_operand(ELEMENT_TYPES[a]) for both in row.whole_layouts))


def everywhere_pairs(a: str, layout: str, pipeline: str) -> str:
    """Keys of a kernel that :func:`everywhere` is asked of."""
    return f"a={a},acc={SUMS[a]},d={SUMS[a]},layout={layout},warps=1x1,frags=2x2,k_steps=2,{pipeline}"


#: Kernels for :data:`EVERYWHERE`, by type and all that differs.
EVERYWHERE_KERNELS = [
    (a, everywhere_pairs(a, layout, pipeline))
    for a in EVERYWHERE
    for layout in layouts_of(a)
    for pipeline in ("copy=ld,stages=1", "copy=ld,stages=2", "copy=cpasync,stages=3")
]


def everywhere(config: KernelConfig, binary: Binary, backend: Backend) -> set[float]:
    """The values of D where A and B hold what :data:`EVERYWHERE` has for the type of operands of ``config``."""
    a, b, k, _ = EVERYWHERE[config.operation.a.name]
    known = derive.values(config)
    problem = Problem.packed(config.operation, known["BLOCK_M"], known["BLOCK_N"], k)
    return _run(config, binary, backend, problem, np.full((problem.m, k), a), np.full((k, problem.n), b))[0]


def _run(
    config: KernelConfig, binary: Binary, backend: Backend, problem: Problem, of_a: Array, of_b: Array
) -> tuple[set[float], Image, Bytes]:
    """The values of D, where D lies in its buffer, and that buffer."""
    a, b, d = layout.images(problem)
    launch = trial.launch_of(binary.entry, config, problem, (a, b, d))
    returned = backend.run(binary, launch, (a.pack(of_a), b.pack(of_b), d.blank()))[-1]
    return set(d.unpack(returned).ravel().tolist()), d, returned
