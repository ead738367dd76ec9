"""One candidate's whole story: legal, rendered, compiled, right, timed.

Every step is a function of its own, so that a command can stop where it wants to; :func:`try_out` is the whole way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from wmmagen import batched, chips, coverage, derive, estimate, foundry, freivalds, layout, reference, rules, timing
from wmmagen.arch import Arch, occupancy
from wmmagen.backends import Backend, Bytes, Double, Launch, Pointer, Subject, Table, Wide, Zeroed
from wmmagen.batched import BatchCase, Stack
from wmmagen.config import WIDEST_BITS, Batch, Feed, KernelConfig, Problem, Reduction, Residue, Store
from wmmagen.config import name as name_of
from wmmagen.errors import CompileError, Fault, HazardFault, LaunchFault
from wmmagen.foundry import Compiler
from wmmagen.freivalds import Freivalds
from wmmagen.layout import UNSHIFTED, Image, Shifts, Workspace
from wmmagen.nvrtc import Binary
from wmmagen.pieces import same_bytes
from wmmagen.records import Estimated, Facts, Outcome, Record
from wmmagen.reference import Inputs, Span, Units
from wmmagen.render import Source, render
from wmmagen.timing import PARTLY_COLD, Comparison, Data, Timing, TimingProtocol
from wmmagen.verdict import Error, Judged, Tiles, Wanted, explain, judge

#: A launch that takes longer than this counts as one that never ends.
RUN_LIMIT_S = 10.0
TIME_LIMIT_S = 60.0
#: No card comes near this in dense f16 products (B300: about 2,500); such a time is a fault of its measuring.
MAX_TFLOPS = 10_000.0
#: The buffers' way to the backend and back counts against the limits, too; slow machines move this much.
BYTES_PER_S = 2e8
#: Above so many multiply-adds a result is judged by Freivalds' check, where D allows it; below, by the full product.
FREIVALDS_ABOVE = 2048**3
#: As many cases as one candidate is checked on.
_CASES_KEPT = 8
#: Elements of A and B from which on a case takes longer to make than all small ones of a candidate. Large cases are
#: those of the timed problem, which candidates share: they are kept apart, where small ones do not crowd them out.
_LARGE_ELEMENTS = 1 << 21
#: The timed problem in two types, each with pointers as a library and as a kernel is given them.
_LARGE_CASES_KEPT = 4
#: Alignment of a pointer that a matrix call is given; in bytes.
_FRAGMENT_BYTES = 32
#: The widest access of a lane; in bytes.
_WIDEST_BYTES = WIDEST_BITS // 8


@dataclass(frozen=True)
class Case:
    """A problem made ready for checking: its exact inputs, their images in memory, and what a right D is.

    Attributes:
        inputs: with their proof.
        images, buffers: of A, B, of what the epilogue reads, and of D, which is last.
        want: the exact result, or where it must lie; None where ``check`` stands for it.
        check: Freivalds' check of D.
    """

    inputs: Inputs
    images: tuple[Image, ...]
    buffers: tuple[Bytes, ...]
    want: npt.NDArray[Any] | Span | None
    check: Freivalds | None

    @property
    def problem(self) -> Problem:
        return self.inputs.problem

    def judged(self, returned: Sequence[Bytes], tiles: Tiles | None = None) -> Judged:
        """The verdict on everything that a launch left; with ``tiles`` it says who owns the first wrong element."""
        verdict = judge(self.inputs, self.images[-1], returned[-1], self.want, self.check)
        words = touched(self, returned)
        if not words and not verdict.exact:
            words = explain(verdict, tiles) if tiles else str(verdict)
        miss_bits = self.check.miss_bits if self.check else None
        return Judged(not words, verdict.guaranteed, words, miss_bits, None if words else verdict.error)


@dataclass(frozen=True)
class Run:
    """One checked launch.

    Attributes:
        problem: what was computed.
        exact: the result is the exact one, bit for bit, and nothing else was touched.
        guaranteed: the inputs' bound proves that every right kernel gives these bits.
        pattern: which inputs.
        mismatch: the first wrong element and its owner, in words; empty where exact.
        miss_bits: a wrong result passes with a probability of 2^-this at most; None where all of it was compared.
        findings: what the CPU executor found; a run with findings is not exact, and its result was not compared.
        error: of a right result of an epilogue with functions, which is within a proved bound; None of all others.
    """

    problem: Problem
    exact: bool
    guaranteed: bool
    pattern: str
    mismatch: str
    miss_bits: int | None = None
    findings: tuple[dict[str, object], ...] = ()
    error: Error | None = None

    @property
    def method(self) -> str:
        """How the result was judged."""
        if self.miss_bits is None:
            return "full"
        return f"freivalds: {freivalds.VECTORS} vectors, miss probability <= 2^-{self.miss_bits}"

    def as_json(self) -> dict[str, object]:
        """An element of ``runs`` of ``validate --json``."""
        p = self.problem
        return {
            "problem": str(p),
            "leading_dimensions": [p.lda, p.ldb, *(getattr(p, f"ld{m}") for m in p.operation.epilogue.matrices), p.ldd],
            "strides": _strides(p) if p.operation.batched else None,
            "alpha": p.alpha,
            "beta": p.beta,
            "scalars": {name: getattr(p, name) for name in p.operation.epilogue.scalars},
            "method": "full" if self.miss_bits is None else "freivalds",
            "vectors": None if self.miss_bits is None else freivalds.VECTORS,
            "miss_probability": None if self.miss_bits is None else 2.0**-self.miss_bits,
            "exact": self.exact,
            "error_ulps": None if self.error is None else self.error.seen,
            "error_bound_ulps": None if self.error is None else self.error.bound,
            "guaranteed": self.guaranteed,
            "pattern": self.pattern,
            "first_mismatch": self.mismatch or None,
            "findings": list(self.findings),
        }


def build(config: KernelConfig, arch: Arch, compiler: Compiler = foundry.compile_source) -> tuple[Source, Binary]:
    """Render and compile, by default in this process and through the user's cache.

    Raises:
        NotGeneratedYet: no template makes ``config``.
        CompileError: the compiler refuses the source.
        MissingPiece: there is no compiler here, or it does not know ``arch``.
    """
    source = render(config, arch)
    return source, compiler(source.text, source.kernel, arch)


def facts_of(config: KernelConfig, arch: Arch, binary: Binary) -> Facts:
    """What the compiler said, and how many blocks a multiprocessor of ``arch`` therefore holds."""
    known = derive.values(config)
    shared = known["SHARED_BYTES"] + binary.static_shared_bytes
    return Facts(
        registers=binary.registers,
        spill_bytes=binary.spill_bytes,
        stack_bytes=binary.stack_bytes,
        shared_bytes=shared,
        threads=known["THREADS"],
        occupancy=occupancy(arch, known["THREADS"], binary.registers, shared),
        compile_seconds=binary.seconds,
        compiler=binary.compiler,
    )


def tensor_instructions(binary: Binary) -> int:
    """How many matrix instructions the PTX holds, counted where they stand, not how often they run."""
    return len(re.findall(r"^\s*wmma\.mma\.", binary.ptx, re.MULTILINE))


def images_of(problem: Problem, shifts: Shifts = UNSHIFTED) -> tuple[Image | Stack, ...]:
    """Where the matrices of ``problem`` lie, those of a batch included, in a kernel's order: D is last."""
    return (
        batched.stacks(problem, shifts=shifts) if problem.operation.batched else layout.images(problem, shifts=shifts)
    )


