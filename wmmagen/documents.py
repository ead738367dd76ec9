"""RULES.md, NAMES.md and JSON.md, which are made from tables so that they cannot say anything else.

``python -m wmmagen.documents`` writes them again.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from wmmagen import formula, schemas
from wmmagen.config import (
    LINEAR,
    MAX_COUNT,
    MAX_FRAGS,
    MAX_INST,
    MAX_MIN_BLOCKS,
    MAX_PAD,
    MAX_RASTER_WIDTH,
    MAX_SPLIT_K,
    WIDEST_BITS,
    Arrange,
    Batch,
    Copy,
    Feed,
    Layout,
    Order,
    Overflow,
    Raster,
    Reduction,
    Residue,
    Store,
    parse,
    spell,
    values_of,
)
from wmmagen.dtypes import ELEMENT_TYPES
from wmmagen.epilogue import EXPR, STEPS, USER_NAMES
from wmmagen.formula import CONSTANTS, FUNCTIONS, OPERATORS
from wmmagen.rules import RULES, Rule, Scope

_MADE = "<!-- Made by `python -m wmmagen.documents`; change the tables, not this file. -->"

_SCOPES = {
    Scope.STATIC: "Of the configuration: pruned from a search, refused with a message, a `static_assert` in the file.",
    Scope.ARCH: "Of the configuration and the architecture: as before, with the assertion guarded by the architecture.",
    Scope.LAUNCH: "Of the call: a message, and a check in the launcher, which answers and launches nothing.",
    Scope.TOOLCHAIN: "Of the compiler at hand: a message only.",
    Scope.SEARCH: "Of the configuration and the call: legal, and pruned from a search for that problem.",
}


def rules_markdown() -> str:
    """``RULES.md``: every rule with its expression, its reason and its source, grouped by scope."""
    head = f"""\
# Rules

{_MADE}

