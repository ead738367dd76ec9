"""The rules: what makes a configuration, an architecture or a call illegal. Nothing else in wmmagen refuses one.

A rule is data. Its one expression is evaluated on ints to refuse a configuration, on NumPy columns to prune a space, is
printed as a ``static_assert`` into the generated file (scopes ``static`` and ``arch``) or as a check into its launcher
(scope ``launch``), and is a row of RULES.md. Ids are permanent: a retired rule's id is never given to another.

Legality is not taste: what is slow is not illegal. Of scope ``search`` are the few rules that keep a search from what
is legal and of no use for its problem; nobody is refused by them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from wmmagen import derive, instructions
from wmmagen.arch import FULL_GRID, Arch
from wmmagen.config import KernelConfig, Problem, Shape, spell, values_of
from wmmagen.config import name as name_of
from wmmagen.dtypes import ELEMENT_TYPES, RESULTS
from wmmagen.epilogue import VECTORS, along_row
from wmmagen.errors import IllegalConfig
from wmmagen.expr import Expr, parse

GUIDE = "CUDA C++ Programming Guide, Warp Matrix Functions"
GUIDE_TYPES = "CUDA C++ Programming Guide, Warp Matrix Functions, Element Types and Matrix Sizes"
GUIDE_ACCESS = "CUDA C++ Programming Guide, Device Memory Accesses, Size and Alignment Requirement"
GUIDE_LIMITS = "CUDA C++ Programming Guide, Compute Capabilities, Technical Specifications"
PTX_WMMA = "PTX ISA, Matrix Fragments for WMMA, alignment of wmma.load and wmma.store"
PTX_CPASYNC = "PTX ISA, cp.async"
PTX_LDMATRIX = "PTX ISA, ldmatrix: .trans and .type"
CUDA13 = "CUDA 13 Release Notes, deprecated architectures"
CONTRACT = "the contract of the generated launcher"
RUNTIME = "CUDA Runtime API, cudaMemset2DAsync, cudaDeviceProp::memPitch"
TEMPLATE = "templates/README.md"


#: How far a matrix call asks its pointers to be aligned; in bytes.
FRAGMENT_BYTES = 32


class Scope(StrEnum):
    """What a rule needs to know, and thereby where it is enforced."""

    STATIC = "static"  # the configuration: message, pruning, static_assert
    ARCH = "arch"  # and the architecture: the same, the assertion guarded
    LAUNCH = "launch"  # and the call: message, check in the launcher
    TOOLCHAIN = "toolchain"  # the compiler at hand: message only
    SEARCH = "search"  # the configuration and the call: pruning only, because what it refuses is legal and no use


class Status(StrEnum):
    """What a launcher answers: a name of its status enum, which has the values 0, 1, … in this order.

    Members are only ever added, at the end: programs that are linked of files of several versions compare numbers.

    Attributes:
        says: the same in words, for the text function.
    """

    says: str

    def __new__(cls, value: str, says: str) -> Status:
        member = str.__new__(cls, value)
        member._value_ = value
        member.says = says
        return member

    OK = "WMMAGEN_OK", "launched, or nothing to do"
    SIZE = "WMMAGEN_BAD_SIZE", "a size is negative, no multiple of the block tile, or makes too many blocks"
    LEADING_DIMENSION = (
        "WMMAGEN_BAD_LEADING_DIMENSION",
        "a leading dimension is less than a row, or not aligned as promised",
    )
    POINTER = "WMMAGEN_BAD_POINTER", "a pointer is null, misaligned, or that of a C where D must not be"
    SHARED_MEMORY = "WMMAGEN_NO_SHARED_MEMORY", "the device's blocks have less shared memory than this kernel needs"
    LAUNCH = "WMMAGEN_NOT_LAUNCHED", "CUDA refused the launch"
    DEVICE = "WMMAGEN_NO_DEVICE", "no CUDA device, no driver, or a driver too old for this build"
    CODE = "WMMAGEN_NO_CODE", "the device runs no code of this build"
    WORKSPACE = "WMMAGEN_BAD_WORKSPACE", "the workspace is missing, misaligned or too small"


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Attributes:
        id: permanent.
        name: for people.
        scope: what it needs to know.
        expr: holds where the rule is kept.
        says: what it demands, in one line without numbers; the text of its assertion.
        when: the structure in which the rule speaks at all (flags only); None for always.
        message: what is wrong, with the numbers, in ``str.format`` fields over the values.
        fix: what to do.
        reason: why the rule exists.
        source: the document that says so.
        knobs: counting keys (or M, N, K, LDA, …) whose nearest legal values are worth naming, the likeliest first.
        status: for launch rules, the launcher's answer.
        structural: whether its numbers are structure, too, so that a file in which it holds need not mention it.
    """

    id: str
    name: str
    scope: Scope
    expr: Expr
    says: str
    message: str
    fix: str
    reason: str
    source: str
    when: Expr | None = None
    knobs: tuple[str, ...] = ()
    status: Status | None = None
    structural: bool = False

    def __post_init__(self) -> None:
        if not self.expr.truth or (self.when is not None and not self.when.truth):
            raise ValueError(f"{self.id}: a rule and its condition are truths")
        if (self.status is not None) is not (self.scope is Scope.LAUNCH):
            raise ValueError(f"{self.id}: a status belongs to launch rules, and to all of them")

    @property
    def strict(self) -> bool:
        """Whether it speaks under ``--strict-isa`` only."""
        return self.when is not None and "strict_isa" in self.when.names

    def as_json(self) -> dict[str, str]:
        """An element of ``rules`` of ``rules --json``."""
        return {
            "id": self.id,
            "rule": self.name,
            "scope": self.scope.value,
            "when": self.when.text if self.when else "",
            "expression": self.expr.text,
            "says": self.says,
            "reason": self.reason,
            "fix": self.fix,
            "source": self.source,
        }

    def applies(self, known: Mapping[str, Any]) -> Any:
        """Whether the rule speaks; a bool, or a column of them."""
        return True if self.when is None else self.when(known)

    def kept(self, known: Mapping[str, Any]) -> Any:
        """Whether the rule is kept, where it does not speak included; a bool, or a column of them."""
        if not self.expr.names <= known.keys():
            return True
        applies = self.applies(known)
        if applies is False:
            return True
        holds = self.expr(known)
        return holds if applies is True else ~applies | holds


@dataclass(frozen=True)
class Violation:
    """A rule that a configuration or a call breaks, in words with its numbers."""

    rule: Rule
    message: str
    fix: str

    def as_json(self) -> dict[str, str]:
        """An element of ``violations`` of ``check --json``."""
        return {
            "id": self.rule.id,
            "rule": self.rule.name,
            "message": self.message,
            "fix": self.fix,
            "source": self.rule.source,
        }

    def __str__(self) -> str:
        return f"{self.rule.id} {self.rule.name}: {self.message}\n  fix: {self.fix}\n  source: {self.rule.source}"


def _rule(
    id: str,
    name: str,
    scope: Scope,
    expr: str,
    *,
    says: str,
    message: str,
    fix: str,
    reason: str,
    source: str,
    when: str | None = None,
    knobs: Sequence[str] = (),
    status: Status | None = None,
    structural: bool = False,
) -> Rule:
    condition = parse(when) if when else None
    return Rule(
        id, name, scope, parse(expr), says, message, fix, reason, source, condition, tuple(knobs), status, structural
    )


# ---------------------------------------------------------------------------------------------------------------------
# T: types and instructions.


#: Which operand types share a set of shapes, an accumulator set, a first architecture. Written out, because ids are
#: permanent; the sets themselves come from the instruction table, and a type that is missing here fails the import.
_SHAPE_GROUPS = {
    "T101": ("f16", "bf16", "s8", "u8"),
    "T102": ("tf32",),
    "T103": ("f64",),
    "T104": ("s4", "u4"),
    "T105": ("b1",),
}
_ACCUMULATOR_GROUPS = {
    "T111": ("f16",),
    "T112": ("bf16", "tf32"),
    "T113": ("f64",),
    "T114": ("s8", "u8", "s4", "u4", "b1"),
}
#: Types whose first architecture is one that every supported compiler knows need no rule of their own: K701, K702.
_ARCH_GROUPS = {"T131": ("bf16", "tf32", "f64")}
_OPERANDS = tuple(dict.fromkeys(i.a.name for i in instructions.INSTRUCTIONS))
_ACCUMULATORS = tuple(dict.fromkeys(i.acc.name for i in instructions.INSTRUCTIONS))


def _any(prefix: str, members: Iterable[str]) -> str:
    return " or ".join(f"{prefix}_{member}" for member in members)


def _common(types: Sequence[str], of: Callable[[instructions.Instruction], Any]) -> list[Any]:
    """What the instructions of each of ``types`` have in common; it must be the same for all of them."""
    found = [list(dict.fromkeys(of(i) for i in instructions.INSTRUCTIONS if i.a.name == t)) for t in types]
    if any(values != found[0] for values in found):
        raise ValueError(f"{types} do not share a rule: {found}")
    return found[0]


def _shape_rules() -> Iterable[Rule]:
    for id, types in _SHAPE_GROUPS.items():
        shapes = _common(types, lambda i: (i.m, i.n, i.k))
        yield _rule(
            id,
            "instruction-shape",
            Scope.STATIC,
            " or ".join(f"(INST_M == {m} and INST_N == {n} and INST_K == {k})" for m, n, k in shapes),
            when=_any("a", types),
            says="the instruction has a shape that the hardware has",
            message="no WMMA instruction multiplies {a} in the shape {inst} (m x n x k)",
            fix="inst is one of: " + " ".join(f"{m}x{n}x{k}" for m, n, k in shapes),
            reason="The hardware has these shapes and no others; the compiler's own refusal is a page about an "
            "incomplete type.",
            source=GUIDE_TYPES,
        )


def _accumulator_rules() -> Iterable[Rule]:
    for id, types in _ACCUMULATOR_GROUPS.items():
        accumulators = _common(types, lambda i: i.acc.name)
        yield _rule(
            id,
            "accumulator-type",
            Scope.STATIC,
            _any("acc", accumulators),
            when=_any("a", types),
            says="the accumulator is one of the operand's",
            message="products of {a} cannot be accumulated in {acc}",
            fix=f"acc is one of: {' '.join(accumulators)}",
            reason="The hardware accumulates each operand type in these types only.",
            source=GUIDE_TYPES,
        )


