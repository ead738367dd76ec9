"""The command line: parse, call, print. The contract of statuses and ``--json`` is in the README.

The only importer of typer.
"""

from __future__ import annotations

import _thread
import contextlib
import difflib
import functools
import io
import itertools
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args

import typer

from wmmagen import __version__, chips, config, coverage, defaults, mend, rules
from wmmagen import arch as archs
from wmmagen.arch import Arch
from wmmagen.backends import pick
from wmmagen.chips import Chip
from wmmagen.config import KernelConfig, Operation, Problem
from wmmagen.errors import ConfigError, IllegalConfig, MissingPiece, RequestError, WmmagenError
from wmmagen.space import Space
from wmmagen.timing import Data, Mode, TimingProtocol

if TYPE_CHECKING:
    from wmmagen.nvrtc import Binary

app = typer.Typer(
    name="wmmagen",
    help="Generate, prove, time and hand over tensor-core GEMM kernels.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A kernel name, key=value,… over the defaults, or a TOML file.")
]
ArchName = Annotated[
    str | None, typer.Option("--arch", help="sm_75 … sm_121; the GPU's where there is one, else sm_75.")
]
Size = Annotated[str | None, typer.Option("--problem", metavar="MxNxK", help="A problem size; one number is the cube.")]
StrictIsa = Annotated[bool, typer.Option("--strict-isa", help="Also demand the alignment of the PTX ISA.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")]
BackendKind = Annotated[str, typer.Option("--backend", help="auto, gpu, cpu or none.")]
Runner = Annotated[str, typer.Option("--backend", help="auto, gpu or cpu.")]
Timer = Annotated[str, typer.Option("--backend", help="auto or gpu.")]
Symbol = Annotated[str | None, typer.Option("--symbol", help="The exported function [the kernel's name].")]


def _arch(text: str | None) -> Arch:
    return archs.find(text) if text is not None else pick.default_arch()


def _problem(kernel: KernelConfig, size: str | None) -> Problem | None:
    return _asked(kernel.operation, size) if size is not None else None


def _asked(operation: Operation, text: str) -> Problem:
    """The packed problem that ``--problem`` names."""
    size, batch = config.read_batch(text)
    return Problem.packed(operation, *size, batch=batch)


def _scaled(problems: Sequence[Problem], **typed: float | None) -> list[Problem]:
    """The problems with the numbers that were typed; each once."""
    given: dict[str, Any] = {name: value for name, value in typed.items() if value is not None}
    for name in given:
        if not problems[0].operation.epilogue.has(name):
            belongs = {"alpha": "linear", "beta": "linear", "scale": "scale"}.get(name, "clamp")
            raise RequestError(f"--{name} is a number of epilogue={belongs}", "leave it out, or ask for that")
    return list(dict.fromkeys(replace(p, **given) for p in problems))


#: Why a command cannot have a backend that others have.
_NO_RUN, _NO_CLOCK = "runs nothing, and a verdict needs a run", "has no clock, and this takes times"


def _backend(kind: str, *others: str) -> str:
    """``kind`` where the command can have it; ``others`` are those that it cannot.

    Raises:
        RequestError: it is one of ``others``.
        ConfigError: it is none at all.
    """
    able = [known for known in pick.KINDS if known not in others]
    if kind in others:
        raise RequestError(f"--backend {kind} {_NO_CLOCK if kind == 'cpu' else _NO_RUN}", f"one of: {' '.join(able)}")
    if kind not in able:
        raise ConfigError(f"--backend {kind!r} is not known", f"one of: {' '.join(able)}")
    return kind


#: The exit status of an interrupted command: 128 and the signal's number.
INTERRUPTED = 130
#: The command line at work, for messages that name it.
_typed: list[str] = []


class _ReaderGone(Exception):
    """Whoever read standard output has gone. Not an OSError, which typer would turn into a status of its own."""


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise _ReaderGone from None
    except OSError as error:
        raise MissingPiece(
            f"standard output cannot be written: {error.strerror}", "free some space, or write elsewhere"
        ) from None


def _answer(document: dict[str, Any], text: str, as_json: bool) -> None:
    _say(json.dumps(document, indent=2) if as_json else text)


def _aside(text: str) -> None:
    """Say something beside the answer; control characters of a request are spelt out, not obeyed."""
    shown = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
    with contextlib.suppress(OSError):  # nobody listens; the answer and its status do not depend on it
        print(shown, file=sys.stderr, flush=True)


@app.command()
def doctor(as_json: AsJson = False) -> int:
    """Say what is here and what is missing."""
    from wmmagen import doctor as examination
    from wmmagen import show

    found = examination.examine()
    healthy = examination.ok(found)
    _answer({"ok": healthy, "findings": [f.as_json() for f in found]}, show.findings(found), as_json)
    return 0 if healthy else 3


