"""Offsets can pass 2^31 elements: what lines, products of a batch and tiles lie apart is multiplied in 64 bits.

What shows it in a run is a matrix of more than 2^31 elements: `tests/gpu/prove_large.py` has one on a card for each way
to read and to write. And as what overflows is undefined, a compiler may make right code of a wrong text. So here the
text is read, of every part of the templates. Each place where it goes to 64 bits is taken back, in turn, and has to be
found; a line that no text of this file has is told.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jinja2
import pytest
from cases_legality import config
from test_render import GLOBAL, MORE_STRUCTURES, STRUCTURES

from wmmagen import render
from wmmagen.arch import ARCHS
from wmmagen.config import Problem
from wmmagen.elementwise import rest_of, text_of

SM120 = ARCHS[120]
#: Texts that no other test asks for, each with a place of its own.
FURTHER = (
    "batch=strided,copy=ld,stages=1,split_k=2,reduction=workspace,layout=cr,epilogue=linear",
    "batch=pointers,copy=ld,stages=1,split_k=2,reduction=workspace",
    f"cd=cc,batch=strided,{GLOBAL},layout=cr,store=staged,pad_d=8,epilogue=biasrow+residual",
    "copy=ld,stages=1,epilogue=gelu",
)
#: What lies that far apart, in elements: the names of leading dimensions, of strides and of a tile's workspace.
APART = re.compile(r"ld([abcdr]|_\w+)?|stride(_\w+)?|TILE_WORK(_BYTES)?")
_TOKEN = re.compile(r"\w+|::|->|[-+*/%<>=!&|]=|&&|\|\||\S")


class Text:
    """The tokens of a C++ text, without comments, strings and directives; and what it declares in 64 bits."""

    def __init__(self, text: str) -> None:
        bare = re.sub(r"//[^\n]*|/\*.*?\*/|\"(\\.|[^\"\\\n])*\"|^\s*#[^\n]*", " ", text, flags=re.M | re.S)
        bare = bare.replace("std::size_t", "size_t").replace("long long", "long_long")
        self.tokens = _TOKEN.findall(bare)
        declared = re.findall(r"\b(long_long|size_t|int|unsigned) (\w+)(?= ?[=;,){])", bare)
        narrow = {name for kind, name in declared if kind in ("int", "unsigned")}
        self.wide = {name for kind, name in declared if kind in ("long_long", "size_t")} - narrow
        self._ends = dict(self._pairs())
        self._begins = {end: begin for begin, end in self._ends.items()}

    def faults(self) -> list[str]:
        """Products, names and casts of 32 bits that are made of what lies far apart."""
        found, constant = [], 0
        for at, token in enumerate(self.tokens):
            if token == "constexpr":
                constant = self.tokens.index(";", at)
            if at < constant:  # there, what overflows does not compile
                continue
            if token == "*" and self._binary(at) and self._far(at) and not self._product_is_wide(at):
                found.append(self._words(at - 6, at + 3))
            elif token in ("int", "unsigned") and self._makes_narrow(at):
                found.append(self._words(at, at + 12))
        return found

    def _words(self, begin: int, end: int) -> str:
        return " ".join(self.tokens[max(begin, 0) : end])

    def _pairs(self) -> Iterator[tuple[int, int]]:
        open_ones: list[int] = []
        for at, token in enumerate(self.tokens):
            if token in "([{":
                open_ones.append(at)
            elif token in ")]}":
                yield open_ones.pop(), at

    def _binary(self, at: int) -> bool:
        """Whether ``*`` multiplies: behind an operand, and in front of one."""
        before, behind = self.tokens[at - 1], self.tokens[at + 1]
        return bool(re.fullmatch(r"\w+|\)|\]", before) and re.match(r"\w|\(", behind))

    def _operand(self, end: int) -> tuple[int, bool]:
        """Where the operand that ends at ``end`` begins, and whether it is of 64 bits."""
        token = self.tokens[end]
        if token in (")", "]"):
            begin = self._begins[end]
            if self.tokens[begin - 1] == ">":
                cast = begin - 1 - self.tokens[begin - 1 :: -1].index("<")
                return cast - 1, self.tokens[cast + 1] in ("long_long", "size_t")
            if re.fullmatch(r"\w+", self.tokens[begin - 1]):
                return self._operand(begin - 1)[0], self.tokens[begin - 1] == "sizeof"
            return begin, token == ")" and self._sum_is_wide(begin + 1, end)
        begin = end
        while self.tokens[begin - 1] in (".", "->", "::"):
            begin -= 2
        return begin, token in self.wide or bool(re.fullmatch(r"\d+u?(ll|LL)", token))

    def _sum_is_wide(self, begin: int, end: int) -> bool:
        """Whether one of the terms between is of 64 bits, which makes the sum one."""
        at = end - 1
        while at >= begin:
            if not re.fullmatch(r"\w+|\)|\]", self.tokens[at]):
                at -= 1
                continue
            first, wide = self._operand(at)
            if wide:
                return True
            at = first - 1
        return False

    def _right_end(self, begin: int) -> int:
        """Where the operand that begins there ends."""
        at = begin
        while at + 1 < len(self.tokens) and self.tokens[at + 1] in (".", "->", "::", "<", "(", "["):
            if self.tokens[at + 1] == "<":
                if self.tokens[at] != "static_cast":
                    break
                at = self.tokens.index(">", at)
            elif self.tokens[at + 1] in "([":
                at = self._ends[at + 1]
            else:
                at += 2
        return self._ends.get(at, at)

    def _far(self, at: int) -> bool:
        """Whether an operand of the product lies far apart, by its name."""
        return any(APART.fullmatch(self.tokens[end]) for end in (at - 1, self._right_end(at + 1)))

    def _product_is_wide(self, at: int) -> bool:
        """Whether the product at ``at`` is one of 64 bits: an operand before it is, or the one behind."""
        if self._operand(self._right_end(at + 1))[1]:
            return True
        while self.tokens[at] in ("*", "/", "%"):
            begin, wide = self._operand(at - 1)
            if wide:
                return True
            at = begin - 1
        return False

    def _makes_narrow(self, at: int) -> bool:
        """Whether ``int`` there begins a stride, or a name or a cast of something that lies far apart."""
        name, behind = self.tokens[at + 1 : at + 3]
        if self.tokens[at - 1] == "<" and name == ">":
            return self.tokens[at - 2] == "static_cast" and self._mentions(at + 3, self._ends[at + 2])
        if name.startswith("stride_"):
            return behind != "("
        return behind == "=" and self._mentions(at + 3, self.tokens.index(";", at))

    def _mentions(self, begin: int, end: int) -> bool:
        return any(APART.fullmatch(token) or token in self.wide for token in self.tokens[begin:end])


#: Where a text goes to 64 bits: a type that is cast to or declared. Addresses have no other.
WENT_WIDE = re.compile(
    r"(?<!unsigned )(?<!reinterpret_cast<)(?<!reinterpret_cast<std::)(?:long long|(?:std::)?size_t)"
    r"(?! .*_address =)(?=>| [\w{} ]+ =| stride|,)"
)
_MARKED = r"(?:long long|(?:std::)?size_t)/\*{}\*/"
#: What stands behind the type where nothing overflows in 32 bits either.
UNHARMED = (
    r" product = blockIdx.y;",  # a stride has 64 bits
    r">\(batch\) \* TILE_WORK_BYTES",  # behind a factor of 64 bits, as the next two
    r">\(lines_to\) \*",
    r">\(length_to\);",
    r">\([MN]\), static_cast<",  # extents, whose product is the runtime's
    r">\([MN]\), stream\);",
    r" ALIGNMENT = 256;",
)


class Marking(jinja2.FileSystemLoader):
    """Marks each place where a template goes to 64 bits by a comment of its own."""

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, object]:
        text, *more = super().get_source(environment, template)
        number = itertools.count(1)
        return (WENT_WIDE.sub(lambda found: f"{found[0]}/*{template}:{next(number)}*/", text), *more)


def _rendered() -> Iterator[str]:
    """Texts that have every part of the templates; legality is not asked for."""
    for pairs in (*STRUCTURES[:1], *MORE_STRUCTURES, *FURTHER):
        yield render.render(config(pairs), SM120).text
    for pairs in ("layout=rr", "layout=cc,epilogue=linear"):
        yield render.render_padding(config(pairs), SM120)
    yield text_of(Problem.packed(rest_of(config("epilogue=linear+biascol+scalecol+residual").operation), 64, 64, 64))


@dataclass(frozen=True)
class Made:
    """Texts with marks, and the lines of templates that none of them has: template, number and what stands there."""

    texts: list[str]
    unused: list[tuple[str, int, str]]


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    root, passed = render.template_root(), set()

    def line(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        if frame.f_code.co_filename.startswith(f"{root}/"):
            passed.add((frame.f_code.co_filename, frame.f_lineno))
            return line
        return None

    def filled(*arguments: Any, **more: Any) -> str:
        before = sys.gettrace()
        sys.settrace(line)
        try:
            return fill(*arguments, **more)
        finally:
            sys.settrace(before)

    fill = render._fill
    with pytest.MonkeyPatch.context() as patch:
        marking = render._environment().overlay(loader=Marking(root), cache_size=400)
        patch.setattr(render, "_environment", lambda: marking)
        for name in _templates():
            marking.get_template(name)  # to follow the compiler, too, would take long
        patch.setattr(render, "_fill", filled)
        texts = list(_rendered())
        unused = []
        for name in _templates():
            source = (root / name).read_text(encoding="utf-8").splitlines()
            lines: dict[int, bool] = {}
            for number, compiled in marking.get_template(name).debug_info:
                lines[number] = lines.get(number, False) or (str(root / name), compiled) in passed
            unused += [(name, number, source[number - 1]) for number, used in lines.items() if not used]
        yield Made(texts, unused)


def _templates() -> Iterator[str]:
    """Those of kernels, their launchers and what goes with them.

    The self-test's matrices are a few lines, and what measures a chip multiplies by no leading dimension.
    """
    root = render.template_root()
    for path in sorted(root.rglob("*.jinja")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(("selftest.", "ceiling_", "parts/singles.")) and not name.endswith(".h.jinja"):
            yield name


def test_the_texts_have_every_line_that_tells_how_far_apart_something_lies(made: Made) -> None:
    assert [line for line in made.unused if re.search(r"\*|\bld[abcdr]?\b|stride_", line[2])] == []
    assert len(made.unused) < 20


def test_what_lies_far_apart_is_multiplied_in_64_bits(made: Made) -> None:
    assert [fault for text in made.texts for fault in Text(text).faults()] == []


def test_every_place_of_the_templates_that_goes_to_64_bits_has_to(made: Made) -> None:
    """Each is planted as ``int``, and found in one of the texts at least."""
    root = render.template_root()
    there = {
        f"{name}:{number}"
        for name in _templates()
        for number in range(1, 1 + len(WENT_WIDE.findall((root / name).read_text(encoding="utf-8"))))
    }
    texts_of: dict[str, list[str]] = {}
    for text in made.texts:
        for mark in dict.fromkeys(re.findall(r"/\*([\w./]+:\d+)\*/", text)):
            texts_of.setdefault(mark, []).append(text)
    assert texts_of.keys() == there and len(there) > 40
    behind = {}
    for mark, found in texts_of.items():
        place = re.compile(_MARKED.format(re.escape(mark)))
        if not any(Text(place.sub("int", text)).faults() for text in found):
            rest = re.sub(r"/\*.*?\*/", "", found[0].split(f"/*{mark}*/", 1)[1].split("\n", 1)[0])
            behind[mark] = [words for words in UNHARMED if re.match(words, rest)]
    assert sorted(itertools.chain(*behind.values())) == sorted(UNHARMED) and all(behind.values()), behind


def test_a_caller_gives_strides_in_64_bits() -> None:
    case = config("batch=strided,epilogue=linear+biasrow+residual")
    named = set(re.findall(r"stride_\w+", render.render_header(case, SM120)))
    assert named == {f"stride_{each}" for each in ("a", "b", "c", "r", "bias_row", "d")}
    for text in (render.render_header(case, SM120), render.render(case, SM120).text):
        assert Text(text).faults() == []
        for stride in named:
            planted = text.replace(f"long long {stride}", f"int {stride}")
            assert planted != text and Text(planted).faults()


@pytest.mark.parametrize(
    "wrong",
    [
        "x = A + row * lda;",
        "x = A + ldb * (block_row + row);",
        "x = A + (block_row + row) * p.lda + col;",
        "x = A + static_cast<long long>(row * lda);",
        "x = A + static_cast<int>(static_cast<long long>(row) * lda);",
        "const int step = static_cast<long long>(row) * lda;",
        "const int ld = lda;",
        "x = A + i * INST_M * lda + static_cast<long long>(i);",
        "x = A + i % 2 * static_cast<unsigned>(rows) * lda;",
        "x = work + (blockIdx.y * gridDim.x + blockIdx.x) * TILE_WORK;",
        "void f(int stride_a, int b);",
        "const long long far = 2; void f() { const int near = far; }",
    ],
)  # fmt: skip
def test_products_and_names_of_32_bits_are_found(wrong: str) -> None:
    assert Text(wrong).faults()


@pytest.mark.parametrize(
    "right",
    [
        "x = A + static_cast<long long>(row) * lda + col;",
        "x = A + lda * static_cast<long long>(row);",
        "x = A + 2LL * i * lda;",
        "x = A + static_cast<long long>(first) * BLOCK_K * lda;",
        "x = work + (static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x) * TILE_WORK;",
        "const long long product = blockIdx.y; A += product * stride_a;",
        "void f(long long stride_a); // int stride_b * lda",
        "const float* ldd_words; const char* words = \"row * lda\";",
        "constexpr int TILE_WORK_BYTES = TILE_WORK * 4;",
    ],
)  # fmt: skip
def test_what_has_a_factor_of_64_bits_is_right(right: str) -> None:
    assert Text(right).faults() == []