def _arch_rules() -> Iterable[Rule]:
    for id, types in _ARCH_GROUPS.items():
        (min_sm,) = _common(types, lambda i: i.min_sm)
        yield _rule(
            id,
            "type-needs-architecture",
            Scope.ARCH,
            f"SM >= {min_sm}",
            when=_any("a", types),
            says=f"operands of this type need sm_{min_sm}",
            message=f"sm_{{SM}} has no matrix instruction for {{a}}; the first architecture that has it is sm_{min_sm}",
            fix=f"--arch sm_{min_sm} or later, or a type that older ones have: {{older_types}}",
            reason="Older tensor cores do not have the type.",
            source=GUIDE_TYPES,
        )


def _bytes_along_k(id: str, operand: str, expr: str, along: str, across: str) -> Rule:
    return _rule(
        id,
        f"bytes-along-k-{operand.lower()}",
        Scope.STATIC,
        expr,
        when=_any("a", dict.fromkeys(i.a.name for i in instructions.INSTRUCTIONS if i.bytewise)),
        says=f"{operand} is {along}-major where it has bytes",
        message=f"{operand} is {across}-major in layout={{layout}}, so its {across}s of {{a}} run across K, where "
        "fragments are loaded in single bytes",
        fix=f"layout=rc, whose {operand} is {along}-major: transpose {operand} once, before the call; to compute D^T "
        f"instead does not help, because {operand} lies across K as before",
        reason="No kernel loads its operands in single bytes. A register of a fragment holds four neighbours along K. "
        "Across K they lie in four rows, and what could gather them, ldmatrix, transposes elements of 16 bits (of 8 "
        "bits only from sm_100a on, where no load of WMMA uses it): each byte is a load of its own, from shared and "
        "from global memory. Staging does not help, because cp.async copies bytes in their order.",
        source=PTX_LDMATRIX,
    )


for _groups in (_SHAPE_GROUPS, _ACCUMULATOR_GROUPS):
    if {t for types in _groups.values() for t in types} != set(_OPERANDS):
        raise ValueError("an operand type has no rule for its shapes or accumulators")
_LATER = {name for name in _OPERANDS if all(i.min_sm > 75 for i in instructions.INSTRUCTIONS if i.a.name == name)}
if {t for types in _ARCH_GROUPS.values() for t in types} != _LATER:
    raise ValueError("an operand type has no rule for its first architecture")

_SUBBYTE = _any("a", (name for name in _OPERANDS if ELEMENT_TYPES[name].experimental))
#: Types whose every product is documented as removed; b1 keeps its AND.
_REMOVED = _any(
    "a",
    (name for name in _OPERANDS if all(i.removed_sm for i in instructions.INSTRUCTIONS if i.a.name == name)),
)

_TYPES: tuple[Rule, ...] = (
    _rule(
        "T100",
        "operand-type",
        Scope.STATIC,
        _any("a", _OPERANDS),
        says="A and B are of an operand type",
        message="{a} is no operand of a matrix instruction",
        fix="a is one of: " + " ".join(_OPERANDS),
        reason="f32 and s32 are accumulators only; tf32 is the operand that is stored as float.",
        source=GUIDE_TYPES,
    ),
    *_shape_rules(),
    *_accumulator_rules(),
    _rule(
        "T121",
        "sub-byte-layout",
        Scope.STATIC,
        "layout_rc",
        when=_SUBBYTE,
        says="sub-byte operands lie row-major (A) and column-major (B)",
        message="{a} operands lie in layout rc only (A row-major, B column-major); asked was {layout}",
        fix="layout=rc",
        reason="The experimental sub-byte fragments exist for this pair only.",
        source=GUIDE_TYPES,
    ),
    _bytes_along_k("T122", "A", "a_row_major", "row", "column"),
    _bytes_along_k("T123", "B", "not b_row_major", "column", "row"),
    *_arch_rules(),
    _rule(
        "T151",
        "stored-type",
        Scope.STATIC,
        " or ".join(f"(acc_{name} and d_{name})" for name in _ACCUMULATORS),
        when="store_direct",
        says="fragments are stored as they are",
        message="sums in {acc} cannot be stored as {d} straight from the fragments",
        fix="store=staged, or d={acc}",
        reason="Which lane holds which element is not specified and differs from type to type, so another type is made "
        "on the way through memory, never by copying elements from one fragment into another.",
        source=GUIDE,
    ),
    _rule(
        "T152",
        "result-type",
        Scope.STATIC,
        " or ".join(f"(acc_{acc} and ({_any('d', results)}))" for acc, results in RESULTS.items()),
        when="store_staged",
        says="sums become a type that is made of them",
        message="sums in {acc} do not become {d}",
        fix="; ".join(f"of {acc}: d={' or '.join(results)}" for acc, results in RESULTS.items()),
        reason="A narrower D is worth a rounding where it saves bytes, and sums of f16 may go on in f32. Whole numbers "
        "and fractions do not mix.",
        source=CONTRACT,
    ),
    _rule(
        "T153",
        "scaled-bytes",
        Scope.STATIC,
        "epilogue_scales",
        when="acc_s32 and (d_s8 or d_u8 or d_f32 or d_f16 or d_bf16)",
        says="whole sums become another type by a scale",
        message="sums in {acc} of {a} products do not fit into {d} as they are, and epilogue={epilogue} has no scale",
        fix="epilogue=linear, whose alpha is the scale, a chain with scale, scalerow or scalecol, or d={acc}",
        reason="A product of two bytes alone is wider than a byte, and sums of such go beyond what floats count.",
        source=CONTRACT,
    ),
    _rule(
        "T154",
        "factors-are-floats",
        Scope.STATIC,
        "acc_f16 or acc_f32 or acc_f64 or not d_s32",
        when="not epilogue_none",
        says="steps make something of sums that are not whole numbers in D",
        message="steps compute in floats, which hold whole numbers up to 2^24; {acc} sums that become {d} go beyond",
        fix="epilogue=none, or a scale and d=s8, d=u8 or d=f32, which is rounded anyway",
        reason="D would be rounded although nobody asked for it.",
        source=CONTRACT,
    ),
    _rule(
        "T156",
        "added-type",
        Scope.STATIC,
        "(acc_f64 and c_f64) or (acc_f16 or acc_f32 or acc_s32) and (c_f16 or c_bf16 or c_f32)"
        " or acc_s32 and (c_s8 or c_u8 or c_s32)",
        when="epilogue_adds",
        says="what is added has a type that the steps compute with",
        message="c={c} is not added to sums in {acc}",
        fix="c=f16, c=bf16 or c=f32 beside sums of f16, f32 and s32; c=s8, c=u8 or c=s32 beside s32; c=f64 beside f64",
        reason="f64 beside floats would be rounded before it is added, and floats beside f64 bring less than it shows; "
        "whole numbers go with whole sums.",
        source=CONTRACT,
    ),
    _rule(
        "T155",
        "atomic-type",
        Scope.STATIC,
        "acc_f32 and d_f32 or acc_f64 and d_f64 or acc_s32 and d_s32",
        when="reduction_atomic",
        says="sums that are added to D by atomics are f32, f64 or s32, and so is D",
        message="reduction=atomic adds sums to D one by one, in their own type; asked was {acc} to {d}",
        fix="d={acc} with sums in f32, f64 or s32, or reduction=workspace",
        reason="D holds the unfinished sums, so it has their type, and each addition would round to a smaller one.",
        source=TEMPLATE,
    ),
    _rule(
        "T141",
        "experimental-type",
        Scope.ARCH,
        "SM < 90",
        when=_REMOVED,
        says="sub-byte operands end before sm_90",
        message="{a} is experimental and documented as removed from sm_90 on; asked was sm_{SM}",
        fix="a=s8 or a=u8, or an architecture before sm_90",
        reason="It still compiles there, but a documented removal is no ground to build on.",
        source=GUIDE_TYPES,
    ),
    _rule(
        "K701",
        "wmma-exists",
        Scope.TOOLCHAIN,
        "SM >= 70",
        says="the architecture has tensor cores",
        message="sm_{SM} has no WMMA: tensor cores begin with sm_70",
        fix="--arch sm_75 or later",
        reason="There are no tensor cores to program.",
        source=GUIDE,
    ),
    _rule(
        "K702",
        "compiler-has-architecture",
        Scope.TOOLCHAIN,
        "SM < 70 or SM >= 75",
        says="the compiler makes code for the architecture",
        message="sm_{SM} has WMMA, but a CUDA 13 compiler makes no code for it; sm_70 and sm_72 need a CUDA 12 toolkit",
        fix="--arch sm_75 or later, or `wmmagen render` the file for sm_75 and compile it with CUDA 12",
        reason="CUDA 13 dropped the architectures before sm_75.",
        source=CUDA13,
    ),
)

# ---------------------------------------------------------------------------------------------------------------------
# L: leading dimensions. 16 bytes by the guide, a fragment by the PTX ISA.

_LDM_REASON = (
    "load_matrix_sync and store_matrix_sync take a leading dimension of whole 16-byte units: a multiple of 8 elements "
    "of 16 bits, 4 of 32. The rule is about the leading dimension, not about the pad."
)
_LDM_STRICT_REASON = (
    "The PTX ISA wants the start of every row aligned to the fragment of one thread, which the C++ guide does not ask."
)


def _staged_ldm(operand: str) -> Iterable[Rule]:
    o, low = operand, operand.lower()
    words = (
        f"the leading dimension of the staged {o}, pad_{low} {{PAD_{o}}} included, is LDS_{o} = {{LDS_{o}}} elements "
        "of {A_BITS} bits, "
    )
    number = {"A": 1, "B": 2}[o]
    yield _rule(
        f"L20{number}",
        f"staged-ldm-{low}",
        Scope.STATIC,
        f"LDS_{o} % VECTOR == 0",
        when="feed_shared",
        says=f"the leading dimension of the staged {o} is a multiple of 16 bytes",
        message=words + "no multiple of {VECTOR} (16 bytes)",
        fix=f"change pad_{low}",
        reason=_LDM_REASON,
        source=f"{GUIDE}, load_matrix_sync: ldm",
        knobs=(f"pad_{low}",),
    )
    yield _rule(
        f"L21{number}",
        f"staged-ldm-{low}-strict",
        Scope.STATIC,
        f"LDS_{o} * A_BITS % {o}_FRAGMENT_BITS == 0",
        when="feed_shared and strict_isa",
        says=f"every row of the staged {o} starts on a whole fragment",
        message=words + f"and every row must start on the {{{o}_FRAGMENT_BITS}} bits of a thread's fragment",
        fix=f"change pad_{low}",
        reason=_LDM_STRICT_REASON,
        source=PTX_WMMA,
        knobs=(f"pad_{low}",),
    )


