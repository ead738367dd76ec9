"""The committed kernels are what the templates give now, compile, and show every mechanism that there is."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import pytest

from tests import shipped
from wmmagen import coverage, epilogue, loops, rules
from wmmagen.config import CONFIG_KEYS, KernelConfig, Order, spell, values_of
from wmmagen.render import render

CONFIGS = tuple(map(shipped.config_of, shipped.NAMES))
each = pytest.mark.parametrize("name", shipped.NAMES, ids=lambda name: name.replace("wmma_gemm_", ""))


def shown(key: str, case: KernelConfig) -> Iterator[str]:
    """The values of ``key`` that a kernel shows: of a chain each step, of an order of blocks its kind."""
    o = case.operation
    if key == "epilogue":
        yield from (step.word for step in o.epilogue.steps)
        yield from ("none",) * (not o.epilogue.steps)
    elif key == "c":
        yield from (o.added.name,) * bool(o.epilogue.matrices or set(epilogue.BIASES) & set(o.epilogue.vectors))
    elif key == "raster":
        yield case.raster.order
    else:
        yield spell(values_of(case)[key])


def known(key: str) -> set[str] | None:
    """All values that are made today, where they can be counted."""
    made = loops.made(coverage.GENERATED["a"])
    listed = {
        "epilogue": {"none", *epilogue.STEPS, epilogue.EXPR},
        "inst": {one.shape for one in made},
        "raster": set(map(str, Order)),
        **{key: set(types) for key, types in coverage.GENERATED.items()},
    }
    kind = type(values_of(CONFIGS[0]).get(key))
    return set(map(str, kind)) if issubclass(kind, StrEnum) else listed.get(key)


@pytest.mark.parametrize("key", CONFIG_KEYS)
def test_every_value_of_a_key_is_shown(key: str) -> None:
    """A mechanism that is new has its kernel here: all words of a key, of counts two at least."""
    found = {value for case in CONFIGS for value in shown(key, case)}
    wanted = known(key)
    assert found == wanted if wanted is not None else len(found) > 1, sorted((wanted or set()) - found)


def test_every_pair_of_operands_and_sums_is_shown() -> None:
    made = {(one.a, one.acc) for one in loops.made(coverage.GENERATED["a"])}
    assert {(case.operation.a, case.operation.acc) for case in CONFIGS} == made
    assert {shipped.arch_of(name).name for name in shipped.NAMES} >= {"sm_75", "sm_80", "sm_90"}


def test_the_table_in_the_readme_is_of_these() -> None:
    assert shipped.table() in shipped.README.read_text(encoding="utf-8"), "make generated"


@each
def test_they_do_not_drift(name: str) -> None:
    case, target = shipped.config_of(name), shipped.arch_of(name)
    assert rules.check(case, target) == []
    assert render(case, target).text == shipped.file_of(name).read_text(encoding="utf-8"), "make generated"


@each
@pytest.mark.usefixtures("compiled_once")
def test_they_compile_without_a_warning(name: str) -> None:
    case, target = shipped.config_of(name), shipped.arch_of(name)
    binary = shipped.own(shipped.rendered(shipped.made_for(target.sm), target.sm), render(case, target).kernel)
    assert "warning" not in binary.log
    assert binary.spill_bytes == 0
