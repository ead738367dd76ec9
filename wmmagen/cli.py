"""The command line: parse, call, print. The contract of statuses and ``--json`` is in the README.

The only importer of typer.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wmmagen import __version__, config, coverage, defaults, rules
from wmmagen import arch as archs
from wmmagen.arch import Arch
from wmmagen.backends import pick
from wmmagen.config import KernelConfig, Problem
from wmmagen.errors import RequestError, WmmagenError

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
BackendKind = Annotated[str, typer.Option("--backend", help="auto, gpu or cpu.")]


def _arch(text: str | None) -> Arch:
    return archs.find(text) if text is not None else pick.default_arch()


def _problem(kernel: KernelConfig, size: str | None) -> Problem | None:
    return Problem.packed(kernel.operation, *config.read_size(size)) if size is not None else None


class _ReaderGone(Exception):
    """Whoever read standard output has gone. Not an OSError, which typer would turn into a status of its own."""


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except _ReaderGone:
        raise _ReaderGone from None


def _answer(document: dict[str, Any], text: str, as_json: bool) -> None:
    _say(json.dumps(document, indent=2) if as_json else text)


def _aside(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@app.command()
def doctor(as_json: AsJson = False) -> int:
    """Say what is here, what is missing, and the command that brings it."""
    from wmmagen import doctor as examination
    from wmmagen import show

    found = examination.examine()
    healthy = examination.ok(found)
    _answer({"ok": healthy, "findings": [f.as_json() for f in found]}, show.findings(found), as_json)
    return 0 if healthy else 3


@app.command("rules")
def show_rules(
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown document.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show the rules, with reasons and sources."""
    from wmmagen import documents, show

    listed = [
        {
            "id": r.id,
            "rule": r.name,
            "scope": r.scope.value,
            "when": r.when.text if r.when else "",
            "expression": r.expr.text,
            "says": r.says,
            "reason": r.reason,
            "fix": r.fix,
            "source": r.source,
        }
        for r in rules.RULES
    ]
    text = documents.rules_markdown() if markdown else show.rule_table(rules.RULES)
    _answer({"rules": listed}, text.rstrip("\n"), as_json)
    return 0


@app.command()
def check(
    text: Config, arch: ArchName = None, problem: Size = None, strict_isa: StrictIsa = False, as_json: AsJson = False
) -> int:
    """Say whether a configuration is legal, or every rule that it breaks."""
    from wmmagen import show

    target = _arch(arch)
    kernel = defaults.read_config(text, target, strict_isa=strict_isa)
    found = rules.check(kernel, target, _problem(kernel, problem), strict_isa=strict_isa)
    document = {
        "name": config.name(kernel),
        "arch": target.name,
        "legal": not found,
        "violations": [v.as_json() for v in found],
    }
    if not found:
        coverage.demand(kernel)
    _answer(document, show.violations(found) if found else f"{config.name(kernel)} is legal on {target}", as_json)
    return 2 if found else 0


@app.command("render")
def render_source(text: Config, arch: ArchName = None, strict_isa: StrictIsa = False, as_json: AsJson = False) -> int:
    """Print the .cu of a configuration."""
    from wmmagen.render import render

    target = _arch(arch)
    kernel = _legal(text, target, strict_isa)
    source = render(kernel, target, strict_isa=strict_isa)
    _answer({"name": config.name(kernel), "arch": target.name, "source": source.text}, source.text[:-1], as_json)
    return 0


@app.command("compile")
def compile_kernel(text: Config, arch: ArchName = None, strict_isa: StrictIsa = False, as_json: AsJson = False) -> int:
    """Compile a configuration and print what the compiler says."""
    from wmmagen import show, trial

    target = _arch(arch)
    kernel = _legal(text, target, strict_isa)
    _, binary = trial.build(kernel, target)
    facts = trial.facts_of(kernel, target, binary)
    lint, tensor = trial.lint(facts), trial.tensor_instructions(binary)
    document = {
        "name": config.name(kernel),
        "arch": target.name,
        "registers": facts.registers,
        "spill_bytes": facts.spill_bytes,
        "shared_bytes": facts.shared_bytes,
        "threads": facts.threads,
        "occupancy": facts.occupancy,
        "tensor_instructions": tensor,
        "lint": lint,
        "compile_seconds": round(facts.compile_seconds, 3),
        "compiler": facts.compiler,
    }
    _answer(document, show.compiled(config.name(kernel), target.name, facts, tensor, lint), as_json)
    return 0


@app.command()
def validate(
    text: Config,
    arch: ArchName = None,
    problem: Size = None,
    backend: BackendKind = "auto",
    pattern: Annotated[str, typer.Option("--pattern", help="Which exact inputs: auto or field.")] = "auto",
    as_json: AsJson = False,
) -> int:
    """Run a configuration on exact inputs and judge its result bit for bit."""
    from wmmagen import show, trial

    target = _arch(arch)
    kernel = _legal(text, target, strict_isa=False)
    asked = _problem(kernel, problem)
    if asked is not None:
        rules.demand(kernel, target, asked)
    place = pick.pick(backend, target)
    (_aside if as_json else _say)(place.first_line)
    with place:
        _, binary = trial.build(kernel, target)
        runs = trial.validate(
            kernel, binary, place.demanded(), [asked] if asked else trial.validation_problems(kernel), pattern=pattern
        )
    exact = all(run.exact for run in runs)
    document = {
        "name": config.name(kernel),
        "arch": target.name,
        "backend": place.name,
        "exact": exact,
        "runs": [run.as_json() for run in runs],
    }
    verdict = f"{config.name(kernel)}: {'exact' if exact else 'WRONG'}"
    _answer(document, f"{verdict}\n{show.runs(runs)}", as_json)
    return 0 if exact else 1


