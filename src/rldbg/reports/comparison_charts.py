"""The report's charts as HTML and SVG text. Everything that comes from a recording is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from rldbg.analysis import FieldResult, Strip, Strips, Token

_WIDTH, _HEIGHT = 340, 120


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}"


def heat_level(gap: float, largest: float) -> int:
    """0 (nothing) to 8, on a logarithmic scale over six decades below the largest."""
    if gap <= 0:
        return 0
    if math.isinf(gap) or largest <= 0 or math.isinf(largest):
        return 8
    return max(1, min(8, round(8 + math.log10(gap / largest) * 8 / 6)))


def heat_map(result: FieldResult) -> str:
    """One row per rank, one column per (step, micro-batch), coloured by the largest |a - b| there."""
    columns = sorted({(step, micro) for step, _, micro in result.cells})[:96]
    ranks = sorted({rank for _, rank, _ in result.cells})[:128]
    largest = max((size for size, count in result.cells.values() if count), default=0.0)
    head = "".join(f'<th title="step {step}, micro-batch {micro}">{step}·{micro}</th>' for step, micro in columns)
    rows = []
    for rank in ranks:
        cells = "".join(_heat_cell(result, step, rank, micro, largest) for step, micro in columns)
        rows.append(f"<tr><th>rank {rank}</th>{cells}</tr>")
    return (
        f'<figure class="heat"><figcaption><code>{escape(result.kind)}.{escape(result.field)}</code>'
        f'<span class="muted"> step·micro-batch of A</span></figcaption>'
        f'<div class="scroll"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div></figure>'
    )


def _heat_cell(result: FieldResult, step: int, rank: int, micro: int, largest: float) -> str:
    found = result.cells.get((step, rank, micro))
    if found is None:
        return '<td class="none" title="not recorded"></td>'
    size, count = found
    level = heat_level(size, largest) if count else 0
    title = f"step {step}, rank {rank}, micro-batch {micro}: largest {number(size)}, {count:,} beyond tolerance"
    return f'<td class="l{level}" title="{title}"></td>'


def difference_histogram(result: FieldResult) -> str:
    """How large the differences beyond tolerance are: one bar per power of two."""
    bins = result.distribution()
    if not bins:
        return ""
    low, high = math.log2(bins[0][0]), math.log2(bins[-1][0]) + 1
    top = max(count for _, count in bins)
    width = _WIDTH / max(high - low, 1)
    bars = []
    for edge, count in bins:
        x = (math.log2(edge) - low) * width
        tall = max(2.0, count / top * (_HEIGHT - 30))
        bars.append(
            f'<rect class="bar" x="{x:.1f}" y="{_HEIGHT - 20 - tall:.1f}" width="{max(width - 1.5, 1):.1f}" '
            f'height="{tall:.1f}"><title>{number(edge)} to {number(edge * 2)}: {count:,.0f}</title></rect>'
        )
    labels = _axis(number(2**low), number(2 ** ((low + high) / 2)), number(2**high))
    name = f"{escape(result.kind)}.{escape(result.field)}"
    return (
        f'<figure><figcaption><code>{name}</code> <span class="muted">|a − b| beyond tolerance, '
        f"{result.measured.beyond:,} of {result.measured.compared:,}</span></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(bars)}{labels}</svg></figure>'
    )


def both_sides(strips: Strips) -> str:
    """The values of one quantity on both sides, overlaid."""
    values = [side[np.isfinite(side)] for side in (strips.values_a, strips.values_b)]
    if any(side.size == 0 for side in values):
        return ""
    low, high = min(side.min() for side in values), max(side.max() for side in values)
    if high <= low:
        return ""
    counts = [np.histogram(side, bins=60, range=(low, high))[0] for side in values]
    top = max(int(count.max()) for count in counts)
    width = _WIDTH / 60
    lines = []
    for name, count in zip(("a", "b"), counts, strict=True):
        points = [f"0,{_HEIGHT - 20}"]
        for place, amount in enumerate(count):
            y = _HEIGHT - 20 - amount / top * (_HEIGHT - 32)
            points += [f"{place * width:.1f},{y:.1f}", f"{(place + 1) * width:.1f},{y:.1f}"]
        points.append(f"{_WIDTH},{_HEIGHT - 20}")
        lines.append(f'<polygon class="side-{name}" points="{" ".join(points)}"/>')
    labels = _axis(number(float(low)), number(float((low + high) / 2)), number(float(high)))
    what = "lengths of samples" if strips.quantity == "tokens" else strips.quantity
    return (
        f'<figure><figcaption><code>{escape(what)}</code> <span class="muted">step {strips.step}, '
        f'<span class="key-a">A</span> and <span class="key-b">B</span></span></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(lines)}{labels}</svg></figure>'
    )


def _axis(left: str, middle: str, right: str) -> str:
    y = _HEIGHT - 5
    return (
        f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{_HEIGHT - 20}" y2="{_HEIGHT - 20}"/>'
        f'<text x="2" y="{y}">{left}</text><text x="{_WIDTH / 2}" y="{y}" text-anchor="middle">{middle}</text>'
        f'<text x="{_WIDTH - 2}" y="{y}" text-anchor="end">{right}</text>'
    )


def strip_chart(strip: Strip, quantity: str) -> str:
    largest = max((token.gap for token in strip.tokens if math.isfinite(token.gap)), default=0.0)
    cells = "".join(_token(token, largest, token.position == strip.worst_position) for token in strip.tokens)
    more = f'<span class="muted"> {strip.left_out:,} further tokens not shown</span>' if strip.left_out else ""
    what = "token" if quantity == "tokens" else f"largest difference {number(strip.worst)} at token"
    return (
        f'<article class="strip"><h3>sample <code>{escape(strip.sample)}</code>'
        f'<span class="muted"> {what} {strip.worst_position}</span></h3>'
        f'<div class="tokens">{cells}</div>{more}</article>'
    )


def _token(token: Token, largest: float, is_worst: bool) -> str:
    lines = [f"token {token.position}" + ("" if token.is_trained else " (not trained on)")]
    if token.text_a != token.text_b:
        lines.append(f"A {_shown(token.text_a)} · B {_shown(token.text_b)}")
    for name, (a, b) in token.values.items():
        lines.append(f"{name}: A {number(a)} · B {number(b)}")
    text = _shown(token.text_a if token.text_a is not None else token.text_b)
    body = escape(text)
    if token.text_a != token.text_b:
        body = f"<del>{escape(_shown(token.text_a))}</del><ins>{escape(_shown(token.text_b))}</ins>"
    classes = f"t l{heat_level(token.gap, largest)}"
    classes += "" if token.is_trained else " prompt"
    classes += " worst" if is_worst else ""
    return f'<span class="{classes}" title="{escape(chr(10).join(lines))}">{body}</span>'


def _shown(text: str | None) -> str:
    """A token's text with its white space made visible."""
    if text is None:
        return "∅"
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "·"


def bar(share: float) -> str:
    """How much of a difference something accounts for, 0 to 1."""
    width = max(0.0, min(1.0, share)) * 100
    return f'<span class="meter"><span style="width:{width:.0f}%"></span></span>'


def joined(parts: Sequence[str]) -> str:
    return "".join(part for part in parts if part)
