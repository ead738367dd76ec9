"""What is handed over is looked at first: the lint of its machine code, before files are written, beside a winner."""

from __future__ import annotations

from wmmagen import foundry, lint, trial
from wmmagen.arch import Arch
from wmmagen.config import KernelConfig, name
from wmmagen.errors import LintError, MissingPiece
from wmmagen.foundry import Compiler
from wmmagen.lint import Report

#: What asks for a kernel whose machine code has defects.
ANYWAY = "--with-defects"


def look(config: KernelConfig, arch: Arch, compiler: Compiler = foundry.compile_source) -> Report:
    """The lint of the kernel of ``config``, compiled for ``arch`` under its own name; another symbol is no other code.

    Where there is no compiler for ``arch``, or no nvdisasm, the report says so, as :func:`wmmagen.lint.examine` does.

    Raises:
        NotGeneratedYet: no template makes ``config``.
        CompileError: the compiler refuses the source.
    """
    try:
        _, binary = trial.build(config, arch, compiler)
    except MissingPiece as error:
        return lint.not_done(error)
    return lint.examine(config, binary)


def demand(config: KernelConfig, report: Report) -> None:
    """Return where the lint found no defect, or could not look.

    Raises:
        LintError: it found some; the message holds every sentence.
    """
    if report.defects:
        sentences = "".join(f"\n  {defect}" for defect in report.defects)
        raise LintError(
            f"the machine code of {name(config)} has defects, so nothing was written:{sentences}",
            f"choose another kernel, or say {ANYWAY} to have it as it is",
        )
