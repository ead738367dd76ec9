"""Names and readers: a round trip, and a refusal of everything else."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields
from typing import Any

import pytest
from cases_legality import BASE, config, sample
from hypothesis import given
from hypothesis import strategies as st

from wmmagen.config import (
    CONFIG_KEYS,
    LINEAR,
    MAX_COUNT,
    MAX_FRAGS,
    MAX_MIN_BLOCKS,
    MAX_PAD,
    MAX_RASTER_WIDTH,
    MAX_SIZE,
    READERS,
    Arrange,
    Batch,
    Copy,
    Feed,
    Grid,
    KernelConfig,
    Layout,
    Operation,
    Order,
    Overflow,
    Problem,
    Raster,
    Reduction,
    Residency,
    Residue,
    Shape,
    Store,
    build,
    is_name,
    name,
    parse,
    read_pairs,
    read_size,
    read_value,
    spell,
    values_of,
)
from wmmagen.dtypes import ELEMENT_TYPES
from wmmagen.errors import ConfigError

BASE_NAME = (
    "wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f4x4_k2_shared_ld2_p8x8x0_rows"
    "_fb1_resfrag_direct_mb1_linear_sk1"
)
COUNTS = st.integers(1, MAX_COUNT)
TYPES = st.sampled_from(list(ELEMENT_TYPES.values()))
PADS = st.integers(0, MAX_PAD)
ALIGNS = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128])
EXTENTS = st.integers(1, 1024)

EPILOGUES = (
    "none", "linear", "relu", "linear+biascol+gelu", "scale+scalerow+scalecol+biasrow+silu+residual+clamp+gelutanh",
    "expr(acc*2+c)", "expr(acc-1e-05*bias)+relu", "biasrow+expr(row<col?acc:-c)", "expr(exp(row)-acc)",
)  # fmt: skip
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a": TYPES,
    "acc": TYPES,
    "d": TYPES,
    "layout": st.sampled_from(Layout),
    "epilogue": st.sampled_from([read_value("epilogue", text) for text in EPILOGUES]),
    "residue": st.sampled_from(Residue),
    "align_a": ALIGNS,
    "align_b": ALIGNS,
    "align_d": ALIGNS,
    "overflow": st.sampled_from(Overflow),
    "c": TYPES,
    "cd": st.sampled_from(Layout),
    "batch": st.sampled_from(Batch),
    "inst": st.builds(Shape, EXTENTS, EXTENTS, EXTENTS),
    "warps": st.builds(Grid, COUNTS, COUNTS),
    "frags": st.builds(Grid, st.integers(1, MAX_FRAGS), st.integers(1, MAX_FRAGS)),
    "k_steps": COUNTS,
    "feed": st.sampled_from(Feed),
    "copy": st.sampled_from(Copy),
    "stages": COUNTS,
    "pad_a": PADS,
    "pad_b": PADS,
    "pad_d": PADS,
    "arrange_a": st.sampled_from(Arrange),
    "arrange_b": st.sampled_from(Arrange),
    "fragment_buffers": st.integers(1, 2),
    "residency": st.sampled_from(Residency),
    "store": st.sampled_from(Store),
    "min_blocks": st.integers(1, MAX_MIN_BLOCKS),
    "raster": st.just(LINEAR)
    | st.builds(Raster, st.sampled_from([Order.GROUPED, Order.PANELS]), st.integers(2, MAX_RASTER_WIDTH)),
    "split_k": st.integers(1, 65_535),
    "reduction": st.sampled_from(Reduction),
    "warps_k": COUNTS,
}
CONFIGS = st.fixed_dictionaries(VALUES).map(build)


# Names.


def test_every_key_is_tried() -> None:
    assert tuple(VALUES) == CONFIG_KEYS
    held = {f.name for f in fields(Operation)} | {f.name for f in fields(KernelConfig)} - {"operation"}
    assert held == set(CONFIG_KEYS)


@given(CONFIGS)
def test_names_round_trip(case: KernelConfig) -> None:
    text = name(case)
    assert parse(text) == case
    assert str(case) == text and is_name(text)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", text), "a C symbol and a file stem everywhere, whatever the case rules"


@given(CONFIGS)
def test_pairs_and_values_round_trip(case: KernelConfig) -> None:
    assert build(values_of(case)) == case
    pairs = ",".join(f"{key}={spell(value)}" for key, value in values_of(case).items())
    assert build(read_pairs(pairs)) == case
    # C's type is not said where it is D's.
    assert list(values_of(case)) == [key for key in CONFIG_KEYS if key != "c" or case.operation.c]


@given(case=CONFIGS, key=st.sampled_from(CONFIG_KEYS), data=st.data())
def test_a_change_of_any_one_field_changes_the_name(case: KernelConfig, key: str, data: st.DataObject) -> None:
    values = values_of(case)
    held = values.get(key, values["d"])
    other = build({**values, key: data.draw(VALUES[key].filter(lambda value: value != held))})
    assert name(other) != name(case)


def test_a_name_is_what_is_published() -> None:
    assert name(BASE) == BASE_NAME
    mixed = config(
        "arrange_b=tiles,raster=panels8,residency=global,copy=cpasync,stages=3,split_k=4,d=f16,epilogue=linear"
    )
    assert name(mixed) == (
        "wmma_gemm_f16_f32_f16_rr_linear_exact8__i16x16x16_w2x2_f4x4_k2_shared_cpasync3_p8x8x0_rowstiles"
        "_fb1_resglobal_direct_mb1_panels8_sk4"
    )
    assert name(config("split_k=4,reduction=workspace")) == f"{BASE_NAME.removesuffix('_sk1')}_sk4_workspace"
    assert name(config("warps_k=2")) == f"{BASE_NAME}_wk2"


def test_names_are_short_enough() -> None:
    typical = "copy=cpasync,stages=4,pad_a=16,pad_b=16,warps=4x2,k_steps=4"
    assert len(name(config(typical))) <= 130
    assert max(len(name(c)) for c in sample(2000, 3)) <= 170
    # Every word at its longest, on the longest instruction, with counts that still fit into a block.
    words = (
        "residue=predicated,epilogue=linear,arrange_b=tiles,residency=global,raster=grouped64,copy=cpasync,feed=shared"
    )
    counts = "warps=8x4,frags=4x4,k_steps=4,stages=4,pad_a=8,pad_b=8,split_k=4,reduction=workspace,warps_k=2"
    assert len(name(config(f"a=bf16,acc=f32,d=bf16,inst=16x16x16,{words},{counts}"))) <= 155


WRONG_NAMES = [
    "",
    "wmma_gemm",
    "wmma_gemm_",
    BASE_NAME + "\n",
    BASE_NAME + " ",
    " " + BASE_NAME,
    BASE_NAME + "_kernel",
    BASE_NAME.upper(),
    BASE_NAME.replace("_sk1", ""),
    BASE_NAME + "_none",
    BASE_NAME + "_wk1",
    BASE_NAME + "_",
    BASE_NAME.replace("__", "_"),
    BASE_NAME.replace("_k2_", "_k02_"),
    BASE_NAME.replace("_k2_", "_k0_"),
    BASE_NAME.replace("_k2_", "_k65_"),
    BASE_NAME.replace("_k2_", "_k-2_"),
    BASE_NAME.replace("_k2_", "_k+2_"),
    BASE_NAME.replace("_k2_", "_k٢_"),
    BASE_NAME.replace("_k2_", "_k²_"),
    BASE_NAME.replace("_k2_", "_k_"),
    BASE_NAME.replace("ld2", "ld"),
    BASE_NAME.replace("ld2", "ld00"),
    BASE_NAME.replace("ld2", "copy2"),
    BASE_NAME.replace("p8x8x0", "p8x8"),
    BASE_NAME.replace("p8x8x0", "p8x8x00"),
    BASE_NAME.replace("p8x8x0", "p08x8x0"),
    BASE_NAME.replace("p8x8x0", "p8x8x1025"),
    BASE_NAME.replace("_rows_", "_rowsrows_"),
    BASE_NAME.replace("_rows_", "_rowscols_"),
    BASE_NAME.replace("_f16_", "_fp8_"),
    BASE_NAME.replace("_rr_", "_rx_"),
    BASE_NAME.replace("i16x16x16", "i16x16"),
    BASE_NAME.replace("i16x16x16", "i0x16x16"),
    BASE_NAME.replace("i16x16x16", "i16x16x2000"),
    BASE_NAME.replace("w2x2", "w2x2x2"),
    BASE_NAME.replace("fb1", "fb3"),
    BASE_NAME.replace("sk1", "sk65536"),
    BASE_NAME.replace("resfrag", "resfragment"),
    BASE_NAME.replace("linear_sk", "none_sk"),
]


@pytest.mark.parametrize("text", WRONG_NAMES)
def test_everything_else_is_no_name(text: str) -> None:
    assert text != BASE_NAME
    with pytest.raises(ConfigError) as refusal:
        parse(text)
    assert refusal.value.fix and refusal.value.exit_status == 2


def test_a_second_spelling_is_told_the_first() -> None:
    with pytest.raises(ConfigError) as refusal:
        parse(BASE_NAME.replace("_rows_", "_rowsrows_"))
    assert repr(BASE_NAME) in refusal.value.message


@given(at=st.integers(0, len(BASE_NAME) - 1), to=st.sampled_from("0123456789abcrx_ \n٢"))
def test_a_name_with_one_character_changed_is_another_configuration_or_none(at: int, to: str) -> None:
    text = BASE_NAME[:at] + to + BASE_NAME[at + 1 :]
    try:
        found = parse(text)
    except ConfigError:
        return
    assert name(found) == text and (found == BASE) is (text == BASE_NAME)


# Reading values.


def test_pairs_are_read() -> None:
    assert read_pairs("") == {} and read_pairs(" , ") == {}
    assert read_pairs(" inst = 8x32x16 , stages=3 ") == {"inst": Shape(8, 32, 16), "stages": 3}


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("stages", "'stages' is not key=value", "for example"),
        ("stages=2,stages=3", "stages is given twice", "once"),
        ("stages=2,stages=2", "stages is given twice", "once"),
        ("stage=2", "'stage' is no key", "did you mean stages?"),
        ("pads_a=8", "'pads_a' is no key", "did you mean pad_a?"),
        ("=2", "'' is no key", "keys: a acc"),
        ("Stages=2", "'Stages' is no key", "did you mean stages?"),
        ("block_k=24", "'block_k' is no key", "BLOCK_K = k_steps x inst k"),
        ("BLOCK_M=24", "'BLOCK_M' is no key", "keys: a acc"),
        ("warp_m=64", "'warp_m' is no key", "counts"),
        ("copy=cpasyn", "copy=cpasyn is not known", "did you mean copy=cpasync?"),
        ("feed=shard", "feed=shard is not known", "did you mean feed=shared?"),
        ("layout=", "layout= is not known", "rr rc cr cc"),
        ("residue=padded", "residue=padded is no kernel", "wmmagen emit --padded"),
        ("residue=exac", "residue=exac is not known", "did you mean residue=exact?"),
        ("a=bf1", "a=bf1 is not known", "did you mean a=bf16?"),
        ("a=fp16", "the word is f16", "types: f16"),
        ("a=char", "plain char", "types: f16"),
        ("acc=fp8", "no 8-bit floating point", "types: f16"),
        ("stages=two", "stages=two is not a whole number from 1 to 64", "stages=1"),
        ("stages=0", "from 1 to 64", ""),
        ("stages=65", "from 1 to 64", ""),
        ("stages=-1", "from 1 to 64", ""),
        ("stages=1.0", "from 1 to 64", ""),
        ("stages=1e1", "from 1 to 64", ""),
        ("stages=٣", "from 1 to 64", ""),
        ("stages=1_0", "from 1 to 64", ""),
        ("pad_a=1025", "from 0 to 1024", ""),
        ("fragment_buffers=3", "from 1 to 2", ""),
        ("split_k=0", "from 1 to 65535", ""),
        ("split_k=9999999999999999999999", "from 1 to 65535", ""),
        ("inst=16x16", "is not 3 numbers joined by x", "inst=16x16x16"),
        ("inst=16x16xk", "inst=k is not a whole number", ""),
        ("warps=2x2x2", "is not 2 numbers joined by x", "warps=2x2"),
        ("warps=4", "is not 2 numbers joined by x", "warps=2x2"),
        ("frags=2X2", "is not 2 numbers joined by x", "frags=2x2"),
        ("frags=0x2", "frags=0 is not a whole number from 1 to 16", ""),
    ],
)
def test_pairs_that_cannot_be_read(text: str, message: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_pairs(text)
    assert message in refusal.value.message and fix in refusal.value.fix
    assert refusal.value.fix


@pytest.mark.parametrize("key", CONFIG_KEYS)
def test_readers_read_what_values_spell(key: str) -> None:
    value = values_of(config("c=f16"))[key]
    assert read_value(key, spell(value)) == value
    for text in ("", " ", "?", "-1", "x", "16x", spell(value) + "\n"):
        with pytest.raises(ConfigError):
            READERS[key](key, text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2048", (2048, 2048, 2048)),
        ("96x160x48", (96, 160, 48)),
        (" 1X2x3 ", (1, 2, 3)),
        ("0x0x0", (0, 0, 0)),
        (f"{MAX_SIZE}x1x1", (MAX_SIZE, 1, 1)),
    ],
)
def test_sizes_are_read(text: str, size: tuple[int, int, int]) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "x", "1x2", "1x2x3x4", "1x2x", "-1x2x3", "1.5x2x3", "1e3", "axbxc", "٣x1x1", f"{MAX_SIZE + 1}", "1 x 2 x 3"],
)
def test_sizes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_size(text)
    assert repr(text) in refusal.value.message and refusal.value.fix


# Problems.


@pytest.mark.parametrize("field", ["m", "n", "k", "lda", "ldb", "ldd"])
@pytest.mark.parametrize("value", [-1, MAX_SIZE + 1])
def test_sizes_of_a_problem_are_c_ints(field: str, value: int) -> None:
    sizes = {**dict.fromkeys(("m", "n", "k", "lda", "ldb", "ldd"), 64), field: value}
    with pytest.raises(ConfigError, match=f"{field} = {value}"):
        Problem(BASE.operation, **sizes)


def test_packed_problems() -> None:
    lds = {
        layout: (p.lda, p.ldb, p.ldd)
        for layout in Layout
        for p in [Problem.packed(config(f"layout={layout}").operation, 2, 3, 5, extra=10)]
    }
    assert lds == {"rr": (15, 13, 13), "rc": (15, 15, 13), "cr": (12, 13, 13), "cc": (12, 15, 13)}
    outputs = {
        cd: (p.ldc, p.ldd, p.apart().strides[2:])
        for cd in Layout
        for p in [
            Problem.packed(config(f"cd={cd},epilogue=linear,batch=strided").operation, 2, 3, 5, extra=10, batch=4)
        ]
    }
    assert outputs == {
        "rr": (13, 13, (26, 26)), "rc": (13, 12, (26, 36)), "cr": (12, 13, (36, 26)), "cc": (12, 12, (36, 36))
    }  # fmt: skip
    empty = Problem.packed(BASE.operation, 0, 0, 0)
    assert (empty.lda, empty.ldb, empty.ldd) == (0, 0, 0)
    assert str(Problem.packed(BASE.operation, 2, 3, 5)) == "2x3x5"


@pytest.mark.parametrize(("text", "factor"), [("a=f64,acc=f64,d=f64", "f64"), ("a=f16", "f32")])
def test_another_process_has_the_same_factors(text: str, factor: str) -> None:
    operation = config(f"{text},epilogue=scalecol,store=staged").operation
    sent = pickle.loads(pickle.dumps(operation))
    assert sent == operation and sent.factor.name == sent.vector_type("scale_col").name == factor