_STAGED_D = (
    "the leading dimension of a staged tile of D is LDS_D = D_TILE_COLS {D_TILE_COLS} + pad_d {PAD_D} = {LDS_D} sums "
    "of {ACC_BITS} bits, "
)
_STAGED_LDM_D: tuple[Rule, ...] = (
    _rule(
        "L203",
        "staged-ldm-d",
        Scope.STATIC,
        "LDS_D % ACC_VECTOR == 0",
        when="store_staged or residue_predicated",
        says="the leading dimension of a staged tile of D is a multiple of 16 bytes",
        message=_STAGED_D + "no multiple of {ACC_VECTOR} (16 bytes)",
        fix="change pad_d",
        reason=_LDM_REASON,
        source=f"{GUIDE}, store_matrix_sync: ldm",
        knobs=("pad_d",),
    ),
    _rule(
        "L213",
        "staged-ldm-d-strict",
        Scope.STATIC,
        "LDS_D * ACC_BITS % ACC_FRAGMENT_BITS == 0",
        when="(store_staged or residue_predicated) and strict_isa",
        says="every row of a staged tile of D starts on a whole fragment",
        message=_STAGED_D + "and every row must start on the {ACC_FRAGMENT_BITS} bits of a thread's fragment",
        fix="change pad_d",
        reason=_LDM_STRICT_REASON,
        source=PTX_WMMA,
        knobs=("pad_d",),
    ),
)

#: Where lines of C run across those of D.
_CROSSED = "(cd_rc or cd_cr)"
#: Where C is read at all.
_NO_C = "(epilogue_linear and BETA == 0) or "


def _call_ldm(operand: str, number: int) -> Iterable[Rule]:
    o, low = operand, operand.lower()
    output, unread = o in "CRD", _NO_C if o == "C" else ""
    bits = "D_BITS" if output else "A_BITS"
    fragment = "ACC_FRAGMENT_BITS" if output else f"{o}_FRAGMENT_BITS"
    align = "ALIGN_D" if output else f"ALIGN_{o}"
    scaled = f"with_{low}" if o in "CR" else None
    yield _rule(
        f"L22{number}",
        f"call-ldm-{low}",
        Scope.LAUNCH,
        f"{unread}LD{o} % {align} == 0",
        when=scaled,
        says=f"ld{low} is a multiple of {align} elements",
        message=f"ld{low} = {{LD{o}}} is no multiple of the {{{align}}} elements that {align.lower()} promises",
        fix=f"give {o} a leading dimension that is one, or a kernel with a smaller {align.lower()}",
        reason="Copies are as wide as this promise allows and begin in every row. " + _LDM_REASON,
        source=f"{GUIDE}, load_matrix_sync: ldm; {GUIDE_ACCESS}",
        knobs=(f"LD{o}",),
        status=Status.LEADING_DIMENSION,
    )
    strict_when = "store_direct" if output else "feed_global"
    yield _rule(
        f"L23{number}",
        f"call-ldm-{low}-strict",
        Scope.LAUNCH,
        f"{unread}LD{o} % ({fragment} // {bits}) == 0",
        when=" and ".join(filter(None, (scaled, strict_when, "strict_isa"))),
        says=f"every row of {o} starts on a whole fragment",
        message=f"ld{low} = {{LD{o}}}: every row must start on the {{{fragment}}} bits of a thread's fragment",
        fix=f"give {o} a leading dimension that is a multiple of that",
        reason=_LDM_STRICT_REASON,
        source=PTX_WMMA,
        knobs=(f"LD{o}",),
        status=Status.LEADING_DIMENSION,
    )


def _least_ld(operand: str, number: int, expr: str, extent: str, when: str | None = None, line: str = "row") -> Rule:
    return _rule(
        f"L24{number}",
        f"least-ld{operand.lower()}",
        Scope.LAUNCH,
        expr,
        when=when,
        says=f"ld{operand.lower()} is at least the {extent} of {operand}",
        message=f"ld{operand.lower()} = {{LD{operand}}} is less than the {extent} of {operand}",
        fix=f"a leading dimension counts the elements from one {line} to the next: at least the {line} itself",
        reason=f"{line.capitalize()}s would overlap, and the last one would be read past its end.",
        source=CONTRACT,
        knobs=(f"LD{operand}",),
        status=Status.LEADING_DIMENSION,
    )


def _zeroed(number: int, line: str, when: str) -> Rule:
    return _rule(
        f"L27{number}",
        f"zeroed-{line}s-of-d",
        Scope.LAUNCH,
        "LDD <= 2147483647 // (D_BITS // 8)",
        when=f"reduction_atomic and {when}",
        says=f"{line}s of D are less than 2^31 bytes apart",
        message=f"ldd = {{LDD}} elements are more than the 2147483647 bytes that may lie between {line}s which CUDA "
        "zeroes",
        fix="give D a smaller leading dimension, or reduction=workspace",
        reason=f"The launcher zeroes D {line} by {line}, and that is the most that cudaMemset2DAsync takes.",
        source=RUNTIME,
        status=Status.LEADING_DIMENSION,
    )


#: Where a call has more than one product.
_ONE = "BATCH <= 1 or "
#: A guard for what divides, where a call is refused for being 0.
_EACH_PRODUCT = "(BATCH if BATCH >= 1 else 1)"
_LINE_OF_D, _NEXT_D = "(LDD if LDD >= 1 else 1)", "(STRIDE_D if STRIDE_D >= 1 else 1)"


def _stride(operand: str, number: int) -> Rule:
    o, low = operand, operand.lower()
    align, bits = ("ALIGN_D", "D_BITS") if o in "CDR" else (f"ALIGN_{o}", "A_BITS")
    copied = "store_staged" if o in "CDR" else "feed_shared"
    return _rule(
        f"L25{number}",
        f"stride-{low}",
        Scope.LAUNCH,
        f"{_ONE}{_NO_C if o == 'C' else ''}"
        f"(STRIDE_{o} >= 0 and STRIDE_{o} % ({align} if {copied} else 256 // {bits}) == 0)",
        when="batch_strided" + (f" and with_{low}" if o in "CR" else ""),
        says=f"stride_{low} is 0 or more, and every {o} of the batch is aligned like the first",
        message=f"stride_{low} = {{STRIDE_{o}}}: every {o} of the batch has to be aligned as the pointer is, to "
        f"{{{align}}} elements where {o} is copied and to 32 bytes where it is not",
        fix=f"give {o} a stride that is a multiple of that; 0 where all products share it"
        if o != "D"
        else "give D a stride that is a multiple of that",
        reason="A stride leads from one pointer to the next, and what is promised of the first holds for all.",
        source=CONTRACT,
        knobs=(f"STRIDE_{o}",),
        status=Status.LEADING_DIMENSION,
    )


def _vector_stride(id: str, vector: str, line: str) -> Rule:
    """Of a vector, where the lines of D are rows or where they are columns."""
    in_vectors = along_row(vector) is (line == "column")
    whole = f" and STRIDE_{vector.upper()} % ALIGN_D == 0" if in_vectors else ""
    return _rule(
        id,
        f"stride-{vector.replace('_', '-')}" + ("" if line == "row" else f"-beside-{line}s"),
        Scope.LAUNCH,
        f"{_ONE}(STRIDE_{vector.upper()} >= 0{whole})",
        when=f"batch_strided and with_{vector} and {'d_row_major' if line == 'row' else 'not d_row_major'}",
        says=f"stride_{vector} is 0 or more"
        + (f", and every {vector} of the batch is aligned like D" if whole else ""),
        message=f"stride_{vector} = {{STRIDE_{vector.upper()}}} is negative"
        + (" or no multiple of {ALIGN_D} elements, in which it is read beside D" if whole else ""),
        fix=f"give {vector} a stride that is a multiple of that; 0 where all products share it"
        if whole
        else "0 where all products share it",
        reason="A stride leads from one pointer to the next, and what is promised of the first holds for all.",
        source=CONTRACT,
        status=Status.LEADING_DIMENSION,
    )


def _outputs_apart(number: int, line: str, across: str, lines: str, length: str, when: str) -> Rule:
    return _rule(
        f"L26{number}",
        "outputs-apart" if line == "row" else f"outputs-apart-in-{line}s",
        Scope.LAUNCH,
        f"{_ONE}M == 0 or N == 0 or STRIDE_D // {_LINE_OF_D} >= {lines}"
        f" or (STRIDE_D // {_LINE_OF_D} == {lines} - 1 and STRIDE_D % {_LINE_OF_D} >= {length})"
        f" or (STRIDE_D >= {length} and (LDD // {_NEXT_D} >= BATCH"
        f" or (LDD // {_NEXT_D} == BATCH - 1 and LDD % {_NEXT_D} >= {length})))",
        when=f"batch_strided and {when}",
        says=f"stride_d keeps the outputs apart, one behind the other or all side by side in {line}s of ldd",
        message="stride_d = {STRIDE_D} lets {BATCH} outputs of {M}x{N} with ldd = {LDD} overlap: it leads neither "
        f"behind the last {line} of the one before, nor to {across}s of their own in {line}s that hold all of them",
        fix=f"stride_d = {lines} * ldd, or more; or an ldd of BATCH * stride_d, with a stride_d of {length} or more",
        reason="Blocks write their products in no order, so an element of two outputs would be whatever came last.",
        source=CONTRACT,
        knobs=("STRIDE_D",),
        status=Status.LEADING_DIMENSION,
    )


_STRIDES: tuple[Rule, ...] = (
    _stride("A", 1),
    _stride("B", 2),
    _stride("D", 3),
    _stride("C", 4),
    _stride("R", 5),
    *(_vector_stride(f"L25{number}", vector, "row") for number, vector in enumerate(VECTORS, start=6)),
    _outputs_apart(1, "row", "column", "M", "N", "d_row_major"),
    _outputs_apart(2, "column", "row", "N", "M", "not d_row_major"),
    *(_vector_stride(f"L26{number}", vector, "column") for number, vector in enumerate(VECTORS, start=3)),
)

