"""Configurations that break exactly one rule, and neighbours that just keep it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from wmmagen import derive, instructions, rules
from wmmagen.arch import ARCHS, Arch
from wmmagen.config import (
    LINEAR,
    Arrange,
    Batch,
    Copy,
    Epilogue,
    Feed,
    Grid,
    KernelConfig,
    Layout,
    Operation,
    Order,
    Overflow,
    Raster,
    Reduction,
    Residency,
    Residue,
    Shape,
    Store,
    build,
    read_pairs,
    read_value,
    values_of,
)
from wmmagen.dtypes import ELEMENT_TYPES, F16, F32

#: Legal from sm_75 on; written out, so that no default of the package decides what is tested.
BASE = KernelConfig(
    operation=Operation(F16, F32, F32, Layout.RR, Epilogue.NONE, Residue.EXACT),
    inst=Shape(16, 16, 16),
    warps=Grid(2, 2),
    frags=Grid(4, 4),
    k_steps=2,
    feed=Feed.SHARED,
    copy=Copy.LD,
    stages=2,
    pad_a=8,
    pad_b=8,
    pad_d=0,
    arrange_a=Arrange.ROWS,
    arrange_b=Arrange.ROWS,
    fragment_buffers=1,
    residency=Residency.FRAGMENT,
    store=Store.DIRECT,
    min_blocks=1,
    raster=LINEAR,
    split_k=1,
    reduction=Reduction.NONE,
    warps_k=1,
)


def config(pairs: str) -> KernelConfig:
    """``BASE`` with the keys of ``pairs`` changed."""
    given = read_pairs(pairs)
    return build({**values_of(BASE), **_widest(given), **given})


def _widest(given: dict[str, Any]) -> dict[str, int]:
    """Alignments of 16 bytes of the types that are given."""
    a, d = given.get("a", F16), given.get("d", F32)
    return {"align_a": 128 // a.bits, "align_b": 128 // a.bits, "align_d": 128 // d.bits}


def broken_ids(case: KernelConfig, arch: Arch | None, *, strict_isa: bool = False) -> list[str]:
    """Every rule that is broken, as the compiler says it: also what only follows from another one."""
    return [rule.id for rule in rules.broken(derive.values(case, arch, strict_isa=strict_isa))]


@dataclass(frozen=True)
class Break:
    """A configuration that breaks one rule, and one as near to it as can be that breaks none.

    Attributes:
        breaks, keeps: changes to ``BASE``.
        arch: the architecture of both.
        keeps_arch: the architecture of the second where it is the architecture that makes the difference.
        beside: other rules that whatever breaks this one breaks, too; of later rules, which did not exist when it
            found its place in generated texts, where it also speaks of numbers that are changed by hand.
    """

    breaks: str
    keeps: str
    arch: int = 80
    keeps_arch: int = 0
    strict: bool = False
    beside: tuple[str, ...] = ()

    @property
    def where(self) -> Arch:
        return ARCHS[self.arch]

    @property
    def where_kept(self) -> Arch:
        return ARCHS[self.keeps_arch or self.arch]


_GLOBAL = "feed=global,copy=none,stages=1,pad_a=0,pad_b=0"
_BYTES = "a=s8,layout=rc,k_steps=1,pad_a=16,pad_b=16"
#: The steps along K are 16 bytes, but those of whole tiles.
_STEPS = "a=s8,acc=s32,d=s32,layout=rc,pad_a=16,pad_b=16,warps=1x1"
_INT8 = "a=s8,acc=s32,d=s32,k_steps=1,warps=1x1,pad_a=16,pad_b=16"
_NIBBLES = "a=s4,acc=s32,d=s32,warps=1x1,inst=8x8x32,k_steps=1,pad_a=32,pad_b=32"
_BITS = "a=b1,acc=s32,d=s32,layout=rc,k_steps=1,pad_a=128,pad_b=128"

_F64 = "a=f64,acc=f64,d=f64,inst=8x8x4,pad_a=4,pad_b=4"
_GROUPS = "a=s8,acc=s32,d=s32,layout=rc,k_steps=2,warps_k=2,arrange_a=tiles,arrange_b=tiles,pad_a=16,pad_b=16"
_ATOMIC = "store=staged,split_k=2,reduction=atomic"

#: Every rule of scope static or arch. Where a number decides, the neighbour is the last legal one.
BREAKS: dict[str, Break] = {
    "T100": Break("a=f32", "a=bf16"),
    "T101": Break("inst=16x16x32", "inst=8x32x16"),
    "T102": Break("a=tf32,inst=16x16x16", "a=tf32,inst=16x16x8"),
    "T103": Break("a=f64,acc=f64,d=f64,inst=16x16x16", "a=f64,acc=f64,d=f64,inst=8x8x4"),
    "T104": Break("a=s4,acc=s32,d=s32,layout=rc,inst=8x8x64,pad_a=32,pad_b=32", f"{_NIBBLES},layout=rc"),
    "T105": Break(f"{_BITS},inst=8x8x256", f"{_BITS},inst=8x8x128,warps=1x1"),
    "T111": Break("acc=s32,d=s32", "acc=f16,d=f16"),
    "T112": Break("a=bf16,acc=f16,d=f16", "a=bf16,acc=f32"),
    "T113": Break("a=f64,acc=f32,d=f32,inst=8x8x4", "a=f64,acc=f64,d=f64,inst=8x8x4"),
    "T114": Break(f"{_BYTES},acc=f32", f"{_BYTES},acc=s32,d=s32"),
    # Tiles of nibbles in row-major B are 8 elements wide, which only a pad makes whole 16-byte units.
    "T121": Break(
        f"{_NIBBLES},layout=rr,arrange_b=tiles,align_b=8".replace("pad_b=32", "pad_b=24"),
        f"{_NIBBLES},layout=rc,arrange_b=tiles",
    ),
    # Tiles 32 wide across K, which begin on 256 bits there.
    "T122": Break(f"{_INT8},layout=cc,inst=32x8x16", f"{_INT8},layout=rc,inst=32x8x16"),
    "T123": Break(f"{_INT8},layout=rr,inst=8x32x16", f"{_INT8},layout=rc,inst=8x32x16"),
    "T151": Break("acc=f16", "acc=f16,store=staged"),
    "T152": Break("d=f64,store=staged", "d=bf16,store=staged"),
    "T153": Break(f"{_BYTES},acc=s32,d=s8,store=staged", f"{_BYTES},acc=s32,d=s8,store=staged,epilogue=linear"),
    "T154": Break(f"{_BYTES},acc=s32,d=s32,epilogue=linear", f"{_BYTES},acc=s32,d=s8,store=staged,epilogue=linear"),
    "T156": Break(
        f"{_BYTES},acc=s32,d=s8,c=f64,store=staged,epilogue=linear",
        f"{_BYTES},acc=s32,d=s8,c=s32,store=staged,epilogue=linear",
    ),
    "T131": Break("a=bf16", "a=bf16", arch=75, keeps_arch=80),
    "T155": Break(f"{_ATOMIC},acc=f16,d=f16", _ATOMIC),
    "T141": Break(f"{_NIBBLES},layout=rc", f"{_NIBBLES},layout=rc", arch=90, keeps_arch=89),
    "L201": Break("pad_a=7", "pad_a=8"),
    "L202": Break("pad_b=9", "pad_b=8"),
    "L203": Break("store=staged,pad_d=2", "store=staged,pad_d=4"),
    "L213": Break("store=staged,pad_a=16,pad_b=16,pad_d=4", "store=staged,pad_a=16,pad_b=16,pad_d=8", strict=True),
    "L211": Break("pad_a=8,pad_b=16", "pad_a=16,pad_b=16", strict=True),
    "L212": Break("pad_a=16,pad_b=8", "pad_a=16,pad_b=16", strict=True),
    "P301": Break("layout=cr,inst=8x32x16", "layout=cr,inst=8x32x16,warps=1x1,frags=1x4"),
    "P302": Break("inst=32x8x16", "inst=32x8x16,warps=1x1,frags=4x1"),
    "P306": Break(f"{_STEPS},k_steps=2,arrange_b=tiles", f"{_STEPS},k_steps=2,arrange_b=tiles,arrange_a=tiles"),
    "P307": Break(f"{_STEPS},k_steps=2,arrange_a=tiles", f"{_STEPS},k_steps=2,arrange_a=tiles,arrange_b=tiles"),
    "P303": Break(f"{_GLOBAL},layout=cr,inst=8x32x16", f"{_GLOBAL},layout=rr,inst=8x32x16"),
    "P304": Break(f"{_GLOBAL},inst=32x8x16", f"{_GLOBAL},layout=rc,inst=32x8x16"),
    "P305": Break("layout=rc,inst=32x8x16,acc=f16,d=f16", "layout=rc,inst=32x8x16"),
    "R401": Break("warps=8x8", "warps=8x4"),
    # 68 KB and 64 KB: to the byte what a block of sm_75 has.
    "R402": Break("k_steps=4,pad_b=0", "k_steps=4,pad_a=0,pad_b=0", arch=75),
    "R403": Break(f"{_GLOBAL},warps=4x4,min_blocks=4", f"{_GLOBAL},warps=4x4,min_blocks=3", arch=86),
    "R404": Break(f"{_GLOBAL},warps=1x1,min_blocks=17", f"{_GLOBAL},warps=1x1,min_blocks=16", arch=86),
    "R405": Break("k_steps=4,min_blocks=2", "k_steps=4,min_blocks=2", arch=86, keeps_arch=90),
    "R406": Break("split_k=32767,reduction=workspace", "split_k=32766,reduction=workspace"),
    # To the byte what a block of sm_75 has.
    "R407": Break(f"{_GLOBAL},warps_k=2,frags=8x4", f"{_GLOBAL},warps_k=2,frags=4x4", arch=75),
    "R408": Break(f"{_GLOBAL},warps_k=2,min_blocks=2", f"{_GLOBAL},warps_k=2,min_blocks=2", arch=86, keeps_arch=90),
    "C501": Break("copy=cpasync", "copy=cpasync", arch=75, keeps_arch=80),
    "C502": Break("copy=cpasync,stages=1", "copy=cpasync,stages=2"),
    "C503": Break("stages=3", "stages=2"),
    # Rows that are no whole copies would be 8 bytes across K: T122 and T123 refuse them, too.
    "C511": Break(
        f"{_INT8},layout=cc,inst=8x32x16,frags=1x4".replace("pad_a=16", "pad_a=8"),
        f"{_INT8},layout=rc,inst=8x32x16,frags=4x1",
        beside=("T122",),
    ),
    "C512": Break(
        f"{_INT8},layout=rr,inst=32x8x16,frags=4x1".replace("pad_b=16", "pad_b=8"),
        f"{_INT8},layout=rc,inst=32x8x16,frags=1x4",
        beside=("T123",),
    ),
    "C521": Break("k_steps=1,frags=1x4", "k_steps=1,frags=2x4"),
    "C522": Break("k_steps=1,frags=4x1", "k_steps=1,frags=4x2"),
    "C531": Break("align_a=16", "align_a=8"),
    "C532": Break("align_b=16", "align_b=8"),
    "C541": Break(f"{_NIBBLES},layout=rc,align_a=1", f"{_NIBBLES},layout=rc,align_a=2"),
    "C542": Break(f"{_NIBBLES},layout=rc,align_b=1", f"{_NIBBLES},layout=rc,align_b=2"),
    "C561": Break(
        f"{_BYTES},acc=s32,d=s8,store=staged,epilogue=linear,inst=32x8x16,frags=2x8",
        f"{_BYTES},acc=s32,d=s8,store=staged,epilogue=linear,inst=32x8x16,frags=2x8,align_d=8",
    ),
    "C562": Break(
        f"{_BYTES},acc=s32,d=s8,store=staged,epilogue=linear,inst=8x32x16,warps=1x1,frags=4x1",
        f"{_BYTES},acc=s32,d=s8,store=staged,epilogue=linear,inst=8x32x16,warps=1x1,frags=4x1,align_d=8",
    ),
    "C551": Break("copy=cpasync,align_a=1", "copy=cpasync,align_a=2"),
    "C552": Break("copy=cpasync,align_b=1", "copy=cpasync,align_b=2"),
    "X609": Break(f"{_GLOBAL},align_a=4", f"{_GLOBAL},align_a=8"),
    "X610": Break(f"{_GLOBAL},align_b=4", f"{_GLOBAL},align_b=8"),
    "X611": Break("align_d=2", "align_d=4"),
    "X612": Break("store=staged,align_d=8", "store=staged,align_d=4"),
    "X613": Break("k_steps=1,fragment_buffers=2", "k_steps=2,fragment_buffers=2"),
    "X615": Break("k_steps=3,fragment_buffers=2", "k_steps=3,fragment_buffers=2,stages=1"),
    "X616": Break(f"residue=predicated,{_GLOBAL}", "residue=predicated"),
    "X617": Break("residue=predicated,residency=global", "residue=predicated"),
    "X618": Break("overflow=saturate", f"{_BYTES},acc=s32,d=s32,overflow=saturate"),
    "X614": Break("residency=global,store=staged", "residency=global,store=direct"),
    "X624": Break("split_k=2", "split_k=2,reduction=workspace"),
    "X625": Break("split_k=2,reduction=workspace,residency=global", "split_k=2,reduction=workspace"),
    "X626": Break("split_k=2,reduction=atomic", _ATOMIC),
    "X619": Break(f"{_ATOMIC},epilogue=linear", "store=staged,split_k=2,reduction=workspace,epilogue=linear"),
    "X620": Break(f"{_ATOMIC},batch=strided", "store=staged,split_k=2,reduction=workspace,batch=strided"),
    "X628": Break(
        f"{_BYTES},acc=s32,d=s32,split_k=2,reduction=workspace,overflow=saturate",
        f"{_BYTES},acc=s32,d=s32,split_k=2,reduction=workspace",
    ),
    "X631": Break("warps_k=4", "warps_k=4,k_steps=4", arch=90),
    "X632": Break("warps_k=2,residency=global", "warps_k=2"),
    "X633": Break(f"{_GROUPS},overflow=saturate", _GROUPS),
    "X601": Break(f"{_GLOBAL},copy=ld".replace("copy=none,", ""), _GLOBAL),
    "X602": Break("feed=global,copy=none,stages=2,pad_a=0,pad_b=0", _GLOBAL),
    "X603": Break("feed=global,copy=none,stages=1,pad_a=8,pad_b=0", _GLOBAL),
    "X604": Break("feed=global,copy=none,stages=1,pad_a=0,pad_b=8", _GLOBAL),
    "X605": Break(f"{_GLOBAL},arrange_a=tiles", _GLOBAL),
    "X606": Break(f"{_GLOBAL},arrange_b=tiles", _GLOBAL),
    "X607": Break("pad_d=8", "pad_d=0"),
    "X608": Break("copy=none", "copy=ld"),
    "X621": Break("epilogue=relu,c=f16", "epilogue=relu,c=f32"),
    "X641": Break("cd=rc,epilogue=relu", "cd=rc,epilogue=relu+residual"),
    "P351": Break("cd=cr,epilogue=linear,acc=f16,d=f16,inst=8x32x16", "cd=cr,epilogue=linear,inst=8x32x16"),
    "X622": Break("epilogue=biascol", "epilogue=biascol,store=staged"),
    "X623": Break("epilogue=linear,c=f16", "epilogue=linear,c=f16,store=staged"),
}


_PADS = {
    "f16": 8,
    "bf16": 8,
    "tf32": 4,
    "f32": 4,
    "f64": 2,
    "s8": 16,
    "u8": 16,
    "s32": 4,
    "s4": 32,
    "u4": 32,
    "b1": 128,
}


def sample(count: int, seed: int) -> list[KernelConfig]:
    """Configurations of all kinds, legal and not; the same ones for one seed.

    Each axis is drawn so that its rules are kept about as often as broken: whole random configurations would break so
    many rules at once that a lost one would not be missed.
    """
    draw, more, groups, layouts = (random.Random(seed + n) for n in range(4))
    drawn = (_with_groups(_with_steps(_random_config(draw), more), groups) for _ in range(count))
    return [_with_layouts(case, layouts) for case in drawn]


def _with_groups(case: KernelConfig, draw: random.Random) -> KernelConfig:
    """Some of them with groups of warps, most of which can share the steps of a slice."""
    likely = 0.1 if case.feed is Feed.SHARED else 0.5
    return replace(case, warps_k=draw.choice([2, 2, 3, case.k_steps])) if draw.random() < likely else case


def _with_layouts(case: KernelConfig, draw: random.Random) -> KernelConfig:
    """Some of them with other layouts of C and D."""
    if draw.random() < 0.7:
        return case
    return replace(case, operation=replace(case.operation, cd=draw.choice(list(Layout))))


def _with_steps(case: KernelConfig, draw: random.Random) -> KernelConfig:
    """Some of them with an epilogue, and some with a type of what it adds."""
    if draw.random() < 0.7:
        return case
    epilogue = read_value("epilogue", draw.choice(["linear", "linear+relu", "biascol", "relu", "relu+residual"]))
    c = draw.choice([None, None, F16, F32])
    return replace(case, operation=replace(case.operation, epilogue=epilogue, c=c))


def _random_config(draw: random.Random) -> KernelConfig:
    row = draw.choice(instructions.INSTRUCTIONS)
    other = draw.choice(instructions.INSTRUCTIONS) if draw.random() < 0.15 else row
    staged = draw.random() < 0.8
    unit = _PADS[row.a.name]
    feed = Feed.SHARED if staged else Feed.GLOBAL
    meaningful = draw.random() < 0.85
    values: dict[str, Any] = {
        "a": row.a if draw.random() < 0.95 else F32,
        "acc": other.acc if draw.random() < 0.95 else draw.choice(list(ELEMENT_TYPES.values())),
        "d": row.acc if draw.random() < 0.8 else draw.choice([row.a, F32]),
        "layout": Layout(draw.choice(row.layouts)) if draw.random() < 0.9 else draw.choice(list(Layout)),
        "inst": Shape(other.m, other.n, other.k),
        "warps": Grid(draw.choice([1, 1, 2, 2, 4, 8]), draw.choice([1, 1, 2, 2, 4, 8])),
        "frags": Grid(draw.choice([1, 2, 3, 4]), draw.choice([1, 2, 3, 4])),
        "k_steps": draw.choice([1, 1, 2, 2, 3, 4]),
        "feed": feed,
        "copy": (draw.choice([Copy.LD, Copy.CPASYNC]) if staged else Copy.NONE)
        if meaningful
        else draw.choice(list(Copy)),
        "stages": draw.choice([1, 2, 2, 3, 4]) if staged or not meaningful else 1,
        "pad_a": draw.choice([0, unit, 2 * unit, unit // 2]) if staged or not meaningful else 0,
        "pad_b": draw.choice([0, unit, 2 * unit, unit + 1]) if staged or not meaningful else 0,
        "pad_d": draw.choice([0, 0, 0, 0, 0, 0, 0, 8]),
        "arrange_a": Arrange.ROWS if meaningful else draw.choice(list(Arrange)),
        "arrange_b": Arrange.ROWS if meaningful else draw.choice(list(Arrange)),
        "residue": draw.choice([Residue.EXACT] * 5 + [Residue.PREDICATED]),
        "residency": draw.choice([Residency.FRAGMENT] * 4 + [Residency.GLOBAL]),
        "store": draw.choice(list(Store)),
        "fragment_buffers": draw.choice([1, 1, 2]),
        "min_blocks": draw.choice([1, 1, 1, 2, 20]),
        "overflow": draw.choice(list(Overflow))
        if row.acc.integer
        else draw.choice([Overflow.WRAP] * 9 + [Overflow.SATURATE]),
        "raster": draw.choice([LINEAR, Raster(Order.GROUPED, 8), Raster(Order.PANELS, 3)]),
        "epilogue": draw.choice([Epilogue.NONE] * 4 + [Epilogue.LINEAR]),
        "batch": draw.choice([Batch.NONE] * 4 + [Batch.STRIDED]),
        "split_k": draw.choice([1, 1, 1, 2, 40_000]),
        "warps_k": 1,
    }
    values["reduction"] = Reduction.NONE if values["split_k"] == 1 and meaningful else draw.choice(list(Reduction))
    widest = _widest(values)
    # An element alone is narrower than some copies can be, two widest copies are wider than any.
    values |= {key: draw.choice([most] * 6 + [1, 2 * most]) for key, most in widest.items()}
    if meaningful and values["store"] is Store.DIRECT:
        values |= {"d": values["acc"], "pad_d": 0, "align_d": _widest({"d": values["acc"]})["align_d"]}
    if draw.random() < 0.25:
        # Near to a legal one: on old cards hardly any of the rest is.
        values = {key: values[key] for key in draw.sample(sorted(values), 3)}
        values |= _widest(values)
    return build({**values_of(BASE), **values})