def _strides(problem: Problem) -> list[int]:
    """The strides of a batch, in the order of the launcher's arguments."""
    return [problem.stride_of(name) for name in (*layout.operand_names(problem.operation), "D")]


def _pointers(problem: Problem, images: Sequence[Image | Stack], buffers: int) -> Iterator[Pointer | Table]:
    """The kernel's first arguments: to each matrix, or to a table of pointers to those of each product.

    The table of a matrix that must not be read is empty. Tables are counted from ``buffers`` on.
    """
    letters = (*layout.operand_names(problem.operation), "D")
    for number, (letter, image) in enumerate(zip(letters, images, strict=True)):
        if problem.operation.batch is Batch.POINTERS and isinstance(image, Stack):
            read = letter == "D" or _is_read(problem, letter)
            yield Table(buffers + number, tuple(Pointer(number, start) for start in image.starts if read))
        else:
            yield Pointer(number, image.offset)


def launch_of(entry: str, config: KernelConfig, problem: Problem, images: Sequence[Image | Stack]) -> Launch:
    """The launch of the kernel ``entry`` of ``config`` on ``problem``, matrices in the buffers of ``images``.

    Where there is a workspace (:func:`workspace_of`), its buffer comes behind theirs.
    """
    known = derive.values(config, problem=problem)
    p, e, workspace = problem, problem.operation.epilogue, workspace_of(config, problem)
    strides = map(Wide, _strides(p)) if p.operation.batch is Batch.STRIDED else ()
    # Where sizes are multiples, the grid tells M; the kernel's own, because several are timed on one problem.
    sizes = (p.n, p.k) if config.operation.residue is Residue.EXACT else (p.m, p.n, p.k)
    leading = (p.lda, p.ldb, *(getattr(p, f"ld{matrix}") for matrix in e.matrices), p.ldd)
    zeroed, d = None, images[-1]
    if config.reduction is Reduction.ATOMIC and isinstance(d, Image):
        element = known["D_BITS"] // 8
        zeroed = Zeroed(Pointer(len(images) - 1, d.offset), p.ldd * element, d.length * element, d.lines)
    return Launch(
        entry=entry,
        grid=(known["BLOCKS"], p.batch, config.split_k)
        if p.operation.batched
        else (known["BLOCKS"], config.split_k, 1),
        block=(known["THREADS"], 1, 1),
        shared_bytes=known["SHARED_BYTES"],
        arguments=(
            *_pointers(p, images, len(images) + (workspace is not None)),
            *([] if workspace is None else [Pointer(len(images), workspace.offset)]),
            *sizes,
            *leading,
            *scalars_of(p),
            *strides,
        ),
        zeroed=zeroed,
    )