_LEADING: tuple[Rule, ...] = (
    *_staged_ldm("A"),
    *_staged_ldm("B"),
    *_STAGED_LDM_D,
    *_call_ldm("A", 1),
    *_call_ldm("B", 2),
    *_call_ldm("D", 3),
    *_call_ldm("C", 4),
    *_call_ldm("R", 6),
    _least_ld("A", 1, "LDA >= (K if a_row_major else M)", "extent of a row"),
    _least_ld("B", 2, "LDB >= (N if b_row_major else K)", "extent of a row"),
    _least_ld("D", 3, "LDD >= N", "N columns", "d_row_major"),
    _least_ld("C", 4, f"{_NO_C}LDC >= N", "N columns", "with_c and c_row_major"),
    _least_ld("R", 6, "LDR >= N", "N columns", "with_r and c_row_major"),
    _least_ld("D", 7, "LDD >= M", "M rows", "not d_row_major", "column"),
    _least_ld("C", 8, f"{_NO_C}LDC >= M", "M rows", "with_c and not c_row_major", "column"),
    _least_ld("R", 9, "LDR >= M", "M rows", "with_r and not c_row_major", "column"),
    *_STRIDES,
    _zeroed(1, "row", "d_row_major"),
    _zeroed(2, "column", "not d_row_major"),
)

# ---------------------------------------------------------------------------------------------------------------------
# P: pointers. 256 bits for every tile, not for the first one. The PTX ISA asks for the fragment's size, which is never
# more than 256 bits, so its reading adds nothing here.

_POINTER_REASON = (
    "load_matrix_sync and store_matrix_sync take a 256-bit aligned pointer, and that holds for every tile of the "
    "operand, not for its first. Where a tile is 8 elements of 16 bits wide, every second one starts 16 bytes off. No "
    "test can see it in global memory: the hardware accepts such an address there, and nothing promises that it goes "
    "on doing so."
)


def _staged_tiles(operand: str, number: int, across: str) -> Iterable[Rule]:
    """Steps between instruction tiles of a staged operand.

    Stages, their base and the staged tiles of D need no rule: each is made of whole rows of 16-byte units, an even
    number of them.
    """
    o, low = operand, operand.lower()
    yield _rule(
        f"P30{number}",
        f"staged-tiles-{low}",
        Scope.STATIC,
        f"WARPS_{across} * FRAGS_{across} == 1 or {o}_STEP_{across} * A_BITS % 256 == 0",
        when="feed_shared",
        says=f"every instruction tile of the staged {o} along {across} starts on 256 bits",
        message=f"instruction tiles of the staged {o} start {{{o}_STEP_{across}}} elements of {{A_BITS}} bits apart "
        f"along {across}; every one must start on 256 bits",
        fix=f"one tile along {across} (one warp, one fragment), an instruction shape that is wider along {across}, "
        f"arrange_{low}=tiles, or the other layout of {o}",
        reason=_POINTER_REASON,
        source=f"{GUIDE}, load_matrix_sync: mptr",
        knobs=(f"pad_{low}",),
    )
    yield _rule(
        f"P30{number + 5}",
        f"staged-steps-{low}",
        Scope.STATIC,
        f"K_STEPS == 1 or {o}_STEP_K * A_BITS % 256 == 0",
        when="feed_shared",
        says=f"every instruction tile of the staged {o} along K starts on 256 bits",
        message=f"instruction tiles of the staged {o} start {{{o}_STEP_K}} elements of {{A_BITS}} bits apart "
        "along K; every one must start on 256 bits",
        fix=f"k_steps=1, arrange_{low}=tiles, or the other layout of {o}",
        reason=_POINTER_REASON,
        source=f"{GUIDE}, load_matrix_sync: mptr",
        knobs=("k_steps", f"pad_{low}"),
    )


def _global_tiles(operand: str, number: int, fix: str) -> Rule:
    o = operand
    bits = "D_BITS" if o == "D" else "A_BITS"
    call = "store_matrix_sync" if o == "D" else "load_matrix_sync"
    return _rule(
        f"P30{number}",
        f"global-tiles-{o.lower()}",
        Scope.STATIC,
        f"{o}_TILE_COLS * {bits} % 256 == 0",
        when="store_direct" if o == "D" else "feed_global",
        says=f"every instruction tile of {o} in global memory starts on 256 bits",
        message=f"in global memory the {{inst}} tiles of {o} start {{{o}_TILE_COLS}} elements of {{{bits}}} bits apart "
        "within a row; every one must start on 256 bits",
        fix=fix,
        reason=_POINTER_REASON,
        source=f"{GUIDE}, {call}: mptr",
    )


def _address(id: str, operand: str, when: str, *, copied: bool) -> Rule:
    """Of a pointer that copies begin at, or that a matrix call is given."""
    o, low = operand, operand.lower()
    align, bits = ("ALIGN_D", "D_BITS") if o in "CRD" else (f"ALIGN_{o}", "A_BITS")
    width = f"{align} elements" if copied else "32 bytes"
    return _rule(
        id,
        f"pointer-{low}-{'copied' if copied else 'fragments'}",
        Scope.LAUNCH,
        (_NO_C if o == "C" else "") + f"{o}_ADDRESS % {f'({align} * {bits} // 8)' if copied else '32'} == 0",
        when=f"{when} and not batch_pointers",
        says=f"{o} is aligned to {width}",
        message=f"{o} is not aligned to {width}",
        fix="whole allocations are aligned to 256 bytes; a view must start on such a boundary, too",
        reason="Copies are as wide as this promise allows, and begin at the pointer."
        if copied
        else "The first tile is loaded or stored right at the pointer, which the guide wants 256-bit aligned.",
        source=GUIDE_ACCESS if copied else f"{GUIDE}, load_matrix_sync: mptr",
        status=Status.POINTER,
    )


#: Bytes of one scale.
_SCALE = "8 if acc_f64 else 4"


def _added(id: str, parameter: str, when: str, width: str, unread: str = "") -> Rule:
    """Of a pointer at which vectors of what an epilogue adds or scales by begin."""
    bytes_ = width if width in (_SCALE, "C_BITS // 8") else f"{width} if {width} < 16 else 16"
    return _rule(
        id,
        f"pointer-{parameter.lower().replace('_', '-')}-added",
        Scope.LAUNCH,
        f"{unread}{parameter.upper()}_ADDRESS % ({bytes_}) == 0",
        when=f"{when} and not batch_pointers",
        says=f"{parameter} is aligned to {'an element' if bytes_ == width else 'the vectors that it is read in'}",
        message=f"{parameter} is not aligned to {'an element' if bytes_ == width else 'vectors of align_d elements'}",
        fix="whole allocations are aligned to 256 bytes; a view must start on such a boundary, too",
        reason="It is read in vectors beside the stores of D, 16 bytes at a time at most."
        if bytes_ != width
        else "The hardware reads an element at a multiple of its size only.",
        source=GUIDE_ACCESS,
        status=Status.POINTER,
    )


def _array(id: str, operand: str) -> Rule:
    """Of an array of pointers; the pointers in it are on the device, where a launcher cannot look at them."""
    return _rule(
        id,
        f"array-{operand.lower().replace('_', '-')}",
        Scope.LAUNCH,
        (_NO_C if operand == "C" else "") + f"{operand.upper()}_ADDRESS % 8 == 0",
        when="batch_pointers" + ("" if operand in "ABD" else f" and with_{operand.lower()}"),
        says=f"the array of pointers to {operand} is aligned to 8 bytes",
        message=f"the array of pointers to {operand} is not aligned to 8 bytes",
        fix="whole allocations are aligned to 256 bytes",
        reason="Its elements are pointers of 8 bytes. What they point to nobody can check before the launch: each has "
        "to be aligned as the promise says, and to 32 bytes where no copy but a matrix call begins there.",
        source=GUIDE_ACCESS,
        status=Status.POINTER,
    )


def _not_null(id: str, parameter: str) -> Rule:
    """Of what an epilogue always reads, as P326 is of the others."""
    return _rule(
        id,
        f"{parameter.lower().replace('_', '-')}-not-null",
        Scope.LAUNCH,
        f"{parameter.upper()}_ADDRESS != 0",
        when=f"with_{parameter.lower()}",
        says=f"{parameter}, which is read, is not null",
        message=f"{parameter} is read and has a null pointer",
        fix="allocate it first",
        reason="A kernel that reads it ends the context.",
        source=CONTRACT,
        status=Status.POINTER,
    )


def _apart(id: str, matrix: str, expr: str, when: str, demand: str) -> Rule:
    """Of a matrix that an epilogue adds and that is D, as P327 and P328 are of C."""
    return _rule(
        id,
        f"{matrix.lower()}-that-is-d-{demand.split()[-1]}",
        Scope.LAUNCH,
        expr,
        when=when,
        says=f"where {matrix} is D, it {demand}",
        message=f"{matrix} is D, which is only right where it {demand}",
        fix=f"give {matrix} memory of its own",
        reason=f"Each element of {matrix} is read by whoever writes the element of D in the same place, before that, "
        "and by nobody else; in another place it would be overwritten before it is read.",
        source=CONTRACT,
        status=Status.POINTER,
    )


#: Tiles of D, where its sizes are multiples of the block tile and where they are any.
_WHOLE_TILES, _ALL_TILES = "M // BLOCK_M * (N // BLOCK_N)", f"{derive.BLOCK_ROWS} * {derive.BLOCK_COLS}"


def _workspace_size(id: str, name: str, tiles: str, when: str) -> Rule:
    held = "WORKSPACE_BYTES // TILE_WORK_BYTES"
    single = when.endswith("and batch_none")
    return _rule(
        id,
        name,
        Scope.LAUNCH,
        f"{held} >= {tiles}" if single else f"{held} // {_EACH_PRODUCT} >= {tiles}",
        when=f"reduction_workspace and {when}",
        says="the workspace holds the sums of every block",
        message="a workspace of {WORKSPACE_BYTES} bytes is less than the {TILE_WORK_BYTES} for each tile of "
        + ("D" if single else "each D"),
        fix="ask the launcher's workspace_bytes for the size",
        reason="Blocks that share a tile of D leave their sums there for the one that comes last.",
        source=CONTRACT,
        status=Status.WORKSPACE,
    )


def _apart_in_a_batch(id: str, matrix: str, unread: str) -> Rule:
    low = matrix.lower()
    return _rule(
        id,
        f"{low}-that-is-d-in-a-batch",
        Scope.LAUNCH,
        f"{_ONE}{unread}{matrix}_ADDRESS != D_ADDRESS or STRIDE_{matrix} == STRIDE_D",
        when=f"with_{low} and residency_fragment and batch_strided",
        says=f"a {matrix} that is D has D's stride",
        message=f"{matrix} is D, but stride_{low} = {{STRIDE_{matrix}}} is not stride_d = {{STRIDE_D}}",
        fix=f"give both one stride, or {matrix} memory of its own",
        reason=f"Each element of {matrix} is read by whoever writes the element of D in the same place, and by nobody "
        "else.",
        source=CONTRACT,
        status=Status.POINTER,
    )


