"""What people read: each function turns results into text. Standard output holds answers, standard error progress."""

from __future__ import annotations

import contextlib
import shlex
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from wmmagen import mend
from wmmagen.choose import tied
from wmmagen.config import Problem, name, operation_values, spell
from wmmagen.doctor import Finding
from wmmagen.inspection import Figure, Inspection, differing, plain, remarks
from wmmagen.lint import Report
from wmmagen.records import Facts, Outcome, Record
from wmmagen.rules import RULES, Rule, Violation
from wmmagen.space import Space
from wmmagen.trial import Run, tflops

if TYPE_CHECKING:
    from wmmagen.accuracy import Accumulation, Computed, Errors, Storage
    from wmmagen.accuracy import Report as Accuracy
    from wmmagen.bench import Baseline, Limit, Row, Table
    from wmmagen.ceilings import Figure as CeilingFigure
    from wmmagen.ceilings import Record as Ceilings
    from wmmagen.denominators import Kind
    from wmmagen.estimate import Estimate

    # Optuna takes a second to import, and most commands have no use for it.
    from wmmagen.job import Result
    from wmmagen.ladder import Record as Ladder
    from wmmagen.mutants import Row as MutantRow
    from wmmagen.series import Measured
    from wmmagen.timing import TimingProtocol
    from wmmagen.tune import Progress

RANKED = 10
REMOVERS = 4
#: Characters of a reason that a line of a table holds.
REASON = 150


def violations(found: Sequence[Violation], proposal: Mapping[str, str] | None) -> str:
    """Every violation, a paragraph each, and what mends all of them."""
    return "\n".join([*map(str, found), mend.sentence(proposal)])


def rule_table(rules: Iterable[Rule]) -> str:
    """One paragraph for each rule, with its reason and source."""
    paragraphs = []
    for rule in rules:
        when = f", when {rule.when.text}" if rule.when else ""
        head = f"{rule.id}  {rule.name}  ({rule.scope}{when})"
        lines = (rule.says, rule.expr.text, rule.reason, rule.source)
        paragraphs.append("\n    ".join((head, *lines)))
    return "\n\n".join(paragraphs)


def compiled(name: str, arch: str, facts: Facts, tensor: int, report: Report, *, cached: bool) -> str:
    """The compiler's facts and what the lint says, a line each."""
    again = ", found in the cache" if cached else ""
    lines = [
        name,
        f"  compiled for     {arch} by {facts.compiler} in {facts.compile_seconds:.2f} s{again}",
        f"  threads          {facts.threads} per block",
        f"  registers        {facts.registers} per thread, {facts.spill_bytes} bytes spilled",
        f"  stack            {facts.stack_bytes} bytes per thread",
        f"  shared memory    {facts.shared_bytes} bytes per block",
        f"  occupancy        {_count(facts.occupancy, 'block')} per multiprocessor",
        f"  tensor           {_count(tensor, 'matrix instruction')} in the PTX",
    ]
    return "\n".join([*lines, *_main_loop(report), *_lint(report)])


def _main_loop(report: Report) -> list[str]:
    figures = report.figures
    if figures is None:
        return []
    accesses = ", ".join(f"{count} {word}" for word, count in figures.accesses.items())
    return [
        f"  main loop        {figures.matrix} matrix, {figures.integer} integer, {figures.uniform} uniform of "
        f"{figures.instructions} instructions; {figures.integer_per_matrix:.2f} integer per matrix instruction",
        f"  its accesses     {accesses}; {_count(figures.barriers, 'barrier or wait', 'barriers and waits')}",
    ]


def _lint(report: Report) -> list[str]:
    said = [*report.defects, f"not done: {report.undone}"] if report.undone else [*report.defects]
    clean = f"no defect ({report.figures.disassembler})" if report.figures else "no defect"
    return [f"  lint             {text}" for text in said or [clean]]


#: Columns of `inspect`: what a figure is called, a value, a quotient, a kernel's pair of values.
_NAMED, _VALUE, _QUOTIENT = 20, 9, 7
_PAIR = 2 * _VALUE + _QUOTIENT + 1