def scalars_of(problem: Problem) -> tuple[float, ...]:
    """The numbers that the epilogue takes, in a kernel's order and as its type of factors passes them."""
    o = problem.operation
    of = Double if o.factor.bits == 64 else float
    return tuple(of(getattr(problem, scalar)) for scalar in o.epilogue.scalars)


def workspace_of(config: KernelConfig, problem: Problem) -> Workspace | None:
    """The memory in which the blocks of a launch meet, aligned as far as it must be; None where they do not."""
    if config.reduction is not Reduction.WORKSPACE:
        return None
    known = derive.values(config, problem=problem)
    count_offset = known["SPLIT_K"] * known["PARTIAL"] * known["ACC_BITS"] // 8
    return layout.workspace(
        known["BLOCKS"] * problem.batch, known["TILE_WORK_BYTES"], count_offset, shift=_FRAGMENT_BYTES
    )


def launched(config: KernelConfig, problem: Problem, buffers: Sequence[Bytes]) -> tuple[Bytes, ...]:
    """The buffers of a launch: those of its matrices, and behind them a workspace where there is one."""
    workspace = workspace_of(config, problem)
    return (*buffers, *([] if workspace is None else [workspace.blank()]))


_Made = TypeVar("_Made")
_FORGET: list[Callable[[], None]] = []


def _kept(make: Callable[..., _Made]) -> Callable[..., _Made]:
    """``make``, a function of a problem first, with what it made last kept: the large apart from the small."""
    small, large = lru_cache(_CASES_KEPT)(make), lru_cache(_LARGE_CASES_KEPT)(make)
    _FORGET.extend((small.cache_clear, large.cache_clear))

    @wraps(make)
    def kept(problem: Problem, *arguments: Any) -> _Made:
        p = problem
        elements = p.batch * (p.m + p.n) * p.k
        return (large if elements >= _LARGE_ELEMENTS else small)(problem, *arguments)

    return kept


def forget_cases() -> None:
    """Give back the memory of the problems that were checked last; two large ones may hold gigabytes."""
    for forget in _FORGET:
        forget()


def exact_case(
    problem: Problem,
    pattern: str = "auto",
    shifts: Shifts = UNSHIFTED,
    above: int | None = FREIVALDS_ABOVE,
    unrounded: bool = False,
) -> Case:
    """Exact inputs for ``problem`` with D poisoned and guard bands around everything; what must not be read is hostile.

    Args:
        problem: what is computed.
        pattern: which inputs.
        shifts: where the matrices begin.
        above: multiply-adds from which on Freivalds' check stands for the full product, where D allows it; None for
            never.
        unrounded: whether operands that a kernel has to round lie in memory as floats that have to be rounded.

    Raises:
        ConfigError: an unknown pattern, or a problem for which no inputs can be proved.
        ValueError: a batch; that is :func:`exact_batch`'s.
    """
    if problem.operation.batched:
        raise ValueError(f"{problem} is a batch, and no single product")
    return _case(problem, pattern, above, shifts, unrounded and bool(problem.operation.a.rounded))