@app.command("rules")
def show_rules(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="Only these rules, in this order.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown document.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show the rules, with reasons and sources."""
    from wmmagen import documents, show

    table = {rule.id: rule for rule in rules.RULES}
    wanted = list(dict.fromkeys(ids or table))
    if unknown := [id for id in wanted if id not in table]:
        near = (difflib.get_close_matches(id.upper(), table, n=1, cutoff=0.7) for id in unknown)
        meant = " ".join(dict.fromkeys(itertools.chain.from_iterable(near)))
        fix = "`wmmagen rules` shows all of them"
        raise RequestError(
            f"no rule is called {' or '.join(unknown)}", f"did you mean {meant}? {fix}" if meant else fix
        )
    chosen = [table[id] for id in wanted]
    if markdown and ids:
        raise RequestError("--markdown is the document of all rules", "leave the ids out")
    text = documents.rules_markdown() if markdown else show.rule_table(chosen)
    _answer({"rules": [rule.as_json() for rule in chosen]}, text.rstrip("\n"), as_json)
    return 0


@app.command("schema")
def show_schema(
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="One of the commands, or error.")],
    as_json: AsJson = False,
) -> int:
    """Print the JSON Schema of a command's --json."""
    from wmmagen import schemas

    document = schemas.read(command)
    _answer(document, json.dumps(document, indent=2, ensure_ascii=False), as_json)
    return 0


@app.command()
def check(
    text: Config, arch: ArchName = None, problem: Size = None, strict_isa: StrictIsa = False, as_json: AsJson = False
) -> int:
    """Say whether a configuration is legal."""
    from wmmagen import show

    target = _arch(arch)
    kernel = defaults.read_config(text, target, strict_isa=strict_isa)
    asked = _problem(kernel, problem)
    found = rules.check(kernel, target, asked, strict_isa=strict_isa)
    proposal = mend.changes(kernel, target, asked, strict_isa=strict_isa) if found else None
    document = {
        "name": config.name(kernel),
        "arch": target.name,
        "legal": not found,
        "violations": [v.as_json() for v in found],
        "proposal": proposal,
    }
    if not found:
        coverage.demand(kernel)
    said = f"{config.name(kernel)} is legal on {target}"
    if found:
        later = _later(kernel, target, strict_isa, asked)
        said = "\n".join(filter(None, (show.violations(found, proposal), later)))
    _answer(document, said, as_json)
    return 2 if found else 0


@app.command("render")
def render_source(
    text: Config, arch: ArchName = None, strict_isa: StrictIsa = False, symbol: Symbol = None, as_json: AsJson = False
) -> int:
    """Print the .cu of a configuration."""
    from wmmagen import emit as emission

    target = _arch(arch)
    kernel = _legal(text, target, strict_isa)
    source = emission.source_of(kernel, target, strict_isa=strict_isa, symbol=symbol)
    _answer({"name": config.name(kernel), "arch": target.name, "source": source.text}, source.text[:-1], as_json)
    return 0


@app.command("compile")
def compile_kernel(
    text: Config,
    arch: ArchName = None,
    strict_isa: StrictIsa = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compile, also what was compiled before.")] = False,
    as_json: AsJson = False,
) -> int:
    """Print what the compiler says of one."""
    from wmmagen import foundry, lint, nvrtc, show, trial

    target = _arch(arch)
    kernel = _legal(text, target, strict_isa)
    _, binary = trial.build(kernel, target, nvrtc.compile_source if no_cache else foundry.compile_source)
    facts = trial.facts_of(kernel, target, binary)
    report, tensor = lint.examine(kernel, binary), trial.tensor_instructions(binary)
    document = {
        "name": config.name(kernel),
        "arch": target.name,
        "registers": facts.registers,
        "spill_bytes": facts.spill_bytes,
        "stack_bytes": facts.stack_bytes,
        "shared_bytes": facts.shared_bytes,
        "threads": facts.threads,
        "occupancy": facts.occupancy,
        "tensor_instructions": tensor,
        **report.as_json(),
        "compile_seconds": round(facts.compile_seconds, 3),
        "compiler": facts.compiler,
        "cached": binary.cached,
    }
    text = show.compiled(config.name(kernel), target.name, facts, tensor, report, cached=binary.cached)
    _answer(document, text, as_json)
    return 0