_POINTERS: tuple[Rule, ...] = (
    *_staged_tiles("A", 1, "M"),
    *_staged_tiles("B", 2, "N"),
    _global_tiles("A", 3, "feed=shared, or an instruction shape that is wider there"),
    _global_tiles("B", 4, "feed=shared, or an instruction shape that is wider there"),
    _global_tiles(
        "D", 5, "store=staged, or an instruction shape that is wider along D's rows, columns where D lies so"
    ),
    _rule(
        "P351",
        "global-tiles-c",
        Scope.STATIC,
        "C_TILE_COLS * C_BITS % 256 == 0",
        when=f"store_direct and (with_c or with_r) and {_CROSSED}",
        says="every instruction tile of C, which lies across D, starts on 256 bits",
        message="in global memory the {inst} tiles of C start {C_TILE_COLS} elements of {C_BITS} bits apart within a "
        "row or column; every one must start on 256 bits",
        fix="store=staged, C and D in one layout, or an instruction shape that is wider there",
        reason=_POINTER_REASON,
        source=f"{GUIDE}, load_matrix_sync: mptr",
    ),
    _address("P321", "A", "feed_shared", copied=True),
    _address("P322", "B", "feed_shared", copied=True),
    _address("P323", "A", "feed_global", copied=False),
    _address("P324", "B", "feed_global", copied=False),
    _address("P325", "D", "store_direct", copied=False),
    _address("P331", "D", "store_staged", copied=True),
    _address("P332", "C", "with_c and store_direct", copied=False),
    _address("P333", "C", "with_c and store_staged and c_like_d", copied=True),
    _address("P371", "R", "with_r and store_direct", copied=False),
    _address("P372", "R", "with_r and store_staged and c_like_d", copied=True),
    _added("P373", "C", "with_c and store_staged and not c_like_d", "ADDED_BYTES", _NO_C),
    _added("P374", "R", "with_r and store_staged and not c_like_d", "ADDED_BYTES"),
    _added("P375", "bias_row", "with_bias_row and d_row_major", "C_BITS // 8"),
    _added("P376", "bias_col", "with_bias_col and d_row_major", "ADDED_BYTES"),
    _added("P377", "scale_row", "with_scale_row and d_row_major", _SCALE),
    _added("P378", "scale_col", "with_scale_col and d_row_major", "SCALES_BYTES"),
    _added("P355", "bias_row", "with_bias_row and not d_row_major", "ADDED_BYTES"),
    _added("P356", "bias_col", "with_bias_col and not d_row_major", "C_BITS // 8"),
    _added("P357", "scale_row", "with_scale_row and not d_row_major", "SCALES_BYTES"),
    _added("P358", "scale_col", "with_scale_col and not d_row_major", _SCALE),
    _array("P341", "A"),
    _array("P342", "B"),
    _array("P343", "D"),
    _array("P344", "C"),
    *(_array(f"P34{number}", name) for number, name in enumerate(("R", *VECTORS), start=5)),
    _rule(
        "P326",
        "pointers-not-null",
        Scope.LAUNCH,
        "D_ADDRESS != 0 and (K == 0 or (epilogue_linear and ALPHA == 0) or (A_ADDRESS != 0 and B_ADDRESS != 0))"
        f" and (not with_c or {_NO_C}C_ADDRESS != 0)",
        says="a matrix that is read or written is not null",
        message="a matrix that is read or written has a null pointer",
        fix="allocate it first",
        reason="A kernel that reads it ends the context.",
        source=CONTRACT,
        status=Status.POINTER,
    ),
    _rule(
        "P327",
        "c-that-is-d",
        Scope.LAUNCH,
        f"{_NO_C}C_ADDRESS != D_ADDRESS or LDC == LDD",
        when="with_c and residency_fragment",
        says="a C that is D has D's leading dimension",
        message="C is D, but ldc = {LDC} is not ldd = {LDD}",
        fix="give both one leading dimension, or C memory of its own",
        reason="Each element of C is read by whoever writes the element of D in the same place, and by nobody else.",
        source=CONTRACT,
        status=Status.POINTER,
    ),
    _rule(
        "P328",
        "c-apart-from-d",
        Scope.LAUNCH,
        f"{_NO_C}C_ADDRESS != D_ADDRESS",
        when="with_c and residency_global",
        says="C is not D, which holds the partial sums",
        message="C is D, which holds the partial sums while the kernel runs",
        fix="give C memory of its own, or residency=fragment",
        reason="The first slice of K overwrites D, long before C is read.",
        source=CONTRACT,
        status=Status.POINTER,
    ),
    *(_not_null(f"P39{number}", name) for number, name in enumerate(("R", *VECTORS), start=1)),
    _apart("P381", "R", "R_ADDRESS != D_ADDRESS or LDR == LDD", "with_r and residency_fragment", "has D's ldd"),
    _apart("P382", "R", "R_ADDRESS != D_ADDRESS", "with_r and residency_global", "holds no partial sums"),
    _apart("P383", "C", f"{_NO_C}C_ADDRESS != D_ADDRESS", "with_c and not c_like_d", "has D's type"),
    _apart("P384", "R", "R_ADDRESS != D_ADDRESS", "with_r and not c_like_d", "has D's type"),
    _apart("P385", "C", f"{_NO_C}C_ADDRESS != D_ADDRESS", f"with_c and {_CROSSED}", "has D's layout"),
    _apart("P386", "R", "R_ADDRESS != D_ADDRESS", f"with_r and {_CROSSED}", "has D's layout"),
    _apart_in_a_batch("P329", "C", _NO_C),
    _apart_in_a_batch("P330", "R", ""),
    _rule(
        "P334",
        "pointer-workspace",
        Scope.LAUNCH,
        "WORKSPACE_ADDRESS != 0 and WORKSPACE_ADDRESS % 32 == 0",
        when="reduction_workspace",
        says="the workspace is not null and aligned to 32 bytes",
        message="the workspace is null or not aligned to 32 bytes",
        fix="whole allocations are aligned to 256 bytes",
        reason="Sums are stored there and loaded again as fragments.",
        source=f"{GUIDE}, store_matrix_sync: mptr",
        status=Status.WORKSPACE,
    ),
    _workspace_size("P335", "workspace-size", _WHOLE_TILES, "residue_exact and batch_none"),
    _workspace_size("P336", "workspace-size-of-parts", _ALL_TILES, "residue_predicated and batch_none"),
    _workspace_size("P337", "workspace-size-of-batch", _WHOLE_TILES, "residue_exact and not batch_none"),
    _workspace_size("P338", "workspace-size-of-parts-of-batch", _ALL_TILES, "residue_predicated and not batch_none"),
)

# ---------------------------------------------------------------------------------------------------------------------
# R: resources.  C: copies.  X: axes that mean nothing under another.  N: the sizes of a call.


def _resident(id: str, name: str, expr: str, message: str, when: str | None = None) -> Rule:
    """Of the blocks that the launch bounds name."""
    return _rule(
        id,
        name,
        Scope.ARCH,
        expr,
        when=when,
        says="a multiprocessor can hold the blocks that the launch bounds name",
        message=message + " that a multiprocessor of sm_{SM} holds",
        fix="smaller min_blocks, or smaller blocks",
        reason="Registers would be withheld for blocks that can never be resident.",
        source=GUIDE_LIMITS,
        knobs=("min_blocks",),
    )


_FITS = "SHARED_BYTES <= MAX_SHARED_BYTES"
_RESIDENT_SHARED = (
    "MIN_BLOCKS == 1 or "
    "MIN_BLOCKS * ((SHARED_BYTES + 127) // 128 * 128 + RESERVED_SHARED_BYTES) <= MULTIPROCESSOR_SHARED_BYTES"
)
_RESIDENT_SHARED_WORDS = (
    "{MIN_BLOCKS} blocks with {SHARED_BYTES} bytes of shared memory each, and {RESERVED_SHARED_BYTES} reserved for "
    "each, are more than the {MULTIPROCESSOR_SHARED_BYTES} bytes"
)
_STAGES, _ONLY_GROUPS = "feed_shared or store_staged", "feed_global and store_direct"

_RESOURCES: tuple[Rule, ...] = (
    _rule(
        "R401",
        "threads-per-block",
        Scope.STATIC,
        f"THREADS <= {derive.MAX_THREADS}",
        says=f"a block has {derive.MAX_THREADS} threads at most",
        message=f"{{warps}} warps are {{THREADS}} threads; a block holds {derive.MAX_THREADS} at most",
        fix="fewer warps or groups of them, more fragments per warp",
        reason="The hardware launches no larger block.",
        source=GUIDE_LIMITS,
    ),
    _rule(
        "R402",
        "shared-memory-per-block",
        Scope.ARCH,
        _FITS,
        when=_STAGES,
        says="what is staged fits into the shared memory of a block",
        message="{STAGES} stages of {A_STAGE} + {B_STAGE} elements, or a strip of D of {D_STRIP} sums for each warp, "
        "or the sums that {WARPS_K} groups of warps pass on, take {SHARED_BYTES} bytes of shared memory; a block of "
        "sm_{SM} has {MAX_SHARED_BYTES} at most, opted in",
        fix="fewer stages, fewer k_steps, or a smaller block (warps, frags)",
        reason="The launch would be refused; the budget is the sum of dynamic and static memory, and this file "
        "declares no static memory.",
        source=GUIDE_LIMITS,
        knobs=("stages", "k_steps"),
    ),
    _resident(
        "R403",
        "resident-threads",
        "MIN_BLOCKS * THREADS <= MULTIPROCESSOR_THREADS",
        "{MIN_BLOCKS} blocks of {THREADS} threads are more than the {MULTIPROCESSOR_THREADS} threads",
    ),
    _resident(
        "R404",
        "resident-blocks",
        "MIN_BLOCKS <= MULTIPROCESSOR_BLOCKS",
        "{MIN_BLOCKS} blocks are more than the {MULTIPROCESSOR_BLOCKS}",
    ),
    _resident(
        "R405",
        "resident-shared-memory",
        _RESIDENT_SHARED,
        _RESIDENT_SHARED_WORDS,
        when=_STAGES,
    ),
    _rule(
        "R406",
        "workspace-of-a-tile",
        Scope.STATIC,
        "SPLIT_K < 2147483647 // (PARTIAL * ACC_BITS // 8)",
        when="reduction_workspace",
        says="the workspace of one tile of D is less than 2^31 bytes",
        message="{SPLIT_K} blocks leave {PARTIAL} sums of {ACC_BITS} bits each, which are no less than 2^31 bytes",
        fix="a smaller split_k, smaller blocks, or reduction=atomic",
        reason="Places within a tile's workspace are ints.",
        source=TEMPLATE,
        knobs=("split_k",),
    ),
    _rule(
        "R407",
        "shared-memory-of-groups",
        Scope.ARCH,
        f"True if WARPS_K == 1 else {_FITS}",
        when=_ONLY_GROUPS,
        says="the sums that groups of warps pass on fit into a block's shared memory",
        message="{WARPS_K} groups of warps pass on {SHARED_BYTES} bytes of sums; a block of sm_{SM} has "
        "{MAX_SHARED_BYTES} bytes of shared memory at most, opted in",
        fix="fewer groups, or a smaller block (warps, frags)",
        reason="The launch would be refused.",
        source=GUIDE_LIMITS,
        knobs=("warps_k",),
    ),
    _resident(
        "R408",
        "resident-sums-of-groups",
        f"True if WARPS_K == 1 else {_RESIDENT_SHARED}",
        _RESIDENT_SHARED_WORDS,
        when=_ONLY_GROUPS,
    ),
)