@_kept
def _case(problem: Problem, pattern: str, above: int | None, shifts: Shifts, unrounded: bool) -> Case:
    return _placed(_proved(problem, pattern, above), shifts, unrounded)


def exact_batch(
    problem: Problem,
    pattern: str = "auto",
    shifts: Shifts = UNSHIFTED,
    above: int | None = FREIVALDS_ABOVE,
    unrounded: bool = False,
) -> BatchCase:
    """As :func:`exact_case`, for every product of a batch; ``above`` counts the multiply-adds of one."""
    return _batch(problem, pattern, above, shifts, unrounded and bool(problem.operation.a.rounded))


@_kept
def _batch(problem: Problem, pattern: str, above: int | None, shifts: Shifts, unrounded: bool) -> BatchCase:
    products = _proved_batch(problem, pattern, above)
    inputs = [product.inputs for product in products]
    stacks = batched.stacks(problem, shifts=shifts)
    stored = [_stored(one, unrounded) for one in inputs]
    own: dict[str, list[npt.NDArray[Any] | None]] = {"C": [one.c for one in inputs]}
    own |= {"A": [a for a, _ in stored], "B": [b for _, b in stored]}
    for name in inputs[0].beside if inputs else ():
        own[name if name != "r" else "R"] = [one.beside[name] for one in inputs]
    buffers = [
        stack.pack([_shaped(values, stack.one) for values in own.get(name, [])])
        if _is_read(problem, name)
        else stack.unreadable(infinite=name == "A")
        for name, stack in zip(layout.operand_names(problem.operation), stacks[:-1], strict=True)
    ]
    return BatchCase(problem, products, stacks, _lasting((*buffers, stacks[-1].blank())))


def checked_case(
    problem: Problem,
    pattern: str = "auto",
    shifts: Shifts = UNSHIFTED,
    above: int | None = FREIVALDS_ABOVE,
    unrounded: bool = False,
) -> Case | BatchCase:
    """:func:`exact_case`, or where ``problem`` is a batch, :func:`exact_batch`."""
    return (exact_batch if problem.operation.batched else exact_case)(problem, pattern, shifts, above, unrounded)


def _is_read(problem: Problem, name: str) -> bool:
    if name in ("A", "B"):
        return bool(problem.alpha and problem.k)
    return name != "C" or problem.reads_c


def _shaped(values: npt.NDArray[Any] | None, image: Image) -> npt.NDArray[Any]:
    """A vector as the one row that its image is; a matrix as it is."""
    assert values is not None
    return values.reshape(image.rows, image.cols)


def case_of(
    inputs: Inputs, shifts: Shifts = UNSHIFTED, above: int | None = FREIVALDS_ABOVE, unrounded: bool = False
) -> Case:
    """As :func:`exact_case`, for inputs that are there already."""
    return _placed(_wanted(inputs, above), shifts, unrounded)


@_kept
def _proved(problem: Problem, pattern: str, above: int | None) -> Wanted:
    """Exact inputs and what is right for them: the same wherever the matrices lie, and long to make of large ones."""
    return _wanted(reference.exact_inputs(problem, pattern=pattern), above)


@_kept
def _proved_batch(problem: Problem, pattern: str, above: int | None) -> tuple[Wanted, ...]:
    """As :func:`_proved`, for every product of a batch."""
    return tuple(_wanted(one, above) for one in batched.exact_inputs(problem, pattern=pattern))


def _wanted(inputs: Inputs, above: int | None) -> Wanted:
    """The exact result, or the check that stands for it."""
    p = inputs.problem
    check = freivalds.prepare(inputs) if above is not None and p.m * p.n * p.k > above else None
    return Wanted(inputs, reference.expected(inputs) if check is None else None, check)


def _placed(wanted: Wanted, shifts: Shifts, unrounded: bool) -> Case:
    images = layout.images(wanted.inputs.problem, shifts=shifts)
    return Case(wanted.inputs, images, _hostile_buffers(wanted.inputs, images, unrounded), wanted.want, wanted.check)