@app.command()
def inspect(
    texts: Annotated[list[str], typer.Argument(metavar="CONFIG…", help="Kernel names, key=value,… or TOML files.")],
    arch: ArchName = None,
    problem: Annotated[
        str | None, typer.Option("--problem", metavar="MxNxK", help="A small one [of few blocks, which all take].")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Count what some move and execute, beside the least."""
    from wmmagen import inspection, show

    target = _arch(arch)
    kernels = [_legal(text, target, strict_isa=False) for text in texts]
    size, batch = config.read_batch(problem) if problem is not None else (inspection.default_size(kernels), 1)
    inspection.demand(kernels, target, size, batch)
    found = [inspection.examine(kernel, target, size, batch) for kernel in kernels]
    document = {
        "arch": target.name,
        "problem": str(found[0].problem),
        "differing": inspection.differing(kernels),
        "kernels": [one.as_json(found[0]) for one in found],
        "remarks": inspection.remarks(found),
    }
    width = shutil.get_terminal_size().columns
    _answer(document, show.inspections(found, target.name, width), as_json)
    return 0


@app.command()
def validate(
    text: Config,
    arch: ArchName = None,
    problem: Size = None,
    backend: Runner = "auto",
    pattern: Annotated[str, typer.Option("--pattern", help="Which exact inputs: auto, field or positions.")] = "auto",
    alpha: Annotated[float | None, typer.Option("--alpha", help="The factor of A·B, for epilogue=linear.")] = None,
    beta: Annotated[float | None, typer.Option("--beta", help="The factor of C, for epilogue=linear.")] = None,
    scale: Annotated[float | None, typer.Option("--scale", help="The factor of epilogue=scale.")] = None,
    low: Annotated[float | None, typer.Option("--low", help="The lower bound of epilogue=clamp.")] = None,
    high: Annotated[float | None, typer.Option("--high", help="The upper bound of epilogue=clamp.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Compare with the full product, however large.")] = False,
    freivalds_above: Annotated[
        str | None,
        typer.Option("--freivalds-above", metavar="MxNxK", help="Above this size use Freivalds' check [2048]."),
    ] = None,
    strict_isa: StrictIsa = False,
    as_json: AsJson = False,
) -> int:
    """Run one on exact inputs, judge bit for bit."""
    from functools import partial

    from wmmagen import foundry, reference, show, trial

    _backend(backend, "none")
    target = _arch(arch)
    kernel = _legal(text, target, strict_isa)
    if full and freivalds_above is not None:
        raise RequestError("--full and --freivalds-above contradict each other", "give one of them")
    above = math.prod(config.read_size(freivalds_above)) if freivalds_above is not None else trial.FREIVALDS_ABOVE
    asked = _problem(kernel, problem)
    problems = _scaled(
        [asked] if asked else trial.validation_problems(kernel), alpha=alpha, beta=beta, scale=scale, low=low, high=high
    )
    for one in problems:
        rules.demand(kernel, target, one, strict_isa=strict_isa)
        reference.demand(one, pattern)
    place = pick.pick(backend, target, strict_isa=strict_isa)
    (_aside if as_json else _say)(place.first_line)
    with place:
        _, binary = trial.build(kernel, target, partial(foundry.compile_source, line_info=place.names_lines))
        runs = trial.validate(
            kernel, binary, place.demanded(), problems, pattern=pattern, above=None if full else above
        )
    exact = all(run.exact for run in runs)
    document = {
        "name": config.name(kernel),
        "arch": target.name,
        "backend": place.name,
        "device": place.device,
        "foreign": place.foreign,
        "exact": exact,
        "runs": [run.as_json() for run in runs],
    }
    right = "exact" if all(run.error is None for run in runs) else "within the proved bound"
    verdict = f"{config.name(kernel)}: {right if exact else 'WRONG'}"
    _answer(document, f"{verdict}\n{show.runs(runs)}", as_json)
    return 0 if exact else 1


@app.command()
def mutants(
    arch: Annotated[
        str | None, typer.Option("--arch", help="sm_75 … sm_121 [the GPU's where it has cp.async, else sm_80].")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="KIND", help="This kind; may be repeated.")
    ] = None,
    backend: Runner = "auto",
    as_json: AsJson = False,
) -> int:
    """Prove the validator: reject broken kernels."""
    from wmmagen import foundry, show
    from wmmagen import mutants as proof

    _backend(backend, "none")
    target = archs.find(arch) if arch is not None else max(pick.default_arch(), proof.DEFAULT, key=lambda a: a.sm)
    chosen = list(proof.cases(proof.chosen(only or ()), [target]))
    if not chosen:
        raise RequestError(f"none of {' '.join(only or ())} is made of a kernel for {target}", "--arch sm_80")
    place = pick.pick(backend, target)
    (_aside if as_json else _say)(place.first_line)
    with place:
        rows = proof.judge_all(
            chosen,
            place.demanded(),
            jobs=foundry.usable_cores(),
            told=lambda row: None if as_json else _say(show.mutant(row)),
        )
    counted = [row for row in rows if row.counted]
    document = {
        "arch": target.name,
        "backend": place.name,
        "device": place.device,
        "foreign": place.foreign,
        "total": len(counted),
        "killed": sum(row.killed for row in counted),
        "survivors": [str(row.case) for row in rows if row.survived],
        "rows": [row.as_json() for row in rows],
    }
    _answer(document, show.kill_rate(rows), as_json)
    return 1 if document["survivors"] else 0


#: Seconds of timing for each kernel; a list of many shapes, or a card that is lent, may want fewer.
Seconds = Annotated[
    float | None, typer.Option("--seconds", metavar="N", help="Seconds of timing for each kernel, at most [10].")
]
TimedMode = Annotated[str, typer.Option("--mode", help="warm: the same buffers; cold: rotated past the L2.")]
TimedData = Annotated[str, typer.Option("--data", help="normal or integers: what the data do to the clock.")]
WithCeiling = Annotated[
    bool, typer.Option("--ceiling/--no-ceiling", help="Whether WMMA's own ceiling is measured, too.")
]
WithFp32 = Annotated[bool, typer.Option("--fp32/--no-fp32", help="Whether cuBLAS in FP32 is timed, too.")]


def _protocol(mode: str, data: str, seconds: float | None) -> TimingProtocol:
    if seconds is not None and not seconds > 0:
        raise RequestError(f"--seconds {seconds:g} leaves no time", "give the seconds that a kernel may be timed")
    protocol = TimingProtocol(mode=_one_of("--mode", mode, Mode), data=_one_of("--data", data, Data))
    if seconds is None:
        return protocol
    # The warm-up is part of the time; half of it is left for samples.
    longest = min(protocol.warmup_max_s, seconds / 2)
    return replace(
        protocol, max_seconds=seconds, warmup_max_s=longest, warmup_min_s=min(protocol.warmup_min_s, longest)
    )


@app.command("accuracy")
def measure_accuracy(
    arch: ArchName = None,
    problem: Annotated[
        str | None, typer.Option("--problem", metavar="MxNxK", help="[2048 on a GPU, else a small one with K of 256].")
    ] = None,
    fix: Annotated[
        str, typer.Option("--fix", metavar="KEY=VALUE,…", help="Keys of every kernel; a, acc and d choose rows.")
    ] = "",
    backend: Runner = "auto",
    strict_isa: StrictIsa = False,
    as_json: AsJson = False,
) -> int:
    """Measure what each accumulator and each type of D costs."""
    from functools import partial

    from wmmagen import accuracy, foundry, show

    _backend(backend, "none")
    target, fixed = _arch(arch), config.read_pairs(fix)
    pairs, left_out = accuracy.kernels(fixed, target, strict_isa=strict_isa)
    asked = config.read_size(problem) if problem is not None else None
    if asked is not None:
        accuracy.demand(pairs, asked, target, strict_isa=strict_isa)
    place = pick.pick(backend, target, strict_isa=strict_isa)
    (_aside if as_json else _say)(place.first_line)
    with place:
        size = asked or accuracy.default_size(pairs, on_card=place.demanded().clocked)
        compiler = partial(foundry.compile_source, line_info=place.names_lines)
        report = accuracy.measure(pairs, size, target, place, left_out, compiler)
    document = {
        "arch": target.name,
        "backend": place.name,
        "device": place.device,
        "foreign": place.foreign,
        **report.as_json(),
    }
    _answer(document, show.accuracy(report, modelled=not place.demanded().clocked), as_json)
    return 0 if report.right else 1


@app.command()
def bench(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="CONFIG…", help="Kernel names, key=value,… or TOML files.")
    ] = None,
    arch: ArchName = None,
    problem: Annotated[
        str | None, typer.Option("--problem", metavar="MxNxK,…", help="One number is the cube [2048].")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="For each size also the best kernel that is known.")] = False,
    fix: Annotated[
        str, typer.Option("--fix", metavar="KEY=VALUE,…", help="The operation of --best, for example acc=f16.")
    ] = "",
    shapes: Annotated[
        str | None, typer.Option("--shapes", metavar="LIST", help="A list of sizes instead: decode, rows or batched.")
    ] = None,
    mode: TimedMode = "warm",
    data: TimedData = "normal",
    ceiling: WithCeiling = True,
    fp32: WithFp32 = True,
    padded: Annotated[
        bool, typer.Option("--padded", help="Kernels for multiples are called on padded copies of other sizes.")
    ] = False,
    seconds: Seconds = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Keep the --json document there.")] = None,
    backend: Timer = "auto",
    as_json: AsJson = False,
) -> int:
    """Time some beside cuBLAS, in turns."""
    from wmmagen import bench as benchmark
    from wmmagen import series, show

    _backend(backend, "cpu", "none")
    target, protocol = _arch(arch), _protocol(mode, data, seconds)
    if shapes is not None and problem is not None:
        raise RequestError("--shapes and --problem contradict each other", "give one of them")
    listed = series.listed(shapes) if shapes is not None else series.counted(config.read_batches(problem or "2048"))
    kernels = [_legal(text, target, strict_isa=False) for text in texts or ()]
    wants_best = best or (shapes is not None and not kernels)
    if not kernels and not wants_best:
        raise RequestError("bench takes a CONFIG, or --best", f"{_again()} --best")
    fixed = config.read_pairs(fix)
    if foreign := sorted(set(fixed) - set(config.OPERATION_KEYS)) or (["fix"] if fixed and not wants_best else []):
        raise RequestError(
            f"--fix {fix} is not the operation of --best: {' '.join(foreign)}",
            f"with --best, of these keys: {' '.join(config.OPERATION_KEYS)}",
        )
    if to is not None:
        _demand_writable(to)
    place = pick.pick(backend, target)
    benchmark.demand(place)
    (_aside if as_json else _say)(place.first_line)
    with place:
        operation = defaults.operation_of(fixed) if wants_best else None
        plans = series.plan(listed, kernels, target, operation, pick.chip(target, place.device), padded=padded)
        kinds = benchmark.kinds(fp32=fp32)
        tables = list[series.Measured]()

        def document() -> dict[str, Any]:
            head = {"arch": target.name, "backend": place.name, "device": place.device, "foreign": place.foreign}
            return {**head, **series.document(tables)}

        for one in plans:
            tables.append(series.measure(one, target, place, protocol, ceilings=ceiling, kinds=kinds))
            if to is not None and len(tables) < len(plans):
                _keep(
                    _part(to), document()
                )  # a series takes minutes: what ends it loses neither its sizes nor the file
            if len(plans) > 1 and not as_json:
                _say(show.series_progress(tables[-1]))
    if to is not None:
        _keep(to, document())
        _part(to).unlink(missing_ok=True)
    _answer(document(), show.series(tables, protocol, series.wins(tables)), as_json)
    return 0 if all(one.table.right for one in tables) else 1


def _demand_writable(file: Path) -> None:
    from wmmagen.emit import may_write

    # What is there and is no file, a folder or a device, cannot be replaced, or must not be.
    if not may_write(file.parent) or (os.path.lexists(file) and not file.is_file()):
        raise RequestError(f"{file} cannot be written", "choose another file")


def _part(file: Path) -> Path:
    """Where a document stands that is not whole."""
    return file.with_name(f"{file.name}.part")


def _keep(file: Path, document: dict[str, Any]) -> None:
    from wmmagen.emit import write

    write(file, json.dumps(document, indent=2) + "\n")


@app.command("ladder")
def measure_ladder(
    arch: ArchName = None,
    problem: Annotated[str, typer.Option("--problem", metavar="MxNxK", help="One number is the cube.")] = "2048",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="RUNG", help="This rung; may be repeated.")
    ] = None,
    mode: TimedMode = "warm",
    data: TimedData = "normal",
    ceiling: WithCeiling = True,
    fp32: WithFp32 = True,
    seconds: Seconds = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="The record's file [sweeps/ladders/…json].")
    ] = None,
    read: Annotated[
        Path | None, typer.Option("--read", metavar="FILE", help="Show this record instead, and measure nothing.")
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the ladder, too.")] = None,
    backend: Runner = "auto",
    as_json: AsJson = False,
) -> int:
    """Time the steps from a first kernel to the best."""
    from wmmagen import bench as benchmark
    from wmmagen import known, picture, show
    from wmmagen import ladder as rungs
    from wmmagen.emit import write

    _backend(backend, "none")
    for file in (to, svg):
        if file is not None:
            _demand_writable(file)
    if read is not None:
        if to is not None or only:
            raise RequestError("--read measures nothing, so there is nothing for --to and --only", "leave them out")
        record, kept = rungs.read(read), None
    else:
        target, protocol = _arch(arch), _protocol(mode, data, seconds)
        size = rungs.of_one(*config.read_batch(problem))
        benchmark.demand_product(size)
        with pick.pick(backend, target) as place:
            (_aside if as_json else _say)(place.first_line)
            chip = pick.chip(target, place.device)
            top = known.best(defaults.operation_of({}), target, size, chip)
            steps = rungs.chosen(rungs.climb(target, size, top.config, top.words), only or ())
            kept = to or rungs.file_of(target, size, str(place.device))
            _demand_writable(kept)
            if place.demanded().clocked:
                record = rungs.measure(
                    steps, target, size, place, protocol, above=ceiling, kinds=benchmark.kinds(fp32=fp32)
                )
            else:
                record = rungs.prove(steps, target, size, place, chip, told=lambda step: _aside(step.rung.name))
        write(kept, record.to_text())
    if svg is not None:
        write(svg, picture.svg(record))
    files = {"record": str(kept or read), "svg": str(svg) if svg else None}
    said = [show.ladder(record), "", f"Record: {files['record']}", *([f"Picture: {svg}"] if svg else [])]
    _answer({**record.document, **files}, "\n".join(said), as_json)
    return 0 if record.right else 1


@app.command("ceiling")
def measure_ceiling(
    arch: ArchName = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="KIND", help="register, shared or memory; all where it is left out.")
    ] = None,
    data: Annotated[str, typer.Option("--data", help="normal, integers or both: what the operands hold.")] = "both",
    types: Annotated[
        str, typer.Option("--types", metavar="TYPE,…", help="Operands of the products: f16 bf16 tf32 f64 s8 u8.")
    ] = "f16",
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="The record's file [sweeps/ceilings/<device>.json].")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Measure what WMMA and memory of this GPU can do."""
    from wmmagen import ceiling as measuring
    from wmmagen import ceilings, show
    from wmmagen.emit import may_write, write
    from wmmagen.foundry import Foundry, usable_cores

    kinds = get_args(ceilings.Kind) if only is None else (_one_of("--only", only, ceilings.Kind),)
    on = get_args(Data) if data == "both" else (_one_of("--data", data, Data, "both"),)
    operands = tuple(dict.fromkeys(config.read_value("a", word.strip()).name for word in types.split(",")))
    target = _arch(arch)
    with pick.pick("gpu", target) as place:
        (_aside if as_json else _say)(place.first_line)
        file = to or ceilings.FOLDER / ceilings.file_name(str(place.device))
        older = ceilings.read(file) if file.is_file() else None
        # What is there and is no file, a folder or a device, cannot be replaced, or must not be.
        if not may_write(file.parent) or (older is None and os.path.lexists(file)):
            raise RequestError(f"{file} cannot be written", "choose another file: --to FILE")
        with Foundry(usable_cores(), gives_way=True) as foundry:
            for order in measuring.orders(target, kinds, operands):
                foundry.begin(order)
            record = measuring.measure(
                target,
                place,
                kinds,
                on,
                measuring.PROTOCOL,
                foundry.compile,
                lambda figure: _aside(show.ceiling(figure)),
                operands,
            )
    write(file, record.over(older).to_text())
    _answer(record.as_json() | {"file": str(file)}, f"{show.ceilings(record)}\n\nRecord: {file}", as_json)
    return 0 if record.whole else 1


def _one_of(option: str, word: str, words: Any, *more: str) -> Any:
    """``word`` where it is one of the literal type ``words``; ``more`` are named beside them."""
    if word not in get_args(words):
        raise ConfigError(f"{option} {word!r} is not known", f"one of: {' '.join((*get_args(words), *more))}")
    return word


@app.command("estimate")
def show_estimate(
    texts: Annotated[list[str], typer.Argument(metavar="CONFIG…", help="Kernel names, key=value,… or TOML files.")],
    chip: Annotated[
        str | None,
        typer.Option("--chip", metavar="NAME", help="t4, a100, h200 …; the GPU's, or the usual one of --arch."),
    ] = None,
    arch: ArchName = None,
    problem: Annotated[str, typer.Option("--problem", metavar="MxNxK", help="One number is the cube.")] = "2048",
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Predict registers and spills, compile nothing.")
    ] = False,
    count: Annotated[
        bool, typer.Option("--count", help="Count what a block does in its PTX, instead of deriving it.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Estimate times without a GPU, with reasons."""
    from wmmagen import estimate, profile, show, trial

    if count and no_compile:
        raise RequestError("--count reads what was compiled, and --no-compile compiles nothing", "give one of them")
    model, target = _chip(chip, arch)
    # A kernel of an earlier architecture finds the room of the chip that it runs on.
    machine = max(target, archs.ARCHS[model.sm], key=lambda one: one.sm)
    rows = []
    for text in texts:
        kernel = _legal(text, target, strict_isa=False)
        asked = _asked(kernel.operation, problem)
        rules.demand(kernel, target, asked)
        footprint = work = None
        binary = None if no_compile else _binary(kernel, target, demanded=count)
        if binary is not None:
            footprint = estimate.compiled(trial.facts_of(kernel, machine, binary))
            work = profile.work_of(kernel, binary) if count else None
        made = estimate.estimate(kernel, machine, model, asked, footprint=footprint, counted=work)
        rows.append((config.name(kernel), made))
    rows.sort(key=lambda row: (row[1].us, row[0]))
    other = model if chip is None and model.sm != target.sm else None
    document = {
        "arch": target.name,
        "chip": model.name,
        "stand_in": other is not None,
        "problem": str(asked),
        "rows": [{"name": name, **made.as_json()} for name, made in rows],
    }
    said = [_stands_in(other, target)] if other is not None else []
    _answer(document, "\n".join([*said, show.estimates(rows, asked, target.name)]), as_json)
    return 0


def _chip(chip: str | None, arch: str | None) -> tuple[Chip, Arch]:
    """The chip that is meant, and what kernels for it are compiled for."""
    if chip is None:
        target = _arch(arch)
        return pick.chip(target), target
    model = chips.named(chip)
    target = _arch(arch) if arch is not None else archs.ARCHS[model.sm]
    if target.sm > model.sm:
        raise RequestError(
            f"--chip {chip}: {target} kernels do not run on it, it is of sm_{model.sm}",
            f"leave --arch out, or give a chip of {target} or later",
        )
    return model, target


def _stands_in(other: Chip, arch: Arch) -> str:
    """That estimates for ``arch`` are those of a chip of another one."""
    return f"No {arch} chip is in the table: {other.name} (sm_{other.sm}) stands for it."


def _binary(kernel: KernelConfig, target: Arch, *, demanded: bool) -> Binary | None:
    """The compiled kernel; None where there is no compiler here and none is demanded."""
    from wmmagen import trial

    try:
        return trial.build(kernel, target)[1]
    except MissingPiece:
        if demanded:
            raise
        return None


#: Of the draw of `space --list`, so that the same command prints the same names.
_LIST_SEED = 0
#: Names that are printed at a time.
_CHUNK = 1000
#: Names that are drawn at a time; more than these are better streamed.
_MOST_LISTED = 100_000


@app.command("space")
def show_space(
    arch: ArchName = None,
    fix: Annotated[str, typer.Option("--fix", metavar="KEY=VALUE,…", help="Keys that every variant shares.")] = "",
    problem: Size = None,
    strict_isa: StrictIsa = False,
    listed: Annotated[
        str | None, typer.Option("--list", metavar="N", help="Names instead: N drawn evenly, or all in order.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Say how many variants are legal, and why the others are not."""
    from wmmagen import show

    target, fixed, wanted = _arch(arch), config.read_pairs(fix), _wanted(listed, as_json)
    operation = defaults.operation_of(fixed)
    if problem is not None:
        size, batch = config.read_batch(problem)
        operation = defaults.operation_of(defaults.for_size(fixed, target, size, batch))
    asked = _asked(operation, problem) if problem is not None else None
    start = time.perf_counter()
    found = Space(operation, target, fixed, problem=asked, strict_isa=strict_isa)
    seconds = time.perf_counter() - start
    names = [config.name(c) for c in found.sample(random.Random(_LIST_SEED), wanted)] if wanted else []
    document = show.space_document(found, seconds) | ({"names": names} if listed is not None else {})
    try:
        found.demand()
    except WmmagenError as error:
        _answer(document | _error(error.kind, error.message, error.fix), show.space(found, seconds), as_json)
        if not as_json:
            _report(error.kind, error.message, error.fix, as_json)
        return error.exit_status
    if listed is None or as_json:
        _answer(document, show.space(found, seconds), as_json)
    elif wanted is None:
        _stream(config.name(c) for c in found.configs())
    else:
        _stream(names)
    return 0


def _wanted(listed: str | None, as_json: bool) -> int | None:
    """How many names ``--list`` asks for; 0 where it is left out, None for all."""
    if listed == "all":
        if as_json:
            raise RequestError("--list all can be millions of names, too many for one document", "leave out --json")
        return None
    if listed is None:
        return 0
    # Digits are counted first: what has thousands of them Python does not read.
    if not re.fullmatch(r"[0-9]{1,9}", listed) or not 1 <= int(listed) <= _MOST_LISTED:
        raise RequestError(
            f"--list {listed} is neither a whole number from 1 to {_MOST_LISTED} nor all", "for example --list 10"
        )
    return int(listed)


def _stream(names: Iterable[str]) -> None:
    """Print ``names``, a line each, as they are made."""
    rest = iter(names)
    while chunk := list(itertools.islice(rest, _CHUNK)):
        _say("\n".join(chunk))


#: More processes than any machine has cores are a slip of the keyboard, and take all of its memory.
_MOST_JOBS = 1024


@app.command()
def sweep(
    arch: ArchName = None,
    problem: Annotated[str, typer.Option("--problem", metavar="MxNxK", help="What is timed.")] = "2048",
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Candidates in all, those of earlier runs included [40].")
    ] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Every legal variant.")] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Begin no candidate after this, and end a compilation under way; without --trials, as many as fit.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, max=_MOST_JOBS, help="Processes that compile [one on each core].")
    ] = None,
    fix: Annotated[str, typer.Option("--fix", metavar="KEY=VALUE,…", help="Keys that every candidate shares.")] = "",
    backend: BackendKind = "auto",
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help="The study's file or storage URL [sweeps/<study>.db]."),
    ] = None,
    study: Annotated[
        str | None, typer.Option("--study", help="The study's name [architecture, operation, size].")
    ] = None,
    generated: Annotated[Path, typer.Option("--generated", help="The winner goes below this folder.")] = Path(
        "generated"
    ),
    as_json: AsJson = False,
) -> int:
    """Find the fastest right variant."""
    from wmmagen import job, show

    target = _arch(arch)
    if trials is not None and exhaustive:
        raise RequestError("--trials and --exhaustive contradict each other", "give one of them")
    if budget is not None and not budget > 0:
        raise RequestError(f"--budget {budget:g} leaves no time", "give the seconds that a sweep may take")
    fixed = config.read_pairs(fix)
    size, batch = config.read_batch(problem)
    suited = defaults.for_size(fixed, target, size, batch)
    request = job.Request(
        operation=defaults.operation_of(suited),
        arch=target,
        size=size,
        batch=batch,
        fixed=fixed,
        trials=None if exhaustive or (trials is None and budget is not None) else trials or job.DEFAULT_TRIALS,
        exhaustive=exhaustive,
        budget_s=budget,
        jobs=jobs,
        storage=storage,
        study=study,
        generated=generated,
    )
    job.check_name(request)
    with pick.pick(backend, target) as place:
        (_aside if as_json else _say)(pick.sweeping(place))
        if place.stand_in is not None:
            (_aside if as_json else _say)(_stands_in(place.stand_in, target))
        if chosen := {key: value for key, value in suited.items() if key not in fixed}:
            _aside(show.suited(chosen, request.problem))
        _aside(f"study {request.study_name}, problem {request.problem}")
        with show.LiveLine(request.problem, None if request.counted else request.budget_s) as live:
            result = job.sweep(request, place, live)
    _answer(result.as_json(), show.sweep_result(result, _again()), as_json)
    return result.exit_status


def _again() -> str:
    """The command line as it was typed."""
    return shlex.join(["wmmagen", *_typed])


@app.command()
def emit(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder; made where it is missing.")],
    text: Annotated[str | None, typer.Argument(metavar="CONFIG", help="As for render; or --best.")] = None,
    best: Annotated[
        str | None, typer.Option("--best", metavar="STUDY", help="The winner of this study: name, file or URL.")
    ] = None,
    arch: ArchName = None,
    symbol: Symbol = None,
    padded: Annotated[
        bool, typer.Option("--padded", help="Also what calls it with any size, on padded copies of the operands.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of other content.")] = False,
    with_defects: Annotated[
        bool, typer.Option("--with-defects", help="Also a kernel whose machine code the lint finds defects in.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Write the files for another project."""
    from wmmagen import emit as emission
    from wmmagen import gate, job, show

    if (text is None) == (best is None):
        raise RequestError("emit takes a CONFIG or --best STUDY, one of them", "wmmagen emit --best STUDY --to DIR")
    evidence = None
    if best is not None:
        kernel, of_study, evidence = job.best_of(best)
        target = _arch(arch) if arch is not None else of_study
        defaults.demand(kernel, target)
        if target != of_study:
            evidence = None
            _aside(
                f"wmmagen: the kernel won as one for {of_study}; what was proved and timed there says nothing of "
                f"{target}, and is left out"
            )
    else:
        target = _arch(arch)
        kernel = _legal(str(text), target, strict_isa=False)
    texts = emission.prepared(kernel, target, to, symbol=symbol, evidence=evidence, padded=padded, overwrite=overwrite)
    report = gate.look(kernel, target)
    if not with_defects:
        gate.demand(kernel, report)
    files = emission.write_all(texts)
    selftest = emission.selftest_command(files, target)
    document = {
        "name": config.name(kernel),
        "arch": target.name,
        "files": [str(f) for f in files],
        "selftest": selftest,
        **report.verdict(),
    }
    told = [*map(str, files), *show.lint(report), "The self-test, on a machine with such a card:", f"  {selftest}"]
    _answer(document, "\n".join(told), as_json)
    return 0


def _legal(text: str, arch: Arch, strict_isa: bool) -> KernelConfig:
    kernel = defaults.read_config(text, arch, strict_isa=strict_isa)
    try:
        defaults.demand(kernel, arch, strict_isa=strict_isa)
    except IllegalConfig as error:
        words = "\n".join(filter(None, (error.message, _later(kernel, arch, strict_isa))))
        raise IllegalConfig(words, error.fix, error.violations) from None
    return kernel


def _later(kernel: KernelConfig, arch: Arch, strict_isa: bool, problem: Problem | None = None) -> str:
    """The offer of the first architecture that takes ``kernel`` as it is, where nobody asked for this ``arch``."""
    if any(word.partition("=")[0] == "--arch" for word in _typed):
        return ""
    if all(found.rule.scope is not rules.Scope.ARCH for found in rules.check(kernel, arch, problem)):
        return ""
    takes = (
        one
        for one in archs.ARCHS.values()
        if one.sm > arch.sm and not rules.check(kernel, one, problem, strict_isa=strict_isa)
    )
    first = next(takes, None)
    return f"or, because {arch} is only the default here, legal as it is with --arch {first}" if first else ""


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.", is_eager=True)] = False,
) -> None:
    if version:
        _say(f"wmmagen {__version__}")
        raise typer.Exit


def _error(kind: str, message: str, fix: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "fix": fix}}


def _report(kind: str, message: str, fix: str, as_json: bool) -> None:
    if as_json:
        _say(json.dumps(_error(kind, message, fix), indent=2))
    else:
        _aside(f"wmmagen: {message}" + (f"\n  {fix}" if fix and fix not in message else ""))


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line and return its exit status."""
    _typed[:] = arguments
    try:
        return _carried_out(arguments, any(word.partition("=")[0] == "--json" for word in arguments))
    except _ReaderGone:
        # What is still buffered must not be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MissingPiece as error:
        # Standard output itself is broken; the error can be told beside it only.
        _report(error.kind, error.message, error.fix, as_json=False)
        return error.exit_status
    except KeyboardInterrupt:
        return _interrupted()


def _usage(text: str) -> str:
    """What to do about a command line that typer refuses with ``text``."""
    known = {one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands}
    if _command() not in known:
        return "wmmagen --help"
    missing = re.fullmatch(r"Missing option '(--[a-z-]+)'\.?", text.strip())
    help = f"wmmagen {_command()} --help"
    return f"{_again()} {missing[1]} DIR, or {help}" if missing and missing[1] == "--to" else help


@functools.cache
def _commands() -> Callable[..., Any]:
    """What parses a command line, made once for all that one process carries out."""
    return typer.main.get_command(app)


def _carried_out(arguments: Sequence[str], as_json: bool) -> int:
    try:
        status = _commands()(list(arguments), standalone_mode=False)
    except WmmagenError as error:
        _report(error.kind, error.message, error.fix, as_json)
        return error.exit_status
    except typer.TyperException as error:
        text = error.format_message()
        if text.startswith("Usage:") and not as_json:
            _aside(text)  # nothing was asked for: the help is the answer
        else:
            _report("usage", text, _usage(text), as_json)
        return error.exit_code
    except MemoryError:
        _report("missing", "this needs more memory than there is", "a smaller --problem", as_json)
        return MissingPiece.exit_status
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:  # typer itself may have turned the interrupt into its status
        if as_json:
            _report("interrupted", _kept()[0], _again(), as_json)
        return _interrupted()
    return status if isinstance(status, int) else 0


#: What an interrupt leaves of a command's work, and what the same command does then.
_KEPT = {
    "sweep": ("everything finished is kept", "goes on"),
    "emit": ("files that were written are kept", "writes the others"),
    "bench": ("with --to FILE, sizes that were measured are in FILE.part", "begins anew"),
}


def _kept() -> tuple[str, str]:
    return _KEPT.get(_command(), ("no result is kept", "begins anew"))


def _command() -> str:
    """The command that was typed; empty where none was."""
    return _typed[0] if _typed else ""


def _interrupted() -> int:
    what, then = _kept()
    _aside(f"interrupted; {what}. The same command {then}:\n  {_again()}")
    return INTERRUPTED


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


#: Seconds until a dropped end comes again.
_AGAIN_S = 0.02


def _lost(lost: sys.UnraisableHookArgs) -> None:
    """An end that came while an object was torn down, where Python drops every exception, comes once more.

    SQLAlchemy, for one, returns connections to their pool in such a place.
    """
    error = lost.exc_value
    if isinstance(error, KeyboardInterrupt):
        number = signal.SIGINT
    elif isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
        number = signal.Signals(error.code - 128)
    else:
        sys.__unraisablehook__(lost)
        return
    # A little later, because here it would be dropped again.
    again = threading.Timer(_AGAIN_S, _thread.interrupt_main, (number,))
    again.daemon = True
    again.start()


def main() -> None:
    """The console script."""
    sys.unraisablehook = _lost
    # Told to end, it ends its processes and removes their folders first; told to ignore that, as by nohup, it does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminated)
    # A character that the terminal's encoding lacks, or a byte of a path that is none, is spelt out.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
