"""The text of a generated file: pure, tidy, and with nothing in it that does nothing."""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
from cases_legality import config

import wmmagen
from wmmagen import config as configs
from wmmagen import coverage, derive, render, rules, selftest
from wmmagen.arch import ARCHS
from wmmagen.config import READERS, read_pairs, values_of
from wmmagen.defaults import read_config
from wmmagen.errors import NotGeneratedYet

ROOT = Path(wmmagen.__file__).resolve().parents[1]
SM80 = ARCHS[80]

GLOBAL = "feed=global,copy=none,stages=1,pad_a=0,pad_b=0"
#: One of each pipeline and shape, under both readings.
STRUCTURES = (
    "",
    "copy=ld,stages=1",
    "copy=cpasync,stages=2",
    "copy=cpasync,stages=4,acc=f16,d=f16",
    GLOBAL,
    f"{GLOBAL},acc=f16,d=f16",
    "inst=8x32x16",
    "inst=32x8x16,warps=1x1,frags=4x1",
)
#: With these, every part of the templates, and every pair of parts of which one reads what another declares.
MORE_STRUCTURES = (
    "copy=cpasync,stages=3,store=staged,pad_d=4,d=f16,epilogue=linear,raster=grouped8,fragment_buffers=2,frags=2x4",
    "copy=cpasync,stages=2,store=staged,pad_d=4,align_d=1,raster=panels4,align_a=4,align_b=2,layout=rc",
    "copy=ld,stages=1,layout=cc,arrange_a=tiles,arrange_b=tiles,epilogue=linear,min_blocks=2,frags=2x2",
    "copy=ld,stages=2,arrange_b=tiles,acc=f16,d=f16,epilogue=linear,align_a=1,align_b=2",
    "copy=ld,stages=1,acc=f16,store=staged,pad_d=8,epilogue=linear,residency=fragment",
    "copy=cpasync,stages=3,residency=global,epilogue=linear,layout=rc",
    "copy=ld,stages=2,fragment_buffers=2,arrange_a=tiles,layout=rc,residency=global",
    "copy=cpasync,stages=3,fragment_buffers=2,arrange_b=tiles,layout=cr",
    "copy=cpasync,stages=2,k_steps=3,layout=rc,arrange_a=tiles",
    "copy=ld,stages=2,k_steps=3,layout=rc,arrange_b=tiles",
    "residue=predicated,copy=cpasync,stages=3,fragment_buffers=2,epilogue=linear,layout=rc,raster=grouped4",
    "residue=predicated,copy=cpasync,stages=2,align_a=4,align_b=2,layout=cr,k_steps=3,raster=panels4",
    "residue=predicated,copy=ld,stages=2,fragment_buffers=2,arrange_a=tiles,acc=f16,d=f16",
    "residue=predicated,copy=ld,stages=2,store=staged,pad_d=4,d=f16,align_d=2,epilogue=linear,layout=cc",
    "residue=predicated,copy=ld,stages=1,align_a=1,align_b=1,layout=cc,arrange_b=tiles",
    f"{GLOBAL},residency=global,layout=cr",
    "copy=ld,stages=1,split_k=4,reduction=workspace,layout=cr,epilogue=linear",
    "copy=cpasync,stages=3,split_k=3,reduction=workspace,acc=f16,d=f16,store=staged,pad_d=8,frags=2x2",
    f"{GLOBAL},split_k=2,reduction=atomic,store=staged,pad_d=4,layout=rc",
    "copy=ld,stages=2,split_k=3,reduction=workspace,d=f16,store=staged,epilogue=linear+biascol+gelu",
    f"{GLOBAL},acc=f16,store=staged,pad_d=8,layout=cr,fragment_buffers=2,k_steps=4,raster=grouped4",
    "copy=cpasync,stages=2,a=tf32,inst=16x16x8,epilogue=linear",
    "copy=ld,stages=1,a=f64,acc=f64,d=f64,inst=8x8x4,pad_a=4,pad_b=4,store=staged,pad_d=2,layout=rc",
    f"{GLOBAL},a=tf32,inst=16x16x8,residency=global",
    "copy=cpasync,stages=2,a=s8,acc=s32,d=s8,layout=rc,arrange_a=tiles,arrange_b=tiles,pad_a=16,pad_b=16,store=staged,"
    "pad_d=4,epilogue=linear,overflow=saturate,k_steps=4",
    "copy=ld,stages=1,d=f16,c=f32,store=staged,"
    "epilogue=linear+biasrow+biascol+clamp+scale+scalerow+scalecol+gelu+residual+expr(max(acc,row*2)-min(col,1))",
    "copy=cpasync,stages=2,align_d=1,d=f16,store=staged,epilogue=biascol+gelutanh+residual",
    "copy=ld,stages=2,residency=global,epilogue=linear+relu+residual+silu",
    f"{GLOBAL},acc=f16,d=f16,epilogue=relu+clamp",
    "copy=ld,stages=1,d=f16,c=f32,store=staged,epilogue=linear",
    "copy=ld,stages=1,batch=strided,epilogue=linear",
    f"{GLOBAL},batch=strided",
    "copy=cpasync,stages=3,fragment_buffers=2,k_steps=4,warps_k=2,epilogue=linear,residue=predicated,raster=grouped4",
    "copy=ld,stages=1,k_steps=4,warps_k=4,frags=2x2,acc=f16,d=f32,store=staged,pad_d=8,layout=cr,split_k=2,"
    "reduction=workspace",
    f"{GLOBAL},warps_k=2,layout=cr,epilogue=linear",
    "copy=ld,stages=2,a=s8,acc=s32,d=s32,layout=rc,arrange_a=tiles,arrange_b=tiles,pad_a=16,pad_b=16,warps_k=2",
    "copy=ld,stages=1,batch=pointers,epilogue=linear",
    "copy=cpasync,stages=2,batch=pointers",
    "cd=cc,copy=cpasync,stages=3,store=staged,pad_d=4,d=f16,epilogue=linear,fragment_buffers=2,frags=2x4",
    "cd=cc,residue=predicated,copy=ld,stages=2,store=staged,pad_d=4,d=f16,align_d=2,epilogue=linear,layout=cc",
    "cd=rc,residue=predicated,copy=cpasync,stages=2,epilogue=linear",
    "cd=cr,copy=ld,stages=1,acc=f16,d=f16,epilogue=linear,layout=cr",
    f"cd=cc,{GLOBAL},a=tf32,inst=16x16x8,residency=global",
    "cd=rc,copy=cpasync,stages=2,a=tf32,inst=16x16x8,epilogue=linear",
    f"cd=cc,{GLOBAL},split_k=2,reduction=atomic,store=staged,pad_d=4,layout=rc",
    "cd=cr,copy=ld,stages=2,split_k=3,reduction=workspace,d=f16,store=staged,epilogue=linear+biasrow+gelu+residual",
    "cd=rc,copy=ld,stages=1,d=f16,c=f32,store=staged,"
    "epilogue=linear+biasrow+biascol+scalerow+scalecol+residual+expr(max(acc,row*2)-min(col,1))",
    "cd=cc,copy=cpasync,stages=2,align_d=1,d=f16,store=staged,epilogue=biasrow+gelutanh+residual",
)
FILES = [
    *((pairs, sm, strict) for pairs in STRUCTURES for sm in (75, 120) for strict in (False, True)),
    *((pairs, 120, strict) for pairs in MORE_STRUCTURES for strict in (False, True)),
]


