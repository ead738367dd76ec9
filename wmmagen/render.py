"""Configuration to CUDA source: a pure function of the configuration, the architecture's name and the templates.

No date, no path, no measured number enters the text, so the same request gives the same bytes everywhere.
The only importer of jinja2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from wmmagen import coverage, derive, formula, instructions, rules, selftest
from wmmagen.arch import Arch
from wmmagen.config import Batch, Copy, Feed, KernelConfig, Layout, Operation, Residue, Store
from wmmagen.config import name as name_of
from wmmagen.dtypes import F64, ElementType
from wmmagen.epilogue import BIASES, EXPR, VECTORS, along_row
from wmmagen.expr import Expr
from wmmagen.instructions import REGISTER_BITS, Instruction
from wmmagen.rounding import DOUBLE_ULPS, FUNCTION_ULPS, TAIL, precise
from wmmagen.rules import Rule, Scope

_LAYOUT_WORDS = {
    Layout.RR: "row-major",
    Layout.RC: "row-major and column-major",
    Layout.CR: "column-major and row-major",
    Layout.CC: "column-major",
}
_ORDER_WORDS = {True: "row-major", False: "column-major"}
_BATCH_WORDS = {
    Batch.NONE: "",
    Batch.STRIDED: "products of matrices that lie strides apart, in one launch",
    Batch.POINTERS: "products of matrices that arrays of pointers name, in one launch",
}
#: Matrices are capitals in a call, all else is not.
_ADDRESSES = {
    name: name.replace("ADDRESS", "address") if len(name.removesuffix("_ADDRESS")) == 1 else name.lower()
    for name in derive.ADDRESS_NAMES
}
#: The numbers of a call under the names that the launcher's parameters have.
_CALL_NAMES = {
    **{name: name.lower() for name in derive.LAUNCH_NAMES if name not in ("M", "N", "K")},
    **_ADDRESSES,
    "WORKSPACE_BYTES": "workspace_size",
}
#: What carries a copy of so many bytes through registers.
_VECTOR_TYPES = {16: "int4", 8: "int2", 4: "int", 2: "short", 1: "char"}
#: The same of elements of 64 bits: of an int4 the compiler makes several stores where the elements around are wider.
_WIDE_VECTOR_TYPES = {16: "double2", 8: "double"}
#: Around each matrix of the self-test; a multiple of every alignment that a launcher asks for.
_GUARD_BYTES = 4096
#: What the self-test includes beside the types.
_RUNTIME = "cuda_runtime.h"
#: The self-test's integers are C ints.
_INT_MAX = 2**31 - 1
_WIDTH = 118
_NAME = re.compile(r"\b[A-Z][A-Z0-9_]*\b")


@dataclass(frozen=True)
class Source:
    """A rendered kernel.

    Attributes:
        config: what was rendered.
        arch: the architecture it was rendered for.
        symbol: the exported launcher's C symbol.
        kernel: the kernel's symbol.
        text: the whole file.
    """

    config: KernelConfig
    arch: Arch
    symbol: str
    kernel: str
    text: str

    @property
    def fingerprint(self) -> str:
        """What tells this text from every other one; records keep it beside what was proved."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def template_root() -> Path:
    """Where the templates lie: inside an installed package, or beside the package in the repository."""
    package = Path(__file__).resolve().parent
    packaged = package / "templates"
    return packaged if packaged.is_dir() else package.parent / "templates"


