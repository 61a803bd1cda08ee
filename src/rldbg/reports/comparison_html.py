"""The HTML report: first difference, stages, explanations, heat maps, the worst samples token by token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from rldbg.analysis import Comparison, Decode, FieldResult, Stage, strips_of
from rldbg.core import by_severity
from rldbg.core import to_html as findings_to_html
from rldbg.recording import Recording
from rldbg.reports.comparison_charts import bar, both_sides, difference_histogram, heat_map, number, strip_chart
from rldbg.reports.comparison_style import SCRIPT, STYLE

if TYPE_CHECKING:
    from rldbg.analysis import Explanation

_MARKS = {"equal": "✓", "equal within noise": "✓", "drift": "~", "different": "✗"}
_SHOWN_FIELDS = 8
_LABELS = {"mini_batch": "mini-batch", "micro": "micro-batch"}


def html_report(
    base: Recording, others: Sequence[tuple[Recording, Comparison]], *, decode: Decode | None = None
) -> str:
    """One self-contained document: A against each of the others. `decode` turns a token id into text."""
    sections = [_comparison(base, other, result, place, decode) for place, (other, result) in enumerate(others)]
    contents = ""
    if len(others) > 1:
        links = (f'<a href="#c{place}">{escape(result.titles[1])}</a>' for place, (_, result) in enumerate(others))
        contents = f"<nav>{''.join(links)}</nav>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">"
        f"<title>rldbg compare</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>Comparison of recordings</h1>{contents}</header>{''.join(sections)}"
        f'</main><div id="tip"></div><script>{SCRIPT}</script></body></html>'
    )


def to_html(result: Comparison) -> str:
    """For notebooks: the verdict with the first difference, the stages, and why; the report has the rest."""
    style = f"<style>@scope {{ {STYLE.replace(':root', ':scope')} }}</style>"
    return f"<div>{style}{_summary(result)}{_flow(result, 0)}{_reasons(result)}</div>"


def _comparison(base: Recording, other: Recording, result: Comparison, place: int, decode: Decode | None) -> str:
    return f'<section id="c{place}">' + "".join(_parts(base, other, result, place, decode)) + "</section>"


def _parts(base: Recording, other: Recording, result: Comparison, place: int, decode: Decode | None) -> Iterator[str]:
    yield _summary(result)
    yield _flow(result, place)
    yield _reasons(result)
    differing = [field for field in result.fields if not field.equal]
    differing.sort(key=lambda field: (field.stage.order, field.kind, field.field))
    if differing:
        maps = "".join(heat_map(field) for field in differing[:_SHOWN_FIELDS])
        yield f'<h2>Where: ranks and micro-batches</h2>{_legend()}<div class="grid">{maps}</div>'
        yield from _tokens(base, other, result, differing, decode)
    yield _stage_tables(result, place)
    yield _noise(result)
    yield _configuration(result, place)
    if result.findings:
        yield f"<h2>Findings</h2>{findings_to_html(by_severity(result.findings))}"


def _summary(result: Comparison) -> str:
    a, b = (escape(title) for title in result.titles)
    text = (
        f'<div class="card"><span class="verdict {result.verdict}">{result.verdict}</span> '
        f'<span class="muted">{result.compared:,} values over {len(result.steps)} step(s)</span>'
        f'<div class="ab"><div class="a"><span class="muted">A</span><br><code class="path">{a}</code></div>'
        f'<div class="b"><span class="muted">B</span><br><code class="path">{b}</code></div></div></div>'
    )
    first = result.first_difference
    if first is None:
        return text
    found = first.to_dict()
    facts = "".join(
        f"<div><span>{_LABELS.get(name, name)}</span><code>{escape(str(found[name]))}</code></div>"
        for name in ("step", "epoch", "mini_batch", "rank", "micro", "sample", "row", "token", "index", "name")
        if found.get(name) is not None
    )
    values = "".join(
        f'<div class="{side}"><span class="muted">{side.upper()}</span><br>'
        f"<code>{escape(str(found[side]))}</code></div>"
        for side in ("a", "b")
    )
    return (
        f'{text}<div class="card first"><div class="where">First difference: stage {first.stage.value}, '
        f"<code>{escape(first.kind)}.{escape(first.field)}</code></div>"
        f'<div class="facts">{facts}</div><div class="ab">{values}</div></div>'
    )


def _flow(result: Comparison, place: int) -> str:
    """The stages in causal order, those not recorded faint."""
    rows = {row["stage"]: row for row in result.stages()}
    first = result.first_difference
    boxes = []
    for stage in Stage:
        row = rows.get(stage.value)
        if row is None:
            boxes.append(f'<a class="absent"><b>{stage.value}</b>not recorded</a>')
            continue
        classes = [str(row["verdict"]), stage.value] + (["is-first"] if first and first.stage is stage else [])
        detail = f"{row['beyond']:,} of {row['compared']:,}" if row["beyond"] else f"{row['compared']:,}"
        boxes.append(f'<a class="{" ".join(classes)}" href="#c{place}-{stage.value}"><b>{stage.value}</b>{detail}</a>')
    return f'<h2>Stages</h2><div class="flow">{"".join(boxes)}</div>'


def _reasons(result: Comparison) -> str:
    if result.first_difference is None:
        return ""
    body = "".join(_hypothesis(item, "card") for item in result.explanations)
    if result.candidates:
        body = "<p>Cause not decided: the recordings leave these candidates.</p>"
        body += "".join(_hypothesis(item, "card near") for item in result.candidates)
    elif not result.explanations:
        near = "".join(_hypothesis(item, "card near") for item in result.nearest)
        body = '<div class="card">Cause unknown: no hypothesis accounts for it.'
        body += (" The closest ones below are not the cause: what they leave is more than rounding.") if near else ""
        body += f"</div>{near}"
    rows = [
        f"<td><code>{escape(name)}</code></td>{_numbers(map(number, numbers.values()))}"
        for name, numbers in result.mismatch.items()
    ]
    mismatch = ""
    if rows:
        names = next(iter(result.mismatch.values()))
        mismatch = f"<h2>Log probs, B against A</h2>{_table('<th></th>', map(escape, names), rows)}"
    return f'<h2>Why</h2><div class="why">{body}</div>{mismatch}'


def _hypothesis(item: Explanation, classes: str) -> str:
    return (
        f'<div class="{classes}"><b>{escape(item.explains)}</b><div class="facts">'
        f"<div><span>accounts for</span>{bar(item.share)} {item.share:.0%}</div>"
        f"<div><span>left over</span><code>{number(item.residual)}</code></div>"
        f"<div><span>rounding allows</span><code>{number(item.noise)}</code></div>"
        f"<div><span>hypothesis</span><code>{escape(item.id)}</code></div>{_parameters(item.parameters)}</div></div>"
    )


def _parameters(parameters: dict[str, Any]) -> str:
    return "".join(
        f"<div><span>{escape(str(name))}</span><code>{escape(_short(value))}</code></div>"
        for name, value in parameters.items()
    )


def _short(value: Any) -> str:
    text = number(value) if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _legend() -> str:
    steps = "".join(f'<i class="l{level}"></i>' for level in range(9))
    return f'<div class="legend">within tolerance {steps} largest difference</div>'


def _tokens(
    base: Recording, other: Recording, result: Comparison, differing: Sequence[FieldResult], decode: Decode | None
) -> Iterator[str]:
    first = result.first_difference
    assert first is not None
    strips = strips_of(base, other, first.step, decode, shift=result.shift)
    if strips is not None:
        what = "tokens" if strips.quantity == "tokens" else strips.quantity
        charts = "".join(strip_chart(strip, strips.quantity) for strip in strips.strips)
        yield (
            f"<h2>Worst samples, token by token</h2>"
            f'<p class="muted">step {strips.step}, coloured by <code>{escape(what)}</code>; dashed tokens are not '
            f"trained on; hover over a token for all values of both sides</p>{_legend()}{charts}"
        )
    charts = "".join(difference_histogram(field) for field in differing[:_SHOWN_FIELDS])
    overlay = both_sides(strips) if strips is not None else ""
    if charts or overlay:
        yield f'<h2>Distributions</h2><div class="grid">{overlay}{charts}</div>'


def _stage_tables(result: Comparison, place: int) -> str:
    rows = []
    for row in result.stages():
        if row["stage"] == Stage.CONFIG.value:
            continue
        for position, field in enumerate(row["fields"]):
            anchor = f' id="c{place}-{row["stage"]}"' if position == 0 else ""
            mark = _MARKS[field["verdict"]]
            odd = f"{field['nan'][0]}/{field['nan'][1]}" if any(field["nan"]) else ""
            counts = [f"{field[name]:,}" for name in ("compared", "beyond", "allowed")]
            numbers = [number(field[name]) for name in ("max_abs", "mean_abs", "max_rel", "cosine")]
            rows.append(
                f'<tr class="{field["verdict"]}"{anchor}><td>{row["stage"]}</td>'
                f"<td><code>{escape(field['kind'])}.{escape(field['field'])}</code></td><td>{mark}</td>"
                f"{_numbers([*counts, *numbers, odd])}</tr>"
            )
    names = ("compared", "beyond", "allowed", "max abs", "mean abs", "max rel", "cosine", "NaN A/B")
    return f"<h2>All fields</h2>{_table('<th>stage</th><th>field</th><th></th>', names, rows)}"


def _noise(result: Comparison) -> str:
    """How large rounding had become after each optimizer step, and what the next one was allowed for it."""
    if not result.noise:
        return ""
    rows = []
    for level in result.noise:
        step, epoch, mini_batch = level.update
        numbers = (number(level.gradient), number(level.parameter), f"{level.allowed:,}", number(level.log_prob))
        rows.append(f"<td>step {step} epoch {epoch} mini-batch {mini_batch}</td>{_numbers(numbers)}")
    names = ("gradient difference", "parameter difference", "allowed by the optimizer", "next log probs allowed")
    return f"<h2>Noise after each optimizer step</h2>{_table('<th>after</th>', names, rows)}"


def _numbers(texts: Iterable[str]) -> str:
    return "".join(f'<td class="n">{text}</td>' for text in texts)


def _table(first: str, names: Iterable[str], rows: Iterable[str]) -> str:
    """Rows of cells under the titles given: those of texts as they are, then those of numbers."""
    head = first + "".join(f'<th class="n">{name}</th>' for name in names)
    body = "".join(row if row.startswith("<tr") else f"<tr>{row}</tr>" for row in rows)
    return f'<div class="card scroll"><table class="list"><tr>{head}</tr>{body}</table></div>'


def _configuration(result: Comparison, place: int) -> str:
    configuration = result.configuration
    if configuration is None:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(change.name)}</code></td><td>{escape(_short(change.a))}</td>"
        f"<td>{escape(_short(change.b))}</td></tr>"
        for change in configuration.changes
    )
    body = (
        f'<table class="list"><tr><th>setting</th><th>A</th><th>B</th></tr>{rows}</table>' if rows else "no difference"
    )
    return (
        f'<h2 id="c{place}-config">Configuration <span class="muted">{configuration.compared} settings; possible '
        f'causes, not proof</span></h2><div class="card scroll">{body}</div>'
    )