def _stored(inputs: Inputs, unrounded: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A and B as they lie in memory."""
    if not unrounded:
        return inputs.a, inputs.b
    element = inputs.problem.operation.a
    return reference.unrounded(inputs.a, element, 0), reference.unrounded(inputs.b, element, 1)


def _hostile_buffers(inputs: Inputs, images: Sequence[Image], unrounded: bool = False) -> tuple[Bytes, ...]:
    """A, B and C as the problem has them; infinities and NaN in those that its factors say not to read."""
    a, b, *others, d = images
    operands = [image.pack(values) for image, values in zip((a, b), _stored(inputs, unrounded), strict=True)]
    if inputs.problem.alpha == 0:
        operands = [a.unreadable(infinite=True), b.unreadable()]
    for name, image in zip(layout.operand_names(inputs.problem.operation)[2:], others, strict=True):
        values = inputs.c if name == "C" else inputs.beside[name.lower()]
        operands.append(image.unreadable() if values is None else image.pack(_shaped(values, image)))
    return _lasting((*operands, d.blank()))


def _lasting(buffers: tuple[Bytes, ...]) -> tuple[Bytes, ...]:
    """Buffers that nobody writes to any more, so that one that was sent to a child process needs no second way.

    What they are aligned parts of is locked, too, for by that they could be written to.
    """
    for part in buffers:
        owner: object = part
        while isinstance(owner, np.ndarray):
            owner.setflags(write=False)
            owner = owner.base
    return buffers


def timed_buffers(problem: Problem, data: Data) -> tuple[Bytes, ...]:
    """A, B and C as the problem has them, and a blank D."""
    return checked_case(problem).buffers if data == "integers" else normal_buffers(problem, problem)


@lru_cache(maxsize=2)
def normal_buffers(problem: Problem, of: Problem) -> tuple[Bytes, ...]:
    """Normal values of everything that a kernel reads, of every product of a batch, and a blank D.

    Args:
        of: whose values they are: the same problem, or the same in other types.
    """
    *operands, d = images_of(problem)
    values = _normal_values(of)
    return _lasting((*(one.pack(matrices) for one, matrices in zip(operands, values, strict=True)), d.blank()))


@lru_cache(maxsize=1)
def _normal_values(problem: Problem) -> tuple[Any, ...]:
    """The values of each operand; of a batch, those of all its products."""
    if problem.operation.batched:
        return tuple(zip(*batched.normal_inputs(problem), strict=True))
    return reference.normal_inputs(problem)


def validation_problems(config: KernelConfig) -> tuple[Problem, ...]:
    """The hostile set for ``config``: several blocks each way, every length of pipeline, leading dimensions that are
    aligned as far as it was promised and no further, and, where the epilogue has them, factors that leave out a matrix.
    """
    known = derive.values(config)
    blocks = known["BLOCK_M"], known["BLOCK_N"], known["BLOCK_K"]
    problems = reference.problems_for(
        config.operation, *blocks, config.stages, units=units(config), raster=config.raster, splits=config.split_k
    )
    if config.operation.residue is Residue.PREDICATED:
        problems = reference.ragged(problems, blocks, units(config))
    # No slice at all: D is the sum of nothing, and every element of it has to be written.
    nothing = replace(problems[0], k=0)
    # Beside it stands C, as it is in the problem that has both factors.
    singles = (*problems, replace(nothing, alpha=2.0, beta=-3.0) if config.operation.scaled else nothing)
    return batched.hostile(singles) if config.operation.batched else singles


def units(config: KernelConfig) -> Units:
    """What ``config`` promises of leading dimensions where it copies, and the strict reading where fragments go."""
    o, wide = config.operation, reference.wide_units(config.operation)
    copied, staged = config.feed is Feed.SHARED, config.store is Store.STAGED
    return Units(o.align_a if copied else wide.a, o.align_b if copied else wide.b, o.align_d if staged else wide.d)


def pointer_shifts(config: KernelConfig) -> Shifts:
    """Pointers that are aligned as ``config`` demands, and no further."""
    known = derive.values(config)
    copied, staged = config.feed is Feed.SHARED, config.store is Store.STAGED
    return Shifts(
        known["A_COPY_BYTES"] if copied else _FRAGMENT_BYTES,
        known["B_COPY_BYTES"] if copied else _FRAGMENT_BYTES,
        known["OUTPUT_BYTES"] if staged else _FRAGMENT_BYTES,
        *(min(known[name], _WIDEST_BYTES) for name in ("ADDED_BYTES", "SCALES_BYTES")),
    )


def check_run(
    config: KernelConfig,
    binary: Binary,
    backend: Backend,
    problem: Problem,
    *,
    pattern: str = "auto",
    above: int | None = FREIVALDS_ABOVE,
) -> Run:
    """Run ``config`` once on exact inputs and judge everything that it left behind.

    Args:
        pattern: which inputs; see :data:`wmmagen.reference.PATTERNS`.
        above: see :func:`exact_case`.

    Raises:
        ConfigError: no exact inputs can be made for ``problem``.
        Fault: the launch failed, hung or crashed.
        IllegalConfig: ``config`` does not take ``problem``.
    """
    rules.demand(config, binary.arch, problem)
    case = checked_case(problem, pattern, pointer_shifts(config), above, unrounded=True)
    launch = launch_of(binary.entry, config, problem, case.images)
    if all(launch.grid):
        try:
            buffers = launched(config, problem, case.buffers)
            returned = run_once(Subject(binary, launch, buffers), backend)
        except HazardFault as fault:
            return Run(problem, False, False, pattern, fault.message, findings=fault.findings)
    else:
        returned = list(case.buffers)  # D has no element, and the launcher launches nothing
    returned, behind = returned[: len(case.images)], returned[len(case.images) :]
    judged = case.judged(returned, _tiles(config))
    exact, words, workspace = judged.exact, judged.words, workspace_of(config, problem)
    if behind and workspace is not None and exact:
        words = workspace.damage(behind[0])
        exact = not words
    return Run(problem, exact, judged.guaranteed, pattern, words, judged.miss_bits, error=judged.error)


def run_once(subject: Subject, backend: Backend) -> list[Bytes]:
    """The buffers of a launch as it left them; it has as long as a checked run has.

    Raises:
        Fault: the launch failed, hung or crashed.
    """
    limit_s = _limit(RUN_LIMIT_S, subject.buffers)
    return backend.run(subject.binary, subject.launch, subject.buffers, limit_s=limit_s)


def validate(
    config: KernelConfig,
    binary: Binary,
    backend: Backend,
    problems: Iterable[Problem],
    *,
    pattern: str = "auto",
    above: int | None = FREIVALDS_ABOVE,
) -> list[Run]:
    """Checked runs on ``problems``, ending with the first wrong one; the first problem twice: repeated runs must agree.

    Where sums are integers and ``backend`` is quick, sums that leave their type are checked, too.

    Args:
        pattern, above: as for :func:`check_run`.

    Raises:
        ConfigError: no exact inputs can be made for one of the problems.
        Fault: a launch failed, hung or crashed.
        IllegalConfig: ``config`` does not take one of the problems.
    """
    problems = list(problems)
    runs: list[Run] = []
    asked = [(problem, pattern) for problem in [*problems, *problems[:1]]]
    # What has no clock is slow, and the shortest sum that leaves s32 takes it ten seconds.
    if backend.clocked and (beyond := overflowing(config)) is not None:
        asked.append((beyond, "extremes"))
    for problem, inputs in asked:
        runs.append(check_run(config, binary, backend, problem, pattern=inputs, above=above))
        if not runs[-1].exact:
            break
    return runs


def overflowing(config: KernelConfig) -> Problem | None:
    """The shortest problem of one block on which the largest products leave the accumulator; None where none do.

    Behind an epilogue there is none: it rounds, which is proved for sums that f32 counts, and hides what others became.
    """
    o, known = config.operation, derive.values(config)
    if not o.acc.integer or o.epilogue.steps:
        return None
    most = reference.largest_product(o)
    slices = -(-(o.acc.exact_limit + 1) // (most * known["BLOCK_K"]))
    return Problem.packed(o, known["BLOCK_M"], known["BLOCK_N"], slices * known["BLOCK_K"])


def subject_of(config: KernelConfig, binary: Binary, problem: Problem, data: Data = "normal") -> Subject:
    """What a backend times: the launch of ``config`` on ``problem``, with buffers full of ``data``.

    Raises:
        ConfigError: integers were asked for, and none can be proved exact for ``problem``.
    """
    launch = launch_of(binary.entry, config, problem, images_of(problem))
    return Subject(binary, launch, launched(config, problem, timed_buffers(problem, data)))


def time_it(
    config: KernelConfig, binary: Binary, backend: Backend, problem: Problem, protocol: TimingProtocol
) -> Timing:
    """Time ``config`` on the data that ``protocol`` names.

    Raises:
        Fault: the launch failed, hung or crashed, the clock said nothing, or it said what cannot be.
        ConfigError: integers were asked for, and none can be proved exact for ``problem``.
    """
    subject = subject_of(config, binary, problem, protocol.data)
    limit_s = _limit(TIME_LIMIT_S, subject.buffers)
    found = backend.time(binary, subject.launch, subject.buffers, protocol, limit_s=limit_s)
    demand_possible(problem, found, backend.device)
    return found


def compare(subjects: Sequence[Any], backend: Backend, protocol: TimingProtocol) -> Comparison:
    """Time kernels in turns; :func:`subject_of` makes them, :func:`demand_possible` judges their times.

    Raises:
        Fault: a launch failed, hung or crashed, or the clock said nothing.
    """
    buffers = [buffer for subject in subjects for buffer in subject.buffers]
    return backend.compare(subjects, protocol, limit_s=_limit(TIME_LIMIT_S * len(subjects), buffers))


def floor_us(problem: Problem, measured: Timing, device: str) -> float:
    """Microseconds below which ``measured`` cannot be a time of ``problem`` on ``device``.

    The peaks are those of the chip at the highest clock that was seen. 0 on a chip that the table does not have.
    """
    chip, o = chips.find(device), problem.operation
    if chip is None:
        return 0.0
    clock_mhz = measured.clock_range_mhz[1] if measured.clock_range_mhz else None
    cold = PARTLY_COLD not in measured.flags
    return timing.floor_us(
        measured.mode,
        operations=operations_of(problem) if problem.alpha else 0.0,
        moved_bytes=moved_bytes(problem),
        operations_per_s=chip.per_s(o.a.name, o.acc.name, clock_mhz),
        l2_bytes_per_s=None if chip.l2_gb_per_s is None else chip.l2_gb_per_s * 1e9,
        dram_bytes_per_s=chip.dram_gb_per_s * 1e9 if cold else None,
    )


def demand_possible(problem: Problem, measured: Timing, device: str) -> None:
    """Return where ``measured`` can be a time of ``problem`` on ``device``.

    Raises:
        LaunchFault: it lies below the floor, or above what any card does.
    """
    floor, rate = floor_us(problem, measured, device), tflops(problem, measured.median_us)
    if measured.median_us < floor:
        raise LaunchFault(
            f"{measured.median_us:g} us lies below the floor of {device} for {problem}, {floor:g} us "
            f"({measured.mode}; {rate:.0f} TFLOP/s): a fault, no time"
        )
    if rate > MAX_TFLOPS:
        raise LaunchFault(f"{measured.median_us} us would be {rate:.0f} TFLOP/s: a fault, no time")


def operations_of(problem: Problem) -> float:
    """Operations of ``problem``; a multiply-add is two."""
    return 2.0 * problem.batch * problem.m * problem.n * problem.k


def moved_bytes(problem: Problem) -> float:
    """Bytes that every kernel has to read or write: each element once, and no matrix that a factor leaves out."""
    p, o = problem, problem.operation
    # A matrix that all products share has to be read once.
    a, b = (p.batch if stride or not p.batch else 1 for stride in (p.stride_a, p.stride_b))
    operands = (a * p.m * p.k + b * p.k * p.n) * o.a.bits if p.alpha else 0
    return (operands + p.batch * p.m * p.n * o.d.bits + p.added_bits) / 8


def _limit(seconds: float, buffers: Sequence[Bytes]) -> float:
    return seconds + 2 * sum(buffer.nbytes for buffer in buffers) / BYTES_PER_S


def estimated(config: KernelConfig, arch: Arch, problem: Problem, facts: Facts) -> Estimated | None:
    """The estimate of a compiled kernel on the usual chip of ``arch``; None where that has no rate of such products."""
    chip = chips.usual(arch.sm)
    if not estimate.priced(config.operation, chip):
        return None
    made = estimate.estimate(config, arch, chip, problem, footprint=estimate.compiled(facts))
    return Estimated(made.us, made.chip, made.limiting)


def try_out(
    config: KernelConfig,
    arch: Arch,
    problem: Problem,
    backend: Backend | None,
    protocol: TimingProtocol | None = None,
    compiler: Compiler = foundry.compile_source,
) -> Record:
    """The whole story of one candidate. A time follows only a clean verdict, and another verdict follows the time.

    Args:
        problem: what is timed; the small hostile problems are checked beside it.
        backend: where it runs; None compiles only.
        protocol: how it is timed; None does not time it.
        compiler: what compiles it.

    Raises:
        MissingPiece: there is no compiler here, or the backend is gone for good.
        OutOfTime: as ``compiler`` raises it.
    """
    story = _Story(config, arch, problem, backend)
    violations = rules.check(config, arch, problem)
    if violations:
        return story.ends(Outcome.ILLEGAL, "; ".join(f"{v.rule.id} {v.message}" for v in violations))
    if absent := coverage.missing(config):
        return story.ends(Outcome.ILLEGAL, "; ".join(absent))
    story.fingerprint = render(config, arch).fingerprint
    try:
        _, binary = build(config, arch, compiler)
    except CompileError as error:
        return story.ends(Outcome.COMPILE, error.message)
    story.facts = facts_of(config, arch, binary)
    if backend is None:
        return story.ends(Outcome.UNVERIFIED)
    try:
        return _run_story(story, binary, backend, protocol)
    except CompileError as error:
        # A foreign kernel is assembled again on its way to the card.
        return story.ends(Outcome.COMPILE, error.message)
    except Fault as fault:
        return story.ends(Outcome(fault.outcome), fault.message)


def _run_story(story: _Story, binary: Binary, backend: Backend, protocol: TimingProtocol | None) -> Record:
    config, problem = story.config, story.problem
    # What has no clock is slow: there the small problems are all that is checked.
    asked = [problem] if backend.clocked else []
    story.runs = validate(config, binary, backend, [*validation_problems(config), *asked])
    if not story.runs[-1].exact:
        return story.ends(Outcome.WRONG, story.runs[-1].mismatch)
    if protocol is None or not backend.clocked:
        return story.ends(Outcome.OK)
    measured = time_it(config, binary, backend, problem, protocol)
    # A kernel that is right once and wrong after a thousand launches is wrong.
    story.runs.append(check_run(config, binary, backend, problem))
    if not story.runs[-1].exact:
        return story.ends(Outcome.WRONG, f"after timing: {story.runs[-1].mismatch}")
    story.timing = measured
    return story.ends(Outcome.OK)


class _Story:
    """What is known of a candidate so far; ends as a record."""

    def __init__(self, config: KernelConfig, arch: Arch, problem: Problem, backend: Backend | None) -> None:
        self.config, self.arch, self.problem, self.backend = config, arch, problem, backend
        self.facts: Facts | None = None
        self.timing: Timing | None = None
        self.fingerprint = ""
        self.runs: list[Run] = []

    def ends(self, outcome: Outcome, detail: str = "") -> Record:
        backend = self.backend
        measures = backend is not None and backend.clocked and not backend.foreign(self.arch)
        guess = None
        if self.facts is not None and not measures:
            guess = estimated(self.config, self.arch, self.problem, self.facts)
        return Record(
            name=name_of(self.config),
            arch=self.arch.name,
            problem=str(self.problem),
            outcome=outcome,
            detail=detail,
            backend=backend.name if backend else "none",
            device=backend.device if backend else "",
            foreign=bool(backend and backend.foreign(self.arch)),
            fingerprint=self.fingerprint,
            guaranteed=all(run.guaranteed for run in self.runs),
            runs=len(self.runs),
            facts=self.facts,
            timing=self.timing,
            estimate=guess,
        )


def tflops(problem: Problem, median_us: float) -> float:
    """Multiply-adds of ``problem`` as 2·m·n·k operations, in 10^12 per second."""
    return operations_of(problem) / median_us / 1e6


def touched(case: Case, returned: Sequence[Bytes]) -> str:
    """Which operand was written to, in words; empty where none was."""
    names = layout.operand_names(case.problem.operation)
    for letter, image, sent, back in zip(names, case.images[:-1], case.buffers, returned, strict=False):
        if not same_bytes(sent, back):
            first = int((sent != back).argmax())
            return f"{letter} was written to, first at byte {first - image.offset} from its start"
    return ""


def _tiles(config: KernelConfig) -> Tiles:
    known = derive.values(config)
    return Tiles(
        block_m=known["BLOCK_M"],
        block_n=known["BLOCK_N"],
        warp_m=known["WARP_M"],
        warp_n=known["WARP_N"],
        inst_m=known["INST_M"],
        inst_n=known["INST_N"],
        block_k=known["BLOCK_K"],
        stages=known["STAGES"],
    )
