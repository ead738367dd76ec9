"""The compiler's side of the rules: the assertions of a generated file say what Python says, with the same ids."""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases_expr import environment, truth
from cases_legality import BREAKS, Break, broken_ids, config, sample

from wmmagen import coverage, nvrtc, render
from wmmagen.arch import ARCHS, Arch
from wmmagen.config import KernelConfig
from wmmagen.errors import CompileError
from wmmagen.expr import Expr, parse

pytestmark = pytest.mark.usefixtures("text_only_matters")

ENTRY = "probe"
KERNEL = f'\nextern "C" __global__ void {ENTRY}() {{}}\n'
#: The compiler gives up after 100 errors, so a unit holds no more configurations than can say all they have to say.
ERRORS_AT_ONCE = 90


@functools.cache
def log_of(source: str, arch: Arch, entry: str = ENTRY, precompiled: Path | None = None) -> str:
    """What the compiler says; a source that it takes must have given it nothing to say."""
    try:
        binary = nvrtc.compile_source(source, entry, arch, precompiled=precompiled)
    except CompileError as refusal:
        return refusal.log or "refused without a word"
    assert "error" not in binary.log and "warning" not in binary.log
    return ""


def asserted(log: str) -> set[str]:
    return set(re.findall(r'static assertion failed with "([A-Z][0-9]{3}) ', log))


def unit(configs: list[KernelConfig], arch: Arch, strict: bool) -> str:
    """One translation unit with the guards of each configuration in a file name and a namespace of its own."""
    parts = [
        f'#line 1 "config{i}"\nnamespace config{i} {{\n{render.render_guards(c, arch, strict_isa=strict)}\n}}\n'
        for i, c in enumerate(configs)
    ]
    return "".join(parts) + KERNEL


def groups(configs: list[KernelConfig], wanted: list[set[str]]) -> Iterator[list[KernelConfig]]:
    """The configurations in their order, as many at a time as one unit can hold if the compiler says what is wanted.

    If it says more, its last errors are cut off, and what is found is not what is wanted either.
    """
    group: list[KernelConfig] = []
    errors = 0
    for case, ids in zip(configs, wanted, strict=True):
        if errors + len(ids) > ERRORS_AT_ONCE:
            yield group
            group, errors = [], 0
        group.append(case)
        errors += len(ids)
    yield group


def verdicts(log: str, count: int) -> list[set[str]]:
    found: list[set[str]] = [set() for _ in range(count)]
    for number, id in re.findall(r'config(\d+)\(\d+\): error: static assertion failed with "([A-Z][0-9]{3}) ', log):
        found[int(number)].add(id)
    assert sum(map(len, found)) == len(re.findall(r"\): error", log)), f"errors that no rule speaks of:\n{log}"
    return found


def said(configs: list[KernelConfig], arch: Arch, strict: bool) -> list[set[str]]:
    """For each of ``configs``, the ids of those of its assertions that fail."""
    return verdicts(log_of(unit(configs, arch, strict), arch), len(configs))


@functools.cache
def guards_say(which: str) -> dict[str, set[str]]:
    """For each case of a rule, the ids of the assertions that fail among the guards of one of its configurations.

    Those for one architecture are compiled together, each in a file name and a namespace of its own.

    Args:
        which: ``breaks`` or ``keeps``.
    """
    alike: dict[tuple[Arch, bool], list[str]] = {}
    for id, case in BREAKS.items():
        alike.setdefault((case.where if which == "breaks" else case.where_kept, case.strict), []).append(id)
    found: dict[str, set[str]] = {}
    for (arch, strict), ids in alike.items():
        configs = [config(getattr(BREAKS[id], which)) for id in ids]
        wanted = [{id, *BREAKS[id].beside} if which == "breaks" else set() for id in ids]
        told = itertools.chain.from_iterable(said(group, arch, strict) for group in groups(configs, wanted))
        found.update(zip(ids, told, strict=True))
    return found