def _copy_rules(operand: str, number: int) -> Iterable[Rule]:
    o, low = operand, operand.lower()
    yield _rule(
        f"C51{number}",
        f"copy-rows-{low}",
        Scope.STATIC,
        f"{o}_COLS % ALIGN_{o} == 0",
        when="feed_shared",
        says=f"a row of {o}'s slice is a whole number of copies",
        message=f"a row of {o}'s slice is {{{o}_COLS}} elements, which is no whole number of copies of {{ALIGN_{o}}}",
        fix="more fragments or warps along that row, or more k_steps",
        reason="Every copy stays within one row.",
        source=TEMPLATE,
    )
    yield _rule(
        f"C52{number}",
        f"copy-share-{low}",
        Scope.STATIC,
        f"{o}_ROWS * {o}_ROW_VECTORS % THREADS == 0",
        when="feed_shared",
        says=f"the threads share the copies of {o}'s slice evenly",
        message=f"a slice of {o} is {{{o}_ROWS}} rows of {{{o}_ROW_VECTORS}} copies, which {{THREADS}} "
        "threads cannot share evenly",
        fix="more k_steps or frags, or fewer warps",
        reason="The copy loop is unrolled without a tail, so that no thread leaves it early.",
        source=TEMPLATE,
        knobs=("k_steps",),
    )
    yield _promise(f"C53{number}", f"widest-copy-{low}", f"ALIGN_{o} * A_BITS <= 128", "feed_shared", f"align_{low}")
    yield _rule(
        f"C54{number}",
        f"whole-bytes-{low}",
        Scope.STATIC,
        f"ALIGN_{o} * A_BITS % 8 == 0",
        when="copy_ld",
        says=f"a copy of {o} moves whole bytes",
        message=f"align_{low}={{ALIGN_{o}}} elements of {{A_BITS}} bits are no whole bytes",
        fix=f"a larger align_{low}",
        reason="Memory is addressed in bytes.",
        source=GUIDE_ACCESS,
    )
    yield _rule(
        f"C55{number}",
        f"cpasync-width-{low}",
        Scope.STATIC,
        f"ALIGN_{o} * A_BITS >= 32",
        when="copy_cpasync",
        says=f"cp.async copies at least 4 bytes of {o}",
        message=f"align_{low}={{ALIGN_{o}}} promises less than the 4 bytes that cp.async copies at least",
        fix=f"copy=ld, or a larger align_{low}",
        reason="cp.async copies 4, 8 or 16 bytes.",
        source=PTX_CPASYNC,
    )


def _promise(id: str, name: str, expr: str, when: str, key: str) -> Rule:
    """Of an alignment that promises more than the widest copy, or less than a matrix call needs."""
    least = "==" in expr
    return _rule(
        id,
        name,
        Scope.STATIC,
        expr,
        when=when,
        says=f"{key} is {'exactly' if least else 'at most'} 16 bytes",
        message=f"{key}={{{key.upper()}}} elements are {'not' if least else 'more than'} 16 bytes",
        fix=f"{key} of 16 bytes" + ("" if least else " or less"),
        reason="Matrix calls take no less, and a promise of more changes nothing."
        if least
        else "No copy is wider, so a promise of more changes nothing and would be a second name for one kernel.",
        source=GUIDE_ACCESS,
    )


_COPIES: tuple[Rule, ...] = (
    _rule(
        "C501",
        "cpasync-needs-architecture",
        Scope.ARCH,
        "SM >= 80",
        when="copy_cpasync",
        says="cp.async needs sm_80",
        message="cp.async begins with sm_80; asked was sm_{SM}",
        fix="copy=ld,stages=2",
        reason="Earlier architectures copy through registers only.",
        source=PTX_CPASYNC,
    ),
    _rule(
        "C502",
        "cpasync-stages",
        Scope.STATIC,
        "STAGES >= 2",
        when="copy_cpasync",
        says="cp.async fills one buffer while another is read",
        message="copy=cpasync with stages={STAGES}: there is no buffer to fill while one is read",
        fix="stages=2 or more",
        reason="A copy that nothing overlaps is waited for in full; copy=ld does that with less.",
        source=TEMPLATE,
        knobs=("stages",),
    ),
    _rule(
        "C503",
        "ld-stages",
        Scope.STATIC,
        "STAGES <= 2",
        when="copy_ld",
        says="registers hold one slice ahead",
        message="copy=ld with stages={STAGES}: registers hold one slice ahead, so a third buffer would never be filled",
        fix="stages=1, stages=2, or copy=cpasync (sm_80 and later)",
        reason="The next slice waits in registers, and there is one set of them.",
        source=TEMPLATE,
        knobs=("stages",),
    ),
    *_copy_rules("A", 1),
    *_copy_rules("B", 2),
    _rule(
        "C561",
        "store-within-tile",
        Scope.STATIC,
        "D_TILE_COLS % ALIGN_D == 0",
        when="store_staged and (d_s8 or d_u8)",
        says="a store of D stays within one instruction tile",
        message="one store of D is {ALIGN_D} elements, and a row of an instruction tile is {D_TILE_COLS}",
        fix="a smaller align_d, or an instruction shape that is wider along N",
        reason="Sums are staged tile by tile, and only those of one tile lie side by side. Stores of wider elements "
        "are never longer than a tile is wide.",
        source=TEMPLATE,
    ),
    _rule(
        "C562",
        "store-share",
        Scope.STATIC,
        "(INST_M if d_row_major else INST_N) * D_ROW_VECTORS % 32 == 0",
        when="store_staged and (d_s8 or d_u8)",
        says="the lanes of a warp share the stores of a row of tiles evenly",
        message="a row of a warp's tiles is {D_TILE_ROWS} rows of {D_ROW_VECTORS} stores of D, which 32 lanes cannot "
        "share evenly",
        fix="an even number of fragments across, or a smaller align_d",
        reason="The loop over stores has no tail. A tile has 32 stores at least where elements are wider.",
        source=TEMPLATE,
    ),
)


def _meaningless(id: str, name: str, expr: str, when: str | None, key: str, only: str, why: str) -> Rule:
    return _rule(
        id,
        name,
        Scope.STATIC,
        expr,
        when=when,
        says=f"{key} is {only} where {why}",
        message=f"{key}={{{key}}} means nothing where {why}",
        fix=f"{key}={only}",
        reason="An axis that means nothing has one legal value, so that no two names mean one kernel.",
        source="NAMES.md",
        structural=True,
    )