What makes a configuration, an architecture or a call illegal; nothing else does. Names in CAPITALS are the numbers of
the generated file, names in small letters say which structure was chosen. `//` is whole-number division. A rule speaks
only *where* its condition holds. Ids are permanent.
"""
    return "\n".join([head, *(_scope(scope) for scope in Scope)])


def _scope(scope: Scope) -> str:
    of_scope = [rule for rule in RULES if rule.scope is scope]
    return "\n".join([f"## {scope.value.capitalize()}\n", f"{_SCOPES[scope]}\n", *(_rule(rule) for rule in of_scope)])


def _rule(rule: Rule) -> str:
    lines = [
        ("holds", f"`{rule.expr.text}`"),
        ("where", f"`{rule.when.text}`" if rule.when else ""),
        ("says", rule.says),
        ("answers", f"`{rule.status.value}`" if rule.status else ""),
        ("message", rule.message),
        ("fix", rule.fix),
        ("reason", rule.reason),
        ("source", rule.source),
    ]
    rows = "".join(f"- {word}: {text}\n" for word, text in lines if text)
    return f"### {rule.id} {rule.name}\n\n{rows}"


# ---------------------------------------------------------------------------------------------------------------------
# Names.


def _words(kind: Iterable[StrEnum | str]) -> str:
    return " ".join(f"`{word}`" for word in kind)


_COUNT = f"1 to {MAX_COUNT}"
_PAD = f"0 to {MAX_PAD} elements"

#: The fields in the order of a name: how it is written, the keys that it gives, their values, what they mean.
_FIELDS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("`wmma_gemm`", (), "", "the family and what it computes"),
    ("`_`*type*", ("a",), _words(ELEMENT_TYPES), "elements of A and of B"),
    ("`_`*type*", ("acc",), "the same", "the accumulator"),
    (
        "`sat`, or nothing",
        ("overflow",),
        _words(Overflow),
        "what integer sums do beyond their type; nothing: they wrap",
    ),
    ("`_`*type*", ("d",), "the same", "elements of D"),
    ("`c`*type*, or nothing", ("c",), "the same", "elements of what an epilogue adds, only where they are not D's"),
    ("`_`*word*", ("layout",), _words(Layout), "layouts of A and B, r for row-major, c for column-major"),
    (
        "*word*, or nothing",
        ("cd",),
        "the same",
        "layouts of C and D, right after those of A and B; nothing: both are row-major. R lies as C does; where "
        "there is neither, C's letter is D's",
    ),
    (
        "`_`*steps*",
        ("epilogue",),
        f"{_words(('none', *STEPS, EXPR))}",
        "from the accumulator to D: steps, one right behind the other",
    ),
    ("`_`*word*", ("residue",), _words(Residue), "the sizes it takes: multiples of the block tile, or all"),
    (
        "*n*",
        ("align_a",),
        f"powers of two, 1 to {WIDEST_BITS}",
        "elements that calls align A to, right after the residue",
    ),
    ("`x`*n*`x`*n*, or nothing", ("align_b", "align_d"), "the same", "B, and C and D, only where one is not A's"),
    (
        "`_`*word*, or nothing",
        ("batch",),
        _words(Batch),
        "a batch of products: matrices that lie strides apart, or that arrays of pointers name; no word for none",
    ),
    ("`__i`*m*`x`*n*`x`*k*", ("inst",), f"1 to {MAX_INST} each", "the instruction's shape"),
    ("`_w`*m*`x`*n*", ("warps",), f"{_COUNT} each", "warps of a block, down and across"),
    ("`_f`*m*`x`*n*", ("frags",), f"1 to {MAX_FRAGS} each", "accumulator fragments of a warp, down and across"),
    ("`_k`*n*", ("k_steps",), _COUNT, "instructions along K in one slice"),
    ("`_`*word*", ("feed",), _words(Feed), "where fragments are loaded from"),
    ("`_`*word*", ("copy",), _words(Copy), "how tiles reach shared memory"),
    ("*n*", ("stages",), _COUNT, "buffers in flight, right after the copy's word"),
    ("`_p`*a*`x`*b*`x`*d*", ("pad_a", "pad_b", "pad_d"), _PAD, "extra elements on a staged row of A, B and D"),
    ("`_`*word*", ("arrange_a",), _words(Arrange), "how the staged tile of A lies"),
    ("*word*, or nothing", ("arrange_b",), _words(Arrange), "of B, only where it is not A's"),
    ("`_fb`*n*", ("fragment_buffers",), "1 to 2", "operand fragments per position"),
    ("`_res`*word*", ("residency",), "`frag` (fragment) `global`", "where partial sums live"),
    ("`_`*word*", ("store",), _words(Store), "how a finished tile reaches D"),
    ("`_mb`*n*", ("min_blocks",), f"1 to {MAX_MIN_BLOCKS}", "blocks that a multiprocessor is to hold at a time"),
    (
        "`_`*word*, *n*",
        ("raster",),
        _words(str(raster) for raster in (LINEAR, Raster(Order.GROUPED, 8), Raster(Order.PANELS, 8))),
        f"the order of blocks over D; block rows in a group, block columns in a panel: 2 up to {MAX_RASTER_WIDTH}",
    ),
    ("`_sk`*n*", ("split_k",), f"1 to {MAX_SPLIT_K}", "blocks that share one tile of D along K"),
    ("`_`*word*, or nothing", ("reduction",), _words(Reduction), "how their sums meet; nothing for `none`"),
    (
        "`_wk`*n*, or nothing",
        ("warps_k",),
        _COUNT,
        "groups of these warps that share the steps of a slice; nothing for one",
    ),
)

_EXAMPLE = (
    "wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f4x4_k2_shared_cpasync3_p8x8x0_rows"
    "_fb1_resfrag_direct_mb1_linear_sk1"
)


def _formulas() -> str:
    """What a user's formula is written as in a name."""
    example = "acc*0.5+bias"
    word = formula.word(formula.parse(example, USER_NAMES))
    words = _words(name for name, o in OPERATORS.items() if not o.ours)
    operands = _words(USER_NAMES)
    return textwrap.fill(
        "In a key, steps are joined by a plus: `epilogue=linear+biascol+gelu`. Somebody's formula, `expr(...)` there, "
        f"stands behind the word `{EXPR}` with its operators before their operands: `{example}` is `{word}`. Names are "
        f"{operands}, numbers `n` and their digits (`p` for the dot, `m` for the minus of an exponent; "
        f"{_words(CONSTANTS)} is its number), operators {words}; {_words(FUNCTIONS)} are functions in a key. A name "
        "that an expression makes longer than the names of its files can be is refused.",
        width=118,
        break_on_hyphens=False,
    )