@app.command()
def sweep(
    arch: ArchName = None,
    problem: Annotated[str, typer.Option("--problem", metavar="MxNxK", help="What is timed.")] = "2048",
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Candidates in all, those of earlier runs included [40].")
    ] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Every legal variant.")] = False,
    budget: Annotated[
        float | None, typer.Option("--budget", min=0.0, metavar="SECONDS", help="Begin no candidate after this.")
    ] = None,
    fix: Annotated[str, typer.Option("--fix", metavar="KEY=VALUE,…", help="Keys that every candidate shares.")] = "",
    backend: BackendKind = "auto",
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help="The study's file or storage URL [sweeps/<study>.db]."),
    ] = None,
    study: Annotated[str | None, typer.Option("--study", help="The study's name [architecture, types, size].")] = None,
    generated: Annotated[Path, typer.Option("--generated", help="The winner goes below this folder.")] = Path(
        "generated"
    ),
    as_json: AsJson = False,
) -> int:
    """Search the legal variants: compile, validate and time them, and write the winner's file."""
    from wmmagen import job, show

    target = _arch(arch)
    if trials is not None and exhaustive:
        raise RequestError("--trials and --exhaustive contradict each other", "give one of them")
    fixed = config.read_pairs(fix)
    kernel = _completed(fixed, target)
    request = job.Request(
        operation=kernel.operation,
        arch=target,
        size=config.read_size(problem),
        fixed=fixed,
        trials=None if exhaustive or (trials is None and budget is not None) else trials or job.DEFAULT_TRIALS,
        exhaustive=exhaustive,
        budget_s=budget,
        storage=storage,
        study=study,
        generated=generated,
    )
    with pick.pick(backend, target) as place:
        (_aside if as_json else _say)(place.first_line)
        _aside(f"study {request.study_name}, problem {request.problem}")
        try:
            with show.LiveLine(request.problem) as live:
                result = job.sweep(request, place, live)
        except KeyboardInterrupt:
            again = shlex.join(["wmmagen", *sys.argv[1:]])
            _aside(f"interrupted; everything finished is kept. Go on with:\n  {again}")
            return 130
    _answer(result.as_json(), show.sweep_result(result), as_json)
    return result.exit_status


@app.command()
def emit(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder; made where it is missing.")],
    text: Annotated[str | None, typer.Argument(metavar="CONFIG", help="As for render; or --best.")] = None,
    best: Annotated[
        str | None, typer.Option("--best", metavar="STUDY", help="The winner of this study: name, file or URL.")
    ] = None,
    arch: ArchName = None,
    symbol: Annotated[str | None, typer.Option("--symbol", help="The exported function [the kernel's name].")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of other content.")] = False,
    as_json: AsJson = False,
) -> int:
    """Write a kernel's .cu and its header for another project."""
    from wmmagen import emit as emission
    from wmmagen import job

    if (text is None) == (best is None):
        raise RequestError("emit takes a CONFIG or --best STUDY, one of them", "wmmagen emit --best STUDY --to DIR")
    if best is not None:
        kernel, of_study = job.best_of(best)
        target = _arch(arch) if arch is not None else of_study
        defaults.demand(kernel, target)
    else:
        target = _arch(arch)
        kernel = _legal(str(text), target, strict_isa=False)
    files = emission.emit(kernel, target, to, symbol=symbol, overwrite=overwrite)
    document = {"name": config.name(kernel), "arch": target.name, "files": [str(f) for f in files]}
    _answer(document, "\n".join(str(f) for f in files), as_json)
    return 0


def _legal(text: str, arch: Arch, strict_isa: bool) -> KernelConfig:
    kernel = defaults.read_config(text, arch, strict_isa=strict_isa)
    defaults.demand(kernel, arch, strict_isa=strict_isa)
    return kernel


def _completed(fixed: dict[str, Any], arch: Arch) -> KernelConfig:
    """A legal configuration with the fixed keys: proof that the sweep has at least something to begin with."""
    kernel = defaults.complete(fixed, arch)
    defaults.demand(kernel, arch)
    return kernel


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"wmmagen {__version__}")
        raise typer.Exit


def _report(kind: str, message: str, fix: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": {"kind": kind, "message": message, "fix": fix}}, indent=2))
    else:
        _aside(f"wmmagen: {message}" + (f"\n  {fix}" if fix else ""))


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line and return its exit status."""
    as_json = "--json" in arguments
    try:
        status = app(list(arguments), standalone_mode=False)
    except WmmagenError as error:
        _report(error.kind, error.message, error.fix, as_json)
        return error.exit_status
    except typer.TyperException as error:
        _report("usage", error.format_message(), "wmmagen --help, or --help behind a command", as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _aside("interrupted")
        return 130
    except _ReaderGone:
        # The reader has gone; what is still buffered must not be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