_UNFED = "feed=global: nothing is staged"
_UNSTAGED = "D is stored straight from the fragments"
_AXES: tuple[Rule, ...] = (
    _meaningless("X601", "no-copy", "copy_none", "feed_global", "copy", "none", _UNFED),
    _meaningless("X602", "no-stages", "STAGES == 1", "feed_global", "stages", "1", _UNFED),
    _meaningless("X603", "no-pad-a", "PAD_A == 0", "feed_global", "pad_a", "0", _UNFED),
    _meaningless("X604", "no-pad-b", "PAD_B == 0", "feed_global", "pad_b", "0", _UNFED),
    _meaningless("X605", "no-arrangement-a", "arrange_a_rows", "feed_global", "arrange_a", "rows", _UNFED),
    _meaningless("X606", "no-arrangement-b", "arrange_b_rows", "feed_global", "arrange_b", "rows", _UNFED),
    _promise("X609", "fed-alignment-a", "ALIGN_A * A_BITS == 128", "feed_global", "align_a"),
    _promise("X610", "fed-alignment-b", "ALIGN_B * A_BITS == 128", "feed_global", "align_b"),
    _promise("X611", "stored-alignment-d", "ALIGN_D * D_BITS == 128", "store_direct", "align_d"),
    _promise("X612", "widest-store-d", "ALIGN_D * D_BITS <= 128", "store_staged", "align_d"),
    _meaningless("X607", "no-pad-d", "PAD_D == 0", "store_direct", "pad_d", "0", _UNSTAGED),
    _rule(
        "X621",
        "no-type-of-c",
        Scope.STATIC,
        "c_like_d",
        when="not epilogue_adds",
        says="c is D's type where the epilogue adds nothing",
        message="c={c} means nothing where epilogue={epilogue} adds nothing",
        fix="c={d}, or leave it out",
        reason="An axis that means nothing has one legal value, so that no two names mean one kernel.",
        source="NAMES.md",
        structural=True,
    ),
    _rule(
        "X641",
        "no-layout-of-c",
        Scope.STATIC,
        "cd_rr or cd_cc",
        when="not with_c and not with_r",
        says="C has D's layout where the epilogue adds no matrix",
        message="cd={cd} gives C a layout of its own, and epilogue={epilogue} has neither C nor R",
        fix="cd=rr for a row-major D, cd=cc for a column-major one",
        reason="An axis that means nothing has one legal value, so that no two names mean one kernel.",
        source="NAMES.md",
        structural=True,
    ),
    _rule(
        "X622",
        "elements-with-places",
        Scope.STATIC,
        "store_staged",
        when="epilogue_positional",
        says="an epilogue that asks where an element lies needs it in shared memory",
        message="epilogue={epilogue} depends on an element's row or column, which store={store} does not know",
        fix="store=staged, or an epilogue without vectors, row and col",
        reason="Which lane holds which element of a fragment is not specified; read back from shared memory, each has "
        "a row and a column.",
        source=GUIDE,
        structural=True,
    ),
    _rule(
        "X623",
        "added-fragments",
        Scope.STATIC,
        "c_like_acc",
        when="epilogue_adds and store_direct",
        says="what is added in fragments has the accumulator's type",
        message="c={c}: beside fragments of {acc} a matrix of another type cannot be added",
        fix="store=staged, or c={acc}",
        reason="Two fragments hold the same place in the same element only where they have one type.",
        source=GUIDE,
        structural=True,
    ),
    _rule(
        "X613",
        "second-fragment-buffer",
        Scope.STATIC,
        "FRAGMENT_BUFFERS == 1 or K_STEPS > WARPS_K",
        says="a second set of operand fragments needs a second step along K",
        message="fragment_buffers={FRAGMENT_BUFFERS} with k_steps={K_STEPS} for {WARPS_K} groups of warps: there is no "
        "next step to load ahead",
        fix="fragment_buffers=1, or more k_steps",
        reason="An axis that means nothing has one legal value, so that no two names mean one kernel.",
        source="NAMES.md",
        knobs=("k_steps",),
        structural=True,
    ),
    _rule(
        "X615",
        "fragments-ahead",
        Scope.STATIC,
        "FRAGMENT_BUFFERS == 1 or STAGES == 1 or K_STEPS % (2 * WARPS_K) == 0 or K_STEPS == WARPS_K",
        when="feed_shared",
        says="fragments that are loaded across slices need an even number of steps along K",
        message="fragment_buffers={FRAGMENT_BUFFERS} with {STAGES} stages and k_steps={K_STEPS} for {WARPS_K} groups "
        "of warps: with an odd number of steps, the two sets of fragments would change their places in every slice",
        fix="fragment_buffers=1, or an even number of k_steps",
        reason="Which set a step uses is known when the kernel is compiled, or fragments end up in local memory.",
        source=TEMPLATE,
        knobs=("k_steps",),
        structural=True,
    ),
    _meaningless("X618", "no-overflow", "overflow_wrap or acc_s32", None, "overflow", "wrap", "sums are not integers"),
    _rule(
        "X614",
        "sums-in-d",
        Scope.STATIC,
        "store_direct",
        when="residency_global",
        says="partial sums that live in D are fragments there",
        message="residency=global keeps partial sums in D as fragments; store={store} would store them another way",
        fix="store=direct, or residency=fragment",
        reason="What the last slice leaves is stored as those before it.",
        source=TEMPLATE,
        structural=True,
    ),
    _rule(
        "X616",
        "edges-are-staged",
        Scope.STATIC,
        "feed_shared",
        when="residue_predicated",
        says="what lies outside of A and B is replaced by zeros in shared memory",
        message="feed=global with residue=predicated: a fragment that is loaded from global memory reads whole tiles, "
        "also where A or B ends within one",
        fix="feed=shared, or residue=exact",
        reason="A matrix load takes no bound: all of its tile is read.",
        source=f"{GUIDE}, load_matrix_sync",
        structural=True,
    ),
    _rule(
        "X617",
        "edges-keep-their-sums",
        Scope.STATIC,
        "residency_fragment",
        when="residue_predicated",
        says="partial sums of a part of a tile stay in registers",
        message="residency=global with residue=predicated: sums would be parked in D as whole tiles, also where D ends "
        "within one",
        fix="residency=fragment, or residue=exact",
        reason="A matrix store takes no bound: all of its tile is written.",
        source=f"{GUIDE}, store_matrix_sync",
        structural=True,
    ),
    _rule(
        "X624",
        "reduction-of-splits",
        Scope.STATIC,
        "SPLIT_K == 1 and reduction_none or SPLIT_K > 1 and (reduction_workspace or reduction_atomic)",
        says="sums meet where blocks share a tile of D, and nowhere else",
        message="split_k={SPLIT_K} with reduction={reduction}: one block has all sums of a tile, or more do",
        fix="split_k=1,reduction=none, or more splits and reduction=workspace or reduction=atomic",
        reason="Blocks that share a tile would overwrite each other's sums; where none does, an axis that means "
        "nothing has one legal value, so that no two names mean one kernel.",
        source="NAMES.md",
        structural=True,
    ),
    _rule(
        "X625",
        "splits-in-registers",
        Scope.STATIC,
        "reduction_none",
        when="residency_global",
        says="partial sums that live in D belong to one block",
        message="residency=global keeps partial sums in D; with reduction={reduction} several blocks would",
        fix="split_k=1,reduction=none, or residency=fragment",
        reason="Blocks that share a tile of D would overwrite each other's sums in every slice.",
        source=TEMPLATE,
        structural=True,
    ),
    _rule(
        "X626",
        "atomics-by-place",
        Scope.STATIC,
        "store_staged",
        when="reduction_atomic",
        says="sums that are added to D pass through shared memory",
        message="reduction=atomic adds sums to D element by element; with store={store} nobody knows their places",
        fix="store=staged, or reduction=workspace",
        reason="Which lane holds which element of a fragment is not specified, and there is no atomic matrix store.",
        source=GUIDE,
        structural=True,
    ),
    _rule(
        "X619",
        "atomics-finish-nothing",
        Scope.STATIC,
        "epilogue_none",
        when="reduction_atomic",
        says="sums that are added to D by atomics are D",
        message="reduction=atomic with epilogue={epilogue}: no block ever has the finished sum to apply it to",
        fix="epilogue=none, or reduction=workspace",
        reason="Factors would be applied to parts and rounded with each, and a C that is D would be zeroed before it "
        "is read.",
        source=TEMPLATE,
        structural=True,
    ),
    _rule(
        "X620",
        "splits-of-one-product",
        Scope.STATIC,
        "batch_none",
        when="reduction_atomic",
        says="sums are added to the D of one product",
        message="reduction=atomic with batch={batch}: the D of every product would have to be zeroed before the launch",
        fix="reduction=workspace, or batch=none",
        reason="What an array of pointers names the launcher does not know, and what strides name would take a call "
        "for each product.",
        source=TEMPLATE,
        structural=True,
    ),
    _rule(
        "X628",
        "splits-that-wrap",
        Scope.STATIC,
        "overflow_wrap",
        when="reduction_workspace or reduction_atomic",
        says="sums of splits are added in any order of products",
        message="overflow={overflow} with reduction={reduction}: where sums stay depends on the order of all products",
        fix="overflow=wrap, or split_k=1,reduction=none",
        reason="Sums saturate product by product; what several blocks have summed does not tell where one block would "
        "have stayed.",
        source=TEMPLATE,
        structural=True,
    ),
    _rule(
        "X631",
        "steps-of-groups",
        Scope.STATIC,
        "K_STEPS % WARPS_K == 0",
        says="the groups of warps share the steps of a slice evenly",
        message="{WARPS_K} groups of warps cannot share the k_steps={K_STEPS} of a slice evenly",
        fix="a multiple of warps_k as k_steps, or fewer groups",
        reason="All groups go through the same barriers, so the slowest one sets the pace; and one text has one number "
        "of steps.",
        source=TEMPLATE,
        knobs=("k_steps", "warps_k"),
    ),
    _rule(
        "X632",
        "groups-in-registers",
        Scope.STATIC,
        "WARPS_K == 1",
        when="residency_global",
        says="partial sums that live in D belong to one warp",
        message="residency=global keeps partial sums in D, where {WARPS_K} groups would overwrite each other's",
        fix="warps_k=1, or residency=fragment",
        reason="Groups have the same tile of D, and would overwrite each other's sums in every slice.",
        source=TEMPLATE,
        structural=True,
    ),
    _rule(
        "X633",
        "groups-that-wrap",
        Scope.STATIC,
        "WARPS_K == 1",
        when="overflow_saturate",
        says="sums that saturate belong to one warp",
        message="overflow=saturate with warps_k={WARPS_K}: sums saturate product by product, in one order",
        fix="warps_k=1, or overflow=wrap",
        reason="What one group has cut off, the products of another could have brought back into the type.",
        source=TEMPLATE,
        structural=True,
    ),
    _rule(
        "X608",
        "staging-needs-a-copy",
        Scope.STATIC,
        "copy_ld or copy_cpasync",
        when="feed_shared",
        says="something fills shared memory",
        message="feed=shared with copy={copy}: nothing would fill shared memory",
        fix="copy=ld or copy=cpasync, or feed=global",
        reason="Fragments would be loaded from memory that nobody wrote.",
        source="NAMES.md",
    ),
)


def _multiple(axis: str, number: int) -> Rule:
    return _rule(
        f"N80{number}",
        f"multiple-of-block-{axis.lower()}",
        Scope.LAUNCH,
        f"{axis} % BLOCK_{axis} == 0",
        when="residue_exact",
        says=f"{axis} is a multiple of BLOCK_{axis}",
        message=f"{axis} = {{{axis}}} is no multiple of BLOCK_{axis} = {{BLOCK_{axis}}}; "
        "residue=exact takes multiples only",
        fix=f"residue=predicated, pad {axis}, or a kernel with another block tile",
        reason="Such a kernel has no code for a part of a tile, which is what makes it fast.",
        source=CONTRACT,
        knobs=(axis,),
        status=Status.SIZE,
    )


def _grid_limit(id: str, name: str, expr: str, when: str) -> Rule:
    return _rule(
        id,
        name,
        Scope.LAUNCH,
        expr,
        when=when,
        says="the blocks fit into one grid",
        message="{M}x{N} is {M} / {BLOCK_M} by {N} / {BLOCK_N} blocks, more than a grid holds (2147483647)",
        fix="a kernel with a larger block tile, or several calls",
        reason="Blocks are numbered in one dimension, which ends there.",
        source=GUIDE_LIMITS,
        status=Status.SIZE,
    )


_SIZES: tuple[Rule, ...] = (
    _rule(
        "N800",
        "sizes-not-negative",
        Scope.LAUNCH,
        "M >= 0 and N >= 0 and K >= 0",
        says="sizes are not negative",
        message="{M}x{N}x{K} has a negative size",
        fix="sizes are 0 or more",
        reason="There is no such matrix.",
        source=CONTRACT,
        status=Status.SIZE,
    ),
    _multiple("M", 1),
    _multiple("N", 2),
    _multiple("K", 3),
    _grid_limit(
        "N804", "grid-limit", "M // BLOCK_M <= 2147483647 // (N // BLOCK_N if N >= BLOCK_N else 1)", "residue_exact"
    ),
    _grid_limit(
        "N805",
        "grid-limit-of-parts",
        f"N == 0 or {derive.BLOCK_ROWS} <= 2147483647 // (1 if N == 0 else {derive.BLOCK_COLS})",
        "residue_predicated",
    ),
    _rule(
        "N811",
        "batch-limit",
        Scope.LAUNCH,
        f"BATCH >= 0 and BATCH <= {derive.MAX_BATCH}",
        when="batch_strided or batch_pointers",
        says=f"a batch has 0 to {derive.MAX_BATCH} products",
        message=f"a batch of {{BATCH}} products; one launch takes 0 to {derive.MAX_BATCH}",
        fix="several calls, each with the pointers of its part of the batch",
        reason="The second dimension of the grid counts them, so that no block divides for its number, and it ends "
        "there; a call that is full takes so long that a second one costs nothing.",
        source=GUIDE_LIMITS,
        status=Status.SIZE,
    ),
)