@functools.cache
def text_of(pairs: str, sm: int = 80, *, strict: bool = False) -> str:
    return render.render(config(pairs), ARCHS[sm], strict_isa=strict).text


@functools.cache
def beside(pairs: str, sm: int) -> dict[str, str]:
    """The texts that are emitted beside the kernel's, by the ends of their files' names."""
    case, arch = config(pairs), ARCHS[sm]
    return {".h": render.render_header(case, arch), "_selftest.cu": render.render_selftest(case, arch)}


def code_of(text: str) -> str:
    """``text`` without comments and string literals."""
    return re.sub(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"', "", text)


# A pure function.

AGAIN = """
import sys
from wmmagen import config, render
from wmmagen.arch import ARCHS
for name in sys.argv[1:]:
    case = config.parse(name)
    sys.stdout.write(render.render(case, ARCHS[80]).text)
    sys.stdout.write(render.render_header(case, ARCHS[80]) + render.render_selftest(case, ARCHS[80]))
    sys.stdout.write(render.render_guards(case, ARCHS[80]))
"""


def everything(case: configs.KernelConfig) -> str:
    others = render.render_header(case, SM80) + render.render_selftest(case, SM80)
    return render.render(case, SM80).text + others + render.render_guards(case, SM80)


def test_the_same_text_everywhere(tmp_path: Path) -> None:
    cases = [config(pairs) for pairs in STRUCTURES]
    here = "".join(map(everything, cases))
    for seed, zone in (("1", "Asia/Tokyo"), ("2", "America/Lima")):
        elsewhere = subprocess.run(
            [sys.executable, "-c", AGAIN, *map(str, cases)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": "C"},
            capture_output=True,
            check=True,
        )
        assert elsewhere.stdout.decode() == here
    assert here == "".join(map(everything, cases))


@pytest.mark.parametrize(("pairs", "sm", "strict"), FILES)
def test_no_date_and_no_path(pairs: str, sm: int, strict: bool) -> None:
    text = text_of(pairs, sm, strict=strict)
    assert not re.search(r"\b(19|20)[0-9]{2}\b|[0-9]{1,2}:[0-9]{2}", text)
    assert str(ROOT) not in text and not re.search(r"(?<![*/:])/(home|tmp|usr|work|root|opt)\b", text)
    assert "jinja" not in text.lower() and "{{" not in text and "{#" not in text
    # Operands of PTX are numbered behind a %, tags are words.
    assert not re.search(r"\{%(?![0-9])", text)


# Tidy.


def slots_of(pairs: str) -> dict[str, str]:
    slots: dict[str, str] = render._context(config(pairs), SM80, "", "", False)["slot"]
    return slots


def test_the_files_that_are_looked_at_have_every_part_of_the_templates() -> None:
    seen = set()
    for pairs in STRUCTURES + MORE_STRUCTURES:
        case = config(pairs)
        assert rules.legal(case, SM80), pairs
        seen |= {f"{re.sub('_[abcd]$', '', slot)}_{value}" for slot, value in slots_of(pairs).items()}
    parts = {path.stem for path in (render.template_root() / "parts").glob("*_*.jinja")}
    assert parts == seen


@pytest.mark.parametrize(("pairs", "sm", "strict"), FILES)
def test_no_line_of_the_kernel_is_long_but_for_its_name(pairs: str, sm: int, strict: bool) -> None:
    text = text_of(pairs, sm, strict=strict)
    kernel = text[: text.index("#ifndef WMMAGEN_STATUS")]
    assert [line for line in kernel.splitlines() if len(line) > 120 and str(config(pairs)) not in line] == []


@pytest.mark.parametrize(("pairs", "sm", "strict"), FILES)
def test_a_comment_that_goes_on_follows_what_it_goes_on_from(pairs: str, sm: int, strict: bool) -> None:
    table = [*derive.CONSTANTS, *derive.COSTS, *derive.ARCH_LIMITS]
    before = {after.name: constant.name for constant, after in itertools.pairwise(table)}
    declared = re.findall(r"constexpr int (\w+) =[^;]*; +// (.*)", text_of(pairs, sm, strict=strict))
    for (above, _), (name, meaning) in itertools.pairwise(declared):
        if re.search(r"^(and|the same|its|what)\b|\b(of|for) (it|them)\b", meaning):
            assert above == before[name], f"{name}: {meaning}"


@pytest.mark.parametrize(("pairs", "sm", "strict"), FILES)
def test_white_space(pairs: str, sm: int, strict: bool) -> None:
    for text in (text_of(pairs, sm, strict=strict), *beside(pairs, sm).values()):
        assert "\t" not in text and "\r" not in text and text.isascii()
        assert not re.search(r"[ ]\n", text)
        assert text.endswith("\n") and not text.endswith("\n\n")
        assert not text.startswith("\n") and "\n\n\n" not in text


def clang_format() -> str | None:
    beside = Path(sys.executable).with_name("clang-format")
    return str(beside) if beside.is_file() else shutil.which("clang-format")


def texts_of(pairs: str, sm: int, strict: bool) -> dict[str, str]:
    """Each text that is emitted, by the end of its file's name."""
    return {".cu": text_of(pairs, sm, strict=strict), **beside(pairs, sm)}


@pytest.fixture(scope="module")
def formatted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the texts of all FILES by their number, formatted by one process: most of its time is its start."""
    program = clang_format() or pytest.skip("clang-format is not here: pip install clang-format")
    folder = tmp_path_factory.mktemp("formatted")
    for number, file in enumerate(FILES):
        for ending, text in texts_of(*file).items():
            (folder / f"{number}{ending}").write_text(text, encoding="utf-8", newline="")
    command = [program, "-i", f"--style=file:{ROOT / '.clang-format'}", *sorted(map(str, folder.iterdir()))]
    subprocess.run(command, check=True)
    return folder


@pytest.mark.parametrize("number", range(len(FILES)), ids=lambda number: "-".join(map(str, FILES[number])))
def test_the_output_is_its_own_fixed_point_of_clang_format(number: int, formatted: Path) -> None:
    for ending, text in texts_of(*FILES[number]).items():
        assert (formatted / f"{number}{ending}").read_bytes().decode() == text


# Nothing in it that does nothing.

#: Names in capitals that a file does not declare itself: parameters, macros of the compiler, enumerators of the status.
FOREIGN = re.compile(r"[ABCDRMNK]|__\w+__|WMMAGEN_\w+|PENDING")


@pytest.mark.parametrize(("pairs", "sm", "strict"), FILES)
def test_every_constant_is_used_and_every_use_declared_before(pairs: str, sm: int, strict: bool) -> None:
    code = code_of(text_of(pairs, sm, strict=strict))
    words = [(m[0], m.start()) for m in re.finditer(r"\b[A-Z_][A-Z0-9_]*\b", code) if not FOREIGN.fullmatch(m[0])]
    declared = {m[1]: m.start(1) for m in re.finditer(r"constexpr int (\w+) =", code)}
    assert len(declared) == len(re.findall(r"constexpr int", code)), "declared twice"
    assert {name for name, _ in words} == set(declared)
    assert [name for name, at in words if at < declared[name]] == []
    for name in declared:
        assert [n for n, _ in words].count(name) > 1, f"{name} is declared and not used"


@pytest.mark.parametrize(("pairs", "sm", "strict"), FILES)
def test_the_compiler_of_the_kernel_sees_no_constant_that_it_does_not_need(pairs: str, sm: int, strict: bool) -> None:
    code = code_of(text_of(pairs, sm, strict=strict))
    seen, launcher = code.split("#ifndef __CUDACC_RTC__\n\n#ifndef WMMAGEN_STATUS")
    assert "cudaLaunchKernelEx" in launcher and "cudaError_t" not in seen
    for name in re.findall(r"constexpr int (\w+) =", seen):
        assert len(re.findall(rf"\b{name}\b", seen)) > 1, name


@pytest.mark.parametrize(("pairs", "sm", "strict"), FILES)
def test_every_rule_that_speaks_is_asserted_or_checked_and_no_other(pairs: str, sm: int, strict: bool) -> None:
    text = text_of(pairs, sm, strict=strict)
    known = derive.values(config(pairs), ARCHS[sm], strict_isa=strict)
    stated = set(re.findall(r"\b([A-Z][0-9]{3})[: ]", text))
    speaking = {r.id for r in rules.RULES if r.scope not in ("toolchain", "search") and r.applies(known)}
    # A rule that holds by structure alone is no news.
    settled = derive.settled(config(pairs), strict_isa=strict)
    structure = {**settled, **derive.given(config(pairs))}
    silent = {
        r.id for r in rules.RULES if r.id in speaking and r.expr.fold(structure if r.structural else settled) is True
    }
    assert stated == speaking - silent


# Structure and numbers.

PAIRS_OF_ONE_STRUCTURE = [
    ("", "k_steps=4,pad_a=16"),
    ("", "warps=1x4,frags=2x2"),
    ("", "inst=8x32x16"),
    ("copy=cpasync,stages=2", "copy=cpasync,stages=5,pad_b=24"),
    ("copy=ld,stages=1", "copy=ld,stages=1,warps=4x2,k_steps=4"),
    ("copy=ld,stages=1,k_steps=3", "copy=ld,stages=1,warps=4x2,k_steps=3"),
    (GLOBAL, f"{GLOBAL},frags=2x8,inst=8x32x16"),
]


def numbers(draw: random.Random, pairs: str) -> str:
    """Other numbers for the structure of ``pairs``, legal or not."""
    given = read_pairs(pairs)
    count = {key: draw.choice((1, 2, 4)) for key in ("wm", "wn", "fm", "fn")}
    values = {
        "inst": draw.choice(("16x16x16", "32x8x16", "8x32x16")),
        "warps": f"{count['wm']}x{count['wn']}",
        "frags": f"{count['fm']}x{count['fn']}",
        "k_steps": draw.choice((2, 3, 4)),
        "min_blocks": draw.choice((1, 2, 3)),
    }
    if "a" in given:
        # Of these, the shape is a part of the text, and pads are others.
        del values["inst"]
        unit = 128 // given["a"].bits
        values |= {"pad_a": draw.choice((unit, 2 * unit)), "pad_b": draw.choice((unit, 2 * unit))}
        values |= {"pad_a": 0, "pad_b": 0} if given.get("feed") == "global" else {}
    elif given.get("feed") != "global":
        values |= {"pad_a": draw.choice((8, 16, 24)), "pad_b": draw.choice((8, 16, 24))}
    if given.get("copy") == "cpasync":
        values["stages"] = draw.choice((2, 3, 4, 5))
    if given.get("store") == "staged":
        values["pad_d"] = draw.choice((0, 8, 16))
    if "raster" in given:
        values["raster"] = f"{given['raster'].order}{draw.choice((2, 5, 16))}"
    kept = {key: configs.spell(value) for key, value in given.items()}
    return ",".join(f"{key}={value}" for key, value in {**kept, **values}.items())


@pytest.mark.parametrize("pairs", STRUCTURES + MORE_STRUCTURES)
def test_legal_variants_of_a_structure_differ_in_numbers_only(pairs: str) -> None:
    draw = random.Random(pairs)
    drawn = (numbers(draw, pairs) for _ in range(1000))
    same = (p for p in drawn if rules.legal(config(p), SM80) and slots_of(p) == slots_of(pairs))
    legal = set(itertools.islice(same, 6))
    assert len(legal) >= 4
    assert {without_numbers(p) for p in legal} == {without_numbers(pairs)}


def without_numbers(pairs: str) -> str:
    source = render.render(config(pairs), SM80)
    banner, rest = source.text.split("\n\n", 1)
    assert all(line.startswith("//") for line in banner.splitlines())
    rest = rest.replace(source.symbol, "NAME")
    return re.sub(r"^(constexpr int \w+ =) [0-9]+; +//", r"\1 NUMBER; //", rest, flags=re.M)


@pytest.mark.parametrize(("one", "other"), PAIRS_OF_ONE_STRUCTURE)
def test_variants_of_one_structure_differ_in_numbers_only(one: str, other: str) -> None:
    assert text_of(one) != text_of(other)
    assert without_numbers(one) == without_numbers(other)


def test_numbers_stand_in_the_constants_alone() -> None:
    _, code = code_of(text_of("copy=cpasync,stages=5,pad_a=24")).split("namespace wmma", 1)
    body = re.sub(r"constexpr int[^;]*;|static_assert\([^;]*\);", "", code)
    # 8 bits, 32 lanes, 16 bytes, 128-byte alignment, and the grid's end are facts of the hardware; 0 to 8 count.
    assert set(re.findall(r"(?<![\w.])[0-9]+\b", body)) <= {
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8",
        "16",
        "32",
        "128",
        "800",
        "10",
        "2147483647",
    }


# Refusals, names, the header.

#: A value of each key that is known and not made.
UNMADE = [
    "a=s4,acc=s32,d=s32,inst=8x8x32,layout=rc",
    "a=b1,acc=s32,d=s32,inst=8x8x128,layout=rc",
]


@pytest.mark.parametrize("pairs", UNMADE)
def test_what_is_not_made_yet_is_said(pairs: str) -> None:
    with pytest.raises(NotGeneratedYet, match="not generated yet") as refusal:
        render.render(config(pairs), SM80)
    assert "made today" in refusal.value.message and refusal.value.exit_status == 2
    key = pairs.split("=")[0]
    assert re.search(rf"\b(d|{key})=", refusal.value.message)
    # Not a matter of legality, so no rule is named.
    assert not re.search(r"\b[A-Z][0-9]{3}\b", refusal.value.message)


def test_everything_that_is_missing_is_said_at_once() -> None:
    sentences = coverage.missing(config("a=u4,acc=s32,d=s4"))
    assert len(sentences) == 2


@pytest.mark.parametrize("a", ["s4", "u4", "b1"])
def test_experimental_types_are_refused_with_the_reason(a: str) -> None:
    sentence = coverage.missing(config(f"a={a}"))[0]
    assert "experimental in nvcuda::wmma" in sentence and "made today: a=f16 bf16 tf32 f64 s8 u8" in sentence


def test_a_file_includes_what_its_own_types_need() -> None:
    heads = {
        "": ["cuda_fp16.h"],
        "a=bf16": ["cuda_bf16.h"],
        "store=staged,d=bf16,pad_d=4": ["cuda_bf16.h", "cuda_fp16.h"],
        "a=tf32,inst=16x16x8,pad_a=4,pad_b=4": [],
        "a=s8,acc=s32,d=s32,layout=rc,arrange_a=tiles,arrange_b=tiles,pad_a=16,pad_b=16": [],
    }
    for pairs, headers in heads.items():
        case = config(pairs)
        for text in (render.render(case, SM80).text, render.render_selftest(case, SM80)):
            found = re.findall(r"#include <(cuda_[a-z]+1?6?\.h)>", text)
            assert [h for h in found if h != "cuda_runtime.h"] == headers, pairs
    # An f16 kernel for sm_75 says nothing of what its card has not.
    assert "bf16" not in text_of("", 75) and "bfloat" not in text_of("", 75)


def test_coverage_speaks_of_known_keys_and_values() -> None:
    for key, made in coverage.GENERATED.items():
        assert [configs.spell(READERS[key](key, value)) for value in made] == list(made)


def test_guards_are_made_for_every_known_type() -> None:
    text = render.render_guards(config("a=s8,acc=s32,d=s32,layout=cc"), SM80)
    assert "static_assert(" in text and "#include" not in text


def test_an_unknown_name_in_a_template_is_an_error() -> None:
    environment = render._environment()
    assert environment.undefined is jinja2.StrictUndefined
    with pytest.raises(jinja2.UndefinedError):
        environment.from_string("{{ no_such_name }}").render()


def test_every_template_is_used() -> None:
    parts = {path.name for path in (render.template_root() / "parts").glob("*.jinja")}
    slots = {
        f"pipeline_{name}.jinja"
        for name in ("single", "prefetch", "prefetch_ahead", "cpasync", "cpasync_ahead", "global")
    }
    assert slots <= parts
    texts = (
        "".join(path.read_text() for path in render.template_root().rglob("*.jinja"))
        + Path(render.__file__).read_text()
    )
    for part in parts - slots:
        stem = part.removesuffix(".jinja").split("_")[0]
        assert f"parts/{part}" in texts or f'"parts/{stem}_" ~ slot.{stem}' in texts, part


def test_the_symbol_is_the_name_or_what_was_asked_for() -> None:
    source = render.render(config(""), SM80)
    assert source.symbol == str(config("")) and source.kernel == f"{source.symbol}_kernel"
    assert f'extern "C" wmmagen_status {source.symbol}(' in source.text
    assert f"__launch_bounds__(THREADS, MIN_BLOCKS) {source.kernel}(" in source.text
    asked = render.render(config(""), SM80, symbol="my_gemm")
    assert (asked.symbol, asked.kernel) == ("my_gemm", "my_gemm_kernel")
    assert 'extern "C" wmmagen_status my_gemm(' in asked.text
    # The banner still says which kernel it is.
    assert asked.text.startswith(f"// {source.symbol}\n")


def test_the_banner_says_how_the_file_is_made() -> None:
    source = render.render(config(""), ARCHS[75])
    assert f"`wmmagen render {source.symbol} --arch sm_75`" in source.text
    assert configs.parse(source.text.split("\n")[0].removeprefix("// ")) == config("")


def test_the_header() -> None:
    case = config("copy=cpasync,stages=3,acc=f16,d=f16")
    text = render.render_header(case, SM80)
    guard = f"WMMAGEN_{case}_H"
    assert f"#ifndef {guard}\n#define {guard}\n" in text and text.endswith(f"#endif  // {guard}\n")
    assert 'extern "C" {' in text and "#ifdef __cplusplus" in text
    assert f"wmmagen_status {case}(" in text
    assert "N is a multiple of 128\n" in text and "f16, row-major" in text
    # Plain C: no namespace, no C++ header, no comment-free template.
    assert not re.search(r"\b(namespace|template|constexpr|nullptr|std::)\b", code_of(text))
    assert re.findall(r"#include <(.*)>", text) == ["cuda_runtime_api.h"]
    other = render.render_header(case, SM80, symbol="my_gemm")
    assert "my_gemm(" in other and "WMMAGEN_my_gemm_H" in other


@pytest.mark.parametrize("pairs", ["", "epilogue=linear"])
def test_the_header_declares_what_the_file_defines(pairs: str) -> None:
    def signatures(text: str) -> list[str]:
        found = re.findall(r"^(?:extern \"C\" )?(\w[\w* ]+ \*?g(?:_\w+)?\([^)]*\))(?:;| {)$", text, re.M)
        return sorted(" ".join(one.split()) for one in found)

    def status(text: str) -> str:
        return text[text.index("#ifndef WMMAGEN_STATUS") : text.index("} wmmagen_status;")]

    text = render.render(config(pairs), SM80, symbol="g").text
    header = render.render_header(config(pairs), SM80, symbol="g")
    assert len(signatures(header)) == 3
    assert signatures(text) == signatures(header)
    assert status(text) == status(header)


def test_the_status_has_its_values_for_ever() -> None:
    text = render.render_header(config("split_k=2,reduction=workspace"), SM80)
    assert re.findall(r"^  (WMMAGEN_\w+) = ([0-9]+)", text, re.M)[:9] == [
        ("WMMAGEN_OK", "0"),
        ("WMMAGEN_BAD_SIZE", "1"),
        ("WMMAGEN_BAD_LEADING_DIMENSION", "2"),
        ("WMMAGEN_BAD_POINTER", "3"),
        ("WMMAGEN_NO_SHARED_MEMORY", "4"),
        ("WMMAGEN_NOT_LAUNCHED", "5"),
        ("WMMAGEN_NO_DEVICE", "6"),
        ("WMMAGEN_NO_CODE", "7"),
        ("WMMAGEN_BAD_WORKSPACE", "8"),
    ]
    assert f"#define WMMAGEN_STATUS {len(rules.Status)}\n" in text
    assert len({status.says for status in rules.Status}) == len(rules.Status)
    # Whoever cannot give an answer does not know it, and its files stay what they are.
    assert "#define WMMAGEN_STATUS 8\n" in render.render_header(config(""), SM80)


def test_every_key_is_in_the_name_and_changes_the_file() -> None:
    base = text_of("")
    for pairs in ("inst=8x32x16", "warps=2x4", "frags=2x4", "k_steps=1", "stages=1", "pad_a=16", "pad_b=16"):
        assert text_of(pairs) != base
    assert len(values_of(config("c=f16"))) == len(READERS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("epilogue=linear+biascol+relu", (0, 0, 0)),
        ("epilogue=biascol+gelu", (9, 9, 0)),
        ("epilogue=gelu", (9, 0, 0)),
        ("acc=f16,d=f16,epilogue=silu+residual", (5, 5, 0)),
        ("a=bf16,epilogue=linear+silu", (6, 6, 0)),
        ("a=f64,epilogue=biascol+silu", (20, 20, 0)),
        ("a=s8,d=f16,c=f32,epilogue=scalecol+biascol+gelu", (0, 9, 6)),
        ("a=s8,d=f32,c=s32,epilogue=biascol+scale+gelu", (0, 0, 0)),
    ],
)
def test_self_tests_are_as_fine_as_types_hold_their_values(text: str, found: tuple[int, int, int]) -> None:
    o = read_config(f"warps=1x1,frags=2x2,k_steps=4,{text}", ARCHS[80]).operation
    fine = selftest.fractions(o)
    assert (fine.a_bits, fine.added_bits, fine.scaled_bits) == found
    assert selftest.MOST_A << fine.a_bits <= o.a.exact_limit
    assert selftest.MOST_OF_FUNCTIONS << (fine.a_bits + fine.scaled_bits) <= o.acc.exact_limit
    assert selftest.MOST_ADDED << fine.added_bits <= o.added.exact_limit


@pytest.mark.parametrize("text", [text for text in STRUCTURES + MORE_STRUCTURES if "residue=predicated" in text])
def test_what_is_left_is_never_compared_by_equality(text: str) -> None:
    """ptxas 13.0 takes an == of a clamped number and its bound for true where the number is less."""
    source = code_of(text_of(text, 90))
    assert "count >= most" in source
    count = r"(\bcount\b|\b(inside|within)\([^;]*\))"
    assert not re.findall(rf"{count} [!=]= |[!=]= {count}", source)