def inspections(found: Sequence[Inspection], arch: str, width: int) -> str:
    """The figures of one kernel beside their minima, or of several beside those of the first.

    Args:
        width: of the terminal, in characters; 80 are enough, and more hold more kernels side by side.
    """
    p = found[0].problem
    lines = [f"[{number}] {name(one.config)}" for number, one in enumerate(found, start=1)]
    sizes = f"{p.m * p.n} elements of D, {p.m * p.n * p.k} multiply-adds (madds)"
    lines += _folded(f"{p} on {arch}, counted by the CPU executor: {sizes}", width)
    lines += _folded("Sectors of 32 bytes of global memory, wavefronts of shared memory, instructions of warps", width)
    if len(found) == 1:
        lines += ["", *_beside_minima(found[0])]
    else:
        keys = "; ".join(
            f"{key} {' | '.join(words)}" for key, words in differing([one.config for one in found]).items()
        )
        lines += _wrapped("differ in ", keys or "no key", width)
        fit = max(1, (width - _NAMED - 3 * _VALUE) // _PAIR)
        for begin in range(1, len(found), fit):
            lines += ["", *_side_by_side(found, range(begin, min(begin + fit, len(found))))]
    lines += ["", "Instructions of PTX for each matrix instruction, and the machine code:"]
    for number, one in enumerate(found, start=1):
        words = ", ".join(f"{plain(count)} {kind}" for kind, count in one.instructions.items())
        lines += _wrapped(f"[{number}] ", words, width)
        lines += [line for text in (*_main_loop(one.report), *_lint(one.report)) for line in _folded(text, width)]
    said = remarks(found)
    return "\n".join(
        [*lines, *(["", "What stands out:"] if said else []), *(x for s in said for x in _folded(s, width))]
    )


def _wrapped(head: str, words: str, width: int) -> list[str]:
    return textwrap.wrap(head + words, width, subsequent_indent=" " * len(head), break_long_words=False)


def _folded(line: str, width: int) -> list[str]:
    """``line`` in lines of ``width``, the further ones below its second column."""
    margin = " " * (19 if line.startswith("  ") else 4)
    return textwrap.wrap(line, width, subsequent_indent=margin, break_long_words=False, drop_whitespace=True)


def _cells(values: Iterable[tuple[str, int]]) -> str:
    return "".join(f"{text:>{wide}}" for text, wide in values)


def _cell(value: float | None) -> str:
    return "-" if value is None else plain(value)


def _beside_minima(one: Inspection) -> list[str]:
    head = [("", _VALUE), ("for each", _VALUE), ("for 1000", _VALUE), ("least of", _VALUE), ("", _QUOTIENT)]
    below = [("in all", _VALUE), ("element", _VALUE), ("madds", _VALUE), ("problem", _VALUE), ("x", _QUOTIENT)]
    lines = [
        " " * _NAMED + _cells([*head, ("least of", _VALUE), ("", _QUOTIENT)]).rstrip(),
        " " * _NAMED + _cells([*below, ("tiles", _VALUE), ("x", _QUOTIENT)]),
    ]
    for figure in one.figures:
        least = figure.least
        problem, tiles = (least.problem, least.tiles) if least else (None, None)
        cells = [(_cell(value), _VALUE) for value in (figure.total, figure.per_output, figure.per_thousand, problem)]
        cells += [(_cell(figure.ratio_to_problem), _QUOTIENT), (_cell(tiles), _VALUE)]
        lines.append(f"{figure.words:<{_NAMED}}{_cells([*cells, (_cell(figure.ratio_to_tiles), _QUOTIENT)])}")
    return lines


def _side_by_side(found: Sequence[Inspection], others: Sequence[int]) -> list[str]:
    """The first kernel, and ``others`` by their places, with their ratios to it; for each element of D, and so on."""
    first = found[0].figures
    head = [("least of", _VALUE), ("[1] each", _VALUE), ("1000", _VALUE)]
    below = [("problem", _VALUE), ("element", _VALUE), ("madds", _VALUE)]
    for place in others:
        head += [(f"[{place + 1}] each", _VALUE), ("1000", _VALUE), (f"[{place + 1}]", _QUOTIENT + 1)]
        below += [("element", _VALUE), ("madds", _VALUE), ("/ [1]", _QUOTIENT + 1)]
    lines = [" " * _NAMED + _cells(head), " " * _NAMED + _cells(below)]
    for index, figure in enumerate(first):
        cells = [(_cell(_for_each(figure, figure.least.problem if figure.least else None)), _VALUE), *_pair(figure)]
        for place in others:
            other = found[place].figures[index]
            cells += [*_pair(other), (_cell(other.ratio_to(figure)), _QUOTIENT + 1)]
        lines.append(f"{figure.words:<{_NAMED}}{_cells(cells)}")
    return lines


def _pair(figure: Figure) -> list[tuple[str, int]]:
    """A figure for each element and for 1,000 multiply-adds; a quotient is for both."""
    value = figure.total if figure.per_output is None else figure.per_output
    return [(_cell(value), _VALUE), (_cell(figure.per_thousand), _VALUE)]


def _for_each(figure: Figure, value: float | None) -> float | None:
    """``value``, which is of the launch as ``figure`` is, for each element of D."""
    if value is None or figure.per_output is None or not figure.total:
        return value
    return value * figure.per_output / figure.total


def runs(done: Sequence[Run]) -> str:
    """A line for each problem with its checked launches; the first wrong one explained."""
    lines: list[str] = []
    launches: dict[str, list[Run]] = {}
    for run in done:
        launches.setdefault(_launched(run), []).append(run)
    for line, alike in launches.items():
        same = ", the same bytes" if all(run.exact and run.miss_bits is None for run in alike) else ""
        lines.append(f"{line}, {len(alike)} launches{same}" if len(alike) > 1 else line)
        lines += [f"    {run.mismatch}" for run in alike if run.mismatch]
    return "\n".join(lines)


def _launched(run: Run) -> str:
    """What was computed, and the verdict."""
    p = run.problem
    right = "exact" if run.guaranteed else "passed, not guaranteed by the bound"
    if run.error is not None:
        right = str(run.error)
    e = p.operation.epilogue
    numbers = (*(f"ld{matrix}" for matrix in e.matrices), *e.scalars)
    c = "".join(f" {number} {getattr(p, number):g}" for number in numbers)
    how = "" if run.miss_bits is None else f" ({run.method})"
    return f"  {p!s:<18} lda {p.lda} ldb {p.ldb} ldd {p.ldd}{c}: {right if run.exact else 'WRONG'}{how}"


def mutant(row: MutantRow) -> str:
    """What is wrong with one mutant and what came of it, a line each."""
    case, problem = row.case, f" {row.problem}" if row.problem else ""
    origin = f" ({case.mutant.origin})" if case.mutant.origin else ""
    if row.killed:
        fate = f"killed by {row.by}"
    elif not row.counted:
        fate = f"not counted{f' ({row.by})' if row.by else ''}"
    else:
        fate = f"SURVIVED{f' ({row.by})' if row.by else ''}"
    return (
        f"{fate:<30} {case.mutant.kind}: {case.mutant.wrong}{origin}\n"
        f"    {case.arch} {case.text}{problem}\n"
        f"    {textwrap.shorten(row.detail, REASON, placeholder=' …')}"
    )


def kill_rate(rows: Sequence[MutantRow]) -> str:
    """How many of the mutants that count are killed, and which are not."""
    counted = [row for row in rows if row.counted]
    killed = sum(row.killed for row in counted)
    kinds = len({row.case.mutant.kind for row in counted})
    rate = f" ({killed / len(counted):.1%})" if counted else ""
    lines = [f"killed {killed} of {_count(len(counted), 'mutant')} of {_count(kinds, 'kind')}{rate}"]
    if hidden := [row for row in rows if not row.counted]:
        names = dict.fromkeys(row.case.mutant.kind for row in hidden)
        lines.append(f"not visible in values and not counted: {len(hidden)}, of the kinds {', '.join(names)}")
    lines += [f"survivor: {row.case}, expected {row.case.mutant.expected}" for row in rows if row.survived]
    return "\n".join(lines)


def findings(found: Iterable[Finding]) -> str:
    """What the doctor found, with the command that mends each gap."""
    return "\n".join(str(finding) for finding in found)


def sweep_result(result: Result, again: str) -> str:
    """The ranking, why candidates fell out, the winner's file, and what to type next.

    Args:
        again: the command that made it.
    """
    again_in_turns = _finals(result.finals, result.request.protocol) if result.finals else ""
    parts = [
        _ranking(result),
        again_in_turns,
        _leading(result),
        _fell_out(result),
        _space(result),
        _next(result, again),
    ]
    return "\n\n".join(filter(None, parts))


def suited(chosen: Mapping[str, Any], problem: Problem) -> str:
    """What was made of the operation because of the size that was asked for."""
    words = ",".join(f"{key}={spell(value)}" for key, value in chosen.items())
    if "residue" not in chosen:  # a kernel for all sizes was asked for
        return f"packed rows of {problem} keep no wider promises than {words}"
    return f"{problem} is no multiple of any legal block tile: {words}"


def _finals(table: Table, protocol: TimingProtocol) -> str:
    """The leaders of a sweep, measured again."""
    return bench(table, protocol, "The leaders again, [1] the fastest of the ranking above.")


#: Columns of figures of errors, as :func:`_errors` fills them.
_ERRORS = f"{'largest ulp':>12} {'mean ulp':>12} {'Frobenius':>12}"


def accuracy(report: Accuracy, *, modelled: bool) -> str:
    """What accumulators lose, and apart from it what types of D do; why what is missing is.

    Args:
        modelled: whether the sums are those of the executor.
    """
    lines = [
        f"{'x'.join(map(str, report.size))}, normal-distributed inputs, errors against sums more precise than float64.",
        *(["The executor rounds each instruction's sum once: a model; a card has its own arithmetic."] * modelled),
        "",
        "Accumulation: sums stored as they are, in ulp of the accumulator; norms are relative.",
        f"{'':<28}{_ERRORS} {'of bound':>12}",
    ]
    for row in report.accumulation:
        lines += _accumulated(row)
    if report.storage:
        lines += [
            "",
            "Storage: D of another type against those sums, in ulp of D, whatever they cost.",
            f"{'':<28}{_ERRORS}",
        ]
        lines += map(_stored, report.storage)
    if report.left_out:
        lines += ["", "Left out:", *(f"  {sentence}" for sentence in report.left_out)]
    return "\n".join([*lines, "", _within(report)])


def _errors(errors: Errors | None) -> str:
    if errors is None:
        return " ".join([f"{'-':>12}"] * 3)
    return " ".join(f"{figure:>12.4g}" for figure in (errors.largest_ulp, errors.mean_ulp, errors.frobenius))


def _accumulated(row: Accumulation) -> list[str]:
    what = f"{row.a} operands, {row.acc} sums"
    lines = [what, _computed("kernel", row.kernel)]
    if row.library is not None:
        lines.append(_computed("cuBLASLt", row.library))
    growth = f"({row.bound.factor:.4g} of the sums of |a||b|)"
    lines.append(f"  {'bound':<26}{_errors(row.bounds)} {1:>12}  {growth}")
    if row.library is None:
        lines.append(f"  cuBLASLt: none: {row.reason}")
    return lines


def _computed(who: str, one: Computed) -> str:
    wrong = f"  BEYOND ITS BOUND in {_count(one.broken, 'element')}" if one.broken else ""
    finite = f", {one.not_finite} of them not finite" if one.not_finite else ""
    return f"  {who:<26}{_errors(one.errors)} {one.share:>12.4g}{wrong}{finite}"


def _stored(row: Storage) -> str:
    what = f"{row.a} operands, {row.acc} as {row.d}"
    wrong = f"  {_count(row.differing, 'element')} NOT THE SUM ROUNDED ONCE" if row.differing else ""
    return f"{what:<28}{_errors(row.errors)}{wrong}"


def _within(report: Accuracy) -> str:
    if not report.right:
        return "Not as it should be: see the lines in capitals."
    stored = ", and every other D is its sums rounded once, bit for bit" if report.storage else ""
    return f"All errors are within their bounds{stored}."


def bench(table: Table, protocol: TimingProtocol, order: str = "Kernels are numbered as they were asked for.") -> str:
    """The kernels with their shares, the denominators with theirs left out, and why what is missing is.

    Args:
        order: a sentence that says what the numbers of the kernels mean: they are no ranks.
    """
    fastest = _fastest(table)
    lines = [
        f"{table.device}: {protocol.mode}, data {protocol.data}, timed in turns; median and 95 % interval of a launch. "
        "A share is the lower end of the 95 % interval of the quotients of rounds.",
        f"{'':<4}{'us':>11} {'interval':>22} {'TFLOP/s':>9} {'of cuBLAS':>10} {'of FP32':>9}"
        f"{' of ceiling' if table.limits else ''}  kernel",
    ]
    for number, row in enumerate(table.rows, start=1):
        lines += _bench_row(number, row, ceiling=bool(table.limits), fastest=number == fastest[0])
    lines += [" ".join([order, *_told(table, fastest)])]
    lines += ["", "Denominators, the best exact candidate of cuBLASLt's heuristic:"]
    lines += map(_baseline, table.baselines)
    if table.limits:
        lines += ["", "Ceilings, products of fragments that stay in registers, in turns with the kernels of this list:"]
        lines += map(_limit, table.limits)
    return "\n".join([*lines, *_surroundings(table)])


def _fastest(table: Table) -> tuple[int, int]:
    """The numbers of the fastest right kernel and of the next one; 0 where there is none of at least two."""
    timed = sorted(
        (row.timing.median_us, row.name, number)
        for number, row in enumerate(table.rows, start=1)
        if row.timing is not None and row.outcome is Outcome.OK
    )
    return (timed[0][2], timed[1][2]) if len(timed) > 1 else (0, 0)


def _told(table: Table, fastest: tuple[int, int]) -> list[str]:
    """What the mark means, and whether the fastest could as well be the next one."""
    first, second = fastest
    if not first:
        return []
    one, other = (table.rows[number - 1].timing for number in fastest)
    assert one is not None and other is not None, "what is fastest was timed"
    tie = f", in a tie with [{second}]: their intervals overlap" if tied(one, other) else ""
    return [f"* is the fastest{tie}."]


def _baseline(one: Baseline) -> str:
    problem, timing, figure = one.denominator.problem, one.timing, one.figure
    o = problem.operation
    what = f"  {f'{one.denominator.kind} ({o.a.name}, {o.acc.name}, {o.d.name})':<28}"
    if timing is None or figure is None or figure.best is None:
        return f"{what} none: {one.reason or 'the comparison failed'}"
    low, high = timing.interval_us
    return (
        f"{what} {timing.median_us:.2f} us [{low:.2f}, {high:.2f}], {tflops(problem, timing.median_us):.1f} TFLOP/s; "
        f"{figure.best.candidate}, cuBLASLt {figure.version}{_flagged(timing.flags)}"
    )


def _limit(one: Limit) -> str:
    what = f"  {f'{one.inst.a.name}, {one.inst.acc.name}, {one.inst.shape}':<28}"
    if one.timing is None or one.loop is None:
        return f"{what} none: {one.reason}"
    return (
        f"{what} {one.tflops:.1f} TFLOP/s on {one.timing.data} data; {one.loop.warps} warps on each multiprocessor"
        f"{_flagged(one.timing.flags)}"
    )


#: The denominators that have a column of their own; the others compute a whole chain.
_COLUMNS: tuple[Kind, ...] = ("same types", "FP32")


def _bench_row(number: int, row: Row, *, ceiling: bool, fastest: bool) -> list[str]:
    place = f"{f'[{number}]':>4}"
    if row.timing is None:
        return [f"{place} {row.outcome}: {row.name}", f"       {row.detail.splitlines()[0] if row.detail else ''}"]
    low, high = row.timing.interval_us
    shares = [f"{row.ratios[kind].low:.3f}" if kind in row.ratios else "none" for kind in _COLUMNS]
    last = f" {f'{row.of_ceiling.low:.3f}' if row.of_ceiling else 'none':>10}" if ceiling else ""
    mark = "*" if fastest else " "
    whole = [f"{ratio.low:.3f} of {kind}" for kind, ratio in row.ratios.items() if kind not in _COLUMNS]
    return [
        f"{place}{mark}{row.timing.median_us:>10.2f} {f'[{low:.2f}, {high:.2f}]':>22} {row.tflops:>9.1f} "
        f"{shares[0]:>10} {shares[1]:>9}{last}  {row.name}{_flagged(row.flags)}",
        *([f"       of cuBLASLt with the same steps: {', '.join(whole)}"] if whole else []),
    ]


def series(tables: Sequence[Measured], protocol: TimingProtocol, wins: tuple[int, int]) -> str:
    """A bench of each size; of several sizes also a line for each, and the count of wins.

    Args:
        wins: at how many sizes a kernel beats the library, and of how many that is told.
    """
    parts = [bench(one.table, protocol, _taken(one)) for one in tables]
    return "\n\n".join([*parts, series_summary(tables, wins)] if len(tables) > 1 else parts)


def series_progress(one: Measured) -> str:
    """The line of a size in the table of a series, as soon as it was measured."""
    return _sized(one)


def _taken(one: Measured) -> str:
    """How the kernels of a bench came there, and which of those that were asked for do not take its size."""
    words = ["Kernels are numbered as they were asked for."]
    for number, row in enumerate(one.table.rows, start=1):
        if origin := one.origin(row):
            words.append(f"[{number}] is {origin}.")
    words += [f"Not legal for {row.problem}: {row.name}: {row.detail}." for row in one.plan.refused]
    return " ".join(words)


def series_summary(tables: Sequence[Measured], wins: tuple[int, int]) -> str:
    """A line for each size, with its fastest right kernel, and the count of wins."""
    return series_table([_sized(one) for one in tables], wins)


def series_table(lines: Sequence[str], wins: tuple[int, int]) -> str:
    """As :func:`series_summary`, of lines of :func:`series_progress`."""
    head = (
        f"{'size':<18} {'batch':>5} {'us':>10} {'TFLOP/s':>8} {'GB/s':>7} {'cuBLAS us':>10} {'of cuBLAS':>9} "
        f"{'of FP32':>8} {'empty us':>8}  what; kernel"
    )
    return "\n".join(
        [
            "The fastest right kernel of each size. A share is the lower end of its 95 % interval; the bytes are those "
            "that every kernel has to move.",
            head,
            *lines,
            f"Faster than cuBLASLt with the same types, beyond the noise: {wins[0]} of {wins[1]} sizes.",
        ]
    )


def _sized(one: Measured) -> str:
    """A size's fastest right kernel in a line."""
    shape = one.plan.shape
    what = f"{f'{shape.m}x{shape.n}x{shape.k}':<18} {shape.batch:>5}"
    right = [row for row in one.rows if row.timing is not None and row.outcome is Outcome.OK]
    if not right:
        first = one.rows[0]
        return f"{what} {first.outcome}: {first.name}: {first.detail.splitlines()[0] if first.detail else ''}"
    row = min(right, key=lambda row: (row.timing.median_us if row.timing else 0.0, row.name))
    assert row.timing is not None
    same = next((b.timing for b in one.table.baselines if b.denominator.kind == "same types" and b.timing), None)
    shares = [f"{row.ratios[kind].low:.3f}" if kind in row.ratios else "none" for kind in _COLUMNS]
    empty = f"{row.timing.empty_us:.2f}" if row.timing.empty_us is not None else "-"
    return (
        f"{what} {row.timing.median_us:>10.2f} {row.tflops:>8.1f} {row.gb_per_s:>7.0f} "
        f"{f'{same.median_us:.2f}' if same else 'none':>10} {shares[0]:>9} {shares[1]:>8} {empty:>8}  "
        f"{f'{shape.words}; ' if shape.words else ''}{row.name}{_flagged(row.flags)}"
    )


def ladder(record: Ladder) -> str:
    """The rungs from the bottom, each with what it changes; times with their shares, or estimates."""
    document = record.document
    if record.timed:
        head = [
            f"{document['device']}, {document['arch']} kernels: {document['mode']}, data {document['data']}, timed in "
            "turns; median of a launch. A share is the lower end of the 95 % interval of the quotients of rounds, and "
            "so is x, how many times as fast as the timed rung below it a rung is.",
            f"{'size':<16}{'path':<18}{'us':>11} {'TFLOP/s':>9} {'x':>6} {'of cuBLAS':>10} {'of FP32':>9} "
            f"{'of ceiling':>10}",
        ]
    else:
        head = [
            f"ESTIMATED for {document['chip']}, {document['arch']} kernels, warm; nothing was measured. Each rung was "
            f"checked on small problems by {document['device']}.",
            f"{'size':<16}{'path':<18}{'est. us':>11} {'TFLOP/s':>9}  limited by",
        ]
    lines = [*head, *(line for row in record.rows for line in _rung(row, record.timed))]
    for title, what in _BELOW_LADDER.items():
        if document[what]:
            lines += ["", f"{title}:", *(_against(one) for one in document[what])]
    empty = next((row["empty_us"] for row in record.rows if row["empty_us"] is not None), None)
    return "\n".join([*lines, *(["", f"An empty kernel takes {empty:.2f} us."] if empty is not None else [])])


_BELOW_LADDER = {
    "Denominators, the best exact candidate of cuBLASLt's heuristic": "denominators",
    "Ceilings, products of fragments that stay in registers, in turns with the rungs": "ceilings",
}


def _rung(row: Mapping[str, Any], timed: bool) -> list[str]:
    what = f"{row['problem']:<16}{row['rung']:<18}"
    below = f"{'':<16}{row['adds']}" + (f": {row['changes'].replace(',', ', ')}" if row["changes"] else "")
    if row["outcome"] == Outcome.OK:
        figures = _timed_rung(row) if timed else _estimated_rung(row)
    else:
        figures = f" {row['outcome']}: {textwrap.shorten(row['detail'], REASON, placeholder=' …')}"
    return [f"{what}{figures}", *textwrap.wrap(below, 120, subsequent_indent=" " * 18, break_long_words=False)]


def _timed_rung(row: Mapping[str, Any]) -> str:
    def share(value: float | None) -> str:
        return "none" if value is None else f"{value:.3f}"

    gain = f"{row['gain']['low']:.2f}" if row.get("gain") else "-"
    of = row["share"]
    return (
        f"{row['median_us']:>11.2f} {row['tflops']:>9.1f} {gain:>6} {share(of['cublas_same_types']):>10} "
        f"{share(of['cublas_fp32']):>9} {share(of['ceiling']):>10}{_flagged(row['flags'])}"
    )


def _estimated_rung(row: Mapping[str, Any]) -> str:
    return f"{row['estimated_us']:>11.2f} {row['estimated_tflops']:>9.1f}  {row['limiting']}"


def _against(one: Mapping[str, Any]) -> str:
    """A denominator or a ceiling of a ladder's record."""
    what = f"  {', '.join([one.get('kind') or 'registers', *one['types'], one.get('shape') or '']).rstrip(', '):<28}"
    if one["tflops"] is None:
        return f"{what} none: {one['reason']}"
    source = f"; {one['candidate']}, cuBLASLt {one['version']}" if one.get("candidate") else ""
    time = f"{one['median_us']:.2f} us, " if "kind" in one else ""
    return f"{what} {time}{one['tflops']:.1f} TFLOP/s{source}"


_CEILINGS = {
    "register": "Products of fragments that stay in registers",
    "shared": "Products of fragments that are loaded from shared memory, by the warp's tile",
    "memory": "Accesses of 16 bytes, past the L1",
}


def ceilings(record: Ceilings) -> str:
    """The limits of a device, a table for each kind."""
    lines = [
        f"{record.device}: {record.multiprocessors} multiprocessors, {record.l2_bytes / 2**20:.0f} MiB of L2. Median "
        "and 95 % interval; warps are those of a multiprocessor, in the best of the ways that were tried."
    ]
    for kind, title in _CEILINGS.items():
        figures = [figure for figure in record.figures if figure.kind == kind]
        if figures:
            unit = figures[0].unit
            lines += ["", f"{title}:", f"{unit:>9} {'interval':>20} {'warps':>6} {'MHz':>13} {'W':>5}"]
            lines += map(ceiling, figures)
    return "\n".join(lines)


def ceiling(figure: CeilingFigure) -> str:
    """A limit in a line."""
    words = " ".join(figure.words.values())
    if figure.timing is None or figure.interval is None:
        return f"{'none':>9} {words}: {figure.reason}"
    low, high = figure.interval
    timing = figure.timing
    clocks = "{}-{}".format(*timing.clock_range_mhz) if timing.clock_range_mhz else "-"
    power = f"{timing.power_w:.0f}" if timing.power_w is not None else "-"
    return (
        f"{figure.rate:>9.1f} {f'[{low:.1f}, {high:.1f}]':>20} {figure.warps:>6} {clocks:>13} {power:>5}  {words}"
        f"{_flagged((*timing.flags, *timing.throttle))}"
    )


def _flagged(flags: Sequence[str]) -> str:
    return f"  [{', '.join(flags)}]" if flags else ""


def _surroundings(table: Table) -> list[str]:
    """What the sensors said, and the empty kernel's time; they are of the whole comparison."""
    timing = next((row.timing for row in table.rows if row.timing), None)
    if timing is None:
        return []
    words = []
    if timing.clock_range_mhz is not None:
        words.append(f"{timing.clock_range_mhz[0]} to {timing.clock_range_mhz[1]} MHz")
    words += [f"{timing.power_w:.0f} W"] if timing.power_w is not None else []
    words += [f"{timing.temperature_c} C"] if timing.temperature_c is not None else []
    words += timing.throttle or (["no throttling"] if words else [])
    # It stands beside short launches only, and the first kernel need not be one.
    empty = next((t.empty_us for row in table.rows if (t := row.timing) and t.empty_us is not None), None)
    words += [f"an empty kernel takes {empty:.2f} us"] if empty is not None else []
    return ["", "While it ran: " + ", ".join(words)] if words else []


def space(found: Space, seconds: float) -> str:
    """The axes with their values, the size of the space, and how much of the product each rule removes.

    Args:
        seconds: that it took to make.
    """
    lines = [f"{_described(found)} on {found.arch}" + (f" for {found.problem}" if found.problem else "")]
    wide = max(map(len, found.axes))
    lines += ["", "Axes (values in parentheses are in no legal variant; --fix has warps=MxN and frags=MxN):"]
    for axis, values in found.axes.items():
        words = (spell(v) if v in found.live[axis] else f"({spell(v)})" for v in values)
        lines.append(f"  {axis:<{wide}}  {' '.join(words)}")
    share = _share(len(found), found.raw)
    lines += [
        "",
        f"{len(found)} of {found.raw} points of the product are legal, {share}; enumerated in {seconds:.2f} s",
    ]
    if found.removed:
        lines += ["", "What each rule removes, whatever the others do (wmmagen rules ID):"]
        lines += [f"  {r.id}  {r.name:<28} {n:>14}  {_share(n, found.raw):>9}" for r, n in _removers(found)]
    return "\n".join(lines)


def space_document(found: Space, seconds: float) -> dict[str, Any]:
    """The document of ``space --json``; shares are in per cent of the product."""
    return {
        "arch": found.arch.name,
        "operation": {key: spell(value) for key, value in operation_values(found.operation).items()},
        "problem": str(found.problem) if found.problem else None,
        "strict_isa": found.strict_isa,
        "axes": {
            axis: {"values": [*map(spell, values)], "live": [*map(spell, found.live[axis])]}
            for axis, values in found.axes.items()
        },
        "raw": found.raw,
        "legal": len(found),
        "removed": [
            {"id": rule.id, "rule": rule.name, "count": count, "share": 100 * count / found.raw}
            for rule, count in _removers(found)
        ],
        "seconds": round(seconds, 3),
    }


def _count(number: int, one: str, many: str = "") -> str:
    """``1 block``, ``2 blocks``."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _described(found: Space) -> str:
    o = found.operation
    strict = ", by the strict reading of alignment" if found.strict_isa else ""
    return (
        f"Space of {o.a.name} products summed in {o.acc.name}, stored as {o.d.name}, layout {o.layouts}, "
        f"epilogue {o.epilogue}{strict},"
    )


def _removers(found: Space) -> list[tuple[Rule, int]]:
    """Each rule that removes something, the one that removes the most first."""
    held = [(rule, found.removed[rule.id]) for rule in RULES if rule.id in found.removed]
    return sorted(held, key=lambda item: -item[1])


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f} %"


def _space(result: Result) -> str:
    space = result.space
    # That most axes mean nothing under some value of another says little about the request.
    telling = {rule.id: space.removed[rule.id] for rule in RULES if rule.id in space.removed and not rule.structural}
    most = sorted(telling.items(), key=lambda item: -item[1])[:REMOVERS]
    removers = ", ".join(f"{rule} {count}" for rule, count in most)
    words = f"Space: {len(space)} of {space.raw} points are legal for {result.problem} on {result.place.arch}"
    return f"{words}; removed most by {removers} (wmmagen rules ID)." if removers else f"{words}."


def _ranking(result: Result) -> str:
    ranked = result.ranking
    if not ranked:
        return ""
    if result.choice is not None and result.choice.estimated:
        return _estimated_ranking(result, ranked)
    lines = [
        f"Ranking for {result.problem}, {len(ranked)} right and timed (warm, normal data, median and 95 % interval):"
    ]
    lines += [_timed(place, record, result.problem) for place, record in enumerate(ranked[:RANKED], start=1)]
    lines += _decided(result, ranked) if result.finals is None else []
    return "\n".join(lines)


def _decided(result: Result, ranked: Sequence[Record]) -> list[str]:
    """What a ranking without a table of finals below it does not show: a tie, or what earlier finals decided."""
    choice = result.choice
    if choice is None:
        return []
    best, other = choice.best, choice.runner_up
    if best in ranked:
        return ["The first two are a tie: their intervals overlap."] if choice.tie else []
    lines = [f"An earlier run measured the leaders again, in turns, and this one was the fastest: {best.name}"]
    if choice.tie and other is not None:
        lines.append(f"It is in a tie, because their intervals overlap, with {other.name}")
    return lines


def _estimated_ranking(result: Result, ranked: Sequence[Record]) -> str:
    first = ranked[0].estimate
    assert first is not None
    lines = [
        f"Ranking for {result.problem} by ESTIMATE, {len(ranked)} right; no time of {result.place.arch} was measured. "
        f"Estimated for {first.chip}:"
    ]
    for place, record in enumerate(ranked[:RANKED], start=1):
        guess = record.estimate
        assert guess is not None
        foreign = f"; foreign time {record.timing.median_us:.2f} us" if record.timing else ""
        lines.append(
            f"{place:>3}. estimated {guess.us:>10.2f} us  {tflops(result.problem, guess.us):>7.1f} TFLOP/s  "
            f"limited by {guess.limiting:<8} {record.name}{foreign}"
        )
    return "\n".join(lines)


def estimates(rows: Sequence[tuple[str, Estimate]], problem: Problem, arch: str) -> str:
    """Estimated times: one kernel in full, or several as a ranked table.

    Args:
        rows: names and estimates, the fastest first.
    """
    first = rows[0][1]
    said = "the compiler's" if first.footprint.compiled else "predicted, nothing was compiled"
    head = f"ESTIMATED for {first.chip}, {arch}, {problem}, warm; nothing was measured. Registers and spills: {said}."
    if len(rows) > 1:
        lines = [head, f"{'':<4}{'est. us':>11} {'TFLOP/s':>9}  {'limited by':<10} {'waves':>7}  kernel"]
        for place, (name, one) in enumerate(rows, start=1):
            lines.append(
                f"{place:>3}. {one.us:>10.2f} {one.tflops:>9.1f}  {one.limiting:<10} {one.waves:>7.2f}  {name}"
            )
        return "\n".join(lines)
    return "\n".join([head, rows[0][0], *_estimate(first)])


def _estimate(one: Estimate) -> list[str]:
    foot = one.footprint
    others = sorted(one.resources.items(), key=lambda item: -item[1])
    return [
        f"  estimated time   {one.us:.2f} us, {one.tflops:.1f} TFLOP/s",
        f"  limited by       {one.limiting}",
        "  each alone       " + ", ".join(f"{name} {us:.2f} us" for name, us in others),
        f"  beside them      {one.fill_us:.2f} us of blocks that begin and end, {one.launch_us:.2f} us of the launch",
        f"  waves            {one.waves:.2f}; whole ones run, {one.quantization:.2f} times as many",
        f"  occupancy        {_count(foot.resident, 'block')} per multiprocessor, {foot.registers} registers per "
        f"thread, {foot.spill_bytes} bytes spilled",
    ]


def _timed(place: int, record: Record, problem: Problem) -> str:
    timing = record.timing
    assert timing is not None
    low, high = timing.interval_us
    return (
        f"{place:>3}. {timing.median_us:>10.2f} us [{low:.2f}, {high:.2f}]  "
        f"{tflops(problem, timing.median_us):>7.1f} TFLOP/s  {record.name}{_flagged(timing.flags)}"
    )


def _leading(result: Result) -> str:
    if not result.leading:
        return ""
    right = any(r.outcome is Outcome.OK for r in result.leading)
    what = "verified, but not timed on a card of this architecture" if right else "UNVERIFIED: compiled, not run"
    by = "estimate" if result.leading[0].estimate else "compiled facts"
    lines = [f"Leading candidates by {by}, {what}; none is called best:"]
    for place, record in enumerate(result.leading, start=1):
        facts = record.facts
        assert facts is not None
        lines.append(f"{place:>3}. {record.name}")
        lines.append(
            f"       {facts.registers} registers, {facts.spill_bytes} bytes spilled, {facts.shared_bytes} bytes "
            f"shared, {facts.threads} threads, {_count(facts.occupancy, 'block')} per multiprocessor"
            + (f"; estimated {record.estimate.us:.2f} us" if record.estimate else "")
            + (f"; foreign time {record.timing.median_us:.2f} us" if record.timing else "")
        )
    return "\n".join(lines)


def _fell_out(result: Result) -> str:
    tally = result.tally
    lines = [f"Outcomes of {_count(len(result.records), 'candidate')}:"]
    lines += [f"  {outcome:<11} {count}" for outcome, count in tally.counts.items() if count]
    if not result.new and result.records:
        lines.append("  nothing was new in this run: all were known; --trials with a larger number tries more")
    lines += [f"  first {outcome}: {text.splitlines()[0]}" for outcome, text in tally.examples.items()]
    return "\n".join(lines)


def _next(result: Result, again: str) -> str:
    if result.file is not None:
        emit = shlex.join(["wmmagen", "emit", "--best", result.reference, "--to", "DIR"])
        if result.choice is not None and result.choice.estimated:
            return (
                f"Winner, right and the fastest by estimate: {result.file}\nNext: {emit}\n"
                f"  or, to measure, on a machine with such a GPU: {_on_a_gpu(again)}"
            )
        return f"Winner: {result.file}\nNext: {emit}"
    if result.timed:
        emit = shlex.join(["wmmagen", "emit", "--best", result.reference, "--to", "DIR"])
        return f"The study holds times of a card, and where times rank no estimate does.\nNext: {emit}"
    if result.leading:
        emit = f"wmmagen emit {result.leading[0].name} --arch {result.place.arch} --to DIR"
        return f"Next: {emit}\n  or, on a machine with such a GPU: {_on_a_gpu(again)}"
    budget = result.request.budget_s
    if budget is not None and not result.records:
        return (
            f"The {budget:g} s of --budget were over before the first candidate was finished; nothing was found out.\n"
            f"Next: the same command with a longer --budget, or with --trials instead: {again}"
        )
    return (
        f"Next: look at the outcomes above; `wmmagen doctor` says what this machine has, and more candidates: {again}"
    )


def _on_a_gpu(again: str) -> str:
    """The command without the backend that was demanded: on another machine it would demand it again."""
    words = shlex.split(again)
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if "--backend" not in (before, word) and not word.startswith("--backend=")
    ]
    return shlex.join(kept)


class LiveLine:
    """Progress on standard error: one line that changes on a terminal, a line for each candidate elsewhere."""

    def __init__(self, problem: Problem, budget_s: float | None = None) -> None:
        """Begin with nothing.

        Args:
            problem: what is timed.
            budget_s: the seconds that a sweep without a number of candidates may take; None where there is a number.
        """
        self._problem = problem
        self._budget_s = budget_s
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("…")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, record: Record, progress: Progress) -> None:
        own = self._own(record)
        text = f"[{self._how_far(progress)}] {record.outcome:<10} {f'{own}; ' if own else ''}{self._best(progress)}"
        if self._status is not None:
            self._status.update(escape(text))
        else:
            with contextlib.suppress(OSError):  # nobody listens; the sweep goes on
                print(f"{text}  {record.name}", file=sys.stderr, flush=True)

    def _how_far(self, progress: Progress) -> str:
        if self._budget_s is None:
            return f"{progress.tried}/{progress.wanted}"
        return f"{progress.tried}, {progress.seconds:.0f} of {self._budget_s:g} s"

    def _own(self, record: Record) -> str:
        """What became of this candidate: its time, or its estimate; empty where it has neither."""
        if record.timing is not None:
            foreign = "" if record.ranks else "foreign, "
            return foreign + self._speed(record.timing.median_us)
        return f"estimated {self._speed(record.estimate.us)}" if record.estimate is not None else ""

    def _best(self, progress: Progress) -> str:
        best = progress.best
        if best is not None and best.ranks and best.timing is not None:
            return f"best so far {self._speed(best.timing.median_us)}"
        if best is not None and best.estimate is not None:
            return f"best estimate so far {self._speed(best.estimate.us)}"
        return "no best yet"

    def _speed(self, us: float) -> str:
        return f"{us:.2f} us, {tflops(self._problem, us):.1f} TFLOP/s"