_SEARCH: tuple[Rule, ...] = (
    _rule(
        "S901",
        "splits-with-slices",
        Scope.SEARCH,
        "SPLIT_K == 1 or SPLIT_K <= K // BLOCK_K",
        says="every split has a slice of K",
        message="{SPLIT_K} splits are more than the slices of K = {K}, of {BLOCK_K} each",
        fix="fewer splits",
        reason="A block without a slice is right and only costs time.",
        source=TEMPLATE,
    ),
    _rule(
        "S902",
        "splits-of-few-tiles",
        Scope.SEARCH,
        f"SPLIT_K == 1 or BLOCKS * BATCH * SPLIT_K <= {FULL_GRID}",
        says="K is split where tiles alone leave multiprocessors idle",
        message=f"{{BLOCKS}} tiles of D in {{SPLIT_K}} splits are more than the {FULL_GRID} blocks that fill a device",
        fix="fewer splits",
        reason="Each split costs traffic of sums; where enough blocks are there, it gains nothing.",
        source=TEMPLATE,
    ),
)

#: The table, in the order in which violations are reported.
RULES: tuple[Rule, ...] = (
    *_TYPES,
    *_SIZES,
    *_LEADING,
    *_POINTERS,
    *_RESOURCES,
    *_COPIES,
    *_AXES,
    *_SEARCH,
)
#: Those that make something illegal.
LEGALITY = tuple(rule for rule in RULES if rule.scope is not Scope.SEARCH)

if len({r.id for r in RULES}) != len(RULES):
    raise ValueError("two rules share an id")
for _rule_ in RULES:
    _read = _rule_.expr.names | (_rule_.when.names if _rule_.when else frozenset())
    if _read - derive.NAMES:
        # A rule speaks where its names are known, so one with a misspelt name would never speak.
        raise ValueError(f"{_rule_.id} reads {sorted(_read - derive.NAMES)}, which nothing defines")


#: How each derived number follows from others.
FORMULAS = {c.name: c.expr for c in derive.CONSTANTS + derive.COSTS + derive.CALL if c.expr is not None}


@functools.cache
def roots_of_name(name: str) -> frozenset[str]:
    """The numbers and flags, none of them derived, from which ``name`` follows in the end."""
    formula = FORMULAS.get(name)
    return frozenset((name,)) if formula is None else roots_of_all(formula.names)


@functools.cache
def roots_of_all(names: frozenset[str]) -> frozenset[str]:
    """The numbers and flags, none of them derived, from which all of ``names`` follow in the end."""
    return frozenset().union(*map(roots_of_name, names))


@functools.cache
def names_read(rule: Rule) -> frozenset[str]:
    """The names in a rule and its condition."""
    return rule.expr.names | (rule.when.names if rule.when else frozenset())


def roots_of(rule: Rule) -> frozenset[str]:
    """The numbers and flags, none of them derived, on which the verdict of ``rule`` depends."""
    return roots_of_all(names_read(rule))


#: The flags that conditions of rules read: the structure that decides which rules speak.
_FLAGS = sorted(frozenset().union(*(rule.when.names for rule in LEGALITY if rule.when)))
_flags_of = operator.itemgetter(*_FLAGS)


@functools.lru_cache(maxsize=1 << 10)
def _speaking(flags: tuple[bool, ...]) -> tuple[Rule, ...]:
    """The rules that speak of a structure, of which many configurations are asked about one after the other."""
    known = dict(zip(_FLAGS, flags, strict=True))
    return tuple(rule for rule in LEGALITY if rule.applies(known))


def broken(known: Mapping[str, Any]) -> list[Rule]:
    """The rules that the values of one configuration break, in the order of the table."""
    return list(_broken(known))


def _broken(known: Mapping[str, Any]) -> Iterator[Rule]:
    for rule in _speaking(_flags_of(known)):
        if rule.expr.names <= known.keys() and not rule.expr(known):
            yield rule


def legal(config: KernelConfig, arch: Arch | None = None, *, strict_isa: bool = False) -> bool:
    """Whether ``config`` breaks no rule; quicker than :func:`check`, which also finds the words."""
    known = derive.values(config, arch, strict_isa=strict_isa)
    return next(_broken(known), None) is None


def check(
    config: KernelConfig,
    arch: Arch | None = None,
    problem: Problem | None = None,
    *,
    strict_isa: bool = False,
) -> list[Violation]:
    """The rules that ``config`` breaks, in the order of the table; empty where it is legal.

    Rules that need an architecture or a call speak where one is given. Where the instruction table has no such product,
    what an instruction of the operand would keep is left out: it only follows from that.
    """
    known = derive.values(config, arch, problem, strict_isa=strict_isa)
    found = broken(known)
    if any(rule.id.startswith(_OF_TYPES) for rule in found):
        others = [derive.values(c, arch, problem, strict_isa=strict_isa) for c in _with_an_instruction(config)]
        found = [r for r in found if r.id.startswith(_OF_TYPES) or not any(r.kept(other) for other in others)]
    return [_explain(rule, known, config) for rule in found]


#: The group of rules that say which products there are.
_OF_TYPES = "T"


def _with_an_instruction(config: KernelConfig) -> list[KernelConfig]:
    """``config`` with each instruction of its operand type; none where the table has the one that it asks for."""
    o = config.operation
    if instructions.find(o.a, o.acc, *config.multiplied) is not None:
        return []
    return [
        replace(config, operation=replace(o, acc=row.acc), inst=Shape(row.m, row.n, row.k))
        for row in instructions.of_operand(o.a)
    ]


def demand(
    config: KernelConfig, arch: Arch | None = None, problem: Problem | None = None, *, strict_isa: bool = False
) -> None:
    """Return where ``config`` is legal.

    Raises:
        IllegalConfig: it is not; the message holds every violation.
    """
    violations = check(config, arch, problem, strict_isa=strict_isa)
    if violations:
        where = (f" on {arch}" if arch else "") + (f" for {problem}" if problem else "")
        lines = "\n".join(str(v) for v in violations)
        raise IllegalConfig(f"{name_of(config)} is illegal{where}:\n{lines}", violations[0].fix, violations)


# ---------------------------------------------------------------------------------------------------------------------
# Words for a violation: the numbers, and the nearest values that would be legal.


def _explain(rule: Rule, known: Mapping[str, Any], config: KernelConfig) -> Violation:
    words = {
        "c": config.operation.added.name,
        **{k: spell(v) for k, v in values_of(config).items()},
        **{k: v for k, v in known.items() if k.isupper()},
    }
    words["older_types"] = " ".join(dict.fromkeys(i.a.name for i in instructions.INSTRUCTIONS if i.min_sm <= 75))
    fix = rule.fix.format(**words)
    others = frozenset(r.id for r in broken(known)) - {rule.id} if rule.knobs else frozenset()
    near = [text for knob in rule.knobs if (text := _nearest(knob, known, others))]
    if near:
        how = "nearest, once the others are mended" if others else "nearest legal"
        fix = f"{fix} ({how}: {'; '.join(near)})"
    return Violation(rule, rule.message.format(**words), fix)


def _nearest(knob: str, known: Mapping[str, Any], others: frozenset[str]) -> str:
    """The values of ``knob`` next to the present one, on both sides, with which every rule is kept but the ``others``.

    Empty where there are none.
    """
    name = knob.upper()
    present = known[name]
    column = np.arange(max(_LEAST.get(knob, 0), present - _REACH), present + _REACH + 1)
    kept = np.ones(len(column), dtype=np.bool_)
    # The strides of a batch follow its sizes: one product says what is legal of those.
    one = {"BATCH": 1} if knob in ("M", "N", "K") else {}
    changed = derive.follow({**known, **one, **dict.fromkeys(_packed(knob, known), column), name: column})
    for rule in LEGALITY:
        if rule.id not in others:
            kept &= rule.kept(changed)
    below = column[kept & (column < present)]
    above = column[kept & (column > present)]
    found = [*below[-1:], *above[:1]]
    word = knob if len(knob) == 1 else knob.lower()
    return f"{word}={' or '.join(str(v) for v in found)}" if found else ""


#: How far from the present value a nearest one is looked for; above every pad and block tile that has a use.
_REACH = 4096
#: Counts begin with 1, everything else with 0. A call of no size is legal, but nobody who has a size is helped by that.
_LEAST = {"stages": 1, "k_steps": 1, "min_blocks": 1, "split_k": 1, "warps_k": 1, "M": 1, "N": 1, "K": 1}


def _packed(knob: str, known: Mapping[str, Any]) -> list[str]:
    """The leading dimensions that are the size ``knob`` because the matrix is packed; they follow it."""
    own = {"LDD": known["d_row_major"], **dict.fromkeys(("LDC", "LDR"), known["c_row_major"])}
    outputs = {rows: [ld for ld, row_major in own.items() if row_major is rows] for rows in (True, False)}
    follow = {
        "M": [*([] if known["a_row_major"] else ["LDA"]), *outputs[False]],
        "N": [*outputs[True], *(["LDB"] if known["b_row_major"] else [])],
        "K": [*(["LDA"] if known["a_row_major"] else []), *([] if known["b_row_major"] else ["LDB"])],
    }
    return [name for name in follow.get(knob, []) if known.get(name) == known[knob]]


#: What a status says of kernels that take a batch, where that is more.
BATCH_SAYS = {
    Status.LEADING_DIMENSION: "a leading dimension or a stride is less than a row or a matrix, or not aligned as "
    "promised",
    Status.SIZE: "a size is negative, no multiple of the block tile, or makes too many blocks; or so is the batch",
    Status.POINTER: "a pointer or an array of them is null, misaligned, or that of a C where D must not be",
}


def says(status: Status, *, batched: bool = False) -> str:
    """What ``status`` means, of kernels that take a batch or of the others."""
    return BATCH_SAYS.get(status, status.says) if batched else status.says


def launch_rules(*, strict_isa: bool = False) -> tuple[Rule, ...]:
    """The rules that a launcher checks."""
    return tuple(r for r in RULES if r.scope is Scope.LAUNCH and (strict_isa or not r.strict))
