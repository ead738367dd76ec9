"""The picture of a ladder: a bar for each rung, as SVG that is readable on light and on dark ground.

It is made of the record alone, so the same record gives the same bytes. Bars are lengths on a scale that begins with 0;
what they stand for is written beside them, so nothing is told by colour or length alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from wmmagen.ladder import Record
from wmmagen.records import Outcome

#: In pixels of the picture's own size.
WIDTH, ROW, BAR = 960, 30, 18
_LEFT, _RIGHT, _TOP = 168, 270, 118
#: What lies beyond so many times all else, as a ceiling does above small products, would leave no length to the bars.
_BEYOND = 4
#: The most marks on the scale; their steps are 1, 2 or 5 times a power of ten.
_MARKS = 6

_STYLE = """\
    text { font: 15px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
    .title { font-size: 20px; font-weight: 600; }
    .ground { fill: #ffffff; }
    .bar { fill: #2a6fb0; }
    .estimate { fill: none; stroke: #2a6fb0; stroke-width: 2; stroke-dasharray: 5 3; }
    .best { fill: #1a7f37; }
    .grid { stroke: #d1d9e0; stroke-width: 1; }
    .limit { stroke: #a0410d; stroke-width: 2; stroke-dasharray: 7 4; }
    .quiet { fill: #59636e; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc; }
      .ground { fill: #0d1117; }
      .bar { fill: #58a6ff; }
      .estimate { stroke: #58a6ff; }
      .best { fill: #3fb950; }
      .grid { stroke: #3d444d; }
      .limit { stroke: #f0883e; }
      .quiet { fill: #9198a1; }
    }"""


@dataclass(frozen=True)
class _Line:
    """A rate that rungs are held against."""

    words: str
    tflops: float


def svg(record: Record) -> str:
    """The picture, ending with a newline."""
    lines = list(_lines(record))
    most = max((rate for row in record.rows if (rate := _rate(row, record)) is not None), default=1.0)
    for line in lines:
        most = max(most, line.tflops if line.tflops <= _BEYOND * most else 0.0)
    step = _step(most)
    whole = step * math.ceil(most / step)
    wide = WIDTH - _LEFT - _RIGHT
    bottom = _TOP + ROW * len(record.rows)
    high = bottom + 34 + 22 * len(lines) + 10

    def x(rate: float) -> str:
        return _number(_LEFT + wide * rate / whole)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" width="{WIDTH}" height="{high}" '
        'role="img" aria-labelledby="title description">',
        f'  <title id="title">{escape(_title(record))}</title>',
        f'  <desc id="description">{escape(_description(record, lines))}</desc>',
        f"  <style>\n{_STYLE}\n  </style>",
        f'  <rect class="ground" width="{WIDTH}" height="{high}"/>',
        _text(20, 36, _title(record), "title"),
        _text(20, 62, _subtitle(record), "quiet"),
        _text(20, 84, _measure(record), "quiet"),
    ]
    marks = [mark * step for mark in range(round(whole / step) + 1)]
    for mark in marks:
        parts.append(_vertical("grid", x(mark), _TOP - 6, bottom))
        parts.append(_text(x(mark), _TOP - 12, f"{mark:g}", "quiet", "middle"))
    for number, row in enumerate(record.rows):
        parts += _row(row, record, _TOP + ROW * number, x)
    for number, line in enumerate(lines):
        # A letter at the line and the same one at its words tell which is which without a colour.
        letter, beyond = "ABC"[number], "" if line.tflops <= whole else ", beyond the scale"
        if not beyond:
            parts.append(_vertical("limit", x(line.tflops), _TOP - 6, bottom + 6))
            parts.append(_text(x(line.tflops), bottom + 22, letter, anchor="middle"))
        words = f"{letter}: {line.words}, {line.tflops:.1f} TFLOP/s{beyond}"
        parts.append(_text(20, bottom + 44 + 22 * number, words))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row(row: Mapping[str, Any], record: Record, top: int, x: Any) -> Iterator[str]:
    middle = top + ROW // 2 + 5
    yield _text(_LEFT - 10, middle, row["rung"], anchor="end")
    rate = _rate(row, record)
    if rate is None:
        why = "not legal here" if row["outcome"] == Outcome.ILLEGAL else row["outcome"]
        yield _text(_LEFT + 8, middle, f"{why}: {_short(row['detail'])}", "quiet")
        return
    kind = "estimate" if not record.timed else "best" if row is record.rows[-1] else "bar"
    length = _number(max(1.0, float(x(rate)) - _LEFT))
    yield (f'  <rect class="{kind}" x="{_LEFT}" y="{top + (ROW - BAR) // 2}" width="{length}" height="{BAR}" rx="2"/>')
    yield _text(WIDTH - _RIGHT + 10, middle, _figures(row, record, rate))


def _figures(row: Mapping[str, Any], record: Record, rate: float) -> str:
    if not record.timed:
        return f"{rate:.1f} TFLOP/s, estimated"
    share = row["share"]["cublas_same_types"]
    return f"{rate:.1f} TFLOP/s" + (f", {share:.3f} of cuBLAS" if share is not None else "")


def _rate(row: Mapping[str, Any], record: Record) -> float | None:
    value: float | None = row["tflops" if record.timed else "estimated_tflops"]
    return value


def _lines(record: Record) -> Iterator[_Line]:
    """What the bars are held against: both denominators and the first ceiling, the highest last."""
    found = [
        _Line(f"cuBLASLt {one['kind']} ({', '.join(one['types'])})", one["tflops"])
        for one in record.document["denominators"]
        if one["tflops"] is not None
    ]
    above = [one for one in record.document["ceilings"] if one["tflops"] is not None]
    found += [
        _Line(f"the ceiling of WMMA, {one['shape']} in registers ({', '.join(one['types'])})", one["tflops"])
        for one in above[:1]
    ]
    yield from sorted(found[:3], key=lambda line: line.tflops)


def _title(record: Record) -> str:
    document = record.document
    if not record.timed:
        return f"The ladder at {document['problem']}, ESTIMATED for {document['chip']}"
    return f"The ladder at {document['problem']} on {document['device']}"


def _subtitle(record: Record) -> str:
    document = record.document
    if not record.timed:
        return f"{document['arch']} kernels, checked by {document['device']}; nothing was measured"
    if document["foreign"]:
        return f"{document['arch']} kernels assembled again for this card: exact, but their times are foreign"
    return f"{document['arch']} kernels, each exact before it was timed; {document['mode']}, {document['data']} data"


def _measure(record: Record) -> str:
    if not record.timed:
        return "TFLOP/s by the estimate"
    return "TFLOP/s, median of launches timed in turns; a share is the lower end of its 95 % interval"


def _description(record: Record, lines: Sequence[_Line]) -> str:
    said = []
    for row in record.rows:
        rate = _rate(row, record)
        said.append(f"{row['rung']}: {_figures(row, record, rate) if rate is not None else row['outcome']}")
    return ". ".join([*said, *(f"{line.words}: {line.tflops:.1f} TFLOP/s" for line in lines)]) + "."


def _short(text: str) -> str:
    """As much of a reason as stands in a row, cut between words."""
    most, words = 84, text.split()
    line = ""
    for word in words:
        if len(line) + len(word) + 1 > most:
            return f"{line} …"
        line = f"{line} {word}".strip()
    return line


def _step(most: float) -> float:
    """1, 2 or 5 times a power of ten, so that the scale has few marks."""
    power = 10.0 ** math.floor(math.log10(most / _MARKS))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * _MARKS >= most)


def _number(value: float) -> str:
    return f"{value:.1f}"


def _text(x: float | str, y: int, words: str, kind: str = "", anchor: str = "") -> str:
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'  <text x="{x}" y="{y}"{more}>{escape(words)}</text>'


def _vertical(kind: str, x: str, top: int, bottom: int) -> str:
    return f'  <line class="{kind}" x1="{x}" y1="{top}" x2="{x}" y2="{bottom}"/>'