@pytest.mark.parametrize("id", BREAKS)
def test_the_guards_refuse_with_the_same_id(id: str) -> None:
    assert guards_say("breaks")[id] == {id, *BREAKS[id].beside}


@pytest.mark.parametrize("id", BREAKS)
def test_the_guards_of_the_neighbour_compile(id: str) -> None:
    assert guards_say("keeps")[id] == set()


def made(pairs: str) -> bool:
    return not coverage.missing(config(pairs))


def whole_file(case: Break, pairs: str, arch: Arch, headers: Path) -> str:
    source = render.render(config(pairs), arch, strict_isa=case.strict)
    return log_of(source.text, arch, source.kernel, headers)


@pytest.mark.parametrize("id", [id for id, case in BREAKS.items() if made(case.breaks)])
def test_the_whole_file_refuses_with_the_same_id(id: str, precompiled_headers: Path) -> None:
    case = BREAKS[id]
    found = asserted(whole_file(case, case.breaks, case.where, precompiled_headers))
    assert found == {id, *case.beside}


@pytest.mark.parametrize("id", [id for id, case in BREAKS.items() if made(case.keeps)])
def test_the_whole_file_of_the_neighbour_compiles(id: str, precompiled_headers: Path) -> None:
    case = BREAKS[id]
    assert whole_file(case, case.keeps, case.where_kept, precompiled_headers) == ""


def test_most_rules_are_met_in_whole_files() -> None:
    assert sum(made(case.breaks) for case in BREAKS.values()) >= 18


def test_a_number_changed_by_hand_is_refused() -> None:
    source = render.render(config(""), ARCHS[80])
    changed = source.text.replace("constexpr int PAD_A = 8;", "constexpr int PAD_A = 4;")
    assert changed != source.text
    assert asserted(log_of(changed, ARCHS[80], source.kernel)) == {"L201"}


def test_a_file_for_a_roomy_architecture_is_refused_for_a_narrow_one_by_its_instructions() -> None:
    source = render.render(config("copy=cpasync"), ARCHS[80])
    assert "C501" in asserted(log_of(source.text, ARCHS[75], source.kernel))


# Any configuration.


@pytest.mark.parametrize("sm", [75, 80, 86, 90, 120])
@pytest.mark.parametrize("strict", [False, True])
def test_python_and_the_compiler_agree(sm: int, strict: bool) -> None:
    configs = sample(300, seed=sm)
    arch = ARCHS[sm]
    wanted = [set(broken_ids(c, arch, strict_isa=strict)) for c in configs]
    found = []
    for group in groups(configs, wanted):
        found += said(group, arch, strict)
    assert found == wanted
    assert set() in wanted and len(set().union(*wanted)) > 25


@pytest.mark.parametrize(
    "pairs", ["frags=16x16,warps=64x64,k_steps=64,stages=64,copy=cpasync", "pad_a=1024,pad_b=1023"]
)
def test_the_extremes_are_refused_by_both(pairs: str) -> None:
    case = config(pairs)
    assert broken_ids(case, ARCHS[80])
    assert log_of(unit([case], ARCHS[80], False), ARCHS[80])


# Expressions.


def test_expressions_mean_the_same_to_the_compiler() -> None:
    draw = random.Random(20)
    lines = []
    for i in range(400):
        text = truth(draw, 5)
        values = environment(draw)
        flags = {name: value for name, value in values.items() if name.islower()}
        expr = parse(text).fold(flags)
        if not isinstance(expr, Expr):
            continue
        numbers = "".join(f"constexpr int {name} = {values[name]}; " for name in expr.names)
        wanted = str(bool(expr(values))).lower()
        claim = f"({expr.cpp()}) == {wanted} && ({expr.negated().cpp()}) != {wanted}"
        lines.append(f'namespace e{i} {{ {numbers}static_assert({claim}, "{i}"); }}')
    assert len(lines) > 150
    assert log_of("\n".join(lines) + KERNEL, ARCHS[80]) == ""