@lru_cache(maxsize=1)
def templates_fingerprint() -> str:
    """What tells these templates from every other set of them."""
    root = template_root()
    texts = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.jinja")}
    held = (f"{name}\0{hashlib.sha256(text).hexdigest()}\n" for name, text in sorted(texts.items()))
    return hashlib.sha256("".join(held).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_root()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(config: KernelConfig, arch: Arch, *, strict_isa: bool = False, symbol: str | None = None) -> Source:
    """The ``.cu`` of ``config`` for ``arch``.

    Legality is not judged here; the file judges itself through its assertions.

    Args:
        strict_isa: assert the PTX ISA's alignment, too.
        symbol: the launcher's C symbol; the canonical name where it is None.

    Raises:
        NotGeneratedYet: no template makes this configuration.
    """
    coverage.demand(config)
    symbol = symbol or name_of(config)
    kernel = f"{symbol}_kernel"
    context = _context(config, arch, symbol, kernel, strict_isa)
    guards = _guards(config, arch, strict_isa)
    # Which constants a part needs is known once its text stands: nothing unused is declared, and what only the launcher
    # reads is declared beside it, out of the sight of NVRTC.
    body = _fill("gemm_wmma.cu.jinja", context, constants="", guards="", launcher="") + guards
    launcher = _fill("parts/launcher.jinja", context, constants="")
    shared = _needed(config, body, strict_isa)
    launcher_only = {n: text for n, text in _needed(config, launcher, strict_isa).items() if n not in shared}
    launcher = _fill("parts/launcher.jinja", context, constants=_declare(launcher_only, config.operation))
    text = _fill(
        "gemm_wmma.cu.jinja", context, constants=_declare(shared, config.operation), guards=guards, launcher=launcher
    )
    return Source(config, arch, symbol, kernel, text)


def _fill(template: str, context: Mapping[str, Any], **more: str) -> str:
    return _environment().get_template(template).render(context, **more)


def render_guards(config: KernelConfig, arch: Arch, *, strict_isa: bool = False) -> str:
    """Only the constants and assertions of ``config``: what a compiler says about its legality, for any known type."""
    guards = _guards(config, arch, strict_isa)
    return _declare(_needed(config, guards, strict_isa), config.operation) + "\n" + guards


def render_header(config: KernelConfig, arch: Arch, *, symbol: str | None = None) -> str:
    """The header, for C and C++, of the launcher that :func:`render` exports under ``symbol``."""
    symbol = symbol or name_of(config)
    known = derive.values(config)
    demands = [_numbered(rule, known) for rule, _ in _call_rules(known, strict_isa=False)]
    return _fill(
        "gemm_wmma.h.jinja",
        {**_words(config), **_statuses(config, known), "arch": arch.name, "symbol": symbol, "demands": demands},
        guard=include_guard(symbol),
    )


def render_padding(config: KernelConfig, arch: Arch, *, symbol: str | None = None) -> str:
    """The ``.cu`` that calls the launcher which :func:`render` exports under ``symbol``, on padded copies."""
    return _fill("padding.cu.jinja", _padding(config, arch, symbol or name_of(config)))


def render_padding_header(config: KernelConfig, arch: Arch, *, symbol: str | None = None) -> str:
    """The header of :func:`render_padding`, for C and C++."""
    symbol = symbol or name_of(config)
    return _fill("padding.h.jinja", _padding(config, arch, symbol), guard=include_guard(f"{symbol}_padded"))


def padding_entry(symbol: str) -> str:
    """The kernel of :func:`render_padding` that copies operands; beside it stands one for what has D's type."""
    return f"{symbol}_pad_kernel"


def _padding(config: KernelConfig, arch: Arch, symbol: str) -> dict[str, Any]:
    o = config.operation
    return {
        **_words(config),
        **_answers(rules.Status.WORKSPACE, batched=False),
        "arch": arch.name,
        "symbol": symbol,
        "options": f" --symbol {symbol}" if symbol != name_of(config) else "",
        "headers": sorted({t.header for t in (o.a, o.d) if t.header}),
    }


def include_guard(symbol: str) -> str:
    """The macro of the header of the launcher ``symbol``."""
    return f"WMMAGEN_{symbol}_H"


def render_selftest(config: KernelConfig, arch: Arch, *, symbol: str | None = None) -> str:
    """The program that checks the kernel, which :func:`render` exports under ``symbol``, in its user's own build."""
    symbol = symbol or name_of(config)
    o, factor = config.operation, config.operation.factor
    calls = [
        {
            "what": s.what,
            "status": s.status.value,
            "changes": [(f, _argument(f, v, factor)) for f, v in s.changes.items()],
        }
        for s in selftest.spoilt_calls(config)
    ]
    acceptable = ", ".join(_argument(field, value, factor) for field, value in selftest.acceptable(config).items())
    return _fill(
        "selftest.cu.jinja",
        {
            **_words(config),
            "arch": arch.name,
            "symbol": symbol,
            "acceptable": acceptable,
            "spoilt": calls,
            "headers": sorted({t.header for t in (o.a, o.d, o.added) if t.header} | {_RUNTIME}),
            "ulps": DOUBLE_ULPS if o.factor == F64 else FUNCTION_ULPS,
            "tried": _tried(o),
            "fine": selftest.fractions(o),
        },
        numbers=_selftest_numbers(config),
    )


def render_loop(
    kind: str,
    kernel: str,
    inst: Instruction | None,
    constants: Mapping[str, tuple[int, str]],
    structure: Mapping[str, Any],
) -> str:
    """A loop that measures what a chip can do, of ``ceiling_<kind>.cu.jinja``.

    Args:
        kind: which template.
        kernel: the kernel's symbol.
        inst: what multiplies; None where nothing does.
        constants: by name, value and meaning.
        structure: what else the template asks of ``v``.
    """
    a, acc = (None, None) if inst is None else (inst.a, inst.acc)
    declared = _aligned((_declaration(name, str(value)), meaning) for name, (value, meaning) in constants.items())
    # Fragments of the loops that load them come from shared memory, A in rows and B in columns.
    v = {name: value for name, (value, _) in constants.items()} | dict(structure) | {"feed_shared": True}
    if inst is not None:
        v |= {f"{of}_FRAGMENT_BITS": n * REGISTER_BITS for of, n in (("A", inst.a_registers), ("B", inst.b_registers))}
    context = {
        "kernel": kernel,
        "a": a,
        "acc": acc,
        "headers": _headers(a, acc),
        "v": v,
        "slot": {"operands": "ptx" if inst is not None and "operands" in inst.hidden else "call"},
        "order_a": "row_major",
        "order_b": "col_major",
        "multiplied": (0, 0, 0) if inst is None else (inst.m, inst.n, inst.k),
        "multiplied_as": {"a": "a", "b": "b"},
        "saturated": "",
    }
    return _fill(f"ceiling_{kind}.cu.jinja", context, constants=declared)


def render_elementwise(operation: Operation, kernel: str, constants: Mapping[str, tuple[int, str]]) -> str:
    """The epilogue of ``operation`` on a D that is in memory already: ``elementwise.cu.jinja``.

    Args:
        operation: a chain of steps on a row-major D of floating type.
        kernel: the kernel's symbol.
        constants: ``THREADS``, ``VECTOR`` and ``ROWS``, each with its value and meaning.
    """
    o, e = operation, operation.epilogue
    columns, held = [vector for vector in e.vectors if not along_row(vector)], _held(o)
    of_columns = [
        f"const {_struct(vector)} {held[vector]} = *reinterpret_cast<const {_struct(vector)}*>({vector} + col);"
        for vector in columns
    ]
    spelt = {
        **{matrix: _widened(o.added, f"{matrix}[i].of[e]") for matrix in e.matrices},
        **_spelt_vectors(o),
        "row": "row_of_d",
        "col": f"static_cast<{o.factor.storage}>(col + e)",
    }
    pointers = [f"const {o.added.storage}* __restrict__ {matrix.upper()}" for matrix in e.matrices]
    pointers += [f"const {o.vector_type(vector).storage}* __restrict__ {vector}" for vector in e.vectors]
    numbers = [f"int ld{matrix}" for matrix in e.matrices] + [f"{o.factor.storage} {scalar}" for scalar in e.scalars]
    chain = {
        "added": o.added,
        "matrices": e.matrices,
        "parameters": "".join(f", {one}" for one in pointers),
        "numbers": "".join(f", {one}" for one in numbers),
        "added_vectors": bool(e.matrices) or "bias_col" in columns,
        "scale_vectors": "scale_col" in columns,
        "of_columns": of_columns,
        "of_row": [f"const {o.factor.storage} {w['held']} = {w['value']};" for w in _of_line_of_d(o, "first + i")],
        "uses": frozenset().union(*(formula.operations(step.formula) for step in e.steps)),
        "precise": precise(o.d),
        "tail": TAIL,
        "statements": _statements(o, spelt),
    }
    declared = _aligned((_declaration(name, str(value)), meaning) for name, (value, meaning) in constants.items())
    context = {
        "kernel": kernel,
        "d": o.d,
        "factor": o.factor.storage,
        "headers": sorted({t.header for t in (o.d, o.added) if t.header}),
        "words": [f"{step.word:<8} {formula.text(step.formula)}" for step in e.steps],
        "v": {name: value for name, (value, _) in constants.items()},
        "chain": chain,
    }
    return _fill("elementwise.cu.jinja", context, constants=declared)


def _struct(vector: str) -> str:
    """What holds the elements of a column's vector that belong to a lane."""
    return "Added" if vector in BIASES else "Scales"


def _spelt_vectors(o: Operation) -> dict[str, str]:
    """What formulas call the elements of vectors, where they are loaded."""
    held = _held(o)
    places = [vector for vector in o.epilogue.vectors if not _of_line(o, vector)]
    return {
        **{v: held[v] for v in o.epilogue.vectors if _of_line(o, v)},
        **{v: _widened(o.added, f"{held[v]}.of[e]") for v in places if v in BIASES},
        **{v: f"{held[v]}.of[e]" for v in places if v not in BIASES},
    }


def _argument(field: str, value: int | float, factor: ElementType) -> str:
    """An argument of the launcher in C++: an address, a factor or a number."""
    if field in selftest.ADDRESSES:
        return f"at({value})" if value else "nullptr"
    suffix = "f" if factor.bits == 32 else ""
    return f"{value:.1f}{suffix}" if isinstance(value, float) else str(value)


def _selftest_numbers(config: KernelConfig) -> str:
    """What the self-test knows of its kernel, as declarations."""
    known, least = derive.values(config), selftest.least_steps(config)
    blocks_m, blocks_n = selftest.block_counts(config)
    o = config.operation
    split, shared = not known["reduction_none"], known["reduction_workspace"]
    letters, aligned = selftest.matrices(config), selftest.alignments(config)
    most = min(o.acc.exact_limit, o.d.exact_limit, _INT_MAX)
    fine = selftest.fractions(o)
    if not o.epilogue.exact:
        most = selftest.MOST_OF_FUNCTIONS << (fine.a_bits + fine.scaled_bits)
    meanings = ("M is a multiple of this", "N is one of this", "and K of this, a slice")
    if o.residue is Residue.PREDICATED:
        meanings = ("rows of a block's tile of D", "columns of it", "elements of K in a slice")
    lines = [
        *((f"BLOCK_{axis}", known[f"BLOCK_{axis}"], meaning) for axis, meaning in zip("MNK", meanings, strict=True)),
        ("STAGES", known["STAGES"], "slices that are under way at a time"),
        ("BLOCKS_M", blocks_m, "blocks of the largest D, down"),
        ("BLOCKS_N", blocks_n, "and across"),
        *((f"{x.upper()}_ALIGNMENT", y, f"bytes of which {x}'s address is a multiple") for x, y in aligned.items()),
        *((f"LD{x}_STEP", least[f"ld{x.lower()}"], f"elements of which ld{x.lower()} is one") for x in letters),
        ("MOST", most, "integers up to this are exact in sums and in D" if o.epilogue.exact else _reach(fine)),
        *([("A_BITS", fine.a_bits, "elements of A are multiples of 2^-A_BITS")] if fine.a_bits else []),
        *([("ADDED_BITS", fine.added_bits, "and what is added of 2^-ADDED_BITS")] if fine.added_bits else []),
        ("GUARD", _GUARD_BYTES, "bytes before and behind each matrix"),
        *([("SPLIT_K", known["SPLIT_K"], "blocks that share a tile of D")] if split else []),
        *([("WORKSPACE_ALIGNMENT", least["workspace"], "bytes of which its address is a multiple")] if shared else []),
    ]
    return _aligned((_declaration(name, str(value)), meaning) for name, value, meaning in lines)


def _reach(fine: selftest.Fractions) -> str:
    return "sums go up to so many 2^-A_BITS" if fine.a_bits else "sums go up to this"


def _context(config: KernelConfig, arch: Arch, symbol: str, kernel: str, strict_isa: bool) -> dict[str, Any]:
    known, o = derive.values(config, strict_isa=strict_isa), config.operation
    checks: dict[bool, list[dict[str, str]]] = {True: [], False: []}
    for rule, expr in _call_rules(known, strict_isa=strict_isa):
        assert rule.status is not None
        check = {
            "words": f"{rule.id}: {rule.says}",
            "broken": expr.negated().cpp(_CALL_NAMES),
            "status": rule.status.value,
        }
        checks[bool(expr.names & set(derive.ADDRESS_NAMES))].append(check)
    (blocks,) = (c.expr for c in derive.CALL if c.name == "BLOCKS")
    assert blocks is not None
    flags = derive.flags(config, strict_isa=strict_isa)
    added = bool(o.epilogue.matrices) and known["store_direct"]
    crossed = o.c_row_major is not o.d_row_major
    named = f" --symbol {symbol}" if symbol != name_of(config) else ""
    return {
        **_words(config),
        **_statuses(config, known),
        "arch": arch.name,
        "symbol": symbol,
        "kernel": kernel,
        "options": named + (" --strict-isa" if strict_isa else ""),
        "slot": {
            "pipeline": _pipeline(config),
            "raster": config.raster.order.value,
            "epilogue": epilogue_part(config.operation),
            "lines_c": "row" if o.c_row_major else "col",
            "lines_d": "row" if o.d_row_major else "col",
            "columns": "once" if derive.same_columns(known) else "each",
            "batch": config.operation.batch.value,
            "split": config.reduction.value,
            "groups": "one" if config.warps_k == 1 else "several",
            "residue": config.operation.residue.value,
            "edge": config.operation.residue.value,
            "store": _store(config),
            "residency": config.residency.value,
            "fragments": config.fragment_buffers,
            "arrange_a": config.arrange_a.value,
            "arrange_b": config.arrange_b.value,
            "share_a": _share(known, "A"),
            "share_b": _share(known, "B"),
            **_movers(config),
        },
        # Tiles of sums come back where a matrix is added to fragments, where sums live in D, and where splits meet.
        "loads_tiles": known["residency_global"] or known["reduction_workspace"] or (added and not crossed),
        "loads_across": added and crossed,
        "saturated": ", true" if known["overflow_saturate"] else "",
        "headers": _headers(o.a, o.acc, o.d, o.added),
        "vector_a": _vector(known, "A"),
        "vector_b": _vector(known, "B"),
        "copy_bytes": sorted({known["A_COPY_BYTES"], known["B_COPY_BYTES"]}, reverse=True),
        "call_checks": checks[False],
        "address_checks": checks[True],
        "blocks": blocks.fold(flags).cpp(),  # type: ignore[union-attr]
        "sizes": "N, K" if config.operation.residue is Residue.EXACT else "M, N, K",
    }


def _vector(known: Mapping[str, Any], operand: str) -> str:
    # A width that no copy has breaks a rule whose assertion stands in the text; any type serves beside it.
    types = _WIDE_VECTOR_TYPES if known["A_BITS"] == 64 else _VECTOR_TYPES
    return types.get(known[f"{operand}_COPY_BYTES"], types[16])


def _call_rules(known: Mapping[str, Any], *, strict_isa: bool) -> list[tuple[Rule, Expr]]:
    """The rules that the launcher of a configuration checks, with what is left of each for this structure."""
    flags = {name: value for name, value in known.items() if name.islower()}
    found = []
    for rule in rules.launch_rules(strict_isa=strict_isa):
        if rule.applies(known):
            expr = rule.expr.fold(flags)
            assert isinstance(expr, Expr), rule.id
            found.append((rule, expr))
    return found


def _numbered(rule: Rule, known: Mapping[str, Any]) -> str:
    """What a rule says, with the block tile and alignments in numbers, for those who have only the header."""
    return re.sub(r"BLOCK_[MNK]|ALIGN_[ABD]", lambda m: str(known[m[0]]), rule.says)


def _words(config: KernelConfig) -> dict[str, Any]:
    """What the banner and the header say about a kernel."""
    o = config.operation
    v = derive.values(config)
    exact = o.residue is Residue.EXACT
    chain = _chain(config)
    read = "".join(f"const void* {pointer}, " for pointer in chain["pointers"])
    leading = "".join(f"int ld{matrix}, " for matrix in chain["matrices"])
    scalars = "".join(f", {o.factor.storage} {scalar}" for scalar in chain["scalars"])
    matrices = f"const void* A, const void* B, {read}void* D"
    if o.batch is Batch.POINTERS:
        matrices = matrices.replace("*", "* const*")
    workspace = ", void* workspace, size_t workspace_bytes" if v["reduction_workspace"] else ""
    parameters = (
        f"{matrices}, int M, int N, int K, int lda, int ldb, {leading}int ldd{scalars}{workspace}"
        f"{_batch_parameters(config)}"
    )
    return {
        "name": name_of(config),
        "a": o.a,
        "acc": o.acc,
        "d": o.d,
        "factor": o.factor.storage,
        "v": v,
        "chain": chain,
        "chain_words": _chain_words(config),
        "formula": _formula(o),
        "outputs_words": "C and D (M x N) are" if epilogue_part(o) == "linear" else "D (M x N) is",
        "parameters": parameters,
        "arguments": ", ".join(p.split()[-1] for p in parameters.split(", ")),
        **_multiplied(config),
        "cd_words": _cd_words(o),
        "layout_words": _LAYOUT_WORDS[o.layout],
        "sizes_words": "M, N, K: multiples of {BLOCK_M}, {BLOCK_N}, {BLOCK_K}; ".format(**v) if exact else "",
        "stages_words": _stages_words(config),
        "batching": o.batch.value,
        "workspace_of": "int M, int N" + (", int batch" if o.batched else ""),
        "batch_words": _BATCH_WORDS[o.batch],
        # What lies behind an array of pointers, which no other launcher has to tell.
        "behind": selftest.alignments(config) if o.batch is Batch.POINTERS else {},
    }


def _multiplied(config: KernelConfig) -> dict[str, Any]:
    """What the hardware is asked for: D = A·B, or where D is column-major D^T = B^T·A^T: lines of D are rows."""
    o = config.operation
    turned = not o.d_row_major
    # A transposed matrix is the matrix in the other order.
    orders = {
        x: "row_major" if rows is not turned else "col_major"
        for x, rows in zip("ab", (o.a_row_major, o.b_row_major), strict=True)
    }
    return {
        "multiplied": tuple(config.multiplied),
        "multiplied_as": {"a": "b", "b": "a"} if turned else {"a": "a", "b": "b"},
        **{f"order_{x}": order for x, order in orders.items()},
    }


def _cd_words(o: Operation) -> str:
    """How C and D lie, behind their types."""
    of_c, of_d = (_ORDER_WORDS[rows] for rows in (o.c_row_major, o.d_row_major))
    return of_d if of_c == of_d or epilogue_part(o) == "chain" else f"C {of_c} and D {of_d}"


def _batch_parameters(config: KernelConfig) -> str:
    """What a launcher is told of a batch, behind everything else."""
    batch = config.operation.batch
    if batch is Batch.NONE:
        return ""
    strides = selftest.strides(config) if batch is Batch.STRIDED else ()
    return ", int batch" + "".join(f", long long {stride}" for stride in strides)


def _statuses(config: KernelConfig, known: Mapping[str, Any]) -> dict[str, Any]:
    """The launcher's answers, and the enumerators that stand for them.

    All launchers know those that every one can give, and one that can give a further one knows those up to it: so
    the files of a kernel stay as they are when another kind of kernel brings an answer of its own.
    """
    every = list(rules.Status)
    own = [every.index(rule.status) for rule, _ in _call_rules(known, strict_isa=False) if rule.status]
    last = every[max([every.index(rules.Status.CODE), *own])]
    return _answers(last, batched=config.operation.batched)


def _answers(latest: rules.Status, *, batched: bool) -> dict[str, Any]:
    """The answers up to ``latest``."""
    every = list(rules.Status)
    common, last = every.index(rules.Status.CODE), every.index(latest)
    said = [(status.value, rules.says(status, batched=batched)) for status in every[: last + 1]]
    values = ((f"  {value} = {n}{',' if n < last else ''}", says) for n, (value, says) in enumerate(said))
    fewer = "a header of an older wmmagen" if last == common else "a header that knows fewer answers"
    statuses = [{"value": value, "says": says} for value, says in said]
    return {"statuses": statuses, "status_values": _aligned(values), "fewer": fewer}


def _stages_words(config: KernelConfig) -> str:
    if config.feed is Feed.GLOBAL:
        return ""
    return f", {config.stages} stage{'s' if config.stages > 1 else ''}"


def _pipeline(config: KernelConfig) -> str:
    """The part that brings operands to the fragments: one file for each way of doing it."""
    if config.feed is Feed.GLOBAL:
        return "global"
    ahead = "_ahead" if config.crosses_slices else ""
    if config.copy is Copy.CPASYNC:
        return f"cpasync{ahead}"
    return "single" if config.stages == 1 else f"prefetch{ahead}"


def _movers(config: KernelConfig) -> dict[str, str]:
    """What moves fragments and tiles of sums: the calls of nvcuda::wmma, or PTX where those lose the address space."""
    c, o = config, config.operation
    row = instructions.find(o.a, o.acc, *c.multiplied)
    hidden = row.hidden if row else ()
    return {what: "ptx" if what in hidden else "call" for what in ("operands", "tiles")}


def _store(config: KernelConfig) -> str:
    """The part that brings sums to D; where D may end within a tile, fragments alone do not."""
    if config.store is Store.DIRECT and config.operation.residue is Residue.PREDICATED:
        return "direct_predicated"
    return config.store.value


# ---------------------------------------------------------------------------------------------------------------------
# Epilogues.


def epilogue_part(operation: Operation) -> str:
    """The part of an epilogue: the two that have one of their own, and that of all chains."""
    if operation.epilogue.simple and operation.added == operation.d:
        return str(operation.epilogue)
    return "chain"


def _formula(operation: Operation) -> str:
    """What D is, in words."""
    if operation.epilogue.simple:
        return "alpha * A * B + beta * C" if operation.scaled else "A * B"
    return "A * B and its epilogue"


def _chain(config: KernelConfig) -> dict[str, Any]:
    """What ``parts/epilogue_chain.jinja`` knows of a chain; the launcher and the header read the first rows."""
    o, e = config.operation, config.operation.epilogue
    pointers = [
        *((matrix.upper(), o.added.storage) for matrix in e.matrices),
        *((vector, o.added.storage if vector in BIASES else o.factor.storage) for vector in e.vectors),
    ]
    columns = [vector for vector in e.vectors if not _of_line(o, vector)]
    held = _held(o)
    struct = {vector: _struct(vector) for vector in columns}
    used = frozenset().union(*(formula.operations(step.formula) for step in e.steps))
    down, along = _down_and_along(o)
    return {
        "matrices": e.matrices,
        "biases": [vector for vector in e.vectors if vector in BIASES],
        "scales": [vector for vector in e.vectors if vector not in BIASES],
        "scalars": e.scalars,
        "scalar_parameters": ", ".join(f"{o.factor.storage} {scalar}" for scalar in e.scalars),
        "scaled": e.scaled,
        "pointers": [name for name, _ in pointers],
        "typed": pointers,
        "added": o.added,
        "structs": {
            "added": _store(config) != "direct" and ("Added" in struct.values() or bool(e.matrices)),
            "scales": "Scales" in struct.values(),
        },
        "columns": [{"name": v, "struct": struct[v], "held": held[v]} for v in columns],
        "uses": used,
        "precise": precise(o.d),
        "tail": TAIL,
        "of_row": _of_line_of_d(o, f"warp_{down} + {down}"),
        "in_fragments": _statements(o, {m: _widened(o.acc, f"{m}.x[e]") for m in e.matrices}),
        "in_rows": _statements(
            o,
            {
                **{matrix: _widened(o.added, f"{matrix}.of[e]") for matrix in e.matrices},
                **_spelt_vectors(o),
                down: f"{down}_of_d",
                along: f"static_cast<{o.factor.storage}>(warp_{along} + {along} + e)",
            },
        ),
    }


def _down_and_along(o: Operation) -> tuple[str, str]:
    """The coordinates of an element of D: which line of memory it lies in, and where in it."""
    return ("row", "col") if o.d_row_major else ("col", "row")


def _of_line(o: Operation, vector: str) -> bool:
    """Whether a vector has one element for each line of D as it lies, and not one for each place of a line."""
    return along_row(vector) is o.d_row_major


def _held(o: Operation) -> dict[str, str]:
    """Where a kernel keeps what it has loaded of a vector."""
    named = {vector: (vector.split("_")[0], "row" if along_row(vector) else "column") for vector in VECTORS}
    return {v: f"{what}_of_{of}{'' if _of_line(o, v) else 's'}" for v, (what, of) in named.items()}


def _widened(element: ElementType, value: str) -> str:
    """As ``parts/convert.jinja`` says it."""
    return f"{element.widen}({value})" if element.widen else value


def _of_line_of_d(o: Operation, place: str) -> list[dict[str, Any]]:
    """What line number ``place`` of D has in common: where it is held, what it is, and whether it is read of memory."""
    found, held = [], _held(o)
    down, _ = _down_and_along(o)
    for vector in (v for v in o.epilogue.vectors if _of_line(o, v)):
        element = f"{vector}[{place}]"
        element = _widened(o.added, element) if vector in BIASES else element
        found.append({"held": held[vector], "value": element, "zero": o.factor.zero, "read": True})
    if o.epilogue.has(down):
        number = f"static_cast<{o.factor.storage}>({place})"
        found.append({"held": f"{down}_of_d", "value": number, "zero": "", "read": False})
    return found


def _statements(o: Operation, spelt: Mapping[str, str]) -> str:
    """Each step as an assignment to ``value``, with its name beside it."""
    spelt, double = {**spelt, "acc": "value", "bias": spelt.get("bias_col", "")}, o.factor == F64
    steps = o.epilogue.steps
    return _aligned((f"value = {formula.cpp(step.formula, spelt, double=double)};", step.word) for step in steps)


def _tried(operation: Operation) -> dict[str, Any]:
    """What the self-test knows of a chain: its numbers, and each step in the arithmetic of ``parts/singles.jinja``."""
    e = operation.epilogue
    spelt = {name: f"e.{name}" for name in (*e.names, "bias")} | {"bias": "e.bias_col", "acc": "value"}

    def function(name: str) -> str:
        return f"Singles::{'choose' if name == 'if' else name}"

    return {
        "steps": [(f"value = {formula.calls(step.formula, function, spelt)};", step.word) for step in e.steps],
        "names": sorted(e.names),
        "exact": e.exact,
        "numbers": {name: selftest.SCALARS[name] for name in e.scalars if name not in ("alpha", "beta")},
    }


def _chain_words(config: KernelConfig) -> list[str]:
    """What the banner and the header say of a chain; nothing of the two epilogues that need no words."""
    o, e = config.operation, config.operation.epilogue
    if epilogue_part(o) != "chain":
        return []
    steps = [f"  {step.word:<8} {formula.text(step.formula)}" for step in e.steps]
    words = [
        f"Each element of D goes through these steps, in {o.factor.storage}, and is rounded once; acc is what came "
        "before:",
        *steps,
    ]
    if e.matrices:
        matrices = " and ".join(matrix.upper() for matrix in e.matrices)
        verb = "are" if len(e.matrices) > 1 else "is"
        words.append(f"{matrices} (M x N, {_ORDER_WORDS[o.c_row_major]}) {verb} {o.added.name}.")
    for vector in e.vectors:
        kind, extent = (o.added.name if vector in BIASES else o.factor.storage), "M" if along_row(vector) else "N"
        words.append(
            f"{vector} has {extent} elements, one for each {'row' if extent == 'M' else 'column'} of D, in {kind}."
        )
    if any(step.word == EXPR for step in e.steps) and e.has("bias_col"):
        words.append("In an expression, bias is bias_col.")
    return words


def _share(known: Mapping[str, Any], operand: str) -> str:
    """How the copies of a thread lie in a slice: in one column at equal distances, or scattered."""
    vectors, step, tile = (known[f"{operand}_{name}"] for name in ("ROW_VECTORS", "ROW_STEP", "TILE_ROWS"))
    # A row that is no whole copy breaks a rule whose assertion stands in the text.
    if not vectors or known["THREADS"] % vectors:
        return "scattered"
    tiled = known[f"arrange_{operand.lower()}_tiles"]
    return "scattered" if tiled and step % tile and tile % step else "column"


def _headers(*types: ElementType | None) -> list[str]:
    """What a text includes: only what its own types need, for a header of another type may not be there."""
    return sorted({t.header for t in types if t is not None and t.header} | {"mma.h"})


# ---------------------------------------------------------------------------------------------------------------------
# Constants and assertions: the tables of derive and rules, as C++.


def _needed(config: KernelConfig, text: str, strict_isa: bool) -> dict[str, str]:
    """Every constant that ``text`` reads, directly or through another constant, with its right side in C++."""
    settled = derive.settled(config, strict_isa=strict_isa)
    given = derive.given(config)
    table = {c.name: c for c in derive.CONSTANTS + derive.COSTS}
    right_sides: dict[str, str] = {}
    open_names = {name for name in _NAME.findall(text) if name in table}
    while open_names:
        name = open_names.pop()
        expr = table[name].expr
        if expr is None:
            right_sides[name] = str(given[name])
            continue
        left = expr.fold(settled, {"WARPS_K": config.warps_k})
        assert not isinstance(left, (bool, int)), name
        right_sides[name] = left.cpp()
        open_names |= {n for n in left.names if n not in right_sides}
    return right_sides


def _declare(right_sides: Mapping[str, str], operation: Operation) -> str:
    """Declarations in the order and the groups of the table."""

    def meaning(constant: derive.Constant) -> str:
        return constant.meaning if operation.d_row_major else constant.columns or constant.meaning

    groups = [
        _aligned((_declaration(c.name, right_sides[c.name]), meaning(c)) for c in group if c.name in right_sides)
        for group in (*derive.GROUPS, derive.COSTS)
    ]
    return "\n".join(filter(None, groups))


def _declaration(name: str, right_side: str) -> str:
    return f"constexpr int {name} = {right_side};"


def _aligned(lines: Iterable[tuple[str, str]]) -> str:
    """Code with its comments in one column."""
    lines = list(lines)
    width = max((len(code) for code, _ in lines), default=0)
    return "".join(f"{code:<{width}}  // {comment}\n" for code, comment in lines)


def _guards(config: KernelConfig, arch: Arch, strict_isa: bool) -> str:
    """The static and arch rules as assertions; those that hold by structure alone are no news and are left out."""
    settled = derive.settled(config, strict_isa=strict_isa)
    structure = {**settled, **derive.given(config)}
    anywhere: list[str] = []
    any_arch: list[str] = []
    this_arch: list[str] = []
    for rule in rules.RULES:
        if rule.scope not in (Scope.STATIC, Scope.ARCH) or not rule.applies(settled):
            continue
        expr = rule.expr.fold(structure if rule.structural else settled, {"WARPS_K": config.warps_k})
        if expr is True:
            continue
        condition = "false" if expr is False else expr.cpp()  # type: ignore[union-attr]
        text = _assertion(condition, f"{rule.id} {rule.name}: {rule.says}")
        limits = rule.expr.names & set(derive.ARCH_NAMES)
        (anywhere if not limits else any_arch if limits == {"SM"} else this_arch).append(text)
    return "".join(anywhere) + _guarded_by_arch(arch, any_arch, this_arch)


def _guarded_by_arch(arch: Arch, any_arch: Iterable[str], this_arch: Iterable[str]) -> str:
    blocks = ""
    if any_arch := list(any_arch):
        blocks += (
            "#ifdef __CUDA_ARCH__  // the host pass has no architecture\n"
            "constexpr int SM = __CUDA_ARCH__ / 10;\n" + "".join(any_arch) + "#endif\n"
        )
    if this_arch := list(this_arch):
        limits = derive.of_arch(arch)
        read = set(_NAME.findall("".join(this_arch)))
        declared = (
            (_declaration(c.name, str(limits[c.name])), c.meaning) for c in derive.ARCH_LIMITS if c.name in read
        )
        blocks += (
            f"#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == {arch.sm * 10}\n"
            + _aligned(declared)
            + "".join(this_arch)
            + "#endif\n"
        )
    return blocks


def _assertion(condition: str, text: str) -> str:
    one_line = f'static_assert({condition}, "{text}");'
    if len(one_line) <= _WIDTH:
        return one_line + "\n"
    indent = "\n" + " " * len("static_assert(")
    # clang-format indents what continues an argument deeper than the argument that follows it.
    continued = indent + " " * 4
    if len(condition) > _WIDTH - len(indent):
        condition = _broken(condition, continued)
    return f'static_assert({condition},{indent}"{text}");\n'


def _broken(condition: str, indent: str) -> str:
    """A condition of one long chain with a line for each link, where every link but plain names is in parentheses."""
    for operator in (" || ", " && "):
        links = condition.split(f"{operator}(")
        if len(links) > 1:
            return f"{operator.rstrip()}{indent}(".join(links)
        head, found, tail = condition.partition(operator)
        if found:
            return f"{head}{operator.rstrip()}{indent}{_broken_comparison(tail, indent)}"
    return condition


def _broken_comparison(comparison: str, indent: str) -> str:
    """A comparison, its right side on a line of its own where it would be too long."""
    if len(indent) + len(comparison) <= _WIDTH:
        return comparison
    return comparison.replace(" <= ", f" <={indent}    ")
