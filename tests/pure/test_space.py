"""The legal search space: exactly what the rules leave, however it is fixed."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter

import numpy as np
import pytest
from cases_space import columns_of, random_points, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

from wmmagen import arch, coverage, derive, rules, seeds
from wmmagen import dtypes as t
from wmmagen.arch import ARCHS
from wmmagen.config import LINEAR, Copy, Feed, Grid, Layout, Operation, Problem, Shape, name, read_pairs
from wmmagen.errors import ConfigError, NotGeneratedYet, RequestError
from wmmagen.space import Space, _legal, config_of, point_of

F32 = Operation(t.F16, t.F32, t.F32)
F16 = Operation(t.F16, t.F16, t.F16)
SMS = (75, 80, 86, 89, 90, 120)


@functools.cache
def space_of(operation: Operation, sm: int, pairs: str = "", *, strict: bool = False) -> Space:
    """The space of ``operation`` on an architecture, made once for all tests that only ask it."""
    return Space(operation, ARCHS[sm], read_pairs(pairs), strict_isa=strict)


def raw_points(space: Space) -> list[dict[str, object]]:
    """The product of the axes, written out."""
    return [dict(zip(space.axes, values, strict=True)) for values in itertools.product(*space.axes.values())]


#: Axes that each leave a few values open, so that the product can be written out.
PLAIN = "raster=linear,store=direct,residency=fragment,fragment_buffers=1,min_blocks=1"
SMALL = {
    "tiles": f"{PLAIN},warps=2x1,k_steps=2,pad_b=8,pad_d=0,frags=2x4",
    "one-shape": f"{PLAIN},inst=16x16x16,warps=2x2,stages=2,pad_a=0,pad_b=8,pad_d=0,arrange_b=rows",
    "staged": "store=staged,raster=linear,frags=4x2,inst=16x16x16,warps=4x2,copy=ld,pad_a=8,pad_b=8,feed=shared",
    "in-d": "feed=global,raster=panels4,copy=none,stages=1,pad_a=0,pad_b=0,warps=2x2,k_steps=2,frags=2x4",
    "resident": "inst=8x32x16,frags=4x2,warps=8x2,copy=cpasync,feed=shared,raster=linear,pad_a=8,pad_b=16,k_steps=4",
    "buffers": "inst=16x16x16,frags=2x2,warps=2x2,raster=linear,pad_a=8,pad_b=0,stages=2,store=staged,min_blocks=3",
    "rasters": "inst=16x16x16,frags=2x2,warps=2x2,feed=shared,copy=ld,pad_a=8,pad_b=8,k_steps=4,stages=2",
    "unusual": "warps=3x5,frags=16x5,k_steps=15,pad_a=24,pad_b=4,pad_d=1024,raster=panels7,min_blocks=32,store=direct",
}


#: Where K is not split; each way of splitting would be there once more.
WHOLE = "split_k=1,reduction=none"
SMALL = {
    **{key: f"{pairs},{WHOLE}" for key, pairs in SMALL.items()},
    "splits": "inst=16x16x16,frags=2x2,warps=2x2,raster=linear,residency=fragment,arrange_a=rows,arrange_b=rows,"
    "fragment_buffers=1,min_blocks=1,feed=shared,copy=ld,pad_a=8,pad_b=8,pad_d=0,k_steps=4",
}


@pytest.mark.parametrize(("sm", "operation", "strict"), [(75, F32, False), (80, F16, False), (86, F32, True)])
@pytest.mark.parametrize("fixed", SMALL)
def test_a_small_space_is_exactly_what_the_rules_leave(sm: int, operation: Operation, strict: bool, fixed: str) -> None:
    space = Space(operation, ARCHS[sm], read_pairs(SMALL[fixed]), strict_isa=strict)
    assert space.raw < 20_000
    points = [config_of(operation, point) for point in raw_points(space)]
    assert len(points) == space.raw
    broken = [[v.id for v in rules.broken(derive.values(c, space.arch, strict_isa=strict))] for c in points]
    legal = [c for c, ids in zip(points, broken, strict=True) if not ids]
    assert list(space.configs()) == legal and len(space) == len(legal)
    counts = Counter(itertools.chain.from_iterable(broken))
    assert space.removed == {rule.id: counts[rule.id] for rule in rules.RULES if counts[rule.id]}
    found = [space.index(c) for c in points]
    assert [i for i in found if i is not None] == list(range(len(space)))
    assert [i is None for i in found] == [bool(ids) for ids in broken]
    assert space.live == {
        axis: tuple(v for v in values if any(point_of(c)[axis] == v for c in legal))
        for axis, values in space.axes.items()
    }


@pytest.mark.parametrize("problem", [(96, 160, 48), (64, 64, 64), (7, 7, 7)])
def test_a_small_space_for_a_problem_is_what_the_rules_leave(problem: tuple[int, int, int]) -> None:
    asked = Problem.packed(F32, *problem)
    space = Space(
        F32,
        ARCHS[80],
        read_pairs(
            "inst=16x16x16,raster=linear,feed=global,copy=none,stages=1,pad_a=0,pad_b=0,"
            "arrange_a=rows,arrange_b=rows,min_blocks=1,fragment_buffers=1,pad_d=0,store=direct,residency=fragment,"
            f"k_steps=1,reduction={'workspace' if problem[2] == 64 else 'none'}"
        ),
        problem=asked,
    )
    points = [config_of(F32, point) for point in raw_points(space)]
    known = [derive.values(c, space.arch, asked) for c in points]
    broken = [[rule.id for rule in rules.RULES if not rule.kept(k)] for k in known]
    assert list(space.configs()) == [c for c, ids in zip(points, broken, strict=True) if not ids]
    counts = Counter(itertools.chain.from_iterable(broken))
    assert space.removed == {rule.id: counts[rule.id] for rule in rules.RULES if counts[rule.id]}


def test_what_the_small_spaces_exercise() -> None:
    spaces = [space_of(F32, 80, fixed) for fixed in SMALL.values()]
    searched = ("store", "residency", "raster", "fragment_buffers", "min_blocks", "split_k", "reduction")
    for axis in ("arrange_a", "arrange_b", *searched):
        held = {value for space in spaces for value in space.live[axis]}
        assert held >= set(space_of(F32, 80).live[axis]), axis


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), sm=st.sampled_from(SMS), strict=st.booleans(), operation=st.sampled_from([F32, F16]))
def test_rules_on_columns_of_raw_points_agree_with_ints(seed: int, sm: int, strict: bool, operation: Operation) -> None:
    space = space_of(operation, sm, strict=strict)
    points = random_points(space, 40, seed)
    known = derive.extend(columns_of(space, points))
    singles = [derive.values(config_of(operation, p), space.arch, strict_isa=strict) for p in rows_of(space, points)]
    for rule in rules.RULES:
        kept = np.broadcast_to(rule.kept(known), 40)
        assert kept.tolist() == [bool(rule.kept(single)) for single in singles], rule.id


@pytest.mark.parametrize(
    "extreme",
    [
        "warps=64x64,frags=16x16,k_steps=64,stages=64,pad_a=1024,pad_b=1024,pad_d=1024,min_blocks=32,raster=linear,"
        "split_k=65535,reduction=workspace",
        "warps=64x1,frags=16x1,k_steps=64,stages=1,pad_a=0,pad_b=1024,pad_d=1024,min_blocks=32,raster=linear,"
        "split_k=1,reduction=none",
    ],
)
@pytest.mark.parametrize("layout", list(Layout))
def test_no_number_of_a_column_overflows(extreme: str, layout: Layout) -> None:
    operation = Operation(t.F16, t.F32, t.F32, layout)
    space = Space(operation, ARCHS[90], read_pairs(extreme))
    points = [config_of(operation, point) for point in raw_points(space)]
    counts = Counter(rule.id for c in points for rule in rules.broken(derive.values(c, space.arch)))
    assert space.removed == {rule.id: counts[rule.id] for rule in rules.RULES if counts[rule.id]}
    assert len(space) == sum(rules.legal(c, space.arch) for c in points)


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("operation", [F32, F16], ids=["f32", "f16"])
def test_random_points_agree_with_the_rules_in_both_directions(sm: int, operation: Operation) -> None:
    space = space_of(operation, sm)
    rng = random.Random(sm)
    for config in space.sample(rng, 50):
        assert not rules.check(config, space.arch) and not coverage.missing(config)
    # Values that occur in legal points, so that more than a few of the points are legal.
    for _ in range(200):
        config = config_of(operation, {axis: rng.choice(values) for axis, values in space.live.items()})
        assert space.contains(config) == rules.legal(config, space.arch)


def test_a_problem_narrows_the_space_to_what_divides_it() -> None:
    problem = Problem.packed(F32, 96, 160, 48)
    space = Space(F32, ARCHS[80], problem=problem)
    assert 0 < len(space) < len(space_of(F32, 80))
    for config in space.sample(random.Random(0), 100):
        assert rules.legal(config, space.arch) and not rules.check(config, space.arch, problem)
    assert "N801" in space.removed


def test_the_order_is_fixed_and_free_of_duplicates() -> None:
    space = Space(
        F32, ARCHS[75], read_pairs(f"{PLAIN},{WHOLE},feed=shared,inst=16x16x16,pad_a=8,pad_b=8,arrange_a=tiles")
    )
    names = [name(c) for c in space.configs()]
    assert len(names) == len(set(names)) == len(space) > 100
    assert names == [name(space.at(i)) for i in range(len(space))]
    _legal.cache_clear()
    again = Space(space.operation, space.arch, space.fixed)
    assert names == [name(c) for c in again.configs()]
    # Spaces of the same points share what is legal, and only that.
    assert Space(space.operation, space.arch, space.fixed)._blocks is again._blocks is not space._blocks
    assert [space.index(c) for c in space.configs()] == list(range(len(space)))
    for outside in (-1, len(space)):
        with pytest.raises(IndexError):
            space.at(outside)


def test_samples_are_different_points() -> None:
    space = space_of(F32, 75)
    sample = space.sample(random.Random(3), 500)
    assert len(set(sample)) == 500 and sample == space.sample(random.Random(3), 500)
    few = Space(F32, ARCHS[75], read_pairs(f"{PLAIN},inst=16x16x16,warps=2x2,frags=4x4,k_steps=2"))
    assert sorted(map(name, few.sample(random.Random(0), 10**6))) == sorted(map(name, few.configs()))


def test_neighbours_are_legal_and_one_step_away() -> None:
    space = space_of(F16, 90)
    for config in space.sample(random.Random(1), 20):
        near = space.neighbours(config)
        assert near and len(set(near)) == len(near) and config not in near
        for other in near:
            assert rules.legal(other, space.arch) and space.contains(other)
            here, there = point_of(config), point_of(other)
            (axis,) = [a for a in here if here[a] != there[a]]
            if axis in space.ordered:
                assert abs(space.live[axis].index(here[axis]) - space.live[axis].index(there[axis])) == 1
            assert config in space.neighbours(other)


def test_turing_has_no_cpasync() -> None:
    assert space_of(F32, 75).live["copy"] == (Copy.NONE, Copy.LD)
    assert space_of(F32, 80).live["copy"] == tuple(Copy)


def test_axes_are_what_is_worth_a_search_and_made() -> None:
    space = space_of(F32, 90)
    assert space.axes["warps_m"] == (1, 2, 4, 8)
    assert space.axes["pad_a"] == (0, 8, 16)
    assert Space(Operation(t.TF32, t.F32, t.F32), ARCHS[90]).axes["pad_a"] == (0, 4, 8)
    assert space.axes["inst"] == (Shape(16, 16, 16), Shape(32, 8, 16), Shape(8, 32, 16))
    for axis, values in space.axes.items():
        assert {str(v) for v in values} <= set(coverage.GENERATED.get(axis, map(str, values)))
    assert all(set(space.live[a]) <= set(values) for a, values in space.axes.items())


def test_a_wider_coverage_table_widens_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {**coverage.GENERATED, "raster": ("linear", "panels4"), "copy": ("ld",), "min_blocks": ("1",)}
    monkeypatch.setattr(coverage, "GENERATED", made)
    other = Space(F32, ARCHS[80])
    assert other.axes["min_blocks"] == (1,) and len(other.axes["raster"]) == 2 and other.axes["copy"] == (Copy.LD,)
    # No rule reads a raster.
    one = Space(F32, ARCHS[80], {"raster": LINEAR, "copy": Copy.LD, "min_blocks": 1})
    assert len(other) == 2 * len(one)
    for place in random.Random(0).sample(range(len(other)), 50):
        config = other.at(place)
        assert rules.legal(config, other.arch) and other.index(config) == place


def test_fixed_keys_are_the_only_value_of_their_axes() -> None:
    space = Space(F32, ARCHS[80], {"warps": Grid(3, 2), "stages": 7, "feed": Feed.SHARED, "acc": t.F32, "split_k": 1})
    assert space.axes["warps_m"] == (3,) and space.axes["warps_n"] == (2,) and space.axes["stages"] == (7,)
    assert len(space) and all(c.warps == Grid(3, 2) and c.stages == 7 for c in space.configs())
    assert not space.contains(space_of(F32, 80).at(0))
    assert not space.contains(Space(F16, ARCHS[80], space.fixed).at(0))


def test_what_cannot_be_fixed_is_said() -> None:
    with pytest.raises(ConfigError, match="the operation has acc=f32"):
        Space(F32, ARCHS[80], {"acc": t.F16})
    with pytest.raises(ConfigError, match="no axis"):
        Space(F32, ARCHS[80], {"block_k": 32})


def test_a_space_that_cannot_be_swept_says_why() -> None:
    space_of(F32, 75).demand()
    with pytest.raises(RequestError, match=r"copy=cpasync, none of .* is legal on sm_75 .*C501"):
        Space(F32, ARCHS[75], read_pairs("copy=cpasync")).demand()
    with pytest.raises(RequestError, match=r"with residue=exact, none of .* for 7x7x7") as sizes:
        Space(F32, ARCHS[75], problem=Problem.packed(F32, 7, 7, 7)).demand()
    assert "--fix residue=predicated" in sizes.value.fix
    with pytest.raises(RequestError, match=r"none of .* is legal on sm_80 .*T123"):
        Space(Operation(t.S8, t.S32, t.S32), ARCHS[80]).demand()
    with pytest.raises(NotGeneratedYet, match=r"a=s4 .*experimental"):
        Space(Operation(t.S4, t.S32, t.S32, Layout.RC), ARCHS[80]).demand()
    with pytest.raises(RequestError, match="T100"):
        Space(Operation(t.F32, t.F32, t.F32), ARCHS[80]).demand()


@pytest.mark.parametrize("sm", sorted(s for s in ARCHS if s >= 75))
@pytest.mark.parametrize("operation", [F32, F16], ids=["f32", "f16"])
def test_seeds_are_legal_and_reach_the_space(sm: int, operation: Operation) -> None:
    space = space_of(operation, sm)
    found = seeds.for_space(space)
    assert len(found) >= 5 and len(set(found)) == len(found)
    assert all(space.contains(c) and c.pad_a == c.pad_b == 8 for c in found)


@pytest.mark.parametrize("kinds", [(t.TF32, t.F32), (t.S8, t.S32)], ids=["tf32", "s8"])
def test_other_types_have_seeds_with_slices_of_as_many_bytes(kinds: tuple[t.ElementType, t.ElementType]) -> None:
    a, acc = kinds
    space = space_of(Operation(a, acc, acc, Layout.RC), 80)
    found = seeds.for_space(space)
    assert len(found) >= 3 and all(space.contains(c) for c in found)
    depths = {c.k_steps * c.inst.k * a.bits for c in found}
    assert depths <= {c.k_steps * c.inst.k * 16 for c in seeds.for_space(space_of(F32, 80))}


def test_seeds_of_known_architectures() -> None:
    def words(operation: Operation, text: str) -> list[str]:
        found = seeds.for_space(space_of(operation, arch.find(text).sm))
        return [
            f"{c.warps} {c.frags} {c.k_steps} {c.copy}{c.stages} fb{c.fragment_buffers} mb{c.min_blocks}" for c in found
        ]

    assert words(F16, "sm_75")[:3] == ["2x4 8x4 2 ld1 fb1 mb1", "4x2 4x4 2 ld2 fb2 mb1", "2x2 4x4 2 ld2 fb2 mb1"]
    assert words(F32, "sm_75")[0] == "2x2 4x4 2 ld2 fb2 mb1"
    assert words(F32, "sm_80")[:2] == ["4x2 4x4 2 cpasync3 fb2 mb1", "2x2 4x4 4 cpasync3 fb2 mb1"]
    assert words(F32, "sm_89")[:2] == ["4x2 4x4 2 cpasync3 fb2 mb1", "2x2 4x4 2 cpasync3 fb2 mb1"]
    expected = ["4x2 4x4 4 cpasync3 fb2 mb1", "2x4 4x4 4 cpasync3 fb2 mb1", "2x2 4x2 4 cpasync4 fb2 mb1"]
    assert words(F32, "sm_90")[:4] == [*expected, "2x2 2x2 4 cpasync4 fb2 mb2"]


def test_groups_of_warps_are_tried_where_tiles_are_few_and_k_is_long() -> None:
    fixed = read_pairs(f"{WHOLE},{PLAIN},feed=shared,copy=cpasync,arrange_a=rows,arrange_b=rows,inst=16x16x16,pad_d=0")
    del fixed["fragment_buffers"]
    few, decode, many, short = (
        Space(F32, ARCHS[90], fixed, problem=Problem.packed(F32, *size))
        for size in ((512, 512, 512), (16, 4096, 4096), (2048, 2048, 2048), (512, 512, 128))
    )
    assert many.live["warps_k"] == short.live["warps_k"] == space_of(F32, 90).axes["warps_k"] == (1,)
    assert few.live["warps_k"] == decode.live["warps_k"] == (1, 2, 4)
    found = [{(c.warps_k, str(c.warps), c.k_steps) for c in seeds.for_space(space)} for space in (few, decode, many)]
    assert found[0] >= {(2, "2x2", 4), (4, "2x2", 8)} and found[1] >= {(4, "1x2", 8)}
    assert {groups for groups, *_ in found[2]} == {1}


def test_seeds_take_what_the_space_leaves_them() -> None:
    fed = seeds.for_space(Space(F32, ARCHS[90], read_pairs("feed=global")))
    assert fed and all(c.copy is Copy.NONE and c.stages == 1 and c.pad_a == 0 for c in fed)
    strict = seeds.for_space(Space(F32, ARCHS[90], strict_isa=True))
    assert strict and all(c.pad_a == 16 for c in strict)
    tiny = Space(F32, ARCHS[90], problem=Problem.packed(F32, 16, 16, 16))
    assert all(tiny.contains(c) and c.warps == c.frags == Grid(1, 1) for c in seeds.for_space(tiny))