def names_markdown() -> str:
    """``NAMES.md``: the grammar of kernel names."""
    values = {key: spell(value) for key, value in values_of(parse(_EXAMPLE)).items()}
    values.setdefault("c", values["d"])
    rows = [
        f"| {written} | {_words(keys)} | {of} | {_words(values[key] for key in keys)} | {meaning} |"
        for written, keys, of, meaning in _FIELDS
    ]
    table = "\n".join(["| written | key | values | here | meaning |", "|---|---|---|---|---|", *rows])
    promise = textwrap.fill(
        "A name is one configuration, a configuration is one name: no field is left out because it has its default "
        "(a mechanism that is not there at all has no word), numbers are decimal without leading zeros, and whatever "
        "differs in one character from every name is refused. "
        "So `parse(name(config)) == config`, and two kernels never share a symbol. A name is a C symbol, a file stem "
        "on every file system, a record's key and an argument of the command line. It says nothing of legality: "
        "`wmmagen check` does.",
        width=118,
    )
    return f"""\
# Names of kernels

{_MADE}

What a kernel computes, two underscores, how it does it. For example

    {_EXAMPLE}

is made of these fields, in this order:

{table}

{promise}

{_formulas()}

The launcher exports the name as its C symbol; the kernel's own symbol is the name followed by `_kernel`.
"""


# ---------------------------------------------------------------------------------------------------------------------
# JSON.


def json_markdown() -> str:
    """``JSON.md``: every field that ``--json`` prints, from the published schemas."""
    head = f"""\
# What --json prints

{_MADE.replace("tables", "schemas")}

One document on standard output and nothing else there. Fields may be added, none is renamed or changes its meaning.
What is marked *sometimes* may be absent. `[]` stands for each element of a list, `*` for each key of an object.

The schemas are JSON Schema, draft 2020-12. `wmmagen schema COMMAND` prints one; they lie in `wmmagen/schemas`.
"""
    return "\n".join([head, *(_document(name) for name in schemas.names())])


def _document(name: str) -> str:
    schema = schemas.read(name)
    rows = "".join(f"| `{path}` | {kind} | {meaning} |\n" for path, kind, meaning in _described(schema, ""))
    head = "| field | type | meaning |\n|---|---|---|\n"
    return f"## {name}\n\n{_made_by(schema)}\n\n{head}{rows}"


def _made_by(schema: dict[str, Any]) -> str:
    reference = schema.get("$ref")
    return f"`{schema['title']}`" + (f": any schema of {reference}, with" if reference else "")


def _described(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Path, type and meaning of every field below ``schema``, in its order."""
    for name, inner in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        sometimes = "" if name in schema.get("required", ()) else "*sometimes* "
        yield path, sometimes + _kind(inner), inner["description"]
        yield from _described(inner, f"{path}.")
        yield from _described(inner.get("items", {}), f"{path}[].")
        yield from _described(inner.get("additionalProperties", {}), f"{path}.*.")


def _kind(schema: dict[str, Any]) -> str:
    """The type in words; of a few words, the words."""
    if "enum" in schema or "const" in schema:
        return _words(schema.get("enum", [schema.get("const")]))
    kinds = schema["type"]
    if kinds == "array":
        return f"list: {_kind(schema['items'])}"
    if "additionalProperties" in schema:
        return f"object: {_kind(schema['additionalProperties'])}"
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


DOCUMENTS = {"RULES.md": rules_markdown, "NAMES.md": names_markdown, "JSON.md": json_markdown}


def main() -> None:
    """Write every document into the package."""
    for file, make in DOCUMENTS.items():
        (Path(__file__).parent / file).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
